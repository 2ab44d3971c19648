"""Tables of collectives, hardware/observations/nccl-*.csv -> what the model says about the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.deployment import Deployment, deploy
from perfmodel.insight.observed import Observation, Series, by_row, read
from perfmodel.placement import links_of
from perfmodel.step.collective import eager_s, unstated_sd
from perfmodel.step.communication import collective_s, kernel_s, nccl_choice

TABLES = ("nccl-aiconfigurator", "nccl-host-staged", "nccl-public", "nccl-clusters", "nccl-kernels")
SMALLEST, LARGEST = 2.0**10, 2.0**28        # of the messages that are compared [B]
PLAIN = ("nccl-tests", "torch", "pynccl")   # backends that run NCCL alone; others are an engine's choice, or a kernel:
FORCED = {"custom_one_shot": "custom_one_shot", "custom_two_shot": "custom_two_shot", "multimem": "multimem",
          "symm_mem_two_shot": "symm_mem"}


def why_not(row: dict[str, str]) -> str:
    """Reason that a row is not compared; empty where it is."""
    if row["use"] == "unusable":
        return row["notes"].removeprefix("unusable: ").split(";")[0]
    if not SMALLEST <= float(row["message_bytes"]) <= LARGEST:
        return "collective below 1 KiB or above 256 MiB"
    return ""


def rows_by_sweep() -> dict[str, list[dict[str, str]]]:
    """Comparable rows of all tables, curve by curve."""
    found: dict[str, list[dict[str, str]]] = {}
    for stem in TABLES:
        for row in read(stem):
            if not why_not(row):
                found.setdefault(row["sweep"], []).append(row)
    return found


def series() -> list[Series]:
    """Every curve, ready to be priced."""
    return [_series(sweep, rows) for sweep, rows in rows_by_sweep().items()]


def deployment_of(row: dict[str, str]) -> Deployment:
    """A deployment whose only purpose is to know links and kernels of a row."""
    engine = "sglang" if row["backend"] == "sglang" else "vllm"
    kernels = {"pcie_ipc": "pcie_ipc", "nccl-tests": "nccl", "torch": "nccl"}.get(row["backend"])
    ranks = int(row["gpus"])
    return deploy("kimi-k2.6", node=row["node"], engine=engine, tp=ranks if 64 % ranks == 0 else 1,
                  nccl=row["nccl"] or None, all_reduce=kernels)


def _series(sweep: str, rows: list[dict[str, str]]) -> Series:
    first, op, ranks = rows[0], rows[0]["table"], int(rows[0]["gpus"])
    sizes = np.array([float(row["message_bytes"]) for row in rows])
    d = deployment_of(first)
    links = links_of(d)
    kept = tuple(
        Observation(f"{sweep} #{i}", "interconnect", f"{op} {sweep}", row["use"], 1e-6 * float(row["latency_us"]), "s")
        for i, row in enumerate(rows)
    )

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        if first["backend"] in FORCED:
            times = kernel_s(FORCED[first["backend"]], sizes[None], ranks, links, factors, sums=False)
        elif first["backend"] in PLAIN:
            times = nccl_choice(op, sizes[None], ranks, links, factors)[2]
        else:
            times = collective_s(op, sizes[None], ranks, d, links, factors)
        if first["mode"] != "graph":
            times = eager_s(times, ranks if first["mode"] == "process" else 1, first["mode"] == "torch")
        return by_row(times, len(sizes))

    more = unstated_sd(op, sizes, ranks, links)
    return Series(kept, seconds, np.zeros(len(rows)), d.accelerator.name, None, more)
