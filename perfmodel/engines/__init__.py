"""What an engine does, by version, as functions of plain values: split, memory, graphs, collectives, batches, flags."""

from __future__ import annotations

from types import ModuleType

from perfmodel.engines import sglang, tensorrt_llm, versions, vllm
from perfmodel.engines.memory import KvPool
from perfmodel.engines.options import Facts, Options, RankFacts, RuntimeRow
from perfmodel.errors import UnknownName, word

ENGINES: dict[str, ModuleType] = {"vllm": vllm, "sglang": sglang, "tensorrt-llm": tensorrt_llm}

_ALIASES = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrtllm": "tensorrt-llm"}


def get(engine: str) -> tuple[ModuleType, str, tuple[str, ...]]:
    """The module, the version whose rules apply, and what was assumed, for texts such as ``sglang==0.5.10``.

    >>> module, version, assumptions = get("sglang==0.5.10")
    >>> module.__name__, version, assumptions
    ('perfmodel.engines.sglang', '0.5.10', ())
    """
    name, _, version = word("engine", engine).strip().partition("==")
    name = name.strip().lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    module = ENGINES[name]
    if "==" in engine and not version.strip():
        versions.numbers(version)
    chosen, assumptions = versions.pick(name, version.strip(), module.VERSIONS)
    return module, chosen, assumptions


__all__ = ["ENGINES", "Facts", "KvPool", "Options", "RankFacts", "RuntimeRow", "get"]
