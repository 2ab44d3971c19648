"""One MLP, mixture of experts or residual mixing on one rank, priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.catalog import NONE, Dense, Moe
from perfmodel.costs.gemm import gemm_flop
from perfmodel.costs.moe import busiest_rank_experts, busiest_rank_tokens, distinct_experts, padded_pairs
from perfmodel.engines.options import Options
from perfmodel.placement.inventory import shared_width
from perfmodel.step.factors import expert_ending
from perfmodel.step.operations import ACTIVATION, Bench, Load, Row, gemm, price

EXPERT_TILE = 16  # least rows of an expert that a grouped kernel multiplies (MMA m16n8k16)


def mlp_rows(bench: Bench, kind: str, load: Load) -> list[Row]:
    """One MLP or mixture of experts on one rank; none where the layer has no MLP."""
    if kind == NONE:
        return []
    mlp = bench.model.mlp[kind]
    if isinstance(mlp, Moe):
        return _moe(bench, kind, mlp, load)
    return _dense(bench, kind, "MLP", "dense", mlp, mlp.intermediate, load)


def _dense(
    bench: Bench, kind: str, name: str, role: str, mlp: Dense | Moe, intermediate: float, load: Load
) -> list[Row]:
    """Gate, up and down of a dense MLP; which tokens it sees depends on where its divisor puts it."""
    hidden, width = bench.model.hidden, intermediate / bench.divisors[role]
    tokens = load.all_tokens if bench.divisors[role] > bench.divisors["attention"] else load.tokens
    up = 2 if mlp.gated else 1
    return [
        gemm(bench, f"{name} gate and up", role, tokens, up * width, hidden, part=kind),
        price(bench, f"{name} activation", 0.0, tokens * (up + 1) * width * ACTIVATION, 1),
        gemm(bench, f"{name} down", role, tokens, hidden, width, part=kind),
    ]


def _moe(bench: Bench, kind: str, moe: Moe, load: Load) -> list[Row]:
    hidden, tokens, options = bench.model.hidden, load.all_tokens, bench.options
    rows = [
        gemm(bench, "router", "router", tokens, moe.experts, hidden, part=kind),
        price(bench, "top-k and token sorting", 0.0, tokens * moe.experts * 4.0, 3),
    ]
    if moe.latent:
        rows.append(gemm(bench, "latent projections", "latent_moe", tokens, 2 * moe.latent, hidden, 2, part=kind))
    rows.append(_experts(bench, kind, moe, tokens, options))
    if moe.shared_experts or moe.shared_intermediate:
        rows += _dense(bench, kind, "shared experts", "shared", moe, shared_width(moe), load)
        rows.append(price(bench, "add shared output", 0.0, tokens * hidden * 3 * ACTIVATION, 1))
    if moe.residual_intermediate:
        rows += _dense(bench, kind, "residual MLP", "dense", moe, moe.residual_intermediate, load)
        rows.append(price(bench, "norms of the branches", 0.0, tokens * hidden * 6 * ACTIVATION, 3))
    return rows


def routing_concentration(bench: Bench) -> Any:
    """Shape of the experts' popularity: asked for, or by the kind of prompts."""
    if bench.options.expert_skew is not None:
        return bench.options.expert_skew
    return bench.factors[f"routing_concentration_{bench.options.prompts}"]


def _experts(bench: Bench, kind: str, moe: Moe, tokens: Any, options: Options) -> Row:
    """Grouped products of the busiest rank, for the expected routing."""
    concentration = routing_concentration(bench)
    distinct = distinct_experts(tokens, moe.experts, moe.per_token, concentration)
    touched = busiest_rank_experts(distinct, moe.experts, options.ep)
    pairs = busiest_rank_tokens(tokens, moe.per_token, moe.experts, options.ep, concentration)
    return experts_row(bench, moe, touched, pairs, kind)


def experts_row(bench: Bench, moe: Moe, touched: Any, pairs: Any, part: str = "") -> Row:
    """Grouped products of one rank: weights of the touched experts, arithmetic of the token-expert pairs."""
    f, hidden = bench.factors, moe.latent or bench.model.hidden
    family = expert_ending(bench.arithmetic("experts", part), bench.form("experts", part)[1].bits)
    matrices, width = (3 if moe.gated else 2), moe.intermediate / bench.options.expert_tp
    shard = matrices * hidden * width * bench.width("experts", part)
    narrow = 1 + f["moe_expert_overhead_bytes"] / shard  # a short stream and a narrow product lose the same share
    moved = touched * shard + pairs * (2 * hidden + (matrices + 1) * width) * ACTIVATION
    flop = 2 * matrices * hidden * width
    row = price(
        bench,
        "routed experts",
        narrow * padded_pairs(pairs, touched, EXPERT_TILE) * flop,
        moved + (narrow - 1) * touched * shard,
        4 if family in ("", "_bf16") else 6,
        peak=bench.peak("experts", part),
        compute=f"moe_compute_efficiency{family}",
        memory=f[f"moe_dram_efficiency{family}"],
    )
    return replace(row, bytes=moved, flop=pairs * flop)


def residual_rows(bench: Bench, halves: int, load: Load) -> list[Row]:
    """What a model does around its halves: residual streams (DeepSeek V4), an input a layer (Gemma 3n)."""
    model, tokens, rows = bench.model, load.tokens, []
    if model.hyper_connections:
        wide = model.hyper_connections * model.hidden
        mixes = model.hyper_connections * (2 + model.hyper_connections)
        traffic = halves * (mixes * wide * 4.0 + tokens * 4 * wide * ACTIVATION)
        rows.append(price(bench, "residual streams", halves * gemm_flop(tokens, mixes, wide), traffic, 4 * halves))
    if model.per_layer_input:
        width = model.per_layer_input.width
        rows.append(gemm(bench, "per-layer input", "per_layer", tokens, 2 * width, model.hidden, 4))
    return rows
