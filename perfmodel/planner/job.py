"""How long N samples take on one deployment: load, steady state, tail, restarts; energy and money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Infeasible
from perfmodel.placement import text_bytes
from perfmodel.serving import predict
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.tail import drain_s
from perfmodel.step.factors import Z80
from perfmodel.step.memory import memory

# Reading a checkpoint: 594 GB took about 6 minutes with TP8 on the case's node, whose PP8 "loaded much faster".
# Kind: assumed for other hosts, hence the wide band.
LOAD_BPS, LOAD_SD = 1.65e9, 0.7
# Power of a GPU while decoding, as a share of its limit: 2.76 kW over 8 x 600 W in the Kimi K2.6 sweep (github
# sjug/rtx6kpro@738985bb models/kimi-k26-v3.md); 0.25 to 0.33 was seen with graphs off. Kind: measured there, assumed elsewhere.
POWER_SHARE, POWER_SHARE_EAGER, POWER_SD = 0.575, 0.29, 0.25


@dataclass(frozen=True, eq=False)
class Job:
    """The size of a job with its 80 % band."""

    deployment: Deployment
    samples: int
    concurrency: float
    makespan_s: float
    makespan_s_low: float
    makespan_s_high: float
    output_tokens: float
    output_tok_s: float
    gpu_hours: float
    energy_kwh: float
    cost: float | None
    parts: dict[str, float]
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract."""
        names = ("samples", "concurrency", "makespan_s", "makespan_s_low", "makespan_s_high", "output_tokens",
                 "output_tok_s", "gpu_hours", "energy_kwh", "cost")
        return {**{name: getattr(self, name) for name in names}, "parts": dict(self.parts),
                "deployment": self.deployment.to_dict(), "assumptions": list(self.assumptions)}

    def __repr__(self) -> str:
        hours = self.makespan_s / 3600
        low, high = self.makespan_s_low / 3600, self.makespan_s_high / 3600
        return f"<Job {self.deployment.name} {self.samples:,} samples: {hours:.1f} h ({low:.1f} to {high:.1f})>"


def size_job(deployment: Deployment, *, samples: int, input_tokens: Any = 1024, output_tokens: Any = 1024,
             concurrency: float | None = None, price_per_gpu_hour: float | None = None, restarts: int = 0) -> Job:
    """Wall time of ``samples`` requests that all wait in the queue from the start.

    ``concurrency`` is what the client keeps in flight; by default as many as the deployment can run. Each restart
    costs a load and half of a running set's work.
    """
    _check(samples, concurrency, price_per_gpu_hour, restarts)
    report = memory(deployment)
    if not report.fits:
        raise Infeasible(f"{deployment.name} does not start: {report.pool.reason}", report.hints)
    outputs = parse_lengths(output_tokens)
    wanted = float(min(samples, concurrency or 1e6))
    curve = predict(deployment, concurrency=[wanted], input_tokens=input_tokens, output_tokens=outputs)
    running, rate = float(curve.running[0]), float(curve.output_tok_s[0][0])
    tokens = samples * outputs.mean
    load = text_bytes(deployment) / LOAD_BPS / deployment.options.pp * deployment.options.dp
    tail, lost = _tail(deployment, input_tokens, outputs, running)
    steady = max(tokens - lost, 0.0) / rate + float(curve.ttft_s[0][0]) * min(1.0, running / samples)
    restart = restarts * (load + 0.5 * running * outputs.mean / rate)
    makespan = load + steady + tail + restart
    spread = np.log(curve.output_tok_s[2][0] / curve.output_tok_s[0][0]) / Z80
    sd = np.hypot(spread * (steady + tail) / makespan, LOAD_SD * load * (1 + restarts) / makespan)
    factor = float(np.exp(Z80 * sd))
    hours = deployment.gpus * makespan / 3600
    limit = deployment.options.power_limit or float(deployment.accelerator.power.limit.value or 0.0)
    share = POWER_SHARE if deployment.engine.capture_sizes(deployment.options, deployment.facts) else POWER_SHARE_EAGER
    return Job(
        deployment, int(samples), running, makespan, makespan / factor, makespan * factor, tokens, tokens / makespan,
        hours, hours * limit * share / 1000, None if price_per_gpu_hour is None else hours * price_per_gpu_hour,
        {"load_s": load, "steady_s": steady, "tail_s": tail, "restart_s": restart},
        (*curve.assumptions, *curve.warnings, f"reading the checkpoint at {LOAD_BPS / 1e9:.2f} GB/s a stage (assumed)",
         f"power while decoding: {share:.0%} of the {limit:.0f} W limit of a GPU", f"restarts: {restarts}",
         "the tail follows the length distribution given; equal lengths give a tail of at most one answer"))


def _tail(deployment: Deployment, inputs: Any, outputs: Any, running: float) -> tuple[float, float]:
    """Seconds of the drain, and the tokens made meanwhile."""
    batches = np.unique(np.round(np.geomspace(1, max(running, 1), 24)))
    curve = predict(deployment, concurrency=batches, input_tokens=inputs, output_tokens=outputs)
    step = curve.tpot_s[0]
    seconds = drain_s(outputs, running, lambda batch: np.interp(batch, batches, step))
    return seconds, running * outputs.mean * (1 + outputs.spread**2) / 2


def _check(samples: Any, concurrency: Any, price: Any, restarts: Any) -> None:
    for name, value, least in (("samples", samples, 1), ("restarts", restarts, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or not least <= value <= 1e12:
            raise BadInput(f"{name} must be a whole number from {least}, not {value!r}")
    if concurrency is not None and not 1 <= concurrency <= 1e7:
        raise BadInput(f"concurrency must lie between 1 and 1e7, not {concurrency!r}")
    if price is not None and not 0 <= price < 1e6:
        raise BadInput(f"price_per_gpu_hour must be 0 or more, not {price!r}")
