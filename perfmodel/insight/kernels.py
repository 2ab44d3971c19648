"""Kernel and collective tables -> the rows of step/ that price the same kernels. No formula is written here."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.catalog import Moe, load_calibration
from perfmodel.costs.moe import busiest_rank_experts, busiest_rank_tokens, distinct_experts
from perfmodel.deployment import Deployment, deploy
from perfmodel.insight.observed import Observation, Series, by_row, read
from perfmodel.placement import Placement, links_of, place
from perfmodel.step import forward
from perfmodel.step.communication import collective_s
from perfmodel.step.operations import Bench, Load, Row, attention_rows, experts_row, gemm, mlp_rows

KERNELS = "kernels-rtx-pro-6000"
NODE, ACCELERATOR = "8x-rtx-pro-6000-server", "rtx-pro-6000-server"
TABLES = ("gemm", "moe", "generation_mla", "mla_generation_module", "context_mla", "mla_context_module")
# Sweeps that the shipped calibration fits; all others are checked. Always whole sweeps: SGLang's MoE and decode
# attention are fitted and vLLM's checked; large GEMMs are fitted and small ones checked; of prefill attention, which
# has a factor per engine, 8 and 64 heads are fitted and 16 and 32 checked.
FITTED = {
    "gemm": lambda r: int(r["n"]) * int(r["k"]) >= 2**24,
    "moe": lambda r: r["backend"] == "sglang" and r["distribution"] != "pl1.2",
    "generation_mla": lambda r: True,
    "mla_generation_module": lambda r: False,
    "context_mla": lambda r: r["heads"] in ("8", "64"),
    "mla_context_module": lambda r: r["heads"] in ("8", "64"),
}


def why_not(row: dict[str, str]) -> str:
    """Reason that a row of the table is not compared; empty where it is."""
    if row["table"] == "all_reduce":
        eager = "eager all-reduce: its launches are the host's" if row["mode"] == "eager" else ""
        return "all-reduce of TensorRT-LLM's own" if row["backend"] == "trtllm" else eager
    if row["table"] == "mla_context_module" and row["kernel"] == "TRITON_MLA":
        return "prefill of one token a prompt runs the decode kernel"
    return "" if row["table"] in TABLES else "operation not modelled"


def sweep_of(row: dict[str, str]) -> str:
    """Name of the curve that a row lies on."""
    parts = {
        "gemm": f"n{row['n']} k{row['k']}",
        "moe": f"tp{row['tp']} ep{row['ep']} {row['distribution']}",
    }.get(row["table"], f"{row['heads']} heads")
    return f"{row['table']} {row['backend']} {parts}"


@lru_cache(maxsize=1)
def kernel_series() -> tuple[Series, ...]:
    """Every kernel curve of the table, ready to be priced."""
    curves: dict[str, list[dict[str, str]]] = {}
    for row in read(KERNELS):
        if row["table"] in TABLES and not why_not(row):
            curves.setdefault(sweep_of(row), []).append(row)
    return tuple(_series(sweep, rows) for sweep, rows in curves.items())


def _series(sweep: str, rows: list[dict[str, str]]) -> Series:
    table = rows[0]["table"]
    price = _PRICES[table](rows)
    cache = float(place_of(1, 1).deployment.accelerator.memory.l2)
    priors = {name: parameter.value for name, parameter in load_calibration(None).parameters.items()}
    traffic = np.broadcast_to(sum(np.asarray(row.bytes) for row in price(priors)), len(rows))
    use = "fit" if FITTED[table](rows[0]) else "check"
    kept = tuple(Observation(f"{sweep} #{i}", "kernels", sweep, use, 1e-6 * float(row["latency_us"]), "s",
                             hot=bool(size < cache))
                 for i, (row, size) in enumerate(zip(rows, traffic, strict=True)))

    def seconds(values: dict[str, Any]) -> np.ndarray:
        return by_row(sum(np.asarray(row.seconds) for row in price(values)), len(rows))

    engine = rows[0]["backend"] if "context" in table else None     # only prefill attention differs by engine
    return Series(kept, seconds, np.zeros(len(rows)), ACCELERATOR, engine)


@lru_cache(maxsize=32)
def place_of(tp: int, ep: int) -> Placement:
    """A placement whose only purpose is to carry the shapes of one rank."""
    return place(deploy("kimi-k2.6", node=NODE, engine="sglang", tp=tp, ep=ep))


def bench(tp: int, ep: int, factors: dict[str, Any]) -> Bench:
    """What prices a kernel of one of ``tp`` ranks."""
    return forward.bench_of(place_of(tp, ep), factors)


def column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    """A column as numbers."""
    return np.array([float(row[name] or 0) for row in rows])


Price = Callable[[dict[str, Any]], list[Row]]


def _gemm(rows: list[dict[str, str]]) -> Price:
    m, n, k = column(rows, "m"), float(rows[0]["n"]), float(rows[0]["k"])
    return lambda factors: [gemm(bench(1, 1, factors), "gemm", "default", m, n, k)]


def _moe(rows: list[dict[str, str]]) -> Price:
    """One fused MoE layer: the experts and the sorting of the tokens; the router's GEMM is not in the table.

    ``balanced`` deals the pairs out evenly, so min(E, 8 B) experts are touched; a power law is priced as the product
    prices random prompts, on its busiest rank.
    """
    tokens, first = column(rows, "tokens"), rows[0]
    ways, ep = int(first["tp"]) * int(first["ep"]), int(first["ep"])

    def price(factors: dict[str, Any]) -> list[Row]:
        desk = bench(ways, ep, factors)
        moe = next(mlp for mlp in desk.model.mlp.values() if isinstance(mlp, Moe))
        shape = factors["routing_concentration_random"]
        if first["distribution"] == "balanced":
            touched = np.minimum(moe.experts, moe.per_token * tokens) / ep
            pairs = moe.per_token * tokens / ep
        else:
            touched = busiest_rank_experts(distinct_experts(tokens, moe.experts, moe.per_token, shape), moe.experts, ep)
            pairs = busiest_rank_tokens(tokens, moe.per_token, moe.experts, ep, shape)
        load = Load("decode", tokens, tokens, tokens, 1.0, tokens)
        sorting = next(row for row in mlp_rows(desk, "moe", load) if row.name == "top-k and token sorting")
        return [experts_row(desk, moe, touched, pairs), sorting]

    return price


def _attention(rows: list[dict[str, str]]) -> Price:
    """MLA on one rank: the kernel alone in SGLang's tables, the module with its projections in vLLM's."""
    table, heads = rows[0]["table"], int(rows[0]["heads"])
    batch, isl, step = column(rows, "batch"), column(rows, "isl"), column(rows, "step")
    decode = "generation" in table
    load = (Load("decode", batch, batch, batch, isl + step, batch) if decode
            else Load("prefill", batch * isl, batch * isl, batch, step + (isl + 1) / 2, batch))
    wanted = "decode attention" if decode else "prefill attention"

    def price(factors: dict[str, Any]) -> list[Row]:
        priced = attention_rows(bench(64 // heads, 1, factors), "mla", load)
        return [row for row in priced if row.name == wanted or "module" in table]

    return price


_PRICES: dict[str, Callable[[list[dict[str, str]]], Price]] = {
    "gemm": _gemm, "moe": _moe, "generation_mla": _attention, "mla_generation_module": _attention,
    "context_mla": _attention, "mla_context_module": _attention,
}


def interconnect_series() -> list[Series]:
    """All-reduce curves in CUDA graphs and by nccl-tests, against the node file's variant for NCCL as installed.

    The node file was fitted to the curves that run NCCL; the others are checked.
    """
    curves: dict[str, list[dict[str, str]]] = {}
    for row in read(KERNELS):
        if row["table"] == "all_reduce" and not why_not(row):
            curves.setdefault(f"all_reduce {row['backend']} {row['gpus']} GPUs", []).append(row)
    return [_collective(sweep, rows) for sweep, rows in curves.items()]


def _collective(sweep: str, rows: list[dict[str, str]]) -> Series:
    ranks, sizes = int(rows[0]["gpus"]), column(rows, "message_bytes")
    backend = rows[0]["backend"]
    engine = "vllm" if backend == "nccl-tests" else backend
    d: Deployment = deploy("kimi-k2.6", node=NODE, engine=engine, tp=ranks, nccl="stock",
                           all_reduce="nccl" if backend == "nccl-tests" else None)
    kernels = {d.engine.all_reduce_backend(d.options, d.facts, ranks, float(n)) for n in sizes}
    use = "fit" if kernels == {"nccl"} else "check"
    kept = tuple(Observation(f"{sweep} #{i}", "interconnect", sweep, use, 1e-6 * float(row["latency_us"]), "s")
                 for i, row in enumerate(rows))
    links = links_of(d)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        return by_row(collective_s("all_reduce", sizes[None], ranks, d, links, factors), len(sizes))

    return Series(kept, seconds, np.zeros(len(rows)), ACCELERATOR, None)
