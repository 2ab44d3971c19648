"""A plan as a picture: every point of the search, the Pareto front by strategy, and the chosen plans on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.style import COLOURS, MARKERS, plain_ticks, styled, title

if TYPE_CHECKING:
    from perfmodel.planner import Plan

_MOST_NAMED, _MOST_DOTS = 7, 20_000  # strategies with a colour of their own; points of the cloud that are drawn


def plot_plan(plan: Plan, ax: Any = None) -> Any:
    """Tok/s of a GPU against tok/s of a user, both on logarithmic axes."""

    def draw(ax: Any) -> None:
        user, gpu = plan.cloud["tok_s_per_user"], plan.cloud["tok_s_per_gpu"]
        step = max(1, len(user) // _MOST_DOTS)
        ax.plot(user[::step], gpu[::step], ".", color="#CCCCCC", markersize=1.5, zorder=1, rasterized=True,
                label=f"all {len(user):,} points")
        front = plan.pareto
        ax.plot([p["tok_s_per_user"] for p in front], [p["tok_s_per_gpu"] for p in front], color="#555555",
                linewidth=1.0, zorder=2)
        for (name, points), colour, marker in zip(_grouped(front), COLOURS, MARKERS, strict=False):
            ax.plot([p["tok_s_per_user"] for p in points], [p["tok_s_per_gpu"] for p in points], marker, color=colour,
                    label=name, zorder=3)
        best = plan.choices[0]
        x, y = 1 / best.curve.tpot_s[0][0], best.output_tok_s_per_gpu
        ax.plot([x], [y], "*", color="black", markersize=13, zorder=4, label=f"chosen: {best.name}")
        ax.errorbar([x], [y], **_band(best, x, y), fmt="none", ecolor="black", elinewidth=1.1, capsize=4, zorder=4,
                    label="its 80 % band")
        ax.set(xscale="log", yscale="log", xlabel="speed of one user [tokens/s]",
               ylabel="output throughput of one GPU [tokens/s]")
        title(ax, _title(plan))
        low = np.array([p["tok_s_per_gpu"] for p in front] + [y]).min() / 3
        ax.set_ylim(bottom=low)
        ax.set_xlim(left=np.array([p["tok_s_per_user"] for p in front] + [x]).min() / 2)
        plain_ticks(ax.xaxis, ax.yaxis)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))

    return styled(draw, ax)


def _grouped(front: tuple[dict[str, Any], ...]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Points of the front by strategy, those with most points first; the rest as one."""
    several = len({(p["node"], p["engine"], p["model"]) for p in front}) > 1
    groups: dict[str, list[dict[str, Any]]] = {}
    for point in front:
        name = f"{point['strategy']}, {point['node']}, {point['engine']}" if several else point["strategy"]
        groups.setdefault(name, []).append(point)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rest = [point for _, points in ordered[_MOST_NAMED:] for point in points]
    return ordered[:_MOST_NAMED] + ([("other strategies", rest)] if rest else [])


def _band(best: Any, x: float, y: float) -> dict[str, Any]:
    """How far the chosen plan may lie to either side, both ways."""
    curve = best.curve
    slow, fast = 1 / curve.tpot_s[2][0], 1 / curve.tpot_s[1][0]
    low, high = (y * curve.output_tok_s[side][0] / curve.output_tok_s[0][0] for side in (1, 2))
    return {"xerr": [[max(x - slow, 0)], [max(fast - x, 0)]], "yerr": [[max(y - low, 0)], [max(high - y, 0)]]}


def _title(plan: Plan) -> str:
    names = dict.fromkeys(choice.deployment.node.name for choice in plan.choices)
    return f"{plan.choices[0].deployment.model.name} on {', '.join(names)}: every strategy that fits"
