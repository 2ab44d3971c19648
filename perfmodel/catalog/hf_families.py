"""Which model type is built how: config keys -> the layers of a model. One function a family, one table of names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.catalog import hf_parts as part
from perfmodel.catalog.hf_keys import Keys
from perfmodel.catalog.hf_parts import Layer, Part

Built = dict[str, Any]      # layers, and what else of the model a family decides: norms, mtp, tied, ...


def layers(attention: Sequence[Part | None], mlp: Sequence[Part | None]) -> list[Layer]:
    """Both halves of every layer."""
    return list(zip(attention, mlp, strict=True))


def mtp(c: Keys, built: Built, *names: str, **more: Any) -> Built:
    """Layers for multi-token prediction, built like the last layer of the model."""
    count = c.count(*names, default=0, least=0, most=64)
    return built | {"mtp": {"layers": count, "like": built["layers"][-1], **more}} if count else built


def plain(qk_norm: Any = False, bias: Any = "attention_bias", output_bias: bool = False, gated: bool = True,
          norms: Part | None = None, tied: bool = False, pattern: int | None = None) -> Callable[[Keys],
                                                                                                 Built]:  # fmt: skip
    """Dense decoder with grouped-query attention. `bias` is the key that says so, or the fact itself."""

    def build(c: Keys) -> Built:
        with_bias = c.flag(bias) if isinstance(bias, str) else bias
        attention = part.gqa(c, qk_norm=qk_norm, bias=with_bias, output_bias=with_bias and output_bias)
        types = part.layer_types(c, c.count("sliding_window_pattern", default=pattern, most=100) if pattern else None)
        attentions = part.sliding(c, attention, types)
        mlp = part.dense(c, gated=gated, bias=None if gated else True)
        return {"layers": layers(attentions, [mlp] * len(attentions)), "norms": norms or {}, "tied": tied}

    return build


def mistral(c: Keys) -> Built:
    """Mistral: some early configs slide in every layer, ``sliding_window`` null means full."""
    window = c.count("sliding_window", default=None)
    attention = part.gqa(c, window=window if window and window < c.count("max_position_embeddings") else None)
    count = part.layer_count(c)
    return {"layers": layers([attention] * count, [part.dense(c)] * count)}


def cohere(c: Keys) -> Built:
    """Command R: attention and MLP beside each other on one norm."""
    norm = "full" if c.flag("use_qk_norm") else False
    return plain(qk_norm=norm, norms={"shared": True}, tied=True)(c)


def experts(qk_norm: Any = False, bias: Any = "attention_bias", width: tuple[str, ...] = ("moe_intermediate_size",),
            **more: Any) -> Callable[[Keys], Built]:  # fmt: skip
    """Grouped-query attention and experts in every layer."""

    def build(c: Keys) -> Built:
        with_bias = c.flag(bias) if isinstance(bias, str) else bias
        attention = part.gqa(c, qk_norm=qk_norm, bias=with_bias)
        count = part.layer_count(c)
        return {"layers": layers([attention] * count, [part.moe(c, width=width, **more)] * count)}

    return build


def qwen_moe(c: Keys) -> Built:
    """Qwen2-MoE and Qwen3-MoE: experts in every n-th layer, dense where `mlp_only_layers` says so."""
    newer = c.word("model_type").startswith(("qwen3", "qwen3_vl"))
    attention = part.gqa(c, qk_norm=newer, bias=c.flag("attention_bias") if newer else True)
    width = c.count("shared_expert_intermediate_size", default=0, least=0)
    moe = part.moe(c, shared_intermediate=width, shared_gate=bool(width))
    count, step = part.layer_count(c), c.count("decoder_sparse_step", default=1, most=1000)
    only = {c.whole("mlp_only_layers", i, 0, count - 1) for i in c.listed("mlp_only_layers", default=[])}
    sparse = [i not in only and (i + 1) % step == 0 for i in range(count)]
    dense = None if all(sparse) else part.dense(c)
    return {"layers": layers([attention] * count, [moe if on else dense for on in sparse])}


def qwen_hybrid(c: Keys) -> Built:
    """Qwen3-Next and 3.5: gated delta nets, and gated full attention in every fourth layer."""
    full = part.gqa(c, qk_norm=True, output_gate=True, bias=c.flag("attention_bias"))
    count = part.layer_count(c)
    every = c.count("full_attention_interval", default=4, most=count)
    types = c.words("layer_types", length=count, default=None) or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    attentions = part.chosen(c, types, {"full_attention": full, "linear_attention": part.gdn(c)})
    if c.has("num_experts"):
        width = c.count("shared_expert_intermediate_size")
        mlp = part.moe(c, shared_intermediate=width, shared_gate=True)
    else:
        mlp = part.dense(c)
    built: Built = {"layers": layers(attentions, [mlp] * count)}
    return mtp(c, built, "mtp_num_hidden_layers", copies=c.flag("mtp_use_dedicated_embeddings"))


def deepseek(c: Keys) -> Built:
    """DeepSeek V2 to V3.2, Kimi K2, GLM-5: latent attention, first layers dense, perhaps a sparse-attention indexer."""
    bias = c.word("topk_method", default="") == "noaux_tc" or c.word("scoring_func", default="") == "sigmoid"
    moe = part.moe(c, shared_experts=part.shared(c), router_bias=bias)
    mlps = part.first_dense(c, part.dense(c), moe)
    attention = part.mla(c)
    attentions: list[Part | None] = [attention] * len(mlps)
    if c.has("index_topk"):
        own = attention | {"indexer": part.indexer(c)}
        reused = attention | {"indexer": part.indexer(c, shared=True)}
        types = c.words("indexer_types", length=len(mlps), default=["full"] * len(mlps))
        attentions = list(part.chosen(c, types, {"full": own, "shared": reused}))
    built: Built = {"layers": layers(attentions, list(mlps))}
    count = c.count("num_nextn_predict_layers", default=0, least=0, most=64)
    if count:
        like = attention | ({"indexer": part.indexer(c)} if c.has("index_topk") else {})
        built["mtp"] = {"layers": count, "like": (like, mlps[-1]), "copies": True}
    return built


def deepseek_v4(c: Keys) -> Built:
    """DeepSeek V4: sliding, compressed sparse and heavily compressed attention by `compress_ratios`."""
    count, more = part.layer_count(c), c.count("num_nextn_predict_layers", default=0, least=0, most=64)
    base = {"kind": "compressed", "heads": c.count("num_attention_heads"), "head_dim": c.count("head_dim"),
            "rope_head_dim": c.count("qk_rope_head_dim"), "q_lora_rank": c.count("q_lora_rank"),
            "o_lora_rank": c.count("o_lora_rank"), "o_groups": c.count("o_groups"),
            "window": c.count("sliding_window")}  # fmt: skip
    sparse = {"ratio": 4, "overlap": True, "indexer": part.indexer(c)}
    kinds = {0: base, 4: base | sparse, 128: base | {"ratio": 128}}
    ratios = c.listed("compress_ratios")
    if len(ratios) not in (count, count + more):
        raise c.refuse("compress_ratios", f"{len(ratios)} entries where {count} layers need one each")
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio not in kinds:
            raise c.refuse("compress_ratios", f"{str(ratio)[:40]} is not one of 0, 4, 128")
    hashed = c.count("num_hash_layers", default=0, least=0, most=1000)
    moe = part.moe(c, shared_experts=part.shared(c))
    mlps = [moe if i < hashed else moe | {"router_bias": True} for i in range(count)]
    built: Built = {"layers": layers([kinds[ratio] for ratio in ratios[:count]], list(mlps)),
                    "hyper_connections": c.count("hc_mult", default=0, least=0, most=64)}
    return mtp(c, built, "num_nextn_predict_layers")


def kimi_linear(c: Keys) -> Built:
    """Kimi Linear and K3: Kimi delta attention, and latent attention in every fourth layer."""
    count, conf = part.layer_count(c), c.inner("linear_attn_config")
    width, heads = conf.count("head_dim"), conf.count("num_heads")
    rank = 0 if conf.flag("use_full_rank_gate") else width
    delta = part.linear(c, "kda", heads, heads, width, width, conf.count("short_conv_kernel_size"), rank)
    full = part.mla(c, output_gate=c.flag("mla_use_output_gate"))
    numbers = {key: [conf.whole(key, i, 1, count) for i in conf.listed(key)] for key in ("kda_layers",
                                                                                         "full_attn_layers")}
    if sorted(i for listed in numbers.values() for i in listed) != list(range(1, count + 1)):
        raise conf.refuse("kda_layers", f"with full_attn_layers it must name each of {count} layers once")
    latent = c.count("routed_expert_hidden_size", default=None)
    latent_norm = c.flag("latent_moe_use_norm") if latent else False
    moe = part.moe(c, shared_experts=part.shared(c), router_bias=True, latent=latent, latent_norm=latent_norm)
    mlps = part.first_dense(c, part.dense(c), moe)
    attentions = [full if i in numbers["full_attn_layers"] else delta for i in range(1, count + 1)]
    notes = []
    if c.has("attn_res_block_size"):
        c.count("attn_res_block_size")
        notes.append("attention residuals: their weights are not described in public and left out")
    return {"layers": layers(list(attentions), list(mlps)), "notes": notes}


def gpt_oss(c: Keys) -> Built:
    """gpt-oss: sliding and full attention in turn, sinks and biases everywhere."""
    bias = c.flag("attention_bias", default=True)
    attention = part.gqa(c, bias=bias, output_bias=bias, sinks=True)
    attentions = part.sliding(c, attention, part.layer_types(c, 2))
    moe = part.moe(c, width=("intermediate_size",), bias=True)
    return {"layers": layers(list(attentions), [moe] * len(attentions))}


def glm4_moe(c: Keys) -> Built:
    """GLM-4.5 to 4.7."""
    attention = part.gqa(c, qk_norm=c.flag("use_qk_norm"), bias=c.flag("attention_bias"))
    moe = part.moe(c, shared_experts=part.shared(c), router_bias=True)
    mlps = part.first_dense(c, part.dense(c), moe)
    built: Built = {"layers": layers([attention] * len(mlps), list(mlps))}
    return mtp(c, built, "num_nextn_predict_layers", "num_mtp_layers", copies=True)


def minimax_m2(c: Keys) -> Built:
    """MiniMax M2: norms of query and key over all heads."""
    norm = {"per_layer": "full", "per_head": True}.get(c.word("qk_norm_type", default="per_layer"), "full")
    attention = part.gqa(c, qk_norm=norm if c.flag("use_qk_norm", default=True) else False)
    moe = part.moe(c, width=("intermediate_size",), router_bias=c.flag("use_routing_bias", default=True))
    count = part.layer_count(c)
    built: Built = {"layers": layers([attention] * count, [moe] * count)}
    return mtp(c, built, "num_mtp_modules") if c.flag("use_mtp") else built


def minimax_m3(c: Keys) -> Built:
    """MiniMax M3: grouped-query attention that an indexer makes sparse, experts beside a shared one."""
    count, conf = part.layer_count(c), c.inner("sparse_attention_config")
    full = part.gqa(c, qk_norm=c.flag("use_qk_norm", default=True), output_gate=c.flag("attention_output_gate"))
    index = {"heads": conf.count("sparse_num_index_heads"), "head_dim": conf.count("sparse_index_dim"),
             "topk": conf.count("sparse_topk_blocks") * conf.count("sparse_block_size"),
             "query_norm": True, "weights": False}  # fmt: skip
    on = [conf.whole("sparse_attention_freq", i, 0, 1) for i in conf.listed("sparse_attention_freq", length=count)]
    moe = part.moe(c, width=("moe_intermediate_size", "intermediate_size"), router_bias=c.flag("use_routing_bias"),
                   shared_intermediate=c.count("shared_intermediate_size"))
    mlps = part.first_dense(c, part.dense(c, "dense_intermediate_size"), moe)
    attentions = [full | {"indexer": index} if sparse else full for sparse in on]
    return mtp(c, {"layers": layers(list(attentions), list(mlps))}, "num_nextn_predict_layers")


def mimo(c: Keys) -> Built:
    """MiMo 7B: Qwen2 with layers for multi-token prediction."""
    return mtp(c, plain()(c), "num_nextn_predict_layers")


def mimo_v2(c: Keys) -> Built:
    """MiMo V2 Flash: sliding layers with heads of their own and sinks."""
    count = part.layer_count(c)
    full = part.gqa(c, v_head_dim=c.count("v_head_dim"), bias=c.flag("attention_bias"))
    local = part.gqa(c, heads=c.count("swa_num_attention_heads"), kv_heads=c.count("swa_num_key_value_heads"),
                     head_dim=c.count("swa_head_dim"), v_head_dim=c.count("swa_v_head_dim"),
                     window=c.count("sliding_window"), sinks=c.flag("add_swa_attention_sink_bias"))
    pattern = [c.whole("hybrid_layer_pattern", i, 0, 1) for i in c.listed("hybrid_layer_pattern", length=count)]
    moe = part.moe(c, router_bias=c.word("topk_method", default="") == "noaux_tc", shared_experts=part.shared(c))
    mlps = part.first_dense(c, part.dense(c), moe)
    return {"layers": layers([local if on else full for on in pattern], list(mlps))}


def step(c: Keys) -> Built:
    """Step 3.5 and 3.7: sliding layers with more heads, a gate per head."""
    full = part.gqa(c, qk_norm=True, output_gate="head")
    other = c.inner("attention_other_setting", default=None)
    heads = other.count("num_attention_heads", default=full["heads"], most=10**5)
    types = part.layer_types(c)[:part.layer_count(c)]
    attentions = part.sliding(c, full, types, heads=heads)
    moe = part.moe(c, experts=("num_experts", "moe_num_experts", "n_routed_experts"), router_bias=True,
                   shared_intermediate=c.count("share_expert_dim", "share_expert_dims"))
    mlps = part.first_dense(c, part.dense(c), moe)
    return mtp(c, {"layers": layers(list(attentions), list(mlps))}, "num_nextn_predict_layers")


def llama4(c: Keys) -> Built:
    """Llama 4: full attention in every fourth layer, else chunked; experts in every n-th. Its norms have no weights."""
    count = part.layer_count(c)
    ropes = c.listed("no_rope_layers", default=[]) or [int((i + 1) % 4 != 0) for i in range(count)]
    if len(ropes) != count:
        raise c.refuse("no_rope_layers", f"{len(ropes)} entries where {count} layers need one each")
    types = c.words("layer_types", length=count, default=None) or [
        "chunked_attention" if rope else "full_attention" for rope in ropes]
    attentions = part.sliding(c, part.gqa(c, bias=c.flag("attention_bias")), types)
    every = c.count("interleave_moe_layer_step", default=1, most=count)
    named = c.listed("moe_layers", default=None) or list(range(every - 1, count, every))
    sparse = {c.whole("moe_layers", i, 0, count - 1) for i in named}
    moe = part.moe(c, width=("intermediate_size",), shared_experts=1)
    dense = part.dense(c, "intermediate_size_mlp")
    return {"layers": layers(list(attentions), [moe if i in sparse else dense for i in range(count)])}


def gemma4(c: Keys) -> Built:
    """Gemma 4: sliding layers, full layers with wide heads whose value is the key, experts beside a dense MLP."""
    count, kinds = part.layer_count(c), part.layer_types(c, 6)
    shared = c.count("num_kv_shared_layers", default=0, least=0, most=count)
    same = c.flag("attention_k_eq_v")
    local = part.gqa(c, qk_norm=True, bias=c.flag("attention_bias"), window=c.count("sliding_window"))
    kv_heads = c.count("num_global_key_value_heads", default=local["kv_heads"]) if same else local["kv_heads"]
    full = part.gqa(c, qk_norm=True, kv_heads=kv_heads, head_dim=c.count("global_head_dim"), v_from_k=same)
    attentions = part.chosen(c, kinds, {"full_attention": full, "sliding_attention": local})
    attentions = [a if i < count - shared else a | {"shares_kv": True} for i, a in enumerate(attentions)]
    mlp = part.dense(c)
    wide = mlp | {"intermediate": 2 * mlp["intermediate"]} if c.flag("use_double_wide_mlp") else mlp
    mlps = [mlp if i < count - shared else wide for i in range(count)]
    if c.flag("enable_moe_block"):
        moe = part.moe(c, width=("moe_intermediate_size", "expert_intermediate_size"), router_scale=True,
                       residual_intermediate=mlp["intermediate"])
        mlps = [moe] * count
    built: Built = {"layers": layers(list(attentions), list(mlps)), "norms": {"each": 2}, "tied": True}
    width = c.count("hidden_size_per_layer_input", default=0, least=0)
    if width:
        built["per_layer_input"] = {"vocab": c.count("vocab_size_per_layer_input"), "width": width}
    return built


def nemotron_h(c: Keys) -> Built:
    """Nemotron-H and Nemotron 3: every layer is one mixer: Mamba-2, attention, MLP or (latent) experts."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    if c.has("hybrid_override_pattern"):
        pattern = c.values["hybrid_override_pattern"]
        c.used["hybrid_override_pattern"] = pattern
        if not isinstance(pattern, str) or set(pattern) - set(letters) or len(pattern) > 1000:
            raise c.refuse("hybrid_override_pattern", "it must be a text of M, *, - and E")
        types = [letters[letter] for letter in pattern]
    else:
        types = c.words("layers_block_type")
    if c.has("num_hidden_layers") and c.count("num_hidden_layers") != len(types):
        raise c.refuse("num_hidden_layers",
                       f"{c.count('num_hidden_layers')} contradicts the pattern of {len(types)} layers")
    parts: dict[str, Layer] = {"mamba": (part.mamba(c), None), "attention": (part.gqa(c), None)}
    if "mlp" in types:
        parts["mlp"] = (None, part.dense(c, gated=False, bias=c.flag("mlp_bias")))
    if "moe" in types:
        parts["moe"] = (None, _nemotron_moe(c))
    for word in types:
        if word not in parts:
            raise c.refuse("layers_block_type", f"{str(word)[:40]!r} is not one of {', '.join(parts)}")
    built: Built = {"layers": [parts[word] for word in types]}
    count = c.count("num_nextn_predict_layers", default=0, least=0, most=64)
    if count and "moe" in parts:
        built["mtp"] = {"layers": count, "like": (parts["attention"][0], parts["moe"][1])}
    return built


