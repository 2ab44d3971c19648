"""nccl-tests tables -> start-up, step and bus bandwidth of every protocol: of a node, or of a class of links.

The times are linear in these figures: a fit is a non-negative least squares on relative error, outliers weighted down.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.catalog import AllReduce, Node, load_accelerator
from perfmodel.errors import BadInput
from perfmodel.placement.links import Links, links_for
from perfmodel.placement.protocols import RING_OPS
from perfmodel.step.communication import nccl_choice
from perfmodel.units import si

ZONES = ("LL", "LL128", "Simple")
LL_REACHES = 2.0**16         # NCCL runs LL at least so far; a curve that falls below that is noise [B]
LEAST = 3                   # rows of a zone
OUTLIER = 0.1               # relative error beyond which a row counts less
NOISE = 0.02                # relative error of a sound measurement
SPIKE = 1.4                 # times both neighbours: noise, since no switch of NCCL lets the time fall that far
PLAIN = {"collective_latency_factor": 1.0, "collective_bandwidth_factor": 1.0}


@dataclass(frozen=True, eq=False)
class Table:
    """One measured curve: an operation over ``ranks`` GPUs, in B and s."""

    op: str
    ranks: int
    message_bytes: np.ndarray
    seconds: np.ndarray
    name: str = ""

    @classmethod
    def of(cls, parsed: Any, op: str = "", ranks: int | None = None) -> Table:
        """From what `parse_nccl_tests` read, out of place; ``op`` and ``ranks`` where the text does not say."""
        op, ranks = op or parsed.op, ranks or parsed.ranks
        if not op or not ranks:
            raise BadInput("the output of nccl-tests does not say which operation or how many ranks; give op and ranks")
        rows = [(row.message_bytes, row.out_of_place_s) for row in parsed.rows if row.out_of_place_s]
        if not rows:
            raise BadInput("the output of nccl-tests has no time out of place")
        sizes, seconds = np.asarray(rows, float).T
        return cls(op, int(ranks), sizes, seconds, f"{op} {ranks}")


@dataclass(frozen=True, eq=False)
class Fitted:
    """Figures in the words of a node file, and how far they miss the rows that they were fitted to."""

    figures: AllReduce
    errors: dict[str, np.ndarray] = field(default_factory=dict)     # of every table: predicted / measured - 1

    @property
    def median_error(self) -> float:
        """Over all rows. [1]"""
        return float(np.median(np.abs(np.concatenate(list(self.errors.values())))))

    @property
    def error_p90(self) -> float:
        """Over all rows. [1]"""
        return float(np.percentile(np.abs(np.concatenate(list(self.errors.values()))), 90))

    def yaml(self, name: str = "own") -> str:
        """The `collectives` of a node file; its `sources` must name what the figures name."""
        import yaml

        body = compact(self.figures.model_dump(exclude_none=True, exclude_defaults=True))
        note = f"median error {self.median_error:.1%}, 90th percentile {self.error_p90:.1%}"
        variants = {name: {"note": note, **body}}
        return yaml.safe_dump({"collectives": {"default": name, "variants": variants}}, sort_keys=False, width=120)

    def report(self) -> str:
        """One line a table."""
        lines = [f"{'table':34}{'rows':>6}{'error':>8}{'p90':>7}"]
        for name, error in self.errors.items():
            miss = np.abs(error)
            lines.append(
                f"{name[:33]:34}{len(error):6}{100 * np.median(miss):7.1f}%{100 * np.percentile(miss, 90):6.1f}%"
            )
        return "\n".join(
            [*lines, f"all: median {100 * self.median_error:.1f} %, 90th percentile {100 * self.error_p90:.1f} %"]
        )


def steps_of(op: str, ranks: int) -> int:
    """Steps that add a latency each. [1]"""
    return {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(op, ranks - 1)


def factor_of(op: str, ranks: int) -> float:
    """Share of the message that a bus bandwidth counts, as nccl-tests defines it. [1]"""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "send_recv": 1.0}.get(op, (ranks - 1) / ranks)


def fit_node(tables: Sequence[Table], node: Node, source: str = "own") -> Fitted:
    """Figures of a node from its own nccl-tests runs: every operation by itself, in three zones of message size."""
    if not tables:
        raise BadInput("no table to fit")
    by_op: dict[str, list[Table]] = {}
    for table in tables:
        if not 2 <= table.ranks <= node.count:
            raise BadInput(f"a table over {table.ranks} ranks does not fit {node.name} with {node.count} GPUs")
        by_op.setdefault(table.op, []).append(_without_spikes(table))
    parts = {op: _zones(op, found) for op, found in by_op.items()}
    _share_a_step(parts, {t.ranks for t in tables})
    main = parts.pop("all_reduce", None) or next(iter(parts.values()))
    raw = _write(main, source) | ({"ops": {op: _write(part, source) for op, part in parts.items()}} if parts else {})
    figures = AllReduce.model_validate(raw)
    links = links_for(node, load_accelerator(node.accelerator), figures=figures)
    return Fitted(figures, {t.name or f"{t.op} {t.ranks}": _errors(t, links) for t in tables})


def _without_spikes(table: Table) -> Table:
    """The same curve without single rows that stand out; the errors that are reported are over all rows."""
    order = np.argsort(table.message_bytes)
    t = table.seconds[order]
    kept = np.ones(len(t), bool)
    kept[1:-1] = t[1:-1] < SPIKE * np.maximum(t[:-2], t[2:])
    return Table(table.op, table.ranks, table.message_bytes[order][kept], t[kept], table.name)


def _share_a_step(parts: dict[str, _Part], groups: set[int]) -> None:
    """One size of group cannot tell start-up from steps; but an all-reduce has twice the steps of a gather."""
    half = next((op for op in ("all_gather", "reduce_scatter") if op in parts), None)
    if len(groups) > 1 or half is None or "all_reduce" not in parts:
        return
    ranks = next(iter(groups))
    whole = parts["all_reduce"].starts["LL"][0]
    step = max(0.0, (whole - parts[half].starts["LL"][0]) / (steps_of("all_reduce", ranks) - steps_of(half, ranks)))
    for op in set(parts) & set(RING_OPS):
        count = steps_of(op, ranks)
        for name, (start, _) in parts[op].starts.items():
            own = min(step, 0.9 * start / count)
            parts[op].starts[name] = start - count * own, own


def _errors(table: Table, links: Links) -> np.ndarray:
    priced = nccl_choice(table.op, table.message_bytes, table.ranks, links, PLAIN)[2]
    return np.asarray(priced / table.seconds - 1)


# ---------------------------------------------------------------- zones of one operation

@dataclass(frozen=True)
class _Part:
    """Figures of one operation; ``until`` closes the first zones."""

    starts: dict[str, tuple[float, float]]              # zone -> base, step [s]
    widths: dict[str, dict[int, float]]                 # zone -> ranks -> bus bandwidth [B/s]
    until: dict[str, float]
    copy: float | None = None


def _zones(op: str, tables: Sequence[Table], most: int = 3) -> _Part:
    """Where all curves of an operation are best broken in at most three; straight lines in each zone."""
    sizes = np.unique(np.concatenate([t.message_bytes for t in tables]))
    count = min(most, max(1, len(sizes) // LEAST))
    best: tuple[float, tuple[int, ...]] | None = None
    solved: dict[tuple[int, int], Any] = {}

    def zone(a: int, b: int) -> Any:
        if (a, b) not in solved:
            solved[a, b] = _lines(op, [_within(t, sizes[a], sizes[b - 1]) for t in tables])
        return solved[a, b]

    for cuts in itertools.combinations(range(LEAST, len(sizes) - LEAST + 1), count - 1):
        bounds = (0, *cuts, len(sizes))
        if any(b - a < LEAST for a, b in itertools.pairwise(bounds)):
            continue
        found = [zone(a, b) for a, b in itertools.pairwise(bounds)]
        if all(found) and not any(_drops(op, tables, sizes[b - 1], low, high)
                                  for b, low, high in zip(bounds[1:-1], found[:-1], found[1:], strict=True)):
            error = sum(f[-1] for f in found)
            if best is None or error < best[0]:
                best = error, cuts
    if best is None and count > 1 and most > 1:
        return _zones(op, tables, count - 1)
    if best is None:
        raise BadInput(f"the {op} tables hold too few message sizes to fit: {len(sizes)}")
    bounds = (0, *best[1], len(sizes))
    names = ZONES if count == 3 else ("LL", "Simple") if count == 2 else ("LL",)
    found = [zone(a, b) for a, b in itertools.pairwise(bounds)]
    return _Part(
        {n: f[0] for n, f in zip(names, found, strict=True)},
        {n: f[1] for n, f in zip(names, found, strict=True)},
        {n: float(sizes[b - 1]) for n, b in zip(names[:-1], bounds[1:-1], strict=True)},
    )


def _drops(op: str, tables: Sequence[Table], cut: float, low: Any, high: Any) -> bool:
    """Whether the lines fall at a cut where the measured curve does not: NCCL's own choices may, noise may not."""
    for t in tables:
        known = {
            r: [zone[0][0] + steps_of(op, r) * zone[0][1] + factor_of(op, r) * cut / zone[1][r] for zone in (low, high)]
            for r in (t.ranks,)
            if r in low[1] and r in high[1]
        }
        above = t.seconds[t.message_bytes > cut]
        below = t.seconds[t.message_bytes <= cut]
        measured = (op in RING_OPS and cut >= LL_REACHES and len(above) > 0 and len(below) > 0
                    and above[0] < (1 - OUTLIER) * below[-1])
        slack = NOISE if op in RING_OPS else 1e-9           # NCCL keeps limits for a ring's operations alone
        if any(b < a * (1 - slack) for a, b in known.values()) and not measured:
            return True
    return False


