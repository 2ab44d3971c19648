"""Fit of an accelerator's and its engines' factors to served TPOT, and what the fit says about sources left out.

One accelerator at a time: its physics is shared by the engines, their host and start-up times are their own. A fit is
Gauss-Newton with lognormal priors and residuals of Student's t; a source is left out by solving the linear problem
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.insight.first_token import KIND as TTFT
from perfmodel.insight.observed import Observation, Series
from perfmodel.step.factors import Factors

PHYSICS = ("dram_efficiency", "moe_dram_efficiency", "moe_dram_efficiency_fp8", "moe_dram_efficiency_fp4",
           "moe_dram_efficiency_bf16", "moe_expert_overhead_bytes", "gemm_efficiency", "gemm_efficiency_fp8",
           "gemm_efficiency_fp4", "moe_compute_efficiency", "moe_compute_efficiency_fp8", "moe_compute_efficiency_fp4",
           "moe_compute_efficiency_bf16", "attention_dram_efficiency", "attention_half_blocks_per_sm",
           "attention_pad_tokens", "attention_prefill_efficiency", "routing_concentration_random")
# Collectives are measured by themselves (node files); what an engine fuses around them is its own
ENGINE = ("kernel_s", "step_fixed_s", "sync_step_s", "prefill_interference", "eager_kernel_s", "eager_rank_spread",
          "host_sequence_s", "pipeline_hop_s", "collective_latency_factor")
# Kernels that every engine brings along: its deviation from the accelerator's factor, and the prior of that
DEVIATES = tuple(name for name in PHYSICS if name.startswith(("moe_dram", "moe_compute", "gemm", "attention_dram")))
DEVIATION_SD = 0.10
MOST = 1.0              # of an efficiency
ROUNDS, STEP, NUDGE = 7, 0.4, 1e-3
NOISE = (0.05, 0.12)    # of a served TPOT between two runs, as a standard deviation of its logarithm: bounds
SOURCE_SD = 0.02        # of the offset that all rows of a source share
# What a factor leaves open however well it is fitted: how prompts queue and mix differs from one load to the next
DISCREPANCY = {"prefill_interference": 0.25}
FREEDOM = 2.0           # of Student's t: single sources are far off, and say so by it
FAR = 3                 # rounds before which it is not Student's t but a soft-L1 loss
# Noise of a TTFT as a multiple of that of a TPOT, so large that TTFT decides what TPOT leaves open: launches of eager
# prefills, arithmetic of long prompts. Kind: assumed; at 3 TPOT of sources left out is half a point worse
TTFT_NOISE = 8.0
PER_SOURCE = 8.0        # rows that one source and split counts for at most: they share host, image and tool


@dataclass(frozen=True, eq=False)
class Served:
    """A fit of one accelerator: factors of every engine, and the linear problem around them."""

    accelerator: str
    names: tuple[str, ...]          # "name" of the accelerator, "name@engine" of an engine, "name~engine" a deviation
    x: np.ndarray                   # logarithms
    sd: np.ndarray                  # posterior
    prior: np.ndarray
    prior_sd: np.ndarray
    rows: tuple[Observation, ...]
    series: tuple[Series, ...]
    residuals: np.ndarray           # log(predicted / measured)
    before: np.ndarray
    jacobian: np.ndarray            # of the residuals
    covariance: np.ndarray
    noise: float
    base: Factors

    def factors(self, engine: str, x: np.ndarray | None = None, covariance: np.ndarray | None = None) -> Factors:
        """Factors of an engine with their posterior."""
        x = self.x if x is None else x
        covariance = self.covariance if covariance is None else covariance
        pick = selection(self.names, engine)
        index = [self.base.names.index(key) for key in pick]
        rows = np.array([[float(i in where) for i in range(len(self.names))] for where in pick.values()])
        values, sd, rho = self.base.values.copy(), self.base.sd.copy(), np.eye(len(self.base.names))
        values[index] = limited(tuple(pick), np.exp(rows @ x))
        block = rows @ (covariance + discrepancy(self.names)) @ rows.T
        own = np.sqrt(np.diag(block))
        sd[index] = own
        rho[np.ix_(index, index)] = block / np.outer(own, own)
        return replace(self.base, values=values, sd=sd, correlation=rho)


def discrepancy(names: Sequence[str]) -> np.ndarray:
    """Variance that bands hold beyond the covariance of a fit."""
    return np.diag([DISCREPANCY.get(name.partition("@")[0], 0.0) ** 2 for name in names])


def selection(names: Sequence[str], engine: str | None) -> dict[str, list[int]]:
    """Which parameters add up, as logarithms, to each factor of an engine, or of the accelerator alone."""
    picked: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        key, _, own = name.replace("~", "@").partition("@")
        if own in ("", engine):
            picked.setdefault(key, []).append(i)
    return picked


def limited(keys: Sequence[str], values: np.ndarray) -> np.ndarray:
    """Efficiencies of at most one."""
    return np.where(["efficiency" in key for key in keys], np.minimum(values, MOST), values)


def fit_served(accelerator: str, series: Iterable[Series], base: Factors, skip: Iterable[str] = (),
               priors: Mapping[str, tuple[float, float]] | None = None) -> Served:
    """Fit everything that these series depend on.

    Priors are the values and deviations of ``base``, but for ``priors``: logarithm and deviation of "name@engine".
    """
    series = tuple(series)
    engines = sorted({s.engine or "" for s in series})
    used = {name for s in series for name in s.uses}
    names = tuple([n for n in PHYSICS if n in used and n not in set(skip)]
                  + [f"{n}@{e}" for e in engines for n in ENGINE]
                  + [f"{n}~{e}" for e in engines for n in DEVIATES if len(engines) > 1
                     and any(n in s.uses for s in series if s.engine == e)])
    index = [base.names.index(name.replace("~", "@").partition("@")[0]) for name in names]
    deviation = np.array(["~" in name for name in names])
    prior = np.where(deviation, 0.0, np.log(base.values[index]))
    prior_sd = np.where(deviation, DEVIATION_SD, np.maximum(base.sd[index], 1e-3))
    for i, name in enumerate(names):
        if priors and name in priors:
            prior[i], prior_sd[i] = priors[name]
    rows = tuple(row for s in series for row in s.rows)
    weight, sources = row_weights(rows), np.array([row.sweep for row in rows])
    steps = (weight > 0) & np.array([row.kind != TTFT for row in rows])
    top = np.array([np.log(MOST) if "efficiency" in name and "~" not in name else np.inf for name in names])
    x, noise, before = prior.copy(), NOISE[1], None
    for round_ in range(ROUNDS):
        residuals, jacobian = linear(series, base, names, x)
        before = residuals if before is None else before
        noise = float(np.clip(1.4826 * np.median(np.abs(residuals[steps])), *NOISE))
        found, covariance = solve(residuals, jacobian, x, prior, prior_sd, weight, noise, sources, round_ < FAR)
        step = np.clip(found - x, -STEP, STEP)
        x = np.minimum(x + step, top)
        if round_ > FAR and np.max(np.abs(step)) < 0.03:
            break
    residuals, jacobian = linear(series, base, names, x)
    _, covariance = solve(residuals, jacobian, x, prior, prior_sd, weight, noise, sources)
    return Served(accelerator, names, x, np.sqrt(np.diag(covariance)), prior, prior_sd, rows, series, residuals,
                  residuals if before is None else before, jacobian, covariance, noise, base)


def row_weights(rows: Sequence[Observation]) -> np.ndarray:
    """Square roots of what a row counts: a source as `PER_SOURCE` rows at most, a row that is only checked as none."""
    fitted = np.array([row.use == "fit" for row in rows], float)
    _, where = np.unique([row.sweep for row in rows], return_inverse=True)
    counts = np.bincount(where, fitted)
    noise = np.array([TTFT_NOISE if row.kind == TTFT else 1.0 for row in rows])
    return np.sqrt(fitted * np.minimum(1.0, PER_SOURCE / np.maximum(counts[where], 1.0))) / noise


def linear(
    series: Sequence[Series], base: Factors, names: Sequence[str], x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Residuals and their derivatives by the logarithms of the parameters."""
    parts, slopes = [], []
    for s in series:
        table: dict[str, Any] = dict(zip(base.names, base.values.tolist(), strict=True))
        picked = selection(names, s.engine)
        table |= dict(zip(picked, limited(tuple(picked), np.exp([np.sum(x[w]) for w in picked.values()])).tolist(),
                          strict=True))
        mine = [key for key in picked if key in s.uses]
        for j, key in enumerate(mine, start=1):
            column = np.full(1 + len(mine), table[key])
            column[j] *= np.exp(NUDGE)
            table[key] = column
        logs = np.broadcast_to(s.log_ratio(table), (1 + len(mine), len(s.rows)))
        slope = np.zeros((len(s.rows), len(names)))
        for j, key in enumerate(mine, start=1):
            slope[:, picked[key]] = ((logs[j] - logs[0]) / NUDGE)[:, None]
        parts.append(logs[0])
        slopes.append(slope)
    return np.concatenate(parts), np.concatenate(slopes)


