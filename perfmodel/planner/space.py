"""Which deployments a search considers: every strategy that the engine runs, with every setting worth trying.

Deployments of one placement (the same tensors on the same ranks) form a family, which is priced in one go.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment, varied
from perfmodel.engines.memory import KvPool
from perfmodel.engines.options import Options
from perfmodel.errors import QuestionError
from perfmodel.placement import Placement, place

STRATEGY = ("tp", "pp", "dp", "ep", "dp_attention", "dcp", "layers_per_stage")
# Settings tried beside the engine's defaults, which come first and win a tie. Kind: assumed, what users turn first.
KV_DTYPES = (None, "fp8")
CHUNKS = (None, 2048, 16384)
GRAPHS = (None, False)
FRACTIONS = {"sglang": (None, 0.92), "vllm": (None, 0.95), "tensorrt-llm": (None, 0.95)}
ASYNC_DEPTHS = (0, 1)
# On large clusters not every size is tried. Kind: assumed. One attention over more ranks than these waits for all of
# them in every layer; an engine copy over more GPUs than these is not run by anybody we know of.
SMALL, ATTENTION_RANKS, COPY_GPUS = 16, 8, 256


Advance = Callable[[int, int], None]  # done, total
Members = tuple[tuple[Deployment, KvPool], ...]


@dataclass(frozen=True, eq=False)
class Family:
    """Deployments that hold the same weights on every rank, by KV format; each with its KV pool, which fits."""

    parts: tuple[tuple[Placement, Members], ...]


def divisors(number: int) -> list[int]:
    """Divisors, ascending.

    >>> divisors(8)
    [1, 2, 4, 8]
    """
    return [d for d in range(1, number + 1) if number % d == 0]


def sizes(gpus: int, small: int = 1) -> list[int]:
    """Group sizes worth trying on so many GPUs: divisors, powers of two, and all up to ``small``.

    >>> sizes(72), sizes(7, small=4)
    ([1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36, 64, 72], [1, 2, 3, 4, 7])
    """
    powers = {2**n for n in range(gpus.bit_length())}
    return sorted(set(divisors(gpus)) | powers | set(range(1, min(small, gpus) + 1)))


def strategies(gpus: int, moe: bool, layers: int, fixed: Mapping[str, Any] | None = None) -> Iterator[dict[str, int]]:
    """All (tp, pp, ep, dp_attention, dcp) of one engine copy on at most ``gpus`` GPUs, largest copies first.

    Up to 16 GPUs every one; beyond, wide groups are attention groups or expert groups, and pipelines double. What is
    ``fixed`` is taken as it is, also where a search would not try it; the engine then says what it thinks of it.

    >>> {s["tp"] for s in strategies(8, False, 61, {"tp": 7})}, {s["pp"] for s in strategies(8, False, 61, {"pp": 9})}
    ({7}, {9})
    """
    said = {key: [value] for key, value in (fixed or {}).items()}
    for tp, pp in sorted(_shapes(gpus, layers, said), key=lambda shape: -shape[0] * shape[1]):
        if tp * pp > gpus:  # said, and refused: there is nothing to try below it
            yield {"tp": tp, "pp": pp, **{name: said.get(name, [1])[0] for name in ("ep", "dp_attention", "dcp")}}
            continue
        for groups in said.get("dp_attention", divisors(tp)):
            ways = max(1, tp // groups)
            if ways > ATTENTION_RANKS and not {"tp", "dp_attention"} <= said.keys():
                continue
            for ep in said.get("ep", _expert_groups(tp) if moe else [1]):
                for dcp in said.get("dcp", divisors(ways) if gpus <= SMALL else sorted({1, ways})):
                    yield {"tp": tp, "pp": pp, "ep": ep, "dp_attention": groups, "dcp": dcp}


def _shapes(gpus: int, layers: int, said: Mapping[str, list[Any]]) -> list[tuple[int, int]]:
    """Sizes of a stage and numbers of stages; at least one pair where one of them is said."""
    if gpus <= SMALL:
        found = [(tp, pp) for tp in said.get("tp", sizes(gpus))
                 for pp in said.get("pp", [n for n in sizes(max(1, gpus // tp), small=8) if n <= layers])]
        return [(tp, pp) for tp, pp in found if tp * pp <= gpus] or found[:1]
    stages = said.get("pp", [n for n in (1, 2, 4, 8, 16) if n <= layers])
    wide = {n for n in divisors(gpus) if n > SMALL and n % 8 == 0} | {2**n for n in range(gpus.bit_length())}
    found = [(tp, pp) for tp in said.get("tp", sorted(wide)) for pp in stages]
    return [(tp, pp) for tp, pp in found
            if tp * pp <= min(gpus, COPY_GPUS) and (tp <= SMALL or pp <= 2)] or found[:1]


def _expert_groups(tp: int) -> list[int]:
    """Every divisor of a small group; of a wide one none or all."""
    return divisors(tp) if tp <= 8 else [1, tp]


def copies(gpus: int, world: int) -> list[int]:
    """Engine copies: doubling up to what the GPUs hold.

    >>> copies(8, 2), copies(7, 2)
    ([1, 2, 4], [1, 2, 3])
    """
    most = gpus // world
    return sorted({2**n for n in range(most.bit_length())} | {most}) if most <= 8 else [1, most]


def kept_families(base: Deployment, fixed: dict[str, Any], concurrency: float, tokens: float,
                  gpus: int | None = None, advance: Advance | None = None) -> tuple[tuple[Family, ...], Counter[str]]:
    """What `families` yields and refuses, kept for the next search over the same space: only prices change then."""
    what = (base.model, base.node, base.accelerator, base.facts, base.calibration.used)
    key = (base.options, gpus, concurrency, tokens, repr(sorted(fixed.items())))
    for kept, names, answer in _KEPT:
        same = all(a is b for a, b in zip(kept[:3], what[:3], strict=True)) and kept[3:] == what[3:]
        if names == key and same:
            return answer
    refused: Counter[str] = Counter()
    answer = tuple(families(base, fixed, concurrency, tokens, refused, gpus, advance)), refused
    _KEPT.insert(0, (what, key, answer))
    del _KEPT[_MOST_KEPT:]
    return answer


_KEPT: list[tuple[Any, Any, tuple[tuple[Family, ...], Counter[str]]]] = []
_MOST_KEPT = 4


def families(base: Deployment, fixed: dict[str, Any], concurrency: float, tokens: float, refused: Counter[str],
             gpus: int | None = None, advance: Advance | None = None) -> Iterator[Family]:
    """Families of everything on the node of ``base`` that its engine runs and that fits; ``fixed`` keywords stay.

    ``refused`` counts what is left out: strategies by the engine's own rules, deployments by memory or by a context
    that does not hold ``tokens``. A setting that resolves to one already seen is no deployment of its own.
    """
    most = min(gpus or base.node.count, base.node.count)
    tried = list(strategies(most, base.facts.experts > 0, base.model.layers, fixed))
    for done, strategy in enumerate(tried):
        if advance:
            advance(done, 2 * len(tried))  # the other half is pricing
        counts = [fixed["dp"]] if "dp" in fixed else copies(most, strategy["tp"] * strategy["pp"])
        try:
            first = varied(base, **{**fixed, **strategy, "dp": fixed.get("dp", 1)})
        except QuestionError:
            refused["engine"] += 1
            continue
        for layers in [fixed["layers_per_stage"]] if "layers_per_stage" in fixed else _partitions(first):
            seen: set[Options] = set()
            sames = [{**fixed, **strategy, "kv_dtype": kv_dtype, "layers_per_stage": layers}
                     for kv_dtype in ([fixed["kv_dtype"]] if "kv_dtype" in fixed else KV_DTYPES)]
            parts = [_part(base, same, counts, concurrency, tokens, seen, refused) for same in sames]
            if any(members for _, members in parts):
                yield Family(tuple((placement, members) for placement, members in parts if placement and members))


def _part(base: Deployment, same: dict[str, Any], counts: list[int], concurrency: float, tokens: float,
          seen: set[Options], refused: Counter[str]) -> tuple[Placement | None, Members]:
    """Everything under one strategy and one KV format that fits."""
    placement: Placement | None = None
    ranks: Any = ()
    members = []
    runs: dict[tuple[int, int], bool] = {}
    for setting in settings(same, base.options.engine, base.node.count):
        try:
            d = varied(base, **{**same, **setting, "dp": 1})
        except QuestionError:
            refused["engine"] += 1
            continue
        if d.options in seen:
            continue
        seen.add(d.options)
        if placement is None:
            placement = place(d)
            ranks = placement.rank_facts()
        if tokens > (d.options.context or d.facts.max_context):
            refused["context"] += len(counts)
            continue
        if max(rank.weights_bytes for rank in ranks) > d.facts.gpu_memory_bytes:
            refused["memory"] += len(counts)
            continue
        pool = d.engine.kv_pool(d.options, d.facts, ranks)
        if pool.verdict != "fits":
            refused["memory"] += len(counts)
            continue
        members += [(one, pool) for one in _scheduled(d, counts, concurrency, same, runs)]
    return placement, tuple(members)


def _scheduled(d: Deployment, counts: list[int], concurrency: float, same: dict[str, Any],
               runs: dict[tuple[int, int], bool]) -> Iterator[Deployment]:
    """Copies of one deployment, and what only its scheduler sees: memory stays as it is.

    SGLang's pipelines also with micro-batches ahead, and with the micro-batch limit that spreads the load over slots.
    ``runs`` keeps what the engine says of copies and depth, which no other setting of the strategy changes.
    """
    piped = d.options.pp > 1 and d.options.engine == "sglang"
    depths = [d.options.async_depth or 0] if not piped or "async_depth" in same else ASYNC_DEPTHS
    for dp, depth in itertools.product(counts, depths):
        changes = {"dp": dp} if depth == d.options.async_depth else {"dp": dp, "async_depth": depth}
        one = d if changes == {"dp": d.options.dp} else with_options(d, **changes)
        if (dp, depth) not in runs:
            runs[dp, depth] = _runs(one)
        if not runs[dp, depth]:
            continue
        yield one
        if piped and "max_micro_batch" not in same:
            each = max(1, -(-int(concurrency / dp / d.options.dp_attention) // d.engine.slots(one.options)))
            yield with_options(one, max_micro_batch=each)


def _runs(d: Deployment) -> bool:
    try:
        d.engine.check(d.requested, d.facts)
    except QuestionError:
        return False
    return True


def with_options(d: Deployment, **changes: Any) -> Deployment:
    """Keywords that no rule of an engine looks at."""
    return replace(d, options=replace(d.options, **changes), requested=replace(d.requested, **changes))


def settings(same: dict[str, Any], engine: str, gpus: int) -> Iterator[dict[str, Any]]:
    """Settings of memory and graphs; those that are fixed are left out, the engine's defaults come first."""
    tried: dict[str, tuple[Any, ...]] = {"memory_fraction": FRACTIONS[engine], "prefill_chunk": CHUNKS}
    if gpus <= SMALL:
        tried["cuda_graphs"] = GRAPHS
    free = {name: values for name, values in tried.items() if name not in same}
    for values in itertools.product(*free.values()):
        yield dict(zip(free, values, strict=True))


