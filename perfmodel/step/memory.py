"""Does it fit: weights, KV pool, runtime rows and what is left, for every rank, by the engine's own rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.deployment import Deployment
from perfmodel.engines.memory import KvPool
from perfmodel.placement import Placement, place

LARGE_POOL_TOKENS = 10**9


@dataclass(frozen=True, eq=False)
class MemoryReport:
    """The memory answer. Ranks of one stage are equal; they are listed one by one only in `to_dict`."""

    deployment: Deployment
    placement: Placement
    pool: KvPool
    fits: bool
    verdict: str
    binding_rank: int
    kv_tokens: int
    kv_tokens_low: int
    kv_tokens_high: int
    kv_tokens_total: int
    max_sequences_at_context: int
    hints: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know beside the answer: GPUs that nothing uses."""
        return idle_gpus(self.deployment)

    def parts(self, stage: int) -> dict[str, float]:
        """Bytes of one rank of a stage by part: weights, KV pool, runtime rows. [B]"""
        weights = {name: float(values[stage]) for name, values in self.placement.parts.items()}
        runtime = {row.name: row.bytes for row in self.pool.rows[stage]}
        return {**weights, "KV pool": self.pool.pool_bytes[stage], **runtime}

    def runtime_bytes(self, stage: int) -> float:
        """What is neither weights nor KV on one rank of a stage. [B]"""
        return float(sum(row.bytes for row in self.pool.rows[stage]))

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract; one entry a rank."""
        tp, stages = self.deployment.options.tp, self.placement.stages
        ranks = []
        for copy in range(self.deployment.options.dp):
            for rank in range(stages * tp):
                stage = rank // tp
                ranks.append(
                    {
                        "rank": copy * stages * tp + rank,
                        "stage": stage,
                        "layers": int(self.placement.layers[stage]),
                        "weights_bytes": float(self.placement.weights_bytes[stage]),
                        "kv_pool_bytes": float(self.pool.pool_bytes[stage]),
                        "runtime_bytes": self.runtime_bytes(stage),
                        "free_bytes": float(self.pool.free_bytes[stage]),
                        "parts": self.parts(stage),
                    }
                )
        return {
            "fits": self.fits,
            "verdict": self.verdict,
            "reason": self.pool.reason,
            "binding_rank": self.binding_rank,
            "ranks": ranks,
            "kv_tokens": self.kv_tokens,
            "kv_tokens_low": self.kv_tokens_low,
            "kv_tokens_high": self.kv_tokens_high,
            "kv_tokens_total": self.kv_tokens_total,
            "max_sequences_at_context": self.max_sequences_at_context,
            "hints": list(self.hints),
            "warnings": list(self.warnings),
            "deployment": self.deployment.to_dict(),
            "assumptions": list(self.assumptions),
        }

    def __repr__(self) -> str:
        return (
            f"<MemoryReport {self.deployment.name} {self.deployment.model.name}: {self.verdict}, "
            f"{self.kv_tokens:,} KV tokens>"
        )


def memory(deployment: Deployment, hints: bool = True) -> MemoryReport:
    """Whether the deployment fits, rank by rank; when it does not, hints found by asking the model again."""
    placement = place(deployment)
    pool = kv_pool(placement)
    options = deployment.options
    fits = pool.verdict == "fits"
    context = options.context or deployment.facts.max_context
    one = pool.tokens // context if pool.sequences is None else int(pool.sequences)
    held = options.dp_attention * one
    running = min(running_limit(placement, pool), held) if pool.tokens > 0 else 0
    advice: tuple[str, ...] = ()
    if hints and not fits:
        from perfmodel.step.hints import hints_for

        advice = hints_for(deployment)
    return MemoryReport(
        deployment,
        placement,
        pool,
        fits,
        pool.verdict,
        pool.binding_rank * options.tp,
        pool.tokens,
        pool.tokens_low,
        pool.tokens_high,
        pool.tokens_total * options.dp,
        running * options.dp,
        advice,
        deployment.assumptions,
    )


def idle_gpus(deployment: Deployment) -> tuple[str, ...]:
    """GPUs of the node that the strategy leaves out, as a warning; nothing where there are none."""
    d = deployment
    if d.gpus >= d.node.count:
        return ()
    idle = d.node.count - d.gpus
    return (f"{idle} of the {d.node.count} GPUs of {d.node.name} {'is' if idle == 1 else 'are'} idle: {d.name} uses "
            f"{d.gpus}; tp, pp or dp use more",)


def kv_pool(placement: Placement) -> KvPool:
    """The engine's own budget for these ranks."""
    d = placement.deployment
    pool: KvPool = d.engine.kv_pool(d.options, d.facts, placement.rank_facts())
    return pool


def running_limit(placement: Placement, pool: KvPool | None = None) -> int:
    """Sequences that may run at once in one engine copy, by the engine's own limit.

    Where there is no KV pool at all the limit is that of a large one: the speed is then answered as if it started.
    """
    d = placement.deployment
    tokens = (pool or kv_pool(placement)).tokens
    return int(d.engine.max_running(d.options, d.facts, tokens if tokens > 0 else LARGE_POOL_TOKENS))
