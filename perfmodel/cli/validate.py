"""`perfmodel validate`: predictions beside the shipped measurements."""

from __future__ import annotations

import click

from perfmodel.cli.options import JSON, Question, examples, flag
from perfmodel.cli.output import print_json

EXAMPLES = examples("perfmodel validate", "perfmodel validate case", "perfmodel validate kernels --json")


@click.command(cls=Question, short_help="predictions beside the measurements that ship", epilog=EXAMPLES)
@click.argument("what", default="all", metavar="[all|decode|prefill|kernels|interconnect|case]")
@JSON
@flag("--write", "page", metavar="PAGE.md", section="Output", help="put the tables between the marks of this page")
def validate(what: str, page: str | None, as_json: bool) -> None:
    """How right? Predictions beside the measurements that ship; fitted and checked rows apart."""
    from perfmodel.insight.validate import validate as compare
    from perfmodel.insight.validate import write_into

    found = compare(what)
    if page:
        write_into(page, found.text())
    elif as_json:
        print_json(found.to_dict())
    else:
        click.echo(found.text())


validate_command = validate