def _within(table: Table, low: float, high: float) -> Table:
    inside = (table.message_bytes >= low) & (table.message_bytes <= high)
    return Table(table.op, table.ranks, table.message_bytes[inside], table.seconds[inside], table.name)


def _lines(op: str, tables: Iterable[Table]) -> tuple[tuple[float, float], dict[int, float], float] | None:
    """Base, step and a bandwidth for each size of group, and the loss; None where there are too few rows."""
    rows = [(t.ranks, n, s, 1.0) for t in tables for n, s in zip(t.message_bytes, t.seconds, strict=True)]
    ranks = sorted({row[0] for row in rows})
    if any(sum(row[0] == group for row in rows) < 2 for group in ranks) or not ranks:
        return None
    design = np.array([_line(op, r, n, ranks, 1.0) for r, n, _, _ in rows])
    solution, loss = _solve(design, np.array([row[2] for row in rows]), steps=len(ranks) > 1)
    solution[2:] = np.maximum(solution[2:], 1e-12)       # a flat zone: no bus bandwidth above 1 TB/s is written
    return (solution[0], solution[1]), {r: 1 / solution[2 + i] for i, r in enumerate(ranks)}, loss


def _line(op: str, ranks: int, size: float, groups: Sequence[int], scale: float) -> list[float]:
    widths = [factor_of(op, ranks) * size / scale if ranks == group else 0.0 for group in groups]
    return [1.0, float(steps_of(op, ranks)), *widths]


