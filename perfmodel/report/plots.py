"""Pictures of nouns: which there are, and those of memory, step and throughput. Their style is in style.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import BadInput, UnknownName
from perfmodel.report.layout import heading, labels, no_fit
from perfmodel.report.style import COLOURS as COLOURS
from perfmodel.report.style import (
    LINES,
    MARKERS,
    SIZE,
    legend_beside,
    log2_axis,
    plain_ticks,
    stack,
    styled,
    title,
    write_figure,
)
from perfmodel.report.style import STYLE as STYLE
from perfmodel.report.style import check_path as check_path

if TYPE_CHECKING:
    from perfmodel.report.measured import Point
    from perfmodel.serving import Comparison, ServingCurve
    from perfmodel.step import MemoryReport, StepCost

GROUPS = {  # parts of memory that share a colour
    "experts": "routed experts",
    "attention": "attention",
    "absorbed MLA copies": "attention",
    "KV pool": "KV pool",
}


# noun -> the pictures that it has, the first where none is named; each a function of a module in this folder
PICTURES: dict[str, dict[str, str]] = {
    "MemoryReport": {"memory": "plots.memory_bars"},
    "StepCost": {"bars": "plots.step_bars", "roofline": "roofline_plot.roofline"},
    "ServingCurve": {"throughput": "plots.throughput", "ttft": "serving_plot.ttft", "tpot": "serving_plot.tpot",
                     "parts": "serving_plot.parts"},
    "Comparison": {"throughput": "plots.throughput", "ttft": "serving_plot.ttft", "tpot": "serving_plot.tpot"},
    "CollectiveCost": {"time": "interconnect_plot.plot_collective"},
    "Plan": {"pareto": "plan_plot.plot_plan"},
    "Simulation": {"timeline": "simulation_text.plot_timeline"},
    "Job": {"timeline": "job_plot.plot_job", "phases": "job_plot.phases"},
    "JobComparison": {"phases": "job_plot.phases", "timeline": "job_plot.plot_job"},
    "InTime": {"timeline": "job_plot.plot_job"},
    "Forecast": {"timeline": "job_plot.plot_job"},
    "Node": {"topology": "topology_plot.topology"},
}  # fmt: skip


def plot(noun: Any, ax: Any = None, kind: str | None = None, **keywords: Any) -> Any:
    """Draw a result on matplotlib axes (new ones without ``ax``) and return them; ``kind`` is one of its `PICTURES`."""
    name = type(noun).__name__
    if name not in PICTURES:
        raise BadInput(f"a {name} has no picture; these have one: {', '.join(PICTURES)}")
    known = PICTURES[name]
    if kind is not None and kind not in known:
        raise UnknownName(f"picture of a {name}", kind, known)
    module, _, function = known[kind or next(iter(known))].partition(".")
    return getattr(import_module(f"perfmodel.report.{module}"), function)(noun, ax=ax, **keywords)


def save(noun: Any, path: str | os.PathLike[str], **keywords: Any) -> Path:
    """Write the picture of a result, whole or not at all; needs no display."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = check_path(path)
    with rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        plot(noun, ax=figure.add_subplot(), **keywords)
        return write_figure(figure, file)


def memory_bars(report: MemoryReport, ax: Any = None) -> Any:
    """What a rank of each stage holds, against the memory of the card."""
    return styled(lambda axes: _memory_bars(report, axes), ax)


def memory_groups(report: MemoryReport) -> dict[str, np.ndarray]:
    """GB on one rank of each stage by group of parts, without what is free."""
    stages = range(report.placement.stages)
    names = ("routed experts", "attention", "other weights", "KV pool", "runtime")
    groups = {name: np.zeros(len(stages)) for name in names}
    weights = set(report.placement.parts)
    for stage in stages:
        for name, size in report.parts(stage).items():
            group = GROUPS.get(name, "other weights" if name in weights else "runtime")
            groups[group][stage] += size / 1e9
    return groups


