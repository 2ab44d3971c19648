"""Who runs in a closed loop, on how many cached tokens, before it is priced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.costs.serving import lived_tokens
from perfmodel.deployment import Deployment
from perfmodel.engines.memory import KvPool
from perfmodel.errors import BadInput
from perfmodel.placement import Placement, place
from perfmodel.serving.lengths import Lengths
from perfmodel.step import forward
from perfmodel.step.memory import idle_gpus, kv_pool, running_limit
from perfmodel.step.slots import Occupancy, occupancy

# Requests a stream of a benchmark. Kind: assumed. InferenceX sends ten prompts a stream, all streams from the start.
ROUNDS = 10.0


@dataclass(frozen=True, eq=False)
class Loop:
    """A closed loop before it is priced: who runs, on how many cached tokens, how pipeline slots are filled."""

    placement: Placement
    copies: np.ndarray  # requests in flight on one engine copy
    running: np.ndarray  # of which run
    active: np.ndarray  # engine copies that have any
    limit: Any
    slots: Occupancy
    graphs: forward.Graphs
    chunk: Any  # prompt tokens of one forward, at most
    context: Any  # mean cached tokens of a running sequence
    new: Any  # prompt tokens that are computed
    cached: Any  # and that the prefix cache has
    output: Any
    spread: Any  # coefficient of variation of the answers
    rounds: Any  # requests a stream, all streams from the start
    lock_step: bool  # a stream sends its next request as soon as the last one ends; else they come by chance
    warnings: list[str]


def refuse_too_long(deployment: Deployment, length: float, what: str) -> None:
    """A request that the context does not hold, with what would mend it."""
    most = deployment.facts.max_context
    context = deployment.options.context or most
    if length > context:
        wider = [f"--context {length:.0f} would hold it; the model goes to {most:,}"] if length <= most else []
        shorter = "shorter prompts or answers; lognormal lengths reach far above their mean, uniform and falling do not"
        raise BadInput(f"{what} {length:,.0f} tokens; the context is {context:,}", [*wider, shorter])


def loop_of(
    deployment: Deployment,
    asked: np.ndarray,
    inputs: Lengths,
    outputs: Lengths,
    arrival: str | None = None,
    placed: tuple[Placement, KvPool] | None = None,
    rounds: Any = ROUNDS,
    lock_step: bool = True,
) -> Loop:
    """Who runs of the requests ``asked`` for. ``placed``: the placement and its KV pool, where they are known."""
    options = deployment.options
    placement = placed[0] if placed else place(deployment)
    pool = placed[1] if placed else kv_pool(placement)
    length = inputs.mean + outputs.mean
    warnings: list[str] = [*idle_gpus(deployment)]
    if pool.verdict != "fits":
        warnings.append(
            f"memory says no ({pool.verdict}: {pool.reason}); the speed is of a deployment that cannot start"
        )
    refuse_too_long(deployment, length, "input and output together are")
    lived = lived_tokens(outputs.mean, outputs.spread)
    kept = deployment.engine.admission_reserve(options)[1] * lived
    most = running_limit(placement, pool)
    limit = _admitted(deployment, most, pool, inputs.mean + lived + kept, warnings)
    active = np.minimum(asked, options.dp)  # fewer requests than copies leave some copies idle
    copies = asked / active
    running = np.minimum(copies, limit)
    if np.any(copies > limit):
        warnings.append(f"at most {limit * options.dp:,.0f} sequences run at once; the rest waits in the queue")
    new = inputs.mean * (1 - options.prefix_hit_rate)
    slots = occupancy(deployment, running, most, arrival)
    return Loop(
        placement,
        copies,
        running,
        active,
        limit,
        slots,
        forward.graphs_of(deployment, slots),
        float(options.prefill_chunk or np.inf),
        inputs.mean + lived,
        new,
        inputs.mean - new,
        outputs.mean,
        outputs.spread,
        rounds,
        lock_step,
        warnings,
    )


def stacked(loops: list[Loop]) -> Loop:
    """Loops on one placement as one, to be priced in one go: they may differ in copies, limits, graphs and chunks."""
    sizes = [len(loop.running) for loop in loops]

    def joined(pick: Callable[[Loop], Any]) -> Any:
        parts = [pick(loop) for loop in loops]
        return np.concatenate(parts, axis=-1) if np.ndim(parts[0]) else np.repeat(parts, sizes)

    first_of = loops[0]
    return replace(
        first_of,
        copies=joined(lambda loop: loop.copies),
        running=joined(lambda loop: loop.running),
        active=joined(lambda loop: loop.active),
        limit=joined(lambda loop: loop.limit),
        slots=Occupancy(joined(lambda loop: loop.slots.batch), joined(lambda loop: loop.slots.count),
                        first_of.slots.rule, joined(lambda loop: loop.slots.in_line)),
        graphs=forward.Graphs(joined(lambda loop: loop.graphs.padded), joined(lambda loop: loop.graphs.eager),
                              joined(lambda loop: loop.graphs.prefill_tokens)),
        chunk=joined(lambda loop: loop.chunk),
    )  # fmt: skip


def _admitted(deployment: Deployment, most: int, pool: Any, mean_tokens: float, warnings: list[str]) -> float:
    """Sequences of one engine copy that can run at once: KV capacity and the engine's own limit."""
    options = deployment.options
    by_limit = float(most)
    if options.pp > 1:
        by_limit = min(by_limit, float(deployment.engine.slots(options) * deployment.engine.slot_limit(options, most)))
    if pool.tokens <= 0:
        return by_limit
    by_kv = np.floor(pool.tokens_total / mean_tokens)
    if by_kv < 1:
        warnings.append(f"the KV pool of {pool.tokens_total:,} tokens does not hold one request; nothing runs")
        return 1.0
    return float(min(by_limit, by_kv))
