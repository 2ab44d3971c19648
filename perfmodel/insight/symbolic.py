"""One decode step as SymPy expressions, built by the same functions that price it: `step` runs with symbols for
hardware and calibrated factors, `costs` dispatches to SymPy, and every maximum is then taken on its active branch.

Sizes (batch, context, padding, routing) stay numbers: they are what is asked, not what is differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from perfmodel.costs.launch import eager_host_s
from perfmodel.deployment import Deployment
from perfmodel.engines.rules import Collective
from perfmodel.placement import Placement, place
from perfmodel.step import forward
from perfmodel.step.communication import KERNELS, hop_row, kernel_s, nccl_choice, nccl_s
from perfmodel.step.factors import factors_of
from perfmodel.step.machine import machine_of
from perfmodel.step.memory import running_limit
from perfmodel.step.operations import Bench, Load, Row
from perfmodel.step.slots import Occupancy, loop_in_line, occupancy

FROZEN = ("routing_concentration_random", "routing_concentration_identical")   # enter through powers of the batch


@dataclass(frozen=True, eq=False)
class Term:
    """One row of a step: its expression on the active branch, and its value. [s]"""

    name: str
    expression: Any
    seconds: float


@dataclass(frozen=True, eq=False)
class Formula:
    """A step: terms that add up to ``expression``, and the value of every symbol in SI units."""

    terms: tuple[Term, ...]
    expression: Any
    values: dict[Any, float]

    @property
    def seconds(self) -> float:
        """The expression with its numbers put in. [s]"""
        return self.number(self.expression)

    def number(self, expression: Any) -> float:
        """Any expression in these symbols as a number."""
        return float(getattr(expression, "xreplace", lambda _: expression)(self.values))

    def elasticities(self) -> dict[str, float]:
        """d ln t / d ln x of every symbol x, by differentiating the active branch."""
        import sympy

        whole = self.seconds
        names = sorted(self.expression.free_symbols, key=str)
        return {str(x): self.values[x] * self.number(sympy.diff(self.expression, x)) / whole for x in names}


class Symbols:
    """Positive symbols with the values that they stand for."""

    def __init__(self) -> None:
        self.values: dict[Any, float] = {}

    def __call__(self, name: str, value: float) -> Any:
        import sympy

        if not np.isfinite(value):
            return sympy.oo
        if value == 0:
            return sympy.Integer(0)
        symbol = sympy.Symbol(name, positive=True)
        self.values[symbol] = float(value)
        return symbol


def step_formula(d: Deployment, batch: float, context: float, arrival: str | None = None) -> Formula:
    """The decode step of ``batch`` sequences of one engine copy as a formula."""
    placement, known = place(d), factors_of(d)
    number = dict(zip(known.names, (float(v) for v in known.values), strict=True))
    symbol = Symbols()
    factors = {name: value if name in FROZEN else symbol(name, value) for name, value in number.items()}
    bench = _bench(placement, factors, symbol)
    slots = occupancy(d, np.asarray(float(batch)), running_limit(placement), arrival)
    sizes = [(float(b), float(n)) for b, n in zip(np.ravel(slots.batch), np.ravel(slots.count), strict=True) if n > 0]
    work = [_slot(placement, bench, number, symbol, size, context) for size, _ in sizes]
    return _assembled(placement, bench, slots, sizes, work, symbol)


def _bench(placement: Placement, factors: dict[str, Any], symbol: Symbols) -> Bench:
    """The bench of this placement with symbols for what the hardware brings."""
    machine = machine_of(placement)
    peaks = {dtype: symbol(f"P_{dtype}", value) for dtype, value in machine.peak.items()}
    seen = replace(machine, peak=peaks, bandwidth_Bps=symbol("B_memory", machine.bandwidth_Bps),
                   sms=symbol("N_SM", machine.sms))
    return replace(forward.bench_of(placement, factors), machine=seen)


@dataclass(frozen=True, eq=False)
class _Stage:
    """One stage at one slot's batch: rows, and expressions of device and of exposed host time."""

    rows: list[Row]
    whole: Any
    exposed: Any
    hop: Any


