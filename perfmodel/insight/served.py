"""Served TPOT of public benchmarks -> what the closed loop says about the same rows."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.catalog import load_model
from perfmodel.costs.serving import burst_share
from perfmodel.deployment import Deployment, deploy
from perfmodel.insight.observed import Observation, Series, by_row, decode_seconds, read
from perfmodel.insight.parallel import on_own_host
from perfmodel.placement import place
from perfmodel.serving.lengths import Lengths
from perfmodel.serving.loop import ROUNDS, Loop, loop_of
from perfmodel.serving.loop_times import loop_times
from perfmodel.step.factors import NAMES, idle_factors
from perfmodel.step.memory import kv_pool
from perfmodel.step.slots import usual_arrival

STEPS = "h200-vllm-steps-2026-11"
SERVED, EXCLUDED = "e2e-tpot", "e2e-excluded"
_COUNTS = ("max_sequences", "context", "prefill_chunk", "max_graph_batch", "receive_interval", "batch_wait_steps")
_SHARES = ("memory_fraction", "batch_wait_ratio")
LAUNCH = ("model", "quantization", "kv_dtype", "gpu", "n_gpus", "tp", "ep", "pp", "dp", "dp_attention", "cuda_graphs",
          "prefill_graphs", *_SHARES, *_COUNTS)
KEYS = ("author", *LAUNCH, "lengths", "prompts_at_once")
SPREADS = {"fixed": 0.0, "uniform-0.8-1": 0.2 / 12**0.5 / 0.9, "uniform-0-2": 1 / 3**0.5}
TOGETHER = 0.5          # of prompts that come together, a request waits in decode for those behind it: half
PREFILL_BOUND = 1024.0  # prompt tokens a decode step above which a row is scored apart and not fitted
PREFILL_RATIO = 10.0    # prompt over answer, the same
# Versions of images that do not state one: vLLM 0.14.0, the first that schedules ahead of the device, was released on
# 2026-01-17 (deepjavalibrary/djl issue 3833); SGLang 0.5.10, the first with prefill graphs, between two rows of
# 2026-03-25 (0.5.9) and 2026-04-17 (0.5.10.post1), the day assumed.
UNSTATED = {"vllm": ("2026-01-17", "0.13.0"), "sglang": ("2026-04-01", "0.5.9")}
VERSION = re.compile(r"v?(\d+\.\d+[.\w]*)$")
MOST_MEMORY = 0.96      # share of memory that a source has set which does not state it
MOST_CAPTURED = 1024    # a benchmark that states graphs captured the batches that it ran


def deployment_of(row: dict[str, str]) -> Deployment:
    """The deployment of a row; what its source leaves open takes the default of the engine's version.

    What was served did start: where the default leaves no memory for the cache, the source set more.
    """
    given: dict[str, Any] = {key: int(row[key]) for key in ("tp", "ep", "pp", "dp", "dp_attention")}
    if row["engine"] == "tensorrt-llm" or row["cuda_graphs"] == "on":
        given["max_graph_batch"] = MOST_CAPTURED
    given |= {key: int(row[key]) for key in _COUNTS if row[key]}
    given |= {key: _SWITCH[row[key]] for key in ("cuda_graphs", "prefill_graphs") if row[key] in _SWITCH}
    given |= {key: float(row[key]) for key in _SHARES if row[key]}
    given |= {"quantization": row["quantization"] or None, "kv_dtype": row["kv_dtype"] or _kv(row)}
    found = deploy(row["model"], node=node_of(row), engine=engine_of(row), **given)
    if kv_pool(place(found)).tokens > 0:
        return found
    given["memory_fraction"] = MOST_MEMORY
    return deploy(row["model"], node=node_of(row), engine=engine_of(row), **given)


_SWITCH = {"on": True, "off": False}


def engine_of(row: dict[str, str]) -> str:
    """Engine and version of a row; an unstated version by its date."""
    stated = VERSION.match(row["engine_version"])
    if stated:
        return f"{row['engine']}=={stated[1]}"
    since, before = UNSTATED.get(row["engine"], ("", ""))
    if "" < row["date"] < since:
        return f"{row['engine']}=={before}"
    return row["engine"]


def node_of(row: dict[str, str]) -> str:
    """The node file of a row."""
    return f"{max(8, int(row['n_gpus']))}x-{row['gpu']}"


def _kv(row: dict[str, str]) -> str | None:
    """An unstated KV type: what the checkpoint was made for, where the engine can hold it."""
    return load_model(row["model"]).kv_cache


@lru_cache(maxsize=1)
def series() -> tuple[Series, ...]:
    """Every served row, grouped by deployment and lengths."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read(SERVED):
        groups.setdefault((engine_of(row), *(row[key] for key in KEYS)), []).append(row)
    return tuple(_series(rows) for rows in groups.values())


