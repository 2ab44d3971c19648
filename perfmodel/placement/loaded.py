"""What loading adds to the weights on a rank: rotary tables, padded experts, the allocator's rounding, MTP layers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from perfmodel.catalog import Compressed, Dense, Gqa, Mla, Moe
from perfmodel.deployment import Deployment
from perfmodel.engines.rules import draft_method
from perfmodel.engines.versions import at_least
from perfmodel.placement.inventory import Tensor, shared_width, stored_in

MIB = 2.0**20
# PyTorch c10/cuda/CUDACachingAllocator.cpp: requests from 10 MiB on are rounded up to 2 MiB, and a rest of at most
# 1 MiB is not split off
LARGE, STEP, UNSPLIT = 10 * MIB, 2 * MIB, MIB
# Tables that are longer than the context. Gemma 3: linear scaling by 8 on its global layers (config.json,
# rope_scaling); Qwen's multimodal rotary embedding keeps four times the positions (vLLM layers/rotary_embedding)
LINEAR_SCALING = {"gemma3": 8, "gemma3_text": 8}
PARTIAL_ROTARY = {"qwen3_next": 0.25, "qwen3_5": 0.25, "qwen3_5_moe": 0.25, "glm4_moe": 0.5, "minimax_m2": 0.5,
                  "phi": 0.4, "phi3": 0.75}  # share of a head that is rotated: config.json, partial_rotary_factor
YARN_IN_FP32 = ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25")  # vLLM DeepseekScalingRotaryEmbedding
MULTIMODAL_ROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def rotary_bytes(deployment: Deployment) -> float:
    """Cosines and sines of every position, once for each kind of rotary embedding; replicated on every rank. [B]

    ``positions x rotary width`` values, in the model's dtype under vLLM (layers/rotary_embedding, cos_sin_cache) and
    in FP32 under SGLang (layers/rotary_embedding.py keeps it so on CUDA). Llama 4 Scout: 10 M x 128 x 2 B = 2.5 GiB.
    """
    model = deployment.model
    width = 4.0 if deployment.options.engine == "sglang" else 2.0
    positions = float(model.max_context)
    tables: set[tuple[float, float]] = set()
    for name in {block.attention for block in model.blocks}:
        attention = model.attention.get(name)
        if isinstance(attention, Mla):
            doubled = 2.0 if model.model_type in YARN_IN_FP32 and width == 2.0 else 1.0
            tables.add((positions, attention.qk_rope_head_dim * doubled))
        elif isinstance(attention, Compressed):
            tables.add((positions, attention.rope_head_dim))
        elif isinstance(attention, Gqa):
            longer = 1.0 if attention.window else float(LINEAR_SCALING.get(model.model_type, 1))
            longer *= 4.0 if model.model_type in MULTIMODAL_ROPE else 1.0
            tables.add((positions * longer, attention.head_dim * PARTIAL_ROTARY.get(model.model_type, 1.0)))
    if model.position_embeddings:
        return 0.0
    return sum(count * dim for count, dim in tables) * width


def rounding_bytes(size: float, most: float = UNSPLIT) -> float:
    """What the caching allocator adds to one tensor of this size; a rest above ``most`` serves smaller tensors. [B]

    Source: PyTorch c10/cuda/CUDACachingAllocator.cpp. Qwen2.5-7B gains 2 MiB a layer, 0.055 of the 14.25 GiB that vLLM
    prints.

    >>> rounding_bytes(259 * MIB) / MIB, rounding_bytes(24.5 * MIB), rounding_bytes(4 * MIB)
    (1.0, 0.0, 0.0)
    """
    rest = ceil(size / STEP) * STEP - size
    return rest if size >= LARGE and rest <= most else 0.0


def layer_rounding_bytes(deployment: Deployment, attention: str, mlp: str) -> float:
    """The allocator's rounding of the fused tensors of one decoder layer on one rank. [B]

    vLLM prints bytes that PyTorch has handed out; SGLang free memory before and after, which counts whole segments.
    """
    model, options = deployment.model, deployment.options
    ways, total = options.attention_tp, 0.0
    most = STEP if options.engine == "sglang" else UNSPLIT

    def take(role: str, part: str, parameters: float) -> float:
        form = stored_in(deployment.formats, Tensor(role, role, 0.0, part))[1]
        return rounding_bytes(parameters * form.bits / 8.0, most)

    a = model.attention.get(attention)
    if isinstance(a, Gqa):
        cached = 0 if a.shares_kv else 2 * max(1, a.kv_heads // ways)
        gate = 2 if a.output_gate is True else 1
        total += take("attention", attention, model.hidden * (a.heads / ways * gate + cached) * a.head_dim)
        total += take("attention", attention, model.hidden * a.heads / ways * (a.v_head_dim or a.head_dim))
    elif isinstance(a, Mla):
        down = (a.q_lora_rank or 0) + a.kv_lora_rank + a.qk_rope_head_dim
        queries = a.heads / ways * (a.qk_nope_head_dim + a.qk_rope_head_dim)
        total += take("latent", attention, model.hidden * down)
        total += take("attention", attention, (a.q_lora_rank or model.hidden) * queries)
        total += take("attention", attention, model.hidden * a.heads / ways * a.v_head_dim)
    m, outside = model.mlp.get(mlp), options.tp if options.engine == "sglang" else ways
    if isinstance(m, Dense):
        total += _pair(take, "dense", mlp, model.hidden * m.intermediate / outside, m.gated)
    elif isinstance(m, Moe):
        per_rank = m.experts / options.ep * (m.latent or model.hidden) * m.intermediate / options.expert_tp
        total += _pair(take, "experts", mlp, per_rank, m.gated)
        total += _pair(take, "shared", mlp, model.hidden * shared_width(m) / outside, m.gated)
    return total


def _pair(take: Callable[[str, str, float], float], role: str, part: str, matrix: float, gated: bool) -> float:
    """Gate and up in one tensor, down in another."""
    return take(role, part, matrix * (2 if gated else 1)) + take(role, part, matrix)


def padded_expert_bytes(deployment: Deployment, mlp: str) -> float:
    """What padding adds to the MXFP4 experts of one gpt-oss layer on one rank, under vLLM's Triton kernels. [B]

    Their layout wants the inner widths in steps of 256 values and of 64 scales, and the width on a rank in steps of 64.
    Derived from load lines: 64.38 GiB (120b, 0.14.1, TP1) and 13.64 GiB (20b, 0.19, TP1); at TP2 and TP4 the 20b
    prints 1.5 and 2 % more than it gives. Scales are not padded before 0.16 (assumed between the two
    logs). Blackwell's kernels pad otherwise: nothing is added there (assumed).
    """
    m = deployment.model.mlp.get(mlp)
    if not isinstance(m, Moe) or deployment.model.architecture != "GptOssForCausalLM":
        return 0.0
    stored = stored_in(deployment.formats, Tensor("experts", "experts", 0.0, mlp))[0]
    if deployment.options.engine != "vllm" or stored != "mxfp4" or int(deployment.facts.compute_capability) >= 10:
        return 0.0
    hidden, width = deployment.model.hidden, m.intermediate / deployment.options.expert_tp
    wide = _up(width, 64)
    values = 2 * wide * _up(hidden, 256) + _up(wide, 256) * hidden - 3 * width * hidden
    scales = 2 * wide * _up(hidden / 32, 64) + _up(wide / 32, 64) * hidden - 3 * width * hidden / 32
    if not at_least(deployment.options.version, "0.16"):
        scales = 0.0
    return m.experts / deployment.options.ep * (values / 2 + scales)


def _up(value: float, step: int) -> float:
    return float(ceil(value / step) * step)


def vision_divisor(deployment: Deployment, role: str, divisor: float) -> float:
    """Ways that a part of the vision tower is divided, where vLLM differs from the model file.

    It reads Mistral's own files (params.json) where a repository has both, and its Pixtral encoder is not parallel:
    Mistral Small 3.1 in BF16 prints 22.80 GiB at TP2 and 11.86 at TP4; quantised copies (Hugging Face files) divide it.
    Its MoonViT of Kimi-VL divides the MLP as well (15.53 GiB at TP2).
    """
    model, options = deployment.model, deployment.options
    if options.engine != "vllm":
        return divisor
    plain = options.quantization is None and all(model.formats[name].bits >= 16 for name in model.storage.values())
    if model.model_type == "mistral3" and plain:
        return 1.0
    return float(options.attention_tp) if model.model_type == "kimi_vl" else divisor


def drafts_with_own_layers(deployment: Deployment) -> bool:
    """Whether the launch loads the model's own layers for multi-token prediction, on the last stage."""
    method = draft_method(deployment.options.speculative)
    return deployment.model.mtp is not None and method in ("mtp", "nextn", "eagle")
