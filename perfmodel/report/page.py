"""What a report says, before it is HTML or Markdown: sections of texts, tables, lists, pictures and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report import page_inputs
from perfmodel.report.layout import heading, labels, legend, no_fit, number, over_gpus, span
from perfmodel.report.measured import and_measured
from perfmodel.report.page_blocks import Block, Code, Items, Picture, Section, Table, Text
from perfmodel.units import gb_gib

if TYPE_CHECKING:
    from perfmodel.deployment import Deployment
    from perfmodel.insight import Explained, WhatIf
    from perfmodel.planner import Job
    from perfmodel.report.measured import Point
    from perfmodel.serving import ServingCurve
    from perfmodel.step import MemoryReport, StepCost

MOST_ELASTICITIES, MOST_BATCHES = 12, 8


@dataclass(frozen=True, eq=False)
class Answers:
    """All that a report is made of. ``others`` are curves of other strategies, ``command`` remakes the report."""

    deployment: Deployment
    memory: MemoryReport
    curve: ServingCurve
    step: StepCost
    whatif: WhatIf | None
    explained: Explained | None
    command: str
    others: tuple[tuple[ServingCurve, MemoryReport], ...] = ()
    measured: tuple[Point, ...] = ()
    job: Job | None = None
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON."""
        from perfmodel import __version__

        return {
            "perfmodel": __version__,
            "command": self.command,
            "memory": self.memory.to_dict(),
            "predict": self.curve.to_dict(),
            "step": self.step.to_dict(),
            "others": [{"fits": report.fits, **curve.to_dict()} for curve, report in self.others],
            "whatif": None if self.whatif is None else self.whatif.to_dict(),
            "explain": None if self.explained is None else self.explained.to_dict(),
            "job": None if self.job is None else self.job.to_dict(),
            "measured": [{"concurrency": c, "output_tok_s": tok_s} for c, tok_s in self.measured],
        }


def ask(
    deployment: Deployment,
    *,
    command: str,
    concurrency: Any,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
    others: Sequence[Deployment] = (),
    measured: Sequence[Point] = (),
    job: Job | None = None,
) -> Answers:
    """Ask every question of a report; the loads that were measured are asked about too."""
    from perfmodel.insight import explain, whatif
    from perfmodel.serving import predict
    from perfmodel.step import memory, step

    loads = np.unique(and_measured(np.atleast_1d(np.asarray(concurrency, float)).tolist(), measured))
    load = {"concurrency": loads, "input_tokens": input_tokens, "output_tokens": output_tokens}
    report = memory(deployment)
    curve = predict(deployment, **load, arrival=arrival)
    beside = tuple((predict(d, **load, arrival=arrival), memory(d, hints=False)) for d in others)
    batches = np.unique(np.maximum(np.round(curve.running / deployment.options.dp), 1.0))[:MOST_BATCHES]
    cached = curve.input_tokens + curve.output_tokens / 2
    cost = step(deployment, batch=batches, context=round(cached), arrival=arrival)
    changes = whatif(deployment, **load, arrival=arrival)
    heaviest = float(np.max(curve.concurrency))
    parts = explain("tok_s", deployment, concurrency=heaviest, input_tokens=input_tokens, output_tokens=output_tokens,
                    arrival=arrival)  # fmt: skip
    return Answers(deployment, report, curve, cost, changes, parts, command, beside, tuple(measured), job,
                   curve.warnings)  # fmt: skip


def sections(a: Answers) -> list[Section]:
    """The report, in the order in which it is read."""
    found = [
        Section("Question", _question(a)),
        Section("Answer", _answer(a)),
        Section("Memory", _memory(a)),
        Section("Speed over load", _speed(a)),
        Section("Where the time goes", _step(a)),
        Section("What would change it", _changes(a)),
        *([Section("The job", _job(a.job))] if a.job is not None else []),
        *page_inputs.sections(a.deployment),
        Section("Assumptions", [Items(tuple(dict.fromkeys((*a.memory.assumptions, *a.curve.assumptions))))]),
        Section("Made with", [Text(page_inputs.versions(a.deployment)), Text("This page again:"), Code(a.command)]),
    ]
    return [section for section in found if section.blocks]


