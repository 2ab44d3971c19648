"""``perfmodel catalog``: which names are known, and what a descriptor says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from perfmodel.cli.group import Commands
from perfmodel.cli.options import JSON, PLOT, Question, examples, flag
from perfmodel.cli.output import check_picture, print_json

KINDS = ("model", "node", "accelerator", "engine", "calibration")
KIND = flag("--kind", metavar="KIND", section="What", help=f"only this kind: {', '.join(KINDS)}")


class Catalog(Commands, Question):
    """Group whose options also stand under headings; a kind in place of a command is told from a slip."""

    def no_such(self, name: str, known: Sequence[str]) -> str:
        kind = name.lower().removesuffix("s")
        if kind in KINDS:
            return f"no such command {name!r}; perfmodel catalog --kind {kind} lists them"
        if any(name in names_of(each) for each in KINDS):
            return f"no such command {name!r}; perfmodel catalog show {name} says what it is"
        return super().no_such(name, known)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        Question.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(
    cls=Catalog,
    short_help="which models, nodes, engines, ... are known?",
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",
    epilog=examples(
        "perfmodel catalog",
        "perfmodel catalog --kind engine --json",
        "perfmodel catalog show kimi-k2.6",
        "perfmodel catalog show rtx-pro-6000-server --kind calibration",
    ),
)
@KIND
@JSON
@click.pass_context
def catalog(context: click.Context, kind: str | None, as_json: bool) -> None:
    """Which models, nodes, accelerators, engines and calibrations are known?

    `catalog show NAME` prints what a descriptor says, figure by figure, with its source.
    """
    if context.invoked_subcommand is not None:
        return
    known = {each: names_of(each) for each in KINDS if kind in (None, each)} or _unknown_kind(str(kind))
    if as_json:
        print_json({f"{each}s": names for each, names in known.items()})
        return
    from perfmodel.report.layout import wrapped

    click.echo("\n".join(wrapped(", ".join(names) or "none", f"{f'{each}s:':<15}") for each, names in known.items()))


@catalog.command(
    cls=Question,
    short_help="what does a descriptor say?",
    epilog=examples(
        "perfmodel catalog show 8x-rtx-pro-6000-server --plot topology.svg",
        "perfmodel catalog show h200-sxm --json",
    ),
)
@click.argument("name")
@KIND
@JSON
@PLOT
def show(name: str, kind: str | None, as_json: bool, plot: str | None) -> None:
    """What does a descriptor say? Every figure with its kind and its source.

    NAME is a name of the catalog or the path of a YAML file.
    """
    if kind is not None and kind not in KINDS:
        _unknown_kind(kind)
    check_picture(plot)
    found, noun = find(name, kind)
    if plot:
        from perfmodel.report import save

        save(noun, plot)
    if as_json:
        print_json(noun if isinstance(noun, dict) else noun.model_dump(mode="json"))
    elif isinstance(noun, dict):
        from perfmodel.report.layout import wrapped

        known = ", ".join(noun["versions"])
        click.echo(wrapped(f"engine {noun['name']}: the rules of these versions are known: {known}", rest="  "))
    else:
        from perfmodel.report.descriptor import descriptor_text

        click.echo(descriptor_text(noun, found))


def _unknown_kind(kind: str) -> Any:
    from perfmodel.errors import UnknownName

    raise UnknownName("kind of descriptor", kind, KINDS)


def names_of(kind: str) -> list[str]:
    """Names of one kind, in order; engines with the versions whose rules are known."""
    if kind == "engine":
        from perfmodel.engines import ENGINES

        return [name for name, module in ENGINES.items() if hasattr(module, "check")]
    from perfmodel.catalog import names

    return names(kind)


def find(name: str, kind: str | None) -> tuple[str, Any]:
    """The first descriptor of that name, by kind in the order of `KINDS`; engines are a mapping."""
    from perfmodel import catalog as room
    from perfmodel.catalog.lookup import is_path
    from perfmodel.errors import UnknownName

    loaders = {
        "model": room.load_model,
        "node": room.load_node,
        "accelerator": room.load_accelerator,
        "engine": _engine,
        "calibration": lambda text: room.load_calibration(None, None, text),
    }
    if kind is not None:
        return kind, loaders[kind](name)
    if is_path(name):
        kind = _kind_of_file(name)
        return kind, loaders[kind](name)
    for each, load in loaders.items():
        try:
            return each, load(name)
        except UnknownName:
            continue
    raise UnknownName("name", name, {known for each in KINDS for known in names_of(each)})


def _kind_of_file(path: str) -> str:
    """What the `schema:` line of a file says it is."""
    from perfmodel.catalog.yaml import read_yaml
    from perfmodel.errors import DescriptorError

    schema = str(read_yaml(path).get("schema")).partition("/")[0]
    if schema not in KINDS:
        raise DescriptorError(f"{path}: schema - {schema[:80]!r} is none of {', '.join(f'{each}/1' for each in KINDS)}")
    return schema


def _engine(name: str) -> dict[str, Any]:
    from perfmodel.engines import ENGINES, get

    module, version, _ = get(name)
    engine = next(known for known, other in ENGINES.items() if other is module)
    return {"name": engine, "versions": list(module.VERSIONS), "newest": version}
