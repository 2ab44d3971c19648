"""Measured all-reduce times -> the figures of a node file: start-up, ring step and bus bandwidth of three protocols.

NCCL changes its protocol with the size of the message, so the curve is broken in three; the formula is that of
`costs.collectives.ring_all_reduce_s`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from perfmodel.costs.collectives import ring_all_reduce_s
from perfmodel.probe.journal import Record
from perfmodel.probe.nccl_tests import bus_factor
from perfmodel.units import si

LEAST_POINTS = 3            # of a protocol; three of them need nine sizes
FLAT = 1e-15                # [s/B] that nothing is slower than: 1 PB/s
PROTOCOLS = ("ll", "ll128", "simple")

Line = tuple[float, float]  # start-up of this group [s], bus bandwidth [B/s]


def all_reduce_figures(records: Iterable[Record], transport: str, mode: str,
                       ranks_of_node: int) -> dict[str, Any] | None:
    """The `AllReduce` of a node file for what was measured inside CUDA graphs; None where too little was."""
    curves: dict[int, list[tuple[int, float]]] = {}
    for r in records:
        if (r.task.table, r.task.mode, r.task.transport) == ("all_reduce", mode, transport):
            curves.setdefault(r.task.gpus, []).append((r.task.message_bytes, r.us / 1e6))
    if len(curves.get(ranks_of_node, ())) < LEAST_POINTS * len(PROTOCOLS):
        return None
    table = {ranks: np.array(sorted(points)) for ranks, points in curves.items()}
    cuts = _cuts(table[ranks_of_node], ranks_of_node)
    if cuts is None:
        return None
    until = [table[ranks_of_node][cut - 1, 0] for cut in cuts]
    lines = {ranks: found for ranks, points in table.items() if (found := _lines(points, ranks, _split(points, until)))}
    starts = {name: _base_and_hop({ranks: line[i][0] for ranks, line in lines.items()})
              for i, name in enumerate(PROTOCOLS)}
    return _descriptor(lines, starts, until, ranks_of_node, _errors(table, lines, until))


def _cuts(points: np.ndarray, ranks: int) -> tuple[int, int] | None:
    """Where the curve is best broken in three, by relative error."""
    best: tuple[float, tuple[int, int]] | None = None
    for cuts in itertools.combinations(range(LEAST_POINTS, len(points) - LEAST_POINTS + 1), 2):
        if cuts[1] - cuts[0] < LEAST_POINTS:
            continue
        lines = _lines(points, ranks, cuts)
        if lines:
            error = sum(float(np.sum(np.log(_times(part[:, 0], ranks, line) / part[:, 1]) ** 2))
                        for part, line in zip(_parts(points, cuts), lines, strict=True))
            if best is None or error < best[0]:
                best = error, cuts
    return best[1] if best else None


def _split(points: np.ndarray, until: list[float]) -> tuple[int, int]:
    low, high = (int(np.searchsorted(points[:, 0], limit, side="right")) for limit in until)
    return low, high


def _parts(points: np.ndarray, cuts: tuple[int, int]) -> list[np.ndarray]:
    return [points[: cuts[0]], points[cuts[0]: cuts[1]], points[cuts[1]:]]


def _lines(points: np.ndarray, ranks: int, cuts: tuple[int, int]) -> list[Line] | None:
    """A line through each part, by least squares on relative error; None where one has no start-up."""
    found = []
    for part in _parts(points, cuts):
        if len(part) < 2:
            return None
        size, time = part[:, 0], part[:, 1]
        design = np.stack([np.ones_like(size), bus_factor("all_reduce", ranks) * size], axis=1) / time[:, None]
        (start, per_byte), *_ = np.linalg.lstsq(design, np.ones_like(size), rcond=None)
        if per_byte < FLAT:                             # noise hides the slope of the smallest messages
            start, per_byte = 1 / np.mean(1 / time), FLAT
        if start <= 0:
            return None
        found.append((float(start), float(1 / per_byte)))
    return found


def _times(size: np.ndarray, ranks: int, line: Line) -> np.ndarray:
    return np.asarray(ring_all_reduce_s(size, ranks, line[0], 0.0, line[1]))


def _errors(table: dict[int, np.ndarray], lines: dict[int, list[Line]], until: list[float]) -> np.ndarray:
    """Relative errors of the lines on the points that they were drawn through."""
    return np.concatenate([
        np.abs(_times(part[:, 0], ranks, line) / part[:, 1] - 1)
        for ranks, found in lines.items()
        for part, line in zip(_parts(table[ranks], _split(table[ranks], until)), found, strict=True)])


def _base_and_hop(starts: dict[int, float]) -> tuple[float, float]:
    """Start-up that all groups share, and what each step of the ring adds; one size of group cannot tell them apart."""
    steps = np.array([2.0 * (ranks - 1) for ranks in starts])
    times = np.array(list(starts.values()))
    if len(starts) < 2:
        return float(times[0]), 0.0
    (base, hop), *_ = np.linalg.lstsq(np.stack([np.ones_like(steps), steps], axis=1), times, rcond=None)
    if hop < 0:
        return float(np.mean(times)), 0.0
    return (float(base), float(hop)) if base > 0 else (0.0, float(np.sum(steps * times) / np.sum(steps**2)))


def _descriptor(lines: dict[int, list[Line]], starts: dict[str, tuple[float, float]], until: list[float], ranks: int,
                errors: np.ndarray) -> dict[str, Any]:
    def figure(value: float, unit: str) -> dict[str, Any]:
        return {"value": si(value, unit, 4), "kind": "derived", "source": "probe"}

    groups = ", ".join(map(str, sorted(lines)))
    note = (f"least squares on relative error over {len(errors)} rows ({groups} GPUs, in CUDA graphs) in three zones; "
            f"median error {np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}. Zones are where "
            "the curve bends, not protocols that were read from NCCL")
    if len(lines) < 2:
        note += "; one size of group cannot tell start-up and ring step apart, all is start-up"
    raw: dict[str, Any] = {"note": note}
    for i, name in enumerate(PROTOCOLS):
        prefix = "" if name == "ll" else f"{name}_"
        raw[f"{prefix}base_s"] = figure(starts[name][0], "s")
        raw[f"{prefix}hop_s"] = figure(starts[name][1], "s")
        raw[f"{name}_busbw"] = figure(lines[ranks][i][1], "B/s")
        if name != "simple":
            raw[f"{name}_until"] = {"value": f"{until[i]:.0f} B", "kind": "derived", "source": "probe"}
    others = {str(other): {f"{name}_busbw": figure(line[i][1], "B/s") for i, name in enumerate(PROTOCOLS)}
              for other, line in lines.items() if other != ranks}
    return raw | ({"by_ranks": others} if others else {})
