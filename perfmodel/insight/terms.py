"""Which single term or setting, moved, brings the prediction onto measured throughput: each is asked of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import PerfModelError
from perfmodel.insight.variants import changed, with_factors
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.lengths import parse_lengths
from perfmodel.step import prefill, step
from perfmodel.step.factors import factors_of
from perfmodel.step.slots import arrival_of

_PROBE = 0.05       # move of a factor's logarithm that gives its slope
_SHOWN = 4


KINDS = ("rate", "tpot", "step", "prefill")


@dataclass(frozen=True)
class SpeedPoint:
    """A measured speed and its conditions. ``kind``: output tokens/s of all requests in flight (rate), of one request
    after its first (tpot), decode steps/s of ``concurrency`` sequences with ``context`` cached tokens, prefills/s."""

    concurrency: float
    tok_s: float
    input_tokens: float = 1024.0
    output_tokens: float = 1024.0
    kind: str = "rate"
    context: float = 0.0


@dataclass(frozen=True)
class Explanation:
    """One way to explain: what is moved, how far (factor, and standard deviations of its prior), what error is left."""

    name: str
    factor: float | None
    deviations: float | None
    error_before: float     # root mean square of the log ratio measured / predicted
    error_after: float

    @property
    def text(self) -> str:
        """In words."""
        left = f"error {100 * self.error_before:.0f} % -> {100 * self.error_after:.0f} %"
        if self.factor is None:
            return f"{self.name}: {left}"
        return f"{self.name} x{self.factor:.2f} ({self.deviations:+.1f} sd of its prior): {left}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "factor": self.factor, "deviations": self.deviations,
                "error_before": self.error_before, "error_after": self.error_after}


Band = tuple[float, float, float]


def explain_speed(
    d: Deployment, points: Sequence[SpeedPoint], arrival: str | None = None
) -> tuple[list[Band], tuple[Explanation, ...]]:
    """Predicted rate of every point with its band, and the explanations, the likeliest first.

    A setting (filling of slots, graphs, NCCL variant, kind of prompts) is tried as it is. A calibrated factor is moved
    by the amount that fits the points best, and costs what its prior makes of so large a move: the score is the squared
    error left, in units of the residual of the calibration, plus the squared move in standard deviations.
    """
    bands = [_band(d, p, arrival) for p in points]
    target = np.log([p.tok_s for p in points])
    base = np.log([band[0] for band in bands])
    gap = target - base
    before = float(np.sqrt(np.mean(gap**2)))
    factors = factors_of(d)
    noise = max(factors.residual_sd, 0.02)
    found: list[tuple[float, Explanation]] = []
    for name, variant, how in _settings(d, arrival):
        try:
            rates = np.log([_band(variant, p, how)[0] for p in points])
        except PerfModelError:
            continue
        left = float(np.sqrt(np.mean((target - rates) ** 2)))
        found.append((len(points) * (left / noise) ** 2 + 1.0, Explanation(name, None, None, before, left)))
    for name, value, sd in zip(factors.names, factors.values, factors.sd, strict=True):
        if sd <= 0 or value <= 0:
            continue
        moved = with_factors(d, {name: float(value * np.exp(_PROBE))})
        slope = (np.log([_band(moved, p, arrival)[0] for p in points]) - base) / _PROBE
        weight = float(slope @ slope) / noise**2 + 1 / sd**2
        step = float(slope @ gap) / noise**2 / weight
        left = float(np.sqrt(np.mean((gap - slope * step) ** 2)))
        score = len(points) * (left / noise) ** 2 + (step / sd) ** 2
        found.append((score, Explanation(name, float(np.exp(step)), step / sd, before, left)))
    better = [item for item in found if item[1].error_after < 0.9 * before]
    better.sort(key=lambda item: item[0])
    return bands, tuple(e for _, e in better[:_SHOWN])


def _band(d: Deployment, p: SpeedPoint, arrival: str | None) -> Band:
    """What the model says about a point, with its band."""
    if p.kind in ("step", "prefill"):
        cost = (step(d, batch=p.concurrency, context=p.context, arrival=arrival) if p.kind == "step"
                else prefill(d, tokens=p.input_tokens * p.concurrency, context=p.context))
        return 1 / float(cost.seconds), 1 / float(cost.seconds_high), 1 / float(cost.seconds_low)
    curve = closed_loop(d, np.array([p.concurrency]), parse_lengths(p.input_tokens), parse_lengths(p.output_tokens),
                        arrival)
    if p.kind == "tpot":
        value, low, high = (float(band[0]) for band in curve.tpot_s)
        return 1 / value, 1 / high, 1 / low
    value, low, high = (float(band[0]) for band in curve.output_tok_s)
    return value, low, high


def _settings(d: Deployment, arrival: str | None) -> Iterator[tuple[str, Deployment, str | None]]:
    """What may be other than the launch line says, or than was assumed."""
    o = d.options
    if o.pp > 1:
        now = arrival_of(o, arrival)
        other = "staggered" if now == "burst" else "burst"
        yield f"slots filled {other} rather than {now}", d, other
    yield (f"CUDA graphs {'off' if o.cuda_graphs else 'on'} after all",
           changed(d, {"cuda_graphs": not o.cuda_graphs}), arrival)
    found = d.node.collectives
    for variant in found.variants if found and not o.nccl and o.world > 1 else ():
        if found is not None and variant != found.default:
            yield f"NCCL is {variant!r} rather than {found.default!r}", changed(d, {"nccl": variant}), arrival
    if d.facts.experts:
        other = "identical" if o.prompts == "random" else "random"
        yield f"prompts are {other}: experts are picked accordingly", changed(d, {"prompts": other}), arrival
