"""A launch line as people write it -> engine, version, model, keywords of `deploy`, and all that was not understood.

The text is hostile until read: it is split as a shell would, nothing of it is run, and its size is bounded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from perfmodel import engines
from perfmodel.engines import flags, sglang_flags, tensorrt_llm_flags, vllm_flags
from perfmodel.engines.flag_versions import flag_warnings, refusal
from perfmodel.errors import BadInput, shown
from perfmodel.insight.shell_words import MODULES, expanded, gpus_seen, logical_line, settings_in, slips, start_of
from perfmodel.placement.nccl import ENVIRONMENT

TABLES = {"vllm": vllm_flags.READ, "sglang": sglang_flags.FLAGS, "tensorrt-llm": tensorrt_llm_flags.FLAGS}
_PROGRAM = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"],
            "tensorrt-llm": ["trtllm-serve"]}
# Known, but the answer does not follow them: what each would change. Kind: derived from the engines' sources.
UNMODELLED = {
    "--kv-cache-memory-bytes": "sets the KV pool itself; the memory fraction is taken instead",
    "--num-gpu-blocks-override": "sets the number of KV blocks itself",
    "--max-total-tokens": "caps the KV pool",
    "--cpu-offload-gb": "keeps weights in host memory and streams them each step",
    "--enable-two-batch-overlap": "overlaps communication with arithmetic",
    "--enable-single-batch-overlap": "overlaps communication with arithmetic",
    "--enable-dbo": "overlaps communication with arithmetic",
    "--moe-a2a-backend": "moves tokens by all-to-all in place of all-gather",
    "--all2all-backend": "moves tokens by all-to-all in place of all-gather",
    "--enable-mixed-chunk": "puts prefill chunks into decode batches",
    "--attention-context-parallel-size": "splits the prefill of a sequence over ranks",
    "--attn-cp-size": "splits the prefill of a sequence over ranks",
    "--prefill-context-parallel-size": "splits the prefill of a sequence over ranks",
    "--disaggregation-mode": "serves prefill or decode alone",
    "--enable-eplb": "moves experts after their popularity",
    "--enable-hierarchical-cache": "keeps prefixes in host memory",
    "--nnodes": "spans several machines; the node that is asked about must have all their GPUs",
    "--config": "names a file of further flags, which is not read",
    "--extra-llm-api-options": "names a file of further flags, which is not read",
    "--cuda-graph-config": "decides which phase is captured",
    "--disable-overlap-schedule": "schedules on the host between two steps",
}
_QUIET_ENVIRONMENT = ("VLLM_PP_LAYER_PARTITION", "VLLM_ATTENTION_BACKEND", "SGLANG_PP_LAYER_PARTITION",
                      "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC",
                      "VLLM_ALLREDUCE_USE_SYMM_MEM")


class NotACommand(BadInput):
    """The text starts no server that we know."""


class Refused(NamedTuple):
    """A flag at which the engine's parser stops: why, and the flag that was meant (empty: none is near)."""

    flag: str
    why: str
    meant: str

    @property
    def unknown(self) -> bool:
        """Whether no version has it, or only longer ones."""
        return self.why.startswith(("unknown", "ambiguous"))


