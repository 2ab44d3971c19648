"""One forward over the whole model: stages of rows, host time, pipeline round. Arrays all the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.catalog import NONE
from perfmodel.costs.launch import eager_host_s, exposed_s
from perfmodel.costs.pipeline import chunked_prefill_s, round_s
from perfmodel.engines.rules import KV_BYTES
from perfmodel.placement import Placement
from perfmodel.step.attention_rows import attention_rows
from perfmodel.step.communication import collective_row, hop_row
from perfmodel.step.expert_rows import mlp_rows, residual_rows
from perfmodel.step.machine import machine_of
from perfmodel.step.operations import FIELDS, Bench, Load, Row, edge_rows, mapped
from perfmodel.step.slots import Occupancy


@dataclass(frozen=True, eq=False)
class Forward:
    """A priced forward. ``rows`` add up to ``seconds``; both broadcast over [draws, shape of the question]."""

    seconds: Any
    rows: tuple[Row, ...]
    device_s: Any
    host_s: Any
    rule: str


def bench_of(placement: Placement, factors: dict[str, Any]) -> Bench:
    """What prices the operations of this placement."""
    d = placement.deployment
    return Bench(d.model, d.options, d.formats, machine_of(placement), factors, KV_BYTES[d.options.kv_dtype])


def layer_rows(placement: Placement, bench: Bench, kind: int, load: Load) -> list[Row]:
    """All operations of one layer of a kind, its collectives included."""
    d, (attention, mlp) = placement.deployment, placement.kinds[kind]
    sort = d.model.mlp[mlp].kind if mlp in d.model.mlp else None
    calls = [call for call in d.engine.layer_collectives(d.options, d.facts, load.phase) if call.layer == sort]
    return [
        *attention_rows(bench, attention, load),
        *mlp_rows(bench, mlp, load),
        *residual_rows(bench, (attention != NONE) + (mlp != NONE), load),
        *(collective_row(call, load, d, bench.machine.links, bench.factors) for call in calls),
    ]


def stage_edges(placement: Placement, bench: Bench, stage: int, load: Load) -> list[Row]:
    """Embedding, head, sampling and the collectives of a step on one stage."""
    d, first, last = placement.deployment, stage == 0, stage == placement.stages - 1
    where = {"every": True, "first": first, "last": last}
    calls = [call for call in d.engine.step_collectives(d.options, d.facts, load.phase) if where[call.stage]]
    return [
        *edge_rows(bench, load, first, last),
        *(collective_row(call, load, d, bench.machine.links, bench.factors) for call in calls),
    ]


_ADDED = tuple(name for name in FIELDS if name != "message_bytes")


def scale(row: Row, times: Any) -> Row:
    """The row repeated."""
    return mapped(row, lambda value: value * times, _ADDED)


def merge(rows: list[Row]) -> list[Row]:
    """Rows of one name added up, in the order of their first appearance; the message is the largest."""
    merged: dict[str, Row] = {}
    for row in rows:
        if row.name not in merged:
            merged[row.name] = row
            continue
        old = merged[row.name]
        added = {name: getattr(old, name) + getattr(row, name) for name in _ADDED}
        merged[row.name] = replace(old, **added, message_bytes=np.maximum(old.message_bytes, row.message_bytes))
    return list(merged.values())


def stages(placement: Placement, bench: Bench, load: Load) -> list[list[Row]]:
    """Rows of every stage; layers of one kind are priced once."""
    kinds = [layer_rows(placement, bench, k, load) for k in range(len(placement.kinds))]
    result = []
    for stage in range(placement.stages):
        rows = [scale(row, float(n)) for k, n in enumerate(placement.counts[stage]) if n for row in kinds[k]]
        result.append(merge([*rows, *stage_edges(placement, bench, stage, load)]))
    return result


def total(rows: list[Row], field: str = "seconds") -> Any:
    """Sum of one field over rows."""
    return sum(getattr(row, field) for row in rows)


def decode(placement: Placement, batch: Any, context: Any, factors: dict[str, Any], slots: Occupancy) -> Forward:
    """One decode step of ``batch`` running sequences of one engine copy, each with ``context`` cached tokens."""
    d, bench = placement.deployment, bench_of(placement, factors)
    groups = d.options.dp_attention
    sequences = np.ceil(slots.batch / groups)
    padded, eager = pad_to_graph(d.engine.capture_sizes(d.options, d.facts), sequences)
    load = Load("decode", padded, padded * groups, sequences, np.asarray(context, float) + 1.0, padded)
    staged = stages(placement, bench, load)
    hop = hop_row(padded, d.model.hidden, d, bench.machine.links, factors) if placement.stages > 1 else None
    launch = factors["eager_kernel_s"] * factors["host_speed"]
    device = [total(rows) for rows in staged]
    loop = factors["micro_batch_s"] * factors["host_speed"] if placement.stages > 1 else 0.0
    host = [
        np.where(
            eager,
            eager_host_s(total(rows, "kernels"), launch, d.options.tp, factors["eager_rank_spread"])
            + factors["host_sequence_s"] * sequences,
            0.0,
        )
        + loop
        for rows in staged
    ]
    return _assemble(placement, staged, device, host, hop, factors, slots)


def _assemble(
    placement: Placement,
    staged: list[list[Row]],
    device: list[Any],
    host: list[Any],
    hop: Row | None,
    factors: dict[str, Any],
    slots: Occupancy,
) -> Forward:
    """Stages -> round: the trip of the fullest slot, and what it waits for the slowest stage."""
    exposed = [exposed_s(h, t) for h, t in zip(host, device, strict=True)]
    stage_s = [t + e for t, e in zip(device, exposed, strict=True)]
    rows = merge([_fullest(row) for rows in staged for row in rows])
    rows.append(Row("host launch not hidden", _pick(sum(exposed)), bound="host"))
    fixed = _pick(factors["step_fixed_s"] * factors["host_speed"])
    traverse = _pick(sum(stage_s))
    if hop is not None:
        trip = scale(_fullest(hop), float(placement.stages))  # the token's return is one more hop
        rows.append(trip)
        traverse = traverse + trip.seconds
    rows.append(Row("step overhead of the engine", fixed + 0.0 * traverse, bound="host"))
    traverse = traverse + fixed
    slowest = stage_s[0]
    for other in stage_s[1:]:
        slowest = np.maximum(slowest, other)
    queue = np.sum(slowest * slots.count, axis=1) if placement.stages > 1 else 0.0 * traverse
    seconds = round_s(queue, traverse)
    rows.append(Row("wait for the slowest stage", seconds - traverse, bound="pipeline"))
    return Forward(seconds, tuple(rows), _pick(sum(device)), _pick(sum(host)), slots.rule)


def _pick(value: Any) -> Any:
    """The fullest slot: entry 0 of the slot axis, which follows the axis of draws. Plain numbers have neither."""
    value = np.asarray(value)
    return value[:, 0] if value.ndim >= 2 else value


def _fullest(row: Row) -> Row:
    return mapped(row, _pick)


def pad_to_graph(captured: tuple[int, ...], sequences: Any) -> tuple[Any, Any]:
    """Rows after padding to the next captured batch size, and where the step runs without a graph."""
    sequences = np.asarray(sequences, float)
    if not captured:
        return sequences, np.ones(sequences.shape, bool)
    sizes = np.asarray(captured, float)
    index = np.searchsorted(sizes, sequences)
    eager = index >= len(sizes)
    return np.where(eager, sequences, sizes[np.minimum(index, len(sizes) - 1)]), eager


def prefill_chunk(
    placement: Placement, load: Load, factors: dict[str, Any]
) -> tuple[list[list[Row]], list[Any], list[Any], Row | None]:
    """Rows, device and host time of every stage for one prefill forward, and one hop between stages."""
    d, bench = placement.deployment, bench_of(placement, factors)
    staged = stages(placement, bench, load)
    captured = d.engine.capture_sizes(d.options, d.facts)
    eager = load.tokens > (max(captured) if captured and d.options.engine == "vllm" else 0)
    launch = factors["eager_kernel_s"] * factors["host_speed"]
    host = [
        np.where(eager, eager_host_s(total(rows, "kernels"), launch, d.options.tp, factors["eager_rank_spread"]), 0.0)
        for rows in staged
    ]
    hop = hop_row(load.tokens, d.model.hidden, d, bench.machine.links, factors) if placement.stages > 1 else None
    return staged, [total(rows) for rows in staged], host, hop


def prefill_load(placement: Placement, tokens: Any, context: Any, prompts: Any) -> tuple[Load, Any]:
    """One mean chunk of a prefill, and how many of it there are.

    A prompt runs in one attention group; as many groups work as there are prompts. SGLang divides its chunk size by
    the attention groups, vLLM gives each group its own (engine reference: order of server arguments). The number of
    chunks is not rounded up: the last one is smaller and costs its share.
    """
    options = placement.deployment.options
    groups = np.minimum(prompts, options.dp_attention)
    limit = float(options.prefill_chunk or np.inf) / (options.dp_attention if options.engine == "sglang" else 1)
    local = tokens / groups
    chunks = np.maximum(local / limit, 1.0)
    each = (local / chunks)[None, None]
    attended = (context + (tokens / prompts + 1) / 2)[None, None]
    groups, sequences = np.broadcast_to(groups, local.shape)[None, None], (prompts / groups)[None, None]
    return Load(
        "prefill", each, each * groups, np.minimum(sequences, each), attended, np.maximum(sequences, 1.0)
    ), chunks


def prefill(placement: Placement, tokens: Any, context: Any, factors: dict[str, Any], prompts: Any = 1.0) -> Forward:
    """Prefill of ``tokens`` new tokens of ``prompts`` prompts, in chunks of the engine's size through the pipeline."""
    tokens, context = np.broadcast_arrays(np.asarray(tokens, float), np.asarray(context, float))
    load, chunks = prefill_load(placement, tokens, context, np.broadcast_to(np.asarray(prompts, float), tokens.shape))
    staged, device, host, hop = prefill_chunk(placement, load, factors)
    exposed = [exposed_s(h, t) for h, t in zip(host, device, strict=True)]
    stage_s = [_pick(t + e) for t, e in zip(device, exposed, strict=True)]
    rows = [scale(row, chunks) for row in merge([_fullest(row) for rows in staged for row in rows])]
    rows.append(Row("host launch not hidden", _pick(sum(exposed)) * chunks, bound="host"))
    once = sum(stage_s)
    if hop is not None:
        trip = scale(_fullest(hop), float(placement.stages - 1))
        rows.append(scale(trip, chunks))
        once = once + trip.seconds
    slowest = once if placement.stages == 1 else stage_s[0]
    for other in stage_s[1:]:
        slowest = np.maximum(slowest, other)
    fixed = _pick(factors["step_fixed_s"] * factors["host_speed"])
    seconds = chunked_prefill_s(chunks, slowest, once) + fixed * chunks
    rows.append(Row("step overhead of the engine", fixed * chunks + 0.0 * seconds, bound="host"))
    rows.append(Row("stages that overlap", seconds - total(rows), bound="pipeline"))
    return Forward(seconds, tuple(rows), _pick(sum(device)) * chunks, _pick(sum(host)) * chunks, "chunked prefill")
