"""Layers with a recurrent state in place of a cache, priced on one rank: linear attention and Mamba-2."""

from __future__ import annotations

from perfmodel.catalog import Linear, Mamba2
from perfmodel.costs.attention import linear_attention_flop, recurrence_flop
from perfmodel.placement.cache import state_bytes_per_sequence_layer
from perfmodel.step.operations import ACTIVATION, Bench, Load, Row, gemm, price

CHUNK = 64  # tokens that the chunked form of a prefill takes at once (flash-linear-attention, SSD kernels)


def linear_rows(bench: Bench, kind: str, a: Linear, load: Load) -> list[Row]:
    """Gated delta net, Kimi delta attention or lightning attention."""
    hidden, tokens, ways = bench.model.hidden, load.tokens, bench.divisors["attention"]
    heads = a.value_heads / ways
    key, value = a.key_heads * a.key_dim / ways, heads * a.value_dim
    rows = [
        _norms(bench, load, 2 * (2 * key + 2 * value), 3),
        gemm(bench, "linear attention projections", "linear", tokens, 2 * key + value, hidden, part=kind),
    ]
    if a.gate_rank:
        rows.append(gemm(bench, "gate, down", "linear", tokens, a.gate_rank, hidden, part=kind))
    rows.append(gemm(bench, "gate", "linear", tokens, value, a.gate_rank or hidden, part=kind))
    if a.rule == "gdn":
        rows.append(gemm(bench, "decay and step", "linear", tokens, 2 * heads, hidden, part=kind, tensor="in_proj_ba"))
    if a.rule == "kda":
        rows.append(gemm(bench, "decay and step", "linear", tokens, a.key_dim + heads, hidden, part=kind))
        rows.append(gemm(bench, "decay, up", "linear", tokens, key, a.key_dim, part=kind))
    rows.append(_recurrence(bench, a, load, heads, a.key_dim, a.value_dim, 1 if a.conv else 0))
    rows.append(price(bench, "gated norm", 0.0, tokens * 3 * value * ACTIVATION, 1))
    rows.append(gemm(bench, "output projection", "linear", tokens, hidden, value, part=kind))
    return rows


def mamba_rows(bench: Bench, kind: str, a: Mamba2, load: Load) -> list[Row]:
    """A Mamba-2 mixer: projection, short convolution, state-space recurrence, gated norm, projection."""
    hidden, tokens, ways = bench.model.hidden, load.tokens, bench.divisors["attention"]
    heads, groups = a.heads / ways, max(1.0, a.groups / ways)
    inner = heads * a.head_dim
    into = 2 * inner + 2 * groups * a.state + heads
    return [
        _norms(bench, load, 2 * into, 2),
        gemm(bench, "mixer projection", "linear", tokens, into, hidden, part=kind),
        _recurrence(bench, a, load, heads, a.state, a.head_dim, 1),
        price(bench, "gated norm", 0.0, tokens * 3 * inner * ACTIVATION, 1),
        gemm(bench, "output projection", "linear", tokens, hidden, inner, part=kind),
    ]


def _norms(bench: Bench, load: Load, width: float, kernels: float) -> Row:
    traffic = load.tokens * (6 * bench.model.hidden + width) * ACTIVATION
    return price(bench, "norms, rotary, cache write", 0.0, traffic, kernels)


def _recurrence(
    bench: Bench, a: Linear | Mamba2, load: Load, heads: float, key: float, value: float, convolutions: int
) -> Row:
    """Decode reads and writes the state of every sequence; a prefill does so once a chunk and works in blocks."""
    state = state_bytes_per_sequence_layer(a, int(bench.divisors["attention"]))
    if load.phase == "decode":
        flop = recurrence_flop(load.sequences, heads, key, value)
        return price(bench, "recurrent state", flop, 2 * load.sequences * state, 1 + convolutions)
    flop = linear_attention_flop(load.tokens, heads, key, value, CHUNK)
    traffic = load.tokens * heads * (key + value) * 4 * ACTIVATION + 2 * (load.tokens / CHUNK + load.sequences) * state
    return price(bench, "recurrent state", flop, traffic, 6 + convolutions, compute="attention_prefill_efficiency")
