"""`explain`: where a figure comes from. Its formula with the numbers put in, what moves it, its limits, break-even."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, is_number, one_of, shown
from perfmodel.insight.calls import largest_call
from perfmodel.insight.figures import (
    BUILDERS,
    Part,
    Question,
    batch_of,
    curve_of,
    figure_of,
    loop_seconds,
    rate_formula,
    steady_of,
)
from perfmodel.insight.sensitivity import (
    BreakEven,
    Elasticity,
    break_even,
    elasticities,
    limits,
    overlapped_s,
    scaled_accelerator,
    scaled_factor,
)
from perfmodel.insight.symbolic import prefill_formula, step_formula
from perfmodel.placement import place
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.loop import loop_of
from perfmodel.serving.loop_times import prefilled_together
from perfmodel.step import step
from perfmodel.step.memory import running_limit

FIGURES = ("step", "tok_s", "ttft", "tpot", "memory", "kv_tokens", "weights", "collective")
UNITS = {"step": "s", "tok_s": "tok/s", "ttft": "s", "tpot": "s", "memory": "B", "kv_tokens": "tokens", "weights": "B",
         "collective": "s"}
STILL = ("memory", "kv_tokens", "weights")      # figures that time does not enter
ENDLESS = 1e6       # sequences that stand for an infinite batch


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
    """Take one figure of a deployment apart: ``step`` seconds, ``tok_s``, ``ttft``, ``tpot``, ``memory`` of the rank
    that binds, ``kv_tokens``, ``weights``, or the ``collective`` on which a decode step spends most.

    ``against`` is another deployment; the break-even of their tok/s is then sought ``over`` concurrency, context
    (cached tokens of a step), bandwidth (of memory) or links (both as a multiple of today's), from ``low`` to ``high``.
    """
    one_of("figure", figure, FIGURES)
    if not isinstance(deployment, Deployment) or not isinstance(against, Deployment | None):
        raise BadInput(f"explain takes deployments, not {shown(deployment if against is None else against)}")
    if not is_number(concurrency) or not 1 <= concurrency <= 1e6:
        raise BadInput(f"concurrency must lie between 1 and 1e6, not {shown(concurrency)}")
    ask = Question(float(concurrency), parse_lengths(input_tokens), parse_lengths(output_tokens), arrival)
    built = BUILDERS[figure](deployment, ask)
    of = figure_of(figure, ask)
    bounds = {} if figure in STILL else limits(deployment, of)
    if figure in ("step", "tok_s"):
        bounds |= _more_limits(figure, deployment, ask)
    crossing = None if against is None else _break_even(deployment, against, ask, over, low, high)
    return Explained(figure, deployment, ask.to_dict(), *built, elasticities(deployment, of),
                     _derived(figure, deployment, ask), bounds, crossing, against, _notes(figure, deployment, ask))


def _notes(figure: str, d: Deployment, ask: Question) -> tuple[str, ...]:
    if figure == "collective":
        return (largest_call(d, batch_of(d, ask), ask.context, ask.arrival).words,
                "by the functions that price the step; number of steps, ranks and protocol are numbers")
    notes = {
        "step": "formulas are SymPy expressions from the functions that price the step, on the active branch of every "
                "maximum; batch, padding and routing are numbers",
        "tok_s": "the loop in the seconds of a step, a prefill and its stall, each of which has a formula of its own; "
                 "elasticities by asking again with each parameter moved 1 %, derivatives by the chain rule",
        "tpot": "the step is in SymPy's form, the stall of a prefill enters as seconds",
        "memory": "the rank that binds; rows are the engine's own rules",
        "ttft": "rows are those of the prefill, in SymPy's form; elasticities by asking again with each parameter "
                "moved 1 %",
        "kv_tokens": "the engine's own rule on the binding rank; elasticities by asking again",
        "weights": "sum over ranks and parts",
    }
    return (notes[figure],)


def _derived(figure: str, d: Deployment, ask: Question) -> dict[str, float]:
    """Elasticities by SymPy: of the step by its formula, of TTFT and tok/s by the chain rule over step and prefill.

    What a prefill costs the others is taken to answer as a prefill does, which holds where it stops them.
    """
    if figure == "collective":
        found = largest_call(d, batch_of(d, ask), ask.context, ask.arrival).formula.elasticities()
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))
    if figure not in ("step", "tok_s", "ttft"):
        return {}
    if figure == "step":
        found = step_formula(d, batch_of(d, ask), ask.context, ask.arrival).elasticities()
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))
    curve = curve_of(d, ask)
    running = float(curve.running[0])
    decode = step_formula(d, max(1.0, running / d.options.dp), ask.context, ask.arrival).elasticities()
    first = prefill_formula(d, ask.alone(d), ask.inputs.mean - ask.alone(d)).elasticities()
    seconds = loop_seconds(d, ask, steady_of(d, ask))
    if figure == "ttft":
        value = float(curve.ttft_s[0][0])
        if ask.concurrency > d.options.dp:  # a queue and a common start answer to more than one step and one prefill
            return {}
        weights = {"t_step": 0.0, "t_prefill": seconds["t_prefill"] / value, "t_stall": 0.0}
    else:
        rate, symbols = rate_formula(d, running, ask.outputs.mean, ask.alone(d))
        at = {symbols[name]: number for name, number in seconds.items()}
        value = float(rate.xreplace(at))
        weights = {name: float(rate.diff(symbol).xreplace(at)) * seconds[name] / value
                   for name, symbol in symbols.items()}
        decode = {**decode, "prefill_interference": 0.0}
    joint = first
    if weights["t_stall"]:
        loop = loop_of(d, np.array([ask.concurrency]), ask.inputs, ask.outputs, ask.arrival)
        side = float(prefilled_together(loop, np.array([seconds["t_step"]]), np.array([seconds["t_prefill"]]))[0])
        joint = prefill_formula(d, ask.alone(d) * side, ask.inputs.mean - ask.alone(d)).elasticities()
    found = {name: weights["t_step"] * decode.get(name, 0.0) + weights["t_prefill"] * first.get(name, 0.0)
             + weights["t_stall"] * joint.get(name, 0.0) for name in {**decode, **first, **joint}}
    if "prefill_interference" in weights:
        found["prefill_interference"] = weights["prefill_interference"]
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def _more_limits(figure: str, d: Deployment, ask: Question) -> dict[str, float]:
    """Perfect overlap, and the batch without end (step: of one token of one sequence)."""
    batch, copies = batch_of(d, ask), d.options.dp
    overlap = overlapped_s(d, batch, ask.context, ask.arrival)
    endless = step(d, batch=ENDLESS, context=ask.context, arrival="staggered")
    held = ENDLESS
    if d.options.pp > 1:
        held = min(ENDLESS, d.engine.slots(d.options) * d.engine.slot_limit(d.options, running_limit(place(d))))
    if figure == "step":
        return {"perfect overlap": overlap, "infinite batch, a token": float(endless.seconds) / held}
    running = float(curve_of(d, ask).running[0])
    return {"perfect overlap": running / overlap, "infinite batch": copies * held / float(endless.seconds)}


def _break_even(
    a: Deployment, b: Deployment, ask: Question, over: str, low: float | None, high: float | None
) -> BreakEven:
    ranges = {"concurrency": (1.0, 4096.0), "context": (128.0, 131072.0), "bandwidth": (0.25, 4.0),
              "links": (0.1, 10.0)}
    one_of("axis of a break-even", over, ranges)
    for given in (low, high):
        if given is not None and not is_number(given):
            raise BadInput(f"the ends of a range are numbers, not {shown(given)}")
    start, end = (usual if given is None else given for given, usual in zip((low, high), ranges[over], strict=True))

    def one(d: Deployment, grid: np.ndarray) -> np.ndarray:
        if over == "concurrency":
            curve = closed_loop(d, grid, ask.inputs, ask.outputs, ask.arrival, uncertain=False)
            return np.asarray(curve.output_tok_s[0])
        if over == "context":
            batch = batch_of(d, ask)
            seconds = step(d, batch=batch, context=grid, arrival=ask.arrival).seconds
            return batch * d.options.dp / np.asarray(seconds)
        def wider(x: float) -> Deployment:
            return (scaled_accelerator(d, "bandwidth", x) if over == "bandwidth"
                    else scaled_factor(d, "collective_bandwidth_factor", x))

        wide = [curve_of(wider(float(x)), ask) for x in grid]
        return np.array([float(curve.output_tok_s[0][0]) for curve in wide])

    names = (a.name, b.name) if a.name != b.name else (f"{a.name} (first)", f"{b.name} (second)")
    return break_even(lambda grid: (one(a, grid), one(b, grid)), over, start, end, names)
