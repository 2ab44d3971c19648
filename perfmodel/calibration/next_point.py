"""Which measurement would narrow the bands most: what each candidate would take off the variance of the predictions.

The posterior is Gaussian, so a measurement's worth is known before it is made: its covariance with the predictions,
squared, over its own variance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from perfmodel.calibration.measured import Measurement, series_of
from perfmodel.calibration.posterior import NOISE, Posterior, Problem
from perfmodel.deployment import Deployment, varied
from perfmodel.errors import PerfModelError
from perfmodel.serving.lengths import fixed
from perfmodel.serving.loop import loop_of
from perfmodel.step.factors import Z80

LENGTHS = (1024.0, 1024.0)      # of prompt and answer where no row has both
MOST_BATCH = 256.0
LONGER = 8.0                    # times the prompt, as the other context


@dataclass(frozen=True, slots=True)
class Candidate:
    """A measurement that could be made, and the half-width of the 80 % band before and after it.

    The half-width is the root mean square over the deployment's own predictions: all batches, short and long prompts.
    """

    concurrency: float
    input_tokens: float
    output_tokens: float
    strategy: str
    cuda_graphs: bool
    before: float
    after: float

    @property
    def words(self) -> str:
        """In a line."""
        graphs = "" if self.cuda_graphs else ", eager"
        return f"{self.strategy}{graphs}: {self.concurrency:g} in flight, {self.input_tokens:g} in"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = asdict(self)
        return {**{k: v for k, v in found.items() if k not in ("before", "after")},
                "half_width_now": self.before, "half_width_then": self.after}


def next_points(found: Posterior, deployment: Deployment, rows: Sequence[Measurement], most: int = 8
                ) -> tuple[Candidate, ...]:
    """Candidates by the variance that they would take off the predictions of this deployment, best first."""
    short, answer = _lengths(rows)
    targets = _sweep(deployment, short, answer)
    slopes, curve, batch = _slopes(found, deployment, targets)
    groups = [(deployment, targets, slopes, curve, batch)]
    for other in _variants(deployment):
        asked = _sweep(other, short, answer)
        try:
            theirs = _slopes(found, other, asked)
        except PerfModelError:
            continue
        groups.append((other, asked, theirs[0], np.zeros(len(asked)), theirs[2]))   # the curve is this deployment's
    everything, bends, where = (np.concatenate([group[i] for group in groups]) for i in (2, 3, 4))
    joint = found.prediction(everything, bends, where)
    count = len(targets)
    now = np.diag(joint)[:count]
    gain = joint[:count] ** 2 / (np.diag(joint) + NOISE**2)
    then = np.mean(now[:, None] - gain, axis=0)
    flat = [(group[0], row) for group in groups for row in group[1]]
    order = np.argsort(then, kind="stable")[:most]
    return tuple(_candidate(flat[i][0], flat[i][1], float(np.mean(now)), float(then[i])) for i in order)


def _candidate(deployment: Deployment, row: Measurement, now: float, then: float) -> Candidate:
    width = [float(np.expm1(Z80 * np.sqrt(max(variance, 0.0) + NOISE**2))) for variance in (now, then)]
    return Candidate(row.load, row.input_tokens, row.output_tokens, deployment.name,
                     bool(deployment.options.cuda_graphs), *width)


def _lengths(rows: Sequence[Measurement]) -> tuple[float, float]:
    """Prompt and answer that the rows have most often."""
    both = [(row.input_tokens, row.output_tokens) for row in rows if row.input_tokens and row.output_tokens > 1]
    return max(both, key=both.count) if both else LENGTHS


def _sweep(deployment: Deployment, prompt: float, answer: float) -> list[Measurement]:
    """Powers of two in flight up to what runs at once, with a short and, where it fits, a long prompt."""
    limit = float(loop_of(deployment, np.array([1.0]), fixed(prompt), fixed(answer)).limit) * deployment.options.dp
    top = min(limit, MOST_BATCH * deployment.options.dp)
    loads = 2.0 ** np.arange(int(np.log2(max(top, 1.0))) + 1)
    room = float(deployment.options.context or deployment.facts.max_context)
    prompts = [prompt, *([LONGER * prompt] if LONGER * prompt + answer <= room else [])]
    return [Measurement("tpot", 1.0, float(load), tokens, answer) for tokens in prompts for load in loads]


def _slopes(found: Posterior, deployment: Deployment, rows: list[Measurement]
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    plain = replace(deployment, calibration=deployment.calibration.model_copy(update={"difference": None}))
    batch = np.maximum(np.array([row.load for row in rows]) / deployment.options.dp, 1.0)
    problem = Problem(tuple(series_of(plain, rows)), batch, ())
    _, slopes, curve = problem.linear(found.fit.factors, found.fit.names)
    return slopes, curve, batch


def _variants(deployment: Deployment) -> Iterator[Deployment]:
    """The same with graphs switched, and with half and twice the tensor parallelism."""
    from dataclasses import fields

    requested = deployment.requested
    given = {f.name: getattr(requested, f.name) for f in fields(requested) if f.name not in ("engine", "version")}
    changes: list[dict[str, Any]] = [{"cuda_graphs": not deployment.options.cuda_graphs}]
    if requested.dp_attention == requested.ep == requested.dcp == 1:
        changes += [{"tp": tp} for tp in (requested.tp // 2, requested.tp * 2) if tp >= 1]
    for change in changes:
        try:
            yield varied(deployment, **{**given, **change})
        except PerfModelError:
            continue
