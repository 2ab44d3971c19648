"""Requests of a job -> its phases on equal nodes: ramp, steady state, the tail of long answers; over time too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.costs.forecast import finished_answers
from perfmodel.costs.serving import lived_tokens
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Infeasible, is_number, shown, whole
from perfmodel.serving import ServingCurve, predict
from perfmodel.serving.lengths import Lengths, empirical, parse_lengths, sample
from perfmodel.serving.simulate import simulate
from perfmodel.serving.tail import drain
from perfmodel.step.factors import Z80

SIMULATED = 20_000  # jobs of up to so many samples run through the simulator, larger ones through the closed form
MOST_NODES = 10**6
POINTS = 400  # of the job over time
SLOTS = 2000  # sampled, for the answers that finish first


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be done: samples with lengths, and how they arrive. ``pairs``: (input, output) of each, if known."""

    count: int
    inputs: Lengths
    outputs: Lengths
    pairs: np.ndarray | None
    concurrency: float | None
    request_rate: float | None
    arrival: str


@dataclass(frozen=True, eq=False)
class Phases:
    """What a job does once its nodes serve. Sums over all nodes; times from the first request. [s]"""

    ramp_s: float
    steady_s: float
    tail_s: float
    running: float  # sequences at once
    tokens: float  # output tokens of the whole job
    tok_s: float  # of the steady state
    sd: float  # deviation of the logarithm of the speed
    curve: ServingCurve
    method: str
    time_s: np.ndarray
    running_at: np.ndarray
    tok_s_at: np.ndarray
    made_at: np.ndarray  # tokens made until then
    done_at: np.ndarray  # and answers finished
    notes: tuple[str, ...] = ()

    @property
    def work_s(self) -> float:
        """From the first request to the last token. [s]"""
        return self.ramp_s + self.steady_s + self.tail_s


def work_of(
    samples: Any,
    input_tokens: Any,
    output_tokens: Any,
    requests: Any,
    concurrency: Any = None,
    request_rate: Any = None,
    arrival: str = "staggered",
) -> Work:
    """The question checked."""
    if (samples is None) == (requests is None):
        raise BadInput("give either samples or requests")
    if concurrency is not None and not (is_number(concurrency) and 1 <= concurrency <= 1e7):
        raise BadInput(f"concurrency must lie between 1 and 1e7, not {shown(concurrency)}")
    if request_rate is not None and not (is_number(request_rate) and 1e-6 <= request_rate <= 1e6):
        raise BadInput(f"request_rate must lie between 1e-6 and 1e6 a second, not {shown(request_rate)}")
    if concurrency is not None and request_rate is not None:
        raise BadInput("give either concurrency or request_rate")
    if requests is None:
        count = whole("samples", samples, 1)
        inputs, outputs = parse_lengths(input_tokens, "input_tokens"), parse_lengths(output_tokens)
        return Work(count, inputs, outputs, None, concurrency, request_rate, arrival)
    try:
        pairs = np.asarray(list(requests), float)
    except (TypeError, ValueError):
        raise BadInput("requests must be (input, output) pairs of token counts") from None
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs) or not np.all((pairs >= 1) & (pairs <= 1e9)):
        raise BadInput("requests must be (input, output) pairs of token counts from 1 to 1e9")
    pairs = np.round(pairs).astype(int)
    inputs, outputs = (empirical(column, "the requests") for column in pairs.T)
    return Work(len(pairs), inputs, outputs, pairs, concurrency, request_rate, arrival)


