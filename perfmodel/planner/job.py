"""How long N samples take on one deployment: load, steady state, tail, restarts; energy and money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.costs.serving import lived_tokens
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Infeasible, is_number, shown
from perfmodel.placement import text_bytes
from perfmodel.serving import ServingCurve, predict
from perfmodel.serving.lengths import Lengths, parse_lengths, sample
from perfmodel.serving.simulate import Simulation, simulate
from perfmodel.serving.tail import drain_s
from perfmodel.step.factors import Z80
from perfmodel.step.memory import memory

# Reading a checkpoint: 594 GB took about 6 minutes with TP8 on the case's node, whose PP8 "loaded much faster".
# Kind: assumed for other hosts, hence the wide band.
LOAD_BPS, LOAD_SD = 1.65e9, 0.7
# Power of a GPU while decoding, as a share of its limit: 2.76 kW over 8 x 600 W in the Kimi K2.6 sweep (github
# sjug/rtx6kpro@738985bb models/kimi-k26-v3.md); 0.25 to 0.33 was seen with graphs off. Kind: measured there.
POWER_SHARE, POWER_SHARE_EAGER = 0.575, 0.29
SIMULATED = 20_000  # jobs of up to so many samples run through the simulator, larger ones through the closed form


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
    method: str
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract."""
        names = (
            "samples",
            "concurrency",
            "makespan_s",
            "makespan_s_low",
            "makespan_s_high",
            "output_tokens",
            "output_tok_s",
            "gpu_hours",
            "energy_kwh",
            "cost",
            "method",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "parts": dict(self.parts),
            "deployment": self.deployment.to_dict(),
            "assumptions": list(self.assumptions),
        }

    def __repr__(self) -> str:
        hours = self.makespan_s / 3600
        low, high = self.makespan_s_low / 3600, self.makespan_s_high / 3600
        return f"<Job {self.deployment.name} {self.samples:,} samples: {hours:.1f} h ({low:.1f} to {high:.1f})>"


def size_job(
    deployment: Deployment,
    *,
    samples: int | None = None,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    requests: Sequence[tuple[int, int]] | None = None,
    concurrency: float | None = None,
    price_per_gpu_hour: float | None = None,
    restarts: int = 0,
    arrival: str = "staggered",
) -> Job:
    """Wall time of a batch job whose requests all wait in the queue from the start.

    Give ``samples`` with lengths or distributions, or ``requests`` as (input, output) pairs in the order submitted.
    ``concurrency`` is what the client keeps in flight; by default everything is submitted at once. Each restart costs
    a load and half of a running set's work. ``arrival`` as in `predict`; a long job replaces its requests many times,
    so its pipeline slots end up evenly filled, while `predict` takes the engine's own way with a burst.
    """
    inputs, outputs, pairs = _workload(samples, input_tokens, output_tokens, requests)
    count = len(pairs) if pairs is not None else int(samples or 0)
    _check(concurrency, price_per_gpu_hour, restarts)
    report = memory(deployment)
    if not report.fits:
        raise Infeasible(f"{deployment.name} does not start: {report.pool.reason}", report.hints)
    wanted = float(min(count, concurrency or 1e6))
    curve = predict(deployment, concurrency=[wanted], input_tokens=inputs, output_tokens=outputs, arrival=arrival)
    if pairs is None and count <= SIMULATED:
        pairs = np.stack([sample(inputs, count, 1), sample(outputs, count, 2)], axis=1)
    if pairs is not None:
        share = None if concurrency is None else max(1, round(concurrency))
        run = simulate(deployment, inputs=pairs[:, 0], outputs=pairs[:, 1], concurrency=share, arrival=arrival)
        steady, tail, tokens = *_phases(run), float(pairs[:, 1].sum())
    else:
        steady, tail, tokens = *_closed(deployment, curve, inputs, outputs, count, arrival), count * outputs.mean
    return _job(deployment, curve, count, steady, tail, tokens, price_per_gpu_hour, restarts, pairs is not None)


