"""The figures that `explain` takes apart: formula, terms, and the numbers of its symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.costs.serving import closed_loop_tpot_s, request_s
from perfmodel.deployment import Deployment
from perfmodel.insight.calls import HOP, Call, largest_call
from perfmodel.insight.symbolic import prefill_formula, step_formula
from perfmodel.placement import links_of
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.frontend import FRONT
from perfmodel.serving.lengths import Lengths
from perfmodel.serving.loop_times import steps_before_s
from perfmodel.step import MemoryReport, memory, prefill, step
from perfmodel.step.collective import unstated_sd
from perfmodel.step.factors import Z80, factors_of


@dataclass(frozen=True)
class Part:
    """One term of a figure: its formula in SymPy's form, its value, and its share."""

    name: str
    formula: str
    value: float
    share: float


@dataclass(frozen=True)
class Question:
    """What a figure is asked for."""

    concurrency: float
    inputs: Lengths
    outputs: Lengths
    arrival: str | None

    @property
    def context(self) -> float:
        """Cached tokens of a running sequence, on average."""
        return self.inputs.mean + self.outputs.mean * (1 + self.outputs.spread**2) / 2

    def alone(self, d: Deployment) -> float:
        """Prompt tokens that are computed, of one request."""
        return max(1.0, self.inputs.mean * (1 - d.options.prefix_hit_rate))

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return {"concurrency": self.concurrency, "input_tokens": self.inputs.mean, "output_tokens": self.outputs.mean}


def figure_of(figure: str, ask: Question) -> Callable[[Deployment], float]:
    """The figure as a function of a deployment."""
    if figure == "kv_tokens":
        return lambda d: float(memory(d, hints=False).kv_tokens)
    if figure == "memory":
        return lambda d: _used(memory(d, hints=False))
    if figure == "weights":
        return lambda d: float(np.sum(memory(d, hints=False).placement.weights_bytes)) * d.options.tp * d.options.dp
    if figure == "collective":
        return lambda d: largest_call(d, batch_of(d, ask), ask.context, ask.arrival).formula.seconds
    if figure == "step":
        return lambda d: float(step(d, batch=batch_of(d, ask), context=ask.context, arrival=ask.arrival).seconds)
    index = {"tok_s": "output_tok_s", "ttft": "ttft_s", "tpot": "tpot_s"}[figure]
    return lambda d: float(getattr(curve_of(d, ask), index)[0][0])


def batch_of(d: Deployment, ask: Question) -> float:
    return max(1.0, ask.concurrency / d.options.dp)


def curve_of(d: Deployment, ask: Question, uncertain: bool = False) -> ServingCurve:
    return closed_loop(d, np.array([ask.concurrency]), ask.inputs, ask.outputs, ask.arrival, uncertain)


Built = tuple[float, float | None, float | None, str, tuple[Part, ...], dict[str, float]]


def _step(d: Deployment, ask: Question) -> Built:
    batch = batch_of(d, ask)
    formula, cost = step_formula(d, batch, ask.context, ask.arrival), step(
        d, batch=batch, context=ask.context, arrival=ask.arrival)
    whole = float(cost.seconds)
    parts = [Part(t.name, _text(t.expression), t.seconds, t.seconds / whole) for t in formula.terms]
    values = {str(symbol): value for symbol, value in formula.values.items()}
    text, rest = _text(formula.expression), whole - formula.seconds
    if abs(rest) > 1e-9 * whole:        # rows that the step has and this form has not: drafts, an own benchmark
        parts.append(Part("priced beside the formula", "t_beside", rest, rest / whole))
        values["t_beside"], text = rest, f"{text} + t_beside"
        parts.sort(key=lambda part: -abs(part.share))
    return (whole, float(cost.seconds_low), float(cost.seconds_high), text, tuple(parts), dict(sorted(values.items())))


def _collective(d: Deployment, ask: Question) -> Built:
    """The collective that takes most of a step: start, steps between ranks, bytes over bandwidth."""
    call = largest_call(d, batch_of(d, ask), ask.context, ask.arrival)
    whole = call.formula.seconds
    parts = tuple(Part(t.name, _text(t.expression), t.seconds, t.seconds / whole) for t in call.formula.terms)
    values = {str(symbol): value for symbol, value in call.formula.values.items()}
    low, high = _band(d, call, whole)
    return whole, low, high, _text(call.formula.expression), parts, dict(sorted(values.items()))


