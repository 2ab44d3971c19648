"""`doctor`: reads a launch, predicts it, and lists what it costs not to change it, each cost asked of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel import catalog
from perfmodel.catalog import ModelArch, Moe, Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import BadInput, PerfModelError
from perfmodel.insight.findings import SPARE_BYTES, Candidate, Case, candidates
from perfmodel.insight.launch import Launch
from perfmodel.insight.launch_files import launch_of
from perfmodel.insight.reality import Difference, differences
from perfmodel.insight.variants import changed
from perfmodel.serving import ServingCurve, predict
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.lengths import Lengths, parse_lengths
from perfmodel.step import MemoryReport, memory
from perfmodel.step.cost import plain

CONCURRENCY = (1, 8, 32, 128)
LEAST_SPEED, LEAST_KV = 0.01, 0.05      # shares of tok/s and of KV tokens below which a finding is not worth a line
_START = ((0.80, 0.98), 0.01)           # memory fractions tried where nothing starts


@dataclass(frozen=True, eq=False)
class Finding:
    """One thing that the launch could do better, and what it costs. Lists follow `Doctor.concurrency`.

    ``tok_s`` is with the change, ``tok_s_now`` without; ``at`` is the concurrency where the change is worth most.
    """

    name: str
    what: str
    kind: str                           # start, repair, risk
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

    @property
    def gains(self) -> tuple[float, ...]:
        """Change of tok/s, at each concurrency."""
        return tuple(new - old for new, old in zip(self.tok_s, self.tok_s_now, strict=True))

    def to_dict(self, concurrency: tuple[float, ...]) -> dict[str, Any]:
        """Plain data; costs are what the launch loses as it is (for a risk: what it would lose)."""
        i = concurrency.index(self.at)
        sign = -1 if self.kind == "risk" else 1
        return {
            "name": self.name, "what": self.what, "kind": self.kind, "flag": self.flag,
            "changes": plain_changes(self.changes), "source": self.source, "at_concurrency": plain(self.at),
            "cost_tok_s": sign * self.gains[i],
            "cost_percent": 100 * sign * self.gains[i] / self.tok_s_now[i] if self.tok_s_now[i] else None,
            "cost_kv_tokens": sign * (self.kv_tokens - self.kv_tokens_now),
            "points": [{"concurrency": plain(c), "output_tok_s": new, "output_tok_s_now": old}
                       for c, new, old in zip(concurrency, self.tok_s, self.tok_s_now, strict=True)],
            "kv_tokens": self.kv_tokens, "kv_tokens_now": self.kv_tokens_now, "command": self.command,
            "notes": list(self.notes),
        }  # fmt: skip


def plain_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in changes.items()}


@dataclass(frozen=True, eq=False)
class Doctor:
    """The examination of one launch. ``curve`` and ``memory`` are of the launch as it is."""

    launch: Launch
    where: str
    deployment: Deployment
    memory: MemoryReport
    curve: ServingCurve
    concurrency: tuple[float, ...]
    findings: tuple[Finding, ...]
    not_asked: tuple[str, ...]          # proposals that the engine refuses or that do not fit
    differences: tuple[Difference, ...]
    assumptions: tuple[str, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """One entry: the launch as it was read, what is predicted, findings, and what a run showed."""
        launch = self.launch
        return [{
            **self.deployment.to_dict(), "launch": launch.line, "where": self.where,
            "unknown_flags": list(launch.unknown), "flag_warnings": list(launch.warnings),
            "not_modelled": list(launch.notes),
            "fits": self.memory.fits, "verdict": self.memory.verdict, "kv_tokens": self.memory.kv_tokens,
            "kv_tokens_total": self.memory.kv_tokens_total, "points": self.curve.points,
            "findings": [{"rank": rank, **finding.to_dict(self.concurrency)}
                         for rank, finding in enumerate(self.findings, start=1)],
            "not_asked": list(self.not_asked), "differences": [d.to_dict() for d in self.differences],
            "warnings": list(self.curve.warnings), "assumptions": list(self.assumptions),
        }]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Doctor {self.deployment.name}: {', '.join(f.name for f in self.findings) or 'nothing found'}>"


def doctor(
    command: str,
    log: str | None = None,
    *,
    node: str | Node,
    engine: str | None = None,
    model: str | ModelArch | None = None,
    metrics: str | None = None,
    benchmark: str | None = None,
    concurrency: Any = CONCURRENCY,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
    calibration: str | None = None,
    **keywords: Any,
) -> Doctor:
    """Examine a launch: ``command`` is its text, or the path of a unit, compose file, manifest or script with it.

    ``engine`` states the version (``sglang==0.5.10``), ``model`` the catalog's name where the command has another;
    ``keywords`` of `deploy` say what no flag does (``prompts``, ``patches``). ``log``, ``metrics`` (Prometheus text)
    and ``benchmark`` are paths of what a run left. Raises `NotACommand` where the text starts no server.
    """
    inputs, outputs = parse_lengths(input_tokens), parse_lengths(output_tokens)
    loads = _loads(concurrency)
    launch, where = launch_of(command, engine)
    arch = _model(launch, model)
    if not any(isinstance(mlp, Moe) for mlp in arch.mlp.values()):
        launch, where = launch_of(command, engine, moe=False)
    machine = node if isinstance(node, Node) else catalog.load_node(node)
    asked, notes = _keywords(launch, arch)
    version = launch.engine + (f"=={launch.version}" if launch.version else "")
    d = deploy(arch, node=machine, engine=version, calibration=calibration, **{**asked, **keywords})
    ask = Asker(d, loads, inputs, outputs, arrival, calibration)
    found, refused, assumed = _examine(ask, d)
    curve = predict(d, concurrency=loads, input_tokens=input_tokens, output_tokens=output_tokens, arrival=arrival)
    report = memory(d, hints=False)
    seen = differences(d, report, log=log, metrics=metrics, benchmark=benchmark, arrival=arrival)
    return Doctor(replace(launch, notes=(*launch.notes, *notes)), where, d, report, curve, loads, found, refused, seen,
                  (*assumed, *curve.assumptions))


def _loads(concurrency: Any) -> tuple[float, ...]:
    values = np.atleast_1d(np.asarray(concurrency, float))
    if values.ndim != 1 or not values.size or not np.all(np.isfinite(values)) or np.any(values < 1) or values.size > 64:
        raise BadInput(f"concurrency must be numbers of at least 1, not {concurrency!r}")
    return tuple(dict.fromkeys(float(c) for c in values))


def _model(launch: Launch, model: str | ModelArch | None) -> ModelArch:
    if isinstance(model, ModelArch):
        return model
    if not (model or launch.model):
        raise BadInput("the command names no model that can be looked up", ["say it with --model NAME"])
    return catalog.load_model(model or launch.model)


def _keywords(launch: Launch, arch: ModelArch) -> tuple[dict[str, Any], list[str]]:
    """Keywords of `deploy`; words that name what the checkpoint is anyway, or kernels not listed here, are dropped."""
    asked, notes = dict(launch.keywords), []
    word = str(asked.get("quantization") or "").lower()
    if word:
        name = arch.storage.get("experts") or arch.storage.get("dense") or arch.storage["default"]
        online = {"fp8": "fp8", "w8a8_int8": "int8", "mxfp4": "mxfp4", "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4"}
        if arch.formats[name].bits >= 16 and word in online:
            asked["quantization"] = online[word]
        else:
            del asked["quantization"]
            notes.append(f"--quantization {word[:40]}: the format of the model file ({name}) is taken")
    from perfmodel.engines import get

    backend, known = asked.get("attention_backend"), getattr(get(launch.engine)[0], "ATTENTION_PAGE", {})
    if backend is not None and known and str(backend).replace("-", "_") not in known:
        del asked["attention_backend"]
        notes.append(f"--attention-backend {str(backend)[:40]}: not known here; the engine's default is taken")
    return asked, notes


# ---------------------------------------------------------------- asking the model again


class Asker:
    """Asks the model about variants of one launch, each once. It holds the question; formulas live elsewhere."""

    def __init__(self, deployment: Deployment, loads: tuple[float, ...], inputs: Lengths, outputs: Lengths,
                 arrival: str | None, calibration: str | None) -> None:
        self.base, self.loads, self.inputs, self.outputs = deployment, loads, inputs, outputs
        self.arrival, self.calibration = arrival, calibration
        self._known: dict[Any, Any] = {}

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


def _examine(ask: Asker, d: Deployment) -> tuple[tuple[Finding, ...], tuple[str, ...], tuple[str, ...]]:
    """Findings by what they cost, proposals that were refused, and what was assumed for them."""
    report, start = ask.report(d), None
    notes: tuple[str, ...] = ()
    if not report.fits:
        start = _start(ask, d, report)
        if start is not None:
            ask = Asker(ask.variant(start.changes), ask.loads, ask.inputs, ask.outputs, ask.arrival, ask.calibration)
            notes = (f"the launch does not start ({report.verdict}); what follows is asked with "
                     + ", ".join(f"{k}={v}" for k, v in start.changes.items()),)
    base = ask.base
    needed = ask.inputs.mean + ask.outputs.mean
    arrival = ask.arrival or ("burst" if base.options.engine == "sglang" else "staggered")
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
    """Share of tok/s at the load where it matters most, then share of KV tokens."""
    speed = max(abs(g) / max(old, 1e-9) for g, old in zip(finding.gains, finding.tok_s_now, strict=True))
    if finding.kind == "repair":
        speed = max(0.0, max(g / max(old, 1e-9) for g, old in zip(finding.gains, finding.tok_s_now, strict=True)))
    more = abs(finding.kv_tokens - finding.kv_tokens_now) / max(finding.kv_tokens_now, 1)
    return (speed if speed >= LEAST_SPEED else 0.0, more)


def _start(ask: Asker, d: Deployment, report: MemoryReport) -> Finding | None:
    """A change that lets the launch start: the highest fraction that leaves some memory free, else also a shorter
    context, fewer sequences, FP8 KV."""
    now = d.options.memory_fraction or 0.0
    (low, high), step = _START
    fractions = [round(float(f), 3) for f in np.arange(low, high, step) if f > now]
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
    notes = _loses(ask.loads, shares, c) + _settings(ask.loads, c)
    flag = c.flag or flag_change(before[best], after[best])
    return Finding(c.name, c.what, c.kind, flag, changes, c.source, now, then,
                   ask.loads[best], kv_now, kv, after[best].command(), notes)


def _loses(loads: tuple[float, ...], shares: list[float], c: Candidate) -> tuple[str, ...]:
    worse = [f"{100 * share:+.0f} % at C={load:g}" for load, share in zip(loads, shares, strict=True)
             if share < -LEAST_SPEED]
    return (f"it loses elsewhere: {', '.join(worse)}",) if worse and c.kind != "risk" else ()


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
