"""Files that somebody hands to the page: bytes and a name in, checked and packed text out. Names are never paths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from perfmodel.catalog import ModelArch, Node, names
from perfmodel.catalog.hf import model_from_hf
from perfmodel.catalog.hf_keys import parse_json
from perfmodel.catalog.load import validate
from perfmodel.catalog.lookup import fold
from perfmodel.catalog.yaml import parse_yaml
from perfmodel.engines.logs import LaunchLog, parse_log
from perfmodel.errors import BadInput, DescriptorError, UnknownName
from perfmodel.ui.address import MOST_ADDRESS, pack, unpack

MOST_BYTES = 4 * 2**20  # of a description or a benchmark
MOST_LOG_BYTES = 16 * 2**20
MOST_FILES = 50


def text_of(data: bytes, name: str, most: int = MOST_BYTES) -> str:
    """UTF-8 text of bounded size."""
    if len(data) > most:
        raise DescriptorError(f"{name}: {len(data):,} bytes; at most {most:,} are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DescriptorError(f"{name}: not UTF-8 text (byte {error.start})") from None


def pack_model(data: bytes) -> str:
    """An uploaded config.json, packed; refused where it describes no model."""
    values = parse_json(text_of(data, "config.json"), "config.json")
    packed = pack(json.dumps(values, separators=(",", ":")))
    model(packed)
    return packed


def model(packed: str) -> ModelArch:
    """The model that a packed config.json describes."""
    return model_from_hf(parse_json(unpack(packed), "config.json"))


def pack_node(data: bytes) -> str:
    """An uploaded node file, packed; refused where it describes no node."""
    packed = pack(text_of(data, "node.yaml"))
    node(packed)
    return packed


def node(packed: str) -> Node:
    """The node that a packed file describes; its accelerator must be one of the catalog, never a file."""
    found = validate(Node, "node", parse_yaml(unpack(packed), "node.yaml"), "node.yaml")
    known = names("accelerator")
    if fold(found.accelerator) not in map(fold, known) or "/" in found.accelerator:
        raise UnknownName("accelerator", found.accelerator, known)
    return found


def is_log(name: str) -> bool:
    """Whether a name ends like a log."""
    return PurePath(name).suffix.lower() in (".log", ".txt", ".out")


def pack_log(data: bytes) -> str:
    """Figures of an uploaded start-up log, packed; refused where it states none."""
    lines = text_of(data, "the log", MOST_LOG_BYTES).splitlines()
    found = parse_log(lines).known
    found.pop("errors", None)
    if not set(found) - {"engine", "version"}:
        raise BadInput("the log states no figure of memory that is known here",
                       ["upload the start-up log of vLLM, SGLang or TensorRT-LLM, from its first line"])  # fmt: skip
    return pack(json.dumps(found, separators=(",", ":")))


def log(packed: str) -> LaunchLog:
    """The log of packed figures."""
    values = parse_json(unpack(packed), "log")
    known = {field: kind for field, kind in LaunchLog.__annotations__.items() if field != "errors"}
    for field, value in values.items():
        good = str if known.get(field) == "str" else (int, float)
        if field not in known or not isinstance(value, good) or isinstance(value, bool):
            raise BadInput("the log in the address is damaged", ["upload the log again"])
    return LaunchLog(**values)


def pack_benchmark(files: Sequence[bytes]) -> str:
    """Texts of uploaded result files, packed."""
    if len(files) > MOST_FILES:
        raise BadInput(f"{len(files)} files; at most {MOST_FILES} are read at once")
    return pack(json.dumps([text_of(data, f"file {i}", MOST_LOG_BYTES) for i, data in enumerate(files, start=1)]))


def benchmark(packed: str) -> list[str]:
    """The texts again."""
    try:
        found = json.loads(unpack(packed))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise BadInput("the benchmark in the address is damaged", ["upload the benchmark again"])
    return found


def shortened(packed: str, rows: Iterable[Any]) -> str:
    """A benchmark that is too long for an address as a plain CSV of its measurements, where they are of that kind."""
    kept = list(rows)
    if len(packed) <= MOST_ADDRESS or any(row.kind not in ("rate", "tpot") for row in kept):
        return packed
    lines = [f"{row.load!r},{1 / row.seconds if row.kind == 'rate' else ''},"
             f"{1e3 * row.seconds if row.kind == 'tpot' else ''},{row.input_tokens!r},{row.output_tokens!r}"
             for row in kept]  # fmt: skip
    return pack(json.dumps(["\n".join(["concurrency,output_tok_s,tpot_ms,input_tokens,output_tokens", *lines])]))