def _partitions(d: Deployment) -> list[tuple[int, ...] | None]:
    """The engine's own split of the layers, and the one that evens out the weights, where that is another."""
    if d.options.pp == 1:
        return [None]
    own = place(d)
    even = balanced(own)
    return [None] if even == tuple(own.layers.tolist()) else [None, even]


def balanced(placement: Placement) -> tuple[int, ...]:
    """Layers of each stage such that the heaviest stage is as light as can be: edges, vision tower and head count."""
    model = placement.deployment.model
    kinds = [placement.kinds.index((block.attention, block.mlp)) for block in model.blocks for _ in range(block.layers)]
    by_kind = np.linalg.lstsq(*_equations(placement), rcond=None)[0]
    edges, layers = by_kind[len(placement.kinds):], by_kind[kinds]
    stages = placement.stages
    fixed = [edges[0] if stage == 0 else edges[1] if stage == stages - 1 else 0.0 for stage in range(stages)]
    low, high = 0.0, float(layers.sum() + edges.sum())
    best: tuple[int, ...] = tuple(placement.layers.tolist())
    for _ in range(40):  # bisect the weight of the heaviest stage
        middle = (low + high) / 2
        dealt = _deal(layers, fixed, middle)
        if dealt is None:
            low = middle
        else:
            best, high = dealt, middle
    return best


def _equations(placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a stage = layers of each kind x their weight, and what stands on the first and the last stage."""
    stages = placement.stages
    edges = np.zeros((stages, 2))
    edges[0, 0] = edges[-1, 1] = 1.0
    common = sum(sizes for name, sizes in placement.parts.items() if name in ("vision tower", "rotary tables"))
    return np.hstack([placement.counts, edges]), placement.weights_bytes - common


def _deal(layers: np.ndarray, fixed: list[float], most: float) -> tuple[int, ...] | None:
    """Layers dealt out in order, each stage up to ``most`` bytes and at least one; None where some are left over."""
    taken, dealt = 0, []
    for stage, edge in enumerate(fixed):
        room, rest = most - edge, len(fixed) - stage - 1
        count, held = 0, 0.0
        while taken + count < len(layers) - rest and held + layers[taken + count] <= room:
            held += layers[taken + count]
            count += 1
        if not count:
            return None
        taken += count
        dealt.append(count)
    return tuple(dealt) if taken == len(layers) else None
