"""Attention and MLP sections out of a Hugging Face config: the pieces that the families put together."""

from __future__ import annotations

from typing import Any

from perfmodel.catalog.hf_keys import Keys

Part = dict[str, Any]
Layer = tuple[Part | None, Part | None]
LOCAL = {"sliding_attention": "window", "chunked_attention": "chunk"}


def layer_count(c: Keys) -> int:
    """Decoder layers."""
    return int(c.count("num_hidden_layers", "n_layer", most=1000))


def head_dim(c: Keys, heads: int, *names: str) -> int:
    """Width of a head: given, else hidden size over heads, which must then divide."""
    given = c.count(*(names or ("head_dim", "attention_head_dim")), default=None, most=10**5)
    if given is not None:
        return int(given)
    hidden = int(c.count("hidden_size"))
    if hidden % heads:
        raise c.refuse("hidden_size", f"{hidden} does not divide into {heads} heads, and head_dim is missing")
    return hidden // heads


def gqa(c: Keys, **more: Any) -> Part:
    """Grouped-query attention; what a family knows better is given in `more`."""
    heads = more.pop("heads", None) or int(c.count("num_attention_heads", most=10**5))
    kv_heads = more.pop("kv_heads", None) or int(c.count("num_key_value_heads", default=heads, most=10**5))
    width = more.pop("head_dim", None) or head_dim(c, heads)
    if kv_heads > heads or heads % kv_heads:
        raise c.refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads: {heads}")
    part = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_dim": width}
    return part | {key: value for key, value in more.items() if value}


def mla(c: Keys, **more: Any) -> Part:
    """Multi-head latent attention."""
    part = {
        "kind": "mla", "heads": c.count("num_attention_heads", most=10**5),
        "q_lora_rank": c.count("q_lora_rank", default=None), "kv_lora_rank": c.count("kv_lora_rank"),
        "qk_nope_head_dim": c.count("qk_nope_head_dim"), "qk_rope_head_dim": c.count("qk_rope_head_dim"),
        "v_head_dim": c.count("v_head_dim"), "bias": c.flag("attention_bias"),
    }  # fmt: skip
    return {key: value for key, value in (part | more).items() if value}


def indexer(c: Keys, **more: Any) -> Part:
    """The indexer of DeepSeek sparse attention."""
    return {"heads": c.count("index_n_heads"), "head_dim": c.count("index_head_dim"), "topk": c.count("index_topk"),
            "query_rank": c.count("q_lora_rank"), **more}  # fmt: skip


def gdn(c: Keys) -> Part:
    """Gated delta net (Qwen3-Next, 3.5)."""
    return linear(c, "gdn", c.count("linear_num_key_heads"), c.count("linear_num_value_heads"),
                  c.count("linear_key_head_dim"), c.count("linear_value_head_dim"), c.count("linear_conv_kernel_dim"))


def linear(c: Keys, rule: str, key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv: int,
           gate_rank: int = 0) -> Part:  # fmt: skip
    """Linear attention of any rule."""
    part = {"kind": "linear", "rule": rule, "key_heads": key_heads, "value_heads": value_heads, "key_dim": key_dim,
            "value_dim": value_dim, "conv": conv, "gate_rank": gate_rank, "state_bits": state_bits(c)}  # fmt: skip
    return {key: value for key, value in part.items() if value}


def mamba(c: Keys, prefix: str = "") -> Part:
    """A Mamba-2 mixer, with the keys of Nemotron-H, or of Granite ("mamba_")."""
    names = {
        "heads": ("mamba_num_heads", "mamba_n_heads"), "head_dim": ("mamba_head_dim", "mamba_d_head"),
        "state": ("ssm_state_size", "mamba_d_state"), "groups": ("n_groups", "mamba_n_groups"),
        "conv": ("conv_kernel", "mamba_d_conv"),
    }  # fmt: skip
    part: Part = {"kind": "mamba2"} | {name: c.count(*keys, most=10**6) for name, keys in names.items()}
    part["conv_bias"] = c.flag("use_conv_bias", "mamba_conv_bias", default=True)
    part["bias"] = c.flag("mamba_proj_bias")
    part["state_bits"] = state_bits(c)
    return {key: value for key, value in part.items() if value is not None}


