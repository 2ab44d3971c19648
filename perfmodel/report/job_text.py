"""The answer of a job as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.report.layout import heading, launch_line, listed, number, table, wrapped

if TYPE_CHECKING:
    from perfmodel.planner import Job

_NAMES = {
    "load_s": "load of the model",
    "steady_s": "steady state",
    "tail_s": "tail of long answers",
    "restart_s": "restarts",
}


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best.

    >>> duration(90.0), duration(7200.0), duration(400000.0)
    ('90 s', '2.0 h', '4.6 days')
    """
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def job_text(job: Job) -> str:
    """Wall time with its band, parts, and what it costs."""
    band = f"80 % band {duration(job.makespan_s_low)} to {duration(job.makespan_s_high)}"
    lines = [
        wrapped(heading(job.deployment), rest="  "),
        "",
        f"{job.samples:,} samples take {duration(job.makespan_s)} ({band}), {job.method}",
        "",
    ]
    lines += table(
        ["", "hours", "share"],
        [[_NAMES[name], f"{s / 3600:.2f}", f"{s / job.makespan_s:.0%}"] for name, s in job.parts.items()],
        left=(0,),
    )
    lines += [
        "",
        f"{job.output_tokens:,.0f} output tokens, {number(job.output_tok_s)} tok/s over the whole job, "
        f"{job.concurrency:g} running",
        f"{job.gpu_hours:,.0f} GPU-hours, {job.energy_kwh:,.0f} kWh",
    ]
    if job.cost is not None:
        lines.append(f"cost {job.cost:,.2f}")
    return "\n".join([*lines, *launch_line(job.deployment.command()), *listed("assumptions", job.assumptions)])
