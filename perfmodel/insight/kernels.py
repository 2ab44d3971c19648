"""Kernel and collective tables -> the rows of step/ that price the same kernels. No formula is written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.catalog import Moe, load_calibration
from perfmodel.costs.moe import busiest_rank_experts, busiest_rank_tokens, distinct_experts
from perfmodel.deployment import Deployment, deploy
from perfmodel.deployment.quantization import FORMATS
from perfmodel.insight.observed import Observation, Series, by_row, read
from perfmodel.placement import Placement, links_of, place
from perfmodel.step import forward
from perfmodel.step.attention_rows import attention_rows
from perfmodel.step.communication import collective_s
from perfmodel.step.expert_rows import experts_row, mlp_rows
from perfmodel.step.operations import Bench, Load, Row, gemm

# Tables of every accelerator, and the node that stands for it
TABLE_FILES = {
    "rtx-pro-6000-server": ("kernels-rtx-pro-6000", "kernels-rtx-pro-6000-narrow"),
    "h200-sxm": ("kernels-h200",),
    "b200-sxm": ("kernels-b200",),
    "l40s": ("kernels-l40s",),
}
FILES = tuple(stem for stems in TABLE_FILES.values() for stem in stems)
KERNELS, ACCELERATOR = "kernels-rtx-pro-6000", "rtx-pro-6000-server"    # the only one with all-reduces
NODE = f"8x-{ACCELERATOR}"
TABLES = ("gemm", "moe", "generation_mla", "mla_generation_module", "context_mla", "mla_context_module")
FORMS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4"}


def fitted(row: dict[str, str], accelerator: str) -> bool:
    """Sweeps that the shipped calibrations fit; all others are checked. Always whole sweeps.

    SGLang's MoE and decode attention are fitted and vLLM's checked; where vLLM alone was measured, two tensor or
    expert splits are fitted and the others checked. Large GEMMs are fitted and small ones checked; of MLA modules and
    prefill attention 8 and 64 heads are fitted, 16 and 32 checked.
    """
    table = row["table"]
    if table == "gemm":
        return int(row["n"]) * int(row["k"]) >= 2**24
    if table == "moe":
        if accelerator == ACCELERATOR:
            return row["backend"] == "sglang" and row["distribution"] != "pl1.2"
        return row["tp"] in ("1", "8") and row["ep"] in ("1", "8")
    if table == "mla_generation_module" and accelerator == ACCELERATOR:
        return False
    return table == "generation_mla" or row["heads"] in ("8", "64")


def why_not(row: dict[str, str]) -> str:
    """Reason that a row of the table is not compared; empty where it is."""
    if row["table"] == "all_reduce":
        eager = "eager all-reduce: its launches are the host's" if row["mode"] == "eager" else ""
        return "all-reduce of TensorRT-LLM's own" if row["backend"] == "trtllm" else eager
    if row["table"] == "mla_context_module" and row["kernel"] == "TRITON_MLA":
        return "prefill of one token a prompt runs the decode kernel"
    return "" if row["table"] in TABLES else "operation not modelled"


def sweep_of(row: dict[str, str], accelerator: str) -> str:
    """Name of the curve that a row lies on."""
    parts = {
        "gemm": f"n{row['n']} k{row['k']}",
        "moe": f"E{row['experts']} tp{row['tp']} ep{row['ep']} {row['distribution']}",
    }.get(row["table"], f"{row['heads']} heads")
    return f"{row['table']} {row['backend']} {parts} {row['dtype']} {accelerator}"


@lru_cache(maxsize=1)
def kernel_series() -> tuple[Series, ...]:
    """Every kernel curve of the tables, ready to be priced."""
    found = []
    for accelerator, stems in TABLE_FILES.items():
        curves: dict[str, list[dict[str, str]]] = {}
        for row in (row for stem in stems for row in read(stem)):
            if row["table"] in TABLES and not why_not(row):
                curves.setdefault(sweep_of(row, accelerator), []).append(row)
        found += [_series(sweep, rows, accelerator) for sweep, rows in curves.items()]
    return tuple(found)


def _series(sweep: str, rows: list[dict[str, str]], accelerator: str) -> Series:
    table = rows[0]["table"]
    price = _PRICES[table](rows, accelerator)
    streamed = rows[0]["backend"] == "torch"         # its weights were rotated through memory
    cache = 0.0 if streamed else float(place_of(1, 1, accelerator).deployment.accelerator.memory.l2)
    priors = {name: parameter.value for name, parameter in load_calibration(None).parameters.items()}
    traffic = np.broadcast_to(sum(np.asarray(row.bytes) for row in price(priors)), len(rows))
    use = "fit" if fitted(rows[0], accelerator) else "check"
    kept = tuple(Observation(f"{sweep} #{i}", "kernels", sweep, use, 1e-6 * float(row["latency_us"]), "s",
                             hot=bool(size < cache))
                 for i, (row, size) in enumerate(zip(rows, traffic, strict=True)))

    def seconds(values: dict[str, Any]) -> np.ndarray:
        return by_row(sum(np.asarray(row.seconds) for row in price(values)), len(rows))

    engine = rows[0]["backend"] if "context" in table else None     # only prefill attention differs by engine
    return Series(kept, seconds, np.zeros(len(rows)), accelerator, engine)


@lru_cache(maxsize=64)
def place_of(tp: int, ep: int, accelerator: str = ACCELERATOR) -> Placement:
    """A placement whose only purpose is to carry the shapes of one rank."""
    return place(deploy("kimi-k2.6", node=f"8x-{accelerator}", engine="sglang", tp=tp, ep=ep))


def bench(tp: int, ep: int, factors: dict[str, Any], accelerator: str, dtype: str = "", role: str = "default") -> Bench:
    """What prices a kernel of one of ``tp`` ranks, weights of ``role`` in the table's format."""
    desk = forward.bench_of(place_of(tp, ep, accelerator), factors)
    form = FORMS.get(dtype)
    return replace(desk, formats={**desk.formats, role: (form, FORMATS[form])}) if form else desk


