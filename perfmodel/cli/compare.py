"""``perfmodel compare``: which strategy is fastest?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli import options
from perfmodel.cli.options import (
    Question,
    deployment_keywords,
    examples,
    flag,
    settings_flags,
    strategy,
    workload_flags,
)
from perfmodel.cli.output import check_picture, other_rules, show, warn
from perfmodel.cli.predict import measured_points, measured_rows, workload

if TYPE_CHECKING:
    from perfmodel.deployment import Deployment

EXAMPLES = examples(
    "perfmodel compare --model kimi-k2.6 --node 8x-rtx-pro-6000-server",
    "perfmodel compare --model kimi-k2.6 --node 8x-rtx-pro-6000-server \\",
    "    --engine sglang --memory-fraction 0.9 --concurrency 1,8,64 \\",
    '    --strategy "tp=8" --strategy "tp=8,cuda_graphs=off" --strategy "tp=1,pp=8"',
    "perfmodel compare --model kimi-k2.6 --node 8x-rtx-pro-6000-server \\",
    '    --strategy "tp=8,engine=vllm" --strategy "tp=8,engine=sglang" --plot engines.png',
)


class Strategies(Question):
    """Command whose strategies are texts: a flag of one strategy is refused with the way to write it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.removeprefix("--")
            if name.replace("-", "_") not in [keyword.name for keyword in options.STRATEGY]:
                raise
            text = f'--{name} is part of a strategy; write it as --strategy "{name}=..."'
            raise click.UsageError(text, ctx) from None


@click.command(cls=Strategies, short_help="which strategy is fastest?", epilog=EXAMPLES)
@options.MODEL
@options.NODE
@options.ENGINE
@flag("--strategy", "strategies", multiple=True, metavar="TEXT", section="Strategy",
      help='keywords of a deployment, such as "tp=8,ep=8"; may be repeated. None: TP, TP with EP over all and over '
      "half of the GPUs, PP, TP2 and PP2 mixes, attention groups (DP attention) with and without EP, and copies (dp) "
      "that fit; those that engine and model allow")  # fmt: skip
@settings_flags
@workload_flags
@options.JSON
@options.BRIEF
@options.PLOT
@options.picture_flag("throughput", "ttft", "tpot")
@options.MEASURED
def compare(**given: Any) -> None:
    """Which strategy? The same workload over several strategies, best first.

    Strategies of --strategy that the engine refuses are listed on stderr with its reason; engine settings hold for all
    strategies that do not set their own.
    """
    from perfmodel.report.serving_text import comparison_text
    from perfmodel.serving import compare as ask

    check_picture(given["plot"])
    rows = measured_rows(given["measured"])
    deployments = legal_deployments(given)
    points = measured_points(rows, deployments, given)
    comparison = ask(deployments, **workload(given, points))
    places = {id(d): i for i, d in enumerate(deployments)}
    points = {i: points[places[id(curve.deployment)]] for i, curve in enumerate(comparison.curves)}
    show(comparison, lambda: comparison_text(comparison, given["brief"]), given, measured=points)
    warn(warnings_of(comparison))


def legal_deployments(given: dict[str, Any]) -> list[Deployment]:
    """A deployment for every strategy that its engine runs. Of those that were asked for the others are said on stderr;
    that none can run is an error."""
    from perfmodel.catalog import load_model, load_node
    from perfmodel.deployment import deploy
    from perfmodel.errors import IllegalDeployment
    from perfmodel.step import memory

    settings = deployment_keywords(given)
    asked = [(text, strategy(text)) for text in given["strategies"]]
    model, node = load_model(given["model"]), load_node(given["node"])
    legal, refused = [], []
    for text, keywords in asked or default_strategies(node.count):
        engine = keywords.pop("engine", given["engine"])
        try:
            made = deploy(model, node=node, engine=engine, **{**settings, **keywords})
        except IllegalDeployment as error:
            refused.append((text, error.message))
            continue
        if asked or not if_it_fits(keywords) or memory(made, hints=False).fits:
            legal.append(made)
    if not legal:
        raise IllegalDeployment("no strategy can run", [f'--strategy "{text}": {why}' for text, why in refused])
    warn((f"{text}: {why}" for text, why in refused if asked), "refused")
    warn(dict.fromkeys(line for made in legal for line in other_rules(made)))
    return legal


def if_it_fits(way: dict[str, Any]) -> bool:
    """Whether a usual way is one that is only tried where it fits: copies, and attention groups without EP."""
    return way.get("dp", 1) > 1 or (way.get("dp_attention", 1) > 1 and way.get("ep", 1) == 1)


def default_strategies(gpus: int) -> list[tuple[str, dict[str, Any]]]:
    """The usual ways to spread a model over the GPUs of a node.

    >>> [text for text, _ in default_strategies(8)][:4]
    ['tp=8', 'tp=8,ep=8', 'tp=8,ep=4', 'pp=8']
    >>> [text for text, _ in default_strategies(3)]
    ['tp=3', 'tp=3,ep=3', 'pp=3', 'tp=3,dp_attention=3,ep=3', 'tp=3,dp_attention=3', 'dp=3']
    """
    half = gpus // 2
    ways: list[dict[str, Any]] = [{"tp": gpus}, {"tp": gpus, "ep": gpus}]
    ways += [{"tp": gpus, "ep": half}] if gpus % 2 == 0 else []
    ways += [{"pp": gpus}]
    ways += [{"tp": 2, "pp": half}, {"tp": half, "pp": 2}] if gpus % 2 == 0 else []
    ways += [{"tp": gpus, "dp_attention": gpus, "ep": gpus}, {"tp": gpus, "dp_attention": gpus}]
    ways += [{"tp": half, "dp": 2}] if gpus % 2 == 0 else []
    ways += [{"dp": gpus}]
    named: dict[str, dict[str, Any]] = {}
    for way in ways:
        way = {name: degree for name, degree in way.items() if degree > 1} or {"tp": 1}
        named.setdefault(",".join(f"{name}={degree}" for name, degree in way.items()), way)
    return list(named.items())


def warnings_of(comparison: Any) -> list[str]:
    """Warnings of all curves, each with the strategy that it is about."""
    from perfmodel.report.layout import labels

    names = labels([curve.deployment for curve in comparison.curves])
    found = [f"{name}: {text}" for name, c in zip(names, comparison.curves, strict=True) for text in c.warnings]
    return [*found, *([] if any(report.fits for report in comparison.memories) else ["none of the strategies fits"])]