def _nemotron_moe(c: Keys) -> Part:
    width = c.count("moe_shared_expert_intermediate_size") * part.shared(c)
    return part.moe(c, shared_intermediate=width, router_bias=True,
                    latent=c.count("moe_latent_size", default=None)) | {"gated": False}


def nemotron_nas(c: Keys) -> Built:
    """Nemotron NAS (DeciLM): every layer has its own MLP width, some no attention."""
    count, heads, hidden = part.layer_count(c), c.count("num_attention_heads"), c.count("hidden_size")
    made: list[Layer] = []
    for index, block in enumerate(c.listed("block_configs", length=count)):
        if not isinstance(block, dict):
            raise c.refuse("block_configs", f"entry {index} is not an object")
        b = Keys(block, c.file, f"{c.path}block_configs.{index}.")
        attention, ffn = b.inner("attention"), b.inner("ffn")
        for half in (attention, ffn):
            if half.flag("replace_with_linear"):
                raise half.refuse("replace_with_linear",
                                  "a linear layer in place of attention or MLP is not described here")
        first = None
        if not attention.flag("no_op"):
            group = attention.count("n_heads_in_group", most=heads)
            if heads % group:
                raise attention.refuse("n_heads_in_group", f"{group} does not divide {heads} heads")
            first = part.gqa(c, kv_heads=heads // group)
        second = None if ffn.flag("no_op") else {"kind": "dense", "intermediate": _ffn_width(ffn, hidden)}
        made.append((first, second))
    return {"layers": made}


def _ffn_width(ffn: Keys, hidden: int) -> int:
    """Two thirds of mult x hidden, rounded up to 256, as the model's code does."""
    value = ffn.values.get("ffn_mult")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1000:
        raise ffn.refuse("ffn_mult", "a number from 0 to 1000 is needed")
    ffn.used["ffn_mult"] = value
    return -(-int(2 * value * hidden / 3) // 256) * 256


def granite_hybrid(c: Keys) -> Built:
    """Granite 4: Mamba-2 or attention, each with experts and a shared MLP, or a dense MLP."""
    types = c.words("layer_types", "layers_block_type", length=part.layer_count(c))
    attentions = part.chosen(c, types, {"mamba": part.mamba(c),
                                        "attention": part.gqa(c, bias=c.flag("attention_bias"))})
    if c.count("num_local_experts", default=0, least=0):
        mlp = part.moe(c, width=("intermediate_size",), shared_intermediate=c.count("shared_intermediate_size"))
    else:
        mlp = part.dense(c, "shared_intermediate_size")
    return {"layers": layers(list(attentions), [mlp] * len(attentions)), "tied": True}


def opt(c: Keys) -> Built:
    """OPT: learned positions (two more than the context), biases everywhere."""
    attention = part.gqa(c, bias=True, output_bias=True)
    mlp, count = part.dense(c, "ffn_dim", gated=False, bias=True), part.layer_count(c)
    return {"layers": layers([attention] * count, [mlp] * count), "norms": {"bias": True}, "tied": True,
            "position_embeddings": c.count("max_position_embeddings") + 2}


FAMILIES: dict[str, Callable[[Keys], Built]] = {
    "llama": plain(output_bias=True), "mistral": mistral, "ministral3": mistral, "mistral3_text": mistral,
    "qwen2": plain(bias=True), "qwen2_5_vl_text": plain(bias=True), "qwen2_vl_text": plain(bias=True),
    "qwen3": plain(qk_norm=True, output_bias=True), "qwen3_vl_text": plain(qk_norm=True, output_bias=True),
    "mimo": mimo, "phi3": plain(bias=False), "granite": plain(output_bias=True), "seed_oss": plain(),
    "phi": plain(bias=True, output_bias=True, gated=False, norms={"shared": True, "bias": True}),
    "glm4": plain(norms={"each": 2}), "glm": plain(), "olmo2": plain(qk_norm="full"),
    "gemma": plain(tied=True), "gemma2": plain(norms={"each": 2}, tied=True, pattern=2),
    "gemma3_text": plain(qk_norm=True, norms={"each": 2}, tied=True, pattern=6), "gemma4_text": gemma4,
    "cohere": cohere, "cohere2": plain(norms={"shared": True}, tied=True, pattern=4), "opt": opt,
    "mixtral": experts(bias=False, width=("intermediate_size",)), "qwen2_moe": qwen_moe, "qwen3_moe": qwen_moe,
    "qwen3_vl_moe_text": qwen_moe, "qwen3_next": qwen_hybrid, "qwen3_5_text": qwen_hybrid,
    "qwen3_5_moe_text": qwen_hybrid, "olmoe": experts(qk_norm="full", width=("intermediate_size",)),
    "gpt_oss": gpt_oss, "glm4_moe": glm4_moe, "minimax_m2": minimax_m2, "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3, "mimo_v2_flash": mimo_v2, "step3p5": step, "step3p7": step, "step3p7_text": step,
    "llama4_text": llama4, "nemotron_h": nemotron_h, "nemotron-nas": nemotron_nas, "granitemoehybrid": granite_hybrid,
    "deepseek_v2": deepseek, "deepseek_v3": deepseek, "deepseek_v32": deepseek, "kimi_k2": deepseek,
    "glm_moe_dsa": deepseek, "glm4_moe_lite": deepseek, "deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4,
    "kimi_linear": kimi_linear,
}  # fmt: skip
