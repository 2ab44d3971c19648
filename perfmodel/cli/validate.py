"""`perfmodel validate`: predictions beside the shipped measurements."""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, Question, examples, flag
from perfmodel.cli.output import check_picture, print_json

EXAMPLES = examples("perfmodel validate", "perfmodel validate case", "perfmodel validate kernels --json",
                    "perfmodel validate memory", "perfmodel validate order", "perfmodel validate e2e --held-out",
                    "perfmodel validate speed --plot speed.png")


@click.command(cls=Question, short_help="predictions beside the measurements that ship", epilog=EXAMPLES)
@click.argument("what", default="all",
                metavar="[all|decode|prefill|kernels|interconnect|case|steps|parallel|e2e|speed|memory|own|order|"
                "speculation|serving]")  # fmt: skip
@flag("--held-out", "by", type=click.Choice(["source", "engine", "gpu"]), is_flag=False, flag_value="source",
      section="What", help="with e2e: fit again without each source (or engine, or GPU), and score what was left out")
@JSON
@flag("--plot", metavar="FILE", section="Output", help="with speed: draw predicted against measured into FILE")
@flag("--write", "page", metavar="PAGE.md", section="Output", help="put the tables between the marks of this page")
def validate(what: str, by: str | None, plot: str | None, page: str | None, as_json: bool) -> None:
    """How right? Predictions beside the measurements that ship; fitted and checked rows apart.

    speed fits again and prints errors by model, GPU, engine, strategy and concurrency (a minute).
    """
    if plot and what != "speed":
        raise click.UsageError("--plot goes with speed")
    if what == "speed":
        _speed(plot, as_json)
        return
    if by:
        _held_out(what, by, page)
        return
    if what == "serving":
        _serving(page, as_json)
        return
    from perfmodel.cli import validate_own
    from perfmodel.insight.memory_logs import MemoryValidation, validate_memory
    from perfmodel.insight.validate import Validation, write_into
    from perfmodel.insight.validate import validate as compare

    found: Validation | MemoryValidation | Any
    if what in validate_own.CHECKS:
        found = validate_own.run(what)
    else:
        found = validate_memory() if what == "memory" else compare(what)
    if page and what in validate_own.CHECKS:
        write_into(page, found.text(), f"<!-- perfmodel validate {what} -->")
    elif page:
        write_into(page, found.text())
    elif as_json:
        print_json(found.to_dict())
    else:
        click.echo(found.text())


def _serving(page: str | None, as_json: bool) -> None:
    """Public serving benchmarks, each run again in the simulator; a minute."""
    from perfmodel.cli.simulate import progress
    from perfmodel.insight.serving import validate_serving
    from perfmodel.insight.validate import write_into

    with progress() as bar:
        found = validate_serving(progress=bar)
    if page:
        write_into(page, found.text(), "<!-- perfmodel validate serving -->")
    elif as_json:
        print_json(found.to_dict())
    else:
        click.echo(found.text())


def _speed(plot: str | None, as_json: bool) -> None:
    """Served rows by group, predicted with and without their source."""
    check_picture(plot)
    from perfmodel.calibration import fleet
    from perfmodel.calibration.speed import speed

    found = speed(fleet.run())
    if plot:
        from perfmodel.report.validate_plot import save_speed

        save_speed(found.fitted, found.unseen, plot)
    if as_json:
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
