"""The operations of one decoder layer and of the ends of the model, priced on one rank: formulas meet descriptors here.

Every function returns `Row`s whose fields broadcast: [draws of the factors, slots, shape of the question].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.catalog import NONE, Dense, Format, Gqa, Mla, ModelArch, Moe
from perfmodel.costs.attention import attention_flop, decode_kv_bytes, decode_parallel_efficiency
from perfmodel.costs.dispatch import minimum
from perfmodel.costs.gemm import gemm_activation_bytes, gemm_flop
from perfmodel.costs.memory import bytes_per_weight
from perfmodel.costs.moe import busiest_rank_experts, busiest_rank_tokens, distinct_experts
from perfmodel.costs.roofline import compute_s, memory_s, operation_s
from perfmodel.engines.options import Options
from perfmodel.engines.sharding import weight_divisors
from perfmodel.errors import Unpriced
from perfmodel.placement.inventory import shared_width
from perfmodel.step.machine import Machine

ACTIVATION = 2.0  # bytes of a BF16 activation
HEAD_BLOCK = 16  # query heads that one tensor-core tile of a decode attention holds (MMA m16n8k16)
SPLITS = 32  # context splits of a decode kernel at long context (Triton MLA, flash-decoding)


@dataclass(frozen=True, eq=False)
class Row:
    """One priced operation. ``latency_s`` is the part of ``seconds`` that is kernel start-up."""

    name: str
    seconds: Any
    flop: Any = 0.0
    bytes: Any = 0.0
    message_bytes: Any = 0.0
    kernels: Any = 0.0
    compute_s: Any = 0.0
    memory_s: Any = 0.0
    latency_s: Any = 0.0
    bound: str = ""  # set where it is not decided by the three parts: communication, host, pipeline


FIELDS = ("seconds", "flop", "bytes", "message_bytes", "kernels", "compute_s", "memory_s", "latency_s")


def mapped(row: Row, change: Callable[[Any], Any], fields: tuple[str, ...] = FIELDS) -> Row:
    """The row with a function applied to each of its numbers."""
    return replace(row, **{name: change(getattr(row, name)) for name in fields})


@dataclass(frozen=True, eq=False)
class Load:
    """What one forward carries. ``tokens`` are the padded rows of one attention group, ``all_tokens`` of all groups."""

    phase: str  # "decode" or "prefill"
    tokens: Any
    all_tokens: Any
    sequences: Any  # sequences of one attention group, unpadded
    context: Any  # mean cached tokens that a new token attends to
    sampled: Any  # rows that get logits, one attention group


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything that prices an operation: model, options, formats, machine, calibrated factors."""

    model: ModelArch
    options: Options
    formats: dict[str, tuple[str, Format]]
    machine: Machine
    factors: dict[str, Any]
    kv_bytes_per_value: float

    def width(self, role: str) -> float:
        """Bytes per weight of a role. [B]"""
        form = self.formats.get(role, self.formats["default"])[1]
        return bytes_per_weight(form.bits, form.group or 0, form.scale_bits, form.zero_bits)

    def peak(self, role: str) -> float:
        """Peak of the arithmetic of a role. [FLOP/s]"""
        return self.machine.peak_of(self.formats.get(role, self.formats["default"])[0])

    @property
    def divisors(self) -> dict[str, float]:
        """Ways that weights of a role are divided."""
        moe = next((m for m in self.model.mlp.values() if isinstance(m, Moe)), None)
        return weight_divisors(self.options, moe.experts if moe else 0)


def price(
    bench: Bench,
    name: str,
    flop: Any,
    traffic: Any,
    kernels: float,
    *,
    peak: Any = None,
    compute: str = "gemm_efficiency",
    memory: Any = None,
) -> Row:
    """One row from work and traffic: the roofline with the factors of the calibration."""
    f = bench.factors
    arithmetic = compute_s(flop, bench.machine.peak_of("bf16") if peak is None else peak, f[compute])
    moving = memory_s(traffic, bench.machine.bandwidth_Bps, f["dram_efficiency"] if memory is None else memory)
    seconds = operation_s(arithmetic, moving, kernels, f["kernel_s"], f["roofline_overlap"])
    return Row(name, seconds, flop, traffic, 0.0, kernels, arithmetic, moving, kernels * f["kernel_s"])


def gemm(bench: Bench, name: str, role: str, m: Any, n: float, k: float, kernels: float = 1) -> Row:
    """A dense projection of m rows with an [k, n] weight of this role."""
    traffic = n * k * bench.width(role) + gemm_activation_bytes(m, n, k, ACTIVATION)
    return price(bench, name, gemm_flop(m, n, k), traffic, kernels, peak=bench.peak(role))


