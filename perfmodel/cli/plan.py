"""``perfmodel plan``: which strategy is best?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, Question, deployment_flags, deployment_keywords, examples
from perfmodel.cli.output import show, warn

EXAMPLES = examples(
    "perfmodel plan --model kimi-k2.6 --node 8x-rtx-pro-6000-server --context 32768",
    "perfmodel plan --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --concurrency 64 --max-tpot-ms 60 --context 32768",
    "perfmodel plan --model kimi-k2.6 --node 8x-rtx-pro-6000-server \\",
    "    --target latency --context 32768 --json",
)


@click.command(cls=Question, short_help="which strategy is best?", epilog=EXAMPLES)
@deployment_flags
@click.option(
    "--target",
    default="throughput",
    show_default=True,
    metavar="WORD",
    help="throughput, throughput_per_gpu, latency or cost.",
)
@click.option("--concurrency", type=float, metavar="C", help="Most requests in flight; 1024 if not said.")
@click.option(
    "--input-tokens",
    default="1024",
    show_default=True,
    metavar="LENGTH",
    help="A number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA.",
)
@click.option("--output-tokens", default="1024", show_default=True, metavar="LENGTH", help="As --input-tokens.")
@click.option("--max-ttft-ms", type=float, metavar="MS", help="Limit on the median TTFT.")
@click.option("--max-tpot-ms", type=float, metavar="MS", help="Limit on the median TPOT.")
@click.option("--price-per-gpu-hour", type=float, metavar="MONEY", help="For the cost of a million tokens.")
@click.option("--keep", type=int, default=10, show_default=True, metavar="N", help="Plans shown.")
@JSON
def plan(**given: Any) -> None:
    """Which strategy? Every one that the engine accepts and that fits, ranked by one target.

    Searches tp, pp, dp, ep, attention groups, KV format and micro-batch limits; a flag that is given stays fixed. Says
    whether the first is really ahead of the second: overlapping bands are not.
    """
    from perfmodel.planner import plan as search
    from perfmodel.report.plan_text import plan_text

    own = (
        "target",
        "concurrency",
        "input_tokens",
        "output_tokens",
        "max_ttft_ms",
        "max_tpot_ms",
        "price_per_gpu_hour",
        "keep",
    )
    answer = search(
        given["model"],
        node=given["node"],
        engine=given["engine"],
        **{name: given[name] for name in own},
        **deployment_keywords(given),
    )
    show(answer, lambda: plan_text(answer, given["price_per_gpu_hour"]), given)
    if not answer.separated:
        warn(["the bands of the first two plans overlap: the order between them is not certain"])
