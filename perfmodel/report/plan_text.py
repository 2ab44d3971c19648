"""A plan as text: the ranked strategies, the Pareto front, and the commands that start and measure each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.layout import listed, number, span, tables, wrapped

if TYPE_CHECKING:
    from perfmodel.planner import Choice, Plan

_FRONT_ROWS = 10


def plan_text(plan: Plan, brief: bool = False) -> str:
    """Ranked plans with their bands; money per million output tokens where there is a price. ``brief``: no more."""
    best = plan.choices[0].deployment
    nodes = dict.fromkeys([row["node"] for row in plan.fleet] or [best.node.name])
    title = f"{best.model.name} on {', '.join(nodes)}: best {plan.target.replace('_', ' ')}"
    ranked = [
        wrapped(title, rest="  "),
        wrapped(_searched(plan), rest="  "),
        "",
        *_ranking(plan),
        "",
        wrapped(f"C: requests in flight; TTFT and TPOT in ms. {_ahead(plan)}"),
        *_fleet(plan),
    ]
    more = [
        "",
        "Pareto front:",
        "",
        *_front(plan),
        *_commands(plan.choices),
        *listed("assumptions", plan.assumptions),
    ]
    return "\n".join(ranked if brief else [*ranked, *more])


def _searched(plan: Plan) -> str:
    left = ", ".join(f"{count:,} by {what}" for what, count in plan.refused.items())
    return (f"{plan.deployments:,} deployments fit, {plan.priced:,} points priced (deployments x concurrencies); "
            f"refused: {left or 'none'}")


def _ranking(plan: Plan) -> list[str]:
    told = _told_apart([choice.deployment for choice in plan.choices])
    priced = any(choice.cost_per_mtok is not None for choice in plan.choices)
    rows = []
    for rank, (choice, words) in enumerate(zip(plan.choices, told, strict=True), start=1):
        point, job = choice.curve.points[0], choice.job
        row = [str(rank), choice.name, *words, str(choice.gpus), f"{point['concurrency']:,g}",
               number(point["output_tok_s"]), span(point["output_tok_s_low"], point["output_tok_s_high"]),
               number(point["ttft_ms"]), number(point["tpot_ms"]), choice.deployment.options.kv_dtype]
        if job is not None:
            row[2 + len(words):2 + len(words)] = [
                number(job.makespan_s / 3600), span(job.makespan_s_low / 3600, job.makespan_s_high / 3600)]
        if priced:
            row.insert(-3, "-" if choice.cost_per_mtok is None else f"{choice.cost_per_mtok:.3g}")
        rows.append(row)
    head = ["", "strategy", *_heads([choice.deployment for choice in plan.choices]), "GPUs", "C", "tok/s", "80 % band",
            "TTFT", "TPOT", "KV"]
    if plan.choices[0].job is not None:
        at = head.index("GPUs")
        head[at:at] = ["hours", "80 % band"]
    if priced:
        head.insert(-3, "per Mtok")
    return tables(head, rows)


def _differing(deployments: Sequence[Any]) -> list[tuple[str, list[str]]]:
    """What tells the plans apart beside their strategy: title and a word for each."""
    columns = [("node", [d.node.name for d in deployments]), ("engine", [d.options.engine for d in deployments]),
               ("model", [d.model.name for d in deployments])]
    return [(title, words) for title, words in columns if len(set(words)) > 1]


def _heads(deployments: Sequence[Any]) -> list[str]:
    return [title for title, _ in _differing(deployments)]


def _told_apart(deployments: Sequence[Any]) -> list[list[str]]:
    columns = [words for _, words in _differing(deployments)]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in deployments]


def _ahead(plan: Plan) -> str:
    if len(plan.choices) < 2:
        return "There is no second strategy to compare with."
    if plan.separated:
        return "The first is ahead of the second: their bands do not overlap."
    return "The bands of the first two overlap: which of them is ahead is not certain."


def _fleet(plan: Plan) -> list[str]:
    """Every node at its best, working side by side."""
    if not plan.fleet:
        return []
    rows = [[row["node"], row["strategy"], row["engine"], str(row["gpus"]), number(row["output_tok_s"]),
             f"{row['share']:.0%}"] for row in plan.fleet]
    total = sum(row["output_tok_s"] for row in plan.fleet)
    gpus = sum(row["gpus"] for row in plan.fleet)
    said = f"All nodes together: {number(total)} tok/s on {gpus:,} GPUs; send each its share of the requests."
    return ["", wrapped(said), "",
            *tables(["node", "strategy", "engine", "GPUs", "tok/s", "share"], rows)]


def _front(plan: Plan) -> list[str]:
    count = len(plan.pareto)
    picked = sorted({round(i * (count - 1) / max(1, _FRONT_ROWS - 1)) for i in range(_FRONT_ROWS)})
    points = [plan.pareto[i] for i in picked if i < count]
    several = len({(p["node"], p["engine"], p["model"]) for p in plan.pareto}) > 1
    rows = [[f"{p['tok_s_per_user']:,.1f}", f"{p['tok_s_per_gpu']:,.1f}", p["strategy"], f"{p['concurrency']:,g}",
             *([p["node"], p["engine"]] if several else [])] for p in points]
    return tables(["tok/s a user", "tok/s a GPU", "strategy", "C", *(["node", "engine"] if several else [])], rows)


def _commands(choices: Sequence[Choice]) -> list[str]:
    """For each plan: what starts it, and what measures its point then."""
    lines = []
    for rank, choice in enumerate(choices, start=1):
        d = choice.deployment
        lines += ["", wrapped(f"{rank}. {choice.name}, {d.options.engine} {d.options.version} on {d.node.name}")]
        for count, role, command in choice.commands:
            times = f" {count} x" if count > 1 or role and " of " not in role else ""
            times += f", {role}" if " of " in role else f" for {role}" if role else ""
            times += ", behind a router" if times and (count > 1 or choice.pools) and "each other" not in role else ""
            lines += [f"   launch{times}:", *_broken(command)]
        lines += ["   measure:", *_broken(choice.measure)]
    return lines


def _broken(command: str) -> list[str]:
    """A command over several lines that a shell still reads as one."""
    import textwrap

    lines = textwrap.wrap(command, 72, break_on_hyphens=False, break_long_words=False)
    return [f"     {line} \\" for line in lines[:-1]] + [f"     {line}" for line in lines[-1:]]
