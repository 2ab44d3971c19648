"""A user's own benchmark -> a calibration on top of the shipped one, with what the data could not tell apart."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.calibration.files import write_fit
from perfmodel.calibration.fit import Fit, Free, fit
from perfmodel.catalog.yaml import read_text
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, UnknownName, shown
from perfmodel.serving import predict
from perfmodel.step.factors import Factors, factors_of

COLUMNS = ("concurrency", "output_tok_s", "input_tokens", "output_tokens")
NOISE = 0.05            # of a rate between two runs of one benchmark; assumed
LENGTH = 1024.0         # assumed where a file does not say, as `predict` does
RANGES: Free = {        # start is the current value
    "kernel_s": (0.0, 0.3e-6, 50e-6), "step_fixed_s": (0.0, 0.01e-3, 50e-3),
    "collective_latency_factor": (0.0, 0.1, 10.0), "routing_concentration_random": (0.0, 0.05, 200.0),
    "routing_concentration_identical": (0.0, 0.05, 200.0), "eager_kernel_s": (0.0, 2e-6, 500e-6),
    "host_sequence_s": (0.0, 1e-6, 20e-3), "prefill_interference": (0.0, 0.1, 5.0),
    "pipeline_hop_s": (0.0, 0.02e-3, 10e-3), "micro_batch_s": (0.0, 0.02e-3, 20e-3),
    "dram_efficiency": (0.0, 0.2, 1.0), "moe_dram_efficiency": (0.0, 0.1, 1.0)}


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A fit to a user's rows, ready to be saved and named in `deploy(calibration=...)`."""

    fit: Fit
    deployment: Deployment
    measured: np.ndarray
    before: np.ndarray          # predicted tok/s with the shipped factors
    after: np.ndarray
    assumptions: tuple[str, ...]
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self.fit.to_dict(), "deployment": self.deployment.to_dict(), "assumptions": list(self.assumptions),
                "rows": [{"measured_tok_s": m, "before_tok_s": b, "after_tok_s": a} for m, b, a in
                         zip(self.measured.tolist(), self.before.tolist(), self.after.tolist(), strict=True)]}

    def report(self) -> str:
        """Text of at most 80 columns."""
        lines = [self.fit.report(), "", f"{'measured':>12}{'before':>12}{'after':>12}   output tok/s"]
        rows = zip(self.measured, self.before, self.after, strict=True)
        lines += [f"{m:12.4g}{b:12.4g}{a:12.4g}" for m, b, a in rows]
        return "\n".join([*lines, *(f"assumed: {note}" for note in self.assumptions)])

    def __repr__(self) -> str:
        return f"<Calibrated {self.deployment.name}: {self.fit!r}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration file; it holds the fitted parameters only and goes on top of the shipped ones."""
        d, path = self.deployment, Path(path)
        if path.suffix not in (".yaml", ".yml"):
            raise BadInput(f"a calibration is written to a .yaml file, not {path.name!r}")
        write_fit(self.fit, path, name=path.stem, title=f"{d.model.name} on {d.node.name}, {d.name}",
                  source={"title": f"own benchmark, {len(self.measured)} rows, launched as {d.command()}"},
                  command="perfmodel calibrate", hashes={"observations": self.digest}, accelerator=d.accelerator.name,
                  engine=d.options.engine, node=d.node.name)


def calibrate(observations: str | os.PathLike[str] | Iterable[Mapping[str, Any]], *, deployment: Deployment,
              free: Iterable[str] | None = None) -> Calibrated:
    """Fit host, kernel, collective and routing factors to measured output rates of one deployment.

    ``observations`` are rows, or a CSV file, with the columns concurrency, output_tok_s and, where known,
    input_tokens and output_tokens (means; 1,024 otherwise). ``free`` names the parameters; by default those that
    the deployment's step depends on and that no kernel table fixes.
    """
    rows, digest, assumptions = _read(observations)
    current = factors_of(deployment)
    names = tuple(free) if free is not None else default_free(deployment)
    for name in names:
        if name not in RANGES:
            raise UnknownName("parameter that can be freed", name, RANGES)
    start = {name: (float(current.values[current.names.index(name)]), *RANGES[name][1:]) for name in names}
    measured = np.array([row["output_tok_s"] for row in rows])

    def residuals(factors: Factors) -> np.ndarray:
        return np.log(measured / rates(deployment, rows, factors))

    found = fit(residuals, start, current, sweeps=["own benchmark"] * len(rows), noise=NOISE)
    before, after = (measured * np.exp(-log_ratio) for log_ratio in (found.before, found.residuals))
    return Calibrated(found, deployment, measured, before, after, assumptions, digest)