def column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    """A column as numbers."""
    return np.array([float(row[name] or 0) for row in rows])


Price = Callable[[dict[str, Any]], list[Row]]


def _gemm(rows: list[dict[str, str]], accelerator: str) -> Price:
    m, n, k, dtype = column(rows, "m"), float(rows[0]["n"]), float(rows[0]["k"]), rows[0]["dtype"]
    return lambda factors: [gemm(bench(1, 1, factors, accelerator, dtype), "gemm", "default", m, n, k)]


def _moe(rows: list[dict[str, str]], accelerator: str) -> Price:
    """One fused MoE layer: the experts and the sorting of the tokens; the router's GEMM is not in the table.

    ``balanced`` deals the pairs out evenly, so min(E, 8 B) experts are touched; a power law is priced as the product
    prices random prompts, on its busiest rank.
    """
    tokens, first = column(rows, "tokens"), rows[0]
    ways, ep, own = int(first["tp"]) * int(first["ep"]), int(first["ep"]), first["dtype"]
    dtype = "" if own == "int4_wo" else own          # Kimi's own INT4 in groups of 32

    def price(factors: dict[str, Any]) -> list[Row]:
        desk = bench(ways, ep, factors, accelerator, dtype, "experts")
        moe = next(mlp for mlp in desk.model.mlp.values() if isinstance(mlp, Moe))
        moe = moe.model_copy(update={"experts": int(first["experts"])})
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


def _attention(rows: list[dict[str, str]], accelerator: str) -> Price:
    """MLA on one rank: the kernel alone in SGLang's tables, the module with its projections in vLLM's."""
    table, heads = rows[0]["table"], int(rows[0]["heads"])
    batch, isl, step = column(rows, "batch"), column(rows, "isl"), column(rows, "step")
    decode = "generation" in table
    load = (Load("decode", batch, batch, batch, isl + step, batch) if decode
            else Load("prefill", batch * isl, batch * isl, batch, step + (isl + 1) / 2, batch))
    wanted = "decode attention" if decode else "prefill attention"

    def price(factors: dict[str, Any]) -> list[Row]:
        priced = attention_rows(bench(64 // heads, 1, factors, accelerator), "mla", load)
        return [row for row in priced if row.name == wanted or "module" in table]

    return price


_PRICES: dict[str, Callable[[list[dict[str, str]], str], Price]] = {
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
