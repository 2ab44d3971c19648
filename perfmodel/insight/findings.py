"""What may be wrong with a launch: rules that propose one change each. What a change is worth, `doctor` asks the model.

A rule looks at a deployment and yields `Candidate`s. It holds no figure of speed; a candidate that changes nothing
worth a mention is dropped after it was asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from perfmodel.catalog import Node
from perfmodel.deployment import Deployment
from perfmodel.engines import ENGINES
from perfmodel.engines.memory import GIB, band
from perfmodel.engines.options import Options
from perfmodel.engines.versions import at_least
from perfmodel.step.memory import MemoryReport, running_limit

PCIE_IPC_SINCE = {"sglang": "0.5.21", "vllm": "0.30"}
SPARE_BYTES = 1.0 * GIB     # what a proposed memory fraction leaves free on every rank. Kind: assumed


@dataclass(frozen=True)
class Candidate:
    """One change to ask about. ``changes`` are keywords of `deploy`; ``by_concurrency`` holds others for each load.

    The cost is the difference between ``before`` and ``before`` with the changes. ``risk``: the change is what may
    happen, not a repair. ``always``: shown even if it is worth nothing, since it is asked about by name.
    """

    name: str
    what: str
    source: str
    changes: dict[str, Any] = field(default_factory=dict)
    by_concurrency: dict[float, dict[str, Any]] = field(default_factory=dict)
    before: dict[float, dict[str, Any]] = field(default_factory=dict)
    node: Node | None = None
    version: str = ""
    flag: str = ""
    kind: str = "repair"    # repair, risk
    always: bool = False
    memory: bool = False    # its point is KV capacity: tokens/s alone do not keep it


@dataclass(frozen=True)
class Case:
    """A launch under examination: its deployment, what memory says, and the load it is asked about."""

    deployment: Deployment
    memory: MemoryReport
    concurrency: tuple[float, ...]
    tokens: float           # input and output of one request
    arrival: str

    @property
    def options(self) -> Options:
        """Options, defaults filled in."""
        return self.deployment.options


def candidates(case: Case) -> Iterator[Candidate]:
    """All proposals for a launch."""
    for rule in RULES:
        yield from rule(case)


# ---------------------------------------------------------------- CUDA graphs


def graphs(case: Case) -> Iterator[Candidate]:
    """Decode without graphs, or with batches above the largest captured one."""
    o, d = case.options, case.deployment
    if not o.cuda_graphs:
        yield Candidate("CUDA graphs off", "the host launches every kernel of every layer one by one",
                        "docs/theory.md#step, costs/launch.py", {"cuda_graphs": True}, always=True)
        return
    sizes = d.engine.capture_sizes(d.options, d.facts)
    most = max(case.concurrency) / o.dp / o.dp_attention
    if sizes and most > max(sizes):
        yield Candidate(
            "batches above the largest graph",
            f"graphs are captured up to {max(sizes)} sequences; larger batches run without",
            f"{o.engine} {o.version}, captured batch sizes", {"max_graph_batch": math.ceil(most)},
        )


# ---------------------------------------------------------------- pipeline


def crowded_slot(case: Case) -> Iterator[Candidate]:
    """A burst that fits into one slot leaves the other stages idle."""
    o = case.options
    if o.pp == 1 or o.engine != "sglang" or case.arrival != "burst":
        return
    slots, limit = _slots(case)
    crowded = [c for c in case.concurrency if c / o.dp > 1 and math.ceil(c / o.dp / limit) < min(slots, c / o.dp)]
    if not crowded:
        return
    changes = {c: {"max_micro_batch": _share(c, o, slots)} for c in crowded}
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
    even = {c: {"max_micro_batch": _share(c, o, o.pp)} for c in case.concurrency}
    deeper = {c: {"max_micro_batch": _share(c, o, o.pp + depth), "async_depth": depth} for c in case.concurrency}
    yield Candidate(
        "pipeline without async depth",
        f"the loop has {o.pp} slots for {o.pp} stages: stage 0 needs a slot's tokens back exactly {o.pp} slots "
        "later, so any delay is a bubble. Asked with evenly filled slots on both sides; the model prices queue and "
        "round trip, not the jitter that the slack hides, so the cost is a lower bound",
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


def _slots(case: Case) -> tuple[int, int]:
    d = case.deployment
    return d.engine.slots(d.options), d.engine.slot_limit(d.options, running_limit(case.memory.placement))


def _share(concurrency: float, options: Options, slots: int) -> int:
    """Sequences of one attention group that a slot should hold at this load."""
    return max(1, math.ceil(concurrency / options.dp / slots / options.dp_attention))


# ---------------------------------------------------------------- experts and attention


def experts(case: Case) -> Iterator[Candidate]:
    """Experts cut thin by tensor parallelism, and expert parallelism that still pays all-reduces."""
    o, d = case.options, case.deployment
    if not d.facts.experts or o.tp == 1:
        return
    if o.expert_tp > 1:
        width = d.facts.moe_intermediate // o.expert_tp
        for ep in sorted({o.tp, o.tp // 2 if o.engine != "vllm" else o.tp}):
            if ep > o.ep:
                yield Candidate(
                    f"experts cut {o.expert_tp} ways (EP{ep} would not)",
                    f"each expert of width {d.facts.moe_intermediate} is split over {o.expert_tp} ranks, {width} each: "
                    "every rank reads a slice of every expert that is touched",
                    "docs/theory.md#mixture-of-experts, costs/moe.py", {"ep": ep},
                )
    if o.ep > 1 and o.dp_attention == 1:
        yield Candidate(
            "EP that still pays all-reduces",
            "without attention groups every rank computes its experts for all tokens and the results are summed by the "
            "same two all-reduces a layer as under TP",
            "vLLM 0.33.0 use_all2all_kernels; SGLang layers/communicator.py", {"dp_attention": o.tp, "ep": o.tp},
        )


def replicated_kv(case: Case) -> Iterator[Candidate]:
    """KV that several ranks hold in copies."""
    o, d = case.options, case.deployment
    ways = o.attention_tp if d.facts.attention == "mla" else o.attention_tp // max(1, d.facts.kv_heads)
    copies = ways // o.dcp
    if copies < 2:
        return
    latent = "the MLA latent belongs to no head" if d.facts.attention == "mla" else f"{d.facts.kv_heads} KV heads"
    what = f"{latent}: {copies} ranks hold the same KV, so {o.tp} GPUs cache what {o.tp // copies} could"
    yield Candidate("KV replicated (DCP would share it)", what, "docs/theory.md#kv-cache", {"dcp": ways}, memory=True)
    if d.facts.attention == "mla" and o.dp_attention == 1 and d.facts.experts:
        yield Candidate("KV replicated (DP attention would share it)", what, "docs/theory.md#kv-cache",
                        {"dp_attention": o.tp, "ep": o.tp}, memory=True)


# ---------------------------------------------------------------- memory


def memory_fraction(case: Case) -> Iterator[Candidate]:
    """A fraction that leaves GPUs idle, or one that is about to run out."""
    o, pool = case.options, case.memory.pool
    if o.memory_fraction is None:
        return
    spare = min(pool.free_bytes)
    if case.memory.fits and spare > 1.5 * SPARE_BYTES:
        total = case.deployment.facts.gpu_memory_bytes
        step = math.floor(100 * (spare - SPARE_BYTES) / total) / 100
        fraction = min(round(o.memory_fraction + step, 3), 0.97)
        if fraction > o.memory_fraction:
            yield Candidate(
                "memory fraction leaves GPUs idle",
                f"{spare / GIB:.1f} GiB stay free on the fullest GPU with {o.memory_fraction:g}; "
                f"{fraction:g} keeps about {SPARE_BYTES / GIB:g} GiB",
                "memory answer, free bytes of every rank", {"memory_fraction": fraction}, memory=True,
            )
    worst = min(range(len(pool.free_bytes)), key=lambda i: pool.free_bytes[i])
    above = band(pool.rows[worst])[1]
    if case.memory.fits and spare < above:
        fraction = round(o.memory_fraction - math.ceil(100 * (above - spare) /
                                                       case.deployment.facts.gpu_memory_bytes) / 100, 3)
        if fraction > 0.05:
            yield Candidate(
                "close to out of memory",
                f"{spare / GIB:.1f} GiB stay free, and runtime memory may be {above / GIB:.1f} GiB more (80 % band); "
                f"{fraction:g} is safe",
                "memory answer, band of the runtime rows", {"memory_fraction": fraction}, kind="risk", always=True,
            )


def limits(case: Case) -> Iterator[Candidate]:
    """Limits on sequences, context and chunk, against the load that is asked about."""
    o, d = case.options, case.deployment
    most = max(case.concurrency) / o.dp
    allowed = running_limit(case.memory.placement)
    if most > allowed:
        yield Candidate("sequence limit below the load", f"at most {allowed:,} sequences run at once; the rest waits",
                        f"{o.engine} {o.version} scheduler", {"max_sequences": math.ceil(most)})
    context = o.context or d.facts.max_context
    needed = 2 ** math.ceil(math.log2(max(2 * case.tokens, 4096)))
    if context > 2 * needed:
        yield Candidate(
            "context longer than the load needs",
            f"request tables and workspaces are sized for {context:,} tokens a sequence; the load needs "
            f"{case.tokens:,.0f}",
            f"{o.engine} {o.version} memory rules", {"context": needed}, memory=True,
        )
    if o.prefill_chunk and o.prefill_chunk < 16384:
        yield Candidate("prefill chunk small", f"prompts are cut at {o.prefill_chunk:,} tokens a forward",
                        "docs/theory.md, serving", {"prefill_chunk": 2 * o.prefill_chunk})
    if o.kv_dtype in ("bf16", "fp16"):
        yield Candidate("KV cache in 16 bits", "FP8 holds twice the tokens and halves what decode attention reads; "
                        "whether answers stay as good is not asked here", "docs/theory.md#kv-cache",
                        {"kv_dtype": "fp8"}, memory=True)


def idle_gpus(case: Case) -> Iterator[Candidate]:
    """GPUs that the launch does not use."""
    o, node = case.options, case.deployment.node
    copies = node.count // o.world
    if copies > o.dp:
        yield Candidate("GPUs idle", f"{case.deployment.gpus} of {node.count} GPUs are used", "strategy",
                        {"dp": copies}, memory=True)


# ---------------------------------------------------------------- links


def all_reduce(case: Case) -> Iterator[Candidate]:
    """The engine's own kernel switched off, or unavailable on PCIe."""
    o, facts = case.options, case.deployment.facts
    if o.attention_tp < 2:
        return
    if o.all_reduce == "nccl" and (facts.full_nvlink or o.attention_tp == 2):
        yield Candidate("custom all-reduce switched off", "small messages take NCCL, with its longer start-up",
                        f"{o.engine} {o.version} dispatch of all-reduce", {"all_reduce": None})
    since = PCIE_IPC_SINCE.get(o.engine)
    if since and not facts.full_nvlink and facts.p2p and o.attention_tp in (4, 8) and o.all_reduce != "pcie_ipc":
        older = not at_least(o.version, since)
        yield Candidate(
            "custom all-reduce unavailable on PCIe",
            "more than two GPUs without NVLink always take NCCL; the PCIe IPC kernel is switched on apart"
            + (f", from {o.engine} {since} on: both sides are asked there" if older else ""),
            f"{o.engine} dispatch of all-reduce; FlashInfer PCIe IPC", {"all_reduce": "pcie_ipc"},
            version=since if older else "",
        )


