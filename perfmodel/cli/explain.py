"""``perfmodel explain``: where does a figure come from?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import (
    INPUT_TOKENS,
    JSON,
    OUTPUT_TOKENS,
    Question,
    arrival_flag,
    concurrency_flag,
    deployment_flags,
    deployment_keywords,
    examples,
    flag,
    quantity,
    said,
    strategy,
)
from perfmodel.cli.output import show
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel explain step --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8",
    "perfmodel explain tok_s --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    '    --engine sglang --context 32768 --against "pp=8,max_sequences=4096" --over concurrency',
    "perfmodel explain kv_tokens --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 --json",
    "perfmodel explain collective --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8",
)


@click.command(cls=Question, short_help="where does a figure come from?", epilog=EXAMPLES)
@click.argument("figure", metavar="FIGURE")
@deployment_flags
@concurrency_flag("8", "N")
@INPUT_TOKENS
@OUTPUT_TOKENS
@arrival_flag()
@flag("--against", metavar="TEXT", section="Break-even",
      help='another strategy, such as "pp=8"; engine settings hold for both')  # fmt: skip
@flag("--over", type=click.Choice(["concurrency", "context", "bandwidth", "links"]), default="concurrency",
      show_default=True, section="Break-even",
      help="what is varied until the two change places; bandwidth is memory's, links that between GPUs")  # fmt: skip
@flag("--from", "low", metavar="X", section="Break-even", help="start of the range")
@flag("--to", "high", metavar="X", section="Break-even", help="its end")
@JSON
def explain(**given: Any) -> None:
    """Where does a figure come from? Its formula with the numbers put in, largest terms first.

    FIGURE is step, tok_s, ttft, tpot, memory, kv_tokens, weights, or collective: the one on which a step spends most.
    Also: what 10 % more of each parameter does, the limits, and with --against where another strategy takes the lead,
    or the proof that it does not.
    """
    from perfmodel.deployment import deploy
    from perfmodel.insight.explain import explain as ask
    from perfmodel.report.insight_text import explained_text

    for name, flag_name in (("low", "from"), ("high", "to"), ("over", "over")):
        if given["against"] is None and said(name):
            raise BadInput(f"--{flag_name} goes with --against")
    keywords = deployment_keywords(given)
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **keywords)
    other = None
    if given["against"] is not None:
        asked = strategy(given["against"])
        engine = asked.pop("engine", given["engine"])
        names = ("tp", "pp", "ep", "dp", "dp_attention", "dcp", "layers_per_stage")
        kept = {name: value for name, value in keywords.items() if name not in names}
        other = deploy(given["model"], node=given["node"], engine=engine, **{**kept, **asked})
    ends = {name: None if given[name] is None else quantity(name, given[name], None) for name in ("low", "high")}
    answer = ask(given["figure"].lower(), d, concurrency=quantity("concurrency", given["concurrency"], None),
                 input_tokens=given["input_tokens"], output_tokens=given["output_tokens"], arrival=given["arrival"],
                 against=other, over=given["over"], **ends)
    show(answer, lambda: explained_text(answer), given)
