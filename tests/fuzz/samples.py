"""Samples of every kind of file and text that perfmodel reads, from the tests, the catalog and formats put together."""

import csv
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from perfmodel.catalog.lookup import files, find
from perfmodel.probe.plan import Task
from perfmodel.ui.address import pack

HERE = Path(__file__).parent
TESTS = HERE.parent


def corpus(*names: str) -> Callable[[], list[bytes]]:
    """Samples of folders beside this file."""
    return lambda: [path.read_bytes() for name in names for path in sorted((HERE / "corpus" / name).iterdir())]


def sampled(*patterns: str) -> Callable[[], list[bytes]]:
    """Files of tests/samples."""
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted((TESTS / "samples").glob(pattern))]


def both(*makers: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    """All samples of several sources."""
    return lambda: [sample for make in makers for sample in make()]


@cache
def configs() -> tuple[dict[str, Any], ...]:
    """config.json of public models."""
    lines = (TESTS / "tables" / "hf_configs.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["config"] for line in lines)


def small_configs() -> list[bytes]:
    """Configs of every model type, the shortest of each."""
    best: dict[str, bytes] = {}
    for config in configs():
        text = json.dumps(config, separators=(",", ":")).encode()
        kind = str(config.get("model_type"))
        if len(text) < 6_000 and len(text) < len(best.get(kind, b"x" * 10**6)):
            best[kind] = text
    return [best[kind] for kind in sorted(best)]


def quantizations() -> list[bytes]:
    """Quantization sections of those configs, short ones."""
    found = {json.dumps(config["quantization_config"], separators=(",", ":")) for config in configs()
             if config.get("quantization_config")}
    return [text.encode() for text in sorted(found) if len(text) < 4_000]


def descriptors(kind: str) -> Callable[[], list[bytes]]:
    """Shipped YAML files of a kind, those of at most 8 kB."""
    return lambda: [text for _, path in sorted(files(kind).items()) if len(text := path.read_bytes()) <= 8_192]


def tables(*names: str) -> Callable[[], list[bytes]]:
    """Header and first rows of shipped observation files."""
    return lambda: [b"".join(path.read_bytes().splitlines(keepends=True)[:6])
                    for name in names if (path := find("observations", name))]


def launches() -> list[bytes]:
    """Launch lines that people wrote."""
    lines = (TESTS / "samples" / "launch-lines.txt").read_bytes().splitlines()
    with (TESTS / "tables" / "launch_commands.csv").open(encoding="utf-8", newline="") as file:
        return lines + [row["command"].encode() for row in csv.DictReader(file)]


def gguf() -> list[bytes]:
    """The header of a small model in versions 2 and 3 of GGUF."""
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    keys = {"block_count": 1, "embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 4,
            "attention.head_count_kv": 2, "context_length": 2048, "vocab_size": 1000}  # fmt: skip
    meta = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    meta += [text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in keys.items()]
    meta.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"))
    meta.append(text("llama.rope.scaling") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<2f", 1.0, 2.0))
    shapes = {"token_embd": ([256, 1000], 14), "output_norm": ([256], 0), "blk.0.attn_q": ([256, 256], 12),
              "blk.0.attn_k": ([256, 128], 12), "blk.0.attn_v": ([256, 128], 14), "blk.0.ffn_up": ([256, 512], 12)}
    rows = [text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
            for name, (shape, kind) in shapes.items()]  # fmt: skip
    return [b"GGUF" + struct.pack("<IQQ", version, len(rows), len(meta)) + b"".join(meta + rows) for version in (2, 3)]


def safetensors() -> list[bytes]:
    """Headers of safetensors files."""
    header = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape, dtype, size in (("model.layers.0.self_attn.q_proj.weight", [8, 4], "BF16", 64),
                                     ("model.layers.0.mlp.experts.1.up_proj.weight_scale", [8], "F32", 32),
                                     ("lm_head.weight", [4, 4], "F8_E4M3", 16)):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}  # type: ignore[dict-item]
        at += size
    raw = json.dumps(header).encode()
    return [struct.pack("<Q", len(raw)) + raw + b"\0" * at]


def indexes() -> list[bytes]:
    """An index of shards."""
    index = {"metadata": {"total_size": 16_060_522_496.0}, "weight_map": {"a.weight": "1.safetensors"}}
    return [json.dumps(index).encode()]


def journals() -> list[bytes]:
    """A journal of the probe."""
    task = Task("all_reduce", "nccl", "bf16", "graph", "default", 2, 1024)
    lines = [{"machine": {"gpus": ["A"], "driver": "1", "peer_access": [[True]]}},
             {"task": task.to_dict(), "us": 1.5, "us_min": 1.0, "us_max": 2.0, "iterations": 10, "repeats": 3},
             {"task": task.to_dict(), "error": "why"}]
    return ["\n".join(map(json.dumps, lines)).encode()]


def addresses() -> list[bytes]:
    """Addresses of the page."""
    packed = pack(small_configs()[0].decode())
    given = [{"model": "qwen3-8b", "strategies": ["tp=2", "tp=1,dp=2"], "fit": "on", "samples": "500", "page": "job"},
             {"config": packed, "context": "4096", "price": "2.5"}, {"log": pack('{"weights_gib": 14.5}'), "on": "1"},
             {"measured": pack('["concurrency,output_tok_s\\n8,700"]'), "concurrency": "64"}]
    return [urlencode(one, doseq=True).encode() for one in given]


def strategies() -> list[bytes]:
    """Strategies as --strategy takes them."""
    return [b"tp=8,ep=8", b"tp=1,pp=2,layers_per_stage=16,16,cuda_graphs=off", b"tp=2,dp=4,kv_dtype=fp8,context=32k",
            b"tp=8,dp_attention=8,ep=8,memory_fraction=0.92,max_sequences=256", b"tp=4,speculative=eagle3:3:0.7",
            b"tp=2,nccl=NCCL_ALGO=Ring,power_limit=450 W", b"engine=sglang==0.5.10,tp=4,page_size=64"]
