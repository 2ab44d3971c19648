"""Every tensor of a model as (name, role, parameters): an exact inventory before any rank is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.catalog import (
    NONE,
    Compressed,
    Dense,
    Format,
    Gqa,
    Indexer,
    Linear,
    Mamba2,
    Mla,
    ModelArch,
    Moe,
)

Attention = Mla | Gqa | Compressed | Linear | Mamba2


@dataclass(frozen=True, slots=True)
class Tensor:
    """One class of weight.

    ``role`` picks its storage format and its divisor; roles without a divisor are replicated. ``part`` is the section
    of the model file that it belongs to, ``units`` the key-value heads that it can be cut into.
    """

    name: str
    role: str
    parameters: float
    part: str = ""
    units: int = 0


# A role that is stored like another one unless the model file names it itself
STORED_AS = {"latent": "attention", "kv_heads": "attention", "linear": "attention", "absorbed": "default"}
FOUR_BYTES = {"router_bias", "hyper"}       # kept in FP32 by every checkpoint that has them


def stored_in(formats: dict[str, tuple[str, Format]], tensor: Tensor) -> tuple[str, Format]:
    """Name and format of a tensor: of itself or its role in its section, else of itself or its role in the model."""
    role = STORED_AS.get(tensor.role, tensor.role)
    keys = (f"{tensor.part}.{tensor.name}", f"{tensor.part}.{tensor.role}", f"{tensor.part}.{role}", tensor.name,
            tensor.role, role, "default")
    return next(formats[key] for key in keys if key in formats)


def attention_tensors(attention: Attention, hidden: int) -> tuple[Tensor, ...]:
    """Weights of one attention layer, or of what stands in its place."""
    if isinstance(attention, Mla):
        return _mla(attention, hidden)
    if isinstance(attention, Gqa):
        return _gqa(attention, hidden)
    if isinstance(attention, Compressed):
        return _compressed(attention, hidden)
    return _linear(attention, hidden) if isinstance(attention, Linear) else _mamba(attention, hidden)


def _mla(a: Mla, hidden: int) -> tuple[Tensor, ...]:
    """MLA's down projections and their norms belong to no head and are replicated on every tensor-parallel rank."""
    query_head, latent = a.qk_nope_head_dim + a.qk_rope_head_dim, a.kv_lora_rank + a.qk_rope_head_dim
    rank = a.q_lora_rank
    query = [Tensor("q_proj", "attention", hidden * a.heads * query_head)]
    if rank:
        query = [Tensor("q_a_proj", "latent", hidden * rank), Tensor("q_a_norm", "norm", rank),
                 Tensor("q_b_proj", "attention", rank * a.heads * query_head)]
    biases = latent + hidden + (rank or 0) if a.bias else 0
    return _present(
        *query,
        Tensor("kv_a_proj", "latent", hidden * latent),
        Tensor("kv_a_norm", "norm", a.kv_lora_rank),
        Tensor("kv_b_proj", "attention", a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)),
        Tensor("o_proj", "attention", a.heads * a.v_head_dim * hidden),
        Tensor("output_gate", "attention", hidden * a.heads * a.v_head_dim if a.output_gate else 0),
        Tensor("attention_bias", "norm", biases),
        *_indexer(a.indexer, hidden),
    )


def _gqa(a: Gqa, hidden: int) -> tuple[Tensor, ...]:
    value = a.v_head_dim or a.head_dim
    query, gate = a.heads * a.head_dim, {False: 0, True: a.heads * value, "head": a.heads}[a.output_gate]
    cached = 0 if a.shares_kv else a.kv_heads * (a.head_dim + (0 if a.v_from_k else value))
    keys = 0 if a.shares_kv else 1
    norm = {False: 0, True: (1 + keys) * a.head_dim, "full": query + keys * a.kv_heads * a.head_dim}[a.qk_norm]
    return _present(
        Tensor("q_proj", "attention", hidden * query),
        Tensor("kv_proj", "kv_heads", hidden * cached, units=a.kv_heads),
        Tensor("o_proj", "attention", a.heads * value * hidden),
        Tensor("output_gate", "attention", hidden * gate),
        Tensor("attention_bias", "norm", (query + cached if a.bias else 0) + (hidden if a.output_bias else 0)),
        Tensor("qk_norm", "norm", norm),
        Tensor("sinks", "norm", a.heads if a.sinks else 0),
        *_indexer(a.indexer, hidden),
    )


def _indexer(indexer: Indexer | None, hidden: int) -> tuple[Tensor, ...]:
    """Replicated by vLLM and SGLang: every rank selects the same tokens."""
    if indexer is None or indexer.shared:
        return ()
    query = (indexer.query_rank or hidden) * indexer.heads * indexer.head_dim
    weights = hidden * indexer.heads if indexer.weights else 0
    return (Tensor("indexer", "indexer", query + hidden * indexer.head_dim + weights),
            Tensor("indexer_norm", "norm", 2 * indexer.head_dim))