def attention_rows(bench: Bench, kind: str, load: Load) -> list[Row]:
    """One attention layer on one rank; none where the layer has no attention."""
    if kind == NONE:
        return []
    attention = bench.model.attention[kind]
    if isinstance(attention, Mla) and attention.indexer is None:
        return _mla(bench, attention, load)
    if isinstance(attention, Gqa) and attention.indexer is None:
        return _gqa(bench, attention, load)
    sparse = "sparse " if getattr(attention, "indexer", None) else ""
    raise Unpriced(f"the time of {sparse}{attention.kind} attention ({bench.model.name}) is not priced yet; memory is")


def _mla(bench: Bench, a: Mla, load: Load) -> list[Row]:
    model, tokens = bench.model, load.tokens
    heads = a.heads / bench.divisors["attention"]
    latent, query_head = a.kv_lora_rank + a.qk_rope_head_dim, a.qk_nope_head_dim + a.qk_rope_head_dim
    down = (a.q_lora_rank or 0) + latent
    rows = [
        price(bench, "norms, rotary, cache write", 0.0, tokens * (6 * model.hidden + 4 * down) * ACTIVATION, 6),
        gemm(bench, "q_a, kv_a projections", "attention", tokens, down, model.hidden),
        gemm(bench, "q_b projection", "attention", tokens, heads * query_head, a.q_lora_rank or model.hidden),
    ]
    if load.phase == "decode":
        absorb = heads * (a.qk_nope_head_dim + a.v_head_dim)
        rows.append(gemm(bench, "absorbed kv_b products", "default", tokens, absorb, a.kv_lora_rank, 2))
        rows.append(
            _decode_attention(
                bench, "decode attention", load, heads, latent, a.kv_lora_rank, latent * bench.kv_bytes_per_value
            )
        )
    else:
        expanded = heads * (a.qk_nope_head_dim + a.v_head_dim)
        seen = tokens + load.context - tokens / 2
        rows.append(gemm(bench, "kv_b projection", "attention", seen, expanded, a.kv_lora_rank))
        rows.append(_prefill_attention(bench, load, heads, query_head, a.v_head_dim))
    rows.append(gemm(bench, "output projection", "attention", tokens, model.hidden, heads * a.v_head_dim))
    return rows


def _gqa(bench: Bench, a: Gqa, load: Load) -> list[Row]:
    if a.window or a.chunk:
        load = replace(load, context=minimum(load.context, float(a.window or a.chunk or 0)))
    model, tokens, ways = bench.model, load.tokens, bench.divisors["attention"]
    heads, kv_heads, value = a.heads / ways, max(1, a.kv_heads / ways), a.v_head_dim or a.head_dim
    width = heads * a.head_dim + kv_heads * (a.head_dim + value)
    rows = [
        price(bench, "norms, rotary, cache write", 0.0, tokens * (6 * model.hidden + 2 * width) * ACTIVATION, 4),
        gemm(bench, "qkv projection", "attention", tokens, width, model.hidden),
    ]
    if load.phase == "decode":
        rows.append(
            _decode_attention(
                bench,
                "decode attention",
                load,
                heads,
                a.head_dim,
                value,
                kv_heads * (a.head_dim + value) * bench.kv_bytes_per_value,
                kv_heads,
            )
        )
    else:
        rows.append(_prefill_attention(bench, load, heads, a.head_dim, value))
    rows.append(gemm(bench, "output projection", "attention", tokens, model.hidden, heads * value))
    return rows


def _decode_attention(
    bench: Bench,
    name: str,
    load: Load,
    heads: float,
    key: float,
    value: float,
    bytes_per_token: float,
    groups: float = 1,
) -> Row:
    """Split-KV decode attention: bandwidth by the thread blocks it has, heads padded to a tile."""
    f, dcp = bench.factors, bench.options.dcp
    per_group = max(HEAD_BLOCK, heads * dcp / groups)  # context parallelism gathers heads and splits the context
    blocks = groups * max(1.0, per_group / HEAD_BLOCK / 4) * SPLITS
    half = f["attention_half_blocks_per_sm"] * bench.machine.sms
    busy = decode_parallel_efficiency(load.sequences, blocks, half, 1.0)  # idle SMs neither load nor multiply
    context = load.context / dcp
    merge = f["attention_pad_tokens"] * per_group / HEAD_BLOCK  # partial results of splits, per head tile
    traffic = decode_kv_bytes(load.sequences, context, bytes_per_token, merge)
    flop = attention_flop(load.sequences, context, groups * per_group, key, value)
    return price(
        bench,
        name,
        flop,
        traffic,
        2,
        peak=busy * bench.machine.peak_of("bf16"),
        compute="attention_decode_compute_efficiency",
        memory=busy * f["attention_dram_efficiency"],
    )


