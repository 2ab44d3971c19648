"""The answers of job sizing as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.report.layout import heading, labels, launch_line, listed, number, table, tables, wrapped

if TYPE_CHECKING:
    from perfmodel.planner import Forecast, InTime, Job, JobComparison

PHASES = {
    "load_s": "load of the model",
    "warmup_s": "warm-up",
    "ramp_s": "ramp",
    "steady_s": "steady state",
    "tail_s": "tail of long answers",
    "restart_s": "failures and restarts",
}


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best.

    >>> duration(90.0), duration(7200.0), duration(400000.0)
    ('90 s', '2.0 h', '4.6 days')
    """
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def _between(low: float, high: float) -> str:
    """A band of times; the unit once where both have it.

    >>> _between(90, 500), _between(90, 7200)
    ('90-500 s', '90 s-2.0 h')
    """
    (a, unit), (b, other) = duration(low).split(), duration(high).split()
    return f"{a}-{b} {unit}" if unit == other else f"{a} {unit}-{b} {other}"


def job_text(job: Job, brief: bool = False) -> str:
    """Wall time with its band, phases, what it costs, and what each factor does if that was asked."""
    return "\n".join([wrapped(heading(job.deployment), rest="  "), "", *_body(job, brief)])


def deadline_text(answer: InTime, brief: bool = False) -> str:
    """How many nodes, and the job on them."""
    job = answer.job
    lines = [
        wrapped(heading(job.deployment), rest="  "),
        "",
        wrapped(
            f"{_nodes(job.nodes)} finish {job.samples:,} samples within {duration(answer.deadline_s)} in nine cases of "
            f"ten; the point of the forecast needs {answer.nodes_point:,}"
        ),
        "",
    ]
    return "\n".join([*lines, *_body(job, brief)])


def _nodes(count: int) -> str:
    return f"{count:,} node{'s' if count > 1 else ''}"


def _running(job: Job) -> str:
    """How many run at once, and on one node where there are several."""
    total = f"{job.concurrency:,.0f} running at once"
    return total if job.nodes == 1 else f"{total}, {job.concurrency / job.nodes:,.4g} a node"


def _body(job: Job, brief: bool) -> list[str]:
    band = f"80 % band {duration(job.makespan_s_low)} to {duration(job.makespan_s_high)}"
    on = f" on {_nodes(job.nodes)}" if job.nodes > 1 else ""
    what = f"{job.samples:,} samples take" if job.samples > 1 else "1 sample takes"
    lines = [wrapped(f"{what} {duration(job.makespan_s)}{on} ({band}), {job.method}"), ""]
    lines += table(
        ["", "hours", "share"],
        [[PHASES[name], f"{s / 3600:.3f}", f"{s / job.makespan_s:.1%}"] for name, s in job.parts.items()],
        left=(0,),
    )
    energy = f"{number(job.energy_kwh)} kWh ({number(job.energy_kwh_low)} to {number(job.energy_kwh_high)})"
    lines += [
        "",
        wrapped(f"{job.output_tokens:,.0f} output tokens, {number(job.output_tok_s)} tok/s over the whole job, "
                f"{_running(job)}"),
        f"{number(job.gpu_hours)} GPU-hours, {energy}",
    ]
    if job.failures:
        lines.append(f"{number(job.failures)} failures expected")
    if job.cost is not None:
        lines.append(f"cost {job.cost:,.2f}")
    lines += _effects(job)
    return lines if brief else [*lines, *launch_line(job.deployment.command()), *listed("assumptions", job.assumptions)]


def _effects(job: Job) -> list[str]:
    """What each factor does, the largest effect first."""
    rows = [
        [e.factor, e.move, duration(e.makespan_s) if math.isfinite(e.makespan_s) else "no answer",
         f"{e.change:+.1%}" if math.isfinite(e.change) else "-"]
        for e in job.effects
    ]  # fmt: skip
    return ["", "what each factor changes, the others as they are:", "",
            *table(["factor", "moved", "wall time", "change"], rows, left=(0,))] if rows else []  # fmt: skip


