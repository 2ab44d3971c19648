"""The picture of a collective: time over message size, everything that could run, and what does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import BadInput
from perfmodel.report.layout import over_gpus
from perfmodel.report.style import COLOURS, MARKERS, plain_ticks, styled, title
from perfmodel.units import format_bytes

if TYPE_CHECKING:
    from perfmodel.step.collective import CollectiveCost


def plot_collective(cost: CollectiveCost, ax: Any = None, measured: Any = ()) -> Any:
    """Time over message size on logarithmic axes: a thin line for each algorithm, a thick one for the one that runs.

    ``measured`` holds pairs of bytes and seconds, drawn as points.
    """
    sizes = np.atleast_1d(np.asarray(cost.message_bytes, float)).ravel()
    if len(np.unique(sizes)) < 2 or not cost.curves:
        raise BadInput("the picture of a collective needs two message sizes and two ranks at least")
    return styled(lambda axes: _draw(cost, sizes, measured, axes), ax)


def _draw(cost: CollectiveCost, sizes: np.ndarray, measured: Any, ax: Any) -> None:
    order = np.argsort(sizes)
    x = sizes[order]

    def microseconds(values: Any) -> np.ndarray:
        return 1e6 * np.broadcast_to(np.asarray(values, float), np.shape(cost.message_bytes)).ravel()[order]

    shown = {name: times for name, times in cost.curves.items() if np.all(np.isfinite(np.asarray(times, float)))}
    for i, (name, times) in enumerate(shown.items()):
        ax.plot(x, microseconds(times), color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
                linestyle="--" if i >= len(COLOURS) else "-",
                linewidth=1.0, markersize=3.5, markevery=max(1, len(x) // 12), label=name)  # fmt: skip
    point = microseconds(cost.seconds)
    ax.fill_between(x, microseconds(cost.seconds_low), microseconds(cost.seconds_high), color="#999999", alpha=0.25,
                    linewidth=0, label="80 % band")  # fmt: skip
    ax.plot(x, point, color="black", linewidth=4.5, alpha=0.35, solid_capstyle="round", zorder=1, label="what runs")
    if len(measured):
        bytes_, seconds = np.asarray(measured, float).T
        ax.scatter(bytes_, 1e6 * seconds, color="black", marker="x", s=28, zorder=4, label="measured")
    _name_what_runs(cost, x, point, order, ax)
    ax.set(xscale="log", yscale="log", xlabel="message [B, as nccl-tests prints it]", ylabel="time [us]")
    ax.set_ylim(
        0.6 * min(float(np.min(microseconds(t))) for t in (cost.seconds, *shown.values())), 2.5 * float(np.max(point))
    )
    _ticks(ax, x)
    plain_ticks(ax.yaxis)
    title(ax, f"{cost.op} {over_gpus(cost.ranks)}; {cost.assumptions[0].partition(':')[0]}")
    ax.legend(loc="upper left", ncols=2)


def _name_what_runs(cost: CollectiveCost, x: np.ndarray, point: np.ndarray, order: np.ndarray, ax: Any) -> None:
    """A word below the curve where another algorithm or protocol takes over."""
    kernels, protocols = (np.broadcast_to(np.asarray(v, object), np.shape(cost.message_bytes)).ravel()[order]
                          for v in (cost.algorithm, cost.protocol))
    words = [str(p) if k == "nccl" else str(k).removeprefix("custom_").replace("_", " ")
             for k, p in zip(kernels, protocols, strict=True)]
    for i, word in enumerate(words):
        if i == 0 or words[i - 1] != word:
            ax.annotate(word, (x[i], point[i]), (2, -16), textcoords="offset points", fontsize=9, fontweight="bold")
            if i:
                ax.axvline(x[i], color="#888888", linewidth=0.8, linestyle=":")


def _ticks(ax: Any, x: np.ndarray) -> None:
    """Powers of two, named in binary units."""
    powers = 2.0 ** np.arange(np.ceil(np.log2(x[0])), np.floor(np.log2(x[-1])) + 1)
    kept = powers[:: 1 + len(powers) // 9]
    ax.set_xticks(kept, [_size(value) for value in kept])
    ax.minorticks_off()


def _size(value: float) -> str:
    unit = next((u for u, least in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)) if value >= least), "B")
    return f"{value:.0f} B" if unit == "B" else format_bytes(value, unit, 0)
