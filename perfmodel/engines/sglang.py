"""SGLang by version: defaults, what it refuses, pipeline split, captured batches, micro-batches in flight.

Read in the wheels of the versions listed; "since x" means absent in the listed version before x.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines import rules
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.sglang_flags import launch_command, parse_command
from perfmodel.engines.sglang_memory import bucket, default_fraction, kv_pool, prefill_graph, request_rows, runtime_rows
from perfmodel.engines.sglang_network import all_reduce_backend, layer_collectives, step_collectives
from perfmodel.engines.versions import at_least
from perfmodel.errors import IllegalDeployment, UnknownName

VERSIONS = ("0.4.10", "0.5.3", "0.5.6", "0.5.9", "0.5.10", "0.5.11", "0.5.13", "0.5.15", "0.5.16", "0.5.18", "0.5.20",
            "0.5.21", "0.5.22", "0.5.23")

KV_DTYPES = ("bf16", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4")
ATTENTION_PAGE = {"triton": 1, "flashinfer": 1, "fa3": 1, "fa4": 1, "torch_native": 1, "aiter": 1, "flashinfer_mla": 1,
                  "flashmla": 64, "cutlass_mla": 128, "trtllm_mla": 64, "trtllm_mha": 64, "nsa": 64, "dsa": 64,
                  "b12x": 1}


def resolve(options: Options, facts: Facts) -> tuple[Options, tuple[str, ...]]:
    """Fill every None by the default of this version; say in words what was filled.

    ``max_sequences`` and ``max_micro_batch`` stay None where SGLang derives them from the KV pool: `max_running`.
    """
    version, notes = options.version or VERSIONS[-1], []
    found: dict[str, object] = {"version": version}

    def fill(name: str, value: object, why: str) -> None:
        if getattr(options, name) is None:
            found[name] = value
            notes.append(f"{name}: {rules.shown(value)} ({why})")

    word = rules.kv_dtype(options.kv_dtype, KV_DTYPES, "SGLang")
    auto, why = rules.kv_default(facts, KV_DTYPES, True)
    found["kv_dtype"] = auto if word == "auto" else word
    if word == "auto":
        notes.append(f"kv_dtype: {auto} (SGLang default auto: {why})")
    fill("context", facts.max_context, "the model's own limit")
    chunk, batch = bucket(version, facts.driver_memory_bytes or facts.gpu_memory_bytes, options.tp)
    fill("prefill_chunk", chunk, "SGLang default for this GPU memory")
    fill("cuda_graphs", True, "SGLang default")
    if options.max_sequences is not None and at_least(version, "0.5.23"):
        batch = min(batch, options.max_sequences)
    fill("max_graph_batch", batch, "SGLang default for this GPU memory and tp")
    if options.memory_fraction is None:
        fill("memory_fraction", default_fraction(replace(options, **found), facts),  # type: ignore[arg-type]
             f"SGLang {version} default{', with its factor for vision models' if facts.multimodal else ''}")
    backend = _attention_backend(options, facts)
    fill("attention_backend", backend, "SGLang default for this attention and GPU")
    fill("page_size", ATTENTION_PAGE[backend], f"SGLang default with {backend}")
    fill("async_depth", 0, "SGLang default")
    if options.max_sequences is not None:
        fill("max_micro_batch", max(options.max_sequences // options.dp_attention // options.pp, 1),
             "SGLang default, max_running_requests // pp_size")
    elif draft := rules.draft_tokens(options.speculative):
        fill("max_sequences", 48, f"SGLang default with {draft} draft tokens")
    fill("moe_backend", _moe_backend(facts) if facts.experts else "none", "assumed from the format of the experts")
    fill("all_reduce", "auto", "SGLang's own order")
    if options.pp > 1 and "pp" in options.patches and not _pipeline_ready(version, facts):
        notes.append(f"patches: pp ({facts.architecture} asserts under pipeline parallelism in SGLang {version}; "
                     "taken as repaired)")
    return replace(options, **found), tuple(notes)  # type: ignore[arg-type]


def _attention_backend(options: Options, facts: Facts) -> str:
    if options.attention_backend is not None:
        word = options.attention_backend.lower().replace("-", "_")
        if word not in ATTENTION_PAGE:
            raise UnknownName("attention_backend", options.attention_backend, ATTENTION_PAGE)
        return word
    major = int(facts.compute_capability)
    if major == 9:
        return "fa3"
    if major == 10:
        return "trtllm_mla" if facts.attention == "mla" else "trtllm_mha"
    return "triton" if facts.attention == "mla" else "flashinfer"


def _moe_backend(facts: Facts) -> str:
    """The kernel that runs the experts, a word (assumed)."""
    kind = facts.weight_format.partition("-")[0]
    if kind in ("int4", "awq", "gptq"):
        return "marlin"
    return "flashinfer_cutlass" if kind == "nvfp4" else "triton"


def _pipeline_ready(version: str, facts: Facts) -> bool:
    return facts.architecture != "KimiK25ForConditionalGeneration" or at_least(version, "0.5.10")


def check(options: Options, facts: Facts) -> None:
    """Refuse what SGLang itself refuses, with its rule."""
    version = options.version or VERSIONS[-1]
    rules.positive(options)
    rules.groups(options, facts, "SGLang")
    rules.stages(options, facts)
    rules.waits_for_no_batch(options, "SGLang")
    if facts.experts and facts.experts % options.ep:
        raise IllegalDeployment(
            f"SGLang puts the same number of experts on each rank: {facts.experts} over ep={options.ep}")
    if options.pp > 1 and "pp" not in options.patches and not _pipeline_ready(version, facts):
        raise IllegalDeployment(f"SGLang {version} asserts that {facts.architecture} runs without pipeline parallelism",
                                ["SGLang 0.5.10 or newer", "patches=pp, if your copy is repaired"])
    if options.async_depth and not at_least(version, "0.5.9"):
        raise IllegalDeployment(f"SGLang {version} has no --pp-async-batch-depth (seen in 0.5.9, not in 0.5.6)")
    if options.dcp > 1 and not at_least(version, "0.5.20"):
        raise IllegalDeployment(f"SGLang {version} has no decode context parallelism (since 0.5.20)")
    if options.pp > 1 and rules.draft_tokens(options.speculative) and not at_least(version, "0.5.21"):
        raise IllegalDeployment(f"SGLang {version} rejects speculative decoding with a pipeline (since 0.5.21)")
    if rules.kv_dtype(options.kv_dtype, KV_DTYPES, "SGLang") == "nvfp4" and facts.compute_capability < 10.0:
        raise IllegalDeployment(f"nvfp4 KV needs compute capability 10, this GPU has {facts.compute_capability:g}")
    _attention_backend(options, facts)


def pipeline_split(layers: int, stages: int, version: str, partition: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Decoder layers on each stage: one more on each of the last stages; up to 0.5.3 all of the rest on the last.

    Source: SGLang distributed/utils.py get_pp_indices.

    >>> pipeline_split(61, 8, "0.5.10")
    (7, 7, 7, 8, 8, 8, 8, 8)
    """
    if partition is not None:
        return rules.partition(layers, stages, partition)
    base, rest = divmod(layers, stages)
    if not at_least(version, "0.5.6"):
        return (*([base] * (stages - 1)), base + rest)
    return tuple(base + (stage >= stages - rest) for stage in range(stages))


