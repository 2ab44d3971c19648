"""``perfmodel doctor``: what is wrong with this launch?"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.options import JSON, Question, examples, flag, numbers
from perfmodel.cli.output import show, warn

EXAMPLES = examples(
    'perfmodel doctor "vllm serve moonshotai/Kimi-K2.6 -tp 8 --enforce-eager" \\',
    "    --node 8x-rtx-pro-6000-server",
    'perfmodel doctor "sglang serve --model-path moonshotai/Kimi-K2.6 --pp-size 8" \\',
    "    --node 8x-rtx-pro-6000-server --engine sglang==0.5.10 --concurrency 1,8,32",
    'perfmodel doctor "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2" \\',
    "    --node 8x-h100-sxm --json",
)


@click.command(cls=Question, short_help="what is wrong with this launch?", epilog=EXAMPLES)
@click.argument("command", metavar="COMMAND")
@flag("--node", required=True, metavar="NAME", section="What", help="catalog name, YAML, or Nx-<accelerator>")
@flag("--engine", metavar="NAME==VERSION", section="What",
      help="version of the engine; else an image's tag, else the newest")  # fmt: skip
@flag("--model", metavar="NAME", section="What", help="catalog name, where the command has another")
@flag("--prompts", metavar="NAME", section="What", help="random, or identical on all streams")
@flag("--calibration", metavar="NAME", section="What", help="name or file of a calibration; else the nearest")
@flag("--patches", metavar="NAME,...", section="What", help="changes to the stock engine that are taken as made")
@flag("--log", metavar="FILE", section="What a run left", help="log of the server")
@flag("--metrics", metavar="FILE", section="What a run left", help="its /metrics, Prometheus text")
@flag("--benchmark", metavar="FILE", section="What a run left",
      help="JSON of vllm bench serve or sglang.bench_serving")  # fmt: skip
@flag("--concurrency", default="1,8,32,128", show_default=True, metavar="N,N,...", section="Workload",
      help="requests in flight over the whole deployment")  # fmt: skip
@flag("--input-tokens", default="1024", show_default=True, metavar="LENGTH", section="Workload",
      help="a number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA")  # fmt: skip
@flag("--output-tokens", default="1024", show_default=True, metavar="LENGTH", section="Workload",
      help="the same of the answers")  # fmt: skip
@flag("--arrival", type=click.Choice(["burst", "staggered"]), section="Workload",
      help="how a pipeline's slots are filled; default: burst for SGLang, staggered for vLLM")  # fmt: skip
@JSON
def doctor(**given: Any) -> None:
    """What is wrong with this launch? Findings by what they cost, each found by asking the model again.

    COMMAND is a launch line in quotes, or the path of a systemd unit, a docker-compose file, a Kubernetes manifest or a
    shell script that holds one. Nothing in it is run. Flags that are not understood are named.
    """
    from perfmodel.insight.doctor import doctor as ask
    from perfmodel.report.insight_text import doctor_text

    keywords = {name: given[name] for name in ("prompts",) if given[name] is not None}
    if given["patches"]:
        keywords["patches"] = tuple(given["patches"].split(","))
    names = ("node", "engine", "model", "calibration", "log", "metrics", "benchmark", "input_tokens", "output_tokens",
             "arrival")
    answer = ask(given["command"], concurrency=numbers("concurrency", given["concurrency"]),
                 **{name: given[name] for name in names}, **keywords)
    show(answer, lambda: doctor_text(answer), given)
    warn(f"not understood: {word}" for word in answer.launch.unknown)
    warn([*answer.launch.warnings, *answer.curve.warnings])
