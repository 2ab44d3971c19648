"""The question behind `pm.predict`: a fixed number of requests in flight, or a rate of arrivals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, UnknownName, is_number, shown
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.disaggregated import disaggregated
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.loop import ROUNDS
from perfmodel.serving.open_loop import open_loop
from perfmodel.serving.service import Service, engine_of, imbalance, prompt_of, with_limits, with_offload, with_router
from perfmodel.serving.validity import claim
from perfmodel.step.slots import arrival_of

MOST_POINTS = 10_000


def predict(
    deployment: Deployment,
    *,
    concurrency: Any = None,
    request_rate: Any = None,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
    requests: Any = None,
    disaggregation: Any = None,
    kv_bandwidth: float | None = None,
    **service: Any,
) -> ServingCurve:
    """Throughput, TTFT and TPOT of a deployment, in steady state.

    Give ``concurrency`` (requests in flight over the whole deployment) or ``request_rate`` (Poisson arrivals per
    second). With ``concurrency``, TTFT is the mean over a benchmark of so many ``requests`` (default: ten times the
    concurrency) whose first ones come all at once. ``input_tokens`` and ``output_tokens`` are numbers or distributions;
    mean and spread enter. ``arrival`` says how a pipeline's slots are filled: "burst" (crowded into one slot: vLLM's
    way, and SGLang's where requests come together) or "staggered" (evenly: SGLang's at a rate, TensorRT-LLM's).
    ``disaggregation`` such as "2:6" makes two copies of the deployment prefill and six decode, ``kv_bandwidth`` apart.
    ``service`` takes the fields of `Service`: images and tokens_per_image, router, offload_hit_rate, offload_from,
    offload_bandwidth, ttft_limit_s, tpot_limit_s.
    """
    extra = _service(service)
    extra.check(deployment)
    inputs, outputs = parse_lengths(input_tokens, "input_tokens"), parse_lengths(output_tokens)
    inputs, notes = prompt_of(extra, inputs)
    if (concurrency is None) == (request_rate is None):
        raise BadInput("give either concurrency or request_rate")
    flight = None if concurrency is None else _points("concurrency", concurrency, 1.0, 1e7)
    rates = None if request_rate is None else _points("request_rate", request_rate, 1e-6, 1e6)
    rounds = _rounds(requests, flight)
    if requests is None and (extra.ttft_limit_s or extra.tpot_limit_s):
        rounds = np.inf  # who asks for goodput asks for a service that lasts
    engine = engine_of(extra, deployment)
    if disaggregation is not None and extra.router != "even":
        raise BadInput(f"router={extra.router!r} and disaggregation do not go together; pools are fed evenly")
    if disaggregation is not None:
        curve = disaggregated(engine, flight, rates, inputs, outputs, disaggregation, kv_bandwidth)
    elif flight is not None:
        curve = closed_loop(engine, flight, inputs, outputs, arrival, rounds=rounds)
    else:
        assert rates is not None
        curve = open_loop(engine, rates, inputs, outputs, arrival_of(engine.options, arrival, lasting=True))
    notes.append(claim(engine, np.asarray(curve.running), inputs, outputs))
    curve = replace(curve, assumptions=(*curve.assumptions, *notes))
    if extra.router != "even" and disaggregation is None:
        crowded = np.maximum(curve.running * imbalance(extra, curve, outputs), 1.0)
        curve = with_router(curve, closed_loop(engine, crowded, inputs, outputs, arrival, False), extra, outputs)
    return with_limits(with_offload(curve, extra, deployment, inputs), extra, outputs)


def _rounds(requests: Any, flight: np.ndarray | None) -> Any:
    """Requests a stream of a closed loop."""
    if requests is None:
        return ROUNDS
    if flight is None:
        raise BadInput("requests says how long a run with concurrency is; a request_rate has no end")
    if not is_number(requests) or not float(np.max(flight)) <= requests <= 1e12:
        raise BadInput(f"requests must be a number of at least the concurrency, {np.max(flight):g}, not "
                       f"{shown(requests)}")
    return float(requests) / flight


def _service(given: dict[str, Any]) -> Service:
    known = [field.name for field in fields(Service)]
    for name in given:
        if name not in known:
            raise UnknownName("keyword of predict", name, known)
    return Service(**given)


def _points(name: str, value: Any, least: float, most: float) -> np.ndarray:
    try:
        many = isinstance(value, Iterable) and not isinstance(value, str)
        array = np.atleast_1d(np.asarray(list(value) if many else value, float))
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a number or a list of numbers, not {shown(value)}") from None
    if array.size > MOST_POINTS:
        raise BadInput(f"{name}: {array.size:,} points asked for; at most {MOST_POINTS:,} are answered at once")
    if (
        array.ndim != 1
        or array.size == 0
        or not np.all(np.isfinite(array))
        or np.any(array < least)
        or np.any(array > most)
    ):
        raise BadInput(f"{name} must lie between {least:g} and {_short(most)}, not {shown(value)}")
    return array


def _short(value: float) -> str:
    """A bound as people write it.

    >>> _short(1e7)
    '1e7'
    """
    return f"{value:g}".replace("e+0", "e")
