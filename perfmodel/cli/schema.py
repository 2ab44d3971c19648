"""``perfmodel schema``: what the JSON of a command looks like."""

from __future__ import annotations

import click

from perfmodel.cli.options import JSON, Question, examples
from perfmodel.cli.output import print_json


@click.command(cls=Question, short_help="the JSON Schema of a command's --json",
               epilog=examples("perfmodel schema", "perfmodel schema memory --json",
                               "perfmodel schema catalog show --json"))  # fmt: skip
@click.argument("name", nargs=-1, metavar="[COMMAND]")
@JSON
def schema(name: tuple[str, ...], as_json: bool) -> None:
    """What does --json of a command print? Its JSON Schema (2020-12), made from the code.

    Without COMMAND the names of those that print JSON.
    """
    from perfmodel.cli.schemas import schema as schema_of
    from perfmodel.cli.schemas_more import PRINTED

    if name:
        print_json(schema_of(" ".join(name)))
    elif as_json:
        print_json(list(PRINTED))
    else:
        click.echo("\n".join(PRINTED))
