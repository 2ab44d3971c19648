"""Parameters of a vision tower with its projector, from `vision_config`: what engines shard, what they replicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.catalog.hf_keys import Keys

Tower = tuple[int, int, int, int, str]      # layers, hidden, sharded, replicated, note


def layer(d: int, m: int, bias: bool = True, gated: bool = False) -> int:
    """Matrices of one encoder layer: attention of width d, MLP of width m."""
    matrices = 4 * d * d + (3 if gated else 2) * d * m
    return matrices + (4 * d + (2 if gated else 1) * m + d if bias else 0)


def qwen3(v: Keys, text_hidden: int) -> Tower:
    """Qwen3-VL and 3.5: learned positions, a merger, and one more merger for every deepstack level."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth")
    out = v.count("out_hidden_size")
    wide = d * v.count("spatial_merge_size", most=64) ** 2
    patch = v.count("in_channels", "in_chans",
                    default=3) * v.count("temporal_patch_size") * v.count("patch_size") ** 2 * d + d
    merger = wide * wide + wide + wide * out + out
    deep = len(v.listed("deepstack_visual_indexes", default=[]))
    rest = patch + v.count("num_position_embeddings") * d + depth * 4 * d + 2 * d + deep * 2 * wide
    return depth, d, depth * layer(d, m) + (1 + deep) * merger, rest, ""


def qwen2_5(v: Keys, text_hidden: int) -> Tower:
    """Qwen2.5-VL: RMS norms, gated MLP."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("depth")
    out = v.count("out_hidden_size", default=text_hidden)
    wide = d * v.count("spatial_merge_size", default=2, most=64) ** 2
    patch = 3 * v.count("temporal_patch_size", default=2) * v.count("patch_size", "spatial_patch_size",
                                                                    default=14) ** 2 * d
    merger = wide * wide + wide + wide * out + out
    return depth, d, depth * layer(d, m, gated=True) + merger, patch + depth * 2 * d + d, ""


def siglip(v: Keys, text_hidden: int) -> Tower:
    """SigLIP with Gemma 3's projector."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers")
    patch, image = v.count("patch_size"), v.count("image_size", most=10**5)
    stem = 3 * patch**2 * d + d + (image // patch) ** 2 * d + 2 * d
    return depth, d, depth * layer(d, m), stem + depth * 4 * d + d * text_hidden + d, ""


def gemma4(v: Keys, text_hidden: int) -> Tower:
    """Gemma 4: gated MLP, four norms a layer, positions per axis."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers")
    width = v.count("head_dim")
    heads = 2 * v.count("num_attention_heads") + 2 * v.count("num_key_value_heads")
    stem = 3 * v.count("patch_size") ** 2 * d + 2 * v.count("position_embedding_size") * d
    rest = stem + depth * (4 * d + 2 * width) + d * text_hidden
    return depth, d, depth * (heads * width * d + 3 * d * m), rest, ""


def llama4(v: Keys, text_hidden: int) -> Tower:
    """Llama 4: a class token, an adapter that shuffles pixels together."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers")
    patch = v.count("patch_size")
    patches = (v.count("image_size", most=10**5) // patch) ** 2 + 1
    into, out = v.count("projector_input_dim"), v.count("projector_output_dim")
    adapter = m * into + out * out + v.count("vision_output_dim") * text_hidden
    rest = d + patches * d + 3 * patch**2 * d + 4 * d + depth * 4 * d
    return depth, d, depth * layer(d, m) + adapter, rest, ""


def pixtral(v: Keys, text_hidden: int) -> Tower:
    """Pixtral with the patch merger of Mistral 3."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers")
    merge = 4 * d * d + d * text_hidden + text_hidden**2
    rest = 3 * v.count("patch_size") ** 2 * d + d + depth * 2 * d + d
    return depth, d, depth * layer(d, m, bias=False, gated=True) + merge, rest, ""


def moonvit(v: Keys, text_hidden: int) -> Tower:
    """MoonViT of Kimi K2.5 and Kimi-VL: engines shard the attention alone."""
    d, m = v.count("vt_hidden_size", "hidden_size"), v.count("vt_intermediate_size", "intermediate_size")
    depth, merge = v.count("vt_num_hidden_layers", "num_hidden_layers"), v.listed("merge_kernel_size", default=[2, 2],
                                                                                  length=2)
    merged = d * v.whole("merge_kernel_size", merge[0], 1, 64) * v.whole("merge_kernel_size", merge[1], 1, 64)
    positions = v.count("init_pos_emb_height") * v.count("init_pos_emb_width") * d
    bias, inner = v.flag("attn_bias", default=True), v.count("qkv_hidden_size", default=d)
    attention = depth * (4 * d * inner + (4 * inner if bias else 0))
    mlps = depth * (2 * d * m + (m + d if bias else 0) + 4 * d)
    projector = merged * merged + merged + merged * text_hidden + text_hidden
    rest = mlps + 3 * v.count("patch_size") ** 2 * d + d + positions + 4 * d + projector
    note = "" if bias else "the projector's second version is not described in public: counted as the first"
    return depth, d, attention, rest, note


def clip(v: Keys, text_hidden: int) -> Tower:
    """MiniMax M3: a CLIP-like tower, two projectors of two layers."""
    d, m, depth = v.count("hidden_size"), v.count("intermediate_size"), v.count("num_hidden_layers")
    merge = v.count("spatial_merge_size", default=2, most=64) ** 2
    width = v.count("projection_dim", "projector_hidden_size", default=text_hidden)
    projector = d * width + width + 2 * (width * text_hidden + text_hidden) + merge * text_hidden * width + width
    rest = 3 * v.count("temporal_patch_size", default=2) * v.count("patch_size") ** 2 * d + 2 * d + depth * 4 * d
    return depth, d, depth * layer(d,
                                   m) + projector, rest, "patch embedding and projector as in transformers' MiniMax M3"


TOWERS: dict[str, Callable[[Keys, int], Tower]] = {
    "qwen3_vl": qwen3, "qwen3_vl_moe": qwen3, "qwen3_5": qwen3, "qwen3_5_moe": qwen3, "qwen2_5_vl": qwen2_5,
    "gemma3": siglip, "gemma4": gemma4, "llama4": llama4, "mistral3": pixtral, "kimi_k25": moonvit, "kimi_k3": moonvit,
    "kimi_vl": moonvit, "minimax_m3_vl": clip,
}  # fmt: skip


def vision_of(config: Keys, text_hidden: int) -> dict[str, Any] | None:
    """The vision section of a model; None without one, refused where the tower is not known."""
    if not config.has("vision_config"):
        return None
    kind = config.word("model_type")
    if kind not in TOWERS:
        raise config.refuse("vision_config",
                            f"the vision tower of model_type {kind!r} is not known; known: {', '.join(TOWERS)}")
    tower = config.inner("vision_config")
    layers, hidden, sharded, replicated, note = TOWERS[kind](tower, text_hidden)
    found: dict[str, Any] = {"layers": layers, "hidden": hidden, "parameters_sharded": sharded,
                             "parameters_replicated": replicated}
    return found | ({"note": note} if note else {})