def prefill_graph_tokens(options: Options, facts: Facts) -> int:
    """Largest chunk whose prefill runs in graphs: up to the chunk, MLA 2,048 and since 0.5.15 8,192 tokens; since then
    none for DeepSeek-V3 and what is built like it on B200 and B300, unless asked for.

    Source: SGLang arg_groups/cuda_graph_config.py (0.5.15 on), server_args.py piecewise_cuda_graph_max_tokens (before);
    pull request 28053 (trtllm_mla prefilled in graphs falls back to slower attention), in 0.5.15 by its date.
    """
    settled = all((options.version, options.prefill_chunk, options.attention_backend, options.cuda_graphs is not None))
    now = options if settled else resolve(options, facts)[0]
    if not prefill_graph(now, facts) or not now.prefill_chunk:
        return 0
    falls_back = now.attention_backend == "trtllm_mla" and facts.architecture == "DeepseekV3ForCausalLM"
    if falls_back and now.prefill_graphs is None and at_least(now.version, "0.5.15"):
        return 0
    most = 8192 if at_least(now.version, "0.5.15") else 2048
    return min(now.prefill_chunk, most) if facts.attention == "mla" else now.prefill_chunk


def capture_sizes(options: Options, facts: Facts) -> tuple[int, ...]:
    """Batch sizes with a captured decode graph, ascending; a batch is padded up to the next one, above it runs eager.

    Source: SGLang arg_groups/cuda_graph_hook.py generate_decode_cuda_graph_batch_sizes (server_args.py before 0.5.20).
    """
    now = options if options.max_graph_batch and options.cuda_graphs is not None else resolve(options, facts)[0]
    if not now.cuda_graphs:
        return ()
    assert now.max_graph_batch is not None
    cap = now.max_graph_batch
    if rules.draft_tokens(now.speculative):
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, cap + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, cap + 1, 32)]
    kept = [size for size in sizes if size <= cap]
    if at_least(now.version, "0.5.20") and cap not in kept:
        kept.append(cap)
    rows = request_rows(now, None)
    if kept and max(kept) > rows:
        kept = [size for size in kept if size < rows] + [rows]
    if now.dp_attention > 1:
        kept = [size for size in kept if size % now.attention_tp == 0]
    return tuple(kept)


