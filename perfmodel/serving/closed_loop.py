"""Closed-loop serving: a fixed number of requests in flight, each a prefill and its decode steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.costs.serving import closed_loop_tpot_s, lived_tokens, request_s
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput
from perfmodel.placement import Placement, place
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.lengths import Lengths
from perfmodel.step import forward
from perfmodel.step.cost import binds, bound_of, first
from perfmodel.step.factors import factors_of
from perfmodel.step.memory import kv_pool, running_limit
from perfmodel.step.operations import Row, mapped
from perfmodel.step.slots import occupancy

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
    options, placement = deployment.options, place(deployment)
    pool = kv_pool(placement)
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
    copies = asked / options.dp
    running = np.minimum(copies, limit)
    if np.any(copies > limit):
        warnings.append(f"at most {limit * options.dp:,.0f} sequences run at once; the rest waits in the queue")
    new = inputs.mean * (1 - options.prefix_hit_rate)
    factors = factors_of(deployment)
    table = factors.draws(2) if uncertain else factors.point(2)
    slots = occupancy(deployment, running, running_limit(placement, pool), arrival)
    decode = forward.decode(placement, running, inputs.mean + lived, table, slots)
    prefill = forward.prefill(placement, np.full_like(running, new), inputs.mean - new, table)
    rate_of_one = running / (outputs.mean * first(decode.seconds, running.shape))
    stall = _stall(placement, running, rate_of_one, new, inputs.mean - new, table)
    tpot = closed_loop_tpot_s(decode.seconds, stall, running, outputs.mean, table["prefill_interference"][:, 0])
    ttft = prefill.seconds + decode.seconds / 2 + _queue(copies, running, tpot, prefill.seconds, outputs.mean)
    whole = request_s(prefill.seconds + decode.seconds / 2, tpot, outputs.mean)
    rate = running * options.dp * outputs.mean / whole
    shape = running.shape
    rows = tuple(mapped(row, lambda value: first(value, shape)) for row in decode.rows)
    return ServingCurve(
        deployment,
        asked,
        running * options.dp,
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
        limit=limit * options.dp,
    )


def _stall(
    placement: Placement, running: np.ndarray, arrivals: np.ndarray, new: float, cached: float, table: dict[str, Any]
) -> Any:
    """What one prefill costs the others. [s]

    Engines that put prompt tokens into the decode batch pay only what the bigger forward takes longer; the others
    stop decoding for the whole prefill. Attention groups prefill side by side what arrives (``arrivals`` a second)
    while one of them is busy.
    """
    options, engine = placement.deployment.options, placement.deployment.engine
    alone = first(forward.prefill(placement, np.full_like(running, new), cached, table).seconds, running.shape)
    side = np.clip(1 + arrivals * alone, 1, np.minimum(running, options.dp_attention))
    if not engine.mixes_prefill(options):
        return forward.prefill(placement, new * side, cached, table, side).seconds / side
    both = forward.prefill(placement, new * side + running, cached, table, side).seconds
    return (both - forward.prefill(placement, running, cached, table, side).seconds) / side


def _notes(deployment: Deployment, placement: Any, rule: str, spread: bool) -> list[str]:
    notes = [
        f"prompts={deployment.options.prompts}: experts picked accordingly",
        "closed loop: a finished request is replaced at once",
        "a running request has made half of its answer, weighted by length",
    ]
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
