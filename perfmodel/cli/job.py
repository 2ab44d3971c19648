"""``perfmodel job``: how long do N samples take?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli import options
from perfmodel.cli.options import (
    Question,
    deployment_flags,
    deployment_keywords,
    duration,
    examples,
    flag,
    quantity,
)
from perfmodel.cli.output import check_picture, show, warn
from perfmodel.cli.progress import bar

if TYPE_CHECKING:
    from perfmodel.deployment import Deployment
    from perfmodel.planner.job import Job

EXAMPLES = examples(
    "perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --tp 8 --memory-fraction 0.92 --kv-dtype fp8 --samples 900000 \\",
    "    --input-tokens 200 --output-tokens lognormal:2500:0.8",
    "perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --memory-fraction 0.92 --samples 900000 --output-tokens 2000 --deadline 7d \\",
    '    --strategy "tp=8" --strategy "tp=8,ep=8" --strategy "pp=8,cuda_graphs=off"',
    "perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --samples 5000 --failure-rate 1e-3 --price-per-gpu-hour 1.5 \\",
    "    --sensitivity --plot job.png",
    "perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --samples 5000 --progress progress.json",
)

# keyword of size_job, metavar, unit or "time", help
STARTS = (
    ("load_rate", "RATE", "B/s", "what a rank reads of its checkpoint, such as '2 GB/s'"),
    ("storage_bandwidth", "RATE", "B/s", "what the storage of a node gives to all its ranks, such as '7 GB/s'"),
    ("host_memory", "SIZE", "B", "of a node, such as '512 GiB': whether the checkpoint stays in the page cache"),
    ("warmup", "TIME", "time", "from the load until requests are taken"),
)
FAILS = (
    ("failure_rate", "X", None, "failures per hour of a node"),
    ("mtbf", "TIME", "time", "mean time between failures of a node, such as 30d, in place of --failure-rate"),
    ("checkpoint_interval", "TIME", "time", "between two writes of what is done; default: each answer by itself"),
    ("checkpoint_time", "TIME", "time", "that such a write takes"),
)

TRIES = 40  # numbers of nodes that are tried for a deadline, at most: twice the logarithm of a million


def _flags(rows: tuple[tuple[str, str, str | None, str], ...], section: str) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for name, metavar, _, words in rows[::-1]:
            function = flag(f"--{name.replace('_', '-')}", name, metavar=metavar, section=section, help=words)(function)
        return function

    return decorate


@click.command(cls=Question, short_help="how long do N samples take?", epilog=EXAMPLES)
@deployment_flags
@flag("--strategy", "strategies", multiple=True, metavar="TEXT", section="Strategy",
      help='keywords of a deployment, such as "tp=8,ep=8"; repeat it to compare')  # fmt: skip
@flag("--samples", type=options.Count(), metavar="N", section="Workload", help="requests, all submitted at once")
@flag("--requests", "file", metavar="FILE", section="Workload",
      help="CSV or JSONL of input_tokens, output_tokens in this order")  # fmt: skip
@options.INPUT_TOKENS
@options.OUTPUT_TOKENS
@options.concurrency_flag(None, "C", "what the client keeps in flight over all nodes; default: everything")
@flag("--request-rate", metavar="R", section="Workload", help="samples arrive at so many a second instead")
@options.arrival_flag(None, "default: burst for vLLM, else staggered: a long job spreads them")
@flag("--nodes", type=int, metavar="N", section="Workload", help="equal deployments that share the samples  [1]")
@flag("--deadline", metavar="TIME", section="Workload", help="such as 7d: how many nodes finish in time")
@_flags(STARTS, "Start")
@flag("--restarts", type=int, default=0, show_default=True, metavar="N", section="Failures",
      help="restarts that surely happen")  # fmt: skip
@_flags(FAILS, "Failures")
@options.PRICE
@flag("--price-per-kwh", type=float, metavar="MONEY", section="Money", help="of electricity, for the cost")
@flag("--gpu-power", metavar="W", section="Money", help="of one GPU while it serves, where it was measured")
@flag("--progress", "progress_file", metavar="FILE", section="Under way",
      help="JSON or CSV of samples_done and seconds, a metrics page, or an engine's log; forecasts the "
      "rest")  # fmt: skip
@flag("--elapsed", metavar="TIME", section="Under way", help="since the start of the job, where FILE does not say")
@flag("--sensitivity", is_flag=True, section="Output", help="what each factor changes")
@options.JSON
@options.BRIEF
@options.PLOT
@options.picture_flag("timeline", "phases")
def job(**given: Any) -> None:
    """How long? Wall time of a batch job with its band, GPU-hours, energy and money.

    Counts the load of the model, warm-up, ramp, steady state, the tail of long answers, and failures. Up to 20,000
    requests a node run through the simulator of the scheduler; larger jobs take its closed form. --strategy may be
    repeated: one table, the fewest GPUs and then the shortest first.
    """
    check_picture(given["plot"])
    _check(given)
    workload = _workload(given)
    if len(given["strategies"]) > 1:
        _compared(given, workload)
    else:
        _one(given, workload)


def _check(given: dict[str, Any]) -> None:
    """Flags that exclude each other."""
    several = len(given["strategies"]) > 1
    alone = [name for name in ("progress_file", "sensitivity") if given[name] not in (None, False)]
    if several and alone:
        raise click.UsageError(f"--{alone[0].removesuffix('_file')} is about one strategy")
    if given["deadline"] is not None and given["nodes"] is not None:
        raise click.UsageError("give either --nodes or --deadline")
    if given["failure_rate"] is not None and given["mtbf"] is not None:
        raise click.UsageError("give either --failure-rate or --mtbf")
    if given["progress_file"] is not None and given["deadline"] is not None:
        raise click.UsageError("--progress is about a job on so many --nodes; leave --deadline out")
    if given["elapsed"] is not None and given["progress_file"] is None:
        raise click.UsageError("--elapsed goes with --progress")


def _workload(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `size_job` from the flags."""
    from perfmodel.errors import BadInput
    from perfmodel.serving.requests import read_requests

    read: dict[str, Any] = {}
    for name, _, unit, _ in (*STARTS, *FAILS, ("concurrency", "", None, ""), ("request_rate", "", None, ""),
                             ("gpu_power", "", "W", "")):  # fmt: skip
        if given[name] is not None:
            read[name] = duration(name, given[name]) if unit == "time" else quantity(name, given[name], unit)
    if (mtbf := read.pop("mtbf", None)) is not None:
        if mtbf <= 0:
            raise BadInput("mtbf must be above 0")
        read["failure_rate"] = 3600 / mtbf
    plain = ("samples", "input_tokens", "output_tokens", "price_per_gpu_hour", "price_per_kwh", "restarts", "arrival")
    nodes = {} if given["nodes"] is None else {"nodes": given["nodes"]}
    requests = {"requests": read_requests(given["file"])} if given["file"] is not None else {}
    return {**{name: given[name] for name in plain}, **requests, **nodes, **read}