def _slot(placement: Placement, bench: Bench, number: dict[str, float], symbol: Symbols, size: float,
          context: float) -> list[_Stage]:
    """The stages at one slot's batch."""
    d = placement.deployment
    load, eager = decode_load(d, size, context)
    f = bench.factors
    loop = f["micro_batch_s"] * f["host_speed"] if placement.stages > 1 else 0
    ahead = d.engine.overlaps_host(d.options)
    if placement.stages > 1 and ahead:
        loop = loop + f["pipeline_hop_s"] * f["host_speed"]
    beside, line = (0, loop) if loop_in_line(d.options) else (loop, 0)
    more = beside + (f["host_sequence_s"] * f["host_speed"] * load.sequences if eager or ahead else 0)
    return _stages(placement, bench, number, symbol, load, eager, more, line)


def decode_load(d: Deployment, size: float, context: float) -> tuple[Load, bool]:
    """What a slot of ``size`` sequences carries in a decode step, and whether no graph holds it."""
    sequences = float(np.ceil(size / d.options.dp_attention))
    padded, eager = forward.pad_to_graph(d.engine.capture_sizes(d.options, d.facts), sequences)
    tokens = float(padded)
    load = Load("decode", tokens, tokens * d.options.dp_attention, sequences, context + 1.0, tokens)
    return load, bool(np.all(eager))


def _stages(placement: Placement, bench: Bench, number: dict[str, float], symbol: Symbols, load: Load, eager: bool,
            host: Any, line: Any = 0) -> list[_Stage]:
    """Rows of every stage for a load; stages that are alike are built once."""
    d, tokens = placement.deployment, load.tokens
    silent = replace(placement, deployment=replace(d, engine=SimpleNamespace(    # type: ignore[arg-type]
        layer_collectives=lambda *_: (), step_collectives=lambda *_: ())))
    kinds = [[*forward.layer_rows(silent, bench, k, load), *_layer_calls(placement, bench, number, symbol, k, load)]
             for k in range(len(placement.kinds))]
    hop = _hop(placement, bench, symbol, tokens)
    known: dict[Any, _Stage] = {}
    stages = []
    for stage in range(placement.stages):
        key = (tuple(placement.counts[stage]), stage == 0, stage == placement.stages - 1)
        if key not in known:
            many = [(k, float(n)) for k, n in enumerate(placement.counts[stage]) if n]
            rows = [forward.scale(row, n) for k, n in many for row in kinds[k]]
            rows += forward.stage_edges(silent, bench, stage, load)
            rows += _step_calls(placement, bench, number, symbol, stage, load)
            known[key] = _stage(placement, bench, rows, eager, host, line, symbol, hop)
        stages.append(known[key])
    return stages


def _stage(placement: Placement, bench: Bench, rows: list[Row], eager: bool, host: Any, line: Any, symbol: Symbols,
           hop: Any) -> _Stage:
    f = bench.factors
    rows = [replace(row, seconds=active(row.seconds, symbol.values)) for row in forward.merge(rows)]
    device = forward.total(rows)
    if eager:
        launch = f["eager_kernel_s"] * f["host_speed"]
        host = host + eager_host_s(forward.total(rows, "kernels"), launch, placement.deployment.options.tp,
                                   f["eager_rank_spread"])
    exposed = (host - device if _value(host - device, symbol) > 0 else 0) + line
    return _Stage(rows, device + exposed, exposed, hop)


def _value(expression: Any, symbol: Symbols) -> float:
    return float(getattr(expression, "xreplace", lambda _: expression)(symbol.values))


def active(expression: Any, values: dict[Any, float]) -> Any:
    """The expression with every maximum and minimum replaced by the argument that holds at these values."""
    import sympy

    if not hasattr(expression, "free_symbols"):
        return expression

    def pick(best: Any) -> Any:
        return lambda *items: best(items, key=lambda item: float(item.xreplace(values)))

    return expression.replace(sympy.Max, pick(max)).replace(sympy.Min, pick(min))