def title(a: Answers) -> str:
    """What the page is called."""
    return f"{a.deployment.model.name}, {a.deployment.name} on {a.deployment.node.name}"


def _question(a: Answers) -> list[Block]:
    loads = ", ".join(f"{c:g}" for c in a.curve.concurrency)
    return [
        Text(f"Does {heading(a.deployment)} fit, and how fast is it with {a.curve.input_tokens:g} tokens in and "
             f"{a.curve.output_tokens:g} out at {loads} requests in flight?"),
        Text("The launch that is asked about:"),
        Code(a.deployment.command()),
    ]  # fmt: skip


def _answer(a: Answers) -> list[Block]:
    points = a.curve.points
    best = max(points, key=lambda p: p["output_tok_s"])
    m = a.memory
    fits = (f"It fits, with a KV cache of {m.kv_tokens_total:,} tokens in the whole deployment." if m.fits
            else f"It {no_fit(m.verdict)} ({m.pool.reason}).")  # fmt: skip
    found: list[Block] = [Text(fits, strong=True)]
    alone = points[0]["output_tok_s"] / points[0]["concurrency"]
    speed = (f"{number(best['output_tok_s'])} output tokens/s over all GPUs at {best['concurrency']:g} in flight "
             f"(80 % band {span(best['output_tok_s_low'], best['output_tok_s_high'])}), bound by {best['bound_by']}. "
             f"At {points[0]['concurrency']:g} in flight each gets {number(alone)} tokens/s.")  # fmt: skip
    found.append(Text(speed if a.memory.fits else f"If it did: {speed}", strong=a.memory.fits))
    found += [Items(tuple(a.warnings), "Warnings")] if a.warnings else []
    found += [Items(tuple(a.memory.hints), "What would fit, asked again")] if a.memory.hints else []
    return found


def _memory(a: Answers) -> list[Block]:
    r, d = a.memory, a.deployment
    tp = d.options.tp
    rows = []
    for stage in range(r.placement.stages):
        weights = float(r.placement.weights_bytes[stage])
        parts = (weights, r.pool.pool_bytes[stage], r.runtime_bytes(stage), r.pool.free_bytes[stage])
        rows.append([str(stage), f"{stage * tp}-{stage * tp + tp - 1}" if tp > 1 else str(stage),
                     str(int(r.placement.layers[stage])), *(f"{size / 2**30:.1f}" for size in parts)])  # fmt: skip
    kv = (f"KV cache: {r.kv_tokens:,} tokens (80 % band {r.kv_tokens_low:,} to {r.kv_tokens_high:,}), "
          f"{r.kv_tokens_total:,} in the whole deployment; rank {r.binding_rank} binds.")  # fmt: skip
    weights = float(np.sum(r.placement.weights_bytes)) * tp * d.options.dp
    head = ("stage", "ranks", "layers", "weights, GiB", "KV pool, GiB", "runtime, GiB", "free, GiB")
    alt = f"Stacked bars of memory per GPU against its limit: {'fits' if r.fits else 'does not fit'}."
    return [Picture("memory", r, alt), Text(f"{kv} Weights: {gb_gib(weights)} {over_gpus(d.gpus)}."), Table(head, rows)]


