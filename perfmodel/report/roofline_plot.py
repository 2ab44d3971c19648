"""The roofline of a GPU with the operations of a step on it: how far each is from the roof, and which roof it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import BadInput
from perfmodel.report.layout import heading
from perfmodel.report.style import COLOURS, MARKERS, plain_ticks, styled, title

if TYPE_CHECKING:
    from perfmodel.step import StepCost

MOST = 7  # operations with a colour of their own, the largest by time


def roofline(cost: StepCost, ax: Any = None, most: int = MOST) -> Any:
    """FLOP/s over FLOP per byte, both of one GPU, on logarithmic axes. A line joins one operation over the points.

    Solid roofs are those of the datasheet, dashed ones what the calibration says is reached by dense products. The area
    of a mark is its share of the step. Communication, host and pipeline have no arithmetic and are named in the title.
    """
    return styled(lambda axes: _draw(cost, most, axes), ax)


def marks(cost: StepCost) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """FLOP per byte, FLOP/s and share of the step of all that computes, one entry a point, largest first."""
    shape = np.shape(cost.seconds)

    def flat(value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, float), shape).ravel()

    found = {}
    for row in cost.rows:
        flop, moved, seconds = flat(row.flop), flat(row.bytes), flat(row.seconds)
        if np.all(flop > 0) and np.all(moved > 0) and np.all(seconds > 0):
            found[row.name] = (flop / moved, flop / seconds, seconds / flat(cost.seconds))
    return dict(sorted(found.items(), key=lambda item: -float(item[1][2].max())))


def roofs(cost: StepCost) -> dict[str, float]:
    """Peaks of the number formats that this model is multiplied in here, by format. [FLOP/s]"""
    from perfmodel.placement import place
    from perfmodel.step.machine import machine_of

    d = cost.deployment
    machine = machine_of(place(d))
    forms = ["bf16", *(name for name, _ in d.formats.values())]  # attention computes in BF16 whatever weights are
    return {machine.arithmetic_of(form): machine.peak_of(form) for form in forms}


def _draw(cost: StepCost, most: int, ax: Any) -> None:
    found, peaks, d = marks(cost), roofs(cost), cost.deployment
    if not found:
        raise BadInput("no operation of this step both computes and moves bytes")
    bandwidth = float(d.accelerator.memory.bandwidth)
    x = np.concatenate([intensity for intensity, _, _ in found.values()])
    y = np.concatenate([rate for _, rate, _ in found.values()])
    ridge = max(peaks.values()) / bandwidth
    left, right = 0.4 * min(float(x.min()), ridge), 4 * max(float(x.max()), ridge)
    _roofs(d, peaks, bandwidth, np.geomspace(left, right, 200), ax)
    for i, (name, (intensity, rate, share)) in enumerate(found.items()):
        named = i < most
        colour = COLOURS[i] if named else "#AAAAAA"
        label = name if named else "smaller operations" if i == most else None
        ax.plot(intensity, rate / 1e12, color=colour, linewidth=0.8, zorder=3)
        ax.scatter(intensity, rate / 1e12, s=18 + 500 * share, color=colour, alpha=0.85, edgecolors="white",
                   linewidths=0.6, marker=MARKERS[i] if named else ".", label=label, zorder=4)  # fmt: skip
    top = 4 * max(peaks.values()) / 1e12
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(0.4 * float(y.min()) / 1e12, top))
    ax.set_xlabel("arithmetic intensity [FLOP/B]")
    ax.set_ylabel("rate of one GPU [TFLOP/s]")
    plain_ticks(ax.xaxis, ax.yaxis)
    title(ax, f"{heading(d)}\n{_asked(cost)}; {_away(cost, found)}")
    legend = ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), scatterpoints=1)
    for handle in legend.legend_handles:
        if handle is not None and hasattr(handle, "set_sizes"):
            handle.set_sizes([36])


def _roofs(d: Any, peaks: dict[str, float], bandwidth: float, x: np.ndarray, ax: Any) -> None:
    """Memory's slope once, a ceiling for every number format; dashed what the calibration says is reached."""
    for i, (form, peak) in enumerate(sorted(peaks.items(), key=lambda item: -item[1])):
        ax.plot(x, np.minimum(peak, x * bandwidth) / 1e12, color="black", linewidth=1.5, zorder=2,
                label=f"peak of the datasheet,\n{bandwidth / 1e12:.3g} TB/s" if i == 0 else None)
        ax.annotate(f"{form}, {peak / 1e12:,.0f} TFLOP/s", (x[-1], peak / 1e12), (-2, 3), textcoords="offset points",
                    ha="right", fontsize=8)  # fmt: skip
    known = d.calibration.parameters
    memory, dense = known.get("dram_efficiency"), known.get("gemm_efficiency")
    if memory is not None and dense is not None and "bf16" in peaks:
        reached = np.minimum(peaks["bf16"] * dense.value, x * bandwidth * memory.value)
        ax.plot(x, reached / 1e12, color="black", linewidth=1.0, linestyle="--", zorder=2, label="reached, dense bf16")


def _asked(cost: StepCost) -> str:
    """What was asked, from the smallest to the largest."""
    words = []
    for name, values in cost.question.items():
        low, high = float(np.min(values)), float(np.max(values))
        words.append(f"{name} {low:,g}" + (f" to {high:,g}" if high > low else ""))
    return f"{cost.phase}, {', '.join(words)}"


def _away(cost: StepCost, found: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> str:
    """How much of the step is no arithmetic."""
    rest = 1 - np.sum([share for _, _, share in found.values()], axis=0)
    low, high = (f"{100 * float(end):.0f}" for end in (rest.min(), rest.max()))
    return f"{low if low == high else f'{low} to {high}'} % of the step has no arithmetic"
