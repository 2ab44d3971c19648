"""The question behind `pm.predict`: a fixed number of requests in flight, or a rate of arrivals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, shown
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.open_loop import open_loop

MOST_POINTS = 10_000


def predict(
    deployment: Deployment,
    *,
    concurrency: Any = None,
    request_rate: Any = None,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
) -> ServingCurve:
    """Throughput, TTFT and TPOT of a deployment, in steady state.

    Give ``concurrency`` (requests in flight over the whole deployment) or ``request_rate`` (Poisson arrivals per
    second). ``input_tokens`` and ``output_tokens`` are numbers or distributions; mean and spread enter. ``arrival``
    says how a pipeline's slots are filled: "burst" (SGLang's default: requests that come together crowd into one slot)
    or "staggered" (vLLM's default, and where long runs end up); rates arrive staggered.
    """
    inputs, outputs = parse_lengths(input_tokens), parse_lengths(output_tokens)
    if (concurrency is None) == (request_rate is None):
        raise BadInput("give either concurrency or request_rate")
    if concurrency is not None:
        return closed_loop(deployment, _points("concurrency", concurrency, 1.0, 1e7), inputs, outputs, arrival)
    return open_loop(
        deployment, _points("request_rate", request_rate, 1e-6, 1e6), inputs, outputs, arrival or "staggered"
    )


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
