"""``perfmodel collective``: how long does one collective take on a node?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, NODE, Question, examples, flag
from perfmodel.cli.output import show


@click.command(
    cls=Question,
    short_help="how long does a collective take on a node?",
    epilog=examples(
        "perfmodel collective all_reduce --node 8x-rtx-pro-6000-server",
        "perfmodel collective all_gather --node 8x-rtx-pro-6000-server --ranks 4 \\",
        "    --message-bytes '1 MiB,16 MiB' --json",
        "perfmodel collective all_reduce --node 8x-rtx-pro-6000-server --engine vllm",
    ),
)
@click.argument("operation")
@NODE
@flag("--message-bytes", default="14336,1 MiB,64 MiB", show_default=True, metavar="SIZE,SIZE,...", section="What",
      help="sizes as nccl-tests prints them: a number of bytes, or with a unit")  # fmt: skip
@flag("--ranks", metavar="N", section="What", help="the node's first N GPUs; the default is all")
@flag("--algorithm", metavar="NAME", section="What", help="nccl for NCCL's own choice; else what the engine runs")
@flag("--engine", metavar="NAME", section="What", help="whose all-reduce; without it NCCL's")
@flag("--nccl", metavar="NAME", section="What", help="NCCL: version or environment")
@flag("--in-graph/--no-in-graph", default=True, show_default=True, section="What", help="launched in a CUDA graph")
@JSON
def collective(operation: str, **given: Any) -> None:
    """How long does a collective take? Time, bus bandwidth and protocol by size.

    OPERATION is all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.
    """
    from perfmodel.cli.options import quantity, whole
    from perfmodel.report.text import collective_text
    from perfmodel.step import collective as ask

    sizes = [quantity("message-bytes", piece, "B") for piece in given["message_bytes"].split(",")]
    cost = ask(
        operation,
        node=given["node"],
        message_bytes=sizes[0] if len(sizes) == 1 else sizes,
        algorithm=given["algorithm"],
        engine=given["engine"],
        in_graph=given["in_graph"],
        ranks=None if given["ranks"] is None else whole("ranks", given["ranks"]),
        nccl=given["nccl"],
    )
    show(cost, lambda: collective_text(cost), given)