def comparison_text(comparison: JobComparison, brief: bool = False) -> str:
    """One row a strategy; with a deadline, the nodes that each needs."""
    jobs, late = comparison.jobs, comparison.deadlines
    names = labels([job.deployment for job in jobs])
    d = jobs[0].deployment
    title = f"{jobs[0].samples:,} samples of {jobs[0].work.outputs} output tokens, {d.model.name} on {d.node.name}"
    if late:
        title += f", within {duration(late[0].deadline_s)} in nine cases of ten"
    short = [f"{chr(65 + i)}  {name}" for i, name in enumerate(names)] if max(map(len, names)) > 14 else []
    keys = [line[0] for line in short] if short else names
    money = any(job.cost is not None for job in jobs)
    rows = [_row(key, job, bool(late), money) for key, job in zip(keys, jobs, strict=True)]
    head = ["", *(["nodes"] if late else []), "running", "tok/s", "wall time", "80 % band", "GPU-hours", "kWh"]
    head += ["cost"] if money else []
    lines = [wrapped(title, rest="  "), "", *tables(head, rows)]
    lines += ["", *(wrapped(line, rest="     ") for line in short)] if short else []
    if brief:
        return "\n".join([*lines, *listed("no answer", comparison.refused)])
    lines += ["", "phases, hours:", "", *_phases(keys, jobs)]
    return "\n".join([*lines, *listed("no answer", comparison.refused), *_notes(keys, jobs)])


def _row(key: str, job: Job, nodes: bool, money: bool) -> list[str]:
    row = [key, *([f"{job.nodes:,}"] if nodes else []), f"{job.concurrency:,g}", number(job.output_tok_s),
           duration(job.makespan_s), _between(job.makespan_s_low, job.makespan_s_high),
           number(job.gpu_hours), number(job.energy_kwh)]  # fmt: skip
    return [*row, "-" if job.cost is None else f"{job.cost:,.0f}"] if money else row


def _phases(keys: Sequence[str], jobs: Sequence[Job]) -> list[str]:
    """Hours of every phase; they add up to the wall time."""
    heads = ["", "load", "warm-up", "ramp", "steady", "tail", "failures", "sum"]
    rows = [
        [key, *(f"{s / 3600:.3f}" for s in job.parts.values()), f"{job.makespan_s / 3600:.3f}"]
        for key, job in zip(keys, jobs, strict=True)
    ]
    return table(heads, rows)


def _notes(keys: Sequence[str], jobs: Sequence[Job]) -> list[str]:
    """Assumptions that all share, then those of some, with the strategies that make them."""
    makers: dict[str, list[str]] = {}
    for key, job in zip(keys, jobs, strict=True):
        for note in job.assumptions:
            makers.setdefault(note, []).append(key)
    shared = [note for note, who in makers.items() if len(who) == len(keys)]
    some = [f"{note}: {', '.join(who)}" for note, who in makers.items() if len(who) < len(keys)]
    return [*listed("assumptions", shared), *listed("assumptions of some strategies", some)]


def forecast_text(forecast: Forecast, brief: bool = False) -> str:
    """What is done, what is left, and what was expected before."""
    job = forecast.job
    low, high = forecast.elapsed_s + forecast.remaining_s_low, forecast.elapsed_s + forecast.remaining_s_high
    rest = f"80 % band {duration(forecast.remaining_s_low)} to {duration(forecast.remaining_s_high)}"
    rows = [
        ["before it started", duration(job.makespan_s), duration(job.makespan_s_low), duration(job.makespan_s_high)],
        ["now", duration(forecast.makespan_s), duration(low), duration(high)],
    ]
    lines = [
        wrapped(heading(job.deployment), rest="  "),
        "",
        wrapped(f"{forecast.samples_done:,.0f} of {job.samples:,} samples ({forecast.samples_done / job.samples:.1%}) "
                f"and {forecast.output_tokens:,.0f} output tokens after {duration(forecast.elapsed_s)}"),
        f"{duration(forecast.remaining_s)} to go ({rest})",
        "",
        *table(["wall time of the whole job", "", "low", "high"], rows),
        "",
        f"steady speed {number(forecast.tok_s)} tok/s ({number(forecast.tok_s_low)} to {number(forecast.tok_s_high)}), "
        f"expected {number(job.phases.tok_s)}",
        f"{number(job.gpu_hours * forecast.longer)} GPU-hours and {number(job.energy_kwh * forecast.longer)} kWh in all"
        + ("" if job.cost is None else f", cost {job.cost * forecast.longer:,.2f}"),
    ]  # fmt: skip
    more = [] if brief else [*listed("how", forecast.notes), *listed("assumptions", job.assumptions)]
    return "\n".join([*lines, *more])
