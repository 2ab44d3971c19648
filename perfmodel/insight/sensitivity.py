"""How a figure answers to each parameter of hardware and engine, its limits, and where two deployments change places.

All of it by asking the model again with something moved: nothing here knows a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, UnknownName, shown
from perfmodel.insight.variants import with_factors
from perfmodel.step import memory, step
from perfmodel.step.difference import LEARNT
from perfmodel.step.factors import NAMES

MOVE, LARGE, NONE_AT_ALL = 1.01, 1e9, 1e-12
AXES = ("concurrency", "context", "bandwidth", "links")
_NEGLIGIBLE = 1e-4          # elasticities below this are not listed
Figure = Callable[[Deployment], float]


@dataclass(frozen=True)
class Elasticity:
    """d ln y / d ln x of one parameter, and what +10 % of it does to the figure, asked and not extrapolated.

    ``moved`` is less than 0.1 where so much more is not possible: a memory fraction stops at the largest that fits.
    """

    name: str
    kind: str               # hardware, engine
    elasticity: float
    plus_ten_percent: float
    moved: float = 0.1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "kind": self.kind, "elasticity": self.elasticity,
                "plus_10_percent": 100 * self.plus_ten_percent, "moved_percent": 100 * self.moved}


def scaled_accelerator(d: Deployment, name: str, times: float) -> Deployment:
    """The deployment on an accelerator with one figure scaled: bandwidth, peak or sms."""
    gpu = d.accelerator
    if name == "bandwidth":
        wide = gpu.memory.bandwidth.model_copy(update={"value": float(gpu.memory.bandwidth) * times})
        return replace(d, accelerator=gpu.model_copy(update={"memory": gpu.memory.model_copy(
            update={"bandwidth": wide})}))
    if name == "peak":
        peak = {k: f.model_copy(update={"value": f.value * times}) if f.value else f for k, f in gpu.peak.items()}
        return replace(d, accelerator=gpu.model_copy(update={"peak": peak}))
    more = gpu.sms.model_copy(update={"value": float(gpu.sms) * times})
    return replace(d, accelerator=gpu.model_copy(update={"sms": more}))


def _scaled_memory(d: Deployment, times: float) -> Deployment:
    facts = replace(d.facts, gpu_memory_bytes=d.facts.gpu_memory_bytes * times,
                    driver_memory_bytes=d.facts.driver_memory_bytes * times)
    return replace(d, facts=facts)


def _scaled_fraction(d: Deployment, times: float) -> Deployment:
    return replace(d, options=replace(d.options, memory_fraction=(d.options.memory_fraction or 0.9) * times))


def _most(d: Deployment, name: str) -> float:
    """By how much a parameter can grow, up to +10 %: a memory fraction to the largest below 1 that fits."""
    if name != "memory_fraction":
        return 1.1
    low, high = 1.0, min(1.1, 1 / (d.options.memory_fraction or 0.9))
    if not memory(d, hints=False).fits or memory(_scaled_fraction(d, high), hints=False).fits:
        return high
    for _ in range(10):
        middle = (low + high) / 2
        fits = memory(_scaled_fraction(d, middle), hints=False).fits
        low, high = (middle, high) if fits else (low, middle)
    return low


def scaled_factor(d: Deployment, name: str, times: float) -> Deployment:
    value = d.calibration.parameters[name].value * times
    return with_factors(d, {name: min(value, 1.0) if name == "roofline_overlap" else value})


def parameters(d: Deployment) -> Iterator[tuple[str, str, Callable[[float], Deployment]]]:
    """Name, kind, and how to scale every parameter that a figure may answer to."""
    yield "memory bandwidth", "hardware", lambda times: scaled_accelerator(d, "bandwidth", times)
    yield "arithmetic peak", "hardware", lambda times: scaled_accelerator(d, "peak", times)
    yield "streaming multiprocessors", "hardware", lambda times: scaled_accelerator(d, "sms", times)
    yield "link bandwidth", "hardware", lambda times: scaled_factor(d, "collective_bandwidth_factor", times)
    yield "link latency", "hardware", lambda times: scaled_factor(d, "collective_latency_factor", times)
    yield "memory of a GPU", "hardware", lambda times: _scaled_memory(d, times)
    yield "memory_fraction", "engine", lambda times: _scaled_fraction(d, times)
    for name in NAMES:
        if name not in ("collective_bandwidth_factor", "collective_latency_factor"):
            yield name, "engine", lambda times, name=name: scaled_factor(d, name, times)      # type: ignore[misc]


def elasticities(d: Deployment, figure: Figure) -> tuple[Elasticity, ...]:
    """The figure's elasticity to every parameter that moves it, the strongest first."""
    base, found = figure(d), []
    if not base > 0:
        return ()
    for name, kind, scaled in parameters(d):
        most = _most(d, name)
        up, down = figure(scaled(min(MOVE, most))), figure(scaled(1 / MOVE))
        if up <= 0 or down <= 0 or up == down:
            continue
        slope = math.log(up / down) / (math.log(MOVE) + math.log(min(MOVE, most)))
        if abs(slope) > _NEGLIGIBLE:
            found.append(Elasticity(name, kind, slope, figure(scaled(most)) / base - 1, most - 1))
    return tuple(sorted(found, key=lambda e: -abs(e.elasticity)))


