"""The picture of a validation: predicted against measured, fitted sources and unseen ones side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.style import COLOURS, MARKERS, STYLE, check_path, plain_ticks, write_figure

if TYPE_CHECKING:
    from perfmodel.insight.validate import Compared

FACTOR = 1.3            # the lines beside the diagonal: predictions that are off by so much


def save_speed(fitted: Iterable[Compared], unseen: Iterable[Compared], path: str | os.PathLike[str]) -> Path:
    """Draw both panels into a file (.png, .svg or .pdf)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = check_path(path)
    with rc_context(STYLE):
        figure = Figure(figsize=(11.0, 5.2), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for ax, words, rows in zip(panels, ("fitted sources", "unseen sources"), (fitted, unseen), strict=True):
            _panel(ax, words, [row for row in rows if row.unit == "s"])
        panels[0].set_ylabel("predicted time per output token [ms]")
        panels[1].legend(loc="upper left", ncols=2)
        return write_figure(figure, file)


def _panel(ax: Any, words: str, rows: list[Compared]) -> None:
    """Measured on x, predicted on y, a colour and a mark for every engine; rows that are only checked in outline."""
    for i, engine in enumerate(sorted({row.sweep.split("/")[3] for row in rows})):
        for use, filled in (("fit", True), ("check", False)):
            mine = [row for row in rows if row.sweep.endswith(f"/{engine}") and row.use == use]
            ax.scatter([1e3 * row.measured for row in mine], [1e3 * row.predicted for row in mine], s=11, alpha=0.55,
                       marker=MARKERS[i], facecolors=COLOURS[i] if filled else "none", edgecolors=COLOURS[i],
                       linewidths=0.0 if filled else 0.7, label=engine if filled else f"{engine}, check")
    kept = [row for row in rows if row.use == "fit"]
    inside = float(np.mean([row.in_band for row in kept]))
    error = float(np.median([abs(row.ratio - 1) for row in kept]))
    ends = np.array([1.0, 2000.0])
    for factor in (1.0, FACTOR, 1 / FACTOR):
        ax.plot(ends, factor * ends, color="black", linewidth=1.0 if factor == 1.0 else 0.7,
                linestyle="-" if factor == 1.0 else ":", zorder=0)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured time per output token [ms]")
    plain_ticks(ax.xaxis, ax.yaxis)
    ax.set_title(f"{words}: {len(kept)} rows, median error {100 * error:.0f} %, {100 * inside:.0f} % inside their band")