@dataclass(frozen=True)
class Launch:
    """What a launch line says. ``unknown``: flags and words that were not understood; ``warnings``: what the version
    refuses; ``notes``: what is understood, but not followed by the answer. ``refused``: flags that keep the server from
    starting; ``words`` and ``keywords`` have what was meant in their place."""

    engine: str
    version: str
    model: str
    keywords: dict[str, Any]
    environment: dict[str, str]
    words: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    gpus: int | None = None     # that the settings around it leave to it
    refused: tuple[Refused, ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        """What was not understood and does not keep the server from starting."""
        stops = [item.flag for item in self.refused]
        return tuple(word for word in self.unknown if word not in stops)

    @property
    def other_warnings(self) -> tuple[str, ...]:
        """Warnings about other flags than those."""
        stops = tuple(f"{item.flag.replace('_', '-')}:" for item in self.refused)
        return tuple(line for line in self.warnings if not line.startswith(stops)) if stops else self.warnings

    @property
    def line(self) -> str:
        """The launch as one line."""
        words = [*(f"{k}={v}" for k, v in self.environment.items()), *self.words]
        return " ".join(word if re.fullmatch(r"[\w@%+=:,./$-]+", word) else shlex.quote(word) for word in words)


def read_launch(text: str, engine: str | None = None, moe: bool = True, environment: dict[str, str] | None = None,
                image: str = "", gpus: int | None = None) -> Launch:
    """One launch line. ``engine`` may state the version (``sglang==0.5.10``), which else an image's tag may.

    >>> launch = read_launch("CUDA_VISIBLE_DEVICES=0,1 vllm serve org/model -tp 2 --no-such-flag")
    >>> launch.engine, launch.model, launch.keywords, launch.unknown, launch.gpus
    ('vllm', 'org/model', {'tp': 2}, ('--no-such-flag',), 2)
    """
    for given in (text, "" if engine is None else engine):
        if not isinstance(given, str):
            raise BadInput(f"the command and the engine must be text, not {shown(given)}")
    line, known = logical_line(text, dict(environment or {}))
    words, unset = expanded(line, known)
    found = start_of(words, image)
    if found is None:
        raise NotACommand("not a command that starts a server: " + _short(text),
                          [*_meant(words), "vllm serve ..., python -m sglang.launch_server ..., or trtllm-serve ..."])
    program, before, rest = found
    settings = {**known, **settings_in(before)}
    name, _, version = (engine or "").partition("==")
    stated = next((n for n, m in engines.ENGINES.items() if name and engines.get(name)[0] is m), program)
    if stated != program:
        raise BadInput(f"the command starts {program}, the question names {stated}")
    version = version or _version_of(image, before)
    remark = text[text.index("# --config:"):] if program == "tensorrt-llm" and "# --config:" in text else ""
    if not remark and "# weights: " in text:
        remark = text[text.rindex("# weights: "):]
    rest, notes = _normal(_joined(rest), program)
    launch = _parsed(program, version, moe, settings, rest, remark, [*slips(text), *notes, *unset])
    return replace(launch, gpus=gpus if gpus is not None else gpus_seen(settings, before))


def _parsed(program: str, version: str, moe: bool, environment: dict[str, str], rest: list[str], remark: str,
            notes: list[str]) -> Launch:
    module, rules, _ = engines.get(f"{program}=={version}" if version else program)
    call = [*(f"{k}={v}" for k, v in environment.items() if re.fullmatch(r"[A-Z_][A-Z0-9_]*", k)), *_PROGRAM[program]]
    tail = f"  {remark}" if remark else ""
    refused = _refused(program, rules, rest)
    mended = _mended(rest, refused)
    unknown = module.parse_command(shlex.join([*call, *rest]) + tail, moe=moe, model_needed=False)[2]
    warnings = flag_warnings(program, rules, rest)
    try:
        model, keywords, _ = module.parse_command(shlex.join([*call, *mended]) + tail, moe=moe, model_needed=False)
        rest = mended
    except BadInput:                # what stands behind the slip is no value of the flag that is near
        model, keywords, _ = module.parse_command(shlex.join([*call, *rest]) + tail, moe=moe, model_needed=False)
    plain = [vllm_flags._undotted(word) for word in rest] if program == "vllm" else rest
    free = flags.read(plain, TABLES[program], program)[1]
    stray = [word for word in free if word != model and not ("# weights: " in remark and word == free[0])]
    if "<" in model or "$" in model:
        model, unknown = "", (*unknown, model)
    if keywords.get("prefill_chunk") == -1:
        keywords["prefill_chunk"] = 16384
        notes.append("--chunked-prefill-size -1: prompts run whole; a chunk of 16,384, max_prefill_tokens, is taken")
    notes += [f"{name}: {what}; not modelled" for name in _names(rest) if (what := UNMODELLED.get(name))]
    nccl, said = _nccl(environment)
    if nccl:
        keywords["nccl"] = nccl
    return Launch(program, version, model, keywords, environment, (*_PROGRAM[program], *rest), (*unknown, *stray),
                  warnings, (*notes, *said), refused=refused)


def _refused(program: str, version: str, words: Sequence[str]) -> tuple[Refused, ...]:
    """Flags at which the parser of this version stops."""
    names = dict.fromkeys(word.partition("=")[0] for word in words if re.match(r"--[A-Za-z]", word))
    found = {name: refusal(program, version, name) for name in names}
    return tuple(Refused(name, *why) for name, why in found.items() if why is not None)


def _mended(words: Sequence[str], refused: Sequence[Refused]) -> list[str]:
    """The words with what was meant by unknown flags; one that is near none is left out, with its value. A flag of
    another version stays: its value may need another form."""
    meant = {item.flag: item.meant for item in refused if item.unknown}
    kept: list[str] = []
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        name, equals, value = word.partition("=")
        if name not in meant:
            kept.append(word)
        elif meant[name]:
            kept.append(meant[name] + equals + value)
        elif not equals and index < len(words) and not words[index].startswith("-"):
            index += 1
    return kept


def _meant(words: Sequence[str]) -> list[str]:
    """What starts a server and is nearly what stands there."""
    known = {"vllm": "vllm serve", "sglang": "sglang serve", "trtllm-serve": "trtllm-serve",
             **{module: f"python -m {module}" for module in MODULES}}
    for word, after in zip(words, (*words[1:], ""), strict=False):
        near = get_close_matches(word.rsplit("/", 1)[-1][:80], list(known), n=1, cutoff=0.75)
        exact = near and near[0] == word.rsplit("/", 1)[-1]
        if near and (not exact or get_close_matches(after[:80], ["serve"], n=1, cutoff=0.6)):
            return [f"did you mean {known[near[0]]}?"]
    return []


def _names(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")))


def _joined(words: list[str]) -> list[str]:
    """Unquoted braces are one value: ``{method: mtp, n: 3}`` comes as several words."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].count("{") > joined[-1].count("}"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def _normal(words: list[str], program: str) -> tuple[list[str], list[str]]:
    """Words without values that mean "decide yourself"."""
    kept: list[str] = []
    notes: list[str] = []
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        name, equals, value = word.partition("=")
        if program == "vllm" and name.replace("_", "-") == "--max-model-len":
            if not equals:
                value, index = (words[index], index + 1) if index < len(words) else ("", index)
            if value.lower() in ("auto", "-1"):
                notes.append(f"--max-model-len {value}: the model's own limit is taken")
                continue
            word = f"{name}={value}"
        kept.append(word)
    return kept, notes


def _version_of(image: str, before: Sequence[str]) -> str:
    for word in [image, *before]:
        if match := re.search(r"(?::v?|(?:vllm|sglang)(?:\[\w+\])?==)(\d+\.\d+(?:\.\d+)?(?:\.post\d+)?)", word):
            return match[1]
    return ""


def _nccl(environment: dict[str, str]) -> tuple[str, list[str]]:
    """The ``nccl`` keyword from NCCL_* settings, and those settings that it does not take."""
    given = {k: v for k, v in environment.items() if k.startswith("NCCL_")}
    known = [f"{k}={v}" for k, v in given.items() if k in ENVIRONMENT and not re.search(r"[\s,]", v)]
    others = [k for k in environment if (k.startswith(("NCCL_", "VLLM_", "SGLANG_", "SGL_"))
                                         and k not in _QUIET_ENVIRONMENT and not any(k == w.partition("=")[0]
                                                                                     for w in known))]
    return " ".join(known), [f"environment {k}={_short(environment[k], 40)}: not modelled" for k in others]


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= most else text[:most] + "...")
