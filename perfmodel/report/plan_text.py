"""A plan as text: the ranked strategies, the Pareto front, and the command of the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.report.layout import launch_line, listed, number, span, table, wrapped

if TYPE_CHECKING:
    from perfmodel.planner import Plan


def plan_text(plan: Plan, price_per_gpu_hour: float | None = None) -> str:
    """Ranked plans with their bands; money per million output tokens where there is a price."""
    d = plan.choices[0].deployment
    title = (
        f"{d.model.name} on {d.node.name}, {d.options.engine} {d.options.version}: best {plan.target.replace('_', ' ')}"
    )
    rows = []
    for choice in plan.choices:
        point = choice.curve.points[0]
        o = choice.deployment.options
        row = [
            choice.deployment.name,
            f"{point['concurrency']:g}",
            number(point["output_tok_s"]),
            span(point["output_tok_s_low"], point["output_tok_s_high"]),
            number(point["ttft_ms"]),
            number(point["tpot_ms"]),
            o.kv_dtype,
            f"{choice.kv_tokens:,}",
        ]
        if price_per_gpu_hour is not None:
            tokens = point["output_tok_s"] * 3.6e-3
            row.append(f"{choice.deployment.gpus * price_per_gpu_hour / tokens:.2f}")
        rows.append(row)
    head = ["strategy", "C", "tok/s", "80 % band", "TTFT", "TPOT", "KV", "KV tokens"]
    head += ["per Mtok"] if price_per_gpu_hour is not None else []
    front = [
        [f"{p['tok_s_per_user']:.1f}", f"{p['tok_s_per_gpu']:.1f}", p["strategy"], f"{p['concurrency']:g}"]
        for p in plan.pareto[:: max(1, len(plan.pareto) // 8)]
    ]
    lines = [
        wrapped(title, rest="  "),
        f"{plan.priced:,} points priced; {plan.refused} deployments do not fit",
        "",
        *table(head, rows, left=(0,)),
        "",
        "TTFT and TPOT in ms, medians. Pareto front:",
        "",
        *table(["tok/s a user", "tok/s a GPU", "strategy", "C"], front, left=(2,)),
    ]
    return "\n".join([*lines, *launch_line(d.command()), *listed("assumptions", plan.assumptions)])