def default_free(deployment: Deployment) -> tuple[str, ...]:
    """Parameters that a sweep over concurrency of this deployment may speak about."""
    options, names = deployment.options, ["kernel_s", "step_fixed_s", "prefill_interference"]
    if options.tp > 1:
        names.append("collective_latency_factor")
    if deployment.facts.experts and options.expert_skew is None:
        names.append(f"routing_concentration_{options.prompts}")
    if not options.cuda_graphs:
        names += ["eager_kernel_s", "host_sequence_s"]
    return (*names, "pipeline_hop_s", "micro_batch_s") if options.pp > 1 else tuple(names)


def rates(deployment: Deployment, rows: list[dict[str, float]], factors: Factors) -> np.ndarray:
    """Predicted output rates of the rows with these factors. [token/s]"""
    moved = {name: parameter.model_copy(update={"value": float(value), "sd": 0.0}) for (name, parameter), value in
             ((item, factors.values[factors.names.index(item[0])])
              for item in deployment.calibration.parameters.items() if item[0] in factors.names)}
    tuned = replace(deployment, calibration=deployment.calibration.model_copy(update={"parameters": moved}))
    result = np.zeros(len(rows))
    lengths = [(row["input_tokens"], row["output_tokens"]) for row in rows]
    for pair in dict.fromkeys(lengths):
        index = [i for i, own in enumerate(lengths) if own == pair]
        flights = [rows[i]["concurrency"] for i in index]
        curve = predict(tuned, concurrency=flights, input_tokens=pair[0], output_tokens=pair[1])
        result[index] = curve.output_tok_s[0]
    return result


def _read(observations: Any) -> tuple[list[dict[str, float]], str, tuple[str, ...]]:
    """Clean rows, a digest of the input, and what was assumed."""
    if isinstance(observations, (str, os.PathLike)):
        text = read_text(observations)
        where = os.path.basename(os.fspath(observations))
        try:
            table: list[Mapping[str, Any]] = list(csv.DictReader(io.StringIO(text)))
        except csv.Error as error:
            raise BadInput(f"{where}: not a CSV, {error}") from None
    else:
        if not isinstance(observations, Iterable) or isinstance(observations, bytes):
            raise BadInput(f"observations are a file or rows, not {shown(observations)}")
        table, where = list(observations), "observations"
        if not all(isinstance(row, Mapping) for row in table):
            raise BadInput("a row of observations is a mapping, such as {'concurrency': 8, 'output_tok_s': 407}")
        text = repr(sorted(map(str, table)))
    if not table:
        raise BadInput(f"{where}: no rows; a header with {', '.join(COLUMNS[:2])} and one row a measurement is needed")
    for key in table[0]:
        if key not in COLUMNS:
            raise UnknownName(f"column of {where}", str(key), COLUMNS)
    rows = [{name: _number(where, i, row, name) for name in COLUMNS} for i, row in enumerate(table, start=1)]
    missing = [name for name in COLUMNS[2:] if name not in table[0]]
    return rows, sha256(text.encode()).hexdigest(), tuple(f"{name} {LENGTH:g} in every row" for name in missing)


def _number(where: str, line: int, row: Mapping[str, Any], name: str) -> float:
    given: Any = row.get(name, LENGTH if name in COLUMNS[2:] else None)
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = float("nan")
    if not (np.isfinite(value) and 0 < value < 1e9):
        raise BadInput(f"{where}: row {line}: {name} must be a positive number, not {str(given)[:40]!r}")
    return value