def prompt_tokens_a_step(row: dict[str, str]) -> float:
    """Prompt tokens that come in for each decode step of a closed loop. [token]"""
    return float(row["concurrency"]) / int(row["dp"]) * float(row["isl"]) / float(row["osl"])


def use_of(row: dict[str, str]) -> str:
    """What a row may serve for: TPOT that is mostly prefill says how a benchmark queues, and is only checked."""
    short = float(row["isl"]) > PREFILL_RATIO * float(row["osl"])
    return "check" if short or prompt_tokens_a_step(row) > PREFILL_BOUND else "fit"


def source_of(row: dict[str, str]) -> str:
    """What is left out as a whole: one document x model x GPU x engine."""
    return f"{row['author']}/{row['model']}/{row['gpu']}/{row['engine']}"


def _series(rows: list[dict[str, str]]) -> Series:
    first = rows[0]
    deployment = deployment_of(first)
    loop = join([_loop(deployment, row) for row in rows])
    share = _share(loop, deployment) if first["prompts_at_once"] else 1.0
    kept = tuple(Observation(row["id"], "e2e", source_of(row), use_of(row), 1e-3 * float(row["tpot_ms"]), "s",
                             concurrency=float(row["concurrency"])) for row in rows)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        table = {name: np.reshape(np.asarray(value, float), (-1, 1, 1)) for name, value in factors.items()}
        times = loop_times(loop, table)
        decode = times.decode.seconds
        return by_row(decode + share * (times.tpot - decode), len(rows))

    return Series(kept, seconds, np.zeros(len(rows)), deployment.accelerator.name, deployment.options.engine,
                  uses=frozenset(NAMES) - idle_factors(deployment))


def _share(loop: Loop, deployment: Deployment) -> Any:
    """Of a steady loop's prefills, what prompts that came together meet: those behind it in the queue, as far as all
    run at once; beside chunked prefill only as many as fit into its own steps."""
    at_once, answer = np.minimum(loop.limit / loop.copies, 1.0), np.maximum(loop.output - 1, 1.0)
    met = TOGETHER
    if deployment.engine.mixes_prefill(deployment.options):
        met = burst_share(loop.output, np.maximum(loop.copies * loop.new / loop.chunk, 1.0))
    return 1.0 - (1.0 - met * loop.output / answer) * at_once


def _loop(deployment: Deployment, row: dict[str, str], rounds: float = ROUNDS) -> Loop:
    spread, flight = SPREADS[row["lengths"]], np.array([float(row["concurrency"])])
    inputs, outputs = (Lengths(float(row[key]), spread, row["lengths"]) for key in ("isl", "osl"))
    return loop_of(deployment, flight, inputs, outputs, usual_arrival(deployment.options, lasting=True),
                   rounds=rounds)


def join(loops: list[Loop]) -> Loop:
    """Loops of one deployment, priced together: one entry of every array each."""
    def column(name: str) -> np.ndarray:
        return np.array([float(np.ravel(getattr(loop, name))[0]) for loop in loops])

    parts = [[getattr(loop.slots, name) for loop in loops] for name in ("batch", "count")]
    batch, count = (np.concatenate(part, axis=2) for part in parts)
    names = ("copies", "running", "active", "limit", "chunk", "context", "new", "cached", "output", "spread",
             "rounds")
    columns: dict[str, Any] = {name: column(name) for name in names}
    padded, eager = (np.concatenate([getattr(loop.graphs, name) for loop in loops], axis=2)
                     for name in ("padded", "eager"))
    return replace(loops[0], slots=replace(loops[0].slots, batch=batch, count=count),
                   graphs=replace(loops[0].graphs, padded=padded, eager=eager), **columns)


@lru_cache(maxsize=1)
def step_series() -> tuple[Series, ...]:
    """Decode steps of a real engine on dummy weights, without any prefill between them."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read(STEPS):
        groups.setdefault((row["model"], row["node"], row["engine"]), []).append(row)
    return tuple(_steps(rows) for rows in groups.values())


def _steps(rows: list[dict[str, str]]) -> Series:
    first = rows[0]
    deployment = deploy(first["model"], node=first["node"], engine=first["engine"], tp=int(first["tp"]),
                        kv_dtype=first["kv_dtype"], expert_skew=1e9 if first["expert_routing"] == "uniform" else None)
    batch, context = (np.array([float(row[name]) for row in rows]) for name in ("batch", "context"))
    name = f"steps/{first['model']}/{deployment.accelerator.name}/{first['engine']}"
    kept = tuple(Observation(f"{name} #{i}", "steps", name, "fit", 1e-3 * float(row["step_ms"]), "s",
                             concurrency=float(row["batch"])) for i, row in enumerate(rows))
    price = decode_seconds(deployment, batch, context)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        return price(on_own_host(factors))

    return Series(kept, seconds, np.zeros(len(rows)), deployment.accelerator.name, first["engine"],
                  uses=frozenset(NAMES) - idle_factors(deployment))
