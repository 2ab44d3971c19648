"""TensorRT-LLM's memory: a share of what is free after weights and activations, in blocks, the minimum over ranks."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.engines import activations as act
from perfmodel.engines.memory import GIB, KvPool, band, of_ranks, row, smallest, total
from perfmodel.engines.options import Facts, Options, RankFacts, RuntimeRow

_READ = "TensorRT-LLM _torch/pyexecutor/_util.py KvCacheCreator"


def runtime_rows(options: Options, facts: Facts, rank: RankFacts,
                 kv_tokens: int | None = None) -> tuple[RuntimeRow, ...]:
    """Every piece that is neither weights nor KV on one rank; options resolved. Sizes are those that vLLM logs, so
    kind assumed, but for the shapes of activations."""
    assert options.prefill_chunk and options.max_sequences
    rows = [row("CUDA context", 0.51 * GIB, 0.6, 1.6, "baseline", "assumed", "as logged by vLLM 0.19 on H100")]
    if options.world > 1:
        size, low, high = (1.0, 0.5, 2.0) if facts.full_nvlink else (0.3, 0.5, 2.5)
        rows.append(row("NCCL communicators", size * GIB, low, high, "budget", "assumed", "as logged by vLLM on H100"))
    rows.append(row("kernels and cuBLAS", 0.35 * GIB, 0.5, 2.5, "budget", "assumed", "as logged by vLLM on H100"))
    tokens = max(1, options.prefill_chunk)
    layer = act.layer_peak_bytes(tokens, options, facts, rank, absorbed=False) + act.moe_bytes(tokens, options, facts)
    rows.append(row("activation peak of a chunk", layer, 0.7, 1.6, "budget", "derived",
                    "shapes of the layers at max_num_tokens"))
    if rank.last:
        sampled = min(options.max_sequences, tokens)
        rows.append(row("logits and sampler", act.sampler_bytes(sampled, facts.vocab, 2.0), 0.5, 1.6, "budget",
                        "assumed", "logits in float32 and one copy"))
    if options.cuda_graphs:
        size = 0.2 + rank.layers * (0.015 if facts.experts else 0.006)
        rows.append(row("CUDA graphs", size * GIB, 0.4, 2.5, "slack", "assumed", "as logged by vLLM 0.22 on H200"))
    return tuple(item for item in rows if item.bytes > 0)


def kv_pool(options: Options, facts: Facts, ranks: Sequence[RankFacts]) -> KvPool:
    """KV blocks: ``(total - peak of weights and a dummy run) x free_gpu_memory_fraction``, the minimum over ranks.

    Unlike vLLM's fraction of the whole card, this is a fraction of what is free. Source: TensorRT-LLM
    _torch/pyexecutor/_util.py KvCacheCreator._cal_max_memory.
    """
    assert options.memory_fraction and options.page_size and options.context
    rows = of_ranks(ranks, lambda rank: runtime_rows(options, facts, rank))
    spare = [facts.gpu_memory_bytes - rank.weights_bytes - total(own, "baseline", "budget")
             for rank, own in zip(ranks, rows, strict=True)]
    offers = [max(0.0, left) * options.memory_fraction for left in spare]
    margins = [band(own, "baseline", "budget") for own in rows]

    def tokens_of(change: Sequence[float]) -> int:
        assert options.page_size and options.memory_fraction
        room = [offer + extra * options.memory_fraction for offer, extra in zip(offers, change, strict=True)]
        blocks = [max(0, int(left // (rank.kv_bytes_per_token * options.page_size)))
                  for left, rank in zip(room, ranks, strict=True)]
        return min(blocks) * options.page_size

    tokens = tokens_of([0.0] * len(ranks))
    pools = tuple(tokens * rank.kv_bytes_per_token for rank in ranks)
    free = tuple(left - pool - total(own, "slack") for left, pool, own in zip(spare, pools, rows, strict=True))
    verdict, reason, where = _verdict(options, ranks, spare, free, tokens)
    start = facts.gpu_memory_bytes - max(total(own, "baseline") for own in rows)
    low, high = tokens_of([-above for _, above in margins]), tokens_of([below for below, _ in margins])
    return KvPool(tokens, low, high, tokens * options.dp_attention, pools, tuple(offers), free, rows, verdict, where,
                  reason, max(offers), start, min(spare) * (1.0 - options.memory_fraction))


def _verdict(options: Options, ranks: Sequence[RankFacts], spare: Sequence[float], free: Sequence[float],
             tokens: int) -> tuple[str, str, int]:
    tight = smallest(spare)
    assert options.context
    if spare[tight] <= 0:
        return "oom_weights", (f"weights of {ranks[tight].weights_bytes / GIB:.1f} GiB and a profiling run need "
                               f"{-spare[tight] / GIB:.1f} GiB more than the GPU has"), tight
    if tokens <= 0:
        return "no_kv", f"{spare[tight] / GIB:.2f} GiB are free after weights: not one block", tight
    if tokens < options.context:
        return "kv_too_small", f"one sequence of {options.context} tokens does not fit into {tokens} KV tokens", tight
    low = smallest(free)
    if free[low] < 0:
        return "oom_graphs", (f"graph capture needs {-free[low] / GIB:.2f} GiB more than free_gpu_memory_fraction "
                              "leaves"), low
    return "fits", f"{tokens} tokens in blocks of {options.page_size}; rank {tight} binds", tight


__all__ = ["kv_pool", "runtime_rows"]
