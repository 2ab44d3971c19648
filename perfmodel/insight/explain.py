"""`explain`: where a figure comes from. Its formula with the numbers put in, what moves it, its limits, break-even."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.costs.serving import closed_loop_tpot_s, request_s
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, UnknownName
from perfmodel.insight.sensitivity import (
    BreakEven,
    Elasticity,
    break_even,
    elasticities,
    limits,
    overlapped_s,
    scaled_accelerator,
)
from perfmodel.insight.symbolic import step_formula
from perfmodel.placement import place
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.lengths import Lengths, parse_lengths
from perfmodel.step import memory, prefill, step
from perfmodel.step.memory import running_limit

FIGURES = ("step", "tok_s", "ttft", "kv_tokens", "weights")
UNITS = {"step": "s", "tok_s": "tok/s", "ttft": "s", "kv_tokens": "tokens", "weights": "B"}
ENDLESS = 1e6       # sequences that stand for an infinite batch


@dataclass(frozen=True)
class Part:
    """One term of a figure: its formula in SymPy's form, its value, and its share."""

    name: str
    formula: str
    value: float
    share: float


@dataclass(frozen=True, eq=False)
class Explained:
    """A figure, taken apart. ``values`` are the symbols of ``formula`` and of the parts, in SI units."""

    figure: str
    deployment: Deployment
    question: dict[str, float]
    value: float
    low: float | None
    high: float | None
    formula: str
    parts: tuple[Part, ...]
    values: dict[str, float]
    elasticities: tuple[Elasticity, ...]
    derivatives: dict[str, float]       # d ln t / d ln x of the step, by SymPy
    limits: dict[str, float]
    break_even: BreakEven | None
    against: Deployment | None
    notes: tuple[str, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """One entry, as the public contract lists explanations."""
        return [{
            **self.deployment.to_dict(), "figure": self.figure, "unit": UNITS[self.figure], **self.question,
            "value": self.value, "value_low": self.low, "value_high": self.high, "formula": self.formula,
            "values": self.values, "derivatives": self.derivatives, "limits": self.limits,
            "parts": [{"name": p.name, "formula": p.formula, "value": p.value, "share": p.share} for p in self.parts],
            "elasticities": [e.to_dict() for e in self.elasticities],
            "break_even": None if self.break_even is None else self.break_even.to_dict(),
            "against": None if self.against is None else self.against.to_dict(),
            "assumptions": [*self.notes, *self.deployment.assumptions],
        }]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Explained {self.figure} of {self.deployment.name}: {self.value:.4g} {UNITS[self.figure]}>"


def explain(
    figure: str,
    deployment: Deployment,
    *,
    concurrency: float = 8,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
    against: Deployment | None = None,
    over: str = "concurrency",
    low: float | None = None,
    high: float | None = None,
) -> Explained:
    """Take one figure of a deployment apart: ``step`` seconds, ``tok_s``, ``ttft``, ``kv_tokens`` or ``weights``.

    ``against`` is another deployment; the break-even of their tok/s is then sought ``over`` concurrency, context
    (cached tokens of a step) or bandwidth (memory bandwidth, as a multiple), between ``low`` and ``high``.
    """
    if figure not in FIGURES:
        raise UnknownName("figure", figure, FIGURES)
    if not math.isfinite(concurrency) or not 1 <= concurrency <= 1e6:
        raise BadInput(f"concurrency must lie between 1 and 1e6, not {concurrency!r}")
    ask = _Question(float(concurrency), parse_lengths(input_tokens), parse_lengths(output_tokens), arrival)
    build = {"step": _step, "tok_s": _tok_s, "ttft": _ttft, "kv_tokens": _kv_tokens, "weights": _weights}[figure]
    built = build(deployment, ask)
    of = _figure(figure, ask)
    bounds = {} if figure in ("kv_tokens", "weights") else limits(deployment, of)
    if figure in ("step", "tok_s"):
        bounds |= _more_limits(figure, deployment, ask)
    crossing = None if against is None else _break_even(deployment, against, ask, over, low, high)
    return Explained(figure, deployment, ask.to_dict(), *built, elasticities(deployment, of),
                     _derived(figure, deployment, ask), bounds, crossing, against, _notes(figure))


@dataclass(frozen=True)
class _Question:
    concurrency: float
    inputs: Lengths
    outputs: Lengths
    arrival: str | None

    @property
    def context(self) -> float:
        """Cached tokens of a running sequence, on average."""
        return self.inputs.mean + self.outputs.mean * (1 + self.outputs.spread**2) / 2

    def to_dict(self) -> dict[str, float]:
        return {"concurrency": self.concurrency, "input_tokens": self.inputs.mean, "output_tokens": self.outputs.mean}


def _notes(figure: str) -> tuple[str, ...]:
    notes = {
        "step": "formulas are SymPy expressions from the functions that price the step, on the active branch of every "
                "maximum; batch, padding and routing are numbers",
        "tok_s": "the step is in SymPy's form, prefill and stall enter as seconds; elasticities by asking again with "
                 "each parameter moved 1 %",
        "ttft": "rows are those of the prefill; elasticities by asking again with each parameter moved 1 %",
        "kv_tokens": "the engine's own rule on the binding rank; elasticities by asking again",
        "weights": "sum over ranks and parts",
    }
    return (notes[figure],)


def _figure(figure: str, ask: _Question) -> Callable[[Deployment], float]:
    """The figure as a function of a deployment."""
    if figure == "kv_tokens":
        return lambda d: float(memory(d, hints=False).kv_tokens)
    if figure == "weights":
        return lambda d: float(np.sum(memory(d, hints=False).placement.weights_bytes)) * d.options.tp * d.options.dp
    if figure == "step":
        return lambda d: float(step(d, batch=_batch(d, ask), context=ask.context, arrival=ask.arrival).seconds)
    index = {"tok_s": "output_tok_s", "ttft": "ttft_s"}[figure]
    return lambda d: float(getattr(_curve(d, ask), index)[0][0])


def _batch(d: Deployment, ask: _Question) -> float:
    return max(1.0, ask.concurrency / d.options.dp)


def _curve(d: Deployment, ask: _Question, uncertain: bool = False) -> ServingCurve:
    return closed_loop(d, np.array([ask.concurrency]), ask.inputs, ask.outputs, ask.arrival, uncertain)


Built = tuple[float, float | None, float | None, str, tuple[Part, ...], dict[str, float]]


def _step(d: Deployment, ask: _Question) -> Built:
    batch = _batch(d, ask)
    formula, cost = step_formula(d, batch, ask.context, ask.arrival), step(
        d, batch=batch, context=ask.context, arrival=ask.arrival)
    parts = tuple(Part(t.name, _text(t.expression), t.seconds, t.seconds / formula.seconds) for t in formula.terms)
    values = {str(symbol): value for symbol, value in formula.values.items()}
    return (formula.seconds, float(cost.seconds_low), float(cost.seconds_high), _text(formula.expression), parts,
            dict(sorted(values.items())))


def _text(expression: Any) -> str:
    """SymPy's text, numbers to six digits.

    >>> _text(2.0), _text(0)
    ('2.0', '0')
    """
    if not hasattr(expression, "free_symbols"):
        return str(expression)
    import sympy

    short = {n: sympy.Float(f"{float(n):.6g}") for n in expression.atoms(sympy.Float)}
    return str(expression.xreplace(short))


def _tok_s(d: Deployment, ask: _Question) -> Built:
    """Tokens a second from the closed loop, in the seconds of its step, its prefill and the stall of one prefill."""
    import sympy

    curve = _curve(d, ask, uncertain=True)
    t_step, t_prefill, t_stall, kappa = sympy.symbols("t_step t_prefill t_stall prefill_interference", positive=True)
    running, made, copies = float(curve.running[0]), ask.outputs.mean, d.options.dp
    tpot, ttft = float(curve.tpot_s[0][0]), float(curve.ttft_s[0][0])
    one = float(step(d, batch=max(1.0, running / copies), context=ask.context, arrival=ask.arrival).seconds)
    weight = d.calibration.parameters["prefill_interference"].value
    alone = ask.inputs.mean * (1 - d.options.prefix_hit_rate)
    first = float(prefill(d, tokens=max(1.0, alone), context=ask.inputs.mean - alone).seconds)
    others = running / copies - 1
    stall = (tpot - one) * made / (weight * others) if others > 0 else 0.0
    rate = running * made / request_s(t_prefill + t_step / 2, closed_loop_tpot_s(
        t_step, t_stall, running / copies, made, kappa), made)
    values = {t_step: one, t_prefill: first, t_stall: stall, kappa: weight}
    value = float(rate.xreplace({k: sympy.Float(v) for k, v in values.items()}))
    life = running * made / value
    shares = {"first token: prefill": first, "first token: half a step": one / 2, "decode steps": (made - 1) * one,
              "prefills of others": (made - 1) * (tpot - one)}
    parts = tuple(Part(name, "", s, s / life) for name, s in sorted(shares.items(), key=lambda item: -item[1]))
    low, high = (float(band[0]) for band in curve.output_tok_s[1:])
    text = _text(rate)
    return value, low, high, text, parts, {**{str(k): v for k, v in values.items()}, "running": running, "TTFT": ttft}


def _ttft(d: Deployment, ask: _Question) -> Built:
    curve = _curve(d, ask, uncertain=True)
    alone = ask.inputs.mean * (1 - d.options.prefix_hit_rate)
    cost = prefill(d, tokens=max(1.0, alone), context=ask.inputs.mean - alone)
    value, low, high = (float(band[0]) for band in curve.ttft_s)
    one = float(step(d, batch=max(1.0, float(curve.running[0]) / d.options.dp), context=ask.context,
                     arrival=ask.arrival).seconds)
    rest = value - float(cost.seconds) - one / 2
    rows = {f"prefill: {row.name}": float(row.seconds) for row in cost.rows}
    rows |= {"half a decode step": one / 2} | ({"wait in the queue": rest} if rest > 1e-9 * value else {})
    parts = tuple(Part(name, "", s, s / value) for name, s in sorted(rows.items(), key=lambda item: -item[1]))
    values = {"t_prefill": float(cost.seconds), "t_step": one, "t_queue": max(rest, 0.0)}
    return value, low, high, "t_prefill + t_step/2 + t_queue", parts, values


def _kv_tokens(d: Deployment, ask: _Question) -> Built:
    """The pool of the binding rank: what the fraction leaves after weights and what is charged to it."""
    report = memory(d, hints=False)
    pool, stage = report.pool, report.binding_rank // d.options.tp
    weights, per_token = float(report.placement.weights_bytes[stage]), float(report.placement.kv_bytes_per_token[stage])
    charged = [row for row in pool.rows[stage] if row.when == "budget"] if d.options.engine != "sglang" else []
    available = float(pool.available_bytes[stage])
    values = {"c": per_token, "W": weights, "f": float(d.options.memory_fraction or 0.0)}
    if d.options.engine == "sglang":
        formula, values["M_pre"] = "floor((f*M_pre - W - R)/c)", float(pool.pre_bytes)
        budget = values["f"] * values["M_pre"]
    else:
        formula, values["M_total"] = "floor((f*M_total - W - R)/c)", float(d.facts.gpu_memory_bytes)
        budget = float(pool.requested_bytes)
    values["R"] = budget - weights - available
    rows = {"memory that the fraction grants": budget, "weights": -weights}
    rows |= {row.name: -float(row.bytes) for row in charged}
    rest = available - sum(rows.values())
    rows |= {"other charges and rounding": rest} if abs(rest) > 1e6 else {}
    parts = tuple(Part(name, f"{size:.6g} B", size / per_token, size / available if available else 0.0)
                  for name, size in sorted(rows.items(), key=lambda item: -abs(item[1])))
    return (float(report.kv_tokens), float(report.kv_tokens_low), float(report.kv_tokens_high), formula, parts, values)


def _weights(d: Deployment, ask: _Question) -> Built:
    placement = memory(d, hints=False).placement
    times = d.options.tp * d.options.dp
    sums = {name: float(np.sum(sizes)) * times for name, sizes in placement.parts.items()}
    whole = sum(sums.values())
    parts = tuple(Part(name, f"{times} * {size / times:.6g}", size, size / whole)
                  for name, size in sorted(sums.items(), key=lambda item: -item[1]))
    formula = "tp*dp*(" + " + ".join(_symbol(part.name) for part in parts) + ")"
    values = {_symbol(part.name): part.value / times for part in parts} | {
        "tp": float(d.options.tp), "dp": float(d.options.dp)}
    return whole, None, None, formula, parts, values


def _symbol(name: str) -> str:
    return "W_" + "".join(c if c.isalnum() else "_" for c in name)


def _derived(figure: str, d: Deployment, ask: _Question) -> dict[str, float]:
    """Elasticities of the step by differentiating its formula."""
    if figure not in ("step", "tok_s"):
        return {}
    found = step_formula(d, _batch(d, ask), ask.context, ask.arrival).elasticities()
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def _more_limits(figure: str, d: Deployment, ask: _Question) -> dict[str, float]:
    """Perfect overlap, and the batch without end (step: of one token of one sequence)."""
    batch, copies = _batch(d, ask), d.options.dp
    overlap = overlapped_s(d, batch, ask.context, ask.arrival)
    endless = step(d, batch=ENDLESS, context=ask.context, arrival="staggered")
    held = ENDLESS
    if d.options.pp > 1:
        held = min(ENDLESS, d.engine.slots(d.options) * d.engine.slot_limit(d.options, running_limit(place(d))))
    if figure == "step":
        return {"perfect overlap": overlap, "infinite batch, a token": float(endless.seconds) / held}
    running = float(_curve(d, ask).running[0])
    return {"perfect overlap": running / overlap, "infinite batch": copies * held / float(endless.seconds)}


def _break_even(
    a: Deployment, b: Deployment, ask: _Question, over: str, low: float | None, high: float | None
) -> BreakEven:
    ranges = {"concurrency": (1.0, 4096.0), "context": (128.0, 131072.0), "bandwidth": (0.25, 4.0)}
    if over not in ranges:
        raise UnknownName("axis of a break-even", over, ranges)
    start, end = low or ranges[over][0], high or ranges[over][1]

    def one(d: Deployment, grid: np.ndarray) -> np.ndarray:
        if over == "concurrency":
            curve = closed_loop(d, grid, ask.inputs, ask.outputs, ask.arrival, uncertain=False)
            return np.asarray(curve.output_tok_s[0])
        if over == "context":
            batch = _batch(d, ask)
            seconds = step(d, batch=batch, context=grid, arrival=ask.arrival).seconds
            return batch * d.options.dp / np.asarray(seconds)
        wide = [_curve(scaled_accelerator(d, "bandwidth", float(x)), ask) for x in grid]
        return np.array([float(curve.output_tok_s[0][0]) for curve in wide])

    names = (a.name, b.name) if a.name != b.name else (f"{a.name} (first)", f"{b.name} (second)")
    return break_even(lambda grid: (one(a, grid), one(b, grid)), over, start, end, names)
