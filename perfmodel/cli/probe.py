"""``perfmodel probe``: measure this machine, or read what others measured on theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import INTERRUPTED
from perfmodel.cli.options import JSON, Question, examples, flag, quantity, whole
from perfmodel.cli.output import print_json, warn

if TYPE_CHECKING:
    from perfmodel.probe.run import ProbeReport


@click.command(
    cls=Question,
    short_help="measure this machine's GPUs and links",
    epilog=examples(
        "perfmodel probe --quick",
        "perfmodel probe --host-staged --out my-node",
        "perfmodel probe --topology topo.txt --accelerator h200-sxm --out my-node",
        "perfmodel probe --nccl-tests all_reduce.log --out my-node",
    ),
)
@flag("--out", default="probe", show_default=True, metavar="DIR", section="What", help="folder for PERFMODEL_PATH")
@flag("--quick", is_flag=True, section="What", help="fewer sizes and shapes, all GPUs only: a minute or two")
@flag("--host-staged", is_flag=True, section="What", help="collectives once more with NCCL_P2P_DISABLE=1")
@flag("--only", metavar="KIND,...", section="What", help="copy, launch, gemm, p2p, collectives")
@flag("--gpus", metavar="N", section="What", help="the first N GPUs; the default is all")
@flag("--timeout", default="120", show_default=True, metavar="SECONDS", section="What",
      help="longest that one measurement may take")  # fmt: skip
@flag("--dry-run", is_flag=True, section="What", help="list what would be measured on --gpus N; needs no GPU")
@flag("--topology", metavar="FILE", section="Without a GPU", help="output of `nvidia-smi topo -m`: writes a node file")
@flag("--accelerator", metavar="NAME", section="Without a GPU", help="with --topology: catalog name of its GPUs")
@flag("--nccl-tests", metavar="FILE", section="Without a GPU", help="output of a *_perf program: writes observations")
@flag("--name", metavar="NAME", section="Without a GPU", help="name of the node or of the observations")
@JSON
def probe(**given: Any) -> None:
    """Measure this machine: copies, GEMMs, launches, pairs of GPUs, collectives inside and outside CUDA graphs.

    Writes accelerator, node and observation files below DIR, which the catalog reads when DIR is on PERFMODEL_PATH.
    Ctrl-C keeps what is measured; the same command goes on from there. Needs PyTorch (the extra [probe]).
    """
    if given["topology"] and given["nccl_tests"]:
        raise click.UsageError("give --topology or --nccl-tests, not both")
    if given["topology"] or given["nccl_tests"]:
        _read_texts(given)
    elif given["dry_run"]:
        _list_tasks(given)
    else:
        _measure(given)


def _read_texts(given: dict[str, Any]) -> None:
    """Files from what somebody else's machine printed."""
    from perfmodel.probe import run

    if given["topology"]:
        if not given["accelerator"]:
            raise click.UsageError("--topology needs --accelerator, the catalog's name of its GPUs")
        written = run.node_file(given["topology"], given["accelerator"], Path(given["out"]), given["name"] or "")
    else:
        written = run.nccl_tests_file(given["nccl_tests"], Path(given["out"]), given["name"] or "",
                                      whole("gpus", given["gpus"]) if given["gpus"] else None)
    print_json({"files": [str(written)]}) if given["as_json"] else click.echo(f"written to {written}")


def _list_tasks(given: dict[str, Any]) -> None:
    """The plan for a large GPU of today."""
    from perfmodel.probe.plan import GIB, plan

    gpus = whole("gpus", given["gpus"]) if given["gpus"] else 1
    tasks = plan(gpus, 9.0, 80 * GIB, quick=given["quick"], host_staged=given["host_staged"], only=_kinds(given))
    if given["as_json"]:
        print_json({"tasks": [task.to_dict() for task in tasks]})
    else:
        click.echo("\n".join(task.key for task in tasks))


def _measure(given: dict[str, Any]) -> None:
    from perfmodel.errors import BadInput
    from perfmodel.probe import run, session

    timeout = quantity("timeout", given["timeout"], "s")
    if not 1 <= timeout <= 86_400:
        raise BadInput(f"timeout must lie between 1 and 86400 s, not {given['timeout'][:40]}")
    session.need_torch()
    gpus = whole("gpus", given["gpus"]) if given["gpus"] else None
    with _progress() as (started, now):
        report = run.probe(
            Path(given["out"]), quick=given["quick"], host_staged=given["host_staged"], only=_kinds(given), gpus=gpus,
            timeout_s=timeout, started=started, progress=now)
    warn(f"not measured: {task} ({why})" for task, why in list(report.failed.items())[:10])
    print_json(report.to_dict()) if given["as_json"] else click.echo(text(report))
    if report.missing:
        warn([f"interrupted with {report.missing} to go; the same command goes on from there"])
        raise click.exceptions.Exit(INTERRUPTED)


def _kinds(given: dict[str, Any]) -> tuple[str, ...]:
    return tuple(kind.strip() for kind in (given["only"] or "").split(",") if kind.strip())


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """A bar on stderr where that is a terminal, else a line for each kind of measurement."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("starting", total=None)
        kinds = [""]

        def started(total: int, before: int) -> None:
            bar.update(line, total=total, completed=before)
            click.echo(f"{total} measurements, {before} of them done before", err=True)

        def now(task: str) -> None:
            bar.update(line, advance=1, description=task.removeprefix("table=")[:60])
            if not console.is_terminal and (kind := task.split()[0].removeprefix("table=")) != kinds[0]:
                kinds[0] = kind
                click.echo(f"measuring {kind}", err=True)

        yield started, now


def text(report: ProbeReport) -> str:
    """The report for people."""
    from perfmodel.units import si

    units = {"Bps": "B/s", "FLOPps": "FLOP/s", "s": "s"}
    width = max(map(len, report.figures), default=0)
    lines = [f"{report.node}: {report.measured} measured now, {report.skipped} before, {len(report.failed)} failed", ""]
    for name, value in report.figures.items():
        stem, _, unit = name.rpartition("_")
        lines.append(f"  {stem.replace('_', ' '):{width}}  {si(value, units[unit])}")
    lines += ["", *(f"assumption: {entry}" for entry in report.assumptions)]
    return "\n".join([*lines, *(f"written to {file}" for file in report.files)])


probe_command = probe
