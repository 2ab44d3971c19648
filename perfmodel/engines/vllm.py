"""vLLM by version: defaults, what it refuses, pipeline split, captured batches, batches in flight.

Read in the sources of the versions listed (0.17.0 in start-up logs only); "since x" means absent in the listed version
before x.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines import rules
from perfmodel.engines.memory import GIB
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.versions import at_least
from perfmodel.engines.vllm_flags import launch_command, parse_command
from perfmodel.engines.vllm_memory import kv_pool, runtime_rows
from perfmodel.engines.vllm_network import all_reduce_backend, layer_collectives, step_collectives
from perfmodel.errors import IllegalDeployment, UnknownName

VERSIONS = ("0.6.6.post1", "0.7.3", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.13.0", "0.14.1",
            "0.16.0", "0.17.0", "0.18.1", "0.19.1", "0.20.0", "0.20.2", "0.21.0", "0.22.1", "0.25.1", "0.26.0",
            "0.27.1", "0.28.0", "0.30.0", "0.32.0", "0.33.0")

KV_DTYPES = ("bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4")
ATTENTION_PAGE = {"flash_attn": 16, "flashinfer": 16, "triton_attn": 16, "triton_mla": 16, "flash_attn_mla": 16,
                  "flashmla": 64, "flashmla_sparse": 64, "flashinfer_mla": 64, "cutlass_mla": 128, "rocm_aiter_mla": 16,
                  "rocm_attn": 16, "tree_attn": 16, "flex_attention": 16}


def resolve(options: Options, facts: Facts) -> tuple[Options, tuple[str, ...]]:
    """Fill every None by the default of this version; say in words what was filled."""
    version, notes = options.version or VERSIONS[-1], []
    found: dict[str, object] = {"version": version}

    def fill(name: str, value: object, why: str) -> None:
        if getattr(options, name) is None:
            found[name] = value
            notes.append(f"{name}: {rules.shown(value)} ({why})")

    if rules.kv_dtype(options.kv_dtype, KV_DTYPES, "vLLM") == "auto":
        found["kv_dtype"], why = rules.kv_default(facts, KV_DTYPES, at_least(version, "0.12"))
        notes.append(f"kv_dtype: {found['kv_dtype']} (vLLM default auto: {why})")
    else:
        found["kv_dtype"] = rules.kv_dtype(options.kv_dtype, KV_DTYPES, "vLLM")
    fill("context", facts.max_context, "the model's own limit")
    fill("memory_fraction", 0.92 if at_least(version, "0.20") else 0.90, f"vLLM {version} default")
    context = options.context or facts.max_context
    tokens, sequences = _batch_defaults(version, facts, context)
    fill("max_sequences", min(sequences, options.prefill_chunk or tokens), f"vLLM {version} default for this GPU")
    at_most = (options.max_sequences or sequences) * context
    fill("prefill_chunk", min(tokens, at_most), f"vLLM {version} default for this GPU, API server")
    backend = _attention_backend(options, facts)
    fill("attention_backend", backend, "assumed from the attention and the GPU")
    fill("page_size", ATTENTION_PAGE[backend], f"vLLM default with {backend}")
    mode = "FULL_AND_PIECEWISE" if at_least(version, "0.11") else "PIECEWISE" if at_least(version, "0.8") else "FULL"
    fill("cuda_graphs", True, f"vLLM default, {mode}")
    now = replace(options, **found)  # type: ignore[arg-type]
    fill("max_graph_batch", _graph_cap(now, facts), "vLLM default: at most two tokens a sequence")
    fill("max_micro_batch", now.max_sequences, "vLLM puts no limit on one micro-batch but max_num_seqs")
    fill("async_depth", 0, "vLLM has no such option")
    fill("moe_backend", _moe_backend(facts) if facts.experts else "none", "assumed from the format of the experts")
    fill("all_reduce", "auto", "vLLM's own order")
    return replace(options, **found), tuple(notes)  # type: ignore[arg-type]


def _batch_defaults(version: str, facts: Facts, context: int) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of the API server on this GPU [tokens], [1].

    Before 0.8 the V0 engine is the default: it takes whole prompts, in chunks only where the context passes 32,768.
    """
    memory, name = facts.gpu_memory_bytes, facts.gpu_name.lower()
    if at_least(version, "0.28") and memory >= 160 * GIB:
        return 16384, 1024
    if at_least(version, "0.8"):
        small = memory < 70 * GIB or (at_least(version, "0.9.2") and ("a100" in name or "gb10" in name))
        return (2048, 256) if small else (8192, 1024)
    chunk = 2048 if at_least(version, "0.7") else 512
    return (max(context, 2048) if context <= 32768 else chunk), 256


