"""A start-up log beside the memory answer, term by term, and the term that differs most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from perfmodel.engines.logs import LaunchLog
from perfmodel.step import MemoryReport

GIB = 2.0**30
OUTSIDE = ("kernels", "fused and symmetric", "NCCL", "custom all-reduce")


@dataclass(frozen=True, slots=True)
class Term:
    """One figure of the log and ours, in GiB, tokens or sequences."""

    name: str
    logged: float
    predicted: float
    unit: str

    @property
    def difference(self) -> float:
        """Predicted minus logged, in the unit of the term."""
        return self.predicted - self.logged


def terms(report: MemoryReport, log: LaunchLog) -> tuple[Term, ...]:
    """Every term that the log states, in the order in which memory is spent; of the rank that binds."""
    stage = report.binding_rank // report.deployment.options.tp
    rows = report.pool.rows[stage]
    options, total = report.deployment.options, report.deployment.facts.gpu_memory_bytes
    weights = float(report.placement.weights_bytes.max())

    def named(*words: str) -> float:
        return sum(row.bytes for row in rows if any(word in row.name for word in words)) / GIB

    start = (total - sum(row.bytes for row in rows if row.when == "baseline")) / GIB
    pool = report.pool.pool_bytes[stage] / GIB
    offered = min(report.pool.available_bytes) / GIB
    outside = sum(row.bytes for row in rows if row.when == "budget" and row.name.startswith(OUTSIDE)) / GIB
    activations = named("activation peak", "sampler peak", "MoE workspace", "encoder outputs")
    found = (
        ("memory of the GPU", log.total_gib, total / GIB, "GiB"),
        ("memory fraction", log.fraction, options.memory_fraction, ""),
        ("free before weights", log.before_weights_gib, start, "GiB"),
        ("weights", log.weights_gib, weights / GIB, "GiB"),
        ("free after weights", log.after_weights_gib, start - weights / GIB, "GiB"),
        ("activation peak", log.activation_gib, activations, "GiB"),
        ("outside of PyTorch", log.non_torch_gib, outside, "GiB"),
        ("memory for KV", log.kv_available_gib, pool if options.engine == "sglang" else offered, "GiB"),
        ("KV tokens", log.kv_tokens, float(report.kv_tokens), "tokens"),
        ("sequences of full length", log.concurrency, _sequences(report), ""),
        ("CUDA graphs", log.graph_gib, named("CUDA graphs", "graph index", "graph static"), "GiB"),
        ("free at the end", log.free_gib, report.pool.free_bytes[stage] / GIB + named("prefill", "sampler"), "GiB"),
    )
    return tuple(Term(name, float(logged), float(predicted), unit)
                 for name, logged, predicted, unit in found if logged is not None and predicted is not None)


def _sequences(report: MemoryReport) -> float:
    context = report.deployment.options.context or report.deployment.facts.max_context
    pool = report.pool
    return pool.sequences if pool.sequences is not None else pool.tokens / context


def culprit(found: tuple[Term, ...]) -> Term | None:
    """The term of memory, before the pool, that differs most; None where none differs by a tenth of a GiB."""
    causes = [term for term in found if term.unit == "GiB" and term.name not in (
        "memory for KV", "free at the end", "free after weights")]
    worst = max(causes, key=lambda term: abs(term.difference), default=None)
    return worst if worst is not None and abs(worst.difference) >= 0.1 else None


@dataclass(frozen=True, eq=False)
class Beside:
    """A prediction and a log."""

    report: MemoryReport
    log: LaunchLog

    def to_dict(self) -> dict[str, Any]:
        """The memory answer, with the terms of the log under ``log``."""
        found = terms(self.report, self.log)
        worst = culprit(found)
        beside = {"engine": self.log.engine, "version": self.log.version, "errors": list(self.log.errors),
                  "differs_most": worst.name if worst else None,
                  "terms": [asdict(term) for term in found]}
        return {**self.report.to_dict(), "log": beside}

    def text(self) -> str:
        """A table of at most 80 columns: logged, predicted, difference."""
        return _text(terms(self.report, self.log), self.log)


def _text(found: tuple[Term, ...], log: LaunchLog) -> str:
    title = " ".join(word for word in ("log of", log.engine or "an unknown engine", log.version) if word)
    lines = [f"{title:34}{'logged':>14}{'predicted':>14}{'difference':>14}"]
    for term in found:
        digits = 0 if term.unit == "tokens" else 2
        lines.append(f"{term.name + (' [GiB]' if term.unit == 'GiB' else ''):34}{term.logged:14,.{digits}f}"
                     f"{term.predicted:14,.{digits}f}{term.difference:+14,.{digits}f}")
    if not found:
        lines.append("the log states no figure of memory")
    worst = culprit(found)
    if worst is not None:
        lines.append(f"most of the difference: {worst.name}, {worst.difference:+.2f} GiB")
    elif found:
        lines.append("no term differs by more than 0.1 GiB")
    return "\n".join([*lines, *(f"the log says: {text}" for text in log.errors[:5])])
