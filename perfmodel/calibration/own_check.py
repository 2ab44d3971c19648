"""`perfmodel validate own`: three points of every long sweep that ships, fitted as a user's own; how is the rest met?

The prior of a served sweep is a fit of all accelerators that has not seen its source; that of the sweeps of Kimi on
RTX PRO 6000 is the shipped calibration, whose fitted sweeps are marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfmodel.calibration import fleet
from perfmodel.calibration.posterior import NOISE, Problem, solve
from perfmodel.calibration.served import left_out
from perfmodel.insight import observed, served
from perfmodel.insight.observed import Series
from perfmodel.insight.validate import factors_for
from perfmodel.step.factors import Z80, Factors

LEAST = 6               # points of a sweep
TARGET = 0.05           # of the median error on the rest


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep: errors of the points that were not given, before and after, and how many lie in their bands."""

    name: str
    kind: str           # served, or decode
    seen: bool          # the prior was fitted on it
    points: int
    rest: int
    before: float       # median error
    after: float
    in_band: int
    half_width: float   # median
    errors: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class OwnCheck:
    """All sweeps, and the figure that counts: the median over sweeps of their median error on the rest."""

    sweeps: tuple[Sweep, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"target": TARGET, "groups": [asdict(group) for group in self.groups],
                "sweeps": [asdict(sweep) for sweep in self.sweeps]}

    @property
    def groups(self) -> tuple[Group, ...]:
        """All sweeps, by kind, and those that the prior had not seen."""
        named: dict[str, list[Sweep]] = {"all sweeps": list(self.sweeps)}
        for one in self.sweeps:
            named.setdefault(one.kind, []).append(one)
            if not one.seen:
                named.setdefault("unseen by the prior", []).append(one)
        return tuple(_group(name, sweeps) for name, sweeps in named.items())

    def text(self) -> str:
        """Tables of at most 80 columns."""
        head = f"{'':24}{'sweeps':>7}{'rest':>6}{'before':>8}{'after':>7}{'<= 5 %':>8}{'p90':>6}{'in band':>9}{'+-':>5}"
        lines = ["three own points of a sweep given: lowest, middle, highest concurrency", head]
        lines += [f"{g.name:24}{g.sweeps:7}{g.rest:6}{100 * g.before:7.1f}%{100 * g.after:6.1f}%{100 * g.met:7.0f}%"
                  f"{100 * g.error_p90:5.0f}%{100 * g.coverage:8.0f}%{100 * g.half_width:4.0f}%" for g in self.groups]
        worst = sorted(self.sweeps, key=lambda one: -one.after)[:10]
        lines += ["", "before, after: median over sweeps of the median error on the points not given;",
                  "p90, in band, +-: over all such points, 80 % bands and their median half-width", "",
                  "furthest off:", *(f"{one.name[:60]:62}{100 * one.before:6.1f}%{100 * one.after:6.1f}%"
                                     for one in worst)]
        return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True, slots=True)
class Group:
    """Scores of some sweeps."""

    name: str
    sweeps: int
    rest: int
    before: float
    after: float
    met: float          # share of sweeps within the target
    error_p90: float
    coverage: float
    half_width: float


def _group(name: str, sweeps: list[Sweep]) -> Group:
    rest = sum(one.rest for one in sweeps)
    after = np.array([one.after for one in sweeps])
    return Group(name, len(sweeps), rest, float(np.median([one.before for one in sweeps])), float(np.median(after)),
                 float(np.mean(after <= TARGET)), float(np.percentile([e for one in sweeps for e in one.errors], 90)),
                 sum(one.in_band for one in sweeps) / rest, float(np.median([one.half_width for one in sweeps])))


def check(progress: Callable[[Iterable[Any]], Iterable[Any]] = lambda items: items) -> OwnCheck:
    """Fit three points of every long sweep and score the others."""
    unseen = _unseen_priors()
    jobs = [(name, "served", one, unseen.get((one.accelerator, one.rows[0].sweep)), False) for name, one in _served()]
    jobs += [(name, "decode", one, factors_for(one), one.rows[0].use == "fit") for name, one in _decode()]
    return OwnCheck(tuple(_score(name, kind, one, prior, seen) for name, kind, one, prior, seen in progress(jobs)
                          if prior is not None))


def _score(name: str, kind: str, one: Series, prior: Factors, seen: bool) -> Sweep:
    count = len(one.rows)
    given = [0, count // 2, count - 1]
    rest = [i for i in range(count) if i not in given]
    used = one.uses or frozenset(prior.names)
    names = tuple(n for n, sd in zip(prior.names, prior.sd, strict=True) if sd > 0 and n in used)
    batch = np.array([row.concurrency for row in one.rows])
    part = Series(tuple(one.rows[i] for i in given), lambda factors: one.seconds(factors)[:, given],
                  one.tokens[given], one.accelerator, one.engine, uses=one.uses)
    found = solve(Problem(((part, [0, 1, 2]),), batch[given], ("own",) * 3), names, prior)
    whole = Problem(((one, list(range(count))),), batch, ("own",) * count)
    before = whole.linear(prior, ())[0][rest]
    residuals, slopes, curve = whole.linear(found.fit.factors, names)
    after = (residuals + curve * found.difference(batch))[rest]
    sd = np.sqrt(NOISE**2 + np.maximum(np.diag(found.prediction(slopes[rest], curve[rest], batch[rest])), 0.0))
    errors = np.abs(np.expm1(after))
    return Sweep(name, kind, seen, count, len(rest), float(np.median(np.abs(np.expm1(before)))),
                 float(np.median(errors)), int(np.sum(np.abs(after) <= Z80 * sd)),
                 float(np.median(np.expm1(Z80 * sd))), tuple(errors.tolist()))


def _served() -> list[tuple[str, Series]]:
    """Served sweeps: one document, deployment, date and pair of lengths."""
    keys = (*served.KEYS, "engine", "isl", "osl", "date", "engine_version")
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in observed.read(served.SERVED):
        groups.setdefault(tuple(row[key] for key in dict.fromkeys(keys)), []).append(row)
    found = []
    for rows in groups.values():
        rows = sorted(rows, key=lambda row: float(row["concurrency"]))
        if len({row["concurrency"] for row in rows}) == len(rows) >= LEAST:
            row = rows[0]
            name = f"{served.source_of(row)} {float(row['isl']):g}/{float(row['osl']):g} tp{row['tp']}"
            found.append((name, served._series(rows)))
    return found


def _decode() -> list[tuple[str, Series]]:
    """Decode sweeps over concurrency, without speculation."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in observed.read(observed.SWEEPS):
        if not observed.why_not(row) and row["metric"] == "decode_throughput":
            groups.setdefault(row["sweep"], []).append(row)
    found = []
    for name, rows in groups.items():
        rows = sorted(rows, key=lambda row: float(row["concurrency"]))
        if len({row["concurrency"] for row in rows}) == len(rows) >= LEAST:
            found.append((name, observed._decode(rows)))
    return found


def _unseen_priors() -> dict[tuple[str, str], Factors]:
    """For every accelerator and source: the factors of a fit without that source."""
    priors = {}
    for name, fitted in fleet.run().fits.items():
        for label, _, x, covariance in left_out(fitted, fleet.sources_of(fitted)):
            priors[name, label] = fitted.factors(label.rpartition("/")[2], x, covariance)
    return priors