def _solve(design: np.ndarray, seconds: np.ndarray, steps: bool = True) -> tuple[np.ndarray, float]:
    """Non-negative least squares on relative error, a few times with outliers weighted down; solution and loss."""
    from scipy.optimize import nnls

    relative = design / seconds[:, None]
    if not steps:
        relative = np.delete(relative, 1, axis=1)
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    weight = np.ones(len(seconds))
    for _ in range(6):
        found, _ = nnls(relative / scale * weight[:, None], weight)
        miss = relative @ (found / scale) - 1
        weight = 1 / np.sqrt(1 + (miss / OUTLIER) ** 2) ** 0.5
    loss = float(np.sum(2 * OUTLIER**2 * (np.sqrt(1 + (miss / OUTLIER) ** 2) - 1)))
    found = found / scale
    return (found if steps else np.insert(found, 1, 0.0)), loss


# ---------------------------------------------------------------- class of links

def fit_class(tables: Sequence[tuple[Table, Links]], bandwidth_Bps: float, source: str) -> Fitted:
    """Figures of a class of links from tables on several nodes, in the protocols that NCCL's own tuning says it ran.

    Bandwidths are those where the links carry ``bandwidth_Bps``. All-reduce, gather and scatter share one ring.
    """
    ring = [(t, links) for t, links in tables if t.op in RING_OPS]
    part = _ring(ring, bandwidth_Bps)
    others: dict[str, list[Table]] = {}
    for t, links in tables:
        if t.op not in RING_OPS:
            scale = _rate(t.op, t.ranks, links) / bandwidth_Bps
            others.setdefault(t.op, []).append(Table(t.op, t.ranks, t.message_bytes / scale, t.seconds, t.name))
    raw = _write(part, source)
    if others:
        raw["ops"] = {op: _write(_zones(op, found), source) for op, found in others.items()}
    return Fitted(AllReduce.model_validate(raw))