def _workload(
    samples: Any, input_tokens: Any, output_tokens: Any, requests: Any
) -> tuple[Lengths, Lengths, np.ndarray | None]:
    if (samples is None) == (requests is None):
        raise BadInput("give either samples or requests")
    if requests is None:
        _whole("samples", samples, 1)
        return parse_lengths(input_tokens), parse_lengths(output_tokens), None
    try:
        pairs = np.asarray(list(requests), float)
    except (TypeError, ValueError):
        raise BadInput("requests must be (input, output) pairs of token counts") from None
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs) or not np.all((pairs >= 1) & (pairs <= 1e9)):
        raise BadInput("requests must be (input, output) pairs of token counts from 1 to 1e9")
    mean = pairs.mean(axis=0)
    return parse_lengths(mean[0]), parse_lengths(mean[1]), np.round(pairs).astype(int)


def _phases(run: Simulation) -> tuple[float, float]:
    """Until the last request has begun to answer, and from there to the end. [s]"""
    begun = float(run.first_s.max())
    return begun, float(run.finish_s.max()) - begun


def _closed(
    deployment: Deployment, curve: ServingCurve, inputs: Lengths, outputs: Lengths, count: int, arrival: str
) -> tuple[float, float]:
    """Steady state at the running set, then the drain of the running set. [s]"""
    running, rate = float(curve.running[0]), float(curve.output_tok_s[0][0])
    batches = np.unique(np.round(np.geomspace(1, max(running, 1), 24)))
    step = predict(deployment, concurrency=batches, input_tokens=inputs, output_tokens=outputs, arrival=arrival).tpot_s[
        0
    ]
    tail = drain_s(outputs, running, lambda batch: np.interp(batch, batches, step))
    left = running * lived_tokens(outputs.mean, outputs.spread)  # tokens that the drain makes
    return max(count * outputs.mean - left, 0.0) / rate, tail


def _job(
    deployment: Deployment,
    curve: ServingCurve,
    count: int,
    steady: float,
    tail: float,
    tokens: float,
    price: float | None,
    restarts: int,
    simulated: bool,
) -> Job:
    options, running = deployment.options, float(curve.running[0])
    load = text_bytes(deployment) / LOAD_BPS / options.pp
    restart = restarts * (load + 0.5 * running * curve.output_tokens / float(curve.output_tok_s[0][0]))
    makespan = load + steady + tail + restart
    spread = np.log(curve.output_tok_s[2][0] / curve.output_tok_s[0][0]) / Z80
    sd = np.hypot(spread * (steady + tail) / makespan, LOAD_SD * load * (1 + restarts) / makespan)
    factor = float(np.exp(Z80 * sd))
    hours = deployment.gpus * makespan / 3600
    limit = options.power_limit or float(deployment.accelerator.power.limit.value or 0.0)
    share = POWER_SHARE if deployment.engine.capture_sizes(options, deployment.facts) else POWER_SHARE_EAGER
    return Job(
        deployment,
        count,
        running,
        makespan,
        makespan / factor,
        makespan * factor,
        tokens,
        tokens / makespan,
        hours,
        hours * limit * share / 1000,
        None if price is None else hours * float(price),
        {"load_s": load, "steady_s": steady, "tail_s": tail, "restart_s": restart},
        "simulated" if simulated else "closed form",
        (
            *curve.assumptions,
            *curve.warnings,
            f"reading the checkpoint at {LOAD_BPS / 1e9:.2f} GB/s a stage (assumed)",
            f"power while decoding: {share:.0%} of the {limit:.0f} W limit of a GPU",
            f"restarts: {restarts}",
        ),
    )


def _check(concurrency: Any, price: Any, restarts: Any) -> None:
    _whole("restarts", restarts, 0, 1e6)
    if concurrency is not None and not (is_number(concurrency) and 1 <= concurrency <= 1e7):
        raise BadInput(f"concurrency must lie between 1 and 1e7, not {shown(concurrency)}")
    if price is not None and not (is_number(price) and 0 <= price < 1e6):
        raise BadInput(f"price_per_gpu_hour must lie between 0 and 1e6, not {shown(price)}")


def _whole(name: str, value: Any, least: int, most: float = 1e12) -> None:
    if not is_number(value) or not least <= value <= most or value != int(value):
        raise BadInput(f"{name} must be a whole number from {least} to {most:.0e}, not {shown(value)}")