def _deadline(given: dict[str, Any]) -> float | None:
    text = given["deadline"]
    if text is not None and text.strip().replace(".", "", 1).isdecimal():
        from perfmodel.errors import BadInput

        raise BadInput(f"a deadline needs its unit, not {text.strip()[:40]}", [f"--deadline {text.strip()[:40]}d"])
    return None if text is None else duration("deadline", text)


def _one(given: dict[str, Any], workload: dict[str, Any]) -> None:
    """One strategy: its job, its nodes for a deadline, its factors, or the rest of it."""
    from perfmodel.deployment import deploy
    from perfmodel.planner.job import size_job
    from perfmodel.planner.job_compare import nodes_for
    from perfmodel.report.job_text import deadline_text, job_text

    keywords = deployment_keywords(given)
    engine = given["engine"]
    for text in given["strategies"]:
        asked = options.strategy(text)
        engine = asked.pop("engine", engine)
        keywords |= asked
    d = deploy(given["model"], node=given["node"], engine=engine, **keywords)
    limit = _deadline(given)
    with bar("simulating" if limit is None else "trying numbers of nodes") as advance:
        if limit is not None:
            in_time = nodes_for(d, limit, _counted(advance, TRIES), **workload)
            answer, sized = in_time.job, {**workload, "nodes": in_time.job.nodes}
        else:
            answer, sized = size_job(d, progress=advance, **workload), workload
    if given["progress_file"] is not None:
        _under_way(given, answer)
        return
    if given["sensitivity"]:
        answer = _with_effects(d, answer, sized)
    if limit is not None:
        in_time = replace(in_time, job=answer)
        show(in_time, lambda: deadline_text(in_time, given["brief"]), given)
    else:
        show(answer, lambda: job_text(answer, given["brief"]), given)
    warn(line for line in answer.assumptions if line.endswith(answer.phases.curve.warnings))


def _with_effects(d: Deployment, answer: Job, workload: dict[str, Any]) -> Job:
    """The job with what each factor does to it."""
    from perfmodel.insight.job_factors import job_effects, moves

    with bar("asking again") as advance:
        return replace(answer, effects=job_effects(d, answer, _counted(advance, len(moves(d, answer, workload))),
                                                   **workload))  # fmt: skip


def _counted(advance: Callable[[int, int], None], total: int) -> Callable[[], None]:
    """Calls ``advance`` with how often it was called itself."""
    asked = [0]

    def one_more() -> None:
        asked[0] += 1
        advance(asked[0], total)

    return one_more


def _under_way(given: dict[str, Any], answer: Job) -> None:
    from perfmodel.planner.job_progress import update_job
    from perfmodel.planner.job_progress_files import read_progress
    from perfmodel.report.job_text import forecast_text

    elapsed = None if given["elapsed"] is None else duration("elapsed", given["elapsed"])
    forecast = update_job(answer, read_progress(given["progress_file"], elapsed))
    show(forecast, lambda: forecast_text(forecast, given["brief"]), given)


def _compared(given: dict[str, Any], workload: dict[str, Any]) -> None:
    from perfmodel.cli.compare import legal_deployments
    from perfmodel.planner.job_compare import compare_jobs
    from perfmodel.report.job_text import comparison_text
    from perfmodel.report.layout import labels

    deployments = legal_deployments(given)
    with bar("strategies") as advance:
        answer = compare_jobs(deployments, deadline=_deadline(given), asked=_counted(advance, len(deployments)),
                              **workload)  # fmt: skip
    show(answer, lambda: comparison_text(answer, given["brief"]), given)
    warn(answer.refused, "refused")
    names = labels([one.deployment for one in answer.jobs])
    warn(f"{name}: {line}" for name, one in zip(names, answer.jobs, strict=True) for line in one.phases.curve.warnings)
