"""By what each kind of weight is divided on a rank: the engines differ once attention is data parallel."""

from __future__ import annotations

from math import ceil

from perfmodel.engines.options import Options


def weight_divisors(options: Options, experts: int) -> dict[str, float]:
    """Ways that a rank's share of each role is divided. Roles not named are replicated.

    SGLang without an all-to-all back end keeps dense layers and shared experts sharded over the whole tp, while
    embedding and head follow the attention group (0.5.23 layers/vocab_parallel_embedding.py, dp_attention.py); the
    head stays sharded over tp, and the vision tower follows the attention group (layers/attention/vision.py). The
    data-parallel attention of vLLM (0.33.0 config/parallel.py) and TensorRT-LLM replicates all but the experts. Experts
    are dealt out whole to ``ep`` ranks, the fullest of which counts.
    """
    attention = options.attention_tp
    outside = options.tp if options.engine == "sglang" else attention
    per_rank = ceil(experts / options.ep) / options.expert_tp if experts else 1
    return {
        "attention": attention,
        "dense": outside,
        "shared": outside,
        "embedding": attention,
        "head": outside,
        "experts": experts / per_rank if experts else 1,
        "vision": attention,
    }
