"""How long N samples take: load, ramp, steady state, tail, failures; on one node or several; energy and money."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.costs.reliability import checkpointed_wall_s
from perfmodel.costs.serving import lived_tokens
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Infeasible, is_number, shown, whole
from perfmodel.planner.job_phases import MOST_NODES, Phases, Work, busy_nodes, phases_of, work_of
from perfmodel.planner.job_phases import SIMULATED as SIMULATED
from perfmodel.planner.job_power import Draw, draw_of
from perfmodel.planner.job_start import Start, positive, start_of
from perfmodel.step.factors import Z80
from perfmodel.step.memory import memory
from perfmodel.step.slots import arrival_of

AT_ONCE_S = 1.0  # work between two checkpoints where every finished answer is written by itself
# For the reader who has no rate of his own: 419 unexpected interruptions of 16,384 GPUs in 54 days of training
# (Llama 3, arXiv:2407.21783, section 3.3.4), as a rate of a node of eight GPUs.
LLAMA3_PER_NODE_HOUR = 419 / (54 * 24) / (16_384 / 8)


@dataclass(frozen=True, eq=False)
class Job:
    """The size of a job with its 80 % band; ``parts`` add up to the makespan."""

    deployment: Deployment
    samples: int
    nodes: int
    concurrency: float
    makespan_s: float
    makespan_s_low: float
    makespan_s_high: float
    output_tokens: float
    output_tok_s: float
    gpu_hours: float
    energy_kwh: float
    energy_kwh_low: float
    energy_kwh_high: float
    cost: float | None
    parts: dict[str, float]
    failures: float  # expected
    method: str
    assumptions: tuple[str, ...]
    phases: Phases = field(repr=False)
    work: Work = field(repr=False)
    effects: tuple[Any, ...] = ()  # what each factor does to the makespan, where that was asked

    @property
    def serving_from_s(self) -> float:
        """From the start of the job to its first request. [s]"""
        return self.parts["load_s"] + self.parts["warmup_s"]

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract, and the job over time."""
        names = (
            "samples",
            "nodes",
            "concurrency",
            "makespan_s",
            "makespan_s_low",
            "makespan_s_high",
            "output_tokens",
            "output_tok_s",
            "gpu_hours",
            "energy_kwh",
            "energy_kwh_low",
            "energy_kwh_high",
            "cost",
            "failures",
            "method",
        )
        p = self.phases
        columns = (("seconds", p.time_s + self.serving_from_s), ("running", p.running_at), ("output_tok_s", p.tok_s_at))
        return {
            **{name: getattr(self, name) for name in names},
            "parts": dict(self.parts),
            "timeline": {name: np.asarray(values, float).tolist() for name, values in columns},
            "deployment": self.deployment.to_dict(),
            "assumptions": list(self.assumptions),
            **({"sensitivity": [effect.to_dict() for effect in self.effects]} if self.effects else {}),
        }

    def __repr__(self) -> str:
        hours = self.makespan_s / 3600
        low, high = self.makespan_s_low / 3600, self.makespan_s_high / 3600
        return f"<Job {self.deployment.name} {self.samples:,} samples: {hours:.1f} h ({low:.1f} to {high:.1f})>"


@dataclass(frozen=True)
class Failing:
    """Failures per hour of a node, work between two writes of what is done, and the time that a write takes."""

    per_node_hour: float = 0.0
    restarts: int = 0
    interval_s: float = AT_ONCE_S
    dump_s: float = 0.0


