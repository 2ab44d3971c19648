"""One collective of a decode step as a formula: start, steps between ranks, bytes over bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.engines.rules import Collective
from perfmodel.errors import BadInput
from perfmodel.insight import symbolic
from perfmodel.insight.symbolic import Formula, Symbols, Term
from perfmodel.placement import place
from perfmodel.step import forward
from perfmodel.step.factors import factors_of
from perfmodel.step.memory import running_limit
from perfmodel.step.operations import Bench, Load
from perfmodel.step.slots import occupancy

HOP = "pipeline hop"
# What a term is, by the first letter of the symbol that stands in it beside the message and the factors.
_KINDS = (("alpha_", "steps between ranks"), ("B_", "bytes over bandwidth"), ("C_", "copy of its own part"))


@dataclass(frozen=True, eq=False)
class Call:
    """The collective that takes most of a step: its formula, and what it is."""

    formula: Formula
    op: str             # all_reduce, ..., or a hop of the pipeline
    name: str           # all-reduce (attention, mlp)
    what: str           # the protocol or kernel that runs it
    ranks: int
    message_bytes: float
    count: float        # of them in a step

    @property
    def words(self) -> str:
        """It in words."""
        return (f"the collective that takes most of a step: {self.name} over {self.ranks} ranks, "
                f"{self.message_bytes:,.0f} B by {self.what}; {self.count:g} of them a step")


def largest_call(d: Deployment, batch: float, context: float, arrival: str | None = None) -> Call:
    """The collective (or hop between stages) on which a decode step of ``batch`` sequences spends most."""
    found = [_call(d, batch, context, arrival, calls) for calls in _alike(d)]
    if d.options.pp > 1:
        found.append(_hop(d, batch, context, arrival))
    if not found:
        raise BadInput(f"{d.name} has no collective: one GPU works alone", ["tp=2 or more, or pp=2"])
    return max(found, key=lambda call: call.count * call.formula.seconds)


def _alike(d: Deployment) -> list[list[tuple[Collective, float]]]:
    """The collectives of a step with how often each comes, those of one size together."""
    placement = place(d)
    groups: dict[tuple[object, ...], list[tuple[Collective, float]]] = {}
    layers = np.sum(placement.counts, axis=0)
    calls: list[tuple[Collective, float]] = []
    for (_, mlp), many in zip(placement.kinds, layers.tolist(), strict=True):
        sort = d.model.mlp[mlp].kind if mlp in d.model.mlp else None
        calls += [(call, many) for call in d.engine.layer_collectives(d.options, d.facts, "decode")
                  if call.layer == sort]
    often = {"every": float(placement.stages), "first": 1.0, "last": 1.0}
    calls += [(call, often[call.stage]) for call in d.engine.step_collectives(d.options, d.facts, "decode")]
    for call, many in calls:
        if call.ranks > 1:
            key = (call.op, call.ranks, call.tokens, call.bytes_per_token, call.bytes_fixed)
            groups.setdefault(key, []).append((call, float(many)))
    return list(groups.values())


def _question(d: Deployment, batch: float, context: float, arrival: str | None) -> tuple[
        Bench, dict[str, float], Symbols, Load]:
    """Bench with symbols for the factors of collectives, all factors as numbers, and the load of the fullest slot."""
    placement, known = place(d), factors_of(d)
    number = dict(zip(known.names, (float(v) for v in known.values), strict=True))
    symbol = Symbols()
    shown = {name: symbol(name, value) if name.startswith("collective") or name == "pipeline_hop_s" else value
             for name, value in number.items()}
    slots = occupancy(d, np.asarray(float(batch)), running_limit(placement), arrival)
    return (forward.bench_of(placement, shown), number, symbol,
            symbolic.decode_load(d, float(np.ravel(slots.batch)[0]), context)[0])


def _call(d: Deployment, batch: float, context: float, arrival: str | None,
          calls: list[tuple[Collective, float]]) -> Call:
    bench, number, symbol, load = _question(d, batch, context, arrival)
    call = calls[0][0]
    message = symbolic.message_of(d, call, load)
    seconds, what = symbolic.call_s(d, bench, number, symbol, call, message, symbol("M", message))
    places = ", ".join(dict.fromkeys(call.place for call, _ in calls))
    name = f"{call.op.replace('_', '-')} ({places})"
    return Call(_split(symbolic.active(seconds, symbol.values), symbol), call.op, name, what, call.ranks, message,
                sum(many for _, many in calls))


def _hop(d: Deployment, batch: float, context: float, arrival: str | None) -> Call:
    bench, _, symbol, load = _question(d, batch, context, arrival)
    tokens = symbol("tokens", load.tokens)
    row = symbolic.hop_in(place(d), bench, symbol, tokens)
    message = float(row.message_bytes.xreplace(symbol.values))
    formula = _split(symbolic.active(row.seconds, symbol.values), symbol)
    return Call(formula, HOP, HOP, "NCCL send and receive", 2, message, float(d.options.pp))


def _split(seconds: Any, symbol: Symbols) -> Formula:
    """The expression by what its terms stand for."""
    import sympy

    sums: dict[str, Any] = {}
    for term in sympy.Add.make_args(sympy.expand(seconds)):
        names = [str(x) for x in term.free_symbols]
        kind = next((kind for start, kind in _KINDS if any(name.startswith(start) for name in names)), "start")
        sums[kind] = sums.get(kind, 0) + term
    values = {x: symbol.values[x] for x in seconds.free_symbols}
    terms = [Term(name, part, float(part.xreplace(values))) for name, part in sums.items()]
    terms = [term for term in terms if term.seconds != 0]
    return Formula(tuple(sorted(terms, key=lambda term: -abs(term.seconds))), seconds, values)