def _assembled(placement: Placement, bench: Bench, slots: Occupancy, sizes: list[tuple[float, float]],
               work: list[list[_Stage]], symbol: Symbols) -> Formula:
    """As `forward` assembles a step: the trip of the fullest slot, and what it waits for the slowest stage."""
    f = bench.factors
    rows = forward.merge([row for stage in work[0] for row in stage.rows])
    parts = [(row.name, row.seconds) for row in rows]
    parts.append(("host launch not hidden", sum(stage.exposed for stage in work[0])))
    if placement.stages > 1:
        parts.append(("pipeline hops", placement.stages * work[0][0].hop))
    d = placement.deployment
    sequences = np.ceil(sizes[0][0] / d.options.dp_attention)
    eager = np.all(forward.pad_to_graph(d.engine.capture_sizes(d.options, d.facts), sequences)[1])
    parts.append(("step overhead of the engine", forward.between_steps(d, f, 0.0 if eager else float(sequences))))
    trip = sum(expression for _, expression in parts)
    if placement.stages > 1:
        queue = sum(count * max((stage.whole for stage in stages), key=lambda e: _value(e, symbol))
                    for (_, count), stages in zip(sizes, work, strict=True))
        if _value(queue - trip, symbol) > 0:
            parts.append(("wait for the slowest stage", queue - trip))
            trip = queue
    terms = [Term(name, expression, _value(expression, symbol)) for name, expression in parts]
    terms = [term for term in terms if term.seconds != 0]
    return Formula(tuple(sorted(terms, key=lambda term: -term.seconds)), trip, symbol.values)


def prefill_formula(d: Deployment, tokens: float, context: float = 0.0) -> Formula:
    """The prefill of one prompt of ``tokens`` new tokens after ``context`` cached ones as a formula."""
    placement, known = place(d), factors_of(d)
    number = dict(zip(known.names, (float(v) for v in known.values), strict=True))
    symbol = Symbols()
    bench = _bench(placement, {name: v if name in FROZEN else symbol(name, v) for name, v in number.items()}, symbol)
    one, many = forward.prefill_load(placement, np.float64(tokens), np.float64(context), np.float64(1.0))
    chunks = float(many)
    load = Load("prefill", *(float(np.ravel(value)[0]) for value in (
        one.tokens, one.all_tokens, one.sequences, one.context, one.sampled)))
    eager = load.tokens > d.engine.prefill_graph_tokens(d.options, d.facts)
    stages = _stages(placement, bench, number, symbol, load, eager, 0)
    rows = forward.merge([row for stage in stages for row in stage.rows])
    parts = [(row.name, chunks * row.seconds) for row in rows]
    parts.append(("host launch not hidden", chunks * sum(stage.exposed for stage in stages)))
    if placement.stages > 1:
        parts.append(("pipeline hops", chunks * (placement.stages - 1) * stages[0].hop))
        once = sum(stage.whole for stage in stages) + (placement.stages - 1) * stages[0].hop
        slowest = max((stage.whole for stage in stages), key=lambda e: _value(e, symbol))
        parts.append(("stages that overlap", (chunks - 1) * (slowest - once)))
    parts.append(("step overhead of the engine", chunks * forward.between_steps(d, bench.factors, load.sequences)))
    terms = [Term(name, expression, _value(expression, symbol)) for name, expression in parts]
    terms = [term for term in terms if term.seconds != 0]
    whole = sum(term.expression for term in terms)
    return Formula(tuple(sorted(terms, key=lambda term: -abs(term.seconds))), whole, symbol.values)


# ---------------------------------------------------------------- collectives


def _layer_calls(placement: Placement, bench: Bench, number: dict[str, float], symbol: Symbols, kind: int,
                 load: Load) -> list[Row]:
    d = placement.deployment
    mlp = placement.kinds[kind][1]
    sort = d.model.mlp[mlp].kind if mlp in d.model.mlp else None
    calls = d.engine.layer_collectives(d.options, d.facts, load.phase)
    return [_call(placement, bench, number, symbol, call, load) for call in calls if call.layer == sort]