def _compressed(a: Compressed, hidden: int) -> tuple[Tensor, ...]:
    width = a.head_dim * (2 if a.overlap else 1)
    tensors = [
        Tensor("q_a_proj", "latent", hidden * a.q_lora_rank),
        Tensor("q_b_proj", "attention", a.q_lora_rank * a.heads * a.head_dim),
        Tensor("kv_proj", "latent", hidden * a.head_dim),
        Tensor("o_a_proj", "attention", a.heads * a.head_dim * a.o_lora_rank),
        Tensor("o_b_proj", "attention", a.o_groups * a.o_lora_rank * hidden),
        Tensor("attention_norms", "norm", a.q_lora_rank + a.head_dim + a.heads),
    ]
    if a.ratio:
        tensors.append(Tensor("compressor", "compressor", 2 * hidden * width))
        tensors.append(Tensor("compressor_norm", "norm", a.ratio * width + a.head_dim))
    if a.indexer:
        i = a.indexer
        tensors.append(Tensor("indexer", "indexer", a.q_lora_rank * i.heads * i.head_dim))
        tensors.append(Tensor("indexer_compressor", "compressor", hidden * (i.heads + 4 * i.head_dim)))
        tensors.append(Tensor("indexer_norm", "norm", 2 * a.ratio * i.head_dim + i.head_dim))
    return tuple(tensors)


def _linear(a: Linear, hidden: int) -> tuple[Tensor, ...]:
    key, value = a.key_heads * a.key_dim, a.value_heads * a.value_dim
    conv, out = Tensor("conv1d", "conv", (2 * key + value) * a.conv), Tensor("out_proj", "linear", value * hidden)
    qkv = Tensor("in_proj_qkv", "linear", hidden * (2 * key + value))
    gate = Tensor("in_proj_gate", "linear",
                  hidden * a.gate_rank + a.gate_rank * value if a.gate_rank else hidden * value)
    if a.rule == "gdn":
        return _present(qkv, gate, conv, out, Tensor("in_proj_ba", "linear", hidden * 2 * a.value_heads),
                        Tensor("decay", "state", 2 * a.value_heads), Tensor("state_norm", "norm", a.value_dim))
    if a.rule == "lightning":
        return _present(qkv, gate, conv, out, Tensor("state_norm", "norm", value))
    decay = hidden * a.key_dim + a.key_dim * key
    return _present(qkv, gate, conv, out, Tensor("forget_gate", "linear", decay),
                    Tensor("in_proj_b", "linear", hidden * a.value_heads),
                    Tensor("decay", "state", key + a.value_heads),
                    Tensor("state_norm", "norm", a.value_dim))


def _mamba(a: Mamba2, hidden: int) -> tuple[Tensor, ...]:
    inner, mixed = a.heads * a.head_dim, a.heads * a.head_dim + 2 * a.groups * a.state
    into = inner + mixed + a.heads
    return _present(
        Tensor("in_proj", "linear", hidden * into),
        Tensor("out_proj", "linear", inner * hidden),
        Tensor("conv1d", "conv", mixed * (a.conv + (1 if a.conv_bias else 0))),
        Tensor("decay", "state", 3 * a.heads),
        Tensor("state_norm", "norm", inner),
        Tensor("mixer_bias", "norm", into + hidden if a.bias else 0),
    )


def mlp_tensors(mlp: Dense | Moe, hidden: int) -> tuple[Tensor, ...]:
    """Weights of one MLP or mixture of experts."""
    matrices = 3 if mlp.gated else 2
    if isinstance(mlp, Dense):
        bias = (matrices - 1) * mlp.intermediate + hidden if mlp.bias else 0
        return _present(Tensor("mlp", "dense", matrices * hidden * mlp.intermediate), Tensor("mlp_bias", "norm", bias))
    shared, latent = shared_width(mlp), mlp.latent or hidden
    expert_bias = mlp.experts * ((matrices - 1) * mlp.intermediate + hidden) if mlp.bias else 0
    scale = hidden + mlp.experts if mlp.router_scale else 0
    return _present(
        Tensor("experts", "experts", mlp.experts * matrices * latent * mlp.intermediate),
        Tensor("expert_bias", "expert_bias", expert_bias),
        Tensor("shared_experts", "shared", matrices * hidden * shared),
        Tensor("shared_gate", "router", hidden if mlp.shared_gate else 0),
        Tensor("router", "router", hidden * mlp.experts + scale + (mlp.experts if mlp.bias else 0)),
        Tensor("router_bias", "router_bias", mlp.experts if mlp.router_bias else 0),
        Tensor("latent_proj", "latent_moe", 2 * hidden * latent if mlp.latent else 0),
        Tensor("latent_norm", "norm", latent if mlp.latent_norm else 0),
        Tensor("mlp", "dense", matrices * hidden * (mlp.residual_intermediate or 0)),
        Tensor("branch_norms", "norm", 3 * hidden if mlp.residual_intermediate else 0),
    )


def _present(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor.parameters)