def _band(d: Deployment, call: Call, whole: float) -> tuple[float, float]:
    """The factors of collectives within their spread, and what the description of the node leaves open."""
    known = factors_of(d)
    open_sd = 0.0 if call.op == HOP else float(unstated_sd(call.op, call.message_bytes, call.ranks, links_of(d)))
    spread = dict(zip(known.names, known.sd, strict=True))
    slopes = call.formula.elasticities()
    half = Z80 * float(np.sqrt(sum((slopes[name] * spread.get(name, 0.0)) ** 2 for name in slopes)
                               + known.residual_sd**2 + open_sd**2))
    return whole * float(np.exp(-half)), whole * float(np.exp(half))


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


def rate_formula(d: Deployment, running: float, made: float, new: float) -> tuple[Any, dict[str, Any]]:
    """Tokens a second from the closed loop, in symbols: its step, its prefill and the stall of one prefill. [1/s]"""
    import sympy

    names = ("t_step", "t_prefill", "t_stall", "prefill_interference", "t_front")
    t = {name: sympy.Symbol(name, positive=True) for name in names}
    here = running / d.options.dp
    tpot = closed_loop_tpot_s(t["t_step"], t["t_stall"], here, made, t["prefill_interference"])
    first = t["t_front"] + t["t_prefill"] + steps_before_s(d, here, tpot, made, new)
    return running * made / request_s(first, tpot, made), t


def steady_of(d: Deployment, ask: Question) -> ServingCurve:
    """The loop without its start."""
    return closed_loop(d, np.array([ask.concurrency]), ask.inputs, ask.outputs, ask.arrival, False, rounds=np.inf)


def loop_seconds(d: Deployment, ask: Question, curve: ServingCurve) -> dict[str, float]:
    """Seconds of a step as the time of a token, of a prefill, and of the stall that one prefill is to the others.

    ``curve`` is that of `steady_of`.
    """
    running, copies = float(curve.running[0]), d.options.dp
    step_s = sum(float(seconds[0]) for name, seconds in curve.parts.items() if name != "prefill of others")
    weight = d.calibration.parameters["prefill_interference"].value
    first = float(prefill(d, tokens=ask.alone(d), context=ask.inputs.mean - ask.alone(d)).seconds)
    others, made = running / copies - 1, ask.outputs.mean
    stall = (float(curve.tpot_s[0][0]) - step_s) * made / (weight * others) if others > 0 else 0.0
    front = 0.0 if ask.concurrency > running else FRONT.alone_s(ask.inputs.mean)  # a queue hides it
    return {"t_step": step_s, "t_prefill": first, "t_stall": stall, "prefill_interference": weight, "t_front": front}


def _tok_s(d: Deployment, ask: Question) -> Built:
    """The closed loop: seconds that a request lives, and where they go."""
    curve = curve_of(d, ask, uncertain=True)
    running, made = float(curve.running[0]), ask.outputs.mean
    rate, symbols = rate_formula(d, running, made, ask.alone(d))
    lasting = steady_of(d, ask)
    values = loop_seconds(d, ask, lasting)
    value, low, high = (float(band[0]) for band in curve.output_tok_s)
    one, tpot, life = values["t_step"], float(lasting.tpot_s[0][0]), running * made / value
    before = float(steps_before_s(d, running / d.options.dp, tpot, made, ask.alone(d)))
    shares = {"first token: prefill": values["t_prefill"], "first token: steps of others": before,
              "first token: front end": values["t_front"],
              "decode steps": (made - 1) * one, "prefills of others": (made - 1) * (tpot - one)}
    parts = tuple(Part(name, "", s, s / life) for name, s in sorted(shares.items(), key=lambda item: -item[1]))
    return value, low, high, _text(rate), parts, {**values, "running": running, "TTFT": float(curve.ttft_s[0][0])}


