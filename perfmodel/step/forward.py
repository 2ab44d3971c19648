"""One forward over the whole model: stages of rows, host time, pipeline round. Arrays all the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from perfmodel.catalog import NONE
from perfmodel.costs.launch import eager_host_s, exposed_s
from perfmodel.costs.pipeline import chunked_prefill_s, round_s
from perfmodel.deployment import Deployment
from perfmodel.engines.rules import KV_BYTES
from perfmodel.placement import Placement
from perfmodel.step.attention_rows import attention_rows
from perfmodel.step.communication import collective_row, hop_row
from perfmodel.step.difference import beside
from perfmodel.step.expert_rows import mlp_rows, residual_rows
from perfmodel.step.machine import machine_of
from perfmodel.step.operations import FIELDS, Bench, Load, Row, edge_rows, mapped
from perfmodel.step.slots import Occupancy
from perfmodel.step.speculation import queries, with_drafts


@dataclass(frozen=True, eq=False)
class Forward:
    """A priced forward. ``rows`` add up to ``seconds``; both broadcast over [draws, shape of the question].

    The rows are put together when they are first asked for: a search needs only the seconds.
    """

    seconds: Any
    device_s: Any
    host_s: Any
    rule: str
    listed: Callable[[], tuple[Row, ...]] = field(repr=False)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The operations, merged by name."""
        return self.listed()


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
        *bench.once((load, attention), lambda: attention_rows(bench, attention, load)),
        *mlp_rows(bench, mlp, load),
        *residual_rows(bench, (attention != NONE) + (mlp != NONE), load),
        *(collective_row(call, load, d, bench) for call in calls),
    ]


