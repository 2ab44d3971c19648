"""Where one way of an all-reduce overtakes another: measured curves against predicted ones."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from perfmodel.insight import interconnect
from perfmodel.insight.observed import Series
from perfmodel.placement import Links, links_of
from perfmodel.placement.protocols import RING_OPS

# Sweeps of a kernel that skips NCCL, and of NCCL on the same GPUs.
PAIRS = (
    ("asus/x4-one-shot", "asus/x4"), ("cpayne/x4-one-shot", "cpayne/x4"), ("luke/one-shot", "luke/nccl"),
    ("vllm-37756/custom-one-shot", "vllm-37756/pynccl"), ("vllm-37756/multimem", "vllm-37756/pynccl"),
    ("vllm-37756/symm-mem-two-shot", "vllm-37756/pynccl"), ("vllm-42324/multimem", "vllm-42324/pynccl"),
    ("vllm-42324/two-shot", "vllm-42324/pynccl"),
)  # fmt: skip
STEEP, FLATTER = 0.5, 0.6       # a curve that grew with at least this power of the size, then with this share of it
LL_REACHES = 2.0**16            # NCCL runs LL at least so far; a kink below is noise [B]
APART = 4.0                     # a predicted switch farther than this factor is another one
PLAIN = {"collective_latency_factor": 1.0, "collective_bandwidth_factor": 1.0}


@dataclass(frozen=True, slots=True)
class Crossover:
    """Message size at which two curves meet, measured and predicted; null where the prediction has none. [B]"""

    name: str
    use: str
    measured_bytes: float
    predicted_bytes: float | None

    @property
    def factor(self) -> float:
        """How far apart they are, at least 1; infinite where none is predicted."""
        if self.predicted_bytes is None:
            return math.inf
        return math.exp(abs(math.log(self.predicted_bytes / self.measured_bytes)))


def crossovers() -> tuple[Crossover, ...]:
    """Of the pairs of curves, and of NCCL's protocols within one curve."""
    curves = {s.rows[0].sweep.split(" ", 1)[1]: s for s in interconnect.series()}
    rows = interconnect.rows_by_sweep()
    sizes = {name: np.array([float(row["message_bytes"]) for row in found]) for name, found in rows.items()}
    found = [_between(kernel, nccl, curves, sizes) for kernel, nccl in PAIRS]
    for name, series in curves.items():
        first = rows[name][0]
        if first["backend"] in interconnect.PLAIN and first["mode"] == "graph" and first["table"] in RING_OPS:
            found += _within(name, series, rows[name])
    return tuple(one for one in found if one is not None)


def meet(sizes: np.ndarray, first: np.ndarray, second: np.ndarray) -> float | None:
    """Where the second curve becomes the lower one for good, on straight lines between logarithms.

    >>> round(meet(np.array([1.0, 4.0]), np.array([1.0, 4.0]), np.array([2.0, 2.0])), 2)
    2.0
    """
    gap = np.log(second / first)
    last = np.flatnonzero(gap > 0)
    if not len(last) or last[-1] == len(gap) - 1:
        return None
    i = int(last[-1])
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(np.exp((1 - part) * np.log(sizes[i]) + part * np.log(sizes[i + 1])))


def kinks(sizes: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Where a steep curve turns flat, as it does when a wider protocol takes over: the lines on both sides meet there.

    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> [round(x / 1024) for x in kinks(sizes, np.minimum(1.0 + sizes / 1024, 30.0 + sizes / 16384))]
    [32]
    """
    power = np.diff(np.log(seconds)) / np.diff(np.log(sizes))
    found = []
    for i in range(1, len(sizes) - 2):
        if power[i - 1] < STEEP or power[i] > FLATTER * power[i - 1]:
            continue
        slope, later = ((seconds[j + 1] - seconds[j]) / (sizes[j + 1] - sizes[j]) for j in (i - 1, i + 1))
        start, next_start = seconds[i] - slope * sizes[i], seconds[i + 1] - later * sizes[i + 1]
        where = (next_start - start) / (slope - later) if slope > later else 0.0
        if sizes[i - 1] / 2 < where < sizes[i + 2]:
            found.append(float(where))
    return found


def _between(kernel: str, nccl: str, curves: dict[str, Series], sizes: dict[str, np.ndarray]) -> Crossover | None:
    common = np.intersect1d(sizes[kernel], sizes[nccl])
    measured, predicted = ([], [])
    for name in (kernel, nccl):
        index = [int(np.flatnonzero(sizes[name] == size)[0]) for size in common]
        measured.append(np.array([curves[name].rows[i].measured for i in index]))
        predicted.append(curves[name].seconds(PLAIN)[0][index])
    seen = meet(common, *measured)
    return None if seen is None else Crossover(f"{kernel} to NCCL", curves[nccl].rows[0].use, seen,
                                               meet(common, *predicted))


def _within(name: str, series: Series, rows: list[dict[str, str]]) -> list[Crossover]:
    sizes, op, ranks = np.array([float(row["message_bytes"]) for row in rows]), rows[0]["table"], int(rows[0]["gpus"])
    seen = [size for size in kinks(sizes, np.array([row.measured for row in series.rows])) if size >= LL_REACHES]
    ours = switches(op, ranks, links_of(interconnect.deployment_of(rows[0]))) if seen else []
    found = []
    for size in seen:
        near = [other for other in ours if 1 / APART < other / size < APART]
        nearest = min(near, key=lambda other: abs(math.log(other / size)), default=None)
        found.append(Crossover(f"{name} to a wider protocol", series.rows[0].use, size, nearest))
    return found


def switches(op: str, ranks: int, links: Links) -> list[float]:
    """Where one protocol gives way to the next: NCCL's limit, or where the lines meet if no limit is known. [B]"""
    found = []
    for p, q in itertools.pairwise(links.protocols(op, ranks)):
        (start, per_byte), (later, less) = p.line(op, ranks), q.line(op, ranks)
        if math.isfinite(p.until_bytes):
            found.append(p.until_bytes)
        elif later > start and per_byte > less:
            found.append((later - start) / (per_byte - less))
    return [size for size in found if size > 0]


def lines(found: tuple[Crossover, ...]) -> list[str]:
    """A table of at most 80 columns, and how many lie within a factor of 1.5."""
    rows = [f"{'crossover':52}{'use':6}{'measured':>10}{'predicted':>11}"]
    for one in found:
        ours = "none" if one.predicted_bytes is None else f"{one.predicted_bytes / 1024:.0f} KiB"
        rows.append(f"{one.name[:51]:52}{one.use:6}{one.measured_bytes / 1024:6.0f} KiB{ours:>11}")
    for use in ("check", "fit"):
        of_use = [one for one in found if one.use == use]
        near = sum(one.factor <= 1.5 for one in of_use)
        rows.append(f"{use}: {near} of {len(of_use)} within a factor of 1.5")
    return rows