def _memory_bars(report: MemoryReport, ax: Any) -> None:
    from perfmodel.report.text import ranks_of

    d, stages = report.deployment, report.placement.stages
    at, groups = np.arange(stages, dtype=float), memory_groups(report)
    limit = d.facts.gpu_memory_bytes / 1e9
    height = stack(ax, at, groups, 0.72)
    free = np.maximum(limit - height, 0.0)
    ax.bar(at, free, 0.72, bottom=height, label="free", color="white", edgecolor="#888888", linewidth=0.8)
    gib = limit * 1e9 / 2**30
    ax.axhline(limit, color="black", linewidth=1.2, label=f"memory of the GPU:\n{limit:.1f} GB = {gib:.1f} GiB")
    layers = report.placement.layers
    ax.set_xticks(at, [f"{ranks_of(i, d.options.tp)}\n{int(layers[i])}" for i in range(stages)])
    ax.set_xlabel("pipeline stage: its ranks, and below them its layers [count]")
    ax.set_xlim(-0.6 - (1.2 if stages == 1 else 0), stages - 0.4 + (1.2 if stages == 1 else 0))
    ax.set_ylim(0, 1.1 * max(limit, float(height.max())))
    ax.set_ylabel("memory of one GPU [GB]")
    ax.grid(axis="x", visible=False)
    answer = "fits" if report.fits else f"{no_fit(report.verdict)}, rank {report.binding_rank} binds"
    title(ax, f"{heading(d)}\n{answer}")
    legend_beside(ax)


def asked_of(curve: ServingCurve) -> Any:
    """What the points of a curve were asked for: concurrencies, or request rates."""
    return curve.concurrency if curve.request_rate is None else curve.request_rate


def throughput(
    noun: ServingCurve | Comparison, ax: Any = None, measured: Mapping[int, Sequence[Point]] | None = None
) -> Any:
    """Output tokens/s over concurrency with 80 % bands; ``measured`` maps a curve's place to its measured points."""
    curves: Sequence[Any] = getattr(noun, "curves", None) or (noun,)
    fits = [report.fits for report in getattr(noun, "memories", ())] or [True] * len(curves)
    return styled(lambda axes: _throughput(curves, fits, measured or {}, axes), ax)


def _throughput(
    curves: Sequence[ServingCurve], fits: Sequence[bool], measured: Mapping[int, Sequence[Point]], ax: Any
) -> None:
    for i, (curve, name) in enumerate(zip(curves, labels([c.deployment for c in curves]), strict=True)):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        point, low, high = (np.asarray(values, float) for values in curve.output_tok_s)
        name = name if fits[i] else f"{name} (does not fit)"
        ax.plot(asked_of(curve), point, color=colour, marker=marker, label=name,
                linestyle=LINES[i % len(LINES)] if fits[i] else ":")  # fmt: skip
        alpha, edge = (0.22, "black") if len(curves) == 1 else (0.1, colour)
        ax.fill_between(asked_of(curve), low, high, color=colour, alpha=alpha, linewidth=0)
        if measured.get(i):
            c, tok_s = zip(*sorted(measured[i]), strict=True)
            ax.scatter(c, tok_s, marker=marker, s=46, facecolors="none", edgecolors=edge, linewidths=1.4, zorder=5,
                       label=f"{name}, measured")  # fmt: skip
    log2_axis(ax, asked_of(curves[0]))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("concurrency [requests in flight]" if curves[0].request_rate is None else "arrivals [requests/s]")
    ax.set_ylabel("output throughput, all GPUs [tokens/s]")
    d = curves[0].deployment
    what = heading(d) if len(curves) == 1 else f"{d.model.name} on {d.node.name}"
    load = f"{curves[0].input_tokens:g} tokens in, {curves[0].output_tokens:g} out; bands 80 %"
    title(ax, f"{what}\n{load}")
    ax.legend(loc="upper left") if len(curves) <= 2 else ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def step_bars(cost: StepCost, ax: Any = None, most: int = 7) -> Any:
    """The rows of a step on top of each other, the smallest as one; they add up to the step."""
    return styled(lambda axes: _step_bars(cost, most, axes), ax)


