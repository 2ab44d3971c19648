"""What each proposal of `findings` is worth: the model asked again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.catalog import Node
from perfmodel.deployment import Deployment
from perfmodel.errors import Infeasible, PerfModelError
from perfmodel.insight.case import Candidate, Case
from perfmodel.insight.findings import SPARE_BYTES, candidates
from perfmodel.insight.variants import changed
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.lengths import Lengths
from perfmodel.step import MemoryReport, memory
from perfmodel.step.cost import plain
from perfmodel.step.slots import arrival_of

LEAST_SPEED, LEAST_KV = 0.01, 0.05      # shares of tok/s and of KV tokens below which a finding is not worth a line
_START = ((0.80, 0.98), 0.01)           # memory fractions tried where nothing starts


@dataclass(frozen=True, eq=False)
class Finding:
    """One change and what it does. Lists follow `Doctor.concurrency`.

    ``tok_s`` is with the change, ``tok_s_now`` without, so an effect always has the sign of the change: a repair adds,
    a risk (what may happen, with its ``chance``) takes away, a safety may cost. ``at`` is the concurrency where the
    change matters most.
    """

    name: str
    what: str
    kind: str                           # start, repair, risk, safety
    flag: str
    changes: dict[str, Any]
    source: str
    tok_s_now: tuple[float, ...]
    tok_s: tuple[float, ...]
    at: float
    kv_tokens_now: int
    kv_tokens: int
    command: str
    notes: tuple[str, ...] = ()
    chance: float | None = None

    @property
    def gains(self) -> tuple[float, ...]:
        """Change of tok/s, at each concurrency."""
        return tuple(new - old for new, old in zip(self.tok_s, self.tok_s_now, strict=True))

    def to_dict(self, concurrency: tuple[float, ...]) -> dict[str, Any]:
        """Plain data. ``effect``: with the change less without it. ``cost``: what the launch loses as it is (for a
        risk: what it would lose)."""
        i = concurrency.index(self.at)
        sign = -1 if self.kind == "risk" else 1
        percent = 100 * self.gains[i] / self.tok_s_now[i] if self.tok_s_now[i] else None
        return {
            "name": self.name, "what": self.what, "kind": self.kind, "flag": self.flag,
            "changes": plain_changes(self.changes), "source": self.source, "at_concurrency": plain(self.at),
            "cost_tok_s": sign * self.gains[i],
            "cost_percent": None if percent is None else sign * percent,
            "effect_tok_s": self.gains[i], "effect_percent": percent, "chance": self.chance,
            "effect_kv_tokens": self.kv_tokens - self.kv_tokens_now,
            "cost_kv_tokens": sign * (self.kv_tokens - self.kv_tokens_now),
            "points": [{"concurrency": plain(c), "output_tok_s": new, "output_tok_s_now": old}
                       for c, new, old in zip(concurrency, self.tok_s, self.tok_s_now, strict=True)],
            "kv_tokens": self.kv_tokens, "kv_tokens_now": self.kv_tokens_now, "command": self.command,
            "notes": list(self.notes),
        }  # fmt: skip


def plain_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in changes.items()}


class Asker:
    """Asks the model about variants of one launch, each once. It holds the question; formulas live elsewhere."""

    def __init__(self, deployment: Deployment, loads: tuple[float, ...], inputs: Lengths, outputs: Lengths,
                 arrival: str | None, calibration: str | None) -> None:
        self.base, self.loads, self.inputs, self.outputs = deployment, loads, inputs, outputs
        self.arrival, self.calibration = arrival, calibration
        self._known: dict[Any, Any] = {}

    @property
    def needed(self) -> float:
        """Tokens of one request."""
        return self.inputs.mean + self.outputs.mean

    @property
    def too_long(self) -> bool:
        """Whether requests do not fit into the context that the launch allows."""
        return self.needed > (self.base.options.context or self.base.facts.max_context)

    def once(self, key: Any, answer: Callable[[], Any]) -> Any:
        """The answer, asked for once."""
        if key not in self._known:
            self._known[key] = answer()
        return self._known[key]

    def variant(self, changes: dict[str, Any], node: Node | None = None, version: str = "") -> Deployment:
        """The launch with keywords changed."""
        key = ("d", _key(changes), id(node) if node else 0, version)
        return self.once(key, lambda: changed(self.base, changes, node, version, self.calibration))

    def report(self, d: Deployment) -> MemoryReport:
        """Memory of a variant."""
        return self.once(("m", id(d)), lambda: memory(d, hints=False))

    def tok_s(self, d: Deployment) -> tuple[float, ...]:
        """Output tok/s of a variant at every load."""
        def ask() -> tuple[float, ...]:
            loads = np.array(self.loads)
            curve = closed_loop(d, loads, self.inputs, self.outputs, self.arrival, uncertain=False)
            return tuple(float(rate) for rate in curve.output_tok_s[0])

        return self.once(("t", id(d)), ask)


def _key(changes: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in changes.items()))


def examine(ask: Asker, d: Deployment) -> tuple[tuple[Finding, ...], tuple[str, ...], tuple[str, ...]]:
    """Findings by what they cost, proposals that were refused, and what was assumed for them."""
    report, start = ask.report(d), None
    notes: tuple[str, ...] = ()
    if ask.too_long:
        start = _longer(ask, d, report)
        if start is None:
            raise Infeasible(f"a request has {ask.needed:,.0f} tokens, the launch allows {d.options.context:,}, and "
                             f"with a context that holds one it does not start ({report.verdict})",
                             ["ask with shorter --input-tokens and --output-tokens"])
    elif not report.fits:
        start = _start(ask, d, report)
    if start is not None:
        ask = Asker(ask.variant(start.changes), ask.loads, ask.inputs, ask.outputs, ask.arrival, ask.calibration)
        why = "refuses the requests" if report.fits else f"does not start ({report.verdict})"
        notes = (f"the launch {why}; what follows is asked with "
                 + ", ".join(f"{k}={v}" for k, v in start.changes.items()),)
    base = ask.base
    needed = ask.needed
    arrival = arrival_of(base.options, ask.arrival)
    case = Case(base, ask.report(base), ask.loads, needed, arrival)
    found, refused = [], []
    for candidate in candidates(case):
        try:
            finding = _finding(ask, candidate)
        except PerfModelError as problem:
            refused.append(f"{candidate.name}: {str(problem.message)}")
            continue
        if isinstance(finding, str):
            refused.append(f"{candidate.name}: {finding}")
        elif finding is not None:
            found.append(finding)
    found.sort(key=_worth, reverse=True)
    return (*((start,) if start else ()), *found), tuple(refused), notes


def _worth(finding: Finding) -> tuple[float, float]:
    """Share of tok/s at the load where it matters most, then share of KV tokens. A safety is worth its chance: the
    launch that runs out of memory loses everything."""
    shares = [g / max(old, 1e-9) for g, old in zip(finding.gains, finding.tok_s_now, strict=True)]
    speed = max(0.0, *shares) if finding.kind == "repair" else max(map(abs, shares))
    if finding.kind == "safety":
        speed = finding.chance or 0.0
    more = abs(finding.kv_tokens - finding.kv_tokens_now) / max(finding.kv_tokens_now, 1)
    return (speed if speed >= LEAST_SPEED else 0.0, more)


def _longer(ask: Asker, d: Deployment, report: MemoryReport) -> Finding | None:
    """A context that holds the requests, where the launch's own does not."""
    needed = 2 ** int(np.ceil(np.log2(ask.needed)))
    changes: dict[str, Any] = {"context": needed}
    variant = ask.variant(changes)
    there = ask.report(variant)
    if not there.fits:
        found = _start(ask, variant, there)
        if found is None:
            return None
        changes |= found.changes
        variant = ask.variant(changes)
        there = ask.report(variant)
    found = _first(ask, d, report, changes, variant, there)
    what = f"a request has {ask.needed:,.0f} tokens, a sequence may hold {d.options.context:,}: all are refused"
    return replace(found, name="context shorter than the load", what=what)


