"""The few facts that an engine reads off model and machine, taken from their descriptors."""

from __future__ import annotations

from perfmodel.catalog import NONE, Accelerator, Compressed, Format, Gqa, Linear, Mamba2, Mla, ModelArch, Moe, Node
from perfmodel.engines.options import Facts

Attention = Mla | Gqa | Compressed | Linear | Mamba2


def main_attention(model: ModelArch) -> Attention | None:
    """The attention that speaks for a model: the first that sees the whole context, else the first there is."""
    present = [model.attention[block.attention] for block in model.blocks if block.attention != NONE]
    windowed = [a for a in present if isinstance(a, Gqa)]
    full = [a for a in present if isinstance(a, Mla | Compressed) or isinstance(a, Gqa) and not (a.window or a.chunk)]
    return next(iter([*full, *windowed, *present]), None)


def heads_and_cache(attention: Attention | None) -> tuple[str, int, int, int]:
    """Kind, query heads, key-value heads and cached values a token and layer, as the rules of an engine take them.

    DeepSeek V4 counts as "mla": one latent for all heads on every rank. A model without attention has a "linear" or
    "mamba2" kind, and no cache.
    """
    if isinstance(attention, Mla):
        return "mla", attention.heads, 1, attention.kv_lora_rank + attention.qk_rope_head_dim
    if isinstance(attention, Compressed):
        return "mla", attention.heads, 1, attention.head_dim
    if isinstance(attention, Gqa):
        value = attention.v_head_dim or attention.head_dim
        return "gqa", attention.heads, attention.kv_heads, attention.kv_heads * (attention.head_dim + value)
    if isinstance(attention, Linear):
        return "linear", attention.value_heads, attention.key_heads, 0
    return ("mamba2", attention.heads, attention.groups, 0) if attention else (NONE, 1, 1, 0)


def facts_of(model: ModelArch, node: Node, accelerator: Accelerator, formats: dict[str, tuple[str, Format]]) -> Facts:
    """Plain numbers for the rules of an engine."""
    kind, heads, kv_heads, values = heads_and_cache(main_attention(model))
    moe = next((mlp for mlp in model.mlp.values() if isinstance(mlp, Moe)), None)
    dense = next((mlp for mlp in model.mlp.values() if not isinstance(mlp, Moe)), None)
    vision, memory = model.vision, accelerator.memory
    printed = memory.total.value or memory.capacity.value or 0.0
    seen = memory.process_total or memory.total
    return Facts(
        gpu_memory_bytes=seen.value or printed,
        driver_memory_bytes=printed,
        compute_capability=accelerator.compute_capability,
        gpu_name=accelerator.name,
        full_nvlink=node.topology.kind == "nvlink",
        p2p=bool(node.p2p),
        layers=model.layers,
        hidden=model.hidden,
        vocab=model.vocab,
        max_context=model.max_context,
        attention=kind,
        heads=heads,
        kv_heads=kv_heads,
        kv_values_per_token_layer=values,
        experts=moe.experts if moe else 0,
        per_token=moe.per_token if moe else 0,
        moe_intermediate=moe.intermediate if moe else 0,
        dense_intermediate=dense.intermediate if dense else 0,
        weight_dtype="bf16",
        weight_format=(formats.get("experts") or formats.get("dense") or formats["default"])[0],
        multimodal=vision is not None,
        vision_layers=vision.layers if vision else 0,
        vision_hidden=vision.hidden if vision else 0,
        architecture=model.architecture,
        kv_cache=model.kv_cache,
    )
