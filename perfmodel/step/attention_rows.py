"""One attention layer on one rank, priced: latent, grouped, windowed, sparse and compressed attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.catalog import NONE, Compressed, Gqa, Indexer, Linear, Mamba2, Mla
from perfmodel.costs.attention import attention_flop, decode_kv_bytes, decode_parallel_efficiency
from perfmodel.costs.dispatch import minimum
from perfmodel.placement.cache import index_bytes, kv_bytes_per_token_layer
from perfmodel.step.mixer_rows import linear_rows, mamba_rows
from perfmodel.step.operations import ACTIVATION, Bench, Load, Row, gemm, price

HEAD_BLOCK = 16  # query heads that one tensor-core tile of a decode attention holds (MMA m16n8k16)
SPLITS = 32  # context splits of a decode kernel at long context (Triton MLA, flash-decoding)


def attention_rows(bench: Bench, kind: str, load: Load) -> list[Row]:
    """One attention layer on one rank, or what stands in its place; none where the layer has no attention."""
    if kind == NONE:
        return []
    attention = bench.model.attention[kind]
    if isinstance(attention, Mla):
        return _mla(bench, kind, attention, load)
    if isinstance(attention, Gqa):
        return _gqa(bench, kind, attention, load)
    if isinstance(attention, Compressed):
        return _compressed(bench, kind, attention, load)
    if isinstance(attention, Linear):
        return linear_rows(bench, kind, attention, load)
    assert isinstance(attention, Mamba2)
    return mamba_rows(bench, kind, attention, load)


def _norms(bench: Bench, load: Load, width: float, kernels: float) -> Row:
    """Norms of the layer, rotary embedding and the write into the cache: elementwise, bound by memory."""
    more = 2.0 * (bench.model.norms.each - 1)
    traffic = load.tokens * ((6 + 2 * more) * bench.model.hidden + width) * ACTIVATION
    return price(bench, "norms, rotary, cache write", 0.0, traffic, kernels + more)


def _mla(bench: Bench, kind: str, a: Mla, load: Load) -> list[Row]:
    """Multi-head latent attention: absorbed in decode and where an indexer picks tokens, else expanded in prefill."""
    model, tokens = bench.model, load.tokens
    heads = a.heads / bench.divisors["attention"]
    latent, query_head = a.kv_lora_rank + a.qk_rope_head_dim, a.qk_nope_head_dim + a.qk_rope_head_dim
    down = (a.q_lora_rank or 0) + latent
    rows = [
        _norms(bench, load, 4 * down, 6),
        gemm(bench, "q_a, kv_a projections", "latent", tokens, down, model.hidden, part=kind),
        gemm(bench, "q_b projection", "attention", tokens, heads * query_head, a.q_lora_rank or model.hidden,
             part=kind),
        *_indexer(bench, kind, a.indexer, load, load.context),
    ]
    attended = _picked(load, a.indexer, load.context)
    if load.phase == "decode" or a.indexer:
        absorb = heads * (a.qk_nope_head_dim + a.v_head_dim)
        rows.append(gemm(bench, "absorbed kv_b products", "absorbed", tokens, absorb, a.kv_lora_rank, 2, part=kind))
    if load.phase == "decode":
        cached = kv_bytes_per_token_layer(a, bench.options.kv_dtype, 1) - index_bytes(a.indexer)
        rows += [_decode(bench, attended, heads, latent, a.kv_lora_rank, cached),
                 *_gathered(bench, load, heads, latent, a.kv_lora_rank)]
    elif a.indexer:
        rows.append(_prefill(bench, attended, heads, latent, a.kv_lora_rank))
    else:
        expanded = heads * (a.qk_nope_head_dim + a.v_head_dim)
        seen = tokens + load.context - tokens / 2
        rows.append(gemm(bench, "kv_b projection", "attention", seen, expanded, a.kv_lora_rank, part=kind))
        rows.append(_prefill(bench, load, heads, query_head, a.v_head_dim))
    if a.output_gate:
        rows.append(gemm(bench, "output gate", "attention", tokens, heads * a.v_head_dim, model.hidden, 2, part=kind))
    rows.append(_output(bench, kind, load, heads * a.v_head_dim))
    return rows


def _gqa(bench: Bench, kind: str, a: Gqa, load: Load) -> list[Row]:
    """Grouped-query attention; a window or a chunk limits what a token sees. Few KV heads are copied to every rank."""
    model, tokens, ways = bench.model, load.tokens, bench.divisors["attention"]
    if a.window or a.chunk:
        load = replace(load, context=minimum(load.context, float(a.window or a.chunk or 0)))
    heads, kv_heads, value = a.heads / ways, max(1, a.kv_heads / ways), a.v_head_dim or a.head_dim
    cached = 0 if a.shares_kv else kv_heads * (a.head_dim + (0 if a.v_from_k else value))
    gate = {False: 0.0, True: heads * value, "head": heads}[a.output_gate]
    width = heads * a.head_dim + cached + gate
    norms = 4 if not a.qk_norm else 5
    rows = [
        _norms(bench, load, 2 * width, norms + (1 if a.output_gate else 0)),
        gemm(bench, "qkv projection", "attention", tokens, width, model.hidden, part=kind),
        *_indexer(bench, kind, a.indexer, load, load.context),
    ]
    attended = _picked(load, a.indexer, load.context)
    if load.phase == "decode":
        token_bytes = kv_heads * (a.head_dim + value) * bench.kv_bytes_per_value
        rows += [_decode(bench, attended, heads, a.head_dim, value, token_bytes, kv_heads),
                 *_gathered(bench, load, heads, a.head_dim, value)]
    else:
        rows.append(_prefill(bench, attended, heads, a.head_dim, value))
    rows.append(_output(bench, kind, load, heads * value))
    return rows


def _compressed(bench: Bench, kind: str, a: Compressed, load: Load) -> list[Row]:
    """DeepSeek V4: a window, and older tokens in blocks of ``ratio`` entries that an indexer may pick from."""
    hidden, tokens, heads = bench.model.hidden, load.tokens, a.heads / bench.divisors["attention"]
    entries = load.context / a.ratio if a.ratio else 0.0 * load.context
    picked = minimum(entries, float(a.indexer.topk)) if a.indexer else entries
    seen = replace(load, context=minimum(load.context, float(a.window)) + picked)
    groups = a.o_groups / bench.divisors["attention"]
    rows = [
        _norms(bench, load, 4 * (a.q_lora_rank + a.head_dim), 6),
        gemm(bench, "q_a, kv projections", "latent", tokens, a.q_lora_rank + a.head_dim, hidden, part=kind),
        gemm(bench, "q_b projection", "attention", tokens, heads * a.head_dim, a.q_lora_rank, part=kind),
    ]
    if a.ratio:
        width = a.head_dim * (2 if a.overlap else 1)
        rows.append(gemm(bench, "compressor", "compressor", tokens, 2 * width, hidden, 3, part=kind))
    rows += _indexer(bench, kind, a.indexer, load, entries)
    if load.phase == "decode":
        entry = kv_bytes_per_token_layer(replace_ratio(a), bench.options.kv_dtype, 1)
        rows.append(_decode(bench, seen, heads, a.head_dim, a.head_dim, entry))
    else:
        rows.append(_prefill(bench, seen, heads, a.head_dim, a.head_dim))
    rows.append(gemm(bench, "grouped output projection", "attention", tokens, heads * a.o_lora_rank, a.head_dim,
                     part=kind, tensor="o_a_proj"))
    rows.append(_output(bench, kind, load, groups * a.o_lora_rank))
    return rows


def replace_ratio(a: Compressed) -> Compressed:
    """The layer as if every token left an entry, without an indexer: what one entry of its cache takes."""
    return a.model_copy(update={"ratio": 1, "indexer": None})


def _output(bench: Bench, kind: str, load: Load, width: float) -> Row:
    hidden = bench.model.hidden
    return gemm(bench, "output projection", "attention", load.tokens, hidden, width, part=kind, tensor="o_proj")


def _picked(load: Load, indexer: Indexer | None, context: Any) -> Load:
    """The load with the context that an indexer leaves of it."""
    return load if indexer is None else replace(load, context=minimum(context, float(indexer.topk)))


def _indexer(bench: Bench, kind: str, indexer: Indexer | None, load: Load, context: Any) -> list[Row]:
    """Projections, scores of every cached key (FP8) and the choice of the best; nothing where it is shared.

    Replicated on every rank. The scores are written once and read once, in FP32.
    """
    if indexer is None or indexer.shared:
        return []
    hidden, width = bench.model.hidden, indexer.heads * indexer.head_dim
    own = indexer.head_dim + (indexer.heads if indexer.weights else 0)
    queries = load.sequences if load.phase == "decode" else load.tokens
    keys = load.sequences * context * index_bytes(indexer)
    peak = bench.machine.peak_of("fp8")
    flop = 2.0 * queries * context * width
    return [
        gemm(bench, "indexer query", "indexer", load.tokens, width, indexer.query_rank or hidden, part=kind),
        gemm(bench, "indexer key and weights", "indexer", load.tokens, own, hidden, 4, part=kind),
        price(bench, "indexer scores", flop, keys, 1, peak=peak, compute="attention_prefill_efficiency"),
        price(bench, "choice of tokens", 0.0, queries * context * 8.0, 2),
    ]


def _decode(
    bench: Bench, load: Load, heads: float, key: float, value: float, bytes_per_token: float, groups: float = 1
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
    flop = attention_flop(load.sequences * load.queries, context, groups * per_group, key, value)
    return price(
        bench,
        "decode attention",
        flop,
        traffic,
        2,
        peak=busy * bench.machine.peak_of("bf16"),
        compute="attention_decode_compute_efficiency",
        memory=busy * f["attention_dram_efficiency"],
    )


def _gathered(bench: Bench, load: Load, heads: float, key: float, value: float) -> list[Row]:
    """Kernels around the collectives of decode context parallelism: queries put together and laid out by heads, partial
    outputs weighted by their softmax sums and laid out by ranks, and back. Source: vLLM v1/attention/ops/common.py
    (correct_attn_out) and the communicator's gather and scatter along heads, which copy before or after NCCL."""
    dcp = bench.options.dcp
    if dcp == 1:
        return []
    ours, all_heads = load.tokens * heads * ACTIVATION, load.tokens * heads * dcp * ACTIVATION
    traffic = 2 * (ours + all_heads) * key + (4 * all_heads + 2 * ours) * value
    return [price(bench, "context-parallel merge", 0.0, traffic, 5)]


def _prefill(bench: Bench, load: Load, heads: float, key: float, value: float) -> Row:
    flop = attention_flop(load.tokens, load.context, heads, key, value)
    traffic = load.tokens * heads * (key + value) * 2 * ACTIVATION
    return price(bench, "prefill attention", flop, traffic, 1, compute="attention_prefill_efficiency")
