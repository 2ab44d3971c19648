"""Closed-loop serving: a fixed number of requests in flight, each a prefill and its decode steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.costs.serving import closed_loop_tpot_s, lived_tokens, request_s
from perfmodel.deployment import Deployment
from perfmodel.engines.memory import KvPool
from perfmodel.errors import BadInput
from perfmodel.placement import Placement, links_of, place
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.frontend import FRONT
from perfmodel.serving.frontend import NOTE as FRONT_NOTE
from perfmodel.serving.lengths import Lengths
from perfmodel.step import forward
from perfmodel.step.cost import binds, bound_of, first
from perfmodel.step.factors import factors_of
from perfmodel.step.memory import kv_pool, running_limit
from perfmodel.step.operations import Row, mapped
from perfmodel.step.slots import Occupancy, occupancy
from perfmodel.step.speculation import per_token, widened

GROUPS = {
    "compute": "arithmetic",
    "memory": "memory traffic",
    "latency": "kernel start-up",
    "communication": "communication",
    "host": "host",
    "pipeline": "pipeline",
}


def closed_loop(
    deployment: Deployment,
    asked: np.ndarray,
    inputs: Lengths,
    outputs: Lengths,
    arrival: str | None = None,
    uncertain: bool = True,
) -> ServingCurve:
    """Throughput, TTFT and TPOT with ``asked`` requests in flight over the whole deployment.

    Without ``uncertain`` the bands hold only the residual of the calibration, and the answer comes many times faster.
    """
    loop = loop_of(deployment, asked, inputs, outputs, arrival)
    running, warnings = loop.running, loop.warnings
    placement, slots, limit = loop.placement, loop.slots, loop.limit
    factors = widened(factors_of(deployment), deployment)
    decode, prefill, stall, tpot = loop_times(loop, factors.draws(2) if uncertain else factors.point(2))
    rate, ttft = rate_and_ttft(loop, decode, prefill, tpot)
    shape = running.shape
    rows = tuple(mapped(row, lambda value: first(value, shape)) for row in decode.rows)
    return ServingCurve(
        deployment,
        asked,
        running * loop.active,
        factors.band(_full(rate, shape)),
        factors.band(_full(ttft, shape)),
        factors.band(_full(tpot, shape)),
        binds(rows, first(decode.host_s, shape), first(decode.device_s, shape), shape),
        _parts(rows, first(tpot - decode.seconds, shape), shape),
        inputs.mean,
        outputs.mean,
        tuple(warnings),
        (*deployment.assumptions, *_notes(deployment, placement, slots.rule, inputs.spread + outputs.spread > 0)),
        percentiles={
            **{f"ttft_p{q}": first(ttft, shape) + (q / 100 - 0.5) * first(decode.seconds, shape) for q in (95, 99)},
            **_tpot_percentiles(first(tpot, shape), first(stall, shape), running, outputs.mean),
        },
        limit=limit * deployment.options.dp,
    )


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
    warnings: list[str]


def loop_of(
    deployment: Deployment,
    asked: np.ndarray,
    inputs: Lengths,
    outputs: Lengths,
    arrival: str | None = None,
    placed: tuple[Placement, KvPool] | None = None,
) -> Loop:
    """Who runs of the requests ``asked`` for. ``placed``: the placement and its KV pool, where they are known."""
    options = deployment.options
    placement = placed[0] if placed else place(deployment)
    pool = placed[1] if placed else kv_pool(placement)
    length = inputs.mean + outputs.mean
    warnings: list[str] = []
    if pool.verdict != "fits":
        warnings.append(
            f"memory says no ({pool.verdict}: {pool.reason}); the speed is of a deployment that cannot start"
        )
    context = options.context or deployment.facts.max_context
    if length > context:
        raise BadInput(f"input and output together are {length:g} tokens; the context is {context}")
    lived = lived_tokens(outputs.mean, outputs.spread)
    kept = deployment.engine.admission_reserve(options)[1] * lived
    limit = _admitted(deployment, placement, pool, inputs.mean + lived + kept, warnings)
    active = np.minimum(asked, options.dp)  # fewer requests than copies leave some copies idle
    copies = asked / active
    running = np.minimum(copies, limit)
    if np.any(copies > limit):
        warnings.append(f"at most {limit * options.dp:,.0f} sequences run at once; the rest waits in the queue")
    new = inputs.mean * (1 - options.prefix_hit_rate)
    slots = occupancy(deployment, running, running_limit(placement, pool), arrival)
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
                        first_of.slots.rule),
        graphs=forward.Graphs(joined(lambda loop: loop.graphs.padded), joined(lambda loop: loop.graphs.eager),
                              joined(lambda loop: loop.graphs.prefill_tokens)),
        chunk=joined(lambda loop: loop.chunk),
    )  # fmt: skip


def rate_and_ttft(loop: Loop, decode: forward.Forward, prefill: forward.Forward, tpot: Any) -> tuple[Any, Any]:
    """Output tokens per second over all copies [1/s], and the median time to the first token at the client [s]."""
    begun = prefill.seconds + decode.seconds / 2
    queue = _queue(loop.copies, loop.running, tpot, prefill.seconds, loop.output)
    ttft = FRONT.alone_s(loop.new + loop.cached) + begun + queue
    return loop.running * loop.active * loop.output / request_s(begun, tpot, loop.output), ttft


def decode_of(loop: Loop, table: dict[str, Any]) -> forward.Forward:
    """A decode step of the running set, as the time of one token."""
    step = forward.decode(loop.placement, loop.running, loop.context, table, loop.slots, loop.graphs)
    return per_token(step, loop.placement.deployment)


def loop_times(
    loop: Loop, table: dict[str, Any], decode: forward.Forward | None = None
) -> tuple[forward.Forward, forward.Forward, Any, Any]:
    """A decode step (where it is not known), a prefill, what one prefill costs the others, and the time per token."""
    running = loop.running
    decode = decode or decode_of(loop, table)
    prefill = _prefill(loop, np.full_like(running, loop.new), loop.cached, table)
    stall = _stall(loop, decode, prefill, table)
    interference = table["prefill_interference"][:, 0]
    return decode, prefill, stall, closed_loop_tpot_s(decode.seconds, stall, running, loop.output, interference)


def _prefill(loop: Loop, tokens: Any, cached: Any, table: dict[str, Any], prompts: Any = 1.0) -> forward.Forward:
    return forward.prefill(
        loop.placement, tokens, cached, table, prompts, chunk=loop.chunk, graph_tokens=loop.graphs.prefill_tokens
    )


def _stall(loop: Loop, decode: forward.Forward, prefill: forward.Forward, table: dict[str, Any]) -> Any:
    """What one prefill costs the others. [s]

    Engines that put prompt tokens into the decode batch pay only what the mixed step takes longer: its device time,
    or the launches of a step that no graph holds. The others stop decoding for the whole prefill. What arrives while
    a prefill runs is prefilled together, in one chunk or side by side in the attention groups.
    """
    placement, running, new, cached = loop.placement, loop.running, loop.new, loop.cached
    options, engine = placement.deployment.options, placement.deployment.engine
    arrivals = running / (loop.output * first(decode.seconds, running.shape))
    alone = first(prefill.seconds, running.shape)
    room = np.maximum(1.0, loop.chunk / new)
    side = np.clip(1 + arrivals * alone, 1, np.minimum(running, np.maximum(options.dp_attention, room)))
    if not engine.mixes_prefill(options):
        return _prefill(loop, new * side, cached, table, side).seconds / side
    both = _prefill(loop, new * side + running, cached, table, side)
    base = _prefill(loop, running, cached, table, side)
    if placement.stages > 1:
        return (both.seconds - base.seconds) / side
    chunks = np.maximum((new * side + running) / loop.chunk, 1.0)
    hidden = chunks * np.minimum(decode.device_s, decode.seconds)
    return np.maximum(both.device_s - base.device_s, both.host_s - hidden) / side


def _notes(deployment: Deployment, placement: Any, rule: str, spread: bool) -> list[str]:
    notes = [
        f"prompts={deployment.options.prompts}: experts picked accordingly",
        "closed loop: a finished request is replaced at once",
        "a running request has made half of its answer, weighted by length",
        FRONT_NOTE,
    ]
    if deployment.options.tp > 1 or placement.stages > 1:
        notes.append(f"links: {links_of(deployment).source}")
    if placement.stages > 1:
        notes.append(f"pipeline slots filled by the rule {rule!r}")
    if spread:
        notes.append("length distributions enter by mean and spread")
    return notes


def _tpot_percentiles(tpot: np.ndarray, stall: np.ndarray, running: np.ndarray, output: float) -> dict[str, np.ndarray]:
    """Upper percentiles of TPOT: the prefills that fall into one answer are Poisson, about one for each neighbour."""
    spread = np.sqrt(np.maximum(running - 1, 0)) * stall / output
    return {f"tpot_p{q}": tpot + z * spread for q, z in ((95, 1.645), (99, 2.326))}


def _admitted(deployment: Deployment, placement: Any, pool: Any, mean_tokens: float, warnings: list[str]) -> float:
    """Sequences of one engine copy that can run at once: KV capacity and the engine's own limit."""
    options = deployment.options
    most = running_limit(placement, pool)
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


def _queue(copies: np.ndarray, running: np.ndarray, tpot: Any, prefill_s: Any, output: float) -> Any:
    """Median wait of a request beyond the running set: the share of the loop that it spends outside. [s]"""
    return (copies - running) / running * request_s(prefill_s, tpot, output)


def _full(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(values, (len(values), *shape))


def _parts(rows: tuple[Row, ...], prefill_share: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """TPOT by what it goes to, in seconds; the parts add up."""
    parts = {name: np.zeros(shape) for name in GROUPS.values()}
    for row in rows:
        word = np.asarray(bound_of(row), dtype=object)
        for key, name in GROUPS.items():
            parts[name] = parts[name] + np.where(word == key, row.seconds, 0.0)
    parts["prefill of others"] = prefill_share
    return {name: values for name, values in parts.items() if np.any(values != 0)}
