"""``perfmodel doctor``: what is wrong with this launch?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.options import JSON, Question, examples, flag, numbers, workload_flags
from perfmodel.cli.output import show, warn
from perfmodel.errors import BadInput

if TYPE_CHECKING:
    from perfmodel.calibration.measured import Measurement
    from perfmodel.insight.doctor import Doctor

EXAMPLES = examples(
    'perfmodel doctor "vllm serve moonshotai/Kimi-K2.6 -tp 8 --enforce-eager" \\',
    "    --node 8x-rtx-pro-6000-server",
    'perfmodel doctor "sglang serve --model-path moonshotai/Kimi-K2.6 --pp-size 8" \\',
    "    --node 8x-rtx-pro-6000-server --engine sglang==0.5.10 --concurrency 1,8,32",
    'perfmodel doctor "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2" \\',
    "    --node 8x-h100-sxm --json",
    "perfmodel doctor --texts launch_commands.csv",
)


class Quoted(Question):
    """Command that takes a launch as one argument: one without quotes comes as many words, and is told so."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        starts = ("vllm", "sglang", "trtllm-serve", "python", "python3", "docker")
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if len(words) < 2 or words[0].rsplit("/", 1)[-1] not in starts or isinstance(error, click.MissingParameter):
                raise
            text = f'the launch needs quotes around it: perfmodel doctor "{" ".join(words[:2])[:60]} ..." --node NAME'
            raise click.UsageError(text, ctx) from None


@click.command(cls=Quoted, short_help="what is wrong with this launch?", epilog=EXAMPLES)
@click.argument("command", metavar="[COMMAND]", required=False)
@flag("--node", metavar="NAME", section="What", help="catalog name, YAML, or Nx-<accelerator>")
@flag("--engine", metavar="NAME==VERSION", section="What",
      help="version of the engine; else an image's tag, else the newest")  # fmt: skip
@flag("--model", metavar="NAME", section="What", help="catalog name, where the command has another")
@flag("--prompts", metavar="NAME", section="What", help="random, or identical on all streams")
@flag("--calibration", metavar="NAME", section="What", help="name or file of a calibration; else the nearest")
@flag("--patches", metavar="NAME,...", section="What", help="changes to the stock engine that are taken as made")
@flag("--log", metavar="FILE", section="What a run left", help="log of the server")
@flag("--metrics", metavar="FILE", section="What a run left", help="its /metrics, Prometheus text")
@flag("--benchmark", metavar="FILE", section="What a run left",
      help="result file of vllm bench, sglang.bench_serving, GuideLLM, AIPerf, llama-bench, or a CSV")  # fmt: skip
@workload_flags
@flag("--texts", metavar="FILE", section="Many launches",
      help="only read all launch texts of FILE (JSON lines, CSV, or one a line) and count what parses")  # fmt: skip
@JSON
def doctor(**given: Any) -> None:
    """What is wrong with this launch? Findings by what they cost, each found by asking the model again.

    COMMAND is a launch line in quotes, or the path of a systemd unit, a docker-compose file, a Kubernetes manifest or a
    shell script that holds one. Nothing in it is run. Flags that are not understood are named.
    """
    if (given["texts"] is None) == (given["command"] is None):
        raise BadInput("give either a COMMAND or --texts FILE")
    if given["texts"] is not None:
        _count(given)
        return
    if given["node"] is None:
        raise BadInput("missing option '--node'", ["perfmodel catalog lists the names"])
    from perfmodel.insight.doctor import doctor as ask
    from perfmodel.report.insight_text import doctor_text

    keywords = {name: given[name] for name in ("prompts",) if given[name] is not None}
    if given["patches"]:
        keywords["patches"] = tuple(given["patches"].split(","))
    names = ("node", "engine", "model", "calibration", "log", "metrics", "input_tokens", "output_tokens", "arrival")
    rows = _rows(given["benchmark"])
    asked = {name: given[name] for name in names} | keywords
    answer = ask(given["command"], concurrency=numbers("concurrency", given["concurrency"]), benchmark=rows, **asked)
    show(answer, lambda: doctor_text(answer), given)
    launch = answer.launch
    warn(f"the server will not start: {item.flag}: {item.why}" for item in launch.refused)
    warn(f"not understood: {word}" for word in launch.others)
    warn([*launch.other_warnings, *answer.curve.warnings, *_doubts(answer, rows or ())])


def _doubts(answer: Doctor, rows: Sequence[Measurement]) -> list[str]:
    """Whether the rows of a benchmark lie so far from the prediction that a unit is probably wrong."""
    import numpy as np

    from perfmodel.calibration.plausible import doubts

    seen = [(item.measured, item.predicted) for item in answer.differences
            if item.source == "benchmark" and item.measured is not None and item.predicted]
    if not seen or len(seen) != len(rows):
        return []
    measured, predicted = np.array(seen).T
    return doubts(measured, predicted, rows, answer.deployment)


def _rows(path: str | None) -> Any:
    """Measurements of a result file."""
    if path is None:
        return None
    from perfmodel.calibration.bench_files import read_files

    return read_files([path]).rows


def _count(given: dict[str, Any]) -> None:
    """What becomes of every launch text of a file."""
    from perfmodel.insight.launch_lists import read_texts
    from perfmodel.report.insight_text import texts_text

    answer = read_texts(given["texts"])
    show(answer, lambda: texts_text(answer), given)
