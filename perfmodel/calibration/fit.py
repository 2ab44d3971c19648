"""The fit engine: log-ratios of predicted to measured times, lognormal priors, a robust loss; three points will do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

import numpy as np

from perfmodel.errors import BadInput
from perfmodel.step.factors import Factors

# Independent rows that one sweep counts for at most: rows of a sweep share host, image and tool.
PER_SWEEP = 4
# Noise of a measured time, as a standard deviation of its logarithm; images on one node differ by more.
LEAST_NOISE = 0.03
UNIDENTIFIED = 0.9      # posterior over prior sd above which the data said nothing
CORRELATED = 0.95
MANY = 8                # factors, above which a report lists only those that the data speaks about
TOLD = 0.3              # of a correlation, from which it is told

Free = dict[str, tuple[float, float, float]]
Residuals = Callable[[Factors], np.ndarray]


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted factors; ``sd`` are posterior standard deviations of their logarithms."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    sd: tuple[float, ...]
    prior: tuple[tuple[float, float], ...]      # value and sd before
    correlations: dict[str, float]              # "a|b" -> rho, where it is above 0.3
    at_bound: tuple[str, ...]
    unidentified: tuple[str, ...]
    n: int
    residuals: np.ndarray                       # log(predicted / measured) after
    before: np.ndarray                          # and before
    residual_sd: float
    fitted_on: tuple[str, ...]
    warnings: tuple[str, ...]
    factors: Factors                            # the current factors with the fitted ones in place

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={value:.4g}" for name, value in zip(self.names, self.values, strict=True))
        return f"<Fit on {self.n} rows, residual {100 * self.residual_sd:.0f} %: {pairs}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = zip(self.names, self.values, self.sd, self.prior, strict=True)
        return {"parameters": [{"name": n, "value": v, "sd": s, "prior_value": p[0], "prior_sd": p[1],
                                "at_bound": n in self.at_bound, "identified": n not in self.unidentified}
                               for n, v, s, p in rows],
                "correlations": self.correlations, "n": self.n, "residual_sd": self.residual_sd,
                "median_error_before": typical(self.before), "median_error_after": typical(self.residuals),
                "fitted_on": list(self.fitted_on), "warnings": list(self.warnings)}

    def report(self) -> str:
        """Text of at most 80 columns."""
        lines = [f"{'parameter':34}{'before':>11}{'after':>11}{'sd':>7}  note"]
        many = len(self.names) > MANY
        for name, value, sd, (old, _) in zip(self.names, self.values, self.sd, self.prior, strict=True):
            if many and name in self.unidentified and name not in self.at_bound:
                continue
            note = "at bound" if name in self.at_bound else "not told apart" if name in self.unidentified else ""
            lines.append(f"{name:34}{old:11.4g}{value:11.4g}{sd:7.2f}  {note}".rstrip())
        if many and self.unidentified:
            lines += wrap(f"not told apart from what was known before: {', '.join(self.unidentified)}", 80)
        sweeps = f"{len(self.fitted_on)} sweep{'s' if len(self.fitted_on) > 1 else ''}"
        lines += [f"{self.n} rows of {sweeps}; median error "
                  f"{100 * typical(self.before):.1f} % before, {100 * typical(self.residuals):.1f} % after"]
        return "\n".join([*lines, *(part for warning in self.warnings for part in wrap(warning, 80))])

    def plot(self, ax: Any = None) -> Any:
        """Measured over predicted time, row by row, before and after."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots()[1]
        for values, label in ((self.before, "before"), (self.residuals, "after")):
            ax.plot(np.exp(values), ".", label=label)
        ax.axhline(1.0, color="0.5", linewidth=0.8)
        ax.set(xlabel="row", ylabel="predicted / measured time", yscale="log")
        ax.legend()
        return ax

    def save(self, path: Any, **about: Any) -> None:
        """Write a calibration file of these parameters; see `perfmodel.calibration.files.write`."""
        from perfmodel.calibration.files import write_fit

        write_fit(self, path, **about)


def typical(residuals: np.ndarray) -> float:
    """Median relative error of log-ratios."""
    return float(np.expm1(np.median(np.abs(residuals)))) if len(residuals) else 0.0


def changed(factors: Factors, values: dict[str, float], sd: dict[str, float] | None = None,
            correlations: dict[str, float] | None = None) -> Factors:
    """The same factors with some values (and standard deviations, correlations) replaced."""
    index = {name: i for i, name in enumerate(factors.names)}
    new_values, new_sd, new_correlation = factors.values.copy(), factors.sd.copy(), factors.correlation.copy()
    for name, value in values.items():
        new_values[index[name]] = value
    for name, value in (sd or {}).items():
        i = index[name]
        new_sd[i], new_correlation[i], new_correlation[:, i] = value, 0.0, 0.0
        new_correlation[i, i] = 1.0
    for pair, rho in (correlations or {}).items():
        a, b = pair.split("|")
        new_correlation[index[a], index[b]] = new_correlation[index[b], index[a]] = rho
    return replace(factors, values=new_values, sd=new_sd, correlation=new_correlation)


