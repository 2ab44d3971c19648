"""``perfmodel collective``: how long does one collective take on a node?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, NODE, PLOT, Question, examples, flag
from perfmodel.cli.output import show


@click.command(
    cls=Question,
    short_help="how long does a collective take on a node?",
    epilog=examples(
        "perfmodel collective all_reduce --node 8x-rtx-pro-6000-server",
        "perfmodel collective all_gather --node 8x-rtx-pro-6000-server --ranks 4 \\",
        "    --message-bytes '1 MiB,16 MiB' --json",
        "perfmodel collective all_reduce --node 8x-rtx-pro-6000-server --engine vllm",
        "perfmodel collective all_reduce --node 8x-h100-sxm --all --plot curves.png",
        "perfmodel collective all_to_all --node 2x-dgx-h100 --algorithm deepep",
    ),
)
@click.argument("operation")
@NODE
@flag("--message-bytes", default="14336,1 MiB,64 MiB", show_default=True, metavar="SIZE,SIZE,...", section="What",
      help="sizes as nccl-tests prints them: a number of bytes, or with a unit")  # fmt: skip
@flag("--ranks", metavar="N", section="What", help="the node's first N GPUs; the default is all")
@flag("--algorithm", metavar="NAME", section="What",
      help="nccl for NCCL's own choice, or ring-ll, ring-simple, tree, nvls, one-shot, two-shot, multimem, pcie-ipc, "
      "host-staged, hierarchical, deepep, ...: --all lists what there is; without it what the engine runs")  # fmt: skip
@flag("--all", "everything", is_flag=True, section="What", help="all algorithms, the one that runs marked")
@flag("--engine", metavar="NAME", section="What", help="whose all-reduce; without it NCCL's")
@flag("--nccl", metavar="NAME", section="What", help="NCCL: version or environment")
@flag("--in-graph/--no-in-graph", default=True, show_default=True, section="What", help="launched in a CUDA graph")
@JSON
@PLOT
def collective(operation: str, **given: Any) -> None:
    """How long does a collective take? Time, bus bandwidth and protocol by size.

    OPERATION is all_reduce, all_gather, reduce_scatter, all_to_all or send_recv.
    """
    from perfmodel.cli.options import quantity, whole
    from perfmodel.cli.output import check_picture, print_json
    from perfmodel.report.collective_text import algorithms_text
    from perfmodel.report.text import collective_text
    from perfmodel.step import collective as ask

    check_picture(given["plot"])
    sizes = [quantity("message-bytes", piece, "B") for piece in given["message_bytes"].split(",")]
    asked = {name: given[name] for name in ("node", "algorithm", "engine", "in_graph", "nccl")}
    asked["ranks"] = None if given["ranks"] is None else whole("ranks", given["ranks"])
    cost = ask(operation, message_bytes=sizes[0] if len(sizes) == 1 else sizes, **asked)
    if given["plot"]:
        from perfmodel.report import save

        save(ask(operation, message_bytes=[2.0 ** (n / 2) for n in range(20, 57)], **asked), given["plot"])
    if given["everything"] and given["as_json"]:
        print_json(cost.to_dict() | {"algorithms": cost.all_algorithms()})
    else:
        show(cost, lambda: algorithms_text(cost) if given["everything"] else collective_text(cost),
             given | {"plot": None})
