"""Open-loop serving: requests arrive at a rate. The running set follows from the closed loop by Little's law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.costs.serving import queue_wait_quantile_s, queue_wait_s
from perfmodel.deployment import Deployment
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import Band, ServingCurve
from perfmodel.serving.frontend import FRONT
from perfmodel.serving.lengths import Lengths
from perfmodel.serving.loop_times import steps_before_s

_GRID = 64


def open_loop(
    deployment: Deployment, rates: np.ndarray, inputs: Lengths, outputs: Lengths, arrival: str | None = None
) -> ServingCurve:
    """Throughput, TTFT and TPOT at each rate of Poisson arrivals per second.

    The running set is the concurrency whose closed-loop throughput equals the rate. Above the capacity the queue grows
    without bound: throughput is the capacity, TTFT has no value, and a warning says so.
    """
    limit = closed_loop(deployment, np.array([1.0]), inputs, outputs, arrival).limit
    grid = np.unique(np.geomspace(1.0, max(2.0, limit), _GRID))
    known = closed_loop(deployment, grid, inputs, outputs, arrival, rounds=np.inf, lock_step=False)
    served = np.maximum.accumulate(known.output_tok_s[0] / outputs.mean)  # requests a second at each concurrency
    capacity = float(served[-1])
    # Below one request in flight the server is idle part of the time: concurrency is then rate times latency.
    flight = np.where(rates < served[0], 1.0, np.interp(rates, served, grid))
    curve = closed_loop(deployment, flight, inputs, outputs, arrival, rounds=np.inf, lock_step=False)
    over = rates > capacity
    busy = np.minimum(rates / capacity, 1.0)
    copies = np.maximum(flight / deployment.options.dp, 1.0)
    new = inputs.mean * (1 - deployment.options.prefix_hit_rate)
    before = steps_before_s(deployment, copies, curve.tpot_s[0], outputs.mean, new)
    # what others' prefills add to the steps that come first is waited for in the queue below, and only there
    twice = steps_before_s(deployment, copies, curve.parts.get("prefill of others", 0.0), outputs.mean, new)
    prefill = np.maximum(curve.ttft_s[0] - FRONT.alone_s(inputs.mean) - before, 0.0)
    beside = _beside(curve, deployment, prefill, outputs.mean)
    service = prefill + beside
    load = np.minimum(rates / deployment.options.dp * service, 0.999)
    wait = queue_wait_s(load, service, 1.0 + inputs.spread**2)
    extra = beside - twice
    ttft = _waiting(curve.ttft_s, extra + queue_wait_quantile_s(load, wait, 0.5), over)
    tokens = np.minimum(rates, capacity) * outputs.mean
    low, high = (
        np.minimum(values, rates * outputs.mean)
        for values in (tokens * known.output_tok_s[i][-1] / known.output_tok_s[0][-1] for i in (1, 2))
    )
    band = (tokens, np.where(busy < 0.8, tokens, low), np.where(over, high, tokens))
    warnings = list(curve.warnings)
    if np.any(over):
        listed = ", ".join(f"{r:g}" for r in rates[over][:4])
        warnings.append(
            f"rates above the capacity of {capacity:.3g} requests/s ({listed}): the queue grows without bound"
        )
    tails = {
        name: np.where(over, np.nan, values + (extra + _tail(load, wait, name) if name.startswith("ttft") else 0.0))
        for name, values in curve.percentiles.items()
    }
    notes = (
        *(line for line in curve.assumptions if not line.startswith("closed loop")),
        "open loop: Poisson arrivals; prefills queue as one server (M/G/1), which overstates the wait above 0.7 of the "
        "capacity",
    )
    running = np.minimum(rates, capacity) * (prefill + outputs.mean * curve.tpot_s[0])
    return replace(
        curve,
        request_rate=rates,
        running=np.minimum(running, limit),
        output_tok_s=band,
        ttft_s=ttft,
        warnings=tuple(warnings),
        assumptions=notes,
        percentiles=tails,
        capacity_req_s=capacity,
    )


def _beside(curve: ServingCurve, deployment: Deployment, prefill: np.ndarray, output: float) -> np.ndarray:
    """What a prompt's forward takes longer than alone where it carries the decode step of whoever runs. [s]"""
    if not deployment.engine.mixes_prefill(deployment.options):
        return np.zeros_like(prefill)
    others = np.maximum(curve.running / deployment.options.dp - 1, 0.0)
    lost = curve.parts.get("prefill of others", np.zeros_like(prefill))
    stall = np.where(others > 0, lost * output / np.maximum(others, 1e-9), 0.0)
    mixed = np.maximum(curve.tpot_s[0] - lost + stall - prefill, 0.0)
    return np.minimum(others, 1.0) * mixed


def _tail(load: np.ndarray, wait: np.ndarray, name: str) -> np.ndarray:
    """Wait beyond which a percentile such as ttft_p95 begins."""
    return np.asarray(queue_wait_quantile_s(load, wait, 1 - float(name.rpartition("_p")[2]) / 100))


def _waiting(band: Band, wait: np.ndarray, over: np.ndarray) -> Band:
    """TTFT with the wait for the prefill before; no value where the queue grows without bound."""
    point, low, high = (np.where(over, np.nan, values + wait) for values in band)
    return point, low, high
