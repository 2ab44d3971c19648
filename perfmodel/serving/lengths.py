"""How long prompts and answers are: a number, a distribution, or the lengths in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import Any

from perfmodel.errors import BadInput, is_number, shown, whole

KINDS = "a number, uniform:LOW:HIGH, lognormal:MEAN:SIGMA, falling:MEAN or file:NAME[:COLUMN]"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts. ``spread`` is its coefficient of variation; ``values`` are its lengths, sorted,
    where it comes from a file."""

    mean: float
    spread: float
    words: str
    values: tuple[int, ...] = field(default=(), repr=False)

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


def falling(mean: float) -> Lengths:
    """Short answers are the most frequent, in a straight line down to three times the mean: chats, roughly.

    >>> falling(200).spread == 0.5**0.5
    True
    """
    at = _positive("mean", mean)
    return Lengths(at, 0.5**0.5, f"falling:{at:g}")


def empirical(values: Sequence[int], words: str) -> Lengths:
    """The lengths themselves.

    >>> empirical([100, 300, 200], "file:x.csv").mean
    200.0
    """
    import numpy as np

    if not len(values):
        raise BadInput(f"{words} holds no lengths")
    array = np.sort(np.asarray(values))
    if array[0] < 1 or array[-1] > 1e9:
        raise BadInput(f"{words}: lengths must lie between 1 and 1e9 tokens, not {array[0]:g} to {array[-1]:g}")
    mean = float(array.mean())
    return Lengths(mean, float(array.std() / mean), words, tuple(array.astype(int).tolist()))


def parse_lengths(value: Any, default: str = "output_tokens") -> Lengths:
    """A number, a `Lengths`, or text such as ``uniform:800:1000``, ``lognormal:2500:0.8`` or ``file:lengths.csv``.

    ``default`` is the column of a file that has several and names none.

    >>> parse_lengths("uniform:800:1000").mean
    900.0
    """
    if isinstance(value, Lengths):
        return value
    if is_number(value):
        return fixed(value)
    text = (value if isinstance(value, str) else shown(value)).strip()
    kind, _, rest = text.partition(":")
    kind = kind.lower()
    if kind == "file":
        from perfmodel.serving.length_files import read_lengths

        return read_lengths(rest, default)
    try:
        numbers = [float(part.replace("_", "")) for part in (rest or kind).split(":")]
    except ValueError:
        numbers = []
    if not rest and len(numbers) == 1:
        return fixed(numbers[0])
    if kind in ("uniform", "lognormal") and len(numbers) == 2:
        return uniform(*numbers) if kind == "uniform" else lognormal(*numbers)
    if kind == "falling" and len(numbers) == 1:
        return falling(*numbers)
    raise BadInput(f"{shown(value)} is not a length; write {KINDS}")


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a number of tokens, not {shown(value)}") from None
    if isinstance(value, bool) or not 1 <= number <= 1e9:
        raise BadInput(f"{name} must lie between 1 and 1e9 tokens, not {shown(value)}")
    return number


def quantiles(lengths: Lengths, share: Any) -> Any:
    """Lengths below which these shares of the distribution lie."""
    import numpy as np

    share = np.asarray(share, float)
    kind, _, rest = lengths.words.partition(":")
    if lengths.values:
        place = (share * len(lengths.values)).astype(int)
        return np.asarray(lengths.values)[np.minimum(place, len(lengths.values) - 1)]
    if kind == "uniform":
        low, high = (float(x) for x in rest.split(":"))
        return low + share * (high - low)
    if kind == "falling":
        return 3 * float(rest) * (1 - np.sqrt(1 - share))
    if kind == "lognormal":
        from statistics import NormalDist

        mean, sigma = (float(x) for x in rest.split(":"))
        normal = NormalDist(log(mean) - sigma**2 / 2, sigma)
        edge = 0.5 / max(share.size, 2)
        grid = np.linspace(edge, 1 - edge, min(max(share.size, 2), 4096))
        return np.exp(np.interp(share, grid, [normal.inv_cdf(float(q)) for q in grid]))
    return np.full(share.shape, lengths.mean)


def sample(lengths: Lengths, count: int, seed: int = 0) -> Any:
    """So many whole lengths of the distribution: its evenly spaced quantiles in a shuffled order.

    Stratified, so that the mean is right even for a few; the seed decides the order alone.
    """
    import numpy as np

    seed = whole("seed", seed, 0)
    values = quantiles(lengths, (np.arange(count) + 0.5) / count)
    return np.random.default_rng(seed).permutation(np.maximum(np.round(values), 1)).astype(int)
