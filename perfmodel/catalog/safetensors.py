"""Bytes of a checkpoint by class of tensor, from the headers of its safetensors files. Tensor data is never read."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfmodel.catalog.hf_keys import read_json
from perfmodel.catalog.yaml import check_plain
from perfmodel.errors import DescriptorError

MAX_HEADER = 100 * 10**6
MAX_INDEX = 64 * 2**20
MAX_FILES = 2000
MAX_TENSORS = 2_000_000
BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
        "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}  # fmt: skip

# What a tensor's name says it is; the first that is found counts. A scale or zero point belongs to its weight.
CLASSES: tuple[tuple[str, str], ...] = (
    ("mtp", r"(^|\.)(mtp|nextn|eh_proj|enorm|hnorm)\b"),
    ("vision", r"visual|vision|mm_projector|multi_modal|patch_merge|image_newline"),
    ("shared experts", r"shared_expert|shared_mlp"),
    ("experts", r"\.experts?\b|switch_mlp"),
    ("norms", r"layers\.\d+\.\w*norm"),
    ("router", r"\.router\b|(mlp|moe|ffn|mixer|feed_forward)\.gate\b|e_score|correction_bias"),
    ("attention", r"attn|attention|\.mixer\.(q|k|v|o|in|out)_proj|\.mixer\.(conv1d|A_log|D|dt_bias|norm)|\.mamba\."),
    ("head", r"lm_head|(^|\.)output\.weight|(^|\.)head\.weight"),
    ("embedding", r"embed_tokens|embeddings?\b|word_embed|tok_embeddings|(^|\.)embed\.weight|wte"),
    ("norms", r"norm"),
    ("MLP", r"mlp|ffn|feed_forward|fc1|fc2|up_proj|down_proj"),
)
_CLASSES = tuple((name, re.compile(pattern)) for name, pattern in CLASSES)


def class_of(tensor: str, layers: int | None = None) -> str:
    """Class of a tensor by its name; layers beyond those of the model are MTP layers.

    >>> class_of("model.layers.3.mlp.experts.7.up_proj.weight_scale"), class_of("model.layers.61.mlp.up_proj", 61)
    ('experts', 'mtp')
    """
    found = re.search(r"(?:^|\.)layers\.(\d{1,6})\.", tensor)
    if layers is not None and found and int(found[1]) >= layers and "vis" not in tensor:
        return "mtp"
    return next((name for name, pattern in _CLASSES if pattern.search(tensor)), "other")


def header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of one file: tensor -> dtype, shape, offsets."""
    name = os.path.basename(os.fspath(path))
    try:
        check_plain(path)
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 2 <= length <= MAX_HEADER or length + 8 > size:
                raise DescriptorError(f"{name}: not a safetensors file, its header claims {length} bytes")
            raw = file.read(length)
    except OSError as error:
        raise DescriptorError(f"{name}: cannot be read, {(error.strerror or 'unknown error').lower()}") from None
    try:
        document = json.loads(raw, object_pairs_hook=_once)
    except DescriptorError:
        raise DescriptorError(f"{name}: the header names a tensor twice") from None
    except (ValueError, RecursionError):
        raise DescriptorError(f"{name}: the header is not JSON") from None
    if not isinstance(document, dict):
        raise DescriptorError(f"{name}: the header is not an object")
    document.pop("__metadata__", None)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the header, if no key stands in it twice; the format forbids that."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DescriptorError("twice")
    return found


def sizes(folder: str | os.PathLike[str]) -> Iterator[tuple[str, int]]:
    """(tensor, bytes) of every safetensors file of a folder; a shard that is missing is refused by name."""
    root, count = Path(folder), 0
    files = sorted(root.glob("*.safetensors"))[: MAX_FILES + 1]
    index = root / "model.safetensors.index.json"
    wanted = set(_weight_map(index).values()) if index.is_file() else set()
    missing = sorted(wanted - {path.name for path in files})
    if missing:
        raise DescriptorError(f"{root.name}: {missing[0]} is missing, which model.safetensors.index.json names")
    if not files or len(files) > MAX_FILES:
        raise DescriptorError(f"{root.name}: {'no' if not files else 'too many'} safetensors files")
    for path in files:
        for tensor, entry in header(path).items():
            count += 1
            if count > MAX_TENSORS:
                raise DescriptorError(f"{root.name}: more than {MAX_TENSORS} tensors")
            yield tensor, _bytes(path.name, tensor, entry)


def _weight_map(index: Path) -> dict[str, str]:
    found = read_json(index, MAX_INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise DescriptorError(f"{index.name}: weight_map - an object of file names is needed")
    return found


def _bytes(file: str, tensor: str, entry: Any) -> int:
    if not isinstance(entry, dict):
        raise DescriptorError(f"{file}: {tensor[:80]} - not an object")
    offsets = entry.get("data_offsets")
    if (not isinstance(offsets, list) or len(offsets) != 2 or not all(type(value) is int for value in offsets)
            or not 0 <= offsets[0] <= offsets[1] < 2**50):
        raise DescriptorError(f"{file}: {tensor[:80]} - data_offsets are not two rising whole numbers")
    shape, dtype = entry.get("shape"), entry.get("dtype")
    if (not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**40 for n in shape)
            or not isinstance(dtype, str) or dtype not in BITS):
        raise DescriptorError(f"{file}: {tensor[:80]} - shape or dtype {str(dtype)[:20]!r} is not known")
    expected = BITS[dtype]
    for n in shape:
        expected *= n
    size: int = offsets[1] - offsets[0]
    if -(-expected // 8) != size:
        raise DescriptorError(f"{file}: {tensor[:80]} - {size} bytes where its shape needs {-(-expected // 8)}")
    return size


def checkpoint_bytes(folder: str | os.PathLike[str], layers: int | None = None) -> dict[str, int]:
    """Bytes by class of tensor; ``layers`` of the model tell MTP layers from its own."""
    table: dict[str, int] = {}
    for tensor, size in sizes(folder):
        name = class_of(tensor, layers)
        table[name] = table.get(name, 0) + size
    return table


def index_bytes(folder: str | os.PathLike[str]) -> int | None:
    """The total that model.safetensors.index.json prints, for folders without the weights."""
    index = Path(folder) / "model.safetensors.index.json"
    if not index.is_file():
        return None
    metadata = read_json(index, MAX_INDEX).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if size is None:
        return None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if type(size) is not int or not 0 < size < 2**50:
        raise DescriptorError(f"{index.name}: metadata.total_size - {str(size)[:40]} is not a size in bytes")
    return size