def _rate(op: str, ranks: int, links: Links) -> float:
    gpus = links.gpus(ranks)
    return links.graph.exchange_Bps(gpus) if op == "all_to_all" else links.graph.ring_Bps(gpus)


def _ring(tables: Sequence[tuple[Table, Links]], bandwidth_Bps: float) -> _Part:
    starts, widths, copy = {}, {}, None
    rows: dict[str, list[tuple[str, int, float, float, float]]] = {}
    for t, links in tables:
        scale = _rate(t.op, t.ranks, links) / bandwidth_Bps
        for name, size, seconds in zip(
            links.chosen(t.op, t.ranks, t.message_bytes), t.message_bytes, t.seconds, strict=True
        ):
            rows.setdefault(name, []).append((t.op, t.ranks, size, seconds, scale))
    for name, found in rows.items():
        groups = sorted({row[1] for row in found})
        design = np.array([[*_line(op, r, n, groups, scale),
                            n / r if op != "all_reduce" and name == "Simple" else 0.0]
                           for op, r, n, _, scale in found])
        nvls = name == "NVLS"
        solution, _ = _solve(design, np.array([row[3] for row in found]), steps=not nvls)
        starts[name] = solution[0], solution[1]
        widths[name] = {r: 1 / solution[2 + i] for i, r in enumerate(groups) if solution[2 + i] > 0}
        if name == "Simple" and solution[-1] > 0:
            copy = 1 / float(solution[-1])
    return _Part(starts, widths, {}, copy)


# ---------------------------------------------------------------- text

def _write(part: _Part, source: str) -> dict[str, Any]:
    """A part in the words of a node file."""
    def figure(value: float, unit: str) -> dict[str, Any]:
        return {"value": si(value, unit, 4), "kind": "derived", "source": source}

    raw: dict[str, Any] = {}
    all_groups = sorted({r for found in part.widths.values() for r in found})
    for name, (base, step) in part.starts.items():
        prefix = {"LL": "", "LL128": "ll128_", "Simple": "simple_", "NVLS": "nvls_"}[name]
        raw[f"{prefix}base_s"] = figure(base, "s")
        if name != "NVLS":
            raw[f"{prefix}hop_s"] = figure(step, "s")
        raw[f"{name.lower()}_busbw"] = figure(part.widths[name][max(part.widths[name])], "B/s")
        if name in part.until:
            raw[f"{name.lower()}_until"] = {"value": f"{part.until[name]:.0f} B", "kind": "derived", "source": source}
    if "Simple" not in part.starts:             # one zone: the schema wants both ends of the curve
        raw |= {"simple_base_s": raw["base_s"], "simple_hop_s": raw["hop_s"], "simple_busbw": raw["ll_busbw"]}
    if part.copy is not None:
        raw["copy_rate"] = figure(part.copy, "B/s")
    groups = {
        str(r): {f"{name.lower()}_busbw": figure(found[r], "B/s") for name, found in part.widths.items() if r in found}
        for r in all_groups[:-1]
    }
    return raw | ({"by_ranks": groups} if groups else {})


def compact(item: Any, key: str = "") -> Any:
    """Figures back in the words of a file: numbers with their unit."""
    if isinstance(item, dict) and isinstance(item.get("value"), float):
        unit = "s" if key.endswith("_s") else "B" if key.endswith("_until") else "B/s"
        return {**item, "value": f"{item['value']:.0f} B" if unit == "B" else si(item["value"], unit, 4)}
    if isinstance(item, dict):
        return {str(name): compact(value, str(name)) for name, value in item.items()}
    return item
