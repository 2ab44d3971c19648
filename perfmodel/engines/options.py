"""What a launch line can say, as plain frozen values, and the few facts that an engine reads off model and machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a launch decides. ``None`` means "the engine's own default"; `resolve` of an engine fills it in.

    Words are those of the public contract (`pm.deploy`, CLI flags), not those of one engine.
    """

    engine: str = "vllm"
    version: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dp_attention: int = 1
    dcp: int = 1
    quantization: str | None = None
    kv_dtype: str = "auto"
    context: int | None = None
    memory_fraction: float | None = None
    max_sequences: int | None = None
    prefill_chunk: int | None = None
    page_size: int | None = None
    cuda_graphs: bool | None = None
    max_graph_batch: int | None = None
    prefill_graphs: bool | None = None
    max_micro_batch: int | None = None
    async_depth: int | None = None
    receive_interval: int = 1
    batch_wait_steps: int = 0
    batch_wait_ratio: float = 0.0
    layers_per_stage: tuple[int, ...] | None = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    all_reduce: str | None = None
    nccl: str | None = None
    power_limit: float | None = None
    kv_offload: float | None = None
    speculative: str | None = None
    prefix_hit_rate: float = 0.0
    expert_skew: float | None = None
    prompts: str = "random"
    patches: tuple[str, ...] = ()

    @property
    def attention_tp(self) -> int:
        """Ranks that share one attention: tp / dp_attention."""
        return self.tp // self.dp_attention

    @property
    def expert_tp(self) -> int:
        """Ways one expert is split: tp / ep."""
        return self.tp // self.ep

    @property
    def world(self) -> int:
        """GPUs of one engine copy."""
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine reads off the model and the machine before it decides. Plain numbers, SI units."""

    gpu_memory_bytes: float          # what a process sees as total: cudaMemGetInfo [B]
    compute_capability: float        # 9.0 Hopper, 10.0 B200, 12.0 RTX PRO 6000
    gpu_name: str
    full_nvlink: bool                # every pair of GPUs joined by NVLink
    p2p: bool                        # peer access between GPUs works
    layers: int
    hidden: int
    vocab: int
    max_context: int
    attention: str                   # "mla", "gqa"
    heads: int
    kv_heads: int
    kv_values_per_token_layer: float  # MLA: kv_lora_rank + rope; GQA: 2 * kv_heads * head_dim, whole model
    experts: int                     # 0 for a dense model
    per_token: int                   # routed experts per token
    moe_intermediate: int
    dense_intermediate: int
    weight_dtype: str                # dtype of the unquantised parts: "bf16"
    weight_format: str               # "int4-g32", "bf16", ...: format of the experts, else of the linear layers
    multimodal: bool
    vision_layers: int = 0
    vision_hidden: int = 0
    architecture: str = ""
    driver_memory_bytes: float = 0.0  # what nvidia-smi prints as total; 0: the same [B]
    kv_cache: str | None = None       # the KV format that the checkpoint declares


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one stage that cache alike, and what one of them costs on one rank."""

    layers: int
    kv_bytes_per_token: float        # before context parallelism spreads the tokens [B]
    window: int | None = None        # tokens that it looks back; None: all
    state_bytes: float = 0.0         # of one sequence: recurrent state, or an uncompressed window [B]
    chunked: bool = False            # the window is a chunk (Llama 4), not a slide
    in_flight_bytes: float = 0.0     # of a token that is in a batch or in the window, beside its lasting entry [B]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank (or a class of equal ranks) as the memory rules see it."""

    stage: int
    layers: int                      # decoder layers on this stage
    first: bool
    last: bool
    weights_bytes: float             # after load, with engine copies and vision tower
    kv_bytes_per_token: float        # this rank, all its layers
    heads_local: int
    groups: tuple[LayerGroup, ...] = ()  # empty: all layers cache every token alike


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """One named piece of memory that is neither weights nor KV cache.

    ``when`` says who pays: "baseline" is gone before weights load; "budget" is charged to the KV budget by the
    engine's own profiling; "slack" must fit into what the engine leaves free beside the pool. ``low`` and ``high``
    are an 80 % band; ``source`` says where the rule comes from and of what kind it is.
    """

    name: str
    bytes: float
    low: float
    high: float
    when: str
    kind: str                        # derived, measured, assumed
    source: str
