"""Which flags came and went with which version of an engine: what `doctor` warns of before a launch fails on it.

Which version has which flag is read off the engines' sources (`flag_names`), so "since x" means absent in the version
read before x. The tables here say what to write instead, from when on a flag is deprecated, and versions where a
release between those was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches

from perfmodel.engines.flag_names import flag_lives
from perfmodel.engines.versions import at_least


@dataclass(frozen=True, slots=True)
class Life:
    """Versions that know a flag: from ``since`` to below ``until`` (empty: always), and what to write instead."""

    since: str = ""
    until: str = ""
    instead: str = ""
    deprecated: str = ""    # from this version on it works, with a warning


SGLANG = {
    "--pp-async-batch-depth": Life(instead="nothing: the loop has pp_size slots there"),
    "--attn-dp-size": Life(instead="--dp-size N --enable-dp-attention"),
    "--attention-data-parallel-size": Life(instead="--dp-size N --enable-dp-attention"),
    "--enable-dp-attention": Life(deprecated="0.5.22", instead="--attn-dp-size N"),
    "--cuda-graph-max-bs": Life(deprecated="0.5.15", instead="--cuda-graph-max-bs-decode"),
    "--cuda-graph-bs": Life(deprecated="0.5.15", instead="--cuda-graph-bs-decode"),
    "--cuda-graph-max-bs-decode": Life(instead="--cuda-graph-max-bs"),
    "--cuda-graph-bs-decode": Life(instead="--cuda-graph-bs"),
    "--cuda-graph-backend-decode": Life(instead="--disable-cuda-graph"),
    "--disable-cuda-graph": Life(deprecated="0.5.20", instead="--cuda-graph-backend-decode disabled"),
    "--enable-piecewise-cuda-graph": Life(instead="--cuda-graph-backend-prefill"),
    "--disable-piecewise-cuda-graph": Life(instead="--disable-prefill-cuda-graph"),
    "--piecewise-cuda-graph-max-tokens": Life(instead="--cuda-graph-max-bs-prefill"),
    "--hybrid-kvcache-ratio": Life(instead="--swa-full-tokens-ratio"),
    "--torchao-config": Life(instead="--quantization"),
    "--nsa-prefill-backend": Life(instead="--dsa-prefill-backend"),
    "--nsa-decode-backend": Life(instead="--dsa-decode-backend"),
    "--enable-flashinfer-allreduce-fusion": Life(deprecated="0.5.20", instead="--flashinfer-allreduce-fusion-backend"),
    "--monokernel-backend": Life(deprecated="0.5.23", instead="--enable-amd-monokernel"),
}
VLLM = {
    "--cuda-graph-sizes": Life(instead="--max-cudagraph-capture-size"),
    "--attention-backend": Life(since="0.13", instead="VLLM_ATTENTION_BACKEND=..."),
    "--all2all-backend": Life(instead="VLLM_ALL2ALL_BACKEND=..."),
    "--device-memory-utilization": Life(instead="--gpu-memory-utilization"),
    "--calculate-kv-scales": Life(instead="nothing: scales come from the checkpoint"),
    "--swap-space": Life(until="0.18", instead="--kv-offloading-size"),
    "--disable-log-requests": Life(instead="nothing: --enable-log-requests asks for them"),
    "--num-scheduler-steps": Life(instead="nothing: --async-scheduling took its place"),
    "--log-config-file": Life(deprecated="0.33.0"),
    "--mamba-cache-mode": Life(deprecated="0.33.0"),
    "--disable-cascade-attn": Life(deprecated="0.33.0", instead="nothing: it has no effect"),
}
TABLES: dict[str, dict[str, Life]] = {"sglang": SGLANG, "vllm": VLLM, "tensorrt-llm": {}}


def life_of(engine: str, name: str) -> Life | None:
    """What is known of a flag: read off the sources, the tables here on top; None where no version read has it."""
    read = next((life for life in flag_lives(engine) if life.flag == name), None)
    more = TABLES[engine].get(name)
    if read is None:
        return more
    more = more or Life()
    return replace(more, since=more.since or read.since, until=more.until or read.until)


def valid(engine: str, version: str) -> list[str]:
    """Flags that a version has.

    >>> "--attn-dp-size" in valid("sglang", "0.5.20"), "--attn-dp-size" in valid("sglang", "0.5.22")
    (False, True)
    """
    return [life.flag for life in flag_lives(engine)
            if (not life.since or at_least(version, life.since)) and not (life.until and at_least(version, life.until))]


def flag_warnings(engine: str, version: str, words: Iterable[str]) -> tuple[str, ...]:
    """What a version says to these flags: not there yet, removed, deprecated, ambiguous, or never heard of.

    >>> flag_warnings("sglang", "0.5.20", ["--cuda-graph-max-bs", "64"])
    ('--cuda-graph-max-bs: removed in sglang 0.5.20; write --cuda-graph-max-bs-decode',)
    >>> flag_warnings("sglang", "0.5.23", ["--mem-fraction-statik", "0.9"])
    ('--mem-fraction-statik: unknown to sglang; nearest: --mem-fraction-static',)
    """
    found: dict[str, str] = {}
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if not re.fullmatch(r"--?[A-Za-z][\w.-]{0,100}", name) or name in found:
            continue
        said = _said(engine, version, name)
        if said:
            found[name] = said
    return tuple(f"{name}: {said}" for name, said in found.items())


def refusal(engine: str, version: str, name: str) -> tuple[str, str] | None:
    """Why the parser of a version stops at a flag, and the one flag to write in its place (empty: there is none).

    >>> refusal("vllm", "0.33.0", "--tensor-paralel-size")[1]
    '--tensor-parallel-size'
    >>> refusal("vllm", "0.33.0", "--tensor-parallel-size") is None
    True
    """
    said = _said(engine, version, name.replace("_", "-"))
    if not said or said.startswith("deprecated"):
        return None
    instead = re.search(r"(?:nearest:|write) (--[\w-]+)(?:,|$)", said)
    starts = re.findall(r"--[\w-]+", said) if said.startswith("ambiguous") else []
    shortest = min(starts, key=len, default="")
    if shortest and all(flag.startswith(shortest) for flag in starts):
        return said, shortest
    return said, instead[1] if instead else ""


def _said(engine: str, version: str, name: str) -> str:
    life = life_of(engine, name)
    if life is None:
        return _unknown(engine, version, name)
    nothing = life.instead.removeprefix("nothing: ")
    instead = f"; {nothing}" if nothing != life.instead else f"; write {life.instead}" if life.instead else ""
    if life.until and at_least(version, life.until):
        return f"removed in {engine} {life.until}{instead}"
    if life.since and not at_least(version, life.since):
        return f"not in {engine} {version}, since {life.since}{instead}"
    if life.deprecated and at_least(version, life.deprecated):
        return f"deprecated since {engine} {life.deprecated}{instead}"
    return ""


def _unknown(engine: str, version: str, name: str) -> str:
    """Of a name that no version read has: a short form, an ambiguous one, or a slip."""
    if re.match(r"-(O|cc)", name) and engine == "vllm" or not name.startswith("--"):
        return ""
    now = valid(engine, version)
    starts = [flag for flag in now if flag.startswith(name)] if engine != "tensorrt-llm" else []
    if len(starts) == 1 or "." in name:                 # argparse takes a unique beginning; --x.y=z is JSON in pieces
        return ""
    if starts:
        return f"ambiguous in {engine} {version}: {', '.join(starts[:3])}{', ...' if len(starts) > 3 else ''}"
    near = get_close_matches(name, now, n=3, cutoff=0.7)
    return f"unknown to {engine}" + (f"; nearest: {', '.join(near)}" if near else "")
