"""What may be wrong with a launch: rules that propose one change each. What a change is worth, `doctor` asks the model.

A rule looks at a deployment and yields `Candidate`s. It holds no figure of speed; a candidate that changes nothing
worth a mention is dropped after it was asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfmodel.engines.memory import GIB, band
from perfmodel.insight.case import Candidate, Case
from perfmodel.insight.findings_links import all_reduce, nccl_setup
from perfmodel.insight.findings_pipeline import async_depth, crowded_slot, uneven_stages
from perfmodel.step.factors import Z80
from perfmodel.step.memory import running_limit

SPARE_BYTES = 1.0 * GIB     # what a proposed memory fraction leaves free on every rank. Kind: assumed


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
                "memory answer, band of the runtime rows", {"memory_fraction": fraction}, kind="safety", always=True,
                chance=_chance(spare, above),
            )


def _chance(spare: float, above: float) -> float:
    """That runtime memory exceeds what is spare, if ``above`` is the upper end of its 80 % band (normal)."""
    return 0.5 * math.erfc(Z80 * spare / above / math.sqrt(2))


def limits(case: Case) -> Iterator[Candidate]:
    """Limits on sequences, context and chunk, against the load that is asked about."""
    o, d = case.options, case.deployment
    most = max(case.concurrency) / o.dp
    allowed = running_limit(case.memory.placement)
    if most > allowed:
        yield Candidate("sequence limit below the load", f"at most {allowed:,} sequences run at once; the rest waits",
                        f"{o.engine} {o.version} scheduler", {"max_sequences": math.ceil(most)})
    enough = math.ceil(most)
    if allowed >= 2 * enough and o.max_sequences and o.max_sequences >= 2 * enough:
        yield Candidate("sequence limit above the load", "tables, graphs and sampler are sized for "
                        f"{o.max_sequences:,} sequences; the load needs {enough:,}",
                        f"{o.engine} {o.version} memory rules", {"max_sequences": enough}, memory=True)
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


RULES = (graphs, crowded_slot, async_depth, uneven_stages, experts, replicated_kv, memory_fraction, limits, idle_gpus,
         all_reduce, nccl_setup)
