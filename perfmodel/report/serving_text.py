"""The answers of serving as text: one curve, and several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.layout import (
    heading,
    labels,
    launch_line,
    legend,
    listed,
    no_room,
    number,
    span,
    table,
    tables,
    wrapped,
)

if TYPE_CHECKING:
    from perfmodel.report.measured import Point
    from perfmodel.serving import Comparison, ServingCurve


def curve_text(curve: ServingCurve, measured: Sequence[Point] = (), brief: bool = False) -> str:
    """Tokens/s, TTFT and TPOT by concurrency, and, unless ``brief``, where the time of a token goes."""
    rows = [
        [
            f"{_asked(p):,g}",
            f"{p['running']:,.4g}",
            number(p["output_tok_s"]),
            span(p["output_tok_s_low"], p["output_tok_s_high"]),
            number(p["ttft_ms"]),
            number(p["tpot_ms"]),
            span(p["tpot_ms_low"], p["tpot_ms_high"]),
            p["bound_by"],
        ]
        for p in curve.points
    ]
    sign = "C" if curve.request_rate is None else "req/s"
    head = [sign, "running", "tok/s", "80 % band", "TTFT, ms", "TPOT, ms", "80 % band", "bound by"]
    lines = [wrapped(heading(curve.deployment), rest="  "), _load(curve), "", *table(head, rows, left=(7,))]
    if curve.goodput_req_s is not None and curve.good_share is not None:
        good = [[f"{_asked(p):g}", number(p["goodput_req_s"]), f"{p['good_share']:.0%}"] for p in curve.points]
        lines += ["", *table([sign, "goodput, req/s", "within limits"], good, left=())]
    if brief:
        return "\n".join([*lines, *_measured(curve, measured)])
    lines += ["", "TPOT by what it goes to, ms:", *_parts(curve), *_measured(curve, measured)]
    return "\n".join([*lines, *launch_line(curve.deployment.command()), *listed("assumptions", curve.assumptions)])


def _load(curve: ServingCurve) -> str:
    return f"{curve.input_tokens:g} tokens in, {curve.output_tokens:g} out; tok/s are output tokens of all GPUs"


def _parts(curve: ServingCurve) -> list[str]:
    body = [[name, *(number(1e3 * float(s)) for s in seconds)] for name, seconds in curve.parts.items()]
    body.append(["sum", *(number(p["tpot_ms"]) for p in curve.points)])
    return tables(["", *_columns(curve)], body)


def _columns(curve: ServingCurve) -> list[str]:
    sign = "C" if curve.request_rate is None else "rate"
    return [f"{sign}={_asked(p):g}" for p in curve.points]


def _asked(point: dict[str, Any]) -> float:
    """What a point was asked for: its concurrency, or its request rate."""
    return float(point.get("concurrency", point.get("request_rate", 0.0)))


def _measured(curve: ServingCurve, measured: Sequence[Point]) -> list[str]:
    """Measured beside predicted where the concurrency is one that was asked for."""
    asked = {_asked(p): p["output_tok_s"] for p in curve.points}
    rows = [
        [f"{c:g}", number(tok_s), number(asked[c]), f"{asked[c] / tok_s:.2f}" if asked[c] else "-"]
        for c, tok_s in sorted(measured)
        if c in asked
    ]
    head = ["C", "measured, tok/s", "predicted, tok/s", "predicted/measured"]
    return ["", *table(head, rows, left=())] if rows else []


def comparison_text(comparison: Comparison, brief: bool = False) -> str:
    """One row a strategy, best first: tokens/s by concurrency, then memory and what binds."""
    curves = comparison.curves
    names = labels([curve.deployment for curve in curves])
    d = curves[0].deployment
    order = "those that fit first, then by the largest concurrency"
    title = f"{d.model.name} on {d.node.name}, {len(curves)} strategies; {order}"
    lines = [wrapped(title, rest="  "), _load(curves[0])]
    fits = [report.fits for report in comparison.memories]
    body = [
        [name if good else f"{name} *", *(number(p["output_tok_s"]) for p in curve.points)]
        for name, curve, good in zip(names, curves, fits, strict=True)
    ]
    lines += ["", *tables(["tok/s", *_columns(curves[0])], body)]
    lines += [] if all(fits) else ["* does not fit; speed as if it did"]
    lines += ["", *_verdicts(comparison, names), "", wrapped(legend(names), rest="  ")]
    return "\n".join(lines if brief else [*lines, *_notes(comparison, names)])


def _verdicts(comparison: Comparison, names: Sequence[str]) -> list[str]:
    last = comparison.curves[0].points[-1]["concurrency"]
    rows = []
    for name, curve, report in zip(names, comparison.curves, comparison.memories, strict=True):
        point = curve.points[-1]
        band = span(point["output_tok_s_low"], point["output_tok_s_high"])
        verdict = "yes" if report.fits else f"no: {no_room(report.verdict)}"
        rows.append([name, verdict, f"{report.kv_tokens_total:,}", f"{point['running']:,g}", band, point["bound_by"]])
    head = ["", "fits", "KV tokens", f"running\nat C={last:g}", "tok/s,\n80 % band", "bound by"]
    return table(head, rows, left=(0, 1, 5))


def _notes(comparison: Comparison, names: Sequence[str]) -> list[str]:
    """Assumptions that all share, then those of some, with the strategies that make them."""
    makers: dict[str, list[str]] = {}
    for name, curve in zip(names, comparison.curves, strict=True):
        for note in curve.assumptions:
            makers.setdefault(note, []).append(name)
    shared = [note for note, who in makers.items() if len(who) == len(names)]
    some = [f"{note}: {', '.join(who)}" for note, who in makers.items() if len(who) < len(names)]
    return [*listed("assumptions", shared), *listed("assumptions of some strategies", some)]
