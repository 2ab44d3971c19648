"""``perfmodel plan``: which strategy is best?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import (
    BRIEF,
    INPUT_TOKENS,
    JSON,
    MODEL,
    OUTPUT_TOKENS,
    PLOT,
    PRICE,
    Count,
    Question,
    deployment_keywords,
    examples,
    flag,
    quantity,
    settings_flags,
    strategy_flags,
)
from perfmodel.cli.output import check_picture, show, warn
from perfmodel.cli.progress import bar
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel plan --model kimi-k2.6 --node 8x-rtx-pro-6000-server --context 32768",
    "perfmodel plan --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --concurrency 64 --max-tpot-ms 60 --context 32768 --plot front.png",
    "perfmodel plan --model qwen3-32b --gpus 4 --node h100-sxm --node l40s --context 8192 \\",
    "    --price h100-sxm=2.5 --price l40s=0.9 --target cost",
    "perfmodel plan --model qwen3-32b --node 2x-h100-sxm --context 8192 --keep 3 \\",
    "    --target time --samples 50000 --input-tokens 200 --output-tokens 2500 --json",
)
_OWN = ("target", "gpus", "concurrency", "input_tokens", "output_tokens", "max_ttft_ms", "max_tpot_ms", "samples",
        "variants", "disaggregate", "keep")  # fmt: skip


@click.command(cls=Question, short_help="which strategy is best?", epilog=EXAMPLES)
@MODEL
@flag("--node", required=True, multiple=True, metavar="NAME", section="What",
      help="catalog name, YAML, or Nx-<accelerator>; several: one search over all")
@flag("--engine", default=("vllm",), multiple=True, metavar="NAME", section="What",
      help="vllm (without a word), sglang or tensorrt-llm, with ==version, else the newest known; several: one search "
      "over all")
@flag("--gpus", type=int, metavar="N", section="What",
      help="GPUs of each kind, at most; --node may then name an accelerator alone, and machines are joined")
@flag("--variants", is_flag=True, section="What",
      help="also the checkpoints of the same model in other formats that the catalog has")
@flag("--disaggregate/--no-disaggregate", default=True, show_default=True, section="What",
      help="also pools of copies that prefill and decode apart, where several copies fit")
@flag("--target", default="throughput", show_default=True, metavar="WORD", section="Target",
      help="throughput, throughput_per_gpu, latency, cost, or time (of --samples)")
@flag("--max-ttft-ms", type=float, metavar="MS", section="Target", help="limit on the TTFT")
@flag("--max-tpot-ms", type=float, metavar="MS", section="Target", help="limit on the TPOT")
@PRICE
@flag("--price", "prices", multiple=True, metavar="NAME=MONEY", section="Money",
      help="the same of one node or accelerator; once for each")
@flag("--concurrency", type=float, metavar="C", section="Workload",
      help="most requests in flight; 1024 if not said")
@INPUT_TOKENS
@OUTPUT_TOKENS
@flag("--samples", type=Count(), metavar="N", section="Workload", help="requests of the job, with --target time")
@strategy_flags
@settings_flags
@flag("--keep", type=int, default=10, show_default=True, metavar="N", section="Output", help="plans shown")
@PLOT
@JSON
@BRIEF
def plan(**given: Any) -> None:
    """Which strategy? Every one that the engine accepts and that fits, ranked by one target.

    Searches tp, pp (also uneven partitions), ep, attention groups, dcp, copies, KV format, chunk, graphs, memory
    fraction and micro-batch limits; a flag that is given stays fixed. Says whether the first is really ahead of the
    second: overlapping bands are not. Each plan comes with its launch command and the command that measures it.
    """
    check_picture(given["plot"])
    from perfmodel.planner import plan as search
    from perfmodel.report.plan_text import plan_text

    prices = _prices(given["prices"], given["price_per_gpu_hour"])
    with bar("searching") as advance:
        answer = search(
            given["model"],
            node=list(given["node"]),
            engine=list(given["engine"]),
            price_per_gpu_hour=prices,
            advance=advance,
            **{name: given[name] for name in _OWN},
            **deployment_keywords(given),
        )
    show(answer, lambda: plan_text(answer, given["brief"]), given)
    if not answer.separated:
        warn(["the bands of the first two plans overlap: the order between them is not certain"])


def _prices(pairs: tuple[str, ...], one: float | None) -> Any:
    """A table of prices, or the one price."""
    if not pairs:
        return one
    if one is not None:
        raise BadInput("give --price-per-gpu-hour or --price, not both")
    table = {}
    for pair in pairs:
        name, equals, money = pair.rpartition("=")
        if not equals or not name:
            raise BadInput(f"--price must be NAME=MONEY, not {pair[:80]!r}", ["--price h200-sxm=3.5"])
        if name.strip() in table:
            raise BadInput(f"--price says {name.strip()[:80]} twice")
        table[name.strip()] = quantity(f"price of {name[:80]}", money, None)
    return table
