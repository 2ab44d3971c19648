"""``perfmodel step`` and ``perfmodel prefill``: what one forward takes, row by row."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import (
    JSON,
    PLOT,
    Question,
    deployment_flags,
    deployment_keywords,
    examples,
    flag,
    numbers,
    picture_flag,
)
from perfmodel.cli.output import check_picture, show, warn

CACHED = flag("--cached-tokens", metavar="N,N,...", default=None, section="Workload",
              help="tokens of a sequence that are already cached [default: 1024 for step, 0 for prefill]")  # fmt: skip

PICTURE = picture_flag("bars", "roofline")


@click.command(
    cls=Question,
    short_help="what does one decode step take, row by row?",
    epilog=examples(
        "perfmodel step --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 --batch 8",
        "perfmodel step --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
        "    --engine sglang --no-cuda-graphs --batch 1,8,32 --plot step.png",
        "perfmodel step --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
        "    --batch 1,8,32,128 --plot roofline.svg --picture roofline",
    ),
)
@deployment_flags
@flag("--batch", default="1,8,32", show_default=True, metavar="N,N,...", section="Workload",
      help="running sequences of one engine copy, over all its pipeline slots and attention groups")  # fmt: skip
@CACHED
@JSON
@PLOT
@PICTURE
def step(**given: Any) -> None:
    """What does one decode step take? Row by row, with what binds each.

    With pipelining this is the time from one token of a sequence to its next.
    """
    from perfmodel.step import step as ask

    cached = numbers("cached-tokens", given["cached_tokens"] or "1024")
    answer(given, lambda d: ask(d, batch=several(numbers("batch", given["batch"])), context=several(cached)))


@click.command(
    cls=Question,
    short_help="what does the prefill of one prompt take?",
    epilog=examples(
        "perfmodel prefill --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8",
        "perfmodel prefill --model kimi-k2.6 --node 8x-rtx-pro-6000-server --pp 8 \\",
        "    --tokens 1024,8192 --cached-tokens 65536 --json",
    ),
)
@deployment_flags
@flag("--tokens", default="8192", show_default=True, metavar="N,N,...", section="Workload",
      help="new tokens of a prompt")  # fmt: skip
@CACHED
@JSON
@PLOT
@PICTURE
def prefill(**given: Any) -> None:
    """What does the prefill of one prompt take? Row by row, chunked as the engine does."""
    from perfmodel.step import prefill as ask

    cached = numbers("cached-tokens", given["cached_tokens"] or "0")
    answer(given, lambda d: ask(d, tokens=several(numbers("tokens", given["tokens"])), context=several(cached)))


def several(values: list[float]) -> Any:
    """One value as a scalar, so that a scalar question has a scalar answer."""
    return values[0] if len(values) == 1 else values


def answer(given: dict[str, Any], ask: Any) -> None:
    """Deploy, ask, print."""
    from perfmodel.deployment import deploy
    from perfmodel.errors import BadInput
    from perfmodel.report.text import step_text
    from perfmodel.step import memory

    check_picture(given["plot"])
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    try:
        cost = ask(d)
    except ValueError as error:
        if "broadcast" not in str(error):
            raise
        raise BadInput("the lists must be of one length, or one of them a single number") from None
    show(cost, lambda: step_text(cost), given)
    report = memory(d, hints=False)
    if not report.fits:
        why = f"{report.verdict}: {report.pool.reason}"
        warn([f"memory says no ({why}); the time is of a deployment that cannot start"])
