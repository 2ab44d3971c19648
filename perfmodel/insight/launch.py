"""A launch line as people write it -> engine, version, model, keywords of `deploy`, and all that was not understood.

The text is hostile until read: it is split as a shell would, nothing of it is run, and its size is bounded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel import engines
from perfmodel.engines import flags, sglang_flags, tensorrt_llm_flags, vllm_flags
from perfmodel.engines.flag_versions import flag_warnings
from perfmodel.errors import BadInput
from perfmodel.placement.nccl import ENVIRONMENT

MOST_CHARACTERS, MOST_WORDS = 65_536, 2_000
TABLES = {"vllm": vllm_flags.READ, "sglang": sglang_flags.FLAGS, "tensorrt-llm": tensorrt_llm_flags.FLAGS}
_MODULES = {"vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm",
            "sglang.launch_server": "sglang"}
_PROGRAM = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"],
            "tensorrt-llm": ["trtllm-serve"]}
_OPERATORS = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "&>", "1>", "2>")
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


@dataclass(frozen=True)
class Launch:
    """What a launch line says. ``unknown``: flags and words that were not understood; ``warnings``: what the version
    refuses; ``notes``: what is understood, but not followed by the answer."""

    engine: str
    version: str
    model: str
    keywords: dict[str, Any]
    environment: dict[str, str]
    words: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The launch as one line."""
        return " ".join(shlex.quote(word) for word in [*(f"{k}={v}" for k, v in self.environment.items()), *self.words])


def read_launch(text: str, engine: str | None = None, moe: bool = True, environment: dict[str, str] | None = None,
                image: str = "") -> Launch:
    """One launch line. ``engine`` may state the version (``sglang==0.5.10``), which else an image's tag may.

    >>> launch = read_launch("CUDA_VISIBLE_DEVICES=0 vllm serve org/model -tp 2 --no-such-flag")
    >>> launch.engine, launch.model, launch.keywords, launch.unknown
    ('vllm', 'org/model', {'tp': 2}, ('--no-such-flag',))
    """
    line, known = _line(text, dict(environment or {}))
    words, unset = _expanded(line, known)
    found = _start(words, image)
    if found is None:
        raise NotACommand("not a command that starts a server: " + _short(text),
                          ["vllm serve ..., python -m sglang.launch_server ..., or trtllm-serve ..."])
    program, before, rest = found
    settings = {**known, **_settings(before)}
    name, _, version = (engine or "").partition("==")
    stated = next((n for n, m in engines.ENGINES.items() if name and engines.get(name)[0] is m), program)
    if stated != program:
        raise BadInput(f"the command starts {program}, the question names {stated}")
    version = version or _version_of(image, before)
    remark = text.partition("# --config:")[2] if program == "tensorrt-llm" else ""
    rest, notes = _normal(_joined(rest), program)
    return _parsed(program, version, moe, settings, rest, remark, [*notes, *unset])


def _parsed(program: str, version: str, moe: bool, environment: dict[str, str], rest: list[str], remark: str,
            notes: list[str]) -> Launch:
    module, rules, _ = engines.get(f"{program}=={version}" if version else program)
    call = [*(f"{k}={v}" for k, v in environment.items() if re.fullmatch(r"[A-Z_][A-Z0-9_]*", k)), *_PROGRAM[program]]
    text = shlex.join([*call, *rest]) + (f"  # --config: {remark}" if remark else "")
    model, keywords, unknown = module.parse_command(text, moe=moe, model_needed=False)
    plain = [vllm_flags._undotted(word) for word in rest] if program == "vllm" else rest
    stray = [word for word in flags.read(plain, TABLES[program])[1] if word != model]
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
                  flag_warnings(program, rules, rest), (*notes, *said))


