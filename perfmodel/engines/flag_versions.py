"""Which flags came and went with which version of an engine: what `doctor` warns of before a launch fails on it.

Read in the sources of the versions that `VERSIONS` of each engine lists, so "since x" means absent in the listed
version before x. A flag that is not in these tables is taken as valid in every version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.engines.versions import at_least


@dataclass(frozen=True, slots=True)
class Life:
    """Versions that know a flag: from ``since`` to below ``until`` (empty: always), and what to write instead."""

    since: str = ""
    until: str = ""
    instead: str = ""
    deprecated: str = ""    # from this version on it works, with a warning


SGLANG = {
    "--pp-async-batch-depth": Life(since="0.5.9", instead="nothing: the loop has pp_size slots there"),
    "--enable-dynamic-chunking": Life(since="0.5.9"),
    "--attn-dp-size": Life(since="0.5.22", instead="--dp-size N --enable-dp-attention"),
    "--attention-data-parallel-size": Life(since="0.5.22", instead="--dp-size N --enable-dp-attention"),
    "--enable-dp-attention": Life(deprecated="0.5.22", instead="--attn-dp-size N"),
    "--dcp-size": Life(since="0.5.20"),
    "--cuda-graph-max-bs": Life(until="0.5.20", deprecated="0.5.15", instead="--cuda-graph-max-bs-decode"),
    "--cuda-graph-bs": Life(until="0.5.20", deprecated="0.5.15", instead="--cuda-graph-bs-decode"),
    "--cuda-graph-max-bs-decode": Life(since="0.5.15", instead="--cuda-graph-max-bs"),
    "--cuda-graph-bs-decode": Life(since="0.5.15", instead="--cuda-graph-bs"),
    "--cuda-graph-backend-decode": Life(since="0.5.15", instead="--disable-cuda-graph"),
    "--cuda-graph-backend-prefill": Life(since="0.5.15"),
    "--cuda-graph-config": Life(since="0.5.15"),
    "--disable-cuda-graph": Life(deprecated="0.5.20", instead="--cuda-graph-backend-decode disabled"),
    "--enable-piecewise-cuda-graph": Life(until="0.5.15", instead="--cuda-graph-backend-prefill"),
    "--disable-piecewise-cuda-graph": Life(until="0.5.15", instead="--disable-prefill-cuda-graph"),
    "--piecewise-cuda-graph-max-tokens": Life(until="0.5.15", instead="--cuda-graph-max-bs-prefill"),
    "--hybrid-kvcache-ratio": Life(until="0.5.20", instead="--swa-full-tokens-ratio"),
    "--torchao-config": Life(until="0.5.20", instead="--quantization"),
    "--stream-output": Life(until="0.5.20"),
    "--nsa-prefill-backend": Life(until="0.5.20", instead="--dsa-prefill-backend"),
    "--nsa-decode-backend": Life(until="0.5.20", instead="--dsa-decode-backend"),
    "--enable-flashinfer-allreduce-fusion": Life(until="0.5.20", instead="--flashinfer-allreduce-fusion-backend"),
}
VLLM = {
    "--cuda-graph-sizes": Life(until="0.13", instead="--max-cudagraph-capture-size"),
    "--attention-backend": Life(since="0.13", instead="VLLM_ATTENTION_BACKEND=..."),
    "--all2all-backend": Life(since="0.11.2", instead="VLLM_ALL2ALL_BACKEND=..."),
    "--moe-backend": Life(since="0.20"),
    "--performance-mode": Life(since="0.20"),
    "--kv-cache-memory-bytes": Life(since="0.10.2"),
    "--decode-context-parallel-size": Life(since="0.10.2"),
    "--device-memory-utilization": Life(since="0.33", instead="--gpu-memory-utilization"),
    "--async-scheduling": Life(since="0.10.2"),
    "--calculate-kv-scales": Life(until="0.21", instead="nothing: scales come from the checkpoint"),
    "--swap-space": Life(until="0.18", instead="--kv-offloading-size"),
    "--max-num-partial-prefills": Life(until="0.33"),
    "--num-scheduler-steps": Life(until="0.10.2"),
}
TABLES: dict[str, dict[str, Life]] = {"sglang": SGLANG, "vllm": VLLM, "tensorrt-llm": {}}


def flag_warnings(engine: str, version: str, words: Iterable[str]) -> tuple[str, ...]:
    """What a version says to these flags: not there yet, removed, or deprecated.

    >>> flag_warnings("sglang", "0.5.20", ["--cuda-graph-max-bs", "64"])
    ('--cuda-graph-max-bs: removed in sglang 0.5.20; write --cuda-graph-max-bs-decode',)
    """
    found: dict[str, str] = {}
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        life = TABLES[engine].get(name)
        if life is None:
            continue
        instead = f"; write {life.instead}" if life.instead else ""
        if life.until and at_least(version, life.until):
            found[name] = f"removed in {engine} {life.until}{instead}"
        elif life.since and not at_least(version, life.since):
            found[name] = f"not in {engine} {version}, since {life.since}{instead}"
        elif life.deprecated and at_least(version, life.deprecated):
            found[name] = f"deprecated since {engine} {life.deprecated}{instead}"
    return tuple(f"{name}: {said}" for name, said in found.items())