def shared_width(moe: Moe) -> int:
    """Intermediate width of all shared experts of a layer together."""
    return moe.shared_intermediate or moe.shared_experts * moe.intermediate


def layer_tensors(model: ModelArch, attention: str, mlp: str) -> tuple[Tensor, ...]:
    """Weights of one decoder layer with its norms; either half may be "none"."""
    halves = (attention != NONE) + (mlp != NONE)
    norms = model.norms.each * (1 if model.norms.shared else halves) * (2 if model.norms.bias else 1)
    tensors = [Tensor("norms", "norm", norms * model.hidden)]
    if attention != NONE:
        tensors += [replace(t, part=attention) for t in attention_tensors(model.attention[attention], model.hidden)]
    if mlp != NONE:
        tensors += [replace(t, part=mlp) for t in mlp_tensors(model.mlp[mlp], model.hidden)]
    if model.hyper_connections:
        streams = model.hyper_connections
        mixes = streams * (2 + streams)
        tensors.append(Tensor("hyper_connections", "hyper", halves * (mixes * (streams * model.hidden + 1) + 3)))
    if model.per_layer_input:
        gate = 2 * model.hidden * model.per_layer_input.width
        tensors.append(Tensor("per_layer_gate", "per_layer", gate))
        tensors.append(Tensor("per_layer_norm", "norm", model.hidden))
    return tuple(tensors)


def edge_tensors(model: ModelArch, first: bool, last: bool) -> tuple[Tensor, ...]:
    """Embedding on the first stage; final norm and head on the last. Tied weights are stored once a stage."""
    table, width = model.vocab * model.hidden, 2 if model.norms.bias else 1
    tensors = [Tensor("embed_tokens", "embedding", table)] if first else []
    if first and model.position_embeddings:
        tensors.append(Tensor("embed_positions", "norm", model.position_embeddings * model.hidden))
    if first and model.per_layer_input:
        wide = model.layers * model.per_layer_input.width
        tensors.append(Tensor("embed_per_layer", "embedding", model.per_layer_input.vocab * wide))
        tensors.append(Tensor("per_layer_projection", "per_layer", model.hidden * wide))
        tensors.append(Tensor("per_layer_norm", "norm", model.per_layer_input.width))
    if last:
        tensors.append(Tensor("final_norm", "norm", model.hidden * width))
        if not (model.tied_embeddings and first):
            tensors.append(Tensor("lm_head", "head", table))
        if model.hyper_connections:
            streams = model.hyper_connections
            tensors.append(Tensor("hyper_head", "hyper", streams * (streams * model.hidden + 1) + 1))
    return tuple(tensors)


def vision_tensors(model: ModelArch) -> tuple[Tensor, ...]:
    """Vision tower and projector, if the model has them."""
    if model.vision is None:
        return ()
    return (
        Tensor("vision_sharded", "vision", model.vision.parameters_sharded),
        Tensor("vision_replicated", "vision_replicated", model.vision.parameters_replicated),
    )


def mtp_tensors(model: ModelArch) -> tuple[tuple[int, Tensor], ...]:
    """(count, tensor) of the layers for multi-token prediction, as the checkpoint stores them."""
    if model.mtp is None:
        return ()
    own = any(key.startswith("mtp.") for key in model.storage)  # stored otherwise than the layer they are built like
    joint = 2 * model.hidden**2 if model.mtp.projection else 0
    tensors = [*layer_tensors(model, model.mtp.attention, model.mtp.mlp),
               Tensor("mtp_projection", "mtp", joint), Tensor("mtp_norms", "norm", 3 * model.hidden)]
    if model.mtp.copies:
        tensors += [Tensor("embed_tokens", "embedding", model.vocab * model.hidden),
                    Tensor("lm_head", "head", model.vocab * model.hidden)]
    tensors = [replace(tensor, part="mtp") if own else tensor for tensor in tensors]
    return tuple((model.mtp.layers, tensor) for tensor in tensors if tensor.parameters)


def text_tensors(model: ModelArch) -> tuple[tuple[int, Tensor], ...]:
    """(count, tensor) of the whole text model, unsharded: what the checkpoint stores without MTP layers."""
    rows = [(1, tensor) for tensor in edge_tensors(model, True, True)]
    kinds: dict[tuple[str, str], int] = {}
    for block in model.blocks:
        kind = (block.attention, block.mlp)
        kinds[kind] = kinds.get(kind, 0) + block.layers
    for (attention, mlp), layers in kinds.items():
        rows += [(layers, tensor) for tensor in layer_tensors(model, attention, mlp)]
    return tuple(rows)


def parameter_count(model: ModelArch, mtp: bool = False, vision: bool = True) -> int:
    """Parameters of the model; MTP layers and the vision tower on request."""
    rows = [*text_tensors(model), *(mtp_tensors(model) if mtp else ())]
    extra = vision_tensors(model) if vision else ()
    return int(sum(count * tensor.parameters for count, tensor in rows) + sum(tensor.parameters for tensor in extra))
