"""The noun of a model: its layers as runs of (attention, MLP), what each is made of, and how weights are stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from perfmodel.catalog.base import Count, Descriptor, Section, Strict, Whole

MAX_LAYERS = 2000
NONE = "none"           # the name of an attention or MLP that a layer does not have
Conv = Annotated[int, Field(ge=0, le=64)]


class Indexer(Strict):
    """Selects the cached tokens that a sparse layer attends to; ``shared``: takes the choice of a layer before it."""

    heads: Count
    head_dim: Count
    topk: Count
    query_rank: Count | None = None         # width that its query is projected from; null: the hidden width
    query_norm: bool = False                # RMS norms of query and key (MiniMax M3); else a LayerNorm of the key
    weights: bool = True                    # a weight per index head (DeepSeek sparse attention)
    shared: bool = False


class Mla(Section):
    """Multi-head latent attention."""

    kind: Literal["mla"]
    heads: Count
    q_lora_rank: Count | None = None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    output_gate: bool = False
    bias: bool = False                      # on the down and output projections
    indexer: Indexer | None = None


class Gqa(Section):
    """Grouped-query attention, full or limited to a window or a chunk."""

    kind: Literal["gqa"]
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    window: Count | None = None             # sliding window [tokens]
    chunk: Count | None = None              # attention within blocks of so many tokens
    sinks: bool = False                     # one learned logit a head
    shares_kv: bool = False                 # reads the cache of an earlier layer: no key, no value, no cache
    v_from_k: bool = False                  # the value is the key's projection: no value weights, still two entries
    output_gate: Literal[False, True, "head"] = False       # a gate per value, or one per head
    qk_norm: Literal[False, True, "full"] = False           # per head, or over all heads
    bias: bool = False
    output_bias: bool = False
    indexer: Indexer | None = None


class Compressed(Section):
    """DeepSeek V4: one shared key-value head with a sliding window, and older tokens compressed in blocks."""

    kind: Literal["compressed"]
    heads: Count
    head_dim: Count
    rope_head_dim: Count
    q_lora_rank: Count
    o_lora_rank: Count
    o_groups: Count
    window: Count
    ratio: Whole = 0                        # tokens that become one compressed entry; 0: window alone
    overlap: bool = False                   # blocks overlap: twice the compressor's width
    indexer: Indexer | None = None


class Linear(Section):
    """Linear attention with a recurrent state: gated delta net, Kimi delta attention, lightning attention."""

    kind: Literal["linear"]
    rule: Literal["gdn", "kda", "lightning"]
    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    conv: Conv = 0                          # width of the short convolution
    gate_rank: Whole = 0                    # rank of the output gate; 0: full
    state_bits: Literal[16, 32] | None = None       # of the recurrent state, where the config says it


class Mamba2(Section):
    """A Mamba-2 mixer."""

    kind: Literal["mamba2"]
    heads: Count
    head_dim: Count
    state: Count
    groups: Count
    conv: Conv
    conv_bias: bool = True
    bias: bool = False
    state_bits: Literal[16, 32] | None = None


class Dense(Section):
    kind: Literal["dense"]
    intermediate: Count
    gated: bool = True
    bias: bool = False


class Moe(Section):
    kind: Literal["moe"]
    experts: Count
    per_token: Count
    intermediate: Count
    shared_experts: Whole = 0
    shared_intermediate: Count | None = None        # all shared experts together; null: shared_experts x intermediate
    shared_gate: bool = False                       # a scalar gate on the shared output (Qwen)
    gated: bool = True
    bias: bool = False                              # on experts and router (gpt-oss)
    router_bias: bool = False                       # an FP32 score correction per expert (DeepSeek V3)
    router_scale: bool = False                      # a scale per input and per expert (Gemma 4)
    latent: Count | None = None                     # experts work in this width, projected down and up (Nemotron 3)
    latent_norm: bool = False
    residual_intermediate: Count | None = None      # a dense MLP beside the experts (Gemma 4)


class Format(Section):
    """How a weight is stored: bits each, and a scale (and a zero point) per group."""

    bits: Annotated[float, Field(gt=0, le=64)]
    group: Count | None = None
    scale_bits: Whole = 0
    zero_bits: Whole = 0


class Vision(Section):
    """A vision tower with its projector, in the default format; engines shard one part and replicate the other."""

    layers: Count
    hidden: Count
    parameters_sharded: Whole
    parameters_replicated: Whole


class Mtp(Section):
    """Extra layers for multi-token prediction, each built like the named layer, joined by a projection of 2H to H."""

    layers: Count
    attention: str
    mlp: str
    projection: bool = True
    copies: bool = False        # the checkpoint holds embedding and head again


class PerLayerInput(Section):
    """A second embedding that feeds every layer (Gemma 3n, 4)."""

    vocab: Count
    width: Count


class Norms(Strict):
    """Norms of a decoder layer: ``each`` per sub-layer; ``shared``: attention and MLP run beside each other on one."""

    each: Literal[1, 2] = 1
    shared: bool = False
    bias: bool = False


class Block(Strict):
    """A run of equal decoder layers; either half may be "none"."""

    layers: Count
    attention: str = NONE
    mlp: str = NONE


Attention = Annotated[Mla | Gqa | Compressed | Linear | Mamba2, Field(discriminator="kind")]
Mlp = Annotated[Dense | Moe, Field(discriminator="kind")]


class ModelArch(Section, Descriptor):
    """An architecture: everything that decides bytes and FLOP, nothing about speed."""

    architecture: str
    model_type: str
    hidden: Count
    vocab: Count
    max_context: Count
    tied_embeddings: bool = False
    position_embeddings: Whole = 0                  # learned positions, where the model has such a table
    norms: Norms = Norms()
    hyper_connections: Whole = 0                    # residual streams (DeepSeek V4)
    blocks: tuple[Block, ...] = Field(min_length=1)
    attention: dict[str, Attention]
    mlp: dict[str, Mlp]
    formats: dict[str, Format]
    storage: dict[str, str]                         # role, tensor, or "section.role" -> format; see `storage_of`
    kv_cache: str | None = None                     # the KV format that the checkpoint was made for
    vision: Vision | None = None
    mtp: Mtp | None = None
    per_layer_input: PerLayerInput | None = None

    @property
    def layers(self) -> int:
        """Decoder layers of all blocks."""
        return sum(block.layers for block in self.blocks)

    @model_validator(mode="before")
    @classmethod
    def _unroll(cls, data: Any) -> Any:
        """``{repeat: 12, of: [...]}`` in `blocks` is written out, so that a hybrid pattern stays short in a file."""
        if isinstance(data, dict) and isinstance(data.get("blocks"), (list, tuple)):
            return {**data, "blocks": unroll(data["blocks"])}
        return data

    @model_validator(mode="after")
    def _names_resolve(self) -> ModelArch:
        if NONE in self.attention or NONE in self.mlp:
            raise ValueError(f"{NONE!r} names the absence of an attention or MLP; it cannot be described")
        for block in (*self.blocks, *((self.mtp,) if self.mtp else ())):
            for name, table in ((block.attention, self.attention), (block.mlp, self.mlp)):
                if name != NONE and name not in table:
                    raise ValueError(f"a block names {name!r}, which is not one of {', '.join(table)}")
            if block.attention == block.mlp == NONE:
                raise ValueError("a block has neither attention nor mlp")
        for role, name in self.storage.items():
            if name not in self.formats:
                raise ValueError(f"storage.{role}: format {name!r} is not one of {', '.join(self.formats)}")
        if "default" not in self.storage:
            raise ValueError("storage: the role 'default' is missing")
        if self.layers > MAX_LAYERS:
            raise ValueError(f"{self.layers} layers are more than {MAX_LAYERS}")
        return self


def unroll(blocks: Any) -> list[Any]:
    """Blocks with every ``{repeat, of}`` written out.

    >>> unroll([{"repeat": 2, "of": [{"layers": 3, "attention": "a"}, {"layers": 1, "attention": "b"}]}])[2:]
    [{'layers': 3, 'attention': 'a'}, {'layers': 1, 'attention': 'b'}]
    """
    flat: list[Any] = []
    for block in blocks:
        if isinstance(block, dict) and "repeat" in block:
            times, inner = block.get("repeat"), block.get("of")
            if set(block) != {"repeat", "of"} or not isinstance(inner, list) or type(times) is not int:
                raise ValueError("a repeated block is written {repeat: 12, of: [{layers: ..., ...}, ...]}")
            if not 1 <= times <= MAX_LAYERS or times * len(inner) > MAX_LAYERS:
                raise ValueError(f"repeat: {times} blocks of {len(inner)} are more than {MAX_LAYERS}")
            flat += [piece for _ in range(times) for piece in inner]
        else:
            flat.append(block)
    return flat