def _attention_backend(options: Options, facts: Facts) -> str:
    if options.attention_backend is not None:
        word = options.attention_backend.lower().replace("-", "_")
        if word not in ATTENTION_PAGE:
            raise UnknownName("attention_backend", options.attention_backend, ATTENTION_PAGE)
        return word
    major = int(facts.compute_capability)
    if facts.attention == "mla":
        return {9: "flash_attn_mla", 10: "flashinfer_mla"}.get(major, "triton_mla")
    return "flashinfer" if major == 10 else "flash_attn"


def _moe_backend(facts: Facts) -> str:
    """The kernel that runs the experts, a word; what vLLM takes where nobody says otherwise (assumed)."""
    kind = facts.weight_format.partition("-")[0]
    if kind in ("int4", "awq", "gptq", "int8"):
        return "marlin"
    if kind in ("nvfp4", "mxfp4"):
        return "flashinfer" if int(facts.compute_capability) in (10, 12) else "marlin"
    return "triton"


def check(options: Options, facts: Facts) -> None:
    """Refuse what vLLM itself refuses, with its rule."""
    version = options.version or VERSIONS[-1]
    rules.positive(options)
    rules.groups(options, facts, "vLLM")
    rules.stages(options, facts)
    if options.ep not in (1, options.tp):
        raise IllegalDeployment(f"vLLM spreads experts over all ranks or none: ep={options.ep} with tp={options.tp}",
                                [f"ep=1 or ep={options.tp} (--enable-expert-parallel)"])
    if options.dp_attention > 1 and not facts.experts:
        raise IllegalDeployment("vLLM has no data-parallel attention for a dense model; its -dp makes copies",
                                [f"dp={options.dp_attention}, tp={options.attention_tp}"])
    if options.async_depth:
        raise IllegalDeployment("vLLM has no async_depth; that is SGLang's --pp-async-batch-depth")
    rules.looks_each_step(options, "vLLM")
    rules.waits_for_no_batch(options, "vLLM")
    if options.max_micro_batch is not None and options.max_micro_batch != options.max_sequences:
        raise IllegalDeployment("vLLM has no limit for one micro-batch; max_sequences holds for all of them")
    if options.dcp > 1 and not at_least(version, "0.10.2"):
        raise IllegalDeployment(f"vLLM {version} has no decode context parallelism (since 0.10.2)")
    if options.dcp > 1 and facts.attention != "mla" and options.dcp > max(1, options.attention_tp // facts.kv_heads):
        raise IllegalDeployment(f"dcp={options.dcp}: vLLM spreads tokens only over ranks that hold the same KV head, "
                                f"{max(1, options.attention_tp // facts.kv_heads)} here")
    word = rules.kv_dtype(options.kv_dtype, KV_DTYPES, "vLLM")
    if word == "fp8_ds_mla" and facts.attention != "mla":
        raise IllegalDeployment("fp8_ds_mla is a layout of the MLA latent; this model has none")
    if word == "nvfp4" and facts.compute_capability < 10.0:
        raise IllegalDeployment(f"nvfp4 KV needs compute capability 10, this GPU has {facts.compute_capability:g}")
    _attention_backend(options, facts)


def pipeline_split(layers: int, stages: int, version: str, partition: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Decoder layers on each stage: the remainder goes to the last stages but one, backwards.

    Source: vLLM 0.33.0 distributed/utils.py get_pp_indices; up to 0.6 the last stage took the whole remainder.

    >>> pipeline_split(61, 8, "0.33.0")
    (7, 7, 8, 8, 8, 8, 8, 7)
    """
    if partition is not None:
        return rules.partition(layers, stages, partition)
    base, rest = divmod(layers, stages)
    split = [base] * stages
    if not at_least(version, "0.7"):
        split[-1] += rest
    else:
        for back in range(2, rest + 2):
            split[-back] += 1
    return tuple(split)


def _graph_cap(options: Options, facts: Facts) -> int:
    """Largest batch that is captured, in tokens [1]. Source: vLLM 0.33.0 config/vllm.py _set_cudagraph_sizes."""
    assert options.max_sequences is not None and options.prefill_chunk is not None
    hard = 1024 if at_least(options.version, "0.28") and int(facts.compute_capability) == 10 else 512
    return min(2 * options.max_sequences * (1 + rules.draft_tokens(options.speculative)), hard, options.prefill_chunk)


def capture_sizes(options: Options, facts: Facts) -> tuple[int, ...]:
    """Batch sizes (tokens) with a captured decode graph, ascending; a batch is padded up to the next one.

    Steps of 16 from 256 on since 0.11.2, of 8 before (kind: assumed below 0.11.2).
    """
    if not options.cuda_graphs:
        return ()
    cap = options.max_graph_batch or _graph_cap(resolve(options, facts)[0], facts)
    coarse = 256 if at_least(options.version or VERSIONS[-1], "0.11.2") else 10**9
    sizes = (1, 2, 4, *range(8, min(coarse, cap + 1), 8), *range(coarse, cap + 1, 16))
    return tuple(size for size in sizes if size <= cap)


def prefill_graph_tokens(options: Options, facts: Facts) -> int:
    """Largest chunk whose prefill runs in (piecewise) graphs: what is captured, but with V0 and FULL_DECODE_ONLY."""
    captured = capture_sizes(options, facts)
    none = options.prefill_graphs is False or not at_least(options.version or VERSIONS[-1], "0.8")
    return 0 if none else max(captured, default=0)


def slots(options: Options) -> int:
    """Micro-batches over which the running set splits: one a stage (one in all with 0.8 and before).

    Source: vLLM 0.33.0 config/vllm.py max_concurrent_batches. One queue entry more, which async scheduling has since
    0.25.1, hides the host but holds no further share of the requests.
    """
    return options.pp if at_least(options.version or VERSIONS[-1], "0.9") else 1


def slot_limit(options: Options, max_running: int) -> int:
    """Sequences of one engine copy that one micro-batch may hold: all that may run."""
    return max_running


def fill(concurrency: int, options: Options, max_running: int, arrival: str = "staggered") -> tuple[int, ...]:
    """Sequences per micro-batch. The scheduler is greedy: a burst enters one batch and stays together.

    Prefill chunks that do not fit into one batch, and ends at different lengths, spread a burst in the end.
    """
    rules.arrivals(arrival)
    inside = min(concurrency, max_running)
    place = rules.greedy if arrival == "burst" else rules.spread
    return place(inside, slots(options), slot_limit(options, max_running))


def max_running(options: Options, facts: Facts, kv_tokens: int) -> int:
    """Sequences that one engine copy may run at once: max_num_seqs in each attention group.

    KV space does not enter; a sequence that finds none waits or is preempted.
    """
    limit = options.max_sequences or resolve(options, facts)[0].max_sequences
    assert limit is not None
    return limit * options.dp_attention


def overlaps_host(options: Options) -> bool:
    """Whether the next step is scheduled on the host while the GPU runs this one.

    Asynchronous scheduling is on by default since 0.14 on one stage; with a pipeline it was on in 0.22.1 (start-up
    log of h200-vllm-parallel-2026-11), and not in 0.21.0.
    """
    return at_least(options.version or VERSIONS[-1], "0.14" if options.pp == 1 else "0.22")


def schedules_ahead(options: Options) -> bool:
    """Whether the next step is made up while one runs, so that who comes meanwhile misses it."""
    return overlaps_host(options)


__all__ = ["KV_DTYPES", "VERSIONS", "all_reduce_backend", "capture_sizes", "check", "fill", "kv_pool",
           "launch_command", "layer_collectives", "max_running", "overlaps_host", "parse_command", "pipeline_split",
           "prefill_graph_tokens", "resolve", "runtime_rows", "schedules_ahead", "slot_limit", "slots",
           "step_collectives"]


def mixes_prefill(options: Options) -> bool:
    """Whether prompt tokens join the decode batch: chunked prefill, the default of V1."""
    return True


def admission_reserve(options: Options) -> tuple[float, float, float]:
    """Share of the unmade tokens of running requests that admission keeps free: none, vLLM preempts instead."""
    return (0.0, 0.0, 0.0)
