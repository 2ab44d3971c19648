"""A job over time: requests that run, and output tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.job_text import PHASES
from perfmodel.report.layout import heading, labels
from perfmodel.report.style import COLOURS, LINES, legend_beside, stack, styled, title

if TYPE_CHECKING:
    from perfmodel.planner import Job

_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))


def plot_job(noun: Any, ax: Any = None) -> Any:
    """Tokens per second over time, of one job also the running requests, on the right, and the band of its end."""
    jobs = getattr(noun, "jobs", None) or (getattr(noun, "job", noun),)
    return styled(lambda axes: _draw(jobs, axes, noun), ax)


def course(job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds since the job began, running requests and output tokens per second; nothing runs during the start."""
    p, start = job.phases, job.serving_from_s
    time = np.concatenate([[0.0, start], p.time_s + start, [p.time_s[-1] + start]])
    running, speed = (np.concatenate([[0.0, 0.0], values, [0.0]]) for values in (p.running_at, p.tok_s_at))
    return time, running, speed


def _draw(jobs: Sequence[Job], ax: Any, noun: Any) -> None:
    longest = max(job.makespan_s for job in jobs)
    scale, unit = [pair for pair in _UNITS if longest >= 3 * pair[0]][-1] if longest >= 3 else _UNITS[0]
    right = ax.twinx() if len(jobs) == 1 else None
    names = labels([job.deployment for job in jobs])
    for i, (job, name) in enumerate(zip(jobs, names, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        time, running, speed = course(job)
        which = f"{name}: " if len(jobs) > 1 else "expected " if hasattr(noun, "remaining_s") else ""
        ax.plot(time / scale, speed, color=colour, linestyle=LINES[i % len(LINES)] if len(jobs) > 1 else "-",
                label=f"{which}output tokens/s")  # fmt: skip
        if right is not None:
            right.plot(time / scale, running, color=COLOURS[1], linestyle="--", label=f"{which}running requests")
            _phases(ax, job, scale)
            if not hasattr(noun, "remaining_s"):
                ax.axvspan(job.makespan_s_low / scale, job.makespan_s_high / scale, color=COLOURS[2], alpha=0.2,
                           linewidth=0, label="end, 80 % band")  # fmt: skip
    _now(ax, noun, scale)
    ax.set_xlim(0, None)
    ax.set_ylim(0, 1.35 * max(float(job.phases.tok_s_at.max()) for job in jobs))
    if right is not None:
        right.set_ylim(0, 1.6 * float(jobs[0].phases.running_at.max()))  # not on top of the other curve
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.set_ylabel("running requests [count], dashed")
    ax.set_xlabel(f"time since the job began [{unit}]")
    ax.set_ylabel("output throughput, all GPUs [tokens/s]")
    d = jobs[0].deployment
    what = heading(d) if len(jobs) == 1 else f"{d.model.name} on {d.node.name}"
    on = f" on {jobs[0].nodes:,} nodes" if len(jobs) == 1 and jobs[0].nodes > 1 else ""
    title(ax, f"{what}\n{jobs[0].samples:,} samples of {jobs[0].work.outputs} output tokens{on}, {jobs[0].method}")
    handles = [h for axes in (ax, right) if axes is not None for h in axes.get_legend_handles_labels()[0]]
    ax.legend(handles, [h.get_label() for h in handles], loc="upper right", ncols=2)


def phases(noun: Any, ax: Any = None) -> Any:
    """Wall time of one job or of several by its phases, with the band of the whole."""
    jobs = getattr(noun, "jobs", None) or (noun,)
    return styled(lambda axes: _phase_bars(jobs, labels([job.deployment for job in jobs]), axes), ax)


def phase_bars(jobs: Sequence[Job], names: Sequence[str], ax: Any) -> Any:
    """The same for jobs with names of their own."""
    return styled(lambda axes: _phase_bars(jobs, names, axes), ax)


def _phase_bars(jobs: Sequence[Job], names: Sequence[str], ax: Any) -> None:
    longest = max(job.makespan_s_high for job in jobs)
    scale, unit = [pair for pair in _UNITS if longest >= 3 * pair[0]][-1] if longest >= 3 else _UNITS[0]
    at = np.arange(len(jobs), dtype=float)[::-1]
    parts = {PHASES.get(part, part): np.array([job.parts[part] for job in jobs]) / scale for part in jobs[0].parts}
    end = stack(ax, at, {name: times for name, times in parts.items() if times.any()}, 0.6, lying=True)
    low, high = (np.array([getattr(job, f"makespan_s_{side}") for job in jobs]) / scale for side in ("low", "high"))
    ax.errorbar(end, at, xerr=np.stack([np.maximum(end - low, 0), np.maximum(high - end, 0)]), fmt="none",
                ecolor="black", elinewidth=1.1, capsize=4, label="80 % band")  # fmt: skip
    ax.set_yticks(at, list(names))
    ax.set_ylim(-0.7, len(jobs) - 0.3)
    ax.set_xlabel(f"wall time [{unit}]")
    ax.set_xlim(left=0)
    ax.grid(axis="y", visible=False)
    d = jobs[0].deployment
    title(ax, f"{d.model.name} on {d.node.name}\n{jobs[0].samples:,} samples of {jobs[0].work.outputs} output tokens")
    legend_beside(ax)


def _phases(ax: Any, job: Job, scale: float) -> None:
    """A thin line where a phase ends, if it can be seen."""
    at = 0.0
    for name, seconds in job.parts.items():
        at += seconds
        if 0.01 * job.makespan_s < at < 0.99 * job.makespan_s and seconds > 0.01 * job.makespan_s:
            ax.axvline(at / scale, color="#888888", linewidth=0.8)
            ax.annotate(f"{name.removesuffix('_s')} ends", (at / scale, 0.85), (2, 0), rotation=90, va="top",
                        xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8,
                        color="#555555",
                        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})  # fmt: skip


def _now(ax: Any, noun: Any, scale: float) -> None:
    """Where a job under way stands, and when it will end."""
    if not hasattr(noun, "remaining_s"):
        return
    p = noun.job.phases
    later = p.time_s >= noun.expected_at_s
    rest = noun.elapsed_s + (p.time_s[later] - noun.expected_at_s) * noun.pace
    ax.plot(rest / scale, p.tok_s_at[later] / noun.pace, color=COLOURS[2], label="output tokens/s from now on")
    low, high = (noun.elapsed_s + left for left in (noun.remaining_s_low, noun.remaining_s_high))
    ax.axvline(noun.elapsed_s / scale, color="black", linewidth=1.2, label="now")
    ax.axvspan(low / scale, high / scale, color=COLOURS[2], alpha=0.2, linewidth=0, label="end, 80 % band")