def step_groups(cost: StepCost, most: int = 7) -> dict[str, np.ndarray]:
    """Milliseconds of each point by row; the rows beyond the largest ``most`` are summed."""
    shape = np.shape(cost.seconds)
    rows: dict[str, np.ndarray] = {}
    for row in cost.rows:
        name = "all-reduce" if row.name.startswith("all-reduce") else row.name
        rows[name] = rows.get(name, 0.0) + 1e3 * np.broadcast_to(np.asarray(row.seconds, float), shape).ravel()
    order = sorted(rows, key=lambda name: -float(np.max(np.abs(rows[name]) / np.sum(list(rows.values()), axis=0))))
    shown = {name: rows[name] for name in order[:most]}
    rest = [rows[name] for name in order[most:]]
    return {**shown, **({f"{len(rest)} smaller rows": np.sum(rest, axis=0)} if rest else {})}


def _step_bars(cost: StepCost, most: int, ax: Any) -> None:
    from perfmodel.report.text import point_names

    names = point_names(cost)
    at = np.arange(len(names), dtype=float)
    groups = step_groups(cost, most)
    height = stack(ax, at, groups, 0.66)
    low, high = (1e3 * np.atleast_1d(np.asarray(v, float)).ravel() for v in (cost.seconds_low, cost.seconds_high))
    below, above = np.maximum(height - low, 0).tolist(), np.maximum(high - height, 0).tolist()
    band = {"fmt": "none", "ecolor": "black", "elinewidth": 1.1, "capsize": 4, "label": "80 % band"}
    ax.errorbar(at, height, [below, above], **band)
    words = np.ravel(np.asarray(cost.bound_by, dtype=object))
    under = np.sum([np.minimum(values, 0.0) for values in groups.values()], axis=0)
    tops = np.maximum(height - under, high)
    for x, top, word in zip(at, tops, words, strict=True):
        ax.annotate(str(word), (x, top), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    ax.set_xticks(at, [name.split(" ", 1)[1].replace(", ", "\n") for name in names])
    first = "batch [sequences of one engine copy]" if cost.phase == "decode" else "prompt [tokens]"
    ax.set_xlabel(f"{first}; the word above a bar says what binds")
    ax.set_ylabel(f"one {cost.phase} step [ms]")
    margin = 0.6 + (1.0 if len(names) == 1 else 0.0)
    ax.set_xlim(-margin, len(names) - 1 + margin)
    ax.set_ylim(1.1 * float(np.min(under)), 1.1 * float(np.max(tops)))
    ax.grid(axis="x", visible=False)
    title(ax, heading(cost.deployment))
    legend_beside(ax)


def predicted_vs_measured(pairs: Iterable[Sequence[Any]], ax: Any = None, unit: str = "tokens/s") -> Any:
    """Predicted over measured on logarithmic axes, with the 45 degree line and a band of 20 %.

    ``pairs`` are (predicted, measured) or (predicted, measured, label); points of one label share colour and marker.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for predicted, measured, *label in pairs:
        groups.setdefault(str(label[0]) if label else "", []).append((float(measured), float(predicted)))
    values = np.array([point for points in groups.values() for point in points], float)
    if values.size == 0 or not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise BadInput("predicted_vs_measured needs pairs of positive, finite numbers")
    return styled(lambda axes: _scatter(groups, values, unit, axes), ax)


def _scatter(groups: Mapping[str, Sequence[tuple[float, float]]], values: np.ndarray, unit: str, ax: Any) -> None:
    line = np.array([values.min() / 1.5, values.max() * 1.5])
    ax.fill_between(line, 0.8 * line, 1.2 * line, color="#999999", alpha=0.25, linewidth=0, label="within 20 %")
    ax.plot(line, line, color="black", linewidth=1.0, label="predicted = measured")
    for i, (label, points) in enumerate(groups.items()):
        x, y = zip(*points, strict=True)
        ax.scatter(x, y, color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)], s=36, zorder=3,
                   edgecolors="white", linewidths=0.5, label=label or None)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlim=line, ylim=line, aspect="equal")
    plain_ticks(ax.xaxis, ax.yaxis)
    ax.set_xlabel(f"measured [{unit}]")
    ax.set_ylabel(f"predicted [{unit}]")
    inside = np.mean(np.abs(values[:, 1] / values[:, 0] - 1) <= 0.2)
    title(ax, f"{len(values)} points, {100 * inside:.0f} % within 20 %")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5)) if len(groups) > 3 else ax.legend(loc="upper left")