# ---------------------------------------------------------------- limits


def without_latency(d: Deployment) -> Deployment:
    """Kernels, links, host and hops that start at once; bytes and arithmetic as they are."""
    gone = ("kernel_s", "eager_kernel_s", "host_sequence_s", "step_fixed_s", "pipeline_hop_s", "micro_batch_s",
            "collective_latency_factor")
    return with_factors(d, dict.fromkeys(gone, NONE_AT_ALL))


def overlapped_s(d: Deployment, batch: float, context: float, arrival: str | None) -> float:
    """Seconds of a step in which arithmetic, memory traffic, communication and host all run side by side. [s]

    A lower bound of any schedule: the longest of the four. A pipeline keeps its hops and its queue.
    """
    cost = step(with_factors(d, {"roofline_overlap": 1.0}), batch=batch, context=context, arrival=arrival)
    sums = {"compute": 0.0, "memory": 0.0, "communication": 0.0, "host": 0.0, "pipeline": 0.0}
    learnt = sum(float(row.seconds) for row in cost.rows if row.bound == LEARNT)    # belongs to none of them
    device = exposed = 0.0
    for row in cost.rows:
        if row.bound in sums:
            sums[row.bound] += float(row.seconds)
        else:
            sums["compute"] += float(row.compute_s)
            sums["memory"] += float(row.memory_s)
        device += float(row.seconds) if row.bound not in ("host", "pipeline", LEARNT) else 0.0
        exposed += float(row.seconds) if row.name == "host launch not hidden" else 0.0
    if exposed > 0:             # the host takes as long as the device and what it hides, together
        sums["host"] += device
    return max(sums.values()) + learnt


def limits(d: Deployment, figure: Figure) -> dict[str, float]:
    """The figure where one thing is no obstacle any more."""
    return {
        "zero latency (kernels, links, host, hops)": figure(without_latency(d)),
        "infinite memory bandwidth": figure(scaled_accelerator(d, "bandwidth", LARGE)),
        "infinite arithmetic": figure(scaled_accelerator(d, "peak", LARGE)),
        "infinite link bandwidth": figure(scaled_factor(d, "collective_bandwidth_factor", LARGE)),
        "host at no cost": figure(with_factors(d, {"host_speed": NONE_AT_ALL, "host_sequence_s": NONE_AT_ALL})),
    }


# ---------------------------------------------------------------- break-even


@dataclass(frozen=True)
class BreakEven:
    """Where two deployments change places along one axis. ``crossings`` may be empty; ``proven`` says whether that, and
    all that lies between the crossings, is certain in the range."""

    axis: str
    low: float
    high: float
    crossings: tuple[float, ...]
    ahead_at_low: str
    ahead_at_high: str
    ratio_min: float        # first / second, over the range
    ratio_max: float
    proven: bool
    proof: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("axis", "low", "high", "crossings", "ahead_at_low", "ahead_at_high", "ratio_min", "ratio_max",
                 "proven", "proof")
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in names}