def _prefill_attention(bench: Bench, load: Load, heads: float, key: float, value: float) -> Row:
    flop = attention_flop(load.tokens, load.context, heads, key, value)
    traffic = load.tokens * heads * (key + value) * 2 * ACTIVATION
    return price(bench, "prefill attention", flop, traffic, 1, compute="attention_prefill_efficiency")


def mlp_rows(bench: Bench, kind: str, load: Load) -> list[Row]:
    """One MLP or mixture of experts on one rank; none where the layer has no MLP."""
    if kind == NONE:
        return []
    mlp = bench.model.mlp[kind]
    if isinstance(mlp, Moe) and (mlp.latent or mlp.residual_intermediate):
        raise Unpriced(f"the time of latent or residual experts ({bench.model.name}) is not priced yet; memory is")
    if isinstance(mlp, Moe):
        return _moe(bench, mlp, load)
    return _dense(bench, "MLP", "dense", mlp, mlp.intermediate, load)


def _dense(bench: Bench, name: str, role: str, mlp: Dense | Moe, intermediate: float, load: Load) -> list[Row]:
    """Gate, up and down of a dense MLP; which tokens it sees depends on where its divisor puts it."""
    hidden, width = bench.model.hidden, intermediate / bench.divisors[role]
    tokens = load.all_tokens if bench.divisors[role] > bench.divisors["attention"] else load.tokens
    up = 2 if mlp.gated else 1
    return [
        gemm(bench, f"{name} gate and up", role, tokens, up * width, hidden),
        price(bench, f"{name} activation", 0.0, tokens * (up + 1) * width * ACTIVATION, 1),
        gemm(bench, f"{name} down", role, tokens, hidden, width),
    ]


def _moe(bench: Bench, moe: Moe, load: Load) -> list[Row]:
    hidden, tokens, options = bench.model.hidden, load.all_tokens, bench.options
    rows = [
        gemm(bench, "router", "default", tokens, moe.experts, hidden),
        price(bench, "top-k and token sorting", 0.0, tokens * moe.experts * 4.0, 3),
    ]
    rows.append(_experts(bench, moe, tokens, options))
    if moe.shared_experts or moe.shared_intermediate:
        rows += _dense(bench, "shared experts", "shared", moe, shared_width(moe), load)
        rows.append(price(bench, "add shared output", 0.0, tokens * hidden * 3 * ACTIVATION, 1))
    return rows


def routing_concentration(bench: Bench) -> Any:
    """Shape of the experts' popularity: asked for, or by the kind of prompts."""
    if bench.options.expert_skew is not None:
        return bench.options.expert_skew
    return bench.factors[f"routing_concentration_{bench.options.prompts}"]


def _experts(bench: Bench, moe: Moe, tokens: Any, options: Options) -> Row:
    """Grouped products of the busiest rank, for the expected routing."""
    concentration = routing_concentration(bench)
    distinct = distinct_experts(tokens, moe.experts, moe.per_token, concentration)
    touched = busiest_rank_experts(distinct, moe.experts, options.ep)
    pairs = busiest_rank_tokens(tokens, moe.per_token, moe.experts, options.ep, concentration)
    return experts_row(bench, moe, touched, pairs)


def experts_row(bench: Bench, moe: Moe, touched: Any, pairs: Any) -> Row:
    """Grouped products of one rank: weights of the touched experts, arithmetic of the token-expert pairs."""
    f, hidden = bench.factors, bench.model.hidden
    matrices, width = (3 if moe.gated else 2), moe.intermediate / bench.options.expert_tp
    moved = touched * matrices * hidden * width * bench.width("experts")
    moved = moved + pairs * (2 * hidden + (matrices + 1) * width) * ACTIVATION
    lost = touched * f["moe_expert_overhead_bytes"]  # time that a short stream loses, written as bytes
    row = price(
        bench,
        "routed experts",
        pairs * 2 * matrices * hidden * width,
        moved + lost,
        4,
        peak=bench.peak("experts"),
        compute="moe_compute_efficiency",
        memory=f["moe_dram_efficiency"],
    )
    return replace(row, bytes=moved)


def edge_rows(bench: Bench, load: Load, first: bool, last: bool) -> list[Row]:
    """Embedding on the first stage; final norm, head and sampling on the last."""
    model, rows = bench.model, []
    if first:
        rows.append(price(bench, "embedding", 0.0, load.tokens * model.hidden * 2 * ACTIVATION, 1))
    if last:
        columns = model.vocab / bench.divisors["head"]
        gathered = bench.divisors["head"] > bench.divisors["attention"]
        sampled = load.sampled * (bench.options.dp_attention if gathered else 1)
        rows.append(gemm(bench, "lm head", "head", sampled, columns, model.hidden, 2))
        rows.append(price(bench, "sampling", 0.0, load.sampled * model.vocab * 4.0 * 4, 6))
    return rows