def slots(options: Options) -> int:
    """Micro-batches in flight: pp + pp_async_batch_depth; one without a pipeline.

    Source: SGLang managers/scheduler_pp_mixin.py init_pp_loop_state.
    """
    return options.pp + (options.async_depth or 0) if options.pp > 1 else 1


def slot_limit(options: Options, max_running: int) -> int:
    """Sequences of one engine copy that one slot may hold: pp_max_micro_batch_size in each attention group.

    Default max_running_requests // pp_size, not // slots. Source: SGLang managers/scheduler.py.
    """
    if options.pp == 1:
        return max_running
    group = options.max_micro_batch or max(max_running // options.dp_attention // options.pp, 1)
    return group * options.dp_attention


def fill(concurrency: int, options: Options, max_running: int, arrival: str = "staggered") -> tuple[int, ...]:
    """Sequences per slot. Whichever slot comes next takes from the queue up to its limit, and keeps them to the end:
    a burst fills slots one after another; staggered arrivals land evenly. What does not fit, waits."""
    rules.arrivals(arrival)
    place = rules.greedy if arrival == "burst" else rules.spread
    return place(min(concurrency, max_running), slots(options), slot_limit(options, max_running))


def max_running(options: Options, facts: Facts, kv_tokens: int) -> int:
    """Sequences that one engine copy may run at once, over its attention groups; ``kv_tokens`` of one group.

    Source: SGLang mem_cache/kv_cache_configurator.py resolve_max_num_reqs (0.5.11 on).
    """
    now = options if options.context else replace(options, context=facts.max_context)
    now = now if now.version else replace(now, version=VERSIONS[-1])
    rows = request_rows(now, kv_tokens)
    if not at_least(now.version, "0.5.11"):
        given = now.max_sequences
        rows = min(kv_tokens // 2 if given is None else max(1, given // now.dp_attention), rows)
    return max(1, rows) * now.dp_attention


def overlaps_host(options: Options) -> bool:
    """Whether scheduling hides behind the GPU: the overlap scheduler is on by default, off with a pipeline."""
    return options.pp == 1


def schedules_ahead(options: Options) -> bool:
    """Whether the next step is made up while one runs, so that who comes meanwhile misses it."""
    return overlaps_host(options)


__all__ = ["KV_DTYPES", "VERSIONS", "all_reduce_backend", "capture_sizes", "check", "default_fraction", "fill",
           "kv_pool", "launch_command", "layer_collectives", "max_running", "overlaps_host", "parse_command",
           "pipeline_split", "prefill_graph_tokens", "resolve", "runtime_rows", "schedules_ahead", "slot_limit",
           "slots", "step_collectives"]


def mixes_prefill(options: Options) -> bool:
    """Whether prompt tokens join the decode batch: only with --enable-mixed-chunk, off by default."""
    return False


def admission_reserve(options: Options) -> tuple[float, float, float]:
    """Share of the unmade tokens of running requests that admission keeps free: first, least, loss a decode step.

    Source: SGLang managers/schedule_policy.py, new_token_ratio: 0.7 at first, 0.14 of it at least, over 600 steps.
    """
    return (0.7, 0.098, (0.7 - 0.098) / 600)
