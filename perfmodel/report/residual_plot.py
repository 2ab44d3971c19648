"""The pictures of a calibration: residuals over the batch, and predicted against measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.report.style import COLOURS, SIZE, STYLE, check_path, log2_axis, plain_ticks, styled, write_figure

LABELS = (("before", COLOURS[1], "s"), ("after", COLOURS[0], "o"))


def draw(measured: np.ndarray, before: np.ndarray, after: np.ndarray, load: Sequence[float], ax: Any = None) -> Any:
    """Predicted over measured, by requests in flight."""
    def residuals(axes: Any) -> None:
        for values, (label, colour, marker) in zip((before, after), LABELS, strict=True):
            axes.plot(load, values / measured, linestyle="", marker=marker, color=colour, label=label)
        axes.axhline(1.0, color="0.5", linewidth=0.8)
        axes.axhspan(0.95, 1.05, color="0.5", alpha=0.15, linewidth=0, label="within 5 %")
        axes.set(xlabel="sequences, or requests in flight [count]",
                 ylabel="predicted / measured output throughput [1]", title="residuals")
        log2_axis(axes, load)
        axes.legend()

    return styled(residuals, ax)


def draw_against(measured: np.ndarray, before: np.ndarray, after: np.ndarray, ax: Any = None) -> Any:
    """Predicted against measured, on logarithmic axes."""
    def against(axes: Any) -> None:
        everything = np.concatenate([measured, before, after])
        ends = [0.8 * float(everything.min()), 1.25 * float(everything.max())]
        axes.plot(ends, ends, color="0.5", linewidth=0.8)
        for values, (label, colour, marker) in zip((before, after), LABELS, strict=True):
            axes.plot(measured, values, linestyle="", marker=marker, color=colour, label=label)
        axes.set(xscale="log", yscale="log", xlabel="measured output throughput [tokens/s]",
                 ylabel="predicted output throughput [tokens/s]",
                 title="predicted against measured")
        plain_ticks(axes.xaxis, axes.yaxis)
        axes.legend()

    return styled(against, ax)


def save(path: str | os.PathLike[str], measured: np.ndarray, before: np.ndarray, after: np.ndarray,
         load: Sequence[float]) -> Path:
    """Both pictures side by side in a file, whole or not at all; needs no display."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = check_path(path)
    with rc_context(STYLE):
        figure = Figure(figsize=(2 * SIZE[0], SIZE[1]), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw(measured, before, after, load, left)
        draw_against(measured, before, after, right)
        return write_figure(figure, file)
