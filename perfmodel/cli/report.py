"""``perfmodel report``: one page to hand on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli import options
from perfmodel.cli.options import (
    Question,
    deployment_flags,
    deployment_keywords,
    examples,
    flag,
    numbers,
    strategy,
    workload_flags,
)
from perfmodel.cli.output import print_json, warn
from perfmodel.cli.predict import measured_points, measured_rows

if TYPE_CHECKING:
    from perfmodel.deployment import Deployment
    from perfmodel.report.page import Answers

ENDINGS = (".html", ".md")
EXAMPLES = examples(
    "perfmodel report --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    "    --kv-dtype fp8 -o kimi.html",
    "perfmodel report --model kimi-k2.6 --node 8x-rtx-pro-6000-server --tp 8 \\",
    '    --context 32768 --strategy "pp=8" --strategy "tp=8,ep=8" --samples 900000 -o kimi.html',
    "perfmodel report --model llama-3.1-8b --node 1x-h100-sxm -o llama.md",
    "perfmodel report --model llama-3.1-8b --node 1x-h100-sxm --json",
)


@click.command(cls=Question, short_help="all of that as one page to hand on", epilog=EXAMPLES)
@deployment_flags
@flag("--strategy", "strategies", multiple=True, metavar="TEXT", section="Strategy",
      help='another one beside it, such as "pp=8"; may be repeated, engine settings hold for all')  # fmt: skip
@workload_flags
@flag("--samples", type=options.Count(), metavar="N", section="Workload",
      help="also the time that so many requests take")
@options.PRICE
@flag("--output", "-o", metavar="FILE", section="Output", help="the page: .html, or .md with its pictures beside it")
@options.JSON
@options.MEASURED
def report(**given: Any) -> None:
    """One page: question, answer, memory, curves with bands, what the time goes to, what would change it, every input
    with its source, assumptions, versions, and the command that makes the page again.

    The HTML needs no network and no script. Nothing in it says when it was made: the same question, the same bytes.
    Exit code 1: it does not fit.
    """
    from perfmodel.report.style import check_path

    if given["output"] is None and not given["as_json"]:
        raise click.UsageError("report needs --output FILE.html (or .md), or --json")
    file = None if given["output"] is None else check_path(given["output"], ENDINGS, "write")
    answers = asked(given, command(sys.argv[1:]))
    if file is not None:
        for path in written(answers, file):
            click.echo(f"written to {path}", err=True)
    if given["as_json"]:
        print_json(answers.to_dict())
    warn(answers.warnings)
    if not answers.memory.fits:
        raise click.exceptions.Exit(1)


def command(words: Sequence[str]) -> str:
    """The command line as a shell takes it.

    >>> command(["report", "--kv-dtype", "fp8", "-o", "a b.html"])
    "perfmodel report --kv-dtype fp8 -o 'a b.html'"
    """
    return shlex.join(["perfmodel", *words])[:4000]


def asked(given: dict[str, Any], line: str) -> Answers:
    """Every question of the report."""
    from perfmodel.deployment import deploy
    from perfmodel.planner import size_job
    from perfmodel.report.page import ask

    keywords, rows = deployment_keywords(given), measured_rows(given["measured"])
    d = deploy(given["model"], node=given["node"], engine=given["engine"], **keywords)
    lengths = {name: given[name] for name in ("input_tokens", "output_tokens")}
    if given["price_per_gpu_hour"] is not None and given["samples"] is None:
        raise click.UsageError("--price-per-gpu-hour goes with --samples")
    job = None
    if given["samples"] is not None:
        job = size_job(d, samples=given["samples"], price_per_gpu_hour=given["price_per_gpu_hour"], **lengths)
    return ask(d, command=line, concurrency=numbers("concurrency", given["concurrency"]), arrival=given["arrival"],
               others=_others(d, given, keywords), job=job, **lengths,
               measured=measured_points(rows, [d], given)[0])  # fmt: skip


def _others(d: Deployment, given: dict[str, Any], keywords: dict[str, Any]) -> list[Deployment]:
    """Deployments of --strategy: its own words, and the engine settings of all."""
    from perfmodel.deployment import deploy

    shared = {name: value for name, value in keywords.items() if name not in {k.name for k in options.STRATEGY}}
    found = []
    for text in given["strategies"]:
        own = strategy(text)
        engine = own.pop("engine", given["engine"])
        found.append(deploy(d.model, node=d.node, engine=engine, **{**shared, **own}))
    return found


def written(answers: Answers, file: Path) -> list[Path]:
    """Write the page, whole or not at all; of Markdown first its pictures."""
    from perfmodel.catalog.write import in_place_of, write_whole

    if file.suffix.lower() == ".html":
        from perfmodel.report.html import render

        return [write_whole(file, render(answers))]
    from perfmodel.report import markdown

    text, pictures = markdown.render(answers, file)
    for path, content in pictures.items():
        with in_place_of(path) as aside:
            Path(aside).write_bytes(content)
    return [*pictures, write_whole(file, text)]