def fit(residuals: Residuals, free: Free, current: Factors, *, sweeps: Sequence[str] = (),
        least_noise: float = LEAST_NOISE, noise: float | None = None) -> Fit:
    """Fit ``free`` = {name: (start, low, high)} to ``residuals``; every other factor stays as ``current`` has it.

    ``residuals`` maps factors to log(predicted / measured), one entry a row; ``sweeps`` names the sweep of each row.
    Priors are the current values and standard deviations. The data's loss is soft-L1, the priors' quadratic; the
    ``noise`` of a row is given, or estimated from the residuals of a first pass and at least ``least_noise``. A sweep
    counts for at most `PER_SWEEP` rows.
    """
    from scipy.optimize import least_squares

    names = tuple(free)
    before = np.asarray(residuals(current), float)
    index = [_index(current, name) for name in names]
    prior_value, prior_sd = current.values[index], current.sd[index]
    held = prior_sd > 0
    if before.ndim != 1 or not np.all(np.isfinite(before)):
        raise BadInput("residuals must be one finite number a row")
    if not names or len(names) > len(before) + int(np.sum(held)):
        raise BadInput(f"{len(names)} free factors need as many rows and priors; there are {len(before)} rows and "
                       f"{int(np.sum(held))} priors")
    labels = np.asarray(sweeps if len(sweeps) else ["all"] * len(before))
    _, where, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weight = np.sqrt(np.minimum(1.0, PER_SWEEP / counts[where]))
    low, high = (np.log([free[name][i] for name in names]) for i in (1, 2))
    start = np.clip(np.log([free[name][0] for name in names]), low + 1e-9, high - 1e-9)

    def with_values(x: np.ndarray) -> Factors:
        return changed(current, dict(zip(names, np.exp(x).tolist(), strict=True)))

    def loss(z: np.ndarray) -> np.ndarray:
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        part = slice(0, len(before))
        root = np.sqrt(1 + z[part])
        rho[:, part] = np.stack([2 * (root - 1), 1 / root, -0.5 / root**3])
        return rho

    width = noise or 0.1
    for _ in range(1 if noise else 2):
        def stacked(x: np.ndarray, width: float = width) -> np.ndarray:
            data = residuals(with_values(x)) * weight / width
            return np.concatenate([data, ((x - np.log(prior_value)) / np.where(held, prior_sd, 1.0))[held]])

        found = least_squares(stacked, start, bounds=(low, high), loss=loss, x_scale=0.1, diff_step=1e-4)
        start = np.clip(found.x, low + 1e-9, high - 1e-9)
        width = max(least_noise, 1.4826 * float(np.median(np.abs(residuals(with_values(found.x))))))
    covariance = np.linalg.pinv(found.jac.T @ found.jac)
    after = np.asarray(residuals(with_values(found.x)), float)
    bound = tuple(n for n, x, a, b in zip(names, found.x, low, high, strict=True) if min(x - a, b - x) < 1e-3 * (b - a))
    return assembled(names, found.x, covariance, np.log(prior_value), prior_sd, bound, current=current, after=after,
                     before=before, labels=labels.tolist())


def assembled(names: tuple[str, ...], x: np.ndarray, covariance: np.ndarray, prior: np.ndarray, prior_sd: np.ndarray,
              bound: tuple[str, ...], *, current: Factors, after: np.ndarray, before: np.ndarray,
              labels: Sequence[str], told: float = TOLD) -> Fit:
    """A fit from its solution: logarithms, their covariance and prior; what the data cannot tell apart is flagged."""
    sd, values = np.sqrt(np.maximum(np.diag(covariance), 0.0)), np.exp(x)
    correlations = _correlations(names, covariance)
    unidentified = tuple(n for n, s, p in zip(names, sd, prior_sd, strict=True) if p > 0 and s > UNIDENTIFIED * p)
    warnings = [f"{name} is at its bound" for name in bound]
    warnings += [f"{pair.replace('|', ' and ')} are correlated {rho:+.2f}: the data gives one of them"
                 for pair, rho in correlations.items() if abs(rho) > CORRELATED]
    reported = {pair: round(rho, 3) for pair, rho in correlations.items() if abs(rho) > told}
    after_values, after_sd = (dict(zip(names, column.tolist(), strict=True)) for column in (values, sd))
    posterior = changed(current, after_values, after_sd, reported)
    before_fit = tuple(zip(np.exp(prior).tolist(), prior_sd.tolist(), strict=True))
    return Fit(names, tuple(values.tolist()), tuple(sd.tolist()), before_fit,
               reported, bound, unidentified, len(before), after, before, float(np.sqrt(np.mean(after**2))),
               tuple(dict.fromkeys(labels)), tuple(warnings), posterior)


def _index(factors: Factors, name: str) -> int:
    if name not in factors.names:
        from perfmodel.errors import UnknownName

        raise UnknownName("calibration parameter", name, factors.names)
    return factors.names.index(name)


def _correlations(names: tuple[str, ...], covariance: np.ndarray) -> dict[str, float]:
    sd = np.sqrt(np.diag(covariance))
    return {f"{a}|{b}": float(covariance[i, j] / (sd[i] * sd[j]))
            for i, a in enumerate(names) for j, b in enumerate(names) if i < j and sd[i] * sd[j] > 0}
