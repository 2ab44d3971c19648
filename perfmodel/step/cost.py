"""StepCost: what one decode step or one prefill takes, row by row, with its band."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, shown
from perfmodel.placement import Placement, place
from perfmodel.step import forward
from perfmodel.step.difference import LEARNT
from perfmodel.step.factors import factors_of
from perfmodel.step.memory import running_limit
from perfmodel.step.operations import Row, mapped
from perfmodel.step.slots import occupancy


@dataclass(frozen=True, eq=False)
class StepCost:
    """Seconds of a step with their band; ``rows`` add up to ``seconds``. Arrays have the shape of the question."""

    phase: str
    deployment: Deployment
    seconds: Any
    seconds_low: Any
    seconds_high: Any
    bound_by: Any
    rows: tuple[Row, ...]
    question: dict[str, Any]
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract."""
        shown = ("seconds", "flop", "bytes", "message_bytes", "kernels")
        rows = [
            {
                "name": row.name,
                **{name: plain(getattr(row, name)) for name in shown},
                "bound_by": plain(bound_of(row)),
                "source": source_of(row),
            }
            for row in self.rows
        ]
        return {
            **self.question,
            "seconds": plain(self.seconds),
            "seconds_low": plain(self.seconds_low),
            "seconds_high": plain(self.seconds_high),
            "bound_by": plain(self.bound_by),
            "rows": rows,
            "assumptions": list(self.assumptions),
        }

    def __repr__(self) -> str:
        seconds, words = np.ravel(self.seconds), np.ravel(np.asarray(self.bound_by, dtype=object))
        listed = ", ".join(f"{1e3 * s:.2f} ms ({w})" for s, w in zip(seconds[:6], words[:6], strict=True))
        return f"<StepCost {self.phase} {self.deployment.name}: {listed}{', ...' if len(seconds) > 6 else ''}>"


def plain(value: Any) -> Any:
    """Arrays to lists, NumPy scalars to Python's; what is not finite to None."""
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value.tolist()] if value.ndim else plain(value.item())
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def step(deployment: Deployment, *, batch: Any, context: Any = 1024, arrival: str | None = None) -> StepCost:
    """One decode step of ``batch`` running sequences of one engine copy with ``context`` cached tokens each.

    Arrays broadcast. With pipelining the result is the time from one token of a sequence to its next, and ``arrival``
    ("burst" or "staggered") says how the sequences fill the slots; the default is the engine's own way.
    """
    sequences, cached = _sizes("batch", batch, 1), _sizes("context", context, 0)
    shape = np.broadcast_shapes(sequences.shape, cached.shape)
    sequences, cached = np.broadcast_to(sequences, shape), np.broadcast_to(cached, shape)
    placement = place(deployment)
    slots = occupancy(deployment, sequences, running_limit(placement), arrival)
    notes: tuple[str, ...] = (f"pipeline slots filled by the rule {slots.rule!r}",) if placement.stages > 1 else ()
    held = float(np.max(np.sum(slots.batch * slots.count, axis=1)))
    if held < float(np.max(sequences)):
        notes += (f"the slots hold {held:g} sequences; a step of more is the step of these",)
    return _priced(
        "decode",
        placement,
        shape,
        {"batch": plain(sequences), "context": plain(cached)},
        notes,
        lambda factors: forward.decode(placement, sequences, cached, factors, slots),
    )


def prefill(deployment: Deployment, *, tokens: Any, context: Any = 0) -> StepCost:
    """A prefill of ``tokens`` new tokens of one prompt after ``context`` cached ones, chunked as the engine does."""
    new, cached = _sizes("tokens", tokens, 1), _sizes("context", context, 0)
    shape = np.broadcast_shapes(new.shape, cached.shape)
    new, cached = np.broadcast_to(new, shape), np.broadcast_to(cached, shape)
    placement = place(deployment)
    return _priced(
        "prefill",
        placement,
        shape,
        {"tokens": plain(new), "context": plain(cached)},
        (),
        lambda factors: forward.prefill(placement, new, cached, factors),
    )


def _priced(
    phase: str,
    placement: Placement,
    shape: tuple[int, ...],
    question: dict[str, Any],
    notes: tuple[str, ...],
    run: Callable[[dict[str, Any]], forward.Forward],
) -> StepCost:
    factors = factors_of(placement.deployment)
    priced = run(factors.draws(1 + len(shape)))
    point, low, high = factors.band(np.broadcast_to(priced.seconds, (len(priced.seconds), *shape)))
    rows = tuple(mapped(row, lambda value: scalar(first(value, shape))) for row in priced.rows)
    return StepCost(
        phase,
        placement.deployment,
        scalar(point),
        scalar(low),
        scalar(high),
        scalar(binds(rows, first(priced.host_s, shape), first(priced.device_s, shape), shape)),
        tuple(row for row in rows if np.any(row.seconds != 0)),
        question,
        (*placement.deployment.assumptions, *notes),
    )


def _sizes(name: str, value: Any, least: float) -> np.ndarray:
    """A finite array of sizes, or a refusal."""
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a number or a list of numbers, not {shown(value)}") from None
    if array.size == 0 or not np.all(np.isfinite(array)) or np.any(array < least) or np.any(array > 1e12):
        raise BadInput(f"{name} must be {least:g} or more and finite, not {shown(value)}")
    return array


def first(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The value at the calibrated factors, in the shape of the question."""
    value = np.asarray(value, float)
    return np.broadcast_to(value[0] if value.ndim > len(shape) else value, shape)


def scalar(value: Any) -> Any:
    """Scalars in, scalars out."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def bound_of(row: Row) -> Any:
    """What binds one row: its own word, else the largest of arithmetic, traffic and kernel start-up."""
    if row.bound:
        return row.bound
    parts = np.stack(np.broadcast_arrays(row.compute_s, row.memory_s, row.latency_s))
    words = np.array(["compute", "memory", "latency"], dtype=object)[np.argmax(parts, axis=0)]
    return scalar(words) if isinstance(words, np.ndarray) else words


def binds(rows: tuple[Row, ...], host_s: Any, device_s: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What binds a step: the host if it is slower than the device, else the kind with most seconds."""
    names = ("memory", "compute", "communication", "latency", "pipeline", "host")
    sums = np.zeros((len(names), *shape))
    for row in rows:
        word = bound_of(row)
        for i, name in enumerate(names):
            sums[i] += np.where(np.asarray(word, dtype=object) == name, row.seconds, 0.0)
    words = np.array(names, dtype=object)[np.argmax(sums, axis=0)]
    return np.where(np.asarray(host_s) > np.asarray(device_s), "host", np.asarray(words, dtype=object)).astype(object)


def source_of(row: Row) -> str:
    """Where the formula of a row lives."""
    if row.bound == "communication":
        return "costs/collectives.py"
    if row.bound == LEARNT:
        return "costs/difference.py"
    if row.bound in ("pipeline", "host"):
        return "costs/pipeline.py" if row.bound == "pipeline" else "costs/launch.py"
    if "experts" in row.name and "shared" not in row.name:
        return "costs/moe.py, costs/roofline.py"
    return "costs/attention.py, costs/roofline.py" if "attention" in row.name else "costs/gemm.py, costs/roofline.py"