def phases_of(
    deployment: Deployment, work: Work, nodes: int = 1, progress: Callable[[int, int], None] | None = None
) -> Phases:
    """Phases of the work on ``nodes`` equal deployments that take samples from one queue."""
    nodes = whole("nodes", nodes, 1, MOST_NODES)
    if work.request_rate is not None:
        return _arriving(deployment, work, nodes)
    nodes = busy_nodes(work, nodes)
    each = -(-work.count // nodes)
    held = None if work.concurrency is None else work.concurrency / nodes
    wanted = float(min(each, held or 1e6))
    curve = predict(deployment, concurrency=[wanted], input_tokens=work.inputs, output_tokens=work.outputs,
                    arrival=work.arrival)  # fmt: skip
    if work.pairs is not None or each <= SIMULATED:
        return _simulated(deployment, work, nodes, held, curve, progress)
    return _closed(deployment, work, nodes, curve)


def busy_nodes(work: Work, nodes: int) -> int:
    """Nodes that get a request: no more than there are samples, or than the client keeps in flight."""
    return max(1, min(nodes, work.count, int(work.concurrency or nodes)))


def _simulated(
    deployment: Deployment,
    work: Work,
    nodes: int,
    held: float | None,
    curve: ServingCurve,
    progress: Callable[[int, int], None] | None,
) -> Phases:
    """The share of one node, that with the longest answer, through the scheduler."""
    pairs = work.pairs
    if pairs is None:
        pairs = np.stack([sample(work.inputs, work.count, 1), sample(work.outputs, work.count, 2)], axis=1)
    mine = pairs[int(np.argmax(pairs[:, 1])) % nodes :: nodes]
    share = None if held is None else max(1, int(held))     # never more in flight than the client keeps
    run = simulate(deployment, inputs=mine[:, 0], outputs=mine[:, 1], concurrency=share, arrival=work.arrival,
                   progress=progress)  # fmt: skip
    begun, end = float(run.first_s.max()), float(run.finish_s.max())
    at = np.linspace(0.0, end, POINTS)
    ended, running, made = over_time(at, run.first_s, run.finish_s, run.outputs)
    most = max(1, int(np.median(running[at <= max(begun, 1e-9)])))
    ramp = float(np.sort(run.first_s)[most - 1])
    speeds = np.gradient(made, at) if end > 0 else np.zeros_like(at)
    steady = (at >= ramp) & (at <= begun)
    speed = float(np.mean(speeds[steady])) if begun > ramp else float(made[-1]) / end
    whole_job = float(pairs[:, 1].sum())
    notes = [*run.assumptions, *run.warnings]
    notes += [f"the client's {work.concurrency:,g} in flight: {share:,} on each of {nodes:,} nodes"] if (
        share is not None and nodes > 1) else []
    notes += [f"{run.preemptions:,} preemptions on one node: the pool was full"] if run.preemptions else []
    return Phases(ramp, begun - ramp, end - begun, most * nodes, whole_job, nodes * speed, _speed_sd(curve), curve,
                  "simulated", at, nodes * running, nodes * speeds, whole_job * made / made[-1],
                  work.count * ended / len(mine), tuple(notes))  # fmt: skip


def over_time(
    at: np.ndarray, first: np.ndarray, finish: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers finished, running, and tokens made until each time; an answer makes its tokens evenly."""
    began, ended = np.argsort(first), np.argsort(finish)
    each = np.maximum(outputs - 1, 0) / np.maximum(finish - first, 1e-9)  # tokens per second after the first
    up = np.searchsorted(first[began], at, side="right")
    down = np.searchsorted(finish[ended], at, side="right")
    made = up.astype(float)  # first tokens
    for sign, order, count, since in ((1, began, up, first), (-1, ended, down, finish)):
        speed = np.concatenate([[0.0], np.cumsum(each[order])])[count]
        offset = np.concatenate([[0.0], np.cumsum(each[order] * since[order])])[count]
        made = made + sign * (speed * at - offset)
    return down.astype(float), (up - down).astype(float), made


def _speed_sd(curve: ServingCurve) -> float:
    return float(np.log(curve.output_tok_s[2][0] / curve.output_tok_s[0][0])) / Z80


def _closed(deployment: Deployment, work: Work, nodes: int, curve: ServingCurve) -> Phases:
    """Steady state at the running set, then the drain of the running set."""
    running, rate = float(curve.running[0]), float(curve.output_tok_s[0][0])
    batches = np.unique(np.round(np.geomspace(1, max(running, 1), 24)))
    step = predict(deployment, concurrency=batches, input_tokens=work.inputs, output_tokens=work.outputs,
                   arrival=work.arrival).tpot_s[0]  # fmt: skip
    seconds, left = drain(work.outputs, running * nodes, lambda batch: np.interp(batch / nodes, batches, step))
    tokens = work.count * work.outputs.mean
    draining = nodes * running * lived_tokens(work.outputs.mean, work.outputs.spread)
    until = max(tokens - draining, 0.0) / (nodes * rate)
    first = np.full(max(1, round(running)), max(1, round(work.inputs.mean)))
    ramp = min(float(simulate(deployment, inputs=first, outputs=np.ones_like(first)).finish_s.max()), until)
    keep = np.append(left[:-1] >= 0.5, True)
    most = running * nodes
    alive = np.minimum(left[keep], most)
    speeds = np.minimum(np.where(alive > 0, alive / np.interp(alive / nodes, batches, step), 0.0), nodes * rate)
    time = np.concatenate([[0.0], ramp + (until - ramp) * np.linspace(0, 1, POINTS) ** 3, until + seconds[keep]])
    made = np.concatenate([np.interp(time[: POINTS + 1], [0.0, until], [0.0, tokens - draining]),
                           tokens - draining * _still_to_make(seconds[keep], speeds)])  # fmt: skip
    return Phases(
        ramp,
        until - ramp,
        float(seconds[-1]),
        most,
        tokens,
        nodes * rate,
        _speed_sd(curve),
        curve,
        "closed form",
        time,
        np.concatenate([[0.0], np.full(POINTS, most), alive]),
        np.concatenate([[0.0], np.full(POINTS, nodes * rate), speeds]),
        made,
        np.concatenate([finished(work.outputs, made[: POINTS + 1], most, work.count - most), work.count - alive]),
    )


def _still_to_make(seconds: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Share of the tokens of the tail that is still to come."""
    pieces = 0.5 * (speeds[1:] + speeds[:-1]) * np.diff(seconds)
    left = np.concatenate([np.cumsum(pieces[::-1])[::-1], [0.0]])
    return left / max(left[0], 1e-12)


def finished(outputs: Lengths, made: np.ndarray, running: float, most: float) -> np.ndarray:
    """Answers finished when so many tokens are made, ``running`` slots having started together.

    Short answers finish first: counted over sampled slots for the first answers of each, after that by the
    renewal theorem.
    """
    each = made / running
    waves = 40
    ends = np.sort(np.cumsum(sample(outputs, SLOTS * waves, 3).reshape(SLOTS, waves), axis=1).ravel())
    early = np.searchsorted(ends, each, side="right") / SLOTS * running
    late = finished_answers(made, running, outputs.mean, outputs.spread)
    return np.clip(np.where(each < 8 * outputs.mean, early, late), 0.0, max(most, 0.0))


def _arriving(deployment: Deployment, work: Work, nodes: int) -> Phases:
    """Samples that arrive at a rate that the nodes can serve: the job lasts as long as they arrive, and a tail."""
    rate = float(work.request_rate or 0.0)
    curve = predict(deployment, request_rate=rate / nodes, input_tokens=work.inputs, output_tokens=work.outputs,
                    arrival=work.arrival)  # fmt: skip
    speed, asked = float(curve.output_tok_s[0][0]) * nodes, rate * work.outputs.mean
    if not np.isfinite(curve.ttft_s[0][0]) or speed < 0.99 * asked:
        most = speed / work.outputs.mean
        raise Infeasible(
            f"{rate:g} requests a second are above the capacity of {nodes} x {deployment.name}: about {most:.3g}",
            [f"{-(-rate * nodes // most):.0f} nodes would do", "without request_rate all samples wait in a queue"],
        )
    running, step = float(curve.running[0]), float(curve.tpot_s[0][0])
    seconds, left = drain(work.outputs, max(running * nodes, 1.0), lambda batch: np.full(np.shape(batch), step))
    arriving = work.count / rate
    ramp = min(float(curve.ttft_s[0][0]) + step * work.outputs.mean, arriving)
    time, alive = np.concatenate([[0.0, ramp], arriving + seconds]), np.concatenate([[0.0, running * nodes], left])
    tokens, speeds = work.count * work.outputs.mean, alive / step
    made = np.concatenate([[0.0], np.cumsum(0.5 * (speeds[1:] + speeds[:-1]) * np.diff(time))])
    done = np.concatenate([[0.0, 0.0], work.count - left])
    return Phases(ramp, arriving - ramp, float(seconds[-1]), running * nodes, tokens, asked, 0.02, curve, "closed form",
                  time, alive, speeds, made * tokens / made[-1], done)  # fmt: skip
