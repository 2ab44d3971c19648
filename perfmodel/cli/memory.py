"""``perfmodel memory``: does it fit?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, PLOT, Question, deployment_flags, deployment_keywords, examples
from perfmodel.cli.output import check_picture, show, warn

EXAMPLES = examples(
    "perfmodel memory --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8",
    "perfmodel memory --model kimi-k2.6 --node 6x-rtx-pro-6000-server --pp 6 \\",
    "    --engine sglang==0.5.10",
    "perfmodel memory --model kimi-k2.6 --node 8x-h200-sxm --tp 8 --json",
    "perfmodel memory --model kimi-k2.6 --node 8x-rtx-pro-6000-server --pp 8 \\",
    "    --kv-dtype fp8 --context 32768 --plot memory.png",
)


@click.command(cls=Question, short_help="does it fit?", epilog=EXAMPLES)
@deployment_flags
@JSON
@PLOT
@click.pass_context
def memory(context: click.Context, /, **given: Any) -> None:
    """Does it fit? Weights, KV pool and runtime memory of every rank.

    Exit code 1 says no; hints on stderr then say what would fit, found by asking the model again.
    """
    from perfmodel.deployment import deploy
    from perfmodel.report.text import memory_text
    from perfmodel.step import memory as ask

    check_picture(given["plot"])
    report = ask(deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given)))
    show(report, lambda: memory_text(report), given)
    warn(report.hints, "hint")
    if not report.fits:
        context.exit(1)