def size_job(
    deployment: Deployment,
    *,
    samples: int | None = None,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    requests: Sequence[tuple[int, int]] | None = None,
    concurrency: float | None = None,
    request_rate: float | None = None,
    nodes: int = 1,
    price_per_gpu_hour: float | None = None,
    price_per_kwh: float | None = None,
    gpu_power: float | None = None,
    restarts: int = 0,
    failure_rate: float | None = None,
    checkpoint_interval: float | None = None,
    checkpoint_time: float = 0.0,
    load_rate: float | None = None,
    storage_bandwidth: float | None = None,
    host_memory: float | None = None,
    warmup: float | None = None,
    arrival: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Job:
    """Wall time of a batch job whose requests all wait in the queue from the start.

    Give ``samples`` with lengths or distributions, or ``requests`` as (input, output) pairs in the order submitted.
    ``concurrency`` is what the client keeps in flight over all nodes; by default everything is submitted at once.
    ``request_rate``: samples arrive one by one instead. ``nodes`` equal deployments take samples from one queue; each
    loads for itself. A failure (``failure_rate`` per node hour, or so many ``restarts`` for certain) costs the load,
    the answers in flight, and what was finished since the last write (``checkpoint_interval`` [s]; by default each
    answer is written when it is done). ``load_rate`` [B/s] of a rank, ``storage_bandwidth`` [B/s] and ``host_memory``
    [B] of a node, ``warmup`` [s], ``gpu_power`` [W] replace assumptions. ``arrival`` as in `predict`; a long job
    replaces its requests many times, so that its pipeline slots end up evenly filled, but for vLLM's.
    """
    if not isinstance(deployment, Deployment):
        raise BadInput(f"a job is sized on a deployment, not on {shown(deployment)}", ["pm.deploy(...) makes one"])
    arrival = arrival_of(deployment.options, arrival, lasting=True)
    work = work_of(samples, input_tokens, output_tokens, requests, concurrency, request_rate, arrival)
    failing = _failing(restarts, failure_rate, checkpoint_interval, checkpoint_time)
    for name, price in (("price_per_gpu_hour", price_per_gpu_hour), ("price_per_kwh", price_per_kwh)):
        if price is not None and not (is_number(price) and 0 <= price < 1e6):
            raise BadInput(f"{name} must lie between 0 and 1e6, not {shown(price)}")
    report = memory(deployment)
    if not report.fits:
        raise Infeasible(f"{deployment.name} does not start: {report.pool.reason}", report.hints)
    start = start_of(deployment, load_rate=load_rate, storage_bandwidth=storage_bandwidth, host_memory=host_memory,
                     warmup=warmup)  # fmt: skip
    nodes = whole("nodes", nodes, 1, MOST_NODES)
    phases = phases_of(deployment, work, nodes, progress)
    draw = draw_of(deployment, phases.curve, arrival, gpu_power)
    return _job(deployment, work, start, phases, draw, failing, nodes, (price_per_gpu_hour, price_per_kwh))


def _failing(restarts: Any, rate: Any, interval: Any, dump: Any) -> Failing:
    if rate is not None and not (is_number(rate) and 0 <= rate <= 1e3):
        raise BadInput(f"failure_rate must lie between 0 and 1e3 a node hour, not {shown(rate)}")
    positive(1e-3, checkpoint_interval=interval)
    if not is_number(dump) or not 0 <= dump <= 1e6:
        raise BadInput(f"checkpoint_time must lie between 0 and 1e6 seconds, not {shown(dump)}")
    if dump and interval is None:
        raise BadInput("checkpoint_time needs checkpoint_interval: without one each answer is written when it is done",
                       ["checkpoint_interval=600"])  # fmt: skip
    return Failing(float(rate or 0.0), whole("restarts", restarts, 0, 10**6), float(interval or AT_ONCE_S), float(dump))


def _lost(failing: Failing, start: Start, phases: Phases, work: Work, nodes: int) -> tuple[float, float, float]:
    """Expected time lost to failures and writes [s], the number of failures, and the deviation of that time [s].

    A failure stops one node; the others take its samples.
    """
    again = start.again_s + phases.running * lived_tokens(work.outputs.mean, work.outputs.spread) / phases.tok_s
    each = again + failing.interval_s / 2
    lost, count = failing.restarts * each / nodes, float(failing.restarts)
    if not failing.per_node_hour:
        lost += phases.work_s * failing.dump_s / _between(phases.work_s, failing)
    if failing.per_node_hour:
        wall = float(_wall(phases.work_s, failing, again))
        if not np.isfinite(wall) or wall > 1e3 * phases.work_s:
            raise Infeasible(
                f"at {failing.per_node_hour:g} failures a node hour the job never ends: a restart takes {again:.0f} s "
                f"and {failing.interval_s:.0f} s of work lie between two writes",
                ["write what is finished more often (checkpoint_interval)"],
            )
        lost += wall - phases.work_s
        count += failing.per_node_hour * wall / 3600 * nodes
    return lost, count, float(np.sqrt(count - failing.restarts)) * each / nodes


def _wall(work_s: float, failing: Failing, again_s: float) -> Any:
    mtbf = 3600 / failing.per_node_hour
    with np.errstate(over="ignore"):
        return checkpointed_wall_s(work_s, _between(work_s, failing), failing.dump_s, again_s, mtbf)


def _between(work_s: float, failing: Failing) -> float:
    """Work between two writes, all of it at most. [s]"""
    return min(failing.interval_s, max(work_s, AT_ONCE_S))


def _job(
    deployment: Deployment,
    work: Work,
    start: Start,
    phases: Phases,
    draw: Draw,
    failing: Failing,
    nodes: int,
    prices: tuple[float | None, float | None],
) -> Job:
    lost, failures, lost_sd = _lost(failing, start, phases, work, nodes)
    parts = {"load_s": start.load_s, "warmup_s": start.warmup_s, "ramp_s": phases.ramp_s, "steady_s": phases.steady_s,
             "tail_s": phases.tail_s, "restart_s": lost}  # fmt: skip
    makespan = sum(parts.values())
    again = failures * start.again_s / nodes
    errors = (phases.sd * phases.work_s, start.load_sd * (start.load_s + again), start.warmup_sd * start.warmup_s,
              lost_sd)  # fmt: skip
    sd = float(np.linalg.norm(errors)) / makespan
    factor = float(np.exp(Z80 * sd))
    hours = nodes * deployment.gpus * makespan / 3600
    serving = (phases.work_s + max(lost - again, 0.0)) / makespan
    energy = hours * (draw.serving_W * serving + draw.waiting_W * (1 - serving)) / 1000
    spread = float(np.exp(Z80 * np.hypot(sd, draw.sd)))
    return Job(
        deployment,
        work.count,
        nodes,
        phases.running,
        makespan,
        makespan / factor,
        makespan * factor,
        phases.tokens,
        phases.tokens / makespan,
        hours,
        energy,
        energy / spread,
        energy * spread,
        _cost(hours, energy, prices),
        parts,
        failures,
        phases.method,
        tuple(dict.fromkeys((*phases.curve.assumptions, *_each(phases.curve.warnings, nodes), *phases.notes,
                             *start.notes, *draw.notes, *_notes(failing, nodes, work)))),
        phases,
        work,
    )


def _cost(hours: float, energy: float, prices: tuple[float | None, float | None]) -> float | None:
    if prices == (None, None):
        return None
    return hours * float(prices[0] or 0.0) + energy * float(prices[1] or 0.0)


def _each(warnings: Sequence[str], nodes: int) -> list[str]:
    """Warnings of one node, as such where there are several."""
    return [f"on each of {nodes:,} nodes {line}" for line in warnings] if nodes > 1 else list(warnings)


def _notes(failing: Failing, nodes: int, work: Work) -> list[str]:
    notes = [f"restarts: {failing.restarts}"]
    if failing.per_node_hour:
        saved = "when it is done" if failing.interval_s == AT_ONCE_S else f"every {failing.interval_s:.0f} s"
        notes = [f"failures: Poisson, {failing.per_node_hour:g} a node hour; an answer is written {saved}"]
    else:
        notes.append(f"no failures by chance; training of Llama 3 saw {LLAMA3_PER_NODE_HOUR:.1e} a node hour")
    if nodes > 1:
        notes.append(f"{nodes:,} nodes take samples from one queue, each loads from its own storage (assumed)")
    busy = nodes if work.request_rate is not None else busy_nodes(work, nodes)
    if nodes > busy:
        why = "no sample is left for them" if busy == work.count else (
            f"the client keeps {work.concurrency or 0:,g} in flight")
        notes.append(f"{nodes - busy:,} of {nodes:,} nodes get no sample: {why}")
    notes.append("energy: that of the GPUs alone, without hosts and cooling")
    return notes
