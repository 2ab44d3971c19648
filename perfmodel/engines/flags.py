"""Launch lines: a table of flags per engine, and the one writer and the one reader that serve all tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.engines.flag_names import flag_lives
from perfmodel.engines.options import Options
from perfmodel.errors import BadInput


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its spellings (the first is written), the contract keyword it sets, and how its value reads.

    ``kind``: int, float, str, ints (comma list), most (numbers apart, the largest counts), size (32k, 32K), true or
    false (a switch that sets that value), skip (known, takes a value, no keyword), many (the same, several values),
    maybe (the same, none or one), switch (known, takes none, no keyword).
    """

    names: tuple[str, ...]
    keyword: str | None
    kind: str


def skip(*names: str) -> Flag:
    """A flag that is known and takes a value but says nothing that we model."""
    return Flag(names, None, "skip")


def write(options: Options, table: Iterable[Flag], leave: Iterable[str] = ()) -> list[str]:
    """Words of the options that are set, in the order of the table; keywords in ``leave`` are written elsewhere."""
    words, done = [], set(leave)
    for flag in table:
        if flag.keyword is None or flag.keyword in done:
            continue
        value = getattr(options, flag.keyword)
        if flag.kind in ("true", "false"):
            if value is (flag.kind == "true"):
                words.append(flag.names[0])
            continue
        done.add(flag.keyword)
        if value is not None and value != getattr(_DEFAULTS, flag.keyword):
            words += [flag.names[0], _text(value)]
    return words


_DEFAULTS = Options()
_WEIGHTS = "  # weights: "


def environment_words(options: Options, more: Mapping[str, str] | None = None) -> list[str]:
    """Settings before the program: those given, and the NCCL variables that the launch names."""
    nccl = [word for word in (options.nccl or "").replace(",", " ").split() if "=" in word]
    return [*(f"{name}={value}" for name, value in (more or {}).items()), *nccl]


def checkpoint(options: Options, model_id: str, online: Iterable[str]) -> tuple[str, str]:
    """What to name as the model, and the remark that ends the line.

    A format that the engine makes while it loads (``online``) needs no other checkpoint. Any other needs weights that
    were written in it; the line then names a folder for them, and says after ``# weights:`` of what.

    >>> checkpoint(Options(quantization="awq"), "org/model", ["fp8"])
    ('./model-awq', '  # weights: org/model in awq')
    """
    word = options.quantization
    if word is None or word in online:
        return model_id, ""
    return f"./{model_id.rsplit('/', 1)[-1]}-{word}", f"{_WEIGHTS}{model_id} in {word}"


def weights_remark(text: str) -> tuple[str, str] | None:
    """Model and format after ``# weights:``, where a line of `checkpoint` ends so.

    >>> weights_remark("vllm serve ./model-awq -tp 2  # weights: org/model in awq")
    ('org/model', 'awq')
    """
    match = re.search(r"# weights: (\S{1,300}) in (\w{1,20})\s*$", text)
    return (match[1], match[2]) if match else None


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def split(text: str) -> tuple[dict[str, str], list[str]]:
    """Environment settings before the program, and the words from the program on."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as problem:
        raise BadInput(f"the command does not read as a shell line: {problem}") from None
    environment: dict[str, str] = {}
    while words and (match := re.fullmatch(r"([A-Z_][A-Z0-9_]*)=(.*)", words[0], re.DOTALL)):
        environment[match[1]] = match[2]
        words = words[1:]
    return environment, words


def read(
    words: Sequence[str], table: Iterable[Flag], engine: str = ""
) -> tuple[dict[str, object], list[str], tuple[str, ...]]:
    """Keywords that the words set, the words that are no flags, and the flags that nobody knows.

    With ``engine``, flags that any version of it has are known, though they say nothing that we model.
    """
    known = {name.replace("_", "-"): flag for flag in table for name in flag.names}
    others = others_of(engine) if engine else {}
    found: dict[str, object] = {}
    free: list[str] = []
    unknown: list[str] = []
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        if not _is_flag(word):
            free.append(word)
            continue
        name, has_value, value = word.partition("=")
        plain = name.replace("_", "-")
        flag = known.get(plain) or others.get(plain) or _prefixed(plain, known) or _prefixed(plain, others)
        if flag is None:
            unknown.append(name)
            if not has_value and index < len(words) and not _is_flag(words[index]):
                index += 1
            continue
        if flag.kind in ("true", "false", "switch"):
            if flag.keyword is not None:
                found[flag.keyword] = flag.kind == "true"
            continue
        if flag.kind in ("many", "maybe"):
            most = len(words) if flag.kind == "many" else index + (not has_value)
            while index < min(most, len(words)) and not _is_flag(words[index]):
                index += 1
            continue
        if not has_value:
            if index >= len(words):
                raise BadInput(f"{name} needs a value")
            value, index = words[index], index + 1
        while flag.kind == "most" and index < len(words) and words[index].isdecimal():
            value, index = max(value, words[index], key=lambda text: (len(text), text)), index + 1
        if flag.keyword is not None:
            found[flag.keyword] = _value(name, value, flag.kind)
    return found, free, tuple(unknown)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d*)?", word)


def _prefixed(name: str, known: Mapping[str, Flag]) -> Flag | None:
    """The unique long flag that this begins (argparse prefix matching)."""
    if not name.startswith("--"):
        return None
    matches = {id(flag): flag for spelling, flag in known.items() if spelling.startswith(name)}
    return next(iter(matches.values())) if len(matches) == 1 else None


@lru_cache(maxsize=8)
def others_of(engine: str) -> dict[str, Flag]:
    """Every flag of every version of an engine that was read, as one that says nothing."""
    kinds = {"no": "switch", "one": "skip", "many": "many", "maybe": "maybe"}
    return {life.flag: Flag((life.flag,), None, kinds[life.takes]) for life in flag_lives(engine)}


_SIZE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _value(name: str, text: str, kind: str) -> object:
    try:
        if kind in ("int", "most"):
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "ints":
            return tuple(int(part) for part in text.split(","))
        if kind == "size":
            match = re.fullmatch(r"([\d.]+)([kmgKMG]?)", text)
            return int(float(match[1]) * _SIZE[match[2]]) if match else int(text)
    except (ValueError, OverflowError):
        raise BadInput(f"{name} takes {'numbers' if kind == 'ints' else 'a number'}, got {text[:80]!r}") from None
    return text


def environment_layers(environment: Mapping[str, str], name: str) -> dict[str, object]:
    """``layers_per_stage`` from an environment setting, if it is there."""
    return {"layers_per_stage": _value(name, environment[name], "ints")} if name in environment else {}
