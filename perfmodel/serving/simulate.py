"""Requests through the scheduler of an engine, copy by copy: when each gets its first token, and its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, is_number, one_of, shown, whole
from perfmodel.placement import place
from perfmodel.serving.frontend import FRONT, NOTE, Front
from perfmodel.serving.loop import refuse_too_long
from perfmodel.serving.scheduler import Copy
from perfmodel.serving.tables import ServerTables, server_tables
from perfmodel.step.memory import idle_gpus, kv_pool
from perfmodel.step.slots import arrival_of

ROUTERS = ("round-robin", "least-loaded")
MOST_REQUESTS = 5_000_000
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened to every request, in the order given. Seconds from the start."""

    deployment: Deployment
    arrival_s: np.ndarray
    first_s: np.ndarray
    finish_s: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    preemptions: int
    timeline_s: np.ndarray
    timeline_running: np.ndarray
    timeline_tok_s: np.ndarray
    hit_tokens: int = 0  # prompt tokens found in the prefix cache
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

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
    def e2e_s(self) -> np.ndarray:
        """From sending a request to its last token. [s]"""
        return self.finish_s - self.arrival_s

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token. [s]"""
        return float(self.finish_s.max() - self.arrival_s.min())

    @property
    def output_tok_s(self) -> float:
        """Output tokens over the makespan, as benchmark tools print it. [1/s]"""
        return float(self.outputs.sum() / self.makespan_s)

    def within(self, ttft_s: float | None = None, tpot_s: float | None = None) -> np.ndarray:
        """Which requests keep the limits; an answer of one token has no TPOT to break."""
        for name, value in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
            if value is not None and not (is_number(value) and 0 < value <= 1e12):
                raise BadInput(f"{name} must lie above 0 and at most 1e12 seconds, not {shown(value)}")
        good = np.ones(len(self.outputs), bool)
        if ttft_s is not None:
            good &= self.ttft_s <= ttft_s
        if tpot_s is not None:
            good &= ~(self.tpot_s > tpot_s)
        return good

    def to_dict(self, ttft_s: float | None = None, tpot_s: float | None = None) -> dict[str, Any]:
        """JSON: percentiles, rates, the timeline; goodput where limits are given."""
        answer: dict[str, Any] = {
            "deployment": self.deployment.to_dict(),
            "requests": len(self.outputs),
            "makespan_s": self.makespan_s,
            "request_rate": len(self.outputs) / self.makespan_s,
            "output_tok_s": self.output_tok_s,
            "input_tok_s": float(self.inputs.sum() / self.makespan_s),
            "preemptions": self.preemptions,
            "prefix_hit_rate": self.hit_tokens / float(self.inputs.sum()),
        }
        for name, values in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)):
            known = values[np.isfinite(values)]
            answer[f"{name}_mean_ms"] = 1e3 * float(known.mean()) if len(known) else None
            for q in PERCENTILES:
                answer[f"{name}_p{q}_ms"] = 1e3 * float(np.percentile(known, q)) if len(known) else None
        if ttft_s is not None or tpot_s is not None:
            good = self.within(ttft_s, tpot_s)
            answer["goodput_req_s"] = float(good.sum() / self.makespan_s)
            answer["good_share"] = float(good.mean())
        columns = (("seconds", self.timeline_s), ("running", self.timeline_running), ("tok_s", self.timeline_tok_s))
        answer["timeline"] = {name: values.tolist() for name, values in columns}
        return {**answer, "warnings": list(self.warnings), "assumptions": list(self.assumptions)}

    def __repr__(self) -> str:
        count, rate = len(self.outputs), self.output_tok_s
        return f"<Simulation of {count:,} requests in {self.makespan_s:.4g} s, {rate:.0f} tok/s>"


def simulate(
    deployment: Deployment,
    *,
    inputs: Any,
    outputs: Any,
    arrivals: Any = None,
    concurrency: int | None = None,
    arrival: str | None = None,
    hash_ids: Sequence[Sequence[int]] | None = None,
    block: int = 512,
    router: str = "round-robin",
    front: Front = FRONT,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Run requests through the scheduler: all at once, at given times, or ``concurrency`` in flight.

    Replicas (dp) get requests from the ``router``: in turn, or the one with the fewest requests; a closed loop keeps
    them evenly loaded. ``hash_ids`` name the blocks of ``block`` tokens of each prompt: equal ids are found in the
    prefix cache; without them the deployment's prefix_hit_rate holds for every prompt. ``arrival`` fills pipeline slots
    as in `predict`. ``front`` lies between client and scheduler. Replicas that a router feeds in turn run on
    ``executor``. Deterministic: the same requests give the same times, wherever they run.
    """
    if not isinstance(deployment, Deployment):
        raise BadInput(f"simulate takes a deployment, not {shown(deployment)}", ["pm.deploy(...) makes one"])
    new, out = _whole("inputs", inputs), _whole("outputs", outputs)
    concurrency = None if concurrency is None else whole("concurrency", concurrency, 1)
    times = _arrivals(arrivals, new, out)
    warnings = _possible(deployment, int(np.max(new + out)))
    one_of("router", router, ROUTERS)
    block = whole("block", block, 1)
    hash_ids = None if hash_ids is None else _ids(hash_ids, len(new))
    copies = min(deployment.options.dp, concurrency or deployment.options.dp)  # fewer requests leave some idle
    share = None if concurrency is None else max(1, round(concurrency / copies))
    largest = max(1, min(len(new) if share is None else share, len(new)))
    arrival = arrival_of(deployment.options, arrival, lasting=arrivals is not None)
    tables = server_tables(
        deployment, largest, float(np.mean(new) + np.mean(out) / 2), arrival, float(np.mean(new))
    )
    found = np.minimum((new * deployment.options.prefix_hit_rate).astype(np.int64), new - 1)
    load = (times, new, out, np.zeros_like(found) if hash_ids is not None else found)
    if copies > 1 and router == "least-loaded" and share is None:
        runs = _routed(tables, load, copies, hash_ids, front)
    else:
        jobs = [(tables, *_dealt(load, hash_ids, np.arange(i, len(new), copies)), share, block, front)
                for i in range(min(copies, len(new)))]  # fmt: skip
        runs = list(executor.map(_run, jobs)) if executor else _here(jobs, len(new), progress)
    return replace(_collected(deployment, load, runs, front), warnings=warnings)