def _speed(a: Answers) -> list[Block]:
    from perfmodel.serving import Comparison

    head = ("in flight", "running", "tok/s", "80 % band", "TTFT, ms", "TPOT, ms", "TPOT band", "bound by")
    rows = [[f"{p['concurrency']:g}", f"{p['running']:.4g}", number(p["output_tok_s"]),
             span(p["output_tok_s_low"], p["output_tok_s_high"]), number(p["ttft_ms"]), number(p["tpot_ms"]),
             span(p["tpot_ms_low"], p["tpot_ms_high"]), p["bound_by"]] for p in a.curve.points]  # fmt: skip
    both = Comparison((a.curve, *(c for c, _ in a.others)), (a.memory, *(r for _, r in a.others)))
    noun = both if a.others else a.curve
    measured = {"measured": {0: a.measured}} if a.measured else {}
    found: list[Block] = [
        Picture("throughput", noun, "Output tokens per second over requests in flight, with 80 % bands.", measured),
        Table(head, rows),
        Picture("latency", noun, "Time per output token over requests in flight, with 80 % bands.", {"kind": "tpot"}),
    ]
    if a.measured:
        asked = {p["concurrency"]: p["output_tok_s"] for p in a.curve.points}
        found.append(Table(("in flight", "measured, tok/s", "predicted, tok/s", "predicted/measured"),
                           [[f"{c:g}", number(m), number(asked.get(c)), f"{asked[c] / m:.2f}" if c in asked else "-"]
                            for c, m in sorted(a.measured)]))  # fmt: skip
    if a.others:
        names = labels([c.deployment for c in both.curves])
        found.append(Table(("strategy", "fits", *(f"tok/s at {p['concurrency']:g}" for p in a.curve.points)),
                           [[name, "yes" if r.fits else no_fit(r.verdict),
                             *(number(p["output_tok_s"]) for p in c.points)]
                            for name, c, r in zip(names, both.curves, both.memories, strict=True)]))  # fmt: skip
        found.append(Text(legend(names)))
    return found


def _step(a: Answers) -> list[Block]:
    parts = [[name, *(number(1e3 * float(s)) for s in seconds)] for name, seconds in a.curve.parts.items()]
    parts.append(["time per output token", *(number(p["tpot_ms"]) for p in a.curve.points)])
    head = ("ms", *(f"{p['concurrency']:g} in flight" for p in a.curve.points))
    return [
        Picture("step", a.step, "Operations of one decode step on top of each other, by running sequences."),
        Picture("roofline", a.step, "Roofline of one GPU with the operations of the step on it.", {"kind": "roofline"}),
        Text("What the time of an output token goes to:"),
        Table(head, parts),
    ]


def _changes(a: Answers) -> list[Block]:
    from perfmodel.report.insight_text import plus_ten

    found: list[Block] = []
    if a.whatif is not None:
        last = a.whatif.concurrency[-1]
        rows = []
        for o in a.whatif.outcomes:
            if o.tok_s is None or o.memory is None:
                rows.append([o.change, "-", "-", "-", o.refused])
                continue
            if not o.memory.fits:
                rows.append([o.change, "-", "-", "-", no_fit(o.memory.verdict)])
                continue
            value, low, high = (float(band[-1]) for band in o.tok_s)
            now = value - o.gain[-1]
            gain = f"{100 * o.gain[-1] / now:+.0f} %" if now else "-"
            rows.append([o.change, number(value), span(low, high), gain, o.way])
        found += [Text(f"One thing changed, the model asked again; output tokens/s at {last:g} in flight:"),
                  Table(("change", "tok/s", "80 % band", "against now", "how, or why not"), rows)]  # fmt: skip
    if a.explained is not None:
        rows = [[e.name, e.kind, plus_ten(e)]
                for e in a.explained.elasticities[:MOST_ELASTICITIES]]  # fmt: skip
        found += [Text(f"What 10 % more of one parameter does to the tokens/s at {float(a.curve.concurrency.max()):g} "
                       "in flight:"), Table(("parameter", "kind", "tokens/s"), rows)]  # fmt: skip
    return found


def _job(job: Job) -> list[Block]:
    from perfmodel.report.job_text import PHASES, duration

    words = (f"{job.samples:,} samples take {duration(job.makespan_s)} (80 % band {duration(job.makespan_s_low)} to "
             f"{duration(job.makespan_s_high)}): {number(job.gpu_hours)} GPU-hours, {number(job.energy_kwh)} kWh"
             + ("" if job.cost is None else f", cost {job.cost:,.2f}") + ".")  # fmt: skip
    rows = [[PHASES.get(name, name), f"{s / 3600:.3f}", f"{s / job.makespan_s:.1%}"] for name, s in job.parts.items()]
    alt = "Output tokens per second and running requests over the time of the job."
    return [Text(words, strong=True), Picture("job", job, alt), Table(("phase", "hours", "share"), rows),
            Items(job.assumptions, "Assumptions of the job")]  # fmt: skip
