"""The end of a batch job: the queue is empty and the last answers drain at a shrinking batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfmodel.serving.lengths import Lengths

_POINTS = 400


def survival(lengths: Lengths, tokens: np.ndarray) -> np.ndarray:
    """Share of answers longer than ``tokens``; what the words of the distribution say."""
    kind, _, rest = lengths.words.partition(":")
    if lengths.values:
        return 1.0 - np.searchsorted(lengths.values, tokens, side="right") / len(lengths.values)
    if kind == "falling":
        return np.clip(1 - tokens / (3 * float(rest)), 0.0, 1.0) ** 2
    if kind == "uniform":
        low, high = (float(x) for x in rest.split(":"))
        return np.clip((high - tokens) / max(high - low, 1e-9), 0.0, 1.0)
    if kind == "lognormal":
        from math import erf, log, sqrt

        mean, sigma = (float(x) for x in rest.split(":"))
        mu = log(mean) - sigma**2 / 2
        z = (np.log(np.maximum(tokens, 1e-9)) - mu) / sigma
        return np.array([0.5 * (1 - erf(float(v) / sqrt(2))) for v in z])
    return np.where(tokens < lengths.mean, 1.0, 0.0)


def residual(lengths: Lengths, tokens: np.ndarray) -> np.ndarray:
    """Share of the sequences in flight at a random time that need more than ``tokens`` further steps.

    The equilibrium distribution of renewal theory: the integral of the survival function beyond, over the mean.
    """
    rest = survival(lengths, tokens)
    widths = np.diff(tokens)
    pieces = 0.5 * (rest[1:] + rest[:-1]) * widths
    beyond = np.concatenate([np.cumsum(pieces[::-1])[::-1], [0.0]])
    return np.minimum(beyond / max(beyond[0], 1e-12), 1.0)


def drain(
    lengths: Lengths, running: float, step_s: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds since the queue went empty, and the sequences that still run then, until the last of ``running`` ends.

    ``step_s`` gives the time of a step at a batch. The last sequence is the one that a share 1 / (2 running) outlives.
    """
    longest = lengths.mean * max(2.0, np.exp(6 * np.sqrt(np.log1p(lengths.spread**2))))
    grid = np.concatenate([[0.0], np.geomspace(1.0, longest, _POINTS)])
    left = running * residual(lengths, grid)
    alive = left >= 0.5
    times = step_s(np.maximum(left, 1.0))
    pieces = 0.5 * (times[1:] + times[:-1]) * np.diff(grid) * (alive[1:] | alive[:-1])
    return np.concatenate([[0.0], np.cumsum(pieces)]), np.where(alive, left, 0.0)


def drain_s(lengths: Lengths, running: float, step_s: Callable[[np.ndarray], np.ndarray]) -> float:
    """Seconds from the moment the queue is empty until the last of ``running`` sequences ends. [s]"""
    return float(drain(lengths, running, step_s)[0][-1])