def _possible(deployment: Deployment, longest: int) -> tuple[str, ...]:
    """Refuse requests longer than the context; say so where the deployment does not even start."""
    refuse_too_long(deployment, longest, "the longest request has")
    pool = kv_pool(place(deployment))
    idle = idle_gpus(deployment)
    if pool.verdict == "fits":
        return idle
    return (*idle, f"memory says no ({pool.verdict}: {pool.reason}); the speed is of a deployment that cannot start",)


Load = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # arrivals, inputs, outputs, tokens found
Result = dict[str, Any]


def _dealt(load: Load, ids: Sequence[Sequence[int]] | None, mine: np.ndarray) -> tuple[Any, ...]:
    """What one copy gets."""
    return (mine, *(part[mine].tolist() for part in load), None if ids is None else [ids[i] for i in mine])


def _here(jobs: list[tuple[Any, ...]], total: int, progress: Callable[[int, int], None] | None) -> list[Result]:
    """Copy after copy in this process."""
    runs: list[Result] = []
    for job in jobs:
        before = sum(len(run["mine"]) for run in runs)
        runs.append(_run(job, None if progress is None else partial(_so_far, progress, before, total)))
    return runs


def _so_far(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _run(job: tuple[Any, ...], progress: Callable[[int], None] | None = None) -> Result:
    """One copy, wherever it runs."""
    tables, mine, times, new, out, found, ids, share, block, front = job
    copy = Copy(tables, times, new, out, found, share, ids, block, front)
    copy.progress = progress
    copy.go()
    return _result(copy, mine)


def _result(copy: Copy, mine: np.ndarray) -> Result:
    return {"mine": mine, "first": copy.first, "finish": copy.finish, "began": copy.began, "hits": copy.hits,
            "preempted": copy.preempted, "timeline": np.array(copy.timeline, float).reshape(-1, 3),
            "found": sum(copy.found) if copy.cache is None else copy.hits}  # fmt: skip


def _routed(
    tables: ServerTables, load: Load, copies: int, ids: Sequence[Sequence[int]] | None, front: Front
) -> list[Result]:
    """A router that knows how many requests each copy has: all copies go on to each arrival together."""
    if ids is not None:
        raise BadInput("hash_ids and router='least-loaded' do not go together; use round-robin")
    servers = [Copy(tables, [], [], [], [], front=front) for _ in range(copies)]
    owner: list[list[int]] = [[] for _ in servers]
    for i, (when, prompt, answer, found) in enumerate(zip(*(part.tolist() for part in load), strict=True)):
        for server in servers:
            server.go(when)
        at = min(range(copies), key=lambda k: (servers[k].load, k))
        servers[at].add(when, prompt, answer, found)
        owner[at].append(i)
    for server in servers:
        server.go()
    return [_result(server, np.array(mine, int)) for server, mine in zip(servers, owner, strict=True)]


def _collected(
    deployment: Deployment, load: Load, runs: list[Result], front: Front
) -> Simulation:
    """The copies' results in the order of the requests."""
    times, new, out, _ = load
    first, finish, began = np.zeros(len(new)), np.zeros(len(new)), times.copy()
    for run in runs:
        mine = run["mine"]
        first[mine], finish[mine], began[mine] = run["first"], run["finish"], run["began"]
    return Simulation(
        deployment, began, first + front.way_s, finish + front.way_s, new, out, sum(run["preempted"] for run in runs),
        *_timeline([run["timeline"] for run in runs]), sum(run["found"] for run in runs),
        assumptions=(*deployment.assumptions, NOTE) if any(front) else deployment.assumptions,
    )  # fmt: skip


def _timeline(parts: list[np.ndarray], points: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Running requests and tokens per second of all copies together, on even times."""
    end = max(float(part[-1, 0]) for part in parts if len(part))
    at = np.linspace(0.0, end, points + 1)
    running, made = np.zeros(points + 1), np.zeros(points + 1)
    for part in parts:
        seconds = np.concatenate([[0.0], part[:, 0]])
        place = np.minimum(np.searchsorted(part[:, 0], at), len(part) - 1)
        running += np.where(at > part[-1, 0], 0.0, part[place, 1])
        made += np.interp(at, seconds, np.concatenate([[0.0], part[:, 2]]))
    rate = np.diff(made) / np.maximum(np.diff(at), 1e-12)
    return at[1:], running[1:], rate


def _arrivals(arrivals: Any, new: np.ndarray, out: np.ndarray) -> np.ndarray:
    if len(new) != len(out):
        raise BadInput(f"{len(new)} inputs and {len(out)} outputs: one of each a request")
    try:
        times = np.zeros(len(new)) if arrivals is None else np.asarray(arrivals, float)
    except (TypeError, ValueError, OverflowError):
        raise BadInput("arrivals must be a list of seconds, one a request") from None
    if times.shape != new.shape or not np.all(np.isfinite(times)) or np.any(np.diff(times) < 0):
        raise BadInput("arrivals must be finite, ascending and one a request")
    return times


def _ids(hash_ids: Any, count: int) -> list[list[Any]]:
    """A list of ids a request."""
    try:
        lists = [list(ids) for ids in hash_ids if not isinstance(ids, str | bytes)]
        hash(tuple(map(tuple, lists)))
    except TypeError:
        raise BadInput("hash_ids must be a list of ids for each request") from None
    if len(lists) != count:
        raise BadInput(f"{len(lists)} lists of hash ids for {count} requests")
    if any(one != one for ids in lists for one in ids):  # NaN is found nowhere, not even where it was put
        raise BadInput("hash_ids must be numbers or words, not NaN")
    return lists


def _whole(name: str, value: Any) -> np.ndarray:
    try:
        array = np.round(np.asarray(value).astype(float))
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a list of token counts") from None
    if array.ndim != 1 or len(array) == 0 or not np.all((array >= 1) & (array <= 1e9)):
        raise BadInput(f"{name} must be a list of token counts from 1 to 1e9")
    if len(array) > MOST_REQUESTS:
        raise BadInput(f"{name}: {len(array):,} requests; at most {MOST_REQUESTS:,} are simulated at once")
    return array.astype(np.int64)
