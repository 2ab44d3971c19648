"""The checkpoint on disk beside the arithmetic: bytes by class of tensor, and where the two disagree."""

from __future__ import annotations

import os
from pathlib import Path

from perfmodel.catalog import ModelArch
from perfmodel.catalog.safetensors import checkpoint_bytes, index_bytes
from perfmodel.placement.inventory import Tensor, mtp_tensors, text_tensors, vision_tensors
from perfmodel.placement.place import tensor_width

TOLERANCE = 0.005
_CLASS = {
    "experts": "experts", "expert_bias": "experts", "latent_moe": "experts", "shared": "shared experts", "dense": "MLP",
    "attention": "attention", "latent": "attention", "kv_heads": "attention", "indexer": "attention",
    "compressor": "attention", "linear": "attention", "conv": "attention", "state": "attention", "router": "router",
    "router_bias": "router", "embedding": "embedding", "per_layer": "embedding", "head": "head",
}  # fmt: skip
_IN_ATTENTION = {"q_a_norm", "kv_a_norm", "qk_norm", "sinks", "attention_bias", "attention_norms", "indexer_norm",
                 "compressor_norm", "state_norm", "mixer_bias"}  # fmt: skip


def expected_bytes(model: ModelArch) -> dict[str, float]:
    """Bytes by class of tensor that the arithmetic gives for the whole checkpoint. [B]"""
    formats = {role: (name, model.formats[name]) for role, name in model.storage.items()}
    table: dict[str, float] = {}
    for count, tensor in text_tensors(model):
        name = _class(tensor)
        table[name] = table.get(name, 0.0) + count * tensor.parameters * tensor_width(formats, tensor)
    for tensor in vision_tensors(model):
        table["vision"] = table.get("vision", 0.0) + tensor.parameters * tensor_width(formats, tensor)
    for count, tensor in mtp_tensors(model):
        table["mtp"] = table.get("mtp", 0.0) + count * tensor.parameters * tensor_width(formats, tensor)
    return table


def _class(tensor: Tensor) -> str:
    return "attention" if tensor.name in _IN_ATTENTION else _CLASS.get(tensor.role, "norms")


def disagreements(model: ModelArch, folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """One line for every class whose bytes differ by more than 0.5 % of it, and matter to the whole.

    A folder without weights but with model.safetensors.index.json is compared by its total. Nothing to compare: ().
    """
    expected = expected_bytes(model)
    if not any(Path(folder).glob("*.safetensors")):
        total = index_bytes(folder)
        return () if total is None else _differ("all tensors", total, sum(expected.values()), total)
    found = checkpoint_bytes(folder, model.layers)
    total = sum(found.values())
    lines = [line for name in sorted({*found, *expected})
             for line in _differ(name, found.get(name, 0), expected.get(name, 0.0), total)]
    return tuple(lines)


def _differ(name: str, found: float, expected: float, total: float) -> tuple[str, ...]:
    gap = abs(found - expected)
    if gap <= TOLERANCE * found or gap <= 1e-4 * total:
        return ()
    return (f"{name}: the checkpoint has {found / 1e9:.3f} GB, the architecture gives {expected / 1e9:.3f} GB "
            f"({(expected - found) / found * 100:+.1f} %)" if found else
            f"{name}: not in the checkpoint, the architecture gives {expected / 1e9:.3f} GB",)
