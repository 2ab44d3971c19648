"""What each factor does to the wall time of a job: the model asked again with one thing moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import PerfModelError
from perfmodel.insight.sensitivity import scaled_accelerator
from perfmodel.insight.variants import with_factors
from perfmodel.planner.job import LLAMA3_PER_NODE_HOUR, Job, size_job
from perfmodel.planner.job_start import LOAD_BPS
from perfmodel.serving.lengths import empirical, parse_lengths


@dataclass(frozen=True)
class Effect:
    """One factor moved: the wall time then, and by how much it changes; ``reason`` where there is no answer."""

    factor: str
    move: str
    makespan_s: float
    change: float
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"factor": self.factor, "move": self.move, "makespan_s": self.makespan_s,
                "change_percent": 100 * self.change, "reason": self.reason}  # fmt: skip


Ask = Callable[[], Job]


def job_effects(
    deployment: Deployment, job: Job, asked: Callable[[], None] = lambda: None, **workload: Any
) -> tuple[Effect, ...]:
    """Effects on a job that `size_job` gave for this workload, the largest first. ``asked`` is called after each."""
    found = []
    for factor, move, ask in moves(deployment, job, workload):
        try:
            again = ask().makespan_s
            found.append(Effect(factor, move, again, again / job.makespan_s - 1))
        except PerfModelError as error:
            found.append(Effect(factor, move, float("nan"), float("nan"), error.message))
        asked()
    return tuple(sorted(found, key=lambda e: -abs(e.change) if np.isfinite(e.change) else 0.0))


def moves(deployment: Deployment, job: Job, workload: dict[str, Any]) -> list[tuple[str, str, Ask]]:
    """Factor, what is done to it, and the question with it moved."""
    d = deployment

    def again(**changes: Any) -> Ask:
        return lambda: size_job(d, **{**workload, **changes})

    def on(other: Deployment) -> Ask:
        return lambda: size_job(other, **workload)

    def factor(name: str, times: float) -> Deployment:
        return with_factors(d, {name: d.calibration.parameters[name].value * times})

    nodes, rate = int(workload.get("nodes") or 1), workload.get("failure_rate") or LLAMA3_PER_NODE_HOUR
    running = job.concurrency
    found: list[tuple[str, str, Ask]] = [
        ("nodes", "x 2", again(nodes=2 * nodes)),
        ("memory bandwidth of the GPU", "+ 10 %", on(scaled_accelerator(d, "bandwidth", 1.1))),
        ("time of the host", "x 2", on(factor("host_speed", 2.0))),
        ("speed of loading", "/ 4", again(load_rate=(workload.get("load_rate") or LOAD_BPS) / 4)),
        ("failures a node hour", f"{10 * rate:.1e}", again(failure_rate=10 * rate)),
    ]
    if d.options.tp * d.options.pp > 1:
        found.append(("bandwidth of the links", "/ 2", on(factor("collective_bandwidth_factor", 0.5))))
    if workload.get("request_rate") is None and running >= 2:
        found.append(("requests in flight", f"{running / 2:.0f}", again(concurrency=max(1.0, running / 2))))
    if workload.get("requests") is None:
        found += [
            ("samples", "+ 10 %", again(samples=max(1, round(1.1 * job.samples)))),
            ("mean answer", "+ 10 %", again(output_tokens=_longer(workload.get("output_tokens", 1024), 1.1))),
            ("mean prompt", "x 2", again(input_tokens=_longer(workload.get("input_tokens", 1024), 2.0))),
        ]
    return found


def _longer(given: Any, times: float) -> Any:
    """Lengths of the same shape, so many times as long."""
    lengths = parse_lengths(given)
    kind, _, rest = lengths.words.partition(":")
    if lengths.values:
        return empirical([max(1, round(times * value)) for value in lengths.values], lengths.words)
    if kind == "uniform":
        return "uniform:" + ":".join(f"{float(bound) * times:g}" for bound in rest.split(":"))
    if kind == "lognormal":
        return f"lognormal:{lengths.mean * times:g}:{rest.split(':')[1]}"
    return f"falling:{lengths.mean * times:g}" if kind == "falling" else lengths.mean * times
