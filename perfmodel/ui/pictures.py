"""Pictures of the page as PNG, drawn by `perfmodel.report` in its one style; small, so that a phone shows them too.

Answers are the same objects as long as the question is, so their pictures are drawn once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any

from perfmodel.planner import Job
from perfmodel.report import plots
from perfmodel.report.job_plot import phase_bars
from perfmodel.report.serving_plot import tpot, ttft
from perfmodel.report.style import drawn, legend_above, thin_ticks
from perfmodel.serving import Comparison, ServingCurve
from perfmodel.step import MemoryReport

KEPT = 48  # pictures kept in memory, of some 40 kB each
Points = tuple[tuple[float, float], ...]  # concurrency, figure
SIZE = (5.4, 3.8)  # inches
_LOCK = Lock()  # matplotlib's style is one for all threads; sessions of the page are threads


def png(draw: Callable[[Any], Any], size: tuple[float, float] = SIZE) -> bytes:
    """What ``draw`` puts on new axes."""
    with _LOCK:
        return drawn(draw, ".png", size)


@lru_cache(maxsize=KEPT)
def memory(report: MemoryReport) -> bytes:
    """What a GPU of each stage holds, against its memory."""

    def draw(ax: Any) -> None:
        plots.memory_bars(report, ax=ax)
        ax.set_title("")  # the page says it above
        ax.set_xlabel("ranks of a stage, and its layers below")
        thin_ticks(ax)

    return png(draw)


@lru_cache(maxsize=KEPT)
def throughput(curves: tuple[ServingCurve, ...], reports: tuple[MemoryReport, ...], measured: Points = ()) -> bytes:
    """Output tokens/s over concurrency; ``measured`` points belong to the first curve."""

    def draw(ax: Any) -> None:
        plots.throughput(Comparison(curves, reports), ax=ax, measured={0: measured})
        thin_ticks(ax)
        legend_above(ax)

    return png(draw)


@lru_cache(maxsize=KEPT)
def latency(curves: tuple[ServingCurve, ...], name: str, measured: Points = ()) -> bytes:
    """TTFT or TPOT over concurrency with bands. ``name`` is ttft_s or tpot_s, ``measured`` is in ms."""

    picture = {"ttft_s": ttft, "tpot_s": tpot}[name]

    def draw(ax: Any) -> None:
        picture(Comparison(curves, ()), ax=ax, measured={0: measured})
        thin_ticks(ax)
        legend_above(ax)

    return png(draw)


@lru_cache(maxsize=KEPT)
def scatter(found: Any, fit: bool) -> bytes:
    """Predicted over measured tokens/s of a calibration's rows, before the fit and, where asked for, after."""
    pairs = [(p, m, "shipped factors") for p, m in zip(found.before, found.measured, strict=True)]
    pairs += [(p, m, "fitted factors") for p, m in zip(found.after, found.measured, strict=True) if fit]

    def draw(ax: Any) -> None:
        plots.predicted_vs_measured(pairs, ax=ax)
        ax.set_title("")  # it counts the points of both

    return png(draw)


@lru_cache(maxsize=KEPT)
def jobs(found: tuple[tuple[str, Job], ...]) -> bytes:
    """Hours of each strategy by what they go to, with the band of the whole."""

    def draw(ax: Any) -> None:
        phase_bars([job for _, job in found], [label for label, _ in found], ax)
        legend_above(ax)

    return png(draw, (SIZE[0], 1.6 + 0.6 * len(found)))


@lru_cache(maxsize=KEPT)
def course(job: Job) -> bytes:
    """One job over time."""

    def draw(ax: Any) -> None:
        plots.plot(job, ax=ax)
        ax.set_title("")

    return png(draw)
