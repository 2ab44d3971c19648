"""Factors and a smooth difference from a few own points: a Gaussian posterior by Gauss-Newton.

The factors have their lognormal priors. What they cannot explain is a Gaussian process over the logarithm of the
batch: images, versions and hosts differ from the model smoothly. Both are found together, so three points will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.calibration.fit import Fit, assembled, changed
from perfmodel.costs.difference import smooth_difference
from perfmodel.insight.observed import Series
from perfmodel.step.difference import FREE
from perfmodel.step.factors import Factors

# All four assumed, and tested by `perfmodel validate own` on sweeps that the prior has not seen
NOISE = 0.04            # between two runs of one benchmark, standard deviation of the logarithm
OWN_SD = 0.10           # another machine, image or version than those that a factor was fitted on
CURVE_SD = 0.10         # of the smooth difference
LENGTH = 1.5            # in the logarithm of the batch: a factor of 4.5
FREEDOM = 4.0           # of Student's t, by which single rows that are far off count less
WRITTEN = 0.01          # of a correlation: many small ones together narrow a band
ROUNDS, STEP, NUDGE, DONE = 12, 0.5, 1e-3, 1e-4


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to be met: series with the place of each of their rows, and the batch of a copy (nan: no curve there)."""

    series: tuple[tuple[Series, list[int]], ...]
    batch: np.ndarray
    labels: tuple[str, ...]

    def linear(self, factors: Factors, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log(predicted / measured), its slopes by the logarithms of the factors, and by the curve."""
        rows, count = len(self.batch), len(names)
        residuals, slopes, curve = np.zeros(rows), np.zeros((rows, count)), np.zeros(rows)
        table = np.tile(factors.values, (count + 2, 1))
        index = [factors.names.index(name) for name in names]
        table[np.arange(1, count + 1), index] *= np.exp(-NUDGE)      # downwards: an efficiency of 1 has no upwards
        draws = {name: table[:, i].reshape(-1, 1, 1) for i, name in enumerate(factors.names)}
        draws[FREE] = np.zeros((count + 2, 1, 1))
        draws[FREE][-1] = NUDGE
        for one, where in self.series:
            logs = np.broadcast_to(one.log_ratio(draws), (count + 2, len(where)))
            residuals[where] = logs[0]
            slopes[where] = ((logs[0] - logs[1:-1]) / NUDGE).T
            curve[where] = (logs[-1] - logs[0]) / NUDGE
        return residuals, slopes, np.where(np.isnan(self.batch), 0.0, curve)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the rows say: the fit of the factors, the curve, and what is needed to ask for more points."""

    fit: Fit
    covariance: np.ndarray          # of the logarithms of the fit's factors
    batches: tuple[float, ...]
    weights: tuple[float, ...]
    inverse: np.ndarray             # of the covariance of the rows, noise included
    prior_sd: np.ndarray
    slopes: np.ndarray              # of the rows
    curve_slopes: np.ndarray

    def difference(self, batch: np.ndarray) -> np.ndarray:
        """Mean of the curve at other batches."""
        found: np.ndarray = smooth_difference(np.log(batch), np.log(self.batches), self.weights, LENGTH)
        return found

    def prediction(self, slopes: np.ndarray, curve: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Covariance of the logarithms of predictions with these slopes, after the rows that were seen."""
        variance = self.prior_sd**2
        prior = (slopes * variance) @ slopes.T + np.outer(curve, curve) * kernel(batch, batch)
        cross = (slopes * variance) @ self.slopes.T + np.outer(curve, self.curve_slopes) * kernel(
            batch, np.array(self.batches))
        found: np.ndarray = prior - cross @ self.inverse @ cross.T
        return found

    @property
    def residual_sd(self) -> float:
        """Deviation beyond that of the factors, between the points: noise, and what the curve leaves open."""
        order = np.argsort(self.batches)
        order = order[self.curve_slopes[order] != 0]
        if not len(order):
            return float(np.hypot(NOISE, CURVE_SD))
        low, high = order[:-1] if len(order) > 1 else order, order[1:] if len(order) > 1 else order
        slopes = (self.slopes[low] + self.slopes[high]) / 2
        curve = (self.curve_slopes[low] + self.curve_slopes[high]) / 2
        batch = np.sqrt(np.array(self.batches)[low] * np.array(self.batches)[high])
        whole = np.diag(self.prediction(slopes, curve, batch))
        factors = np.einsum("ri,ij,rj->r", slopes, self.covariance, slopes)
        return float(np.sqrt(NOISE**2 + np.mean(np.maximum(whole - factors, 0.0))))


def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Covariance of the curve at batches; nothing where a row has none."""
    a, b = np.log(a)[:, None], np.log(b)[None]
    found: np.ndarray = np.nan_to_num(CURVE_SD**2 * np.exp(-0.5 * ((a - b) / LENGTH) ** 2))
    return found


def solve(problem: Problem, names: tuple[str, ...], current: Factors) -> Posterior:
    """Most probable factors and curve, and how sure they are. The prior is ``current``, wider by `OWN_SD`."""
    index = [current.names.index(name) for name in names]
    origin, own_sd = np.log(current.values[index]), current.sd[index]
    sd = np.where(own_sd > 0, np.hypot(own_sd, OWN_SD), 0.0)
    top = np.array([0.0 if "efficiency" in name or name == "roofline_overlap" else np.inf for name in names])
    x, held = np.minimum(origin, top), np.zeros(len(names), bool)
    before = problem.linear(current, names)[0]
    weights = np.ones(len(before))
    for _ in range(ROUNDS):
        factors = changed(current, dict(zip(names, np.exp(x).tolist(), strict=True)))
        residuals, slopes, curve = problem.linear(factors, names)
        free_sd = np.where(held, 0.0, sd)
        centre = np.where(held, x, origin)
        rows = (slopes * free_sd**2) @ slopes.T + np.outer(curve, curve) * kernel(problem.batch, problem.batch)
        inverse = np.linalg.inv(rows + np.diag(NOISE**2 / weights))
        pull = inverse @ (residuals + slopes @ (centre - x))
        wanted = centre - free_sd**2 * (slopes.T @ pull)
        held |= wanted > top + 1e-9
        move = np.clip(np.minimum(wanted, top) - x, -STEP, STEP)
        x = x + move
        left = NOISE**2 / weights * pull                    # of each row, after factors and curve
        weights = (1 + 1 / FREEDOM) / (1 + (left / NOISE) ** 2 / FREEDOM)
        if np.max(np.abs(move), initial=0.0) < DONE:
            break
    covariance = np.diag(free_sd**2) - (free_sd[:, None] ** 2 * slopes.T) @ inverse @ (slopes * free_sd**2)
    factors = changed(current, dict(zip(names, np.exp(x).tolist(), strict=True)))
    fit = assembled(names, x, covariance, origin, sd, tuple(n for n, at in zip(names, held, strict=True) if at),
                    current=current, after=left, before=before, labels=problem.labels, told=WRITTEN)
    batch = np.where(np.isnan(problem.batch), 1.0, problem.batch)
    return Posterior(fit, covariance, tuple(batch.tolist()), tuple((-curve * CURVE_SD**2 * pull).tolist()), inverse,
                     free_sd, slopes, curve)
