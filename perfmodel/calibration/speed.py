"""Served TPOT by model, GPU, engine, strategy and concurrency: rows of sources that the fit knows, and left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfmodel.calibration.fleet import Fleet
from perfmodel.calibration.heldout import compared
from perfmodel.insight import observed, parallel, served
from perfmodel.insight.first_token import KIND as TTFT
from perfmodel.insight.validate import LEVEL, Compared, Score, score, score_line

BANDS = ((1, 1), (2, 4), (5, 16), (17, 64), (65, 256), (257, None))
FITTED, UNSEEN = "fitted", "unseen"


@dataclass(frozen=True, eq=False)
class Speed:
    """Every row twice: predicted by the fit, and by one that has not seen its source; scores of groups of both."""

    fitted: tuple[Compared, ...]
    unseen: tuple[Compared, ...]
    scores: dict[str, tuple[Score, ...]]
    sweeps: dict[str, Score]            # medians over sweeps of what each sweep has as median

    def text(self) -> str:
        """A table an axis, of at most 80 columns."""
        out = []
        for axis, scores in self.scores.items():
            out += [f"{'by ' + axis:30}{'':6}{'rows':>5}{'ratio':>7}{'error':>7}{'p90':>6}{'in band':>9}{'width':>7}",
                    *(score_line(one) for one in scores)]
            out += [score_line(one) for one in self.sweeps.values()] if axis == "kind" else []
            out.append("")
        out += ["fitted: the fit has seen the row's source. unseen: the source (document x model",
                "x GPU x engine) was left out. check rows (prefill-bound, bursts) are in no fit.",
                "A sweep is one source and strategy."]
        return "\n".join(line.rstrip() for line in out)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"level": LEVEL, "scores": {axis: [asdict(one) for one in found] for axis, found in self.scores.items()},
                "sweeps": {name: asdict(one) for name, one in self.sweeps.items()},
                "rows": {name: [{**asdict(row), "ratio": row.ratio, "in_band": row.in_band} for row in rows]
                         for name, rows in ((FITTED, self.fitted), (UNSEEN, self.unseen))}}


def speed(found: Fleet) -> Speed:
    """Compare every served time per token and step with the fits of the fleet."""
    known, unseen = (tuple(row for f in found.fits.values() for row in compared(f, by) if row.kind != TTFT)
                     for by in (None, "source"))
    kept = {FITTED: [row for row in known if row.use == "fit"], UNSEEN: [row for row in unseen if row.use == "fit"],
            "check": [row for row in unseen if row.use == "check"]}
    kept = {word: rows for word, rows in kept.items() if rows}
    strategies = _strategies()
    axes = {"kind": lambda row: row.kind, "model": lambda row: row.sweep.split("/")[1],
            "GPU": lambda row: row.sweep.split("/")[2], "engine": lambda row: row.sweep.split("/")[3],
            "strategy": lambda row: strategies.get(row.id, "tp1"), "concurrency": lambda row: band(row.concurrency)}
    scores = {}
    for axis, name_of in axes.items():
        groups: dict[tuple[str, str], list[Compared]] = {}
        for word, rows in kept.items():
            for row in rows:
                groups.setdefault((name_of(row), word), []).append(row)
        order = sorted(groups, key=lambda key: (_order(key[0]), key[1] != FITTED, key[1]))
        scores[axis] = tuple(score(name, word, groups[name, word]) for name, word in order)
    sweeps = {word: _of_sweeps(word, rows, strategies) for word, rows in kept.items()}
    return Speed(known, unseen, scores, sweeps)


def band(concurrency: float) -> str:
    """The band of concurrencies that a row lies in.

    >>> band(1), band(40), band(2048)
    ('C = 1', 'C = 17 to 64', 'C >= 257')
    """
    low, high = next((low, high) for low, high in BANDS if high is None or concurrency <= high)
    return f"C >= {low}" if high is None else f"C = {low}" if low == high else f"C = {low} to {high}"


def _order(name: str) -> tuple[Any, ...]:
    number = name.removeprefix("C = ").removeprefix("C >= ").split(" ")[0]
    return (int(number),) if number.isdigit() else (0, name)


def _strategies() -> dict[str, str]:
    """The strategy of every row by its id: tp, and ep, pp, dp and attention groups where they are not one."""
    rows = [*observed.read(served.SERVED), *observed.read(parallel.PARALLEL)]
    keys = (("ep", "ep"), ("pp", "pp"), ("dp", "dp"), ("dp_attention", "dpa"))
    return {row["id"]: " ".join([f"tp{row['tp']}", *(word + row[key] for key, word in keys if row[key] != "1")])
            for row in rows}


def _of_sweeps(word: str, rows: list[Compared], strategies: dict[str, str]) -> Score:
    """Medians over sweeps, so that a long sweep counts as much as a short one."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        groups.setdefault((row.sweep, strategies.get(row.id, "")), []).append(row)
    each = [score("", "", group) for group in groups.values()]

    def middle(name: str) -> float:
        return float(np.median([getattr(one, name) for one in each]))

    worst = float(np.percentile([one.median_error for one in each], 90))
    return Score("median of sweeps' medians", word, len(each), middle("median_ratio"), middle("median_error"), worst,
                 float(np.mean([one.coverage for one in each])), middle("half_width"), middle("interval_score"))
