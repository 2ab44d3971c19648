"""Prefill on some engine copies, decode on others: a KV cache travels, and the slower pool sets the pace."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.costs.disaggregation import kv_transfer_s, pools_req_s
from perfmodel.costs.serving import lived_tokens, queue_wait_quantile_s, queue_wait_s
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Unpriced, is_number, shown
from perfmodel.placement import place
from perfmodel.serving.closed_loop import TTFT_SD, closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.frontend import FRONT
from perfmodel.serving.frontend import NOTE as FRONT_NOTE
from perfmodel.serving.lengths import Lengths
from perfmodel.serving.service import TRANSFER_S, kv_bytes_per_token
from perfmodel.step import forward
from perfmodel.step.cost import first
from perfmodel.step.factors import factors_of
from perfmodel.step.slots import occupancy

LINK_BPS = 50e9  # one 400 Gbit/s NIC. Kind: datasheet of ConnectX-7; that it is there: assumed
_GRID = 96


def pools(value: Any) -> tuple[int, int]:
    """Copies for prefill and for decode, as ``2:6``.

    >>> pools("2:6")
    (2, 6)
    """
    parts = value.split(":") if isinstance(value, str) else value
    try:
        prefill, decode = (int(part) for part in parts)
    except (TypeError, ValueError):
        raise BadInput(f"disaggregation must be PREFILL:DECODE copies such as 2:6, not {shown(value)}") from None
    if not 1 <= prefill <= 10_000 or not 1 <= decode <= 10_000:
        raise BadInput(f"disaggregation must be 1 to 10000 copies each, not {shown(value)}")
    return prefill, decode


def disaggregated(
    deployment: Deployment,
    flight: np.ndarray | None,
    rates: np.ndarray | None,
    inputs: Lengths,
    outputs: Lengths,
    copies: Any,
    bandwidth: float | None = None,
) -> ServingCurve:
    """Throughput, TTFT and TPOT with ``flight`` requests in the whole service, or at ``rates`` of arrivals.

    Every copy is this deployment. Prompts queue for the prefill pool as for one server each (M/G/1), travel over
    ``bandwidth``, and decode without any prefill beside them.
    """
    _check(deployment, bandwidth)
    n_prefill, n_decode = pools(copies)
    link = bandwidth or LINK_BPS
    limit = int(closed_loop(deployment, np.array([1.0]), inputs, outputs, "staggered").limit)
    grid = np.unique(np.geomspace(1.0, max(2.0, limit), _GRID))
    factors = factors_of(deployment)
    table = factors.draws(2)
    context = inputs.mean + lived_tokens(outputs.mean, outputs.spread)
    slots = occupancy(deployment, grid, limit, "staggered")
    placement = place(deployment)
    steps = forward.decode(placement, grid, np.full_like(grid, context), table, slots).seconds
    new = inputs.mean * (1 - deployment.options.prefix_hit_rate)
    prompt = forward.prefill(placement, np.array([new]), inputs.mean - new, table).seconds
    way = float(kv_transfer_s(inputs.mean, kv_bytes_per_token(deployment), link, TRANSFER_S))
    answers = (outputs.mean - 1) * first(steps, grid.shape)  # seconds of an answer at each batch of a copy
    alone = float(first(prompt, (1,))[0])
    rate_of_batch = np.maximum.accumulate(grid / np.maximum(answers, 1e-9))
    capacity = float(pools_req_s(n_prefill, alone, n_decode, rate_of_batch[-1]))
    served, wait, batch, asked = _balance(
        flight, rates, capacity, n_prefill, n_decode, alone, FRONT.alone_s(inputs.mean) + way, grid, rate_of_batch,
        answers,
    )
    ttft = (FRONT.alone_s(inputs.mean) + wait + way)[None] + np.broadcast_to(prompt, (len(prompt), len(asked)))
    tpot = np.stack([np.interp(batch, grid, np.broadcast_to(row, grid.shape)) for row in np.atleast_2d(steps)])
    if flight is not None and outputs.mean > 1:  # between two captured batches the step jumps: by Little's law
        tpot = tpot / tpot[0] * np.maximum(flight / served - ttft[0], 0.0) / (outputs.mean - 1)
    rate = served * outputs.mean * tpot[0] / tpot
    slower = alone / n_prefill > 1 / (n_decode * rate_of_batch[-1])
    over = np.zeros(len(asked), bool) if rates is None else rates > capacity
    warnings = [f"the {'prefill' if slower else 'decode'} pool is the slower one: at most {capacity:.3g} requests/s"]
    if np.any(over):
        warnings.append(f"rates above the capacity of {capacity:.3g} requests/s: the queue grows without bound")
    point, low, high = (np.where(over, np.nan, values) for values in factors.band(ttft, TTFT_SD))
    return ServingCurve(
        deployment, asked, np.minimum(batch * n_decode, served * outputs.mean * tpot[0]), factors.band(rate),
        (point, low, high), factors.band(tpot), np.array(["memory"] * len(asked), object),
        {"decode step": tpot[0]}, inputs.mean, outputs.mean, tuple(warnings),
        (*deployment.assumptions, FRONT_NOTE,
         f"{n_prefill} copies prefill and {n_decode} decode: {(n_prefill + n_decode) * deployment.gpus} GPUs in all",
         f"the KV cache of a prompt travels at {link / 1e9:.3g} GB/s in {way * 1e3:.1f} ms"
         + ("" if bandwidth else " (one 400 Gbit/s NIC, assumed)"),
         "prompts queue for each prefill copy as for one server (M/G/1)"),
        request_rate=rates,
        percentiles={f"ttft_p{q}": np.where(over, np.nan, ttft[0] - wait + np.maximum(
            wait, queue_wait_quantile_s(np.minimum(served * alone / n_prefill, 0.9999), wait, 1 - q / 100)))
            for q in (95, 99)},
        limit=float(limit * n_decode), capacity_req_s=capacity,
    )  # fmt: skip


def _balance(
    flight: np.ndarray | None, rates: np.ndarray | None, capacity: float, n_prefill: int, n_decode: int, alone: float,
    way: float, grid: np.ndarray, rate_of_batch: np.ndarray, answers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Requests a second, wait for prefill, batch of a decode copy, and what was asked: by Little's law.

    ``way`` is all that a request passes beside the two pools. In a closed loop a request finds the others only.
    """
    served = capacity * np.linspace(1e-4, 0.9999, 4000)
    load = np.minimum(served * alone / n_prefill, 0.9999)
    waits = queue_wait_s(load, alone, 1.0)
    batches = np.interp(served / n_decode, rate_of_batch, grid)
    lone = np.minimum(served / n_decode * answers[0], 1.0)  # below one request a copy idles part of the time
    beside = served * (alone + way) + n_decode * np.where(batches > 1, batches, lone)
    if rates is not None:
        at = np.minimum(rates, capacity * 0.9999)
        return np.minimum(rates, capacity), np.interp(at, served, waits), np.interp(at, served, batches), rates
    assert flight is not None
    at, wait = np.zeros(len(flight)), np.zeros(len(flight))
    for i, many in enumerate(flight):
        seen = waits * (many - 1) / many
        inside = beside + served * seen
        at[i] = np.interp(many, inside, served)
        queue = max(many - float(np.interp(at[i], served, inside)), 0.0) / max(at[i], 1e-12)
        wait[i] = np.interp(at[i], served, seen) + queue
    return at, wait, np.interp(at, served, batches), flight


def _check(deployment: Deployment, bandwidth: Any) -> None:
    options = deployment.options
    if options.dp > 1:
        raise BadInput("disaggregation counts the copies itself: leave dp at 1")
    if options.engine == "tensorrt-llm":
        raise Unpriced("disaggregated serving of TensorRT-LLM is not modelled")
    if bandwidth is not None and not (is_number(bandwidth) and 1e6 <= bandwidth <= 1e13):
        raise BadInput(f"kv_bandwidth must lie between 1 MB/s and 10 TB/s, not {shown(bandwidth)}")