Rates = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def break_even(rates: Rates, axis: str, low: float, high: float, names: tuple[str, str]) -> BreakEven:
    """Where the first rate passes the second between ``low`` and ``high``.

    Concurrency is whole: every value is asked, so the answer is complete. Along context and bandwidths both rates are
    monotone (more work never takes less time), so an interval is settled when the rate of one at its worse end exceeds
    the rate of the other at its better end; intervals are halved until they are settled or a crossing is enclosed.
    """
    if axis not in AXES:
        raise UnknownName("axis of a break-even", axis, AXES)
    if not 0 < low < high <= 1e9:
        raise BadInput(f"a range needs 0 < low < high, not {shown(low)} to {shown(high)}")
    if axis in ("bandwidth", "links") and not 1e-3 <= low < high <= 1e3:
        raise BadInput(f"a range of {axis} is one of factors from 0.001 to 1,000, not {shown(low)} to {shown(high)}")
    if axis == "concurrency":
        if high - low > 20_000:
            raise BadInput("a range of concurrencies may have 20,000 values at most")
        grid = np.arange(math.ceil(low), math.floor(high) + 1.0)
        proof = f"all {grid.size:,} whole concurrencies were asked"
    else:
        grid, proof = np.geomspace(low, high, 33), ""
    first, second = rates(grid)
    ratio = first / np.maximum(second, 1e-300)
    sign = np.sign(np.where(np.abs(ratio - 1) < 1e-9, 0.0, ratio - 1))
    sign[sign == 0] = 1.0
    changes = np.nonzero(sign[1:] != sign[:-1])[0]
    proven = axis == "concurrency"
    crossings = [float(grid[i + 1]) for i in changes]
    if not proven and np.all(np.abs(ratio - 1) < 1e-9):
        proof = f"the two are equal on all {len(grid)} points, so that neither passes the other"
    elif not proven:
        crossings = [_refined(rates, float(grid[i]), float(grid[i + 1]), float(sign[i])) for i in changes]
        proven, proof = _settled(rates, grid, first, second, changes, rising=axis != "context")
    winner = [names[0] if s > 0 else names[1] for s in (sign[0], sign[-1])]
    return BreakEven(axis, float(grid[0]), float(grid[-1]), tuple(crossings), winner[0], winner[1], float(ratio.min()),
                     float(ratio.max()), proven, proof)


def _refined(rates: Rates, low: float, high: float, sign: float) -> float:
    for _ in range(40):
        middle = math.sqrt(low * high)
        first, second = rates(np.array([middle]))
        low, high = (middle, high) if (first[0] >= second[0]) == (sign > 0) else (low, middle)
    return math.sqrt(low * high)


def _settled(rates: Rates, grid: np.ndarray, first: np.ndarray, second: np.ndarray, changes: np.ndarray,
             rising: bool) -> tuple[bool, str]:
    """Whether every interval without a crossing is settled by its ends, halving up to eight times."""
    open_ones = [(float(grid[i]), float(grid[i + 1])) for i in range(len(grid) - 1) if i not in set(changes.tolist())]
    asked = len(grid)
    for _ in range(8):
        if not open_ones:
            return True, f"both rates are monotone; the ends of {asked} intervals leave no room for another crossing"
        ends = np.array(sorted({x for pair in open_ones for x in pair}))
        a, b = rates(ends)
        at = {x: (float(p), float(q)) for x, p, q in zip(ends.tolist(), a, b, strict=True)}
        left = []
        for low, high in open_ones:
            worse, better = (low, high) if rising else (high, low)
            if at[worse][0] >= at[better][1] or at[worse][1] >= at[better][0]:
                continue
            left += [(low, math.sqrt(low * high)), (math.sqrt(low * high), high)]
        if len(left) > 4_000:
            break
        open_ones, asked = left, asked + len(left)
    return False, f"none else on {asked} points; the rates are too close in places for a proof"
