"""What may be wrong with a pipeline: slots, depth, stages."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfmodel.engines.versions import at_least
from perfmodel.insight.case import Candidate, Case, share


def crowded_slot(case: Case) -> Iterator[Candidate]:
    """A burst that fits into one slot leaves the other stages idle."""
    o = case.options
    if o.pp == 1 or o.engine != "sglang" or case.arrival != "burst":
        return
    slots, limit = case.slots
    crowded = [c for c in case.concurrency if c / o.dp > 1 and math.ceil(c / o.dp / limit) < min(slots, c / o.dp)]
    if not crowded:
        return
    changes = {c: {"max_micro_batch": share(c, o, slots)} for c in crowded}
    yield Candidate(
        "one crowded pipeline slot",
        f"a slot takes up to {limit} requests before the next gets any, so a burst of up to {limit} sits in one of "
        f"{slots} slots and nothing is pipelined",
        f"SGLang {o.version} managers/scheduler.py get_num_allocatable_reqs; costs/pipeline.py round_s",
        by_concurrency=changes, always=True,
    )


def async_depth(case: Case) -> Iterator[Candidate]:
    """A pipeline loop without slack between the stages, asked with evenly filled slots on both sides."""
    o = case.options
    if o.pp == 1 or o.engine != "sglang" or (o.async_depth or 0) > 0:
        return
    older = not at_least(o.version, "0.5.9")
    depth = max(1, o.pp // 4)
    even = {c: {"max_micro_batch": share(c, o, o.pp)} for c in case.concurrency}
    deeper = {c: {"max_micro_batch": share(c, o, o.pp + depth), "async_depth": depth} for c in case.concurrency}
    yield Candidate(
        "pipeline without async depth",
        f"the loop has {o.pp} slots for {o.pp} stages. Having launched one micro-batch, the host of a stage waits for "
        "the last stage's tokens of the next, processes them and schedules, and only then launches: the GPU stands "
        "still meanwhile. Depth hands the tokens over one round earlier, so that the host works beside the GPU. Asked "
        "with evenly filled slots on both sides",
        f"SGLang {'0.5.9' if older else o.version} managers/scheduler_pp_mixin.py event_loop_pp",
        by_concurrency=deeper, before=even, version="0.5.9" if older else "", always=True,
    )


def uneven_stages(case: Case) -> Iterator[Candidate]:
    """Stages that hold more than their share."""
    o, d = case.options, case.deployment
    if o.pp == 1:
        return
    placement = case.memory.placement
    layers, weights = [int(n) for n in placement.layers], [float(w) for w in placement.weights_bytes]
    even = balanced(layers, weights)
    if even != tuple(layers):
        lightest, heaviest = min(weights) / 1e9, max(weights) / 1e9
        yield Candidate(
            "uneven stages",
            f"stages of {','.join(map(str, layers))} layers hold {lightest:.1f} to {heaviest:.1f} GB of weights; the "
            "slowest sets the pace and the fullest the KV pool",
            f"{o.engine} {o.version} get_pp_indices", {"layers_per_stage": even},
        )
    if d.requested.layers_per_stage is not None:
        yield Candidate("partition of layers by hand", "the engine's own partition is another",
                        f"{o.engine} {o.version} get_pp_indices", {"layers_per_stage": None})


def balanced(layers: list[int], weights: list[float]) -> tuple[int, ...]:
    """Layers dealt out so that the fullest stage holds least: embedding and head count as weight of their stage.

    >>> balanced([7, 7, 8], [80.0, 70.0, 100.0])
    (8, 7, 7)
    """
    total = sum(layers)
    middle = sorted(w / n for w, n in zip(weights, layers, strict=True))[len(layers) // 2]
    edges = [max(0.0, w - n * middle) for w, n in zip(weights, layers, strict=True)]
    split = [max(1, total // len(layers) - 1) for _ in layers]
    while sum(split) < total:
        stage = min(range(len(split)), key=lambda i: (split[i] + 1) * middle + edges[i])
        split[stage] += 1
    return tuple(split)