def nccl_setup(case: Case) -> Iterator[Candidate]:
    """NCCL variables that cost, P2P that is off, and the variant that the answer takes for granted."""
    o, d = case.options, case.deployment
    if o.tp == 1 and o.pp == 1:
        return
    words = (o.nccl or "").split()
    for word in words:
        if "=" in word:
            rest = " ".join(w for w in words if w != word) or None
            off = word.startswith(("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"))
            yield Candidate("P2P between GPUs switched off" if off else f"NCCL variable {word}",
                            "messages go through host memory" if off else "it binds NCCL's own choice",
                            "NCCL 2.30.7 graph/paths.cc, graph/tuning.cc", {"nccl": rest}, flag=f"remove {word}")
    if d.node.p2p is False:
        yield Candidate("no P2P between GPUs on this node", "messages go through host memory; a patched driver or "
                        "another platform is needed", "node file", node=_with_p2p(d.node), flag="P2P on")
    found = d.node.collectives
    if not words and found and found.default != "stock" and "stock" in found.variants:
        yield Candidate(
            "the answer takes NCCL as tuned",
            f"this node's figures are for the variant {found.default!r}; with NCCL as installed it is slower",
            "node file, collectives", {"nccl": "stock"}, flag="NCCL without its tuning", kind="risk",
        )


def _with_p2p(node: Node) -> Node:
    """The node with peer access; its own measured collectives no longer hold."""
    return node.model_copy(update={"p2p": True, "collectives": None})


RULES = (graphs, crowded_slot, async_depth, uneven_stages, experts, replicated_kv, memory_fraction, limits, idle_gpus,
         all_reduce, nccl_setup)
assert set(PCIE_IPC_SINCE) <= set(ENGINES)
