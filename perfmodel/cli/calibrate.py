"""`perfmodel calibrate`: fit the factors to a benchmark of your own, or make the shipped calibrations again."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import (
    ENGINE,
    JSON,
    Question,
    deployment_keywords,
    examples,
    flag,
    settings_flags,
    strategy_flags,
)
from perfmodel.cli.output import print_json
from perfmodel.cli.validate import validate as validate
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel calibrate sweep.csv --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --output mine.yaml",
    "perfmodel calibrate --shipped --check",
)


@click.command(cls=Question, short_help="fit the factors to your own benchmark", epilog=EXAMPLES)
@click.argument("file", required=False, metavar="FILE.csv")
@flag("--model", metavar="NAME", section="What", help="catalog name, Hugging Face id, or YAML")
@flag("--node", metavar="NAME", section="What", help="catalog name, YAML, or Nx-<accelerator>")
@ENGINE
@strategy_flags
@settings_flags
@flag("--free", metavar="NAME,...", section="Fit", help="parameters to fit; else those that the strategy depends on")
@flag("--shipped", is_flag=True, section="Fit", help="fit the shipped calibrations again from the shipped observations")
@flag("--check", is_flag=True, section="Fit", help="with --shipped: print the fit, write nothing")
@flag("--output", "-o", metavar="FILE.yaml", section="Output", help="write the calibration here")
@JSON
def calibrate(**given: Any) -> None:
    """Fit factors to FILE.csv: columns concurrency, output_tok_s and, where known, input_tokens, output_tokens.

    Says how far the predictions were off before and after, and which parameters the data cannot tell apart. Use the
    file that it writes with --calibration.
    """
    if given["shipped"]:
        _shipped(given["check"], given["as_json"])
        return
    if not (given["file"] and given["model"] and given["node"]):
        raise click.UsageError("calibrate needs FILE.csv, --model and --node; or --shipped")
    from perfmodel.calibration import calibrate as fit
    from perfmodel.deployment import deploy

    d = deploy(given["model"], node=given["node"], engine=given["engine"], **deployment_keywords(given))
    names = [name.strip() for name in given["free"].split(",")] if given["free"] else None
    found = fit(given["file"], deployment=d, free=names)
    if given["output"]:
        _save(found, given["output"])
        click.echo(f"written to {given['output']}; use it with --calibration {given['output']}", err=True)
    if given["as_json"]:
        print_json(found.to_dict())
    else:
        click.echo(found.report())


def _save(found: Any, path: str) -> None:
    """The file, or one line that says why it cannot be written."""
    try:
        found.save(path)
    except OSError as error:
        why = (error.strerror or "unknown error").lower()
        raise BadInput(f"{path}: the calibration cannot be written, {why}") from None


def _shipped(check: bool, as_json: bool) -> None:
    """The staged fit; the files are replaced unless only a check is asked for."""
    from perfmodel.calibration import fleet, shipped

    found, others = shipped.run(), fleet.run()
    if as_json:
        print_json({name: one.to_dict() for name, one in found.stages.items()})
    else:
        click.echo(f"{found.report()}\n\n== other accelerators, served TPOT\n{others.report()}")
    for path in [] if check else [*shipped.save(found), *fleet.save(others)]:
        click.echo(f"written to {path}", err=True)


calibrate_command = calibrate
