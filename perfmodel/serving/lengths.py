"""How long prompts and answers are: a number or a distribution. Only the mean enters the closed forms so far."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

from perfmodel.errors import BadInput, is_number, shown


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts. ``spread`` is its coefficient of variation."""

    mean: float
    spread: float
    words: str

    def __repr__(self) -> str:
        return self.words


def fixed(tokens: Any) -> Lengths:
    """Every length the same."""
    return Lengths(_positive("length", tokens), 0.0, f"{float(tokens):g}")


def uniform(low: float, high: float) -> Lengths:
    """Whole lengths between two bounds, evenly.

    >>> uniform(800, 1000).mean
    900.0
    """
    a, b = _positive("low", low), _positive("high", high)
    if b < a:
        raise BadInput(f"uniform:{a:g}:{b:g} has its bounds the wrong way round")
    return Lengths((a + b) / 2, (b - a) / sqrt(12) / ((a + b) / 2), f"uniform:{a:g}:{b:g}")


def lognormal(mean: float, sigma: float) -> Lengths:
    """Lengths whose logarithm is normal; ``mean`` is the mean length, ``sigma`` the deviation of the logarithm.

    >>> round(lognormal(mean=2500, sigma=0.8).spread, 2)
    0.95
    """
    if not is_number(sigma) or not 0 < sigma < 5:
        raise BadInput(f"sigma must lie between 0 and 5, not {shown(sigma)}")
    at, width = _positive("mean", mean), float(sigma)
    return Lengths(at, sqrt(exp(width**2) - 1), f"lognormal:{at:g}:{width:g}")


def parse_lengths(value: Any) -> Lengths:
    """A number, a `Lengths`, or text such as ``uniform:800:1000`` or ``lognormal:2500:0.8``.

    >>> parse_lengths("uniform:800:1000").mean
    900.0
    """
    if isinstance(value, Lengths):
        return value
    if is_number(value):
        return fixed(value)
    text = (value if isinstance(value, str) else shown(value)).strip().lower()
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part.replace("_", "")) for part in (rest or kind).split(":")]
    except ValueError:
        numbers = []
    if not rest and len(numbers) == 1:
        return fixed(numbers[0])
    if kind in ("uniform", "lognormal") and len(numbers) == 2:
        return uniform(*numbers) if kind == "uniform" else lognormal(*numbers)
    raise BadInput(f"{shown(value)} is not a length; write a number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA")


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a number of tokens, not {shown(value)}") from None
    if isinstance(value, bool) or not 1 <= number <= 1e9:
        raise BadInput(f"{name} must lie between 1 and 1e9 tokens, not {shown(value)}")
    return number


def sample(lengths: Lengths, count: int, seed: int = 0) -> Any:
    """So many whole lengths of the distribution: its evenly spaced quantiles in a shuffled order.

    Stratified, so that the mean is right even for a few; the seed decides the order alone.
    """
    import numpy as np

    share = (np.arange(count) + 0.5) / count
    kind, _, rest = lengths.words.partition(":")
    if kind == "uniform":
        low, high = (float(x) for x in rest.split(":"))
        values = low + share * (high - low)
    elif kind == "lognormal":
        from statistics import NormalDist

        mean, sigma = (float(x) for x in rest.split(":"))
        normal = NormalDist(log(mean) - sigma**2 / 2, sigma)
        grid = np.linspace(0.5 / max(count, 2), 1 - 0.5 / max(count, 2), min(count, 4096))
        values = np.exp(np.interp(share, grid, [normal.inv_cdf(float(q)) for q in grid]))
    else:
        values = np.full(count, lengths.mean)
    return np.random.default_rng(seed).permutation(np.maximum(np.round(values), 1)).astype(int)
