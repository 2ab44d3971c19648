"""Latency of a served model over its load: time to first token, per output token, and what that goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.layout import heading, labels
from perfmodel.report.plots import asked_of
from perfmodel.report.style import curve as look
from perfmodel.report.style import legend_beside, log2_axis, plain_ticks, stack, styled, title

if TYPE_CHECKING:
    from perfmodel.report.measured import Point
    from perfmodel.serving import Comparison, ServingCurve

WORDS = {"ttft_s": "time to first token", "tpot_s": "time per output token"}
WIDE = 30  # a figure that spans more than this gets a logarithmic axis


def ttft(noun: ServingCurve | Comparison, ax: Any = None, measured: Mapping[int, Sequence[Point]] | None = None) -> Any:
    """Time to first token over load, with 80 % bands; ``measured`` maps a curve's place to points in ms."""
    return styled(lambda axes: _latency(noun, "ttft_s", measured or {}, axes), ax)


def tpot(noun: ServingCurve | Comparison, ax: Any = None, measured: Mapping[int, Sequence[Point]] | None = None) -> Any:
    """Time per output token over load, as `ttft`."""
    return styled(lambda axes: _latency(noun, "tpot_s", measured or {}, axes), ax)


def _latency(noun: Any, name: str, measured: Mapping[int, Sequence[Point]], ax: Any) -> None:
    curves: Sequence[Any] = getattr(noun, "curves", None) or (noun,)
    fits = [report.fits for report in getattr(noun, "memories", ())] or [True] * len(curves)
    for i, (one, word) in enumerate(zip(curves, labels([c.deployment for c in curves]), strict=True)):
        word = word if fits[i] else f"{word} (does not fit)"
        point, low, high = (1e3 * np.asarray(values, float) for values in getattr(one, name))
        ax.plot(asked_of(one), point, label=word, **{**look(i), **({} if fits[i] else {"linestyle": ":"})})
        ax.fill_between(asked_of(one), low, high, color=look(i)["color"], alpha=0.1 if len(curves) > 1 else 0.22,
                        linewidth=0)  # fmt: skip
        if measured.get(i):
            c, ms = zip(*sorted(measured[i]), strict=True)
            ax.scatter(c, ms, marker=look(i)["marker"], s=46, facecolors="none", edgecolors="black", linewidths=1.4,
                       zorder=5, label=f"{word}, measured" if len(curves) > 1 else "measured")  # fmt: skip
    log2_axis(ax, asked_of(curves[0]))
    points = np.concatenate([getattr(one, name)[0] for one in curves])
    if points.max() > WIDE * points.min():
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlabel("concurrency [requests in flight]" if curves[0].request_rate is None else "arrivals [requests/s]")
    ax.set_ylabel(f"{WORDS[name]} [ms]")
    d = curves[0].deployment
    what = heading(d) if len(curves) == 1 else f"{d.model.name} on {d.node.name}"
    title(ax, f"{what}\n{curves[0].input_tokens:g} tokens in, {curves[0].output_tokens:g} out; bands 80 %")
    ax.legend(loc="upper left") if len(curves) <= 2 else ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def parts(curve: ServingCurve, ax: Any = None) -> Any:
    """What the time of an output token goes to, by load; the parts add up to it."""
    return styled(lambda axes: _parts(curve, axes), ax)


def _parts(curve: ServingCurve, ax: Any) -> None:
    asked = asked_of(curve)
    at = np.arange(len(asked), dtype=float)
    shown = {name: 1e3 * np.asarray(values, float) for name, values in curve.parts.items() if np.any(values)}
    height = stack(ax, at, shown, 0.66)
    low, high = (1e3 * np.asarray(values, float) for values in curve.tpot_s[1:])
    ax.errorbar(at, height, [np.maximum(height - low, 0), np.maximum(high - height, 0)], fmt="none", ecolor="black",
                elinewidth=1.1, capsize=4, label="80 % band")  # fmt: skip
    ax.set_xticks(at, [f"{value:g}" for value in asked])
    ax.set_xlabel("concurrency [requests in flight]" if curve.request_rate is None else "arrivals [requests/s]")
    ax.set_ylabel("time per output token [ms]")
    ax.grid(axis="x", visible=False)
    title(ax, f"{heading(curve.deployment)}\n{curve.input_tokens:g} tokens in, {curve.output_tokens:g} out")
    legend_beside(ax)
