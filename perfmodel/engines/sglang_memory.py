"""SGLang's memory: the default fraction, the named rows, and the token pool by its own rule."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.engines import activations as act
from perfmodel.engines.memory import GIB, MIB, KvPool, band, of_ranks, row, smallest, total
from perfmodel.engines.options import Facts, Options, RankFacts, RuntimeRow
from perfmodel.engines.rules import draft_tokens
from perfmodel.engines.versions import at_least

_READ = "SGLang 0.5.23"

# Below so many GiB of GPU memory: prefill chunk, largest decode graph with tp < 4 and with tp >= 4
_BUCKETS = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (90, 8192, 256, 512), (160, 8192, 256, 512),
            (float("inf"), 16384, 512, 512))


def bucket(version: str, gpu_memory_bytes: float, tp: int) -> tuple[int, int]:
    """Default chunked_prefill_size and largest captured decode batch for this GPU [tokens], [1].

    Source: SGLang arg_groups/memory_hook.py handle_gpu_memory_settings (server_args.py before 0.5.20).

    >>> bucket("0.5.23", 97887 * 2**20, 8), bucket("0.5.23", 97887 * 2**20, 1)
    ((8192, 512), (8192, 256))
    """
    memory = gpu_memory_bytes / GIB
    if 20 <= memory < 35 and at_least(version, "0.5.20"):
        return 4096, 48 if tp < 4 else 160
    _, chunk, few, many = next(entry for entry in _BUCKETS if memory < entry[0])
    return chunk, few if tp < 4 else many


def prefill_graph(options: Options, facts: Facts) -> bool:
    """Whether prefill runs in captured (piecewise or breakable) graphs: as told, else since 0.5.10, on one stage,
    without DP attention, and for text models (and Kimi K2.5 since 0.5.23)."""
    if options.prefill_graphs is not None:
        return options.prefill_graphs and at_least(options.version, "0.5.6")
    if not at_least(options.version, "0.5.10") or options.pp > 1 or options.dp_attention > 1 or not options.cuda_graphs:
        return False
    kimi = facts.architecture == "KimiK25ForConditionalGeneration" and at_least(options.version, "0.5.23")
    return not facts.multimodal or kimi


def prefill_graph_sizes(largest: int) -> int:
    """How many chunk lengths are captured up to ``largest`` [1].

    >>> prefill_graph_sizes(8192)
    58
    """
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, 10**5, 512))
    return sum(1 for start, stop, step in steps for size in range(start, stop, step) if size <= largest)


def default_fraction(options: Options, facts: Facts) -> float:
    """mem_fraction_static that SGLang chooses itself [1]; needs prefill_chunk and max_graph_batch.

    ``f = round((memory - reserved) / memory, 3)``, reserved in MiB from chunk, graphs and world size; times a factor
    for vision models. Source: SGLang arg_groups/memory_hook.py (0.5.20 on), server_args.py
    _handle_gpu_memory_settings (before). Valid without disaggregation and DeepEP.
    """
    assert options.prefill_chunk is not None and options.max_graph_batch is not None
    version, batch, memory = options.version, options.max_graph_batch, (
        facts.driver_memory_bytes or facts.gpu_memory_bytes) / MIB
    reserved = 512.0 + 1.5 * max(options.prefill_chunk, 2048) + 1024.0 * options.tp * options.pp / 8
    if options.cuda_graphs or not at_least(version, "0.5.15"):
        reserved += 2.0 * batch
    if options.dp_attention > 1:
        reserved += (3.0 if batch <= 300 else 4.5) * batch * options.dp_attention
    if prefill_graph(options, facts):
        reserved += 1536.0 if facts.attention == "mla" else 8.0 * prefill_graph_sizes(options.prefill_chunk)
    if memory > 60 * 1024:
        reserved = max(reserved, 10240.0)
    fraction = round((memory - reserved - _speculative_mib(options)) / memory, 3)
    return fraction * vision_factor(facts) if facts.multimodal else fraction


def _speculative_mib(options: Options) -> float:
    """Reserve for a draft model, up to 0.5.13 [MiB]."""
    method = (options.speculative or "off").partition(":")[0].lower()
    if method in ("off", "none", "ngram") or at_least(options.version, "0.5.15"):
        return 0.0
    if method == "standalone":
        return 6144.0
    return 4096.0 if at_least(options.version, "0.5.10") else 2048.0


def vision_factor(facts: Facts) -> float:
    """What the default fraction is multiplied with for a vision tower of this depth and width [1].

    Source: SGLang arg_groups/memory_hook.py adjust_mem_fraction_for_vlm; Kimi K2.5, 27 layers of 1152: 0.90974.
    """
    load = facts.vision_layers * facts.vision_hidden**2 / (24 * 1024**2)
    return 0.95 * min(1.05, max(0.8, 1.0 - 0.1 * (load - 1.0)))


def request_rows(options: Options, kv_tokens: int | None) -> int:
    """Rows of the request table of one DP rank [1].

    clamp(tokens / context x 512, 2048, 4096) unless given; since 0.5.11 also at most half the tokens.
    """
    assert options.context is not None
    recent, given = at_least(options.version, "0.5.11"), options.max_sequences
    if given is None:
        rows = min(max(int((kv_tokens or 0) / options.context * 512), 2048), 4096)
    else:
        rows = max(1, given // options.dp_attention) if recent else given
    return rows if kv_tokens is None or not recent else max(1, min(rows, kv_tokens // 2))


def runtime_rows(options: Options, facts: Facts, rank: RankFacts,
                 kv_tokens: int | None = None) -> tuple[RuntimeRow, ...]:
    """Every piece that is neither weights nor KV on one rank; options resolved.

    SGLang charges none of it to the pool: "baseline" is gone before it measures, "slack" must fit beside the pool.
    """
    rows = [*_baseline(options, facts), *_tables(options, facts, rank, kv_tokens), *_graphs(options, facts, rank),
            *_prefill(options, facts, rank)]
    return tuple(item for item in rows if item.bytes > 0)


def _baseline(options: Options, facts: Facts) -> list[RuntimeRow]:
    """What is gone on every rank before weights load."""
    rows = [row("CUDA context", 0.6 * GIB, 0.75, 1.4, "baseline", "measured",
                "SGLang logs, 'Load weight begin' on one GPU: 78.47 of 79.19 GiB, 23.09 and 22.76 of 23.56")]
    if options.world > 1 and facts.full_nvlink:
        rows.append(row("NCCL communicators and custom all-reduce", 1.9 * GIB, 0.6, 1.1, "baseline", "measured",
                        "SGLang logs on 8x H200 at TP8, 'Init torch distributed ends': 1.77-2.01 GiB"))
    elif options.world > 1:
        groups = 1 + (options.pp > 1) + (options.tp > 1)
        rows.append(row("NCCL communicators", 0.2 * GIB * groups, 0.5, 2.5, "baseline", "assumed",
                        "NCCL 2.30.7 init.cc computeBuffSizes: 10 MiB a channel and peer, few channels over PCIe"))
    return rows


def _tables(options: Options, facts: Facts, rank: RankFacts, kv_tokens: int | None) -> list[RuntimeRow]:
    assert options.context is not None
    drafts = draft_tokens(options.speculative)
    table = act.request_table_bytes(request_rows(options, kv_tokens), options.context, drafts)
    workspace = {"flashinfer": 384.0, "flashinfer_mla": 384.0, "trtllm_mla": 150.0, "trtllm_mha": 512.0}
    size = workspace.get(options.attention_backend or "", 0.0) * MIB
    return [row("request table", table, 1.0, 1.0, "slack", "derived", f"{_READ} memory_pool.py ReqToTokenPool"),
            row("attention workspace", size, 0.7, 1.4, "slack", "derived", f"{_READ} attention backends"),
            row("cuBLAS and kernels", 0.15 * GIB, 0.5, 2.0, "slack", "assumed", "8-32 MiB a cuBLAS handle and stream")]


def _graphs(options: Options, facts: Facts, rank: RankFacts) -> list[RuntimeRow]:
    """Index tables at the largest batch, static inputs and outputs, and the pool of the captured activations."""
    if not options.cuda_graphs:
        return []
    assert options.context and options.max_graph_batch and options.page_size
    batch, backend = options.max_graph_batch, options.attention_backend
    entry, page = (8.0, 1) if backend == "triton" else (4.0, 1) if "flashinfer" in (backend or "") else (
        4.0, options.page_size)
    indices = act.block_table_bytes(batch, options.context, entry, page)
    if backend == "triton":
        width = 512.0 if facts.attention == "mla" else facts.kv_values_per_token_layer / (2.0 * facts.kv_heads)
        indices += batch * rank.heads_local * 8 * width * 4.0
    static = batch * facts.hidden * act.BYTES * (1.0 + 2.0 * (options.pp > 1))
    if rank.last:
        static += act.sampler_bytes(batch, facts.vocab)
    pool = (0.2 + 0.012 * rank.layers) * GIB
    return [row("graph index tables", indices, 1.0, 1.0, "slack", "derived", 
                f"{_READ} {backend} backend, init_cuda_graph_state"),
            row("graph static buffers", static, 0.8, 1.5, "slack", "derived", f"{_READ} cuda_graph_runner.py"),
            row("CUDA graphs", pool, 0.4, 2.5, "slack", "measured",
                "sglang PR 12978: 1.0 GB (TP2, 36 sizes); 0.89 GiB Grok-1 8x H100; 2.97 GiB Qwen3-32B")]


def _prefill(options: Options, facts: Facts, rank: RankFacts) -> list[RuntimeRow]:
    """Activations of one prefill chunk. SGLang does not profile them; they must find room in the slack."""
    assert options.prefill_chunk and options.context
    tokens = max(1, options.prefill_chunk // options.dp_attention)
    absorbed = options.attention_backend == "triton"
    layer = act.layer_peak_bytes(tokens, options, facts, rank, absorbed)
    if facts.attention == "mla" and not absorbed and options.context > options.prefill_chunk:
        piece = min(131072, options.context)
        layer += piece * act.BYTES * (576.0 * 1.5 + rank.heads_local * 448.0)
    layer += act.moe_bytes(tokens, options, facts)
    rows = [row("prefill activations", layer, 0.7, 1.4, "slack", "derived",
                f"shapes in {_READ} models/deepseek_v2.py, fused MoE")]
    if rank.last:
        sampled = min(options.max_sequences or 4096, options.max_graph_batch or 256)
        rows.append(row("sampler", act.sampler_bytes(sampled, facts.vocab, 2.0), 0.5, 2.0, "slack", "assumed",
                        "logits and probabilities in float32"))
    return rows


def pool_budget(pre_bytes: float, post_bytes: float, fraction: float) -> float:
    """What SGLang gives to the token pool: free memory after weights, less the share that it leaves [B].

    .. math:: pool = post - pre (1 - f)

    ``pre_bytes``, ``post_bytes``: smallest free memory over all ranks before and after loading [B]; ``fraction``:
    mem_fraction_static [1]. Source: SGLang mem_cache/kv_cache_configurator.py _profile_available_bytes.

    >>> round(pool_budget(22.76, 8.37, 0.88), 2)  # GiB; the log shows 5.64
    5.64
    """
    return post_bytes - pre_bytes * (1.0 - fraction)


# Layers with a window get a pool of their own there; Gemma 2 and 3 cache everything. Read in 0.5.9 and 0.5.23
SLIDING_POOLS = ("Llama4ForConditionalGeneration", "GptOssForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM",
                 "Gemma4ForConditionalGeneration", "Gemma4ForCausalLM")
SLIDING_RATIO = 0.8         # --swa-full-tokens-ratio
STATE_RATIO = 0.9           # --mamba-full-memory-ratio: state memory over KV memory


def cell_bytes(options: Options, facts: Facts, rank: RankFacts) -> float:
    """Bytes that one printed token costs on a rank; of sliding layers only 0.8 tokens are kept for each. [B]

    Source: SGLang mem_cache/pool_configurator.py; a Gemma-4 log shows 798,276 sliding beside 997,846 full tokens.
    """
    if facts.architecture not in SLIDING_POOLS or not rank.groups or not at_least(options.version, "0.5.3"):
        return rank.kv_bytes_per_token
    full = sum(g.layers * g.kv_bytes_per_token for g in rank.groups if g.window is None)
    sliding = sum(g.layers * g.kv_bytes_per_token for g in rank.groups if g.window is not None)
    return (full + SLIDING_RATIO * sliding) / options.dcp if full else rank.kv_bytes_per_token


def state_share(ranks: Sequence[RankFacts]) -> float:
    """Share of the pool that recurrent states take: 0.9 of what the KV cache gets, where there are such layers.

    A Granite hybrid's log: 2.77 GiB of states beside 3.04 of KV.
    """
    recurrent = any(g.state_bytes and not g.kv_bytes_per_token for rank in ranks for g in rank.groups)
    return STATE_RATIO / (1.0 + STATE_RATIO) if recurrent else 0.0


def kv_pool(options: Options, facts: Facts, ranks: Sequence[RankFacts]) -> KvPool:
    """Token pool by SGLang's rule: the fullest rank's free memory over the largest rank's bytes per token.

    ``kv_bytes_per_token`` of a rank is already divided by dcp. The table of requests depends on the pool, so rows are
    made after it. Source: SGLang mem_cache/kv_cache_configurator.py; min over the whole world of ranks.
    """
    assert options.memory_fraction and options.page_size
    gone = _baseline(options, facts)
    before = [facts.gpu_memory_bytes - total(gone)] * len(ranks)
    after = [free - rank.weights_bytes for free, rank in zip(before, ranks, strict=True)]
    pre, post = min(before), min(after)
    vision = 100 * MIB if facts.multimodal and at_least(options.version, "0.5.20") else 0.0
    rest = pool_budget(pre, post, options.memory_fraction) - vision
    cells, states = [cell_bytes(options, facts, rank) for rank in ranks], state_share(ranks)
    cell = max(cells)

    def tokens_of(left: float) -> int:
        assert options.page_size
        return max(0, int(left * (1.0 - states))) // int(cell) // options.page_size * options.page_size

    tokens = tokens_of(rest)
    below, above = band(gone)
    rows = of_ranks(ranks, lambda rank: runtime_rows(options, facts, rank, tokens))
    padded = tokens + options.page_size if tokens else 0
    pools = tuple(padded * each + (rest * states if tokens else 0.0) for each in cells)
    free = tuple(left - pool - total(own, "slack") for left, pool, own in zip(after, pools, rows, strict=True))
    verdict, reason, where = _verdict(options, facts, ranks, rows, before, after, pools, rest)
    fraction = options.memory_fraction
    return KvPool(tokens, tokens_of(rest - above * fraction), tokens_of(rest + below * fraction),
                  tokens * options.dp_attention, pools,
                  tuple(pool_budget(pre, left, fraction) - vision for left in after), free, rows, verdict, where,
                  reason, pre * fraction, pre, pre * (1.0 - fraction))


_STEPS = (
    ("oom_request_table", ("request table",), "the request table"),
    ("oom_graphs", ("attention workspace", "cuBLAS and kernels", "graph index tables", "graph static buffers",
                    "CUDA graphs"), "graph capture and its tables"),
    ("oom_prefill", ("prefill activations", "sampler"), "a prefill chunk"),
)


def _verdict(options: Options, facts: Facts, ranks: Sequence[RankFacts], rows: Sequence[Sequence[RuntimeRow]],
             before: Sequence[float], after: Sequence[float], pools: Sequence[float],
             rest: float) -> tuple[str, str, int]:
    """The first thing that finds no room, in the order in which SGLang allocates, and on which rank."""
    fullest = smallest(after)
    if after[fullest] <= 0:
        return "oom_weights", (f"weights of {ranks[fullest].weights_bytes / GIB:.1f} GiB do not fit into the "
                               f"{before[fullest] / GIB:.1f} GiB that are free at start"), fullest
    if rest < max(rank.kv_bytes_per_token for rank in ranks) * (options.page_size or 1):
        least = 1.0 - min(after) / min(before)
        kept = min(before) * (1 - (options.memory_fraction or 0)) / GIB
        return "no_kv", (f"SGLang leaves pre x (1 - mem_fraction_static) = {kept:.1f} GiB free and "
                         f"{min(after) / GIB:.1f} GiB are left after weights; the fraction must exceed "
                         f"{least:.4f}"), fullest
    left = [space - pool for space, pool in zip(after, pools, strict=True)]
    for verdict, names, what in _STEPS:
        needs = [sum(item.bytes for item in own if item.name in names) for own in rows]
        short = [space - need for space, need in zip(left, needs, strict=True)]
        tight = smallest(short)
        if short[tight] < 0:
            return verdict, (f"{what} needs {needs[tight] / GIB:.2f} GiB beside the pool, "
                             f"{max(0.0, left[tight]) / GIB:.2f} GiB are free: SGLang does not count it in "
                             "mem_fraction_static"), tight
        left = short
    widest = max(range(len(ranks)), key=lambda index: ranks[index].kv_bytes_per_token)
    return "fits", f"rank {fullest} has least memory after weights, rank {widest} most KV bytes a token", fullest


__all__ = ["bucket", "default_fraction", "kv_pool", "pool_budget", "request_rows", "runtime_rows", "vision_factor"]