def _start(ask: Asker, d: Deployment, report: MemoryReport) -> Finding | None:
    """A change that lets the launch start: the highest fraction that leaves some memory free, else also a shorter
    context, fewer sequences, FP8 KV."""
    (low, high), step = _START
    fractions = [round(float(f), 3) for f in np.arange(low, high, step)]
    needed = 2 * (ask.inputs.mean + ask.outputs.mean)
    context = 2 ** int(np.ceil(np.log2(max(needed, 4096))))
    if report.kv_tokens > 2 * context:      # the longest power of two that the pool holds
        context = 2 ** int(np.log2(report.kv_tokens))
    extras: list[dict[str, Any]] = [{}, {"context": context}, {"context": context, "max_sequences": 64},
                                    {"context": context, "max_sequences": 64, "kv_dtype": "fp8"}]
    if report.verdict in ("kv_too_small", "oom_request_table"):
        extras = [*extras[1:], {}]
    for extra in extras:
        starts = []
        for fraction in [None, *fractions]:
            changes = {**extra, **({"memory_fraction": fraction} if fraction else {})}
            try:
                variant = ask.variant(changes) if changes else d
            except PerfModelError:
                continue
            there = ask.report(variant)
            if there.fits and there.kv_tokens_total >= ask.inputs.mean + ask.outputs.mean:
                starts.append((changes, variant, there))
        if starts:
            safe = [item for item in starts if min(item[2].pool.free_bytes) >= SPARE_BYTES]
            return _first(ask, d, report, *(safe[0] if extra and safe else safe[-1] if safe else starts[0]))
    return None