def solve(residuals: np.ndarray, jacobian: np.ndarray, at: np.ndarray, prior: np.ndarray, prior_sd: np.ndarray,
          weight: np.ndarray, noise: float, sources: np.ndarray, far: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Most probable parameters of the linear problem, and their covariance; Student's t by reweighting.

    Every source has an offset of its own, which host, image and tool leave on all of its rows: a random effect with
    deviation `SOURCE_SD`, solved for beside the parameters. ``far`` from the solution a soft-L1 loss takes the place of
    Student's t, which does not give up rows that are far off.
    """
    own, where = np.unique(sources, return_inverse=True)
    count = len(at)
    jacobian = np.hstack([jacobian, np.eye(len(own))[where]])
    at, prior = np.concatenate([at, np.zeros(len(own))]), np.concatenate([prior, np.zeros(len(own))])
    prior_sd = np.concatenate([prior_sd, np.full(len(own), SOURCE_SD)])
    x = at.copy()
    precision = np.diag(prior_sd**-2.0)
    for _ in range(25):
        z = (residuals + jacobian @ (x - at)) * weight / noise
        robust = (weight / noise) ** 2 / (np.sqrt(1 + z**2) if far else 1 + z**2 / FREEDOM)
        normal = jacobian.T @ (robust[:, None] * jacobian) + precision
        target = jacobian.T @ (robust * (jacobian @ at - residuals)) + precision @ prior
        x = np.linalg.solve(normal, target)
    return x[:count], np.linalg.inv(normal)[:count, :count]


def left_out(fit: Served, labels: Sequence[str]) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """For every label: the label, the mask of its rows, and parameters and covariance of a fit without them."""
    weight, result = row_weights(fit.rows), []
    sources = np.array([row.sweep for row in fit.rows])
    marks = np.asarray(labels)
    for label in dict.fromkeys(labels):
        out = marks == label
        x, covariance = solve(fit.residuals[~out], fit.jacobian[~out], fit.x, fit.prior, fit.prior_sd, weight[~out],
                              fit.noise, sources[~out])
        result.append((label, out, x, covariance))
    return result