def _ttft(d: Deployment, ask: Question) -> Built:
    """The prefill row by row, the steps of others that come first, the front end and the queue."""
    curve = curve_of(d, ask, uncertain=True)
    value, low, high = (float(band[0]) for band in curve.ttft_s)
    formula = prefill_formula(d, ask.alone(d), ask.inputs.mean - ask.alone(d))
    lasting = steady_of(d, ask)
    seconds = loop_seconds(d, ask, lasting)
    whole, running = seconds["t_prefill"], float(curve.running[0])
    tpot = float(lasting.tpot_s[0][0])
    before = float(steps_before_s(d, running / d.options.dp, tpot, ask.outputs.mean, ask.alone(d)))
    front = FRONT.alone_s(ask.inputs.mean)
    steady = float(lasting.ttft_s[0][0])
    queue, start = steady - front - whole - before, value - steady
    rows = [Part(f"prefill: {t.name}", _text(t.expression), t.seconds, t.seconds / value) for t in formula.terms]
    others = {"steps of others": before, "between client and scheduler": front, "queue": queue,
              "all streams start at once": start,
              "prefill: beside its formula": whole - formula.seconds}
    rows += [Part(name, "", s, s / value) for name, s in others.items() if abs(s) > 1e-9 * value]
    values = {str(symbol): number for symbol, number in formula.values.items()}
    queue = 0.0 if abs(queue) < 1e-12 else queue
    values |= {"t_front": front, "t_prefill": whole, "t_others": before, "t_queue": queue, "t_start": start}
    return (value, low, high, "t_front + t_prefill + t_others + t_queue + t_start",
            tuple(sorted(rows, key=lambda part: -abs(part.value))), values)


def _tpot(d: Deployment, ask: Question) -> Built:
    """Time per output token: the step, and what prefills of others add to it."""
    curve = curve_of(d, ask, uncertain=True)
    value, low, high = (float(band[0]) for band in curve.tpot_s)
    shares = {name: float(seconds[0]) for name, seconds in curve.parts.items()}
    parts = tuple(Part(name, "", s, s / value) for name, s in sorted(shares.items(), key=lambda item: -item[1]))
    values = {_symbol(name, "t"): s for name, s in shares.items()}
    return value, low, high, " + ".join(values), parts, values


def _used(report: MemoryReport) -> float:
    """Bytes of the binding rank: weights, KV pool, runtime. [B]"""
    return sum(_rows(report).values())


def _rows(report: MemoryReport) -> dict[str, float]:
    stage = report.binding_rank // report.deployment.options.tp
    rows = {"weights": float(report.placement.weights_bytes[stage]), "KV pool": float(report.pool.pool_bytes[stage])}
    for row in report.pool.rows[stage]:
        rows[row.name] = rows.get(row.name, 0.0) + float(row.bytes)
    return rows


def _memory(d: Deployment, ask: Question) -> Built:
    """Memory of the rank that binds, row by row, with what stays free."""
    report = memory(d, hints=False)
    rows, stage = _rows(report), report.binding_rank // d.options.tp
    whole = sum(rows.values())
    low = sum(float(row.low) for row in report.pool.rows[stage]) + rows["weights"] + rows["KV pool"]
    high = sum(float(row.high) for row in report.pool.rows[stage]) + rows["weights"] + rows["KV pool"]
    parts = tuple(Part(name, f"{size:.6g} B", size, size / whole)
                  for name, size in sorted(rows.items(), key=lambda item: -item[1]))
    values = {_symbol(name, "M"): size for name, size in rows.items()}
    return whole, low, high, " + ".join(values), parts, {**values, "M_free": float(report.pool.free_bytes[stage])}


def _kv_tokens(d: Deployment, ask: Question) -> Built:
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


def _weights(d: Deployment, ask: Question) -> Built:
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


def _symbol(name: str, letter: str = "W") -> str:
    return f"{letter}_" + "".join(c if c.isalnum() else "_" for c in name)




BUILDERS: dict[str, Callable[[Deployment, Question], Built]] = {
    "step": _step, "tok_s": _tok_s, "ttft": _ttft, "tpot": _tpot, "memory": _memory, "kv_tokens": _kv_tokens,
    "weights": _weights, "collective": _collective,
}
