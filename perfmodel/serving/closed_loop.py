"""Closed-loop serving: a fixed number of requests in flight, each a prefill and its decode steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from perfmodel.costs.serving import benchmark_wait_s, closed_loop_tpot_s, joint_prefills, lived_tokens, request_s
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
from perfmodel.step.speculation import gained, per_token, widened

GROUPS = {
    "compute": "arithmetic",
    "memory": "memory traffic",
    "latency": "kernel start-up",
    "communication": "communication",
    "host": "host",
    "pipeline": "pipeline",
}
# Requests a stream of a benchmark. Kind: assumed. InferenceX sends ten prompts a stream, all streams from the start.
ROUNDS = 10.0
_SETTLED = 12  # iterations of a contraction by halves


def closed_loop(
    deployment: Deployment,
    asked: np.ndarray,
    inputs: Lengths,
    outputs: Lengths,
    arrival: str | None = None,
    uncertain: bool = True,
    rounds: Any = ROUNDS,
) -> ServingCurve:
    """Throughput, TTFT and TPOT with ``asked`` requests in flight over the whole deployment.

    TTFT is the mean of a run of ``rounds`` requests a stream that all begin at once; infinite rounds: steady state.
    Without ``uncertain`` the bands hold only the residual of the calibration, and the answer comes many times faster.
    """
    loop = loop_of(deployment, asked, inputs, outputs, arrival, rounds=rounds)
    running, warnings = loop.running, loop.warnings
    placement, slots, limit = loop.placement, loop.slots, loop.limit
    factors = widened(factors_of(deployment), deployment)
    table = factors.draws(2) if uncertain else factors.point(2)
    times = loop_times(loop, table)
    decode, stall, together = times.decode, times.stall, together_s(loop, table)
    tpot = tpot_of(loop, times, together)
    rate, ttft = rate_of(loop, times), ttft_of(loop, times, together)
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
        (
            *deployment.assumptions,
            *_notes(deployment, placement, slots.rule, inputs.spread + outputs.spread > 0, rounds),
        ),
        percentiles={
            **_ttft_percentiles(loop, times, together, shape),
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
    spread: Any  # coefficient of variation of the answers
    rounds: Any  # requests a stream, all streams from the start
    warnings: list[str]


def loop_of(
    deployment: Deployment,
    asked: np.ndarray,
    inputs: Lengths,
    outputs: Lengths,
    arrival: str | None = None,
    placed: tuple[Placement, KvPool] | None = None,
    rounds: Any = ROUNDS,
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
        outputs.spread,
        rounds,
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


class Times(NamedTuple):
    """Forwards of a closed loop, and what becomes of them."""

    decode: forward.Forward
    prefill: forward.Forward  # of one prompt
    stall: Any  # what one prefill costs the others [s]
    tpot: Any  # [s]


def rate_of(loop: Loop, times: Times) -> Any:
    """Output tokens per second over all copies. [1/s]"""
    front = np.where(loop.copies > loop.running, 0.0, FRONT.alone_s(loop.new + loop.cached))  # a queue hides it
    cycle = request_s(front + _begun(loop, times), times.tpot, loop.output)
    return loop.running * loop.active * loop.output / cycle


def ttft_of(loop: Loop, times: Times, together: Any) -> Any:
    """Mean time to the first token at the client; ``together``: prefill of all prompts that begin at once. [s]"""
    alone = times.prefill.seconds
    queue = _queue(loop.copies, loop.running, times.tpot, alone, loop.output)
    return FRONT.alone_s(loop.new + loop.cached) + _begun(loop, times) + queue + _start_s(loop, times, together)


def tpot_of(loop: Loop, times: Times, together: Any) -> Any:
    """Time per output token: prefills that a request waits for before its first token do not stop it later. [s]"""
    waited = _start_s(loop, times, together) / np.maximum(loop.output - 1, 1.0)
    return np.maximum(times.tpot - waited, np.minimum(times.decode.seconds, times.tpot))


def _start_s(loop: Loop, times: Times, together: Any) -> Any:
    """Mean wait for the prompts of streams that begin together; none in steady state. [s]"""
    alone = times.prefill.seconds
    if not np.all(np.isfinite(loop.rounds)):
        return 0.0 * alone
    return benchmark_wait_s(together, alone, loop.rounds, _apart_s(loop, times))


def _apart_s(loop: Loop, times: Times) -> Any:
    """Time over which the answers of a round end: that of even lengths with this spread, and a step a prefill. [s]"""
    steps = np.sqrt(12) * loop.spread * loop.output + np.maximum(loop.running * loop.new / loop.chunk, 1.0)
    return steps * times.tpot


def together_s(loop: Loop, table: dict[str, Any]) -> Any:
    """Until the last of the prompts that begin together has its token: the engine's time or the front end's. [s]"""
    engine = _prefill(loop, loop.new * loop.running, loop.cached, table, loop.running).seconds
    return np.maximum(engine, loop.running * FRONT.occupied_s(loop.new + loop.cached))


def steps_before_s(deployment: Deployment, running: Any, tpot: Any) -> Any:
    """Steps of others that come first: half of the one under way; and the next, where that is made up already. [s]"""
    steps = 1.5 if deployment.engine.overlaps_host(deployment.options) else 0.5
    return steps * gained(deployment.options) * np.clip(running - 1, 0.0, 1.0) * tpot


def _begun(loop: Loop, times: Times) -> Any:
    """A prefill, after the steps that others make first. [s]"""
    return times.prefill.seconds + steps_before_s(loop.placement.deployment, loop.running, times.tpot)


def decode_of(loop: Loop, table: dict[str, Any]) -> forward.Forward:
    """A decode step of the running set, as the time of one token."""
    step = forward.decode(loop.placement, loop.running, loop.context, table, loop.slots, loop.graphs)
    return per_token(step, loop.placement.deployment)


def loop_times(
    loop: Loop, table: dict[str, Any], decode: forward.Forward | None = None
) -> Times:
    """A decode step (where it is not known), prefills, what one prefill costs the others, and the time per token."""
    running = loop.running
    decode = decode or decode_of(loop, table)
    prefill = _prefill(loop, np.full_like(running, loop.new), loop.cached, table)
    stall = _stall(loop, decode, prefill, table)
    interference = table["prefill_interference"][:, 0]
    tpot = closed_loop_tpot_s(decode.seconds, stall, running, loop.output, interference)
    return Times(decode, prefill, stall, tpot)


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
    side = _side(loop, first(decode.seconds, running.shape), first(prefill.seconds, running.shape))
    if not engine.mixes_prefill(options):
        return _prefill(loop, new * side, cached, table, side).seconds / side
    both = _prefill(loop, new * side + running, cached, table, side)
    base = _prefill(loop, running, cached, table, side)
    if placement.stages > 1:
        return (both.seconds - base.seconds) / side
    chunks = np.maximum((new * side + running) / loop.chunk, 1.0)
    hidden = chunks * np.minimum(decode.device_s, decode.seconds)
    return np.maximum(both.device_s - base.device_s, both.host_s - hidden) / side


def _side(loop: Loop, step_s: np.ndarray, alone_s: np.ndarray) -> np.ndarray:
    """Prompts that are prefilled together: as many as arrive at the rate of the loop, which they slow down."""
    most = np.minimum(loop.running, np.maximum(loop.placement.deployment.options.dp_attention, loop.chunk / loop.new))
    side = np.ones_like(loop.running)
    for _ in range(_SETTLED):
        cycle_s = loop.output * step_s + np.maximum(loop.running - 1, 0) * alone_s / side
        rate = loop.running / cycle_s
        side = 0.5 * (side + np.clip(joint_prefills(rate * alone_s, rate * step_s), 1, np.maximum(most, 1)))
    return side


def _notes(deployment: Deployment, placement: Any, rule: str, spread: bool, rounds: Any) -> list[str]:
    notes = [
        f"prompts={deployment.options.prompts}: experts picked accordingly",
        "closed loop: a finished request is replaced at once",
        "a running request has made half of its answer, weighted by length",
        FRONT_NOTE,
    ]
    if np.all(np.isfinite(rounds)):
        several = np.unique(np.round(rounds, 1))
        each = f"{several[0]:g}" if len(several) == 1 else f"{several[0]:g} to {several[-1]:g}"
        notes.append(f"TTFT: mean of a run of {each} requests a stream, all streams from the start")
        if not spread:
            notes.append("equal answers end together, so that every round queues like the first")
    if deployment.options.tp > 1 or placement.stages > 1:
        notes.append(f"links: {links_of(deployment).source}")
    if placement.stages > 1:
        notes.append(f"pipeline slots filled by the rule {rule!r}")
    if spread:
        notes.append("length distributions enter by mean and spread")
    return notes


def _ttft_percentiles(loop: Loop, times: Times, together: Any, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Upper percentiles of TTFT: of the steady state, or of the rounds that queue where so many of the run do."""
    steady = first(ttft_of(replace(loop, rounds=np.inf), times, together), shape)
    step = gained(loop.placement.deployment.options) * first(times.decode.seconds, shape)
    start = first(together, shape)
    found = {}
    for q in (95, 99):
        early = 0.0
        if np.all(np.isfinite(loop.rounds)):
            again = np.maximum(start - first(_apart_s(loop, times), shape), 0.0) * q / 100
            early = np.maximum(start * np.maximum(1 - loop.rounds * (1 - q / 100), 0.0), again)
        found[f"ttft_p{q}"] = steady + np.maximum((q / 100 - 0.5) * step, early)
    return found


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