def _first(ask: Asker, d: Deployment, report: MemoryReport, changes: dict[str, Any], variant: Deployment,
           there: MemoryReport) -> Finding:
    rates = ask.tok_s(variant)
    return Finding(f"does not start: {report.verdict}", report.pool.reason, "start", flag_change(d, variant), changes,
                   "memory answer, the engine's own rule", tuple(0.0 for _ in rates), rates,
                   ask.loads[int(np.argmax(rates))], 0, there.kv_tokens_total, variant.command())


def _finding(ask: Asker, c: Candidate) -> Finding | str | None:
    """What a proposal is worth: None if too little, a text if it cannot run."""
    if not c.by_concurrency:
        base = ask.variant({}, None, c.version) if c.version else ask.base
        new = ask.variant(c.changes, c.node, c.version)
        before, after = [base] * len(ask.loads), [new] * len(ask.loads)
    else:
        before = [ask.variant(c.before.get(load, {}), None, c.version) for load in ask.loads]
        after = [ask.variant({**c.before.get(load, {}), **c.by_concurrency.get(load, {})}, None, c.version)
                 for load in ask.loads]
    kept = [i for i, d in enumerate(after) if ask.report(d).fits]
    if not kept:
        return f"does not fit ({ask.report(after[0]).verdict})"
    now = tuple(ask.tok_s(d)[i] for i, d in enumerate(before))
    then = tuple(ask.tok_s(d)[i] for i, d in enumerate(after))
    sign = -1 if c.kind == "risk" else 1
    shares = [sign * (new - old) / max(old, 1e-9) for new, old in zip(then, now, strict=True)]
    best = max(kept, key=lambda i: shares[i])
    kv_now, kv = ask.report(before[best]).kv_tokens_total, ask.report(after[best]).kv_tokens_total
    if not c.always and shares[best] < LEAST_SPEED and not (c.memory and kv > (1 + LEAST_KV) * max(kv_now, 1)):
        return None
    changes = c.by_concurrency.get(ask.loads[best], c.changes)
    notes = _loses(ask.loads, shares, c) + _settings(ask.loads, c) + c.notes
    flag = c.flag or flag_change(before[best], after[best])
    return Finding(c.name, c.what, c.kind, flag, changes, c.source, now, then,
                   ask.loads[best], kv_now, kv, after[best].command(), notes, c.chance)


def _loses(loads: tuple[float, ...], shares: list[float], c: Candidate) -> tuple[str, ...]:
    worse = [f"{100 * share:+.0f} % at C={load:g}" for load, share in zip(loads, shares, strict=True)
             if share < -LEAST_SPEED]
    return (f"it loses elsewhere: {', '.join(worse)}",) if worse and c.kind == "repair" else ()


def _settings(loads: tuple[float, ...], c: Candidate) -> tuple[str, ...]:
    """Which value at which load, where it differs."""
    if len({_key(changes) for changes in c.by_concurrency.values()}) < 2:
        return ()
    name = next(iter(next(iter(c.by_concurrency.values()))))
    values = ", ".join(f"C={load:g}: {c.by_concurrency[load][name]}" for load in loads if load in c.by_concurrency)
    return (f"{name} by load: {values}",)


def flag_change(before: Deployment, after: Deployment) -> str:
    """Words that a launch line gains and loses from one deployment to another."""
    old, new = _pairs(before.command()), _pairs(after.command())
    added, gone = [p for p in new if p not in old], [p for p in old if p not in new]
    replaced = [p for p in gone if p.partition(" ")[0] in {a.partition(" ")[0] for a in added}]
    words = ([f"set {' '.join(added)}"] if added else []) + [f"remove {p}" for p in gone if p not in replaced]
    return "; ".join(words) or "no flag says this"


def _pairs(command: str) -> list[str]:
    """``--flag value`` pieces of a launch line.

    >>> _pairs("A=1 vllm serve m --tp 2 --eager")
    ['A=1', 'vllm', 'serve', 'm', '--tp 2', '--eager']
    """
    pairs: list[str] = []
    for word in command.split():
        if pairs and pairs[-1].startswith("-") and " " not in pairs[-1] and not word.startswith("-"):
            pairs[-1] += f" {word}"
        else:
            pairs.append(word)
    return pairs
