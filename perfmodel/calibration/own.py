"""A user's own benchmark -> a calibration on top of the shipped one, with what the data could not tell apart."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.calibration import files
from perfmodel.calibration.bench_files import Found, read_files, read_rows
from perfmodel.calibration.fit import Fit
from perfmodel.calibration.measured import Measurement, measurements, series_of
from perfmodel.calibration.next_point import Candidate, next_points
from perfmodel.calibration.plausible import doubts
from perfmodel.calibration.posterior import LENGTH, Posterior, Problem, solve
from perfmodel.deployment import Deployment
from perfmodel.engines.speculation import speculation
from perfmodel.errors import BadInput, UnknownName
from perfmodel.serving.lengths import fixed
from perfmodel.serving.loop import loop_of
from perfmodel.step.factors import NAMES, Factors, factors_of

LEAST_WEIGHT = 1e-4     # of the curve, below which it is not written


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A fit to a user's rows, ready to be saved and named in `deploy(calibration=...)`."""

    posterior: Posterior
    deployment: Deployment
    rows: tuple[Measurement, ...]
    assumptions: tuple[str, ...]
    hashes: dict[str, str]

    @property
    def fit(self) -> Fit:
        """Factors with standard errors and correlations; which are at a bound, which the data does not tell apart."""
        return self.posterior.fit

    @property
    def measured(self) -> np.ndarray:
        """Tokens per second of every row, as the benchmark found them."""
        return np.array([tokens(row) / row.seconds for row in self.rows])

    @property
    def before(self) -> np.ndarray:
        """The same, predicted with the shipped factors."""
        return self.measured * np.exp(-self.fit.before)

    @property
    def after(self) -> np.ndarray:
        """And with the fitted ones."""
        return self.measured * np.exp(-self.fit.residuals)

    @property
    def doubts(self) -> list[str]:
        """What is wrong with rows that lie far from the model, and which usual mistake would explain it."""
        return doubts(self.measured, self.before, self.rows, self.deployment)

    @cached_property
    def next(self) -> tuple[Candidate, ...]:
        """Which measurement would narrow the bands of this deployment most, best first."""
        return next_points(self.posterior, self.deployment, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = self.posterior
        columns = (self.measured.tolist(), self.before.tolist(), self.after.tolist())
        return {**self.fit.to_dict(), "deployment": self.deployment.to_dict(), "assumptions": list(self.assumptions),
                "difference": {"batches": list(found.batches), "weights": list(found.weights), "length": LENGTH},
                "band_residual_sd": found.residual_sd, "hashes": self.hashes, "doubts": self.doubts,
                "next_measurements": [candidate.to_dict() for candidate in self.next],
                "rows": [{"kind": row.kind, "load": row.load, "input_tokens": row.input_tokens,
                          "output_tokens": row.output_tokens, "context": row.context, "source": row.source,
                          "measured_tok_s": m, "before_tok_s": b, "after_tok_s": a}
                         for row, m, b, a in zip(self.rows, *columns, strict=True)]}

    def report(self) -> str:
        """Text of at most 80 columns."""
        lines = [self.fit.report(), "", f"{'measured':>10}{'before':>10}{'after':>10}   tokens a second of"]
        columns = zip(self.measured, self.before, self.after, self.rows, strict=True)
        lines += [f"{m:10.4g}{b:10.4g}{a:10.4g}   {row.words[:46]}" for m, b, a, row in columns]
        if self.next:
            lines += ["", f"{'band now':>10}{'then':>8}   if measured next"]
            lines += [f"{100 * c.before:9.1f}%{100 * c.after:7.1f}%   {c.words[:58]}" for c in self.next[:5]]
        return "\n".join([*lines, *(f"assumed: {note}" for note in self.assumptions)])

    def plot(self, ax: Any = None) -> Any:
        """Residuals by batch and predicted against measured, before and after."""
        from perfmodel.report.residual_plot import draw

        return draw(self.measured, self.before, self.after, [row.load for row in self.rows], ax)

    def __repr__(self) -> str:
        return f"<Calibrated {self.deployment.name}: {self.fit!r}>"

    def save_plot(self, path: str | os.PathLike[str]) -> None:
        """Residuals, and predicted against measured, into a picture."""
        from perfmodel.report import residual_plot

        residual_plot.save(path, self.measured, self.before, self.after, [row.load for row in self.rows])

    def save(self, path: str | os.PathLike[str], command: str = "perfmodel calibrate") -> None:
        """Write the calibration file; it goes on top of the shipped ones."""
        d, path, found = self.deployment, Path(path), self.posterior
        if path.suffix not in (".yaml", ".yml"):
            raise BadInput(f"a calibration is written to a .yaml file, not {path.name!r}")
        merged: dict[float, float] = {}
        for batch, weight in zip(found.batches, found.weights, strict=True):
            merged[batch] = merged.get(batch, 0.0) + weight
        kept = {batch: weight for batch, weight in sorted(merged.items()) if abs(weight) > LEAST_WEIGHT}
        curve = {"model": d.model.name, "strategy": d.name, "length": LENGTH, "batches": list(kept),
                 "weights": list(kept.values())}
        files.write_fit(self.fit, path, name=path.stem, title=f"{d.model.name} on {d.node.name}, {d.name}",
                        source={"title": f"own benchmark, {len(self.rows)} rows, launched as {d.command()}"},
                        command=command, hashes=self.hashes, accelerator=d.accelerator.name,
                        engine=d.options.engine, node=d.node.name, difference=curve if kept else {},
                        spread=found.residual_sd)


def tokens(row: Measurement) -> float:
    """Tokens that the time of a row stands for: of all sequences."""
    return {"rate": 1.0, "prefill": row.load * row.input_tokens, "batch": row.load * row.output_tokens}.get(
        row.kind, row.load)


def calibrate(observations: str | os.PathLike[str] | Sequence[Any] | Iterable[Mapping[str, Any]], *,
              deployment: Deployment, free: Iterable[str] | None = None, **missing: float | None) -> Calibrated:
    """Fit the factors that a deployment depends on to its own benchmark.

    ``observations`` are result files (docs/calibrate.md lists the formats), one or several, or rows with the columns
    concurrency, output_tok_s or tpot_ms and, where known, input_tokens and output_tokens. ``missing`` states what a
    file does not say: input_tokens, output_tokens, concurrency. ``free`` names the parameters; by default all that
    the deployment's step depends on and whose value is not certain.
    """
    return calibrate_found(_read(observations, missing), deployment=deployment, free=free)


def calibrate_found(found: Found, *, deployment: Deployment, free: Iterable[str] | None = None) -> Calibrated:
    """The same, from measurements that are read."""
    if found.drafted and speculation(deployment.options.speculative) is None:
        length = f"{found.drafted:g}"
        raise BadInput(f"the benchmark ran with speculative decoding ({length} tokens a step)",
                       hints=[f"state it: --speculative METHOD:DRAFTS:{length}, such as mtp:3:{length}"])
    current = factors_of(deployment)
    names = tuple(free) if free is not None else default_free(deployment)
    for name in names:
        if name not in NAMES:
            raise UnknownName("parameter that can be freed", name, NAMES)
    problem = problem_of(deployment, found.rows)
    return Calibrated(solve(problem, names, current), deployment, tuple(found.rows), found.notes, found.hashes)


def problem_of(deployment: Deployment, rows: Sequence[Measurement]) -> Problem:
    """The rows as series, with the batch of a copy at each."""
    plain = replace(deployment, calibration=deployment.calibration.model_copy(update={"difference": None}))
    limit = float(loop_of(plain, np.array([1.0]), fixed(1), fixed(1)).limit)
    batch = np.array([np.nan if row.kind == "prefill" else max(1.0, min(row.load / deployment.options.dp, limit))
                      for row in rows])
    return Problem(tuple(series_of(plain, rows)), batch, tuple(["own benchmark"] * len(rows)))


def default_free(deployment: Deployment) -> tuple[str, ...]:
    """Parameters that a benchmark of this deployment may speak about: those that it depends on, if uncertain."""
    factors = factors_of(deployment)
    return tuple(name for name, sd in zip(factors.names, factors.sd, strict=True) if sd > 0)


def rates(deployment: Deployment, rows: Sequence[Mapping[str, float]], factors: Factors) -> np.ndarray:
    """Predicted output rates of rows with concurrency, input_tokens and output_tokens. [token/s]"""
    made = measurements([{"output_tok_s": 1.0, **row} for row in rows], "rows")
    residuals = np.zeros(len(made))
    for one, where in series_of(deployment, made):
        residuals[where] = one.log_ratio(factors.draws(2, uncertain=False))[0]
    return np.exp(-residuals)


def _read(observations: Any, missing: dict[str, float | None]) -> Found:
    if isinstance(observations, (str, os.PathLike)):
        return read_files([observations], **missing)
    if not isinstance(observations, Iterable) or isinstance(observations, (bytes, Mapping)):
        return read_rows(observations, "observations")
    items = list(observations)
    if items and all(isinstance(item, (str, os.PathLike)) for item in items):
        return read_files(items, **missing)
    return read_rows(items, "observations")
