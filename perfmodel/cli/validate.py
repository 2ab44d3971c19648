"""`perfmodel validate`: predictions beside the shipped measurements."""

from __future__ import annotations

import click

from perfmodel.cli.options import JSON, Question, examples, flag
from perfmodel.cli.output import print_json

EXAMPLES = examples("perfmodel validate", "perfmodel validate case", "perfmodel validate kernels --json",
                    "perfmodel validate memory", "perfmodel validate e2e --held-out")


@click.command(cls=Question, short_help="predictions beside the measurements that ship", epilog=EXAMPLES)
@click.argument("what", default="all", metavar="[all|decode|prefill|kernels|interconnect|case|steps|e2e|memory]")
@flag("--held-out", "by", type=click.Choice(["source", "engine", "gpu"]), is_flag=False, flag_value="source",
      section="What", help="with e2e: fit again without each source (or engine, or GPU), and score what was left out")
@JSON
@flag("--write", "page", metavar="PAGE.md", section="Output", help="put the tables between the marks of this page")
def validate(what: str, by: str | None, page: str | None, as_json: bool) -> None:
    """How right? Predictions beside the measurements that ship; fitted and checked rows apart."""
    if by:
        _held_out(what, by, page)
        return
    from perfmodel.insight.memory_logs import MemoryValidation, validate_memory
    from perfmodel.insight.validate import Validation, write_into
    from perfmodel.insight.validate import validate as compare

    found: Validation | MemoryValidation = validate_memory() if what == "memory" else compare(what)
    if page:
        write_into(page, found.text())
    elif as_json:
        print_json(found.to_dict())
    else:
        click.echo(found.text())


def _held_out(what: str, by: str, page: str | None) -> None:
    """Leave-one-out errors; a minute, since every accelerator is fitted again."""
    if what != "e2e":
        raise click.UsageError("--held-out goes with e2e")
    from perfmodel.calibration import fleet
    from perfmodel.calibration.heldout import GROUPS, held_out_scores
    from perfmodel.insight.validate import HELD_OUT_MARK, write_into

    found = fleet.run()
    text = "\n\n".join(held_out_scores(found, one).text() for one in (GROUPS if page else (by,)))
    if page:
        write_into(page, text, HELD_OUT_MARK)
    else:
        click.echo(text)


validate_command = validate