def stage_edges(placement: Placement, bench: Bench, stage: int, load: Load) -> list[Row]:
    """Embedding, head, sampling and the collectives of a step on one stage."""
    d, first, last = placement.deployment, stage == 0, stage == placement.stages - 1
    where = {"every": True, "first": first, "last": last}
    calls = [call for call in d.engine.step_collectives(d.options, d.facts, load.phase) if where[call.stage]]
    return [
        *edge_rows(bench, load, first, last),
        *(collective_row(call, load, d, bench) for call in calls),
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


@dataclass(frozen=True, eq=False)
class Stages:
    """Priced rows: of one layer of every kind, and of what stands at the edges of every stage."""

    counts: np.ndarray  # layers by stage and kind
    kinds: list[list[Row]]
    edges: list[list[Row]]  # stages that are alike share one list

    def sums(self, name: str = "seconds") -> list[Any]:
        """Sum of one field over the rows of each stage; stages that are alike are added up once."""
        each, done = [total(rows, name) for rows in self.kinds], {}
        keys = [(tuple(counts), id(edge)) for counts, edge in zip(self.counts.tolist(), self.edges, strict=True)]
        for (counts, key), edge in zip(keys, self.edges, strict=True):
            if (counts, key) not in done:
                layers = (float(n) * value for n, value in zip(counts, each, strict=True) if n)
                done[counts, key] = sum(layers, total(edge, name))
        return [done[key] for key in keys]

    def rows(self) -> list[Row]:
        """Rows of all stages for the fullest slot, merged by name."""
        return merge([
            _fullest(row)
            for counts, edge in zip(self.counts, self.edges, strict=True)
            for row in [*(scale(r, float(n)) for n, rows in zip(counts, self.kinds, strict=True) if n for r in rows),
                        *edge]
        ])  # fmt: skip


def stages(placement: Placement, bench: Bench, load: Load) -> Stages:
    """Rows of every stage; layers of one kind, and edges of one sort, are priced once."""
    kinds = [layer_rows(placement, bench, k, load) for k in range(len(placement.kinds))]
    last = placement.stages - 1
    sorts = {(i == 0, i == last): i for i in range(placement.stages)}
    edges = {sort: stage_edges(placement, bench, i, load) for sort, i in sorts.items()}
    return Stages(placement.counts, kinds, [edges[i == 0, i == last] for i in range(placement.stages)])


def total(rows: list[Row], field: str = "seconds") -> Any:
    """Sum of one field over rows."""
    return sum(getattr(row, field) for row in rows)


@dataclass(frozen=True, eq=False)
class Graphs:
    """CUDA graphs of a decode step: rows after padding, where it runs without one, and the largest prefill in one."""

    padded: Any
    eager: Any
    prefill_tokens: Any


def graphs_of(d: Deployment, slots: Occupancy) -> Graphs:
    """What the captured sizes make of the micro-batches in the slots."""
    captured = d.engine.capture_sizes(d.options, d.facts)
    each = queries(d.options) if d.options.engine == "vllm" else 1      # vLLM counts tokens, others sequences
    padded, eager = pad_to_graph(captured, each * np.ceil(slots.batch / d.options.dp_attention))
    return Graphs(padded / each, eager, float(d.engine.prefill_graph_tokens(d.options, d.facts)))


def decode(
    placement: Placement,
    batch: Any,
    context: Any,
    factors: dict[str, Any],
    slots: Occupancy,
    graphs: Graphs | None = None,
) -> Forward:
    """One decode step of ``batch`` running sequences of one engine copy, each with ``context`` cached tokens."""
    d, bench = placement.deployment, bench_of(placement, factors)
    groups = d.options.dp_attention
    sequences = np.ceil(slots.batch / groups)
    graphs = graphs or graphs_of(d, slots)
    cached, one = np.asarray(context, float) + 1.0, graphs.padded
    tokens = queries(d.options)
    padded = tokens * one
    load = Load("decode", padded, padded * groups, sequences, cached, padded, float(tokens))
    single = Load("decode", one, one * groups, sequences, cached, one)
    staged = with_drafts(stages(placement, bench, load), placement, bench, single, batch, slots)
    hop = hop_row(padded, d.model.hidden, d, bench.machine.links, factors) if placement.stages > 1 else None
    launch = factors["eager_kernel_s"] * factors["host_speed"]
    loop = factors["micro_batch_s"] * factors["host_speed"] if placement.stages > 1 else 0.0
    ahead = d.engine.overlaps_host(d.options)  # the next step is prepared beside this one, and may take longer
    if placement.stages > 1 and ahead:
        loop = loop + factors["pipeline_hop_s"] * factors["host_speed"]
    line_s = loop * np.asarray(slots.in_line)
    host = [
        np.where(graphs.eager, eager_host_s(kernels, launch, d.options.tp, factors["eager_rank_spread"]), 0.0)
        + np.where(graphs.eager | ahead, factors["host_sequence_s"] * factors["host_speed"] * sequences, 0.0)
        + (loop - line_s)
        for kernels in staged.sums("kernels")
    ]
    found = _assemble(placement, staged, host, line_s, hop, factors, slots, np.where(graphs.eager, 0.0, sequences))
    return beside(found, d, batch, factors)


def _assemble(
    placement: Placement,
    staged: Stages,
    host: list[Any],
    line_s: Any,
    hop: Row | None,
    factors: dict[str, Any],
    slots: Occupancy,
    sequences: Any,
) -> Forward:
    """Stages -> round: the trip of the fullest slot, and what it waits for the slowest stage.

    ``host`` [s] runs beside the device, ``line_s`` [s] of a micro-batch holds it up.
    """
    device = staged.sums()
    exposed = [exposed_s(h, t) + line_s for h, t in zip(host, device, strict=True)]
    stage_s = [t + e for t, e in zip(device, exposed, strict=True)]
    fixed = _pick(between_steps(placement.deployment, factors, sequences))
    traverse = _pick(sum(stage_s))
    trip = None if hop is None else scale(_fullest(hop), float(placement.stages))  # the token's return is one more hop
    traverse = traverse + (trip.seconds if trip else 0.0) + fixed
    slowest = stage_s[0]
    for other in stage_s[1:]:
        slowest = np.maximum(slowest, other)
    queue = np.sum(slowest * slots.count, axis=1) if placement.stages > 1 else 0.0 * traverse
    seconds = round_s(queue, traverse)

    def rows() -> tuple[Row, ...]:
        return (
            *staged.rows(),
            Row("host launch not hidden", _pick(sum(exposed)), bound="host"),
            *((trip,) if trip else ()),
            Row("step overhead of the engine", fixed + 0.0 * traverse, bound="host"),
            Row("wait for the slowest stage", seconds - traverse, bound="pipeline"),
        )

    return Forward(seconds, _pick(sum(device)), _pick(sum(h + line_s for h in host)), slots.rule, rows)


def between_steps(d: Deployment, factors: dict[str, Any], sequences: Any) -> Any:
    """Host time between two forwards that the device waits for. [s]

    An engine that schedules the next step while the device works shows a small rest; one that does not, its scheduler,
    inputs and outputs, each sequence its share. In a pipeline the loop of the micro-batches stands for that.
    """
    fixed = factors["step_fixed_s"]
    if d.options.pp == 1 and not d.engine.overlaps_host(d.options):
        fixed = fixed + factors["sync_step_s"] + factors["host_sequence_s"] * sequences
    return fixed * factors["host_speed"]


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


def prefill_load(
    placement: Placement, tokens: Any, context: Any, prompts: Any, chunk: Any = None
) -> tuple[Load, Any]:
    """One mean chunk of a prefill, and how many of it there are.

    A prompt runs in one attention group; as many groups work as there are prompts. SGLang divides its chunk size by
    the attention groups, vLLM gives each group its own (engine reference: order of server arguments). The number of
    chunks is not rounded up: the last one is smaller and costs its share.
    """
    options = placement.deployment.options
    groups = np.minimum(prompts, options.dp_attention)
    most = np.asarray((options.prefill_chunk or np.inf) if chunk is None else chunk, float)
    limit = most / (options.dp_attention if options.engine == "sglang" else 1)
    local = tokens / groups
    chunks = np.maximum(local / limit, 1.0)
    each = (local / chunks)[None, None]
    attended = (context + (tokens / prompts + 1) / 2)[None, None]
    groups, sequences = np.broadcast_to(groups, local.shape)[None, None], (prompts / groups)[None, None]
    return Load(
        "prefill", each, each * groups, np.minimum(sequences, each), attended, np.maximum(sequences, 1.0)
    ), chunks


def prefill(
    placement: Placement,
    tokens: Any,
    context: Any,
    factors: dict[str, Any],
    prompts: Any = 1.0,
    chunk: Any = None,
    graph_tokens: Any = None,
) -> Forward:
    """Prefill of ``tokens`` new tokens of ``prompts`` prompts, in chunks of the engine's size through the pipeline.

    ``chunk`` and ``graph_tokens`` (the largest chunk that runs as a graph) stand in for the deployment's own.
    """
    d, bench = placement.deployment, bench_of(placement, factors)
    tokens, context = np.broadcast_arrays(np.asarray(tokens, float), np.asarray(context, float))
    prompts = np.broadcast_to(np.asarray(prompts, float), tokens.shape)
    load, chunks = prefill_load(placement, tokens, context, prompts, chunk)
    staged = stages(placement, bench, load)
    if graph_tokens is None:
        graph_tokens = d.engine.prefill_graph_tokens(d.options, d.facts)
    launch = factors["eager_kernel_s"] * factors["host_speed"]
    device, host = staged.sums(), [
        np.where(load.tokens > graph_tokens,
                 eager_host_s(kernels, launch, d.options.tp, factors["eager_rank_spread"]), 0.0)
        for kernels in staged.sums("kernels")
    ]  # fmt: skip
    exposed = [exposed_s(h, t) for h, t in zip(host, device, strict=True)]
    stage_s = [_pick(t + e) for t, e in zip(device, exposed, strict=True)]
    once, trip = sum(stage_s), None
    if placement.stages > 1:
        hop = hop_row(load.tokens, d.model.hidden, d, bench.machine.links, factors)
        trip = scale(_fullest(hop), float(placement.stages - 1))
        once = once + trip.seconds
    slowest = once if placement.stages == 1 else stage_s[0]
    for other in stage_s[1:]:
        slowest = np.maximum(slowest, other)
    fixed = _pick(between_steps(d, factors, load.sequences))
    seconds = chunked_prefill_s(chunks, slowest, once) + fixed * chunks

    def rows() -> tuple[Row, ...]:
        found = [scale(row, chunks) for row in staged.rows()]
        found.append(Row("host launch not hidden", _pick(sum(exposed)) * chunks, bound="host"))
        found += [scale(trip, chunks)] if trip else []
        found.append(Row("step overhead of the engine", fixed * chunks + 0.0 * seconds, bound="host"))
        found.append(Row("stages that overlap", seconds - total(found), bound="pipeline"))
        return tuple(found)

    return Forward(seconds, _pick(sum(device)) * chunks, _pick(sum(host)) * chunks, "chunked prefill", rows)