def state_bits(c: Keys) -> int | None:
    """Bits of a recurrent state, where the config says it."""
    word = c.word("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default="")
    known = {"": None, "auto": None, "float32": 32, "bfloat16": 16, "float16": 16}
    if word not in known:
        raise c.refuse("mamba_ssm_dtype", f"{word!r} is not one of {', '.join(filter(None, known))}")
    return known[word]


def dense(c: Keys, *names: str, gated: bool = True, bias: bool | None = None) -> Part:
    """A dense MLP."""
    part: Part = {"kind": "dense", "intermediate": c.count(*(names or ("intermediate_size",)))}
    part |= {} if gated else {"gated": False}
    return part | ({"bias": True} if (c.flag("mlp_bias") if bias is None else bias) else {})


def moe(c: Keys, *, experts: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts"),
        width: tuple[str, ...] = ("moe_intermediate_size",), **more: Any) -> Part:  # fmt: skip
    """A mixture of experts."""
    number = c.count(*experts, most=10**5)
    per_token = c.count("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", most=10**5)
    if per_token > number:
        raise c.refuse("num_experts_per_tok", f"{per_token} of {number} experts")
    part = {"kind": "moe", "experts": number, "per_token": per_token, "intermediate": c.count(*width)}
    return part | {key: value for key, value in more.items() if value}


def shared(c: Keys) -> int:
    """Number of shared experts of DeepSeek-like models."""
    return int(c.count("n_shared_experts", "num_shared_experts", default=0, least=0, most=1000) or 0)


def first_dense(c: Keys, dense_part: Part, moe_part: Part) -> list[Part]:
    """The MLP of every layer: `mlp_layer_types` or `moe_layer_freq` where given, else the first k are dense."""
    layers = layer_count(c)
    types = c.words("mlp_layer_types", length=layers, default=None)
    if types is not None:
        known = {"dense": dense_part, "sparse": moe_part, "moe": moe_part}
        for word in types:
            if word not in known:
                raise c.refuse("mlp_layer_types", f"{word!r} is not one of {', '.join(known)}")
        return [known[word] for word in types]
    if isinstance(c.values.get("moe_layer_freq"), list):
        return [moe_part if c.whole("moe_layer_freq", on, 0, 1) else dense_part
                for on in c.listed("moe_layer_freq", length=layers)]
    first = c.count("first_k_dense_replace", default=0, least=0, most=1000)
    every = c.count("moe_layer_freq", default=1, most=1000)
    return [moe_part if i >= first and i % every == 0 else dense_part for i in range(layers)]


def layer_types(c: Keys, pattern: int | None = None) -> list[str]:
    """Attention of every layer by name: `layer_types`, else every `pattern`-th layer is full and the rest slide."""
    layers = layer_count(c)
    types = c.words("layer_types", length=layers, default=None)
    if types is not None:
        return list(types)
    if pattern is None:
        return ["full_attention"] * layers
    return ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]


def chosen(c: Keys, types: list[str], parts: dict[str, Part]) -> list[Part]:
    """The part of every layer by the name of its type."""
    for word in types:
        if word not in parts:
            raise c.refuse("layer_types", f"{word!r} is not one of {', '.join(parts)}")
    return [parts[word] for word in types]


def sliding(c: Keys, full: Part, types: list[str], **more: Any) -> list[Part]:
    """Full attention, and the same within a window or a chunk."""
    parts = {"full_attention": full}
    if "sliding_attention" in types:
        parts["sliding_attention"] = full | more | {"window": c.count("sliding_window")}
    if "chunked_attention" in types:
        parts["chunked_attention"] = full | more | {"chunk": c.count("attention_chunk_size")}
    return chosen(c, types, parts)
