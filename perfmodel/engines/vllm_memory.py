"""vLLM's memory: what its budget charges by version, the named rows, and the KV pool that is left."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from perfmodel.engines import activations as act
from perfmodel.engines.memory import GIB, MIB, KvPool, band, of_ranks, row, smallest, total
from perfmodel.engines.options import Facts, Options, RankFacts, RuntimeRow
from perfmodel.engines.rules import draft_tokens
from perfmodel.engines.versions import at_least
from perfmodel.engines.vllm_kv import Layout, layout, printed_tokens, sequence_blocks, sequence_bytes

_LD = "vLLM 0.19.0 start-up logs on H100, github llm-d-incubation/llm-d-planner PR 205"


LARGE_IMAGES = ("Qwen3VL", "Qwen3_5", "Qwen3_6")     # profiled with images of 16,384 tokens
TRANSIENT = ("sampler peak", "activation peak of a chunk", "encoder outputs")  # used while a batch runs


def runtime_rows(options: Options, facts: Facts, rank: RankFacts,
                 kv_tokens: int | None = None) -> tuple[RuntimeRow, ...]:
    """Every piece that is neither weights nor KV on one rank; options resolved. ``kv_tokens`` is not needed here.

    ``when``: communicators are charged to the budget before 0.11.2, the CUDA context by V1 before 0.9, graphs since
    0.20 (vLLM v1/worker/gpu_worker.py determine_available_memory, utils/mem_utils.py memory_profiling).
    """
    version = options.version
    before = at_least(version, "0.8") and not at_least(version, "0.9")
    rows = [row("CUDA context", 0.51 * GIB, 0.6, 1.4, "budget" if before else "baseline", "measured",
                f"{_LD}: 79.19 - 78.68 GiB at TP1")]
    rows += _communicators(options, facts, "baseline" if at_least(version, "0.11.2") else "budget")
    rows += [*_persistent(options, facts, rank), *_activation(options, facts, rank), _graphs(options, facts, rank)]
    return tuple(item for item in rows if item.bytes > 0)


def _communicators(options: Options, facts: Facts, when: str) -> list[RuntimeRow]:
    """NCCL channel buffers; one communicator a group of more than one rank."""
    if options.world == 1:
        return []
    if facts.full_nvlink:
        rows = [row("NCCL communicators", 1.02 * GIB, 0.8, 1.6, when, "measured",
                    f"{_LD}: 78.68 - 77.66 GiB at TP2, TP4")]
        if facts.experts and options.tp > 1:
            rows.append(row("NCCL expert group", 0.48 * GIB, 0.6, 1.5, when, "measured",
                            f"{_LD}: 77.66 - 77.18 GiB for MoE"))
        return rows
    groups = 1 + (options.pp > 1) + (options.tp > 1 and facts.experts > 0)
    return [row("NCCL communicators", 0.1 * GIB * groups, 0.3, 3.0, when, "measured",
                "vLLM 0.10.2 on 8x L40S: 0.21 GiB of non-torch memory, kernels included")]


def _persistent(options: Options, facts: Facts, rank: RankFacts) -> list[RuntimeRow]:
    """What stays allocated after the profile run besides weights."""
    assert options.context and options.max_sequences and options.page_size and options.prefill_chunk
    rows = [row("kernels and cuBLAS", 0.25 * GIB, 0.4, 1.6, "budget", "measured",
                f"{_LD}: non-torch at TP1 (0.21 on 8x L40S)")]
    linked = facts.full_nvlink and int(facts.compute_capability) in (9, 10) and at_least(options.version, "0.11")
    if options.attention_tp > 1 and linked:
        size = 1.85 if int(facts.compute_capability) == 9 else 0.7
        rows.append(row("fused and symmetric all-reduce", size * GIB, 0.85, 1.15, "budget", "measured",
                        f"{_LD}: non-torch 2.07-2.21 at TP2 and TP4 against 0.25 at TP1 (0.95 on GB200 TP4)"))
    elif options.attention_tp == 2 and facts.p2p:
        rows.append(row("custom all-reduce", 32 * MIB, 1.0, 1.0, "baseline", "derived",
                        "vLLM 0.33.0 custom_all_reduce.py: 8 + 16 + 8 MiB"))
    if facts.attention == "mla":
        tokens = _chunked_context_tokens(options)
        rows.append(row("MLA chunked-context workspace", tokens * facts.kv_values_per_token_layer * act.BYTES, 1.0, 1.0,
                        "budget", "derived", "vLLM 0.33.0 mla_attention.py determine_chunked_prefill_workspace_size"))
    table = act.block_table_bytes(options.max_sequences, options.context, 4.0, options.page_size)
    seen = at_least(options.version, "0.27") or not at_least(options.version, "0.9")
    rows.append(row("block tables", table, 1.0, 2.0, "budget" if seen else "slack", "derived",
                    "vLLM v1/worker/block_table.py, int32 on the GPU; in no term of the budget from 0.9 to 0.26"))
    repacked = facts.experts and facts.weight_format.startswith(("mxfp4", "nvfp4"))
    if repacked and at_least(options.version, "0.9") and not at_least(options.version, "0.20"):
        rows.append(row("allocator holes after repacking", 0.16 * rank.weights_bytes, 0.5, 1.5, "slack", "derived",
                        "what was missing at failed sampler warm-ups: gpt-oss-20b (0.19), GLM-4.7 NVFP4 (0.16)"))
    return rows


def _chunked_context_tokens(options: Options) -> int:
    assert options.context and options.max_sequences and options.page_size
    return min(max(8 * options.context, 4 * options.max_sequences * options.page_size), 65536)


def _activation(options: Options, facts: Facts, rank: RankFacts) -> list[RuntimeRow]:
    """The peak of the profile run: the MoE scratch that stays, and the wider of a layer and the sampler."""
    assert options.prefill_chunk and options.max_sequences
    tokens = options.prefill_chunk
    layer = act.layer_peak_bytes(tokens, options, facts, rank, absorbed=False)
    if facts.attention == "mla":
        expanded = _chunked_context_tokens(options) * rank.heads_local * 256.0 * act.BYTES
        layer = max(layer, act.hidden_bytes(tokens, facts.hidden) + expanded)
    if options.pp > 1:
        layer += act.hidden_bytes(tokens, facts.hidden, 2.0)
    copies, low, high = _sampler_copies(options.version)
    rows_sampled = options.max_sequences * (1 + draft_tokens(options.speculative))
    sampler = act.sampler_bytes(rows_sampled, facts.vocab, copies) + act.hidden_bytes(tokens, facts.hidden, 1.0)
    moe = act.moe_bytes(tokens, options, facts)
    vision = act.hidden_bytes(tokens, facts.hidden, 1.0) if facts.multimodal and rank.first else 0.0
    if vision and facts.architecture.startswith(LARGE_IMAGES):
        vision += 0.5 * GIB
    if facts.weight_format.startswith("mxfp4"):  # its kernels keep no scratch: gpt-oss-20b logs 2.87 GiB at TP1 and TP2
        layer, moe = max(layer, act.hidden_bytes(tokens, facts.hidden) + moe), 0.0
    rows = [row("MoE workspace", moe, 0.8, 1.2, "budget", "derived",
                "vLLM fused_marlin_moe.py, fused_moe.py workspaces")]
    if rank.last and sampler > layer:
        rows.append(row("sampler peak", sampler + 0.12 * GIB, low, high, "budget", "measured",
                        f"{_LD}: {copies:g} copies of max_num_seqs x vocab x 4 B"))
    else:
        rows.append(row("activation peak of a chunk", layer + 0.12 * GIB, 0.75, 1.35, "budget", "derived",
                        "shapes of the layers at max_num_batched_tokens; 0.1 GiB over them in vLLM 0.19 and 0.22 logs"))
    rows.append(row("encoder outputs", vision, 0.5, 2.5, "budget", "derived",
                    "images of one batch, max_num_batched_tokens embeddings, held through the profile run; 0.5 GiB "
                    "more for Qwen3-VL and 3.5 (0 to 1.1 in logs of 0.20 to 0.27 on RTX PRO 6000, 5090 and 3090)"))
    return rows


def _sampler_copies(version: str) -> tuple[float, float, float]:
    """Float32 copies of the logits at the sampler's peak, with a band.

    9.4 up to 0.16 (values, int64 indices and probabilities of a full sort), 3.5 since 0.17 (start-up logs of
    0.15 to 0.19: Qwen3-14B 5.64 -> 2.23 GiB); 1 under the V0 engine, the default before 0.8; 2 with the runner of 0.27
    and later, whose sampler works in place (assumed).
    """
    if at_least(version, "0.27"):
        return 2.0, 0.75, 1.6
    if not at_least(version, "0.8"):
        return 1.0, 0.8, 2.0
    return (3.5, 0.95, 1.1) if at_least(version, "0.17") else (9.4, 0.9, 1.1)


def _graphs(options: Options, facts: Facts, rank: RankFacts) -> RuntimeRow:
    """Graph pool and static buffers. A line through start-up logs, a fixed part and a part a layer."""
    budget = "budget" if at_least(options.version, "0.20") else "slack"
    if not options.cuda_graphs:
        return row("CUDA graphs", 0.0, 1.0, 1.0, budget, "derived", "off")
    if at_least(options.version, "0.20"):
        size, source = 0.2 + rank.layers * (0.015 if facts.experts else 0.006), (
            "vLLM 0.22.1 on H200: 0.36-0.5 (8B), 0.69-0.76 (V2-Lite); 0.20.2 on RTX PRO 6000 TP8: 1.22 (GLM-5.1)")
    else:
        each = 0.0145
        if facts.experts:
            widest = 0.058 if facts.weight_format.startswith("mxfp4") else 0.042 if facts.attention == "mla" else 0.021
            each = 0.018 + (widest - 0.018) / options.tp
        size, source = 0.45 + rank.layers * each, f"{_LD}: 0.51 (8 layers) to 1.98 (80); 1.84, 1.55, 1.09 (gpt-oss-20b)"
    return row("CUDA graphs", size * GIB, 0.7, 1.5, budget, "measured", source)


def kv_pool(options: Options, facts: Facts, ranks: Sequence[RankFacts]) -> KvPool:
    """KV blocks by vLLM's rule: a share of the total, less what profiling charges, in blocks, the minimum over ranks.

    ``requested = ceil(total x gpu_memory_utilization)``; ``kv_bytes_per_token`` of a rank is already divided by dcp.
    Source: vLLM 0.33.0 v1/worker/utils.py request_memory, v1/core/kv_cache_utils.py get_kv_cache_configs.
    """
    assert options.memory_fraction and options.page_size and options.context
    rows = of_ranks(ranks, lambda rank: runtime_rows(options, facts, rank))
    requested = float(ceil(facts.gpu_memory_bytes * options.memory_fraction))
    offers = [requested - rank.weights_bytes - total(own, "budget") for rank, own in zip(ranks, rows, strict=True)]
    layouts = [layout(options, facts, rank) for rank in ranks]
    per_block = [lay.block_bytes for lay in layouts]
    blocks, binding = _blocks(offers, per_block)
    margins = [band(own, "budget") for own in rows]
    fewest, _ = _blocks([offer - above for offer, (_, above) in zip(offers, margins, strict=True)], per_block)
    most, _ = _blocks([offer + below for offer, (below, _) in zip(offers, margins, strict=True)], per_block)
    pools = tuple(blocks * size for size in per_block)
    free = tuple(facts.gpu_memory_bytes - rank.weights_bytes - pool - total(own)
                 for rank, pool, own in zip(ranks, pools, rows, strict=True))
    verdict, reason, where = _verdict(options, facts, ranks, rows, layouts, offers, blocks, binding, requested, free)
    lay = layouts[binding]
    tokens, low, high = (printed_tokens(options, lay, count) for count in (blocks, fewest, most))
    sequences = blocks / sequence_blocks(options, lay)
    held = tokens if lay.groups == 1 else int(sequences * options.context)
    baseline = max(total(own, "baseline") for own in rows)
    return KvPool(tokens, low, high, held * options.dp_attention, pools, tuple(offers), free, rows, verdict, where,
                  reason, requested, facts.gpu_memory_bytes - baseline, facts.gpu_memory_bytes - requested,
                  None if lay.groups == 1 else sequences)


def _blocks(offers: Sequence[float], per_block: Sequence[float]) -> tuple[int, int]:
    """Blocks of the rank that has room for the fewest, and that rank."""
    counts = [max(0, int(offer // size)) for offer, size in zip(offers, per_block, strict=True)]
    ratios = [offer / size for offer, size in zip(offers, per_block, strict=True)]
    return min(counts), smallest(ratios)


def _verdict(options: Options, facts: Facts, ranks: Sequence[RankFacts], rows: Sequence[Sequence[RuntimeRow]],
             layouts: Sequence[Layout], offers: Sequence[float], blocks: int, binding: int, requested: float,
             free: Sequence[float]) -> tuple[str, str, int]:
    """The first check of vLLM that fails, in its own order, with its rule and the rank that fails it."""
    heaviest = smallest([-rank.weights_bytes for rank in ranks])
    start = [facts.gpu_memory_bytes - total(own, "baseline") for own in rows]
    if ranks[heaviest].weights_bytes > start[heaviest]:
        return "oom_weights", (f"weights of {ranks[heaviest].weights_bytes / GIB:.1f} GiB do not fit into the "
                               f"{start[heaviest] / GIB:.1f} GiB that are free at start"), heaviest
    least = smallest(start)
    if start[least] < requested and at_least(options.version, "0.9"):
        return "no_kv", (f"free memory at start ({start[least] / GIB:.2f} GiB) is less than gpu_memory_utilization "
                         f"asks for ({requested / GIB:.2f} GiB): vLLM refuses to start"), least
    if blocks <= 0:
        return "no_kv", (f"no memory is left for cache blocks: {offers[binding] / GIB:.2f} GiB of the "
                         f"{requested / GIB:.1f} GiB that gpu_memory_utilization allows"), binding
    lay = layouts[binding]
    needed, block = sequence_bytes(options, ranks[binding], lay), lay.kinds[0].tokens * options.dcp
    if needed > max(offers[binding], blocks * lay.block_bytes):
        return "kv_too_small", (f"vLLM must hold one sequence of {options.context} tokens ({needed / GIB:.2f} GiB); "
                                f"there are {offers[binding] / GIB:.2f}, {blocks} blocks of {block} tokens"), binding
    if lay.states and blocks < (options.max_sequences or 0):
        return "state_slots", (f"max_num_seqs ({options.max_sequences}) exceeds the {blocks} blocks that can hold a "
                               "recurrent state"), binding
    tight = smallest(free)
    return _late(options, rows[tight], free[tight], tight) or (
        "fits", f"{blocks} blocks of {block} tokens; rank {binding} binds", binding)


def _late(options: Options, rows: Sequence[RuntimeRow], free: float, rank: int) -> tuple[str, str, int] | None:
    """What fails after the pool is there: the tables, the capture of graphs, the warm-up of the sampler."""
    if free >= 0:
        return None
    transient = sum(item.bytes for item in rows if item.name in TRANSIENT)
    slack = {item.name: item.bytes for item in rows if item.when == "slack"}
    room = free + transient + sum(slack.values())       # beside pool and what stays, while nothing runs
    table, graphs = slack.get("block tables", 0.0), slack.get("CUDA graphs", 0.0)
    if room < table:
        return "oom_request_table", (f"block tables of {table / GIB:.2f} GiB (max_num_seqs x context) do not fit "
                                     f"beside the pool, {max(0.0, room) / GIB:.2f} GiB are free"), rank
    if room < table + graphs:
        return "oom_graphs", (f"graph capture needs {graphs / GIB:.2f} GiB beside gpu_memory_utilization (this version "
                              f"does not budget it), {max(0.0, room - table) / GIB:.2f} GiB are free"), rank
    return "oom_sampler", (f"the warm-up of the sampler ({options.max_sequences} sequences) needs {-free / GIB:.2f} "
                           "GiB more than what gpu_memory_utilization and the graphs leave"), rank


__all__ = ["kv_pool", "runtime_rows"]
