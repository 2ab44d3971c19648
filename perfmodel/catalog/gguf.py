"""The header of a GGUF file -> a raw model description. Tensor data is never read; sizes and counts are bounded."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from perfmodel.catalog.hf import SOURCED, raw_from_hf
from perfmodel.catalog.yaml import check_plain
from perfmodel.errors import DescriptorError

MAX_HEADER = 128 * 2**20
MAX_KEYS, MAX_TENSORS, MAX_NAME, MAX_TEXT, MAX_ARRAY = 10_000, 200_000, 500, 2**22, 2_000_000
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, ARRAY = 8, 9
# ggml type -> (name, weights a block, bytes a block); ggml-common.h
TYPES = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1),
    25: ("i16", 1, 2), 26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
}  # fmt: skip
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
               "deepseek2": "deepseek_v3",
               "gemma3": "gemma3_text"}
# GGUF key (after "<architecture>.") -> key of config.json
KEYS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings", "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size", "attention.sliding_window": "sliding_window",
    "attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank",
    "leading_dense_block_count": "first_k_dense_replace", "expert_shared_count": "n_shared_experts",
    "attention.key_length": "head_dim", "vocab_size": "vocab_size",
}  # fmt: skip
ROLES = {
    "ffn_gate_exps": "experts", "ffn_up_exps": "experts", "ffn_down_exps": "experts", "ffn_gate_shexp": "shared",
    "ffn_up_shexp": "shared", "ffn_down_shexp": "shared", "ffn_gate": "dense", "ffn_up": "dense", "ffn_down": "dense",
    "attn_q": "attention", "attn_k": "attention", "attn_v": "attention", "attn_output": "attention",
    "attn_qkv": "attention",
    "attn_q_a": "attention", "attn_q_b": "attention", "attn_kv_a_mqa": "attention", "attn_kv_b": "attention",
    "attn_k_b": "attention", "attn_v_b": "attention", "token_embd": "embedding", "output": "head",
    "ffn_gate_inp": "router",
}  # fmt: skip


class Reader:
    """A file read in order, up to a limit."""

    def __init__(self, file: BinaryIO, name: str):
        self.file, self.name, self.left = file, name, MAX_HEADER

    def refuse(self, what: str) -> DescriptorError:
        """The error for this file."""
        return DescriptorError(f"{self.name}: {what}")

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.left -= count
        if self.left < 0:
            raise self.refuse(f"its header is larger than {MAX_HEADER} bytes")
        raw = self.file.read(count)
        if len(raw) != count:
            raise self.refuse("the header ends early")
        return raw

    def number(self, layout: str) -> Any:
        """The next number."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, most: int = MAX_TEXT) -> str:
        """The next text."""
        length = self.number("<Q")
        if length > most:
            raise self.refuse(f"a text of {length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """The next value of a key; arrays are skipped, their first numbers kept."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise self.refuse(f"value type {kind} is not known")
        inner, count = self.number("<I"), self.number("<Q")
        if count > MAX_ARRAY or inner == ARRAY:
            raise self.refuse(f"an array of {count} values")
        if inner == TEXT:
            for _ in range(count):
                self.text()
            return None
        if inner not in SCALARS:
            raise self.refuse(f"value type {inner} is not known")
        raw = self.take(count * struct.calcsize(SCALARS[inner]))
        return [item[0] for item in struct.iter_unpack(SCALARS[inner], raw)][:2000]


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[tuple[str, list[int], int]]]:
    """Metadata, and (name, shape, type) of every tensor."""
    name = os.path.basename(os.fspath(path))
    try:
        check_plain(path)
        with open(path, "rb") as file:
            reader = Reader(file, name)
            if reader.take(4) != b"GGUF":
                raise reader.refuse("not a GGUF file")
            version, tensors, keys = reader.number("<I"), reader.number("<Q"), reader.number("<Q")
            if version not in (2, 3) or tensors > MAX_TENSORS or keys > MAX_KEYS:
                raise reader.refuse(f"version {version} with {tensors} tensors and {keys} keys is not read")
            meta: dict[str, Any] = {}
            for _ in range(keys):
                key = reader.text(MAX_NAME)
                meta[key] = reader.value(reader.number("<I"))
            return meta, [_tensor(reader) for _ in range(tensors)]
    except OSError as error:
        raise DescriptorError(f"{name}: cannot be read, {(error.strerror or 'unknown error').lower()}") from None


