"""Steps of vLLM over two GPUs on dummy weights -> what the model says about the same rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment, deploy
from perfmodel.insight.observed import Observation, Series, by_row, decode_seconds, read
from perfmodel.placement import place
from perfmodel.step import forward
from perfmodel.step.factors import NAMES, idle_factors

PARALLEL = "h200-vllm-parallel-2026-11"
KEYS = ("sweep", "metric")
METRICS = ("decode_throughput", "prefill_throughput")
# The launch of every row, from the README of the observations
LAUNCH: dict[str, Any] = {"max_sequences": 256, "prefill_chunk": 16384, "context": 32768, "memory_fraction": 0.9}
UNIFORM = 1e9           # concentration of routing that is uniform
GENERATED = 80.0        # cached tokens beyond the prompt: half way between 16 and 144
# Host of our own two H200, a virtual machine: a launch of an elementwise kernel through PyTorch takes 10.4 us
# (h200-probe-2026-11), on the hosts of public benchmarks about 4.5 (assumed)
HOST_SPEED = 10.4 / 4.5
PROMPTS_A_STEP = 16.0   # 16,384 tokens a step hold 16 prompts of 1,024


def why_not(row: dict[str, str]) -> str:
    """Reason that a row says nothing about a step; empty where it does."""
    return "" if row["metric"] in METRICS else "memory lines: a question to memory, not to a step"


def deployment_of(row: dict[str, str]) -> Deployment:
    """The deployment of a row."""
    counts: dict[str, Any] = {key: int(row[key]) for key in ("tp", "ep", "pp", "dp", "dp_attention", "dcp")}
    nccl = "all-reduce NCCL" in row["notes"]
    return deploy(row["model"], node=row["topology"], engine=f"{row['engine']}=={row['engine_version']}",
                  quantization=None if row["weights"] == "bf16" else row["weights"], kv_dtype=row["kv_dtype"],
                  cuda_graphs=row["cuda_graphs"] == "on", attention_backend=row["attention_backend"].lower(),
                  all_reduce="nccl" if nccl else "custom", expert_skew=UNIFORM, **LAUNCH, **counts)


@lru_cache(maxsize=1)
def series() -> tuple[Series, ...]:
    """Every decode step and every burst of prefills, by configuration."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read(PARALLEL):
        if not why_not(row):
            groups.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    return tuple((_decode if metric == METRICS[0] else _prefill)(rows) for (_, metric), rows in groups.items())


def _observations(rows: list[dict[str, str]], deployment: Deployment) -> tuple[Observation, ...]:
    """One source for decode and prefill of a configuration; named like the sources of served rows."""
    first = rows[0]
    what = first["metric"].partition("_")[0]
    label = f"{first['sweep'].rpartition('/')[2]}/{first['model']}/{deployment.accelerator.name}/{first['engine']}"
    return tuple(Observation(row["id"], f"parallel {what}", label, row["use"], float(row["value"]), "tok/s",
                             concurrency=float(row["concurrency"])) for row in rows)


def _decode(rows: list[dict[str, str]]) -> Series:
    """A step of sequences that were held until all were there: one micro-batch under pipelining."""
    deployment = deployment_of(rows[0])
    batch = np.array([float(row["concurrency"]) for row in rows])
    context = np.array([float(row["isl"]) for row in rows]) + GENERATED
    price = decode_seconds(deployment, batch, context, "burst" if deployment.options.pp > 1 else None)
    return Series(_observations(rows, deployment), lambda factors: price(on_own_host(factors)), batch,
                  deployment.accelerator.name, rows[0]["engine"], uses=frozenset(NAMES) - idle_factors(deployment))


def _prefill(rows: list[dict[str, str]]) -> Series:
    """Prompts that came together, in full steps one after the other: this version overlaps no two of them."""
    deployment = deployment_of(rows[0])
    placement = place(deployment)
    prompts = np.array([float(row["concurrency"]) for row in rows])
    length = np.array([float(row["isl"]) for row in rows])
    together = np.minimum(prompts, PROMPTS_A_STEP)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        one = forward.prefill(placement, together * length, 0.0 * length, on_own_host(factors), together)
        return by_row(one.seconds * prompts / together, len(rows))

    return Series(_observations(rows, deployment), seconds, prompts * length, deployment.accelerator.name,
                  rows[0]["engine"], uses=frozenset(NAMES) - idle_factors(deployment))


def on_own_host(factors: dict[str, Any]) -> dict[str, Any]:
    """Factors on the host of our own measurements, with the axes of slots and rows behind their draws."""
    shaped = {name: np.reshape(np.asarray(value, float), (-1, 1, 1)) for name, value in factors.items()}
    return shaped | {"host_speed": HOST_SPEED * shaped["host_speed"]}
