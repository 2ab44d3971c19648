"""``perfmodel whatif``: what would another machine, or another setting, bring?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import (
    BRIEF,
    JSON,
    Question,
    deployment_flags,
    deployment_keywords,
    examples,
    flag,
    numbers,
    quantity,
    strategy,
    workload_flags,
)
from perfmodel.cli.output import show, warn
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel whatif --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --tp 8 --memory-fraction 0.92",
    "perfmodel whatif --model kimi-k2.6 --node 8x-rtx-pro-6000-server --engine sglang \\",
    "    --tp 8 --memory-fraction 0.92 --change pcie=gen4 --change \"power=450 W\" \\",
    "    --change gpu=h200-sxm --price gpu=h200-sxm:250000",
    "perfmodel whatif --model llama-3.1-8b --node 8x-h100-sxm --tp 8 \\",
    "    --change lost=1 --change tp=4,dp=2 --json",
)


@click.command(cls=Question, short_help="what would another machine or setting bring?", epilog=EXAMPLES)
@deployment_flags
@flag("--change", "changes", multiple=True, metavar="TEXT", section="What if",
      help="gpu=NAME, power='450 W' or 75%, host-memory='512 GiB', nccl=WORDS, pcie=gen6, nvlink='450 GB/s' or off, "
      "p2p=on, nodes=2 or '2@12.5 GB/s', lost=1, or keywords such as tp=4,dp=2; default: all that suit")  # fmt: skip
@flag("--price", "prices", multiple=True, metavar="TEXT:MONEY", section="What if",
      help="what a change costs; priced changes are ranked by tok/s for their price")  # fmt: skip
@workload_flags
@JSON
@BRIEF
def whatif(**given: Any) -> None:
    """What if? The same question on a changed machine or launch: another GPU, a power cap, less host memory, NCCL
    settings, PCIe of another generation, NVLink, P2P, more machines, a GPU lost.

    Each change is a modified node or launch that the model is asked about again; what had to be assumed is listed. With
    --price the changes are ranked by what they bring for their money.
    """
    from perfmodel.deployment import deploy
    from perfmodel.insight.changes import KINDS
    from perfmodel.insight.whatif import whatif as ask
    from perfmodel.report.whatif_text import whatif_text

    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    changes = [text if text.partition("=")[0].strip().lower().replace("_", "-") in KINDS else strategy(text)
               for text in given["changes"]]
    prices = [_price(text) for text in given["prices"]]
    if len(dict(prices)) < len(prices):
        raise BadInput("--price says the same change twice")
    answer = ask(d, changes or None, prices=dict(prices) or None,
                 concurrency=numbers("concurrency", given["concurrency"]), input_tokens=given["input_tokens"],
                 output_tokens=given["output_tokens"], arrival=given["arrival"])
    show(answer, lambda: whatif_text(answer, given["brief"]), given)
    warn(f"{o.change}: {o.refused}" for o in answer.outcomes if o.refused)


def _price(text: str) -> tuple[str, float]:
    change, colon, money = text.rpartition(":")
    if not colon:
        raise BadInput(f"price {text[:80]!r} has no ':'", ["write --price gpu=h200-sxm:250000"])
    return change, quantity("price", money, None)
