"""Speculative decoding beside measurements: rates of public sweeps whose acceptance somebody states."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment, deploy, varied
from perfmodel.engines.speculation import speculation
from perfmodel.insight import observed
from perfmodel.insight.observed import decode_seconds, read
from perfmodel.step.factors import factors_of

DATA = "speculative"
ACCEPT = re.compile(r"\baccept (0\.\d+)")
# Rows of the sweeps that another reason than speculation makes unusable
APART = (("forced to FP8", "activations of another format"), ("communication variant", "communication varied"),
         ("starved", "KV limited"), ("KV limited", "KV limited"), ("cold", "cold start"),
         ("8 of 16 GPUs", "another node"))


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured rate beside its prediction."""

    id: str
    sweep: str
    concurrency: float
    tokens: float           # of a step, as the source states acceptance
    own: bool               # whether the acceptance is the row's own, not the mean of its document
    measured: float         # tok/s
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Distance of predicted / measured from one."""
        return abs(self.predicted / self.measured - 1)


@dataclass(frozen=True, eq=False)
class SpeculationCheck:
    """All rows that are compared, and how many are not, by reason."""

    rows: tuple[Compared, ...]
    excluded: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"rows": [asdict(row) for row in self.rows], "excluded": self.excluded}

    def text(self) -> str:
        """Tables of at most 80 columns."""
        groups: dict[str, list[Compared]] = {}
        for row in self.rows:
            model = row.sweep.partition("/")[0].partition("-")[0]
            groups.setdefault("all", []).append(row)
            groups.setdefault(f"{model}, {'own' if row.own else 'mean'} acceptance", []).append(row)
            groups.setdefault(f"{model}, C = {row.concurrency:g}", []).append(row)
        head = f"{'speculative decoding':34}{'rows':>5}{'ratio':>7}{'error':>7}{'p90':>6}{'in band':>9}{'width':>7}"
        lines = [head]
        for name, rows in groups.items():
            ratio = np.array([row.predicted / row.measured for row in rows])
            inside = np.mean([row.low <= row.measured <= row.high for row in rows])
            width = np.median([row.high / row.predicted - 1 for row in rows])
            lines.append(f"{name:34}{len(rows):5}{np.median(ratio):7.2f}{100 * np.median(abs(ratio - 1)):6.0f}%"
                         f"{100 * np.percentile(abs(ratio - 1), 90):5.0f}%{100 * inside:8.0f}%{100 * width:6.0f}%")
        return "\n".join([*lines, "", f"{sum(self.excluded.values())} rows are not compared:",
                          *(f"{count:6}  {reason}" for reason, count in self.excluded.items())])


def check() -> SpeculationCheck:
    """Price every row whose acceptance is stated."""
    means = {row["dcp"]: row["accept"] for row in read(DATA) if row["metric"] == "acceptance"}
    spread = _spread()
    excluded: Counter[str] = Counter()
    rows: list[Compared] = []
    for row in read(observed.SWEEPS):
        if row["spec"] in ("", "off") or row["metric"] != "decode_throughput":
            continue
        reason = next((why for mark, why in APART if mark in row["notes"]), "")
        if reason or row["dcp"] not in means:
            excluded[reason or "acceptance not stated"] += 1
            continue
        own = ACCEPT.search(row["notes"])
        accept = f"{1 + 3 * float(own[1]):.3f}" if own else means[row["dcp"]]
        d = _spoken(observed.deployment_of(row), f"eagle3:3:{accept}")
        rows.append(_compared(row["id"], row["sweep"], d, float(row["concurrency"]), observed.context_of(row),
                              float(row["value"]), bool(own), 0.0 if own else spread))
    for row in read(DATA):
        if row["use"] == "unusable":
            excluded[row["notes"].removeprefix("unusable: ")] += 1
        elif row["metric"] == "output_tok_s":
            d = deploy(row["model"], node=f"{row['n_gpus']}x-{row['gpu']}", engine=row["engine"], tp=int(row["tp"]),
                       speculative=f"{row['method']}:{row['drafts']}:{row['accept']}")
            rows.append(_compared(row["id"], row["sweep"], d, 1.0, float(row["isl"]) + float(row["osl"]) / 2,
                                  float(row["value"]), True))
    return SpeculationCheck(tuple(rows), dict(excluded.most_common()))


def _spread() -> float:
    """Deviation of the logarithm of the tokens a step between rows that state their own acceptance."""
    found = [ACCEPT.search(row["notes"]) for row in read(observed.SWEEPS)
             if row["metric"] == "decode_throughput" and row["spec"].startswith("Eagle3")]
    return float(np.std(np.log([1 + 3 * float(match[1]) for match in found if match])))


def _spoken(d: Deployment, word: str) -> Deployment:
    """The same deployment with drafts."""
    given = {f.name: getattr(d.requested, f.name) for f in fields(d.requested) if f.name not in ("engine", "version")}
    return varied(d, **{**given, "speculative": word})


def _compared(name: str, sweep: str, d: Deployment, load: float, context: float, measured: float, own: bool,
              spread: float = 0.0) -> Compared:
    spec = speculation(d.options.speculative)
    assert spec is not None
    factors = factors_of(d)
    factors = replace(factors, residual_sd=float(np.hypot(factors.residual_sd, spread)))
    seconds = decode_seconds(d, np.array([load]), np.array([context]))(factors.draws(2)) / spec.tokens
    point, low, high = (load / float(value[0]) for value in factors.band(seconds))
    return Compared(name, sweep, load, spec.tokens, own, measured, point, min(low, high), max(low, high))
