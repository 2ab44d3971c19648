"""`perfmodel calibrate`: fit the factors to a benchmark of your own, or make the shipped calibrations again."""

from __future__ import annotations

import shlex
from typing import Any

import click

from perfmodel.cli.options import (
    ENGINE,
    JSON,
    Question,
    deployment_keywords,
    examples,
    flag,
    quantity,
    settings_flags,
    strategy_flags,
    whole,
)
from perfmodel.cli.output import check_picture, print_json, warn
from perfmodel.cli.validate import validate as validate
from perfmodel.errors import BadInput

EXAMPLES = examples(
    "perfmodel calibrate sweep.csv --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --output mine.yaml --plot residuals.png",
    "perfmodel calibrate sweep.csv --input-tokens 512 --output-tokens 128 \\",
    "    --model llama-3.1-8b --node 1x-h200-sxm --json",
    "perfmodel calibrate --shipped --check",
)
STATED = ("input_tokens", "output_tokens", "concurrency")


@click.command(cls=Question, short_help="fit the factors to your own benchmark", epilog=EXAMPLES)
@click.argument("files", required=False, nargs=-1, metavar="FILE...")
@flag("--model", metavar="NAME", section="What", help="catalog name, Hugging Face id, or YAML; else the file's own")
@flag("--node", metavar="NAME", section="What", help="catalog name, YAML, or Nx-<accelerator>")
@ENGINE
@flag("--input-tokens", metavar="N", section="What", help="of a prompt, where a file does not say")
@flag("--output-tokens", metavar="N", section="What", help="of an answer, where a file does not say")
@flag("--concurrency", metavar="N", section="What", help="requests in flight or batch, where a file does not say")
@strategy_flags
@settings_flags
@flag("--free", metavar="NAME,...", section="Fit", help="parameters to fit; else all that the strategy depends on")
@flag("--collective", metavar="NAME", section="Fit", help="of nccl-tests output that does not name it")
@flag("--ranks", metavar="N", section="Fit", help="GPUs of nccl-tests output that does not list them")
@flag("--shipped", is_flag=True, section="Fit", help="fit the shipped calibrations again from the shipped observations")
@flag("--check", is_flag=True, section="Fit", help="with --shipped: print the fit, write nothing")
@flag("--force", is_flag=True, section="Fit", help="also where the rows lie far from the model: three times or a third")
@flag("--output", "-o", metavar="FILE.yaml", section="Output", help="write the calibration (or the node) here")
@flag("--plot", metavar="FILE", section="Output", help="draw residuals and predicted against measured")
@JSON
def calibrate(**given: Any) -> None:
    """Fit factors to results of vllm bench, SGLang's benchmarks, GuideLLM, AIPerf, llama-bench, or a CSV.

    Says how far the predictions were off before and after, which parameters the data cannot tell apart, and which
    measurement would narrow the bands most. Use the file that it writes with --calibration. Output of nccl-tests
    becomes a node file instead. What a file does not say is asked for.

    Exit code 1, and no file without --force: the rows lie so far from the model that a unit is probably wrong. Which
    one is said.
    """
    check_picture(given["plot"])
    if given["shipped"] and given["files"]:
        raise click.UsageError("--shipped fits what ships; give no FILE with it")
    if given["check"] and not given["shipped"]:
        raise click.UsageError("--check goes with --shipped")
    if given["shipped"]:
        _shipped(given["check"], given["as_json"])
        return
    if not (given["files"] and given["node"]):
        raise click.UsageError("calibrate needs FILE... and --node; or --shipped")
    texts = _nccl(given["files"])
    if texts:
        _node(texts, given)
    else:
        _own(given)


def _own(given: dict[str, Any]) -> None:
    """Results of a served model: a calibration."""
    from perfmodel.calibration.bench_files import read_files
    from perfmodel.calibration.own import calibrate_found
    from perfmodel.deployment import deploy

    stated = {name: quantity(name, given[name], None) for name in STATED if given[name] is not None}
    found = read_files(given["files"], **stated)
    model = given["model"] or (found.models[0] if len(found.models) == 1 else None)
    if model is None:
        named = f"; the files name {', '.join(found.models[:4])}" if found.models else ""
        raise click.UsageError(f"calibrate needs --model{named}")
    d = deploy(model, node=given["node"], engine=given["engine"], **deployment_keywords(given))
    names = [name.strip() for name in given["free"].split(",")] if given["free"] is not None else None
    made = calibrate_found(found, deployment=d, free=names)
    kept = not made.doubts or given["force"]
    if given["output"] is not None and kept:
        made.save(given["output"], _command())
        click.echo(f"written to {given['output']}; use it with --calibration {given['output']}", err=True)
    if given["plot"]:
        made.save_plot(given["plot"])
        click.echo(f"written to {given['plot']}", err=True)
    if given["as_json"]:
        print_json(made.to_dict())
    else:
        click.echo(made.report())
    warn(made.doubts)
    if not kept:
        nothing = "" if given["output"] is None else f"; {given['output']} is not written"
        warn([f"these rows are not taken for what they say they are{nothing}; --force takes them all the same"])
        raise click.exceptions.Exit(1)


def _nccl(paths: tuple[str, ...]) -> dict[str, str]:
    """Texts by path, if they are output of nccl-tests; nothing otherwise."""
    from perfmodel.calibration.bench_files import MAX_BYTES
    from perfmodel.calibration.bench_tables import is_nccl
    from perfmodel.catalog.yaml import read_text

    texts = {path: read_text(path, MAX_BYTES) for path in paths}
    known = [path for path, text in texts.items() if is_nccl(text)]
    if known and len(known) < len(texts):
        raise BadInput("output of nccl-tests calibrates a node, other results a deployment; give them apart")
    return texts if known else {}


def _node(texts: dict[str, str], given: dict[str, Any]) -> None:
    """Output of nccl-tests: figures of the node's collectives."""
    from hashlib import sha256
    from os.path import basename

    from perfmodel.calibration.interconnect import Table, fit_node
    from perfmodel.calibration.nodes import save_node
    from perfmodel.catalog import load_node
    from perfmodel.probe.nccl_tests import parse_nccl_tests

    node, ranks = load_node(given["node"]), whole("ranks", given["ranks"]) if given["ranks"] is not None else None
    parsed = [parse_nccl_tests(text) for text in texts.values()]
    if not all((one.op or given["collective"]) and (one.ranks or ranks) for one in parsed):
        raise BadInput("output of nccl-tests without the header lines that name the operation and list the GPUs",
                       hints=["state them: --collective all_reduce --ranks 8"])
    tables = [Table.of(one, op=given["collective"] or "", ranks=ranks) for one in parsed]
    found = fit_node(tables, node)
    if given["output"] is not None:
        title = ", ".join(table.name for table in tables)
        hashes = {basename(path): sha256(text.encode()).hexdigest() for path, text in texts.items()}
        save_node(given["output"], node, found, title, hashes)
        click.echo(f"written to {given['output']}; use it with --node {given['output']}", err=True)
    if given["as_json"]:
        figures = found.figures.model_dump(exclude_none=True, exclude_defaults=True, mode="json")
        print_json({"node": node.name, "median_error": found.median_error, "error_p90": found.error_p90,
                    "tables": {name: float(abs(errors).mean()) for name, errors in found.errors.items()},
                    "figures": figures})
    else:
        click.echo(found.report())


def _command() -> str:
    """The command line as a shell takes it."""
    import sys

    return shlex.join(["perfmodel", *sys.argv[1:]])[:2000]


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
