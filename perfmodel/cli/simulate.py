"""``perfmodel simulate``: requests through the engine's scheduler, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from perfmodel.cli.options import (
    BRIEF,
    INPUT_TOKENS,
    JSON,
    OUTPUT_TOKENS,
    PLOT,
    Question,
    arrival_flag,
    deployment_flags,
    deployment_keywords,
    examples,
    flag,
    quantity,
    said,
    whole,
)
from perfmodel.cli.output import check_picture, print_json, warn
from perfmodel.cli.predict import limit
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel simulate --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --trace mooncake_trace.jsonl --limit 2000",
    "perfmodel simulate --model llama-3.1-8b --node 1x-h100-sxm --requests 5000 \\",
    "    --request-rate 10 --output-tokens lognormal:300:0.8 \\",
    "    --ttft-limit 500ms --tpot-limit 30ms --plot timeline.png",
    "perfmodel simulate --model llama-3.1-8b --node 1x-h100-sxm --requests 1000 --concurrency 64",
)


@click.command(cls=Question, short_help="requests through the scheduler, one by one", epilog=EXAMPLES)
@deployment_flags
@flag("--trace", metavar="FILE", section="Workload",
      help="arrivals and lengths: Mooncake or AIPerf JSON lines, BurstGPT or Azure CSV, or CSV with "
      "arrival_s,input_tokens,output_tokens")
@flag("--trace-format", metavar="NAME", section="Workload",
      help="mooncake, burstgpt, azure or plain; else by its columns")
@flag("--limit", metavar="N", section="Workload", help="only the first requests of the trace")
@flag("--speed", default="1", show_default=True, metavar="X", section="Workload", help="replay so many times faster")
@flag("--requests", metavar="N", section="Workload", help="so many requests, in place of a trace")
@flag("--request-rate", metavar="R", section="Workload", help="their Poisson arrivals a second; default: all at once")
@flag("--concurrency", metavar="N", section="Workload", help="or so many of them in flight")
@INPUT_TOKENS
@OUTPUT_TOKENS
@arrival_flag(None, "default: burst; staggered for TensorRT-LLM, and where requests come over time but for vLLM")
@flag("--seed", default="0", show_default=True, metavar="N", section="Workload", help="of lengths and arrivals")
@flag("--router", default="round-robin", show_default=True, metavar="NAME", section="Workload",
      help="between copies (dp): round-robin or least-loaded")
@flag("--ttft-limit", metavar="TIME", section="Workload", help="count requests within it (goodput), such as 500ms")
@flag("--tpot-limit", metavar="TIME", section="Workload", help="the same of the time per output token")
@JSON
@BRIEF
@PLOT
def simulate(**given: Any) -> None:
    """What happens to each request? TTFT, TPOT and latency percentiles, and the share within limits.

    Runs the engine's own scheduler iteration by iteration: chunked prefill, admission by KV tokens, preemption, prefix
    cache by the hash ids of a trace. The same question gives the same answer. Exit code 1: no request keeps the limits.
    """
    from perfmodel.deployment import deploy
    from perfmodel.report.simulation_text import simulation_text
    from perfmodel.serving.simulate import simulate as run

    check_picture(given["plot"])
    limits = {f"{name}_s": limit(f"{name}_limit", given[f"{name}_limit"])
              for name in ("ttft", "tpot") if given[f"{name}_limit"] is not None}  # fmt: skip
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    load, notes = workload(given)
    with progress() as bar:
        answer = run(d, **load, router=given["router"], arrival=given["arrival"], progress=bar)
    if given["plot"]:
        from perfmodel.report import save

        save(answer, given["plot"])
    if given["as_json"]:
        print_json(answer.to_dict(**limits))
    else:
        click.echo(simulation_text(answer, notes, given["brief"], **limits))
    warn([*notes, *answer.warnings] if given["as_json"] else answer.warnings)
    if limits and not answer.within(**limits).any():
        raise click.exceptions.Exit(1)


def workload(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Keywords of `simulate`, and what is to be said about where they come from."""
    if (given["trace"] is None) == (given["requests"] is None):
        raise BadInput("give either --trace FILE or --requests N")
    of_trace, of_numbers = ("trace_format", "limit", "speed"), ("input_tokens", "output_tokens", "seed")
    for name in of_numbers if given["trace"] is not None else of_trace:
        if said(name):
            other = "--requests" if given["trace"] is not None else "--trace"
            raise BadInput(f"--{name.replace('_', '-')} goes with {other}")
    if given["trace"] is not None:
        return _trace(given)
    import numpy as np

    from perfmodel.serving.lengths import parse_lengths, sample

    count, seed = whole("requests", given["requests"]), whole("seed", given["seed"])
    if not 1 <= count <= 5_000_000:
        raise BadInput("requests must lie between 1 and 5,000,000")
    inputs, outputs = parse_lengths(given["input_tokens"], "input_tokens"), parse_lengths(given["output_tokens"])
    load: dict[str, Any] = {"inputs": sample(inputs, count, seed), "outputs": sample(outputs, count, seed + 1)}
    if given["concurrency"] is not None and given["request_rate"] is not None:
        raise BadInput("give either --concurrency or --request-rate")
    if given["concurrency"] is not None:
        load["concurrency"] = whole("concurrency", given["concurrency"])
    if given["request_rate"] is not None:
        rate = quantity("request_rate", given["request_rate"], None)
        if not 1e-6 <= rate <= 1e6:
            raise BadInput("request_rate must lie between 1e-6 and 1e6")
        load["arrivals"] = np.cumsum(np.random.default_rng(seed + 2).exponential(1 / rate, count))
    return load, [f"{count:,} requests, {inputs} tokens in, {outputs} out, seed {seed}"]


def _trace(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from perfmodel.serving.traces import MOONCAKE_BLOCK, read_trace

    if given["request_rate"] is not None or given["concurrency"] is not None:
        raise BadInput("a trace says itself when its requests come; use --speed")
    most = None if given["limit"] is None else whole("limit", given["limit"])
    trace = read_trace(given["trace"], given["trace_format"], most, quantity("speed", given["speed"], None))
    notes = [f"{trace!r}"[1:-1]]
    if trace.dropped:
        notes.append(f"{trace.dropped:,} requests without an answer are left out")
    load: dict[str, Any] = {"inputs": trace.inputs, "outputs": trace.outputs, "arrivals": trace.arrival_s}
    if trace.hash_ids is not None:
        load |= {"hash_ids": trace.hash_ids, "block": MOONCAKE_BLOCK}
        notes.append(f"prefix cache by hash ids, blocks of {MOONCAKE_BLOCK} tokens")
    return load, notes


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("requests", total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)

