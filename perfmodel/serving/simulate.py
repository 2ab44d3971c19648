"""Event simulator of one engine's scheduler, iteration by iteration; decode steps between two events in one jump."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput
from perfmodel.serving.tables import ServerTables, server_tables

_TIMELINE = 2000  # points kept of the timeline


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened to every request, in the order given. Seconds from the start."""

    arrival_s: np.ndarray
    first_s: np.ndarray
    finish_s: np.ndarray
    outputs: np.ndarray
    preemptions: int
    timeline_s: np.ndarray
    timeline_running: np.ndarray

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to first token of every request. [s]"""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first; NaN for answers of one token. [s]"""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.outputs > 1, (self.finish_s - self.first_s) / (self.outputs - 1), np.nan)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token. [s]"""
        return float(self.finish_s.max() - self.arrival_s.min())


def simulate(
    deployment: Deployment,
    *,
    inputs: Any,
    outputs: Any,
    arrivals: Any = None,
    concurrency: int | None = None,
    arrival: str = "staggered",
) -> Simulation:
    """Run requests through the scheduler: all at once, at given times, or ``concurrency`` in flight.

    Replicas (dp) take requests in turn; ``arrival`` fills pipeline slots as in `predict`. Deterministic: the
    same requests give the same times.
    """
    new, out = _whole("inputs", inputs), _whole("outputs", outputs)
    if len(new) != len(out):
        raise BadInput(f"{len(new)} inputs and {len(out)} outputs: one of each a request")
    times = np.zeros(len(new)) if arrivals is None else np.asarray(arrivals, float)
    if len(times) != len(new) or not np.all(np.isfinite(times)) or np.any(np.diff(times) < 0):
        raise BadInput("arrivals must be finite, ascending and one a request")
    copies = deployment.options.dp
    share = None if concurrency is None else max(1, round(concurrency / copies))
    largest = len(new) if share is None else share
    tables = server_tables(deployment, max(1, min(largest, len(new))), float(np.mean(new) + np.mean(out) / 2), arrival)
    first, finish = np.zeros(len(new)), np.zeros(len(new))
    began, lines, preempted = times.copy(), [], 0
    for copy in range(copies):
        mine = np.arange(copy, len(new), copies)
        if not len(mine):
            continue
        run = _Run(tables, times[mine], new[mine], out[mine], share)
        run.go()
        first[mine], finish[mine], began[mine] = run.first, run.finish, run.began
        preempted += run.preempted
        lines.append((run.times, run.counts))
    return Simulation(began, first, finish, out, preempted, np.array(lines[0][0]), np.array(lines[0][1]) * copies)


class _Run:
    """State of one engine copy. Lists, not arrays: the loop touches one request at a time."""

    def __init__(
        self, tables: ServerTables, arrivals: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, share: int | None
    ) -> None:
        self.tables = tables
        self.inputs, self.outputs = inputs.tolist(), outputs.tolist()
        count = len(self.inputs)
        self.issued = count if share is None else min(share, count)  # a closed loop issues one as one finishes
        self.began = arrivals.tolist()
        self.first, self.finish = [0.0] * count, [0.0] * count
        self.made, self.began_step = [0] * count, [0] * count  # tokens made before a preemption
        self.now, self.step, self.cached, self.next = 0.0, 0, 0, 0
        self.waiting: deque[int] = deque()
        self.running: list[tuple[int, int, int]] = []  # heap of (last step, request, turn)
        self.turn = [0] * count  # a preempted entry in the heap has an old one
        self.youngest: list[tuple[int, int]] = []  # (request, turn) in the order of admission
        self.size = self.unmade = 0
        self.reserve, self.least, self.loss = tables.reserve
        self.preempted = self.events = 0
        self.times: list[float] = []
        self.counts: list[int] = []
        self.stride = max(1, 2 * count // _TIMELINE)

    def go(self) -> None:
        """Until every request has finished."""
        while self.size or self.waiting or self.next < len(self.inputs):
            while self.next < self.issued and self.began[self.next] <= self.now:
                self.waiting.append(self.next)
                self.next += 1
            if self.waiting and self.size < self.tables.limit and self._room():
                self._prefill()
            elif self.size:
                self._decode()
            else:
                self.now = max(self.now, self.began[self.next])
            self.events += 1
            if self.events % self.stride == 0:
                self.times.append(self.now)
                self.counts.append(self.size)
        self.times.append(self.now)
        self.counts.append(0)

    def _room(self) -> bool:
        """Whether the pool holds the next prompt; an empty server takes it in any case."""
        need = self.inputs[self.waiting[0]] + self.made[self.waiting[0]]
        return not self.size or self._taken() + need <= self.tables.kv_tokens

    def _taken(self) -> float:
        """Tokens in the pool, and those that admission keeps free for the running requests."""
        return self.cached + self.size + self.reserve * self.unmade

    def _prefill(self) -> None:
        """One batch of prompts, up to the chunk; decoding waits, or goes on inside the same forwards."""
        tables, tokens = self.tables, 0
        batch: list[int] = []
        taken = self._taken()
        while self.waiting and self.size + len(batch) < tables.limit:
            head = self.waiting[0]
            need = self.inputs[head] + self.made[head]
            if batch and (tokens + need > tables.chunk * tables.groups or taken + need > tables.kv_tokens):
                break
            taken += need + self.reserve * (self.outputs[head] - self.made[head])
            batch.append(self.waiting.popleft())
            tokens += need
        size = self.size
        if tables.mixes and size:
            forwards = max(1, -(-tokens // tables.chunk))
            both = tables.prefill_s(tokens + forwards * size, len(batch))
            self.now += both + forwards * tables.slope[size] * self.cached / size
            self._advance(forwards)
        else:
            self.now += tables.prefill_s(tokens, len(batch))
        for request in batch:
            if not self.made[request]:
                self.first[request] = self.now
            self._start(request)

    def _start(self, request: int) -> None:
        """The prefill made a token; the rest are decode steps."""
        left = self.outputs[request] - self.made[request] - 1
        if left <= 0:
            self._end(request)
            return
        self.cached += self.inputs[request] + self.made[request] + 1
        self.began_step[request] = self.step
        self.size += 1
        self.unmade += left
        heappush(self.running, (self.step + left, request, self.turn[request]))
        self.youngest.append((request, self.turn[request]))

    def _end(self, request: int) -> None:
        self.finish[request] = self.now
        if self.issued < len(self.inputs):
            self.began[self.issued] = self.now
            self.issued += 1

    def _decode(self) -> None:
        """As many steps as pass until somebody finishes, arrives, or the pool is full."""
        tables, size = self.tables, self.size
        free = (tables.kv_tokens - self.cached) // size
        if free < 1 and size > 1:
            self._preempt()
            return
        slope = tables.slope[size]
        first = tables.base[size] + slope * self.cached / size
        while self.running[0][2] != self.turn[self.running[0][1]]:
            heappop(self.running)
        steps = min(self.running[0][0] - self.step, max(free, 1))
        if self.next < self.issued and size < tables.limit:
            steps = min(steps, int((self.began[self.next] - self.now) / first) + 1)
        steps = max(steps, 1)
        self.now += steps * (first + 0.5 * slope * (steps - 1))
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        self.step += steps
        self.cached += steps * self.size
        self.unmade -= steps * self.size
        self.reserve = max(self.least, self.reserve - self.loss * steps)
        while self.running and self.running[0][0] <= self.step:
            last, request, turn = heappop(self.running)
            if turn != self.turn[request]:
                continue
            self.cached -= self._held(request)  # what it overshot in a mixed forward is in both
            self.unmade += self.step - last
            self.turn[request] += 1
            self.size -= 1
            self._end(request)

    def _held(self, request: int) -> int:
        """Tokens of one running request in the pool."""
        return self.inputs[request] + self.made[request] + 1 + self.step - self.began_step[request]

    def _preempt(self) -> None:
        """Throw out the youngest sequence; it will prefill again what it had made."""
        while True:
            request, turn = self.youngest.pop()
            if turn == self.turn[request]:
                break
        made = 1 + self.step - self.began_step[request]
        self.cached -= self._held(request)
        self.made[request] += made
        self.unmade -= self.outputs[request] - self.made[request]
        self.turn[request] += 1
        self.size -= 1
        self.preempted += 1
        if self.loss:
            self.reserve = min(1.0, self.reserve + 0.1)
        self.waiting.appendleft(request)


def _whole(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
        whole = np.round(array.astype(float)).astype(np.int64)
    except (TypeError, ValueError):
        raise BadInput(f"{name} must be a list of token counts") from None
    if whole.ndim != 1 or len(whole) == 0 or np.any(whole < 1) or np.any(whole > 10**9):
        raise BadInput(f"{name} must be a list of token counts from 1 to 1e9")
    return whole
