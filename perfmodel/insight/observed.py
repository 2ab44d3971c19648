"""Observations -> what the model says about the same rows. `validate` compares the two; `calibration` fits with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.catalog.lookup import find, unknown
from perfmodel.catalog.yaml import read_text
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import DescriptorError
from perfmodel.placement import place
from perfmodel.step import forward
from perfmodel.step.memory import running_limit
from perfmodel.step.slots import occupancy

SWEEPS, CASE = "kimi-rtx-pro-6000-vllm", "kimi-case-sglang"
MAX_CSV_BYTES = 2**24

# The node file that stands for each topology named in the observations.
NODES = {
    "dual-turin-direct": "8x-rtx-pro-6000-server",
    "dual-9b14-direct": "8x-rtx-pro-6000-server",
    "c-payne-switches": "8x-rtx-pro-6000-server-2switch",
}
DEFAULT_NODE = "8x-rtx-pro-6000-server"

# The sweeps time 20 s of decode: the mean sequence has generated half of what it generates in that time. Kind:
# derived from llm_decode_bench.py, which measures inter-token times in a window of 10 to 30 s.
WINDOW_S = 20.0
# The case states completions of 1,722 to 4,096 tokens and no prompt length. Kind: assumed.
CASE_PROMPT, CASE_OUTPUT = 200.0, 2900.0

LIMITED = "running batch limited by KV, not by concurrency"


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured figure with its place in the split. ``measured`` is in tok/s or in seconds, by ``unit``."""

    id: str
    kind: str               # decode, prefill, case, kernels, interconnect
    sweep: str
    use: str                # fit or check
    measured: float
    unit: str               # tok/s or s
    hot: bool = False       # the bytes of a kernel row fit the last-level cache
    concurrency: float = 0.0


@dataclass(frozen=True, eq=False)
class Series:
    """Rows of one deployment that are priced together. ``seconds(factors)`` has the shape [draws, rows].

    Factors are plain numbers, or `Factors.draws(2)`.
    """

    rows: tuple[Observation, ...]
    seconds: Any
    tokens: np.ndarray      # rate = tokens / seconds; 0 where seconds were measured
    accelerator: str
    engine: str | None      # whose calibration prices these rows; None: the accelerator's alone
    more_sd: Any = 0.0      # deviation of the logarithm beyond that of the factors: what a description leaves open
    uses: frozenset[str] = frozenset()     # factors that matter here, where that is known

    def log_ratio(self, factors: dict[str, Any]) -> np.ndarray:
        """log(predicted / measured) of the times, [draws, rows]; a rate is turned into the time that it stands for."""
        measured = np.array([row.measured for row in self.rows])
        times = np.where(self.tokens > 0, self.tokens / measured, measured)
        return np.log(self.seconds(factors) / times)


@lru_cache(maxsize=8)
def read(stem: str) -> tuple[dict[str, str], ...]:
    """Rows of an observations file of the catalog."""
    path = find("observations", stem)
    if path is None:
        raise unknown("observations", stem)
    rows = tuple(csv.DictReader(io.StringIO(read_text(path, MAX_CSV_BYTES))))
    if not rows:
        raise DescriptorError(f"{path.name}: no rows")
    return rows


def digest(stem: str) -> str:
    """SHA-256 of an observations file, as calibrations record it."""
    from hashlib import sha256

    path = find("observations", stem)
    if path is None:
        raise unknown("observations", stem)
    return sha256(path.read_bytes()).hexdigest()


def why_not(row: dict[str, str]) -> str:
    """Reason that a row says nothing about a step; empty where it does."""
    if row["use"] == "unusable":
        return row["notes"].split(";")[0].removeprefix("unusable: ").split(" (")[0].split(", ")[0]
    if row["metric"] == "kv_cache_tokens":
        return "KV tokens: a question to memory, not to a step"
    if "KV limited" in row["notes"]:
        return LIMITED
    if row["metric"] == "prefill_throughput" and not row["isl"]:
        return "prompt length not stated"
    return ""


def deployment_of(row: dict[str, str]) -> Deployment:
    """The deployment that a row of the sweeps was measured on, as far as the row says."""
    given: dict[str, Any] = {key: int(row[key]) for key in ("tp", "ep", "pp", "dp", "dp_attention", "dcp") if row[key]}
    if row["pp"] not in ("", "1") and row["engine"] == "sglang":
        given["max_sequences"] = 64                 # the case's launch line: --max-running-requests 64
    return deploy(
        row["model"], node=NODES.get(row["topology"], DEFAULT_NODE), engine=row["engine"],
        kv_dtype=row["kv_dtype"] or None, cuda_graphs=row["cuda_graphs"] != "off",
        attention_backend=row["attention_backend"].lower() or None, prompts=row["prompts"] or "random", **given)


def context_of(row: dict[str, str]) -> float:
    """Mean cached tokens of a sequence while the row was measured. [token]"""
    if row["sweep"].startswith("case/"):
        return CASE_PROMPT + CASE_OUTPUT / 2
    generated = WINDOW_S * float(row["value"]) / float(row["concurrency"])
    return float(row["isl"]) + min(generated, float(row["osl"] or np.inf)) / 2


def series(rows: Iterable[dict[str, str]]) -> list[Series]:
    """Comparable rows, grouped by deployment and kind, ready to be priced."""
    keys = ("model", "kv_dtype", "topology", "tp", "ep", "pp", "dp", "dp_attention", "dcp", "engine", "cuda_graphs",
            "attention_backend", "prompts")
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        if not why_not(row):
            groups.setdefault((row["metric"], *(row[key] for key in keys)), []).append(row)
    return [(_prefill if metric == "prefill_throughput" else _decode)(group)
            for (metric, *_), group in groups.items()]


def _decode(rows: list[dict[str, str]]) -> Series:
    deployment = deployment_of(rows[0])
    batch = np.array([float(row["concurrency"]) for row in rows])
    context = np.array([context_of(row) for row in rows])
    kind = "case" if rows[0]["sweep"].startswith("case/") else "decode"
    kept = tuple(_observation(row, kind) for row in rows)
    price = decode_seconds(deployment, batch, context)
    return Series(kept, price, batch, deployment.accelerator.name, rows[0]["engine"])


def _observation(row: dict[str, str], kind: str) -> Observation:
    return Observation(row["id"], kind, row["sweep"], row["use"], float(row["value"]), "tok/s",
                       concurrency=float(row["concurrency"] or 1))


def decode_seconds(deployment: Deployment, batch: np.ndarray, context: np.ndarray, arrival: str | None = None) -> Any:
    """Function of the factors: seconds of decode steps, [draws, rows]."""
    placement = place(deployment)
    slots = occupancy(deployment, batch, running_limit(placement), arrival)
    return lambda factors: by_row(forward.decode(placement, batch, context, factors, slots).seconds, len(batch))


def _prefill(rows: list[dict[str, str]]) -> Series:
    deployment = deployment_of(rows[0])
    placement = place(deployment)
    tokens = np.array([float(row["isl"]) for row in rows])
    kept = tuple(_observation(row, "prefill") for row in rows)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        return by_row(forward.prefill(placement, tokens, 0.0, factors).seconds, len(tokens))

    return Series(kept, seconds, tokens, deployment.accelerator.name, rows[0]["engine"])


def by_row(seconds: Any, count: int) -> np.ndarray:
    """Seconds in the shape [draws, rows]; an axis of slots between the two has one entry by now."""
    seconds = np.atleast_2d(np.asarray(seconds, float))
    if seconds.ndim == 3:
        seconds = seconds[:, 0]
    return np.broadcast_to(seconds, (len(seconds), count))
