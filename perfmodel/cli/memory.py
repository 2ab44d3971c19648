"""``perfmodel memory``: does it fit?"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.options import BRIEF, JSON, PLOT, Question, deployment_flags, deployment_keywords, examples, flag
from perfmodel.cli.output import as_flags, check_picture, other_rules, show, warn

if TYPE_CHECKING:
    from perfmodel.insight.log_terms import Beside
    from perfmodel.step import MemoryReport

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
@BRIEF
@PLOT
@flag("--log", "log", metavar="FILE", section="Output",
      help="a start-up log of the engine: what it printed beside what is predicted")
@click.pass_context
def memory(context: click.Context, /, **given: Any) -> None:
    """Does it fit? Weights, KV pool and runtime memory of every rank.

    Exit code 1 says no; hints on stderr then say what would fit, found by asking the model again.
    """
    from perfmodel.deployment import deploy
    from perfmodel.errors import BadInput
    from perfmodel.report.text import memory_text
    from perfmodel.step import memory as ask

    check_picture(given["plot"])
    if given["log"] and given["plot"]:
        raise BadInput("--plot draws the prediction alone; leave out --log")
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    report = ask(d)
    if given["log"] is None:
        show(report, lambda: memory_text(report, given["brief"]), given)
    else:
        beside = _beside(report, given["log"])
        show(beside, lambda: f"{memory_text(report, given['brief'])}\n\n{beside.text()}", {**given, "plot": None})
    warn([*other_rules(d), *report.warnings])
    warn(map(as_flags, report.hints), "hint")
    if not report.fits:
        context.exit(1)


def _beside(report: MemoryReport, path: str) -> Beside:
    """The prediction and what the log of a file (or of standard input, ``-``) states."""
    from perfmodel.engines.logs import parse_log, read_log
    from perfmodel.insight.log_terms import Beside

    with click.open_file(path, errors="replace") if path == "-" else nullcontext() as lines:
        return Beside(report, read_log(path) if lines is None else parse_log(lines))
