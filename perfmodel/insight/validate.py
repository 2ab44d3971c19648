"""Predictions beside every measurement that ships: fitted rows and checked rows apart, bands tested on both."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.catalog import load_calibration
from perfmodel.catalog.write import write_whole
from perfmodel.errors import BadInput, UnknownName
from perfmodel.insight import interconnect, kernels, observed, parallel, served
from perfmodel.insight.crossovers import Crossover, crossovers, lines
from perfmodel.insight.observed import Observation, Series
from perfmodel.step.cost import plain
from perfmodel.step.factors import Z80, Factors, from_calibration

KINDS = ("decode", "prefill", "kernels", "interconnect", "case", "steps", "parallel", "e2e")
LEVEL = 0.8             # of the bands
MARK = "<!-- perfmodel validate -->"
HELD_OUT_MARK = "<!-- perfmodel validate e2e --held-out -->"


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured figure and what the model says about it, in the unit of the measurement."""

    id: str
    kind: str
    sweep: str
    use: str
    hot: bool
    concurrency: float
    unit: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def in_band(self) -> bool:
        """Whether the measurement lies in the 80 % band."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class Score:
    """How a group of rows does. Errors are of predicted / measured, the interval score of logarithms."""

    name: str
    use: str
    rows: int
    median_ratio: float
    median_error: float
    error_p90: float
    coverage: float
    half_width: float
    interval_score: float


@dataclass(frozen=True, eq=False)
class Validation:
    """All rows, scores of the groups and of every sweep, and what was left out."""

    rows: tuple[Compared, ...]
    scores: tuple[Score, ...]
    sweeps: tuple[Score, ...]
    excluded: dict[str, int]
    calibrations: tuple[str, ...]
    crossovers: tuple[Crossover, ...] = ()      # of collectives, where one way overtakes another

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [{**asdict(row), "ratio": row.ratio, "in_band": row.in_band} for row in self.rows]
        clean = [{key: plain(value) for key, value in row.items()} for row in rows]
        return {"level": LEVEL, "calibrations": list(self.calibrations), "scores": [asdict(s) for s in self.scores],
                "sweeps": [asdict(s) for s in self.sweeps], "excluded": self.excluded, "rows": clean,
                "crossovers": [asdict(one) for one in self.crossovers]}

    def text(self) -> str:
        """Tables of at most 80 columns."""
        head = f"{'group':30}{'use':6}{'rows':>5}{'ratio':>7}{'error':>7}{'p90':>6}{'in band':>9}{'width':>7}"
        out = [head, *(score_line(score) for score in self.scores), "",
                 "ratio: median of predicted / measured; error: median of its distance from 1;",
                 "in band: share inside the 80 % bands; width: median half-width of the bands", "",
                 head.replace("group", "sweep"), *(score_line(score) for score in self.sweeps)]
        if self.crossovers:
            out += ["", *lines(self.crossovers)]
        if self.excluded:
            out += ["", f"{sum(self.excluded.values())} rows are not compared:",
                      *(f"{count:6}  {reason}" for reason, count in self.excluded.items())]
        return "\n".join(line.rstrip() for line in out)

    def __repr__(self) -> str:
        return f"<Validation of {len(self.rows)} rows, {sum(self.excluded.values())} more not compared>"


def score_line(score: Score) -> str:
    """One row of a table."""
    return (f"{score.name[:29]:30}{score.use:6}{score.rows:5}{score.median_ratio:7.2f}{100 * score.median_error:6.0f}%"
            f"{100 * score.error_p90:5.0f}%{100 * score.coverage:8.0f}%{100 * score.half_width:6.0f}%")


def validate(what: str = "all") -> Validation:
    """Compare the shipped observations with predictions: all of them, or one of `KINDS`."""
    if what not in ("all", *KINDS):
        raise UnknownName("part of the validation", what, ("all", *KINDS))
    wanted = KINDS if what == "all" else (what,)
    kept = [s for s in _all_series(wanted) if s.rows[0].kind.split()[0] in wanted]
    rows = tuple(row for s in kept for row in compare(s, factors_for(s)))
    used = {name for s in kept for name in load_calibration(s.accelerator, s.engine).used}
    met = crossovers() if "interconnect" in wanted else ()
    return Validation(rows, _groups(rows), _sweeps(rows), _excluded(wanted), tuple(sorted(used)), met)


def write_into(page: str | os.PathLike[str], text: str, mark: str = MARK) -> None:
    """Replace what stands between the two marks of a page by these tables."""
    path = Path(page)
    parts = path.read_text(encoding="utf-8").split(mark) if os.path.isfile(path) else []
    if len(parts) != 3:
        raise BadInput(f"{path}: a page with the line {mark} before and after the tables is needed")
    write_whole(path, f"{parts[0]}{mark}\n```text\n{text}\n```\n{mark}{parts[2]}")


def _all_series(wanted: Iterable[str]) -> Iterable[Series]:
    for kind in wanted:
        if kind == "kernels":
            yield from kernels.kernel_series()
        elif kind == "interconnect":
            yield from kernels.interconnect_series()
            yield from interconnect.series()
        elif kind == "steps":
            yield from served.step_series()
        elif kind == "parallel":
            yield from parallel.series()
        elif kind == "e2e":
            yield from served.series()
        elif kind == "case":
            yield from observed.series(observed.read(observed.CASE))
        else:
            yield from (s for s in observed.series(observed.read(observed.SWEEPS)) if s.rows[0].kind == kind)


def factors_for(s: Series) -> Factors:
    """The shipped factors that price a series."""
    factors = from_calibration(load_calibration(s.accelerator, s.engine))
    if not s.uses:
        return factors
    return replace(factors, sd=np.where([name in s.uses for name in factors.names], factors.sd, 0.0))


def compare(s: Series, factors: Factors) -> list[Compared]:
    """Rows of a series beside their predictions with bands."""
    times = s.seconds(factors.draws(2))
    times = np.broadcast_to(times, (max(len(times), 2), times.shape[1]))
    spread = np.exp(Z80 * np.hypot(factors.log_sd(times), s.more_sd))
    point = np.where(s.tokens > 0, s.tokens, times[0]) / np.where(s.tokens > 0, times[0], 1.0)
    return [_compared(row, float(p), float(w)) for row, p, w in zip(s.rows, point, spread, strict=True)]


def _compared(row: Observation, predicted: float, spread: float) -> Compared:
    return Compared(row.id, row.kind, row.sweep, row.use, row.hot, row.concurrency, row.unit, row.measured, predicted,
                    predicted / spread, predicted * spread)


def score(name: str, use: str, rows: list[Compared]) -> Score:
    """Errors and bands of a group of rows."""
    ratio = np.array([row.ratio for row in rows])
    width = np.log([row.high / row.predicted for row in rows])
    miss = np.maximum(np.abs(np.log(ratio)) - width, 0.0)
    errors = np.abs(ratio - 1)
    worst = float(np.percentile(errors, 90))
    return Score(name, use, len(rows), float(np.median(ratio)), float(np.median(errors)), worst,
                 float(np.mean([row.in_band for row in rows])), float(np.median(np.expm1(width))),
                 float(np.mean(2 * width + 2 / (1 - LEVEL) * miss)))


def _groups(rows: tuple[Compared, ...]) -> tuple[Score, ...]:
    """Kinds, fitted and checked apart; kernels in cache or not; decode at one and many sequences; collectives."""
    members: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        name = row.kind + (", in cache" if row.hot else ", from memory" if row.kind == "kernels" else "")
        members.setdefault((name, row.use), []).append(row)
        if row.kind == "interconnect":
            members.setdefault((f"interconnect, {row.sweep.split()[0]}", row.use), []).append(row)
        if row.kind.startswith("parallel"):
            members.setdefault(("parallel", row.use), []).append(row)
        if row.kind == "e2e":
            author, _, gpu, engine = row.sweep.split("/")
            members.setdefault((f"e2e, {engine} {gpu}", row.use), []).append(row)
            members.setdefault((f"e2e, by {author}", row.use), []).append(row)
        if row.kind == "decode" and (row.concurrency == 1 or row.concurrency >= 64):
            members.setdefault((f"decode, C {'= 1' if row.concurrency == 1 else '>= 64'}", row.use), []).append(row)
    return tuple(score(name, use, found) for (name, use), found in sorted(members.items()))


def _sweeps(rows: tuple[Compared, ...]) -> tuple[Score, ...]:
    """One score a sweep; kernel curves are put together by table and engine."""
    members: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        name = row.sweep.replace("/nospec", "")
        if row.kind == "kernels":
            name = " ".join(part for i, part in enumerate(row.sweep.split()) if i in (0, len(row.sweep.split()) - 1))
        if row.kind == "e2e":
            name = "/".join(row.sweep.split("/")[1:])
        members.setdefault((name + (", in cache" if row.hot else ""), row.use), []).append(row)
    return tuple(score(name, use, found) for (name, use), found in members.items())


def _excluded(wanted: Iterable[str]) -> dict[str, int]:
    """Rows that say nothing about a step, by reason, most first."""
    reasons: Counter[str] = Counter()
    if {"decode", "prefill"} & set(wanted):
        reasons.update(filter(None, map(observed.why_not, observed.read(observed.SWEEPS))))
    if "case" in wanted:
        reasons.update(filter(None, map(observed.why_not, observed.read(observed.CASE))))
    if "parallel" in wanted:
        reasons.update(filter(None, map(parallel.why_not, observed.read(parallel.PARALLEL))))
    if "e2e" in wanted:
        for row in observed.read(served.EXCLUDED):
            reasons[f"e2e: {row['reason']}"] += int(row["rows"])
    tables = [row for stem in kernels.FILES for row in observed.read(stem)]
    for row in tables if {"kernels", "interconnect"} & set(wanted) else ():
        if (row["table"] == "all_reduce") in ({"interconnect": True, "kernels": False}[k] for k in wanted
                                              if k in ("interconnect", "kernels")):
            reasons.update(filter(None, [kernels.why_not(row)]))
    if "interconnect" in wanted:
        for stem in interconnect.TABLES:
            reasons.update(filter(None, map(interconnect.why_not, observed.read(stem))))
    return dict(reasons.most_common())