def _step_calls(placement: Placement, bench: Bench, number: dict[str, float], symbol: Symbols, stage: int,
                load: Load) -> list[Row]:
    d = placement.deployment
    where = {"every": True, "first": stage == 0, "last": stage == placement.stages - 1}
    calls = d.engine.step_collectives(d.options, d.facts, load.phase)
    return [_call(placement, bench, number, symbol, call, load) for call in calls if where[call.stage]]


def _call(placement: Placement, bench: Bench, number: dict[str, float], symbol: Symbols, call: Collective,
          load: Load) -> Row:
    """One collective with the kernel or protocol that its size takes, in symbols."""
    message = message_of(placement.deployment, call, load)
    seconds = call_s(placement.deployment, bench, number, symbol, call, message)[0] if call.ranks > 1 else 0.0
    name = f"{call.op.replace('_', '-')} ({call.place})"
    return Row(name, seconds, message_bytes=message, kernels=1.0, bound="communication")


def message_of(d: Deployment, call: Collective, load: Load) -> float:
    """Bytes of a collective, as nccl-tests counts them. [B]"""
    tokens = {"local": load.tokens, "global": load.all_tokens, "sampled": load.sampled,
              "sampled_global": load.sampled * d.options.dp_attention}[call.tokens]
    return float(call.bytes_per_token * tokens + call.bytes_fixed)


def call_s(d: Deployment, bench: Bench, number: dict[str, float], symbol: Symbols, call: Collective, message: float,
           shown: Any = None) -> tuple[Any, str]:
    """Seconds of one collective in symbols, and what runs it; ``shown`` stands for the message in the formula."""
    links, said = bench.machine.links, message if shown is None else shown
    chosen = d.engine.all_reduce_backend(d.options, d.facts, call.ranks, message) if call.op == "all_reduce" else ""
    if chosen in KERNELS:
        multimem = chosen == "symm_mem" and links.multimem(call.ranks)
        peer = symbol(f"B_peer_{call.ranks}", links.peer_Bps(call.ranks, "multimem" if multimem else chosen))
        seen = SimpleNamespace(transport=links.transport, peer_Bps=lambda ranks, kernel: peer, multimem=links.multimem,
                               capability=links.capability)
        return (kernel_s(chosen, said, call.ranks, seen, bench.factors, d.options.engine),   # type: ignore[arg-type]
                "NVLink multicast" if multimem else f"the kernel {chosen}")
    _, index, _ = nccl_choice(call.op, message, call.ranks, links, number)
    p = links.protocols(call.op, call.ranks)[int(index)]
    tag = f"{call.op}_{call.ranks}_{p.name}".replace(" ", "_")
    known = replace(p, base_s=symbol(f"t0_{tag}", p.base_s), hop_s=symbol(f"alpha_{tag}", p.hop_s),
                    busbw_Bps=symbol(f"B_{tag}", p.busbw_Bps), copy_Bps=symbol(f"C_{tag}", p.copy_Bps),
                    net_hop_s=symbol(f"alpha_net_{tag}", p.net_hop_s))
    return nccl_s(call.op, said, call.ranks, known, bench.factors), f"NCCL {p.name}"


def _hop(placement: Placement, bench: Bench, symbol: Symbols, tokens: float) -> Any:
    return 0 if placement.stages == 1 else hop_in(placement, bench, symbol, tokens).seconds


def hop_in(placement: Placement, bench: Bench, symbol: Symbols, tokens: Any) -> Row:
    """One hop between stages in symbols."""
    links = bench.machine.links
    seen = replace(links, hop_Bps=symbol("B_hop", links.hop_Bps),
                   hop_latency_s=symbol("alpha_hop", links.hop_latency_s))
    return hop_row(tokens, placement.deployment.model.hidden, placement.deployment, seen, bench.factors)