def _names(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")))


def _line(text: str, environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The logical line that starts a server; ``export`` lines before it are kept as settings."""
    if len(text) > MOST_CHARACTERS:
        raise BadInput(f"the command is longer than {MOST_CHARACTERS:,} characters")
    lines = [line for line in re.sub(r"\\\r?\n", " ", text).splitlines() if line.strip() and not _comment(line)]
    if len(lines) < 2:
        return (lines[0] if lines else ""), environment
    for line in lines:
        try:
            words = flags_split(line)
        except BadInput:                    # a quote spans lines: the text is one command
            return text, environment
        if _start(words, "") is not None or any(_engine_of_image(word) for word in words):
            return line, environment
        for word in words:
            if match := re.fullmatch(r"([A-Z_][A-Z0-9_]*)=(.*)", word, re.DOTALL):
                environment[match[1]] = match[2]
    return lines[0], environment


def _comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def flags_split(text: str) -> list[str]:
    """Words as a shell splits them; a text that a shell would refuse is refused."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as problem:
        raise BadInput(f"the command does not read as a shell line: {problem}") from None
    if len(words) > MOST_WORDS:
        raise BadInput(f"the command has more than {MOST_WORDS:,} words")
    return words


def _expanded(line: str, environment: dict[str, str]) -> tuple[list[str], list[str]]:
    """Words with ``$NAME``, ``${NAME:-default}`` and ``$(NAME)`` put in where their value is known."""
    words, missing = flags_split(line), []
    local = {**environment, **_settings(words)}

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2] or match[4], match[3]
        if name in local:
            return local[name]
        if default is not None:
            return default
        missing.append(f"variable {name} has no value here")
        return match[0]

    pattern = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\(([A-Za-z_]\w*)\))")
    return [pattern.sub(value, word)[:MOST_CHARACTERS] for word in words], list(dict.fromkeys(missing))


def _start(words: Sequence[str], image: str) -> tuple[str, list[str], list[str]] | None:
    """Engine, the words before its program, and the words after it up to the next shell operator."""
    for i, word in enumerate(words):
        name, after = word.rsplit("/", 1)[-1], list(words[i + 1:])
        if name in ("bash", "sh") and after[:1] in (["-c"], ["-lc"], ["-ec"]) and len(after) > 1:
            inner = _line(after[1], {})[0]
            for piece in re.split(r"&&|;|\|\|", inner):
                if (found := _start(flags_split(piece), image)) is not None:
                    return found[0], [*words[:i], *found[1]], found[2]
        if name == "vllm" and after and (after[0] == "serve" or after[0].startswith("-")):
            return "vllm", list(words[:i]), _until_operator(after[after[0] == "serve":])
        if name == "sglang" and after[:1] == ["serve"]:
            return "sglang", list(words[:i]), _until_operator(after[1:])
        if word == "-m" and after and after[0] in _MODULES:
            return _MODULES[after[0]], list(words[:i]), _until_operator(after[1:])
        if name == "trtllm-serve":
            return "tensorrt-llm", list(words[:i]), _until_operator(after[after[:1] == ["serve"]:])
        if name.endswith(("sglang/launch_server.py", "openai/api_server.py")):
            return ("sglang" if "sglang" in word else "vllm"), list(words[:i]), _until_operator(after)
    for i, word in enumerate(words):
        if (engine := _engine_of_image(word)) == "vllm" and {"docker", "podman"} & set(words[:i]):
            return engine, list(words[:i + 1]), _until_operator(words[i + 1:])
    if image and _engine_of_image(image) == "vllm" and words and words[0].startswith("-"):
        return "vllm", [], _until_operator(words)               # the image's entry point is the server
    return None


def _engine_of_image(word: str) -> str:
    match = re.search(r"(?:^|/)(vllm-openai|sglang|tritonllm|tensorrt-llm)[\w.-]*(?::|@|$)", word)
    if match is None or word.startswith("-"):
        return ""
    return {"vllm-openai": "vllm", "sglang": "sglang"}.get(match[1], "tensorrt-llm") if "/" in word else ""


def _until_operator(words: Sequence[str]) -> list[str]:
    kept = []
    for word in words:
        if word in _OPERATORS or re.match(r"\d?>{1,2}(&|/|\w)", word):
            break
        kept.append(word.rstrip(";"))
        if word.endswith(";"):
            break
    return kept


def _settings(words: Sequence[str]) -> dict[str, str]:
    """``NAME=value`` words, also after ``-e`` or ``--env=``."""
    found = {}
    for word in words:
        match = re.fullmatch(r"(?:--env=|-e)?([A-Z_][A-Z0-9_]*)=(.*)", word, re.DOTALL)
        if match is None and not word.startswith("-"):
            continue
        if match is not None:
            found[match[1]] = match[2]
    return found


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
