"""Errors on sources that a fit has not seen: leave out one source, a whole engine, or a whole accelerator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.calibration.fleet import Fleet, HeldOut, held_out, sources_of, spread_for
from perfmodel.calibration.served import Served, discrepancy
from perfmodel.errors import UnknownName
from perfmodel.insight.first_token import KIND as TTFT
from perfmodel.insight.validate import Compared, Score, score, score_line
from perfmodel.serving.closed_loop import TTFT_SD
from perfmodel.step.factors import Z80

GROUPS = ("source", "engine", "gpu")
KIMI_INT4 = "kimi-k2.5"


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Scores of groups of rows, each predicted by a fit without its own group."""

    by: str
    scores: tuple[Score, ...]
    median_of_sources: float

    def text(self) -> str:
        """A table of at most 80 columns."""
        head = f"{'left out: one ' + self.by:30}{'use':6}{'rows':>5}"
        head += f"{'ratio':>7}{'error':>7}{'p90':>6}{'in band':>9}{'width':>7}"
        lines = [head, *(score_line(one) for one in self.scores)]
        return "\n".join([*lines, f"median over sources of their median errors: {100 * self.median_of_sources:.0f}%"])


def held_out_scores(found: Fleet, by: str = "source") -> HeldOutScores:
    """Score every row with a fit that has not seen its source, its engine or its accelerator."""
    if by not in GROUPS:
        raise UnknownName("group to leave out", by, GROUPS)
    rows = [row for f in found.fits.values() for row in compared(f, by)]
    members: dict[tuple[str, str], list[Compared]] = {}
    for row in rows:
        author, model, gpu, engine = row.sweep.removeprefix(f"{TTFT}/").split("/")
        names = [row.kind, f"{row.kind}, by {author}", f"{row.kind}, {engine} {gpu}"]
        names += ["e2e, Kimi INT4"] if model == KIMI_INT4 else []
        for name in {"e2e": names, TTFT: [names[0], names[2]]}.get(row.kind, names[:1]):
            members.setdefault((name, row.use), []).append(row)
    scores = tuple(score(name, use, group) for (name, use), group in sorted(members.items()))
    sources: dict[str, list[float]] = {}
    for row in rows:
        if row.use == "fit" and row.kind != TTFT:
            sources.setdefault(row.sweep, []).append(abs(row.ratio - 1))
    return HeldOutScores(by, scores, float(np.median([np.median(errors) for errors in sources.values()])))


def compared(f: Served, by: str | None) -> list[Compared]:
    """Rows of one accelerator beside predictions of fits without their group, or of the fit itself.

    The residual spread is the file's.
    """
    engines = [s.engine or "" for s in f.series for _ in s.rows]
    sources = sources_of(f)
    labels = {"source": sources, "engine": engines, "gpu": [f.accelerator] * len(f.rows)}
    source = held_out(f, sources)
    out = known(f) if by is None else source if by == "source" else held_out(f, labels[by])
    fitted = np.array([row.use == "fit" and row.kind != TTFT for row in f.rows])
    common = spread_for(source.residuals[fitted], source.parameter_sd[fitted])
    result = []
    for row, residual, sd in zip(f.rows, out.residuals, out.parameter_sd, strict=True):
        own = np.hypot(common, TTFT_SD if row.kind == TTFT else 0.0)
        predicted, spread = row.measured * float(np.exp(residual)), float(np.exp(Z80 * np.hypot(sd, own)))
        result.append(Compared(row.id, row.kind, row.sweep, row.use, False, row.concurrency, row.unit, row.measured,
                               predicted, predicted / spread, predicted * spread))
    return result


def known(f: Served) -> HeldOut:
    """Every row as the fit itself describes it."""
    spread = np.sqrt(np.einsum("ri,ij,rj->r", f.jacobian, f.covariance + discrepancy(f.names), f.jacobian))
    return HeldOut(f.residuals, spread)
