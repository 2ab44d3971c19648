"""``perfmodel job``: how long do N samples take?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, Question, deployment_flags, deployment_keywords, examples
from perfmodel.cli.output import show, warn

EXAMPLES = examples(
    "perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --tp 8 --memory-fraction 0.92 --kv-dtype fp8 --samples 900000 \\",
    "    --input-tokens 200 --output-tokens lognormal:2500:0.8",
    "perfmodel job --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 --samples 5000 --price-per-gpu-hour 1.5 --json",
)


@click.command(cls=Question, short_help="how long do N samples take?", epilog=EXAMPLES)
@deployment_flags
@click.option("--samples", type=int, metavar="N", help="Requests, all submitted at once.")
@click.option("--requests", "file", metavar="FILE", help="CSV or JSONL of input_tokens, output_tokens in this order.")
@click.option(
    "--input-tokens",
    default="1024",
    show_default=True,
    metavar="LENGTH",
    help="A number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA.",
)
@click.option("--output-tokens", default="1024", show_default=True, metavar="LENGTH", help="As --input-tokens.")
@click.option("--concurrency", type=float, metavar="C", help="What the client keeps in flight; default: everything.")
@click.option("--price-per-gpu-hour", type=float, metavar="MONEY", help="For the cost.")
@click.option("--restarts", type=int, default=0, show_default=True, metavar="N", help="Restarts during the job.")
@click.option("--arrival", type=click.Choice(["burst", "staggered"]), default="staggered", show_default=True,
              help="How a pipeline's slots are filled; a long job spreads them.")
@JSON
def job(**given: Any) -> None:
    """How long? Wall time of a batch job with its band, GPU-hours, energy and money.

    Counts the load of the model, the steady state, the tail of long answers and restarts. Up to 20,000 requests run
    through the simulator of the scheduler; larger jobs take its closed form.
    """
    from perfmodel.deployment import deploy
    from perfmodel.planner import size_job
    from perfmodel.report.job_text import job_text
    from perfmodel.serving.requests import read_requests

    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    answer = size_job(
        d,
        samples=given["samples"],
        requests=read_requests(given["file"]) if given["file"] else None,
        input_tokens=given["input_tokens"],
        output_tokens=given["output_tokens"],
        concurrency=given["concurrency"],
        price_per_gpu_hour=given["price_per_gpu_hour"],
        restarts=given["restarts"], arrival=given["arrival"],
    )
    show(answer, lambda: job_text(answer), given)
    warn([line for line in answer.assumptions if "at most" in line])
