"""Seconds of a closed loop: its steps and prefills, what they cost each other, and what a client sees of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.costs.serving import benchmark_wait_s, closed_loop_tpot_s, joint_prefills, request_s
from perfmodel.deployment import Deployment
from perfmodel.serving.frontend import FRONT
from perfmodel.serving.loop import Loop
from perfmodel.step import forward
from perfmodel.step.cost import first
from perfmodel.step.speculation import gained, per_token

_SETTLED = 12  # iterations of a contraction by halves


class Times(NamedTuple):
    """Forwards of a closed loop, and what becomes of them."""

    decode: forward.Forward
    prefill: forward.Forward  # of one prompt
    stall: Any  # what one prefill costs the others [s]
    tpot: Any  # [s]


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
    side = prefilled_together(loop, first(decode.seconds, running.shape), first(prefill.seconds, running.shape))
    if not engine.mixes_prefill(options):
        return _prefill(loop, new * side, cached, table, side).seconds / side
    both = _prefill(loop, new * side + running, cached, table, side)
    base = _prefill(loop, running, cached, table, side)
    if placement.stages > 1:
        return (both.seconds - base.seconds) / side
    chunks = np.maximum((new * side + running) / loop.chunk, 1.0)
    hidden = chunks * np.minimum(decode.device_s, decode.seconds)
    return np.maximum(both.device_s - base.device_s, both.host_s - hidden) / side


def prefilled_together(loop: Loop, step_s: np.ndarray, alone_s: np.ndarray) -> np.ndarray:
    """Prompts that are prefilled together: as many as arrive at the rate of the loop, which they slow down, and no
    fewer than answers that end in one step. [1]"""
    most = np.minimum(loop.running, np.maximum(loop.placement.deployment.options.dp_attention, loop.chunk / loop.new))
    side = np.ones_like(loop.running)
    _, joined = held_steps(loop.placement.deployment, loop.running, loop.output, loop.new)
    window_s = loop.placement.deployment.options.receive_interval * step_s
    for _ in range(_SETTLED):
        cycle_s = loop.output * step_s + np.maximum(loop.running - 1, 0) * alone_s / side
        rate = loop.running / cycle_s
        together = joint_prefills(rate * alone_s, rate * window_s) + joined * np.exp(-rate * alone_s)
        side = 0.5 * (side + np.clip(together, 1, np.maximum(most, 1)))
    return np.maximum(side, np.minimum(ended_a_step(loop), most)) if loop.lock_step else side


def ended_a_step(loop: Loop) -> Any:
    """Answers that end in one step.

    A round of them ends over as many steps as even lengths with this spread differ by; and where decoding goes on
    beside prefills, one more for each forward that the round began with (not in a pipeline, where chunks follow each
    other as fast as steps do).
    """
    beside = loop.placement.deployment.engine.mixes_prefill(loop.placement.deployment.options)
    forwards = loop.running * loop.new / loop.chunk if beside and loop.placement.stages == 1 else 0.0
    return loop.running / np.maximum(np.sqrt(12) * loop.spread * loop.output + forwards, 1.0)


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
    held = np.maximum(loop.placement.deployment.options.dp_attention, loop.chunk / loop.new)
    late = at_once(loop, times)
    if not loop.placement.deployment.engine.mixes_prefill(loop.placement.deployment.options):
        late = 1.0 + (late - 1.0) * (1 + np.minimum(held / late, 1.0)) / 2  # they come in one batch: half are behind it
    return benchmark_wait_s(together, alone, loop.rounds, np.maximum(loop.running, 1.0), late, held)


def at_once(loop: Loop, times: Times) -> Any:
    """Answers that end from one until the prefill that follows on it begins: a prompt needs its time in the front end,
    and the steps that come before."""
    deployment = loop.placement.deployment
    options, engine = deployment.options, deployment.engine
    # equal answers end with no prefill between them, others beside those of a steady loop, chunks leave half out
    mixed = np.where(loop.spread == 0, 0.0, 0.5 if engine.mixes_prefill(options) else 1.0)
    beside = times.decode.seconds + mixed * (times.tpot - times.decode.seconds)
    step = gained(options) * beside
    before = steps_before_s(deployment, loop.running, beside, loop.running / ended_a_step(loop), loop.new)
    late = 0.5 + (before + FRONT.alone_s(loop.new + loop.cached)) / step
    return np.clip(ended_a_step(loop) * late, 1.0, np.maximum(loop.running, 1.0))


def together_s(loop: Loop, table: dict[str, Any]) -> Any:
    """Until the last of the prompts that begin together has its token: the engine's time or the front end's. [s]"""
    engine = _prefill(loop, loop.new * loop.running, loop.cached, table, loop.running).seconds
    return np.maximum(engine, loop.running * FRONT.occupied_s(loop.new + loop.cached))


def steps_before_s(deployment: Deployment, running: Any, tpot: Any, output: Any, new: Any) -> Any:
    """Steps of others that come first: half of the one under way, or of those until the engine looks; the next, where
    that is made up already; and those in which the prompt waits for others. [s]"""
    looks = np.minimum(deployment.options.receive_interval, output)  # an empty engine looks at once
    steps = 0.5 * looks + deployment.engine.schedules_ahead(deployment.options)
    held, joined = held_steps(deployment, running, output, new)
    steps = steps + held * (1 + joined / 2) / (1 + joined)
    return steps * gained(deployment.options) * np.clip(running - 1, 0.0, 1.0) * tpot


def held_steps(deployment: Deployment, running: Any, output: Any, new: Any) -> tuple[Any, Any]:
    """Steps for which the first prompt waits for others, and how many come meanwhile: one a stream and answer."""
    options = deployment.options
    each = running / output  # prompts that come in a step
    enough = np.maximum((options.batch_wait_ratio * (options.prefill_chunk or np.inf) - running) / new - 1, 0.0)
    held = np.minimum(options.batch_wait_steps, enough / np.maximum(each, 1e-12))
    return held, held * each


def _begun(loop: Loop, times: Times) -> Any:
    """A prefill, after the steps that others make first. [s]"""
    before = steps_before_s(loop.placement.deployment, loop.running, times.tpot, loop.output, loop.new)
    return times.prefill.seconds + before


def _queue(copies: np.ndarray, running: np.ndarray, tpot: Any, prefill_s: Any, output: float) -> Any:
    """Median wait of a request beyond the running set: the share of the loop that it spends outside. [s]"""
    return (copies - running) / running * request_s(prefill_s, tpot, output)
