"""Closed-loop serving: a fixed number of requests in flight, each a prefill and its decode steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.placement import links_of
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.frontend import NOTE as FRONT_NOTE
from perfmodel.serving.lengths import Lengths
from perfmodel.serving.loop import ROUNDS, Loop, loop_of
from perfmodel.serving.loop_times import Times, at_once, loop_times, rate_of, together_s, tpot_of, ttft_of
from perfmodel.step.cost import binds, bound_of, first
from perfmodel.step.difference import LEARNT, ROW
from perfmodel.step.factors import factors_of
from perfmodel.step.operations import Row, mapped
from perfmodel.step.speculation import gained, widened

# Deviation of the logarithm of a TTFT beyond that of a step: queues, clients, first rounds. Kind: derived. With it 80 %
# of the InferenceX rows lie in their bands, each predicted by a fit without its source.
TTFT_SD = 0.33
GROUPS = {
    "compute": "arithmetic",
    "memory": "memory traffic",
    "latency": "kernel start-up",
    "communication": "communication",
    "host": "host",
    "pipeline": "pipeline",
    LEARNT: ROW,
}


def closed_loop(
    deployment: Deployment,
    asked: np.ndarray,
    inputs: Lengths,
    outputs: Lengths,
    arrival: str | None = None,
    uncertain: bool = True,
    rounds: Any = ROUNDS,
    lock_step: bool = True,
) -> ServingCurve:
    """Throughput, TTFT and TPOT with ``asked`` requests in flight over the whole deployment.

    TTFT is the mean of a run of ``rounds`` requests a stream that all begin at once; infinite rounds: steady state.
    Without ``lock_step`` requests come by chance and not as others end.
    Without ``uncertain`` the bands hold only the residual of the calibration, and the answer comes many times faster.
    """
    loop = loop_of(deployment, asked, inputs, outputs, arrival, rounds=rounds, lock_step=lock_step)
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
        factors.band(_full(ttft, shape), TTFT_SD),
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
            again = start * (first(at_once(loop, times), shape) - 1) / np.maximum(loop.running - 1, 1.0) * q / 100
            early = np.maximum(start * np.maximum(1 - loop.rounds * (1 - q / 100), 0.0), again)
        found[f"ttft_p{q}"] = steady + np.maximum((q / 100 - 0.5) * step, early)
    return found


def _tpot_percentiles(tpot: np.ndarray, stall: np.ndarray, running: np.ndarray, output: float) -> dict[str, np.ndarray]:
    """Upper percentiles of TPOT: the prefills that fall into one answer are Poisson, about one for each neighbour."""
    spread = np.sqrt(np.maximum(running - 1, 0)) * stall / output
    return {f"tpot_p{q}": tpot + z * spread for q, z in ((95, 1.645), (99, 2.326))}


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