def _tensor(reader: Reader) -> tuple[str, list[int], int]:
    name, dimensions = reader.text(MAX_NAME), reader.number("<I")
    if dimensions > 8:
        raise reader.refuse(f"{name[:80]!r} has {dimensions} dimensions")
    shape, kind = [reader.number("<Q") for _ in range(dimensions)], reader.number("<I")
    reader.number("<Q")
    if kind not in TYPES or any(not 0 < n < 2**40 for n in shape):
        raise reader.refuse(f"{name[:80]!r} has type {kind} and shape {shape}")
    return name, shape, kind


def raw_from_gguf(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A raw model description, its formats those of the tensors."""
    meta, tensors = read_header(path)
    file, arch = os.path.basename(os.fspath(path)), str(meta.get("general.architecture"))[:40]
    if arch not in MODEL_TYPES:
        raise DescriptorError(f"{file}: general.architecture - {arch!r} is not one of {', '.join(MODEL_TYPES)}")
    raw = raw_from_hf(_config(meta, arch, tensors, file), name=Path(file).stem)
    formats, storage = _stored(tensors)
    source = {"title": f"{file}, header"}
    return raw | {"formats": formats, "storage": storage, "sources": {"config": source}, "title": Path(file).stem}


def _config(meta: dict[str, Any], arch: str, tensors: list[tuple[str, list[int], int]], file: str) -> dict[str, Any]:
    """The keys of config.json that the metadata stand for."""
    own = {key.removeprefix(f"{arch}."): value for key, value in meta.items() if key.startswith(f"{arch}.")}
    config: dict[str, Any] = {KEYS[key]: value for key, value in own.items() if key in KEYS}
    names = {name: shape for name, shape, _ in tensors}
    config |= {"model_type": MODEL_TYPES[arch], "tie_word_embeddings": "output.weight" not in names}
    config.setdefault("vocab_size", names.get("token_embd.weight", [0, 0])[-1])
    if config.get("num_experts") and arch == "llama":
        config |= {"model_type": "mixtral"}
    if arch == "deepseek2":
        key, value = own.get("attention.key_length_mla", own.get("attention.key_length")), own.get(
            "attention.value_length_mla", own.get("attention.value_length"))
        rope = own.get("rope.dimension_count")
        if not isinstance(key, int) or not isinstance(value, int) or not isinstance(rope, int):
            missing = "this key is missing (or value_length, or rope.dimension_count)"
            raise DescriptorError(f"{file}: deepseek2.attention.key_length - {missing}")
        config |= {"qk_rope_head_dim": rope, "qk_nope_head_dim": key - rope, "v_head_dim": value}
        config.pop("num_key_value_heads", None)
        if any("exp_probs_b" in name for name in names):
            config["scoring_func"] = "sigmoid"
    for key, value in config.items():
        if isinstance(value, list):             # per layer; one value is needed
            if len(set(value)) != 1:
                raise DescriptorError(f"{file}: {key} - differs from layer to layer, which is not described here")
            config[key] = value[0]
    return config


def _stored(tensors: list[tuple[str, list[int], int]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Formats and storage: the mean bits of every role, so that the bytes come out exactly."""
    weights: dict[str, int] = {}
    sizes: dict[str, int] = {}
    kinds: dict[str, dict[str, int]] = {}
    for name, shape, kind in tensors:
        word, block, block_bytes = TYPES[kind]
        role = ROLES.get(name.removesuffix(".weight").rpartition(".")[2], "default")
        count = 1
        for n in shape:
            count *= n
        weights[role] = weights.get(role, 0) + count
        sizes[role] = sizes.get(role, 0) + count // block * block_bytes
        kinds.setdefault(role, {})[word] = kinds.setdefault(role, {}).get(word, 0) + count
    formats: dict[str, Any] = {"f32": {"bits": 32, **SOURCED}}
    storage = {"default": "f32"}
    for role, count in weights.items():
        most: Callable[[str], int] = kinds[role].__getitem__
        main = max(kinds[role], key=most)
        name = main if len(kinds[role]) == 1 else f"{main}-{role}-mix"
        formats[name] = {"bits": 8 * sizes[role] / count, **SOURCED}
        storage[role] = name
    return formats, storage
