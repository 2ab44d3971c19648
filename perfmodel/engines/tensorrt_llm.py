"""TensorRT-LLM (PyTorch back end), briefly: defaults, what it refuses, pipeline split, batches in flight.

Read in its main branch. What was not read and cannot be derived is refused; what any engine must do (sum partial
results over TP ranks) is taken as in vLLM and listed as an assumption.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines import rules
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.tensorrt_llm_flags import launch_command, parse_command
from perfmodel.engines.tensorrt_llm_memory import kv_pool, runtime_rows
from perfmodel.engines.tensorrt_llm_network import all_reduce_backend, layer_collectives, step_collectives
from perfmodel.engines.versions import at_least
from perfmodel.errors import IllegalDeployment, UnknownName

# 1.0 stands for the main branch that was read. 0.14 stands for engines that were built beforehand and run by the C++
# runtime: no Python launches a kernel, and no overlap scheduler works ahead. Source: TensorRT-LLM release notes of 1.0
# (the PyTorch architecture becomes the default), docs on the overlap scheduler of the PyTorch backend.
VERSIONS = ("0.14", "1.0")

KV_DTYPES = ("bf16", "fp16", "fp8", "fp8_e4m3", "int8", "nvfp4")
ATTENTION_PAGE = {"trtllm": 32, "flashinfer": 32, "vanilla": 32}  # tokens_per_block


def resolve(options: Options, facts: Facts) -> tuple[Options, tuple[str, ...]]:
    """Fill every None by the default of ``trtllm-serve``; say in words what was filled."""
    notes = ["engine rules: TensorRT-LLM's main branch for every version, but for launches before 1.0; captured "
             "batches, micro-batches and collectives are not read in its sources but assumed"]
    found: dict[str, object] = {"version": options.version or VERSIONS[-1]}

    def fill(name: str, value: object, why: str = "trtllm-serve default") -> None:
        if getattr(options, name) is None:
            found[name] = value
            notes.append(f"{name}: {rules.shown(value)} ({why})")

    word = rules.kv_dtype(options.kv_dtype, KV_DTYPES, "TensorRT-LLM")
    auto, why = rules.kv_default(facts, KV_DTYPES, True)
    found["kv_dtype"] = auto if word == "auto" else word
    if word == "auto":
        notes.append(f"kv_dtype: {auto} (trtllm-serve default auto: {why})")
    fill("context", facts.max_context, "the model's own limit")
    fill("memory_fraction", 0.9, "trtllm-serve default, a share of what is free after weights and activations")
    fill("max_sequences", 2048)
    fill("prefill_chunk", 8192)
    fill("page_size", 32)
    fill("cuda_graphs", True, "assumed")
    fill("max_graph_batch", min(128, options.max_sequences or 128), "assumed")
    fill("max_micro_batch", options.max_sequences or 2048, "no limit of its own for one micro-batch")
    fill("async_depth", 0, "TensorRT-LLM has no such option")
    fill("attention_backend", "trtllm", "assumed")
    fill("moe_backend", "cutlass" if facts.experts else "none", "assumed")
    fill("all_reduce", "auto", "TensorRT-LLM's own choice")
    return replace(options, **found), tuple(notes)  # type: ignore[arg-type]


def check(options: Options, facts: Facts) -> None:
    """Refuse what TensorRT-LLM cannot run, and what is not modelled of it."""
    rules.positive(options)
    rules.groups(options, facts, "TensorRT-LLM")
    rules.stages(options, facts)
    if options.dp_attention not in (1, options.tp):
        raise IllegalDeployment("TensorRT-LLM makes every rank its own attention group or none: "
                                f"dp_attention={options.dp_attention} with tp={options.tp}",
                                [f"dp_attention=1 or dp_attention={options.tp} (enable_attention_dp)"])
    if options.dp_attention > 1 and options.batch_wait_steps:
        raise IllegalDeployment("TensorRT-LLM waits for no batch under attention data parallelism (batch_wait_steps=0)")
    if options.dcp > 1:
        raise IllegalDeployment("context parallelism of TensorRT-LLM is not modelled (dcp must be 1)")
    if options.async_depth:
        raise IllegalDeployment("TensorRT-LLM has no async_depth; that is SGLang's --pp-async-batch-depth")
    rules.looks_each_step(options, "TensorRT-LLM")
    if options.max_micro_batch is not None and options.max_micro_batch != (options.max_sequences or 2048):
        raise IllegalDeployment("a limit for one micro-batch is not modelled for TensorRT-LLM; use max_sequences")
    if rules.kv_dtype(options.kv_dtype, KV_DTYPES, "TensorRT-LLM") == "nvfp4" and facts.compute_capability < 10.0:
        raise IllegalDeployment(f"nvfp4 KV needs compute capability 10, this GPU has {facts.compute_capability:g}")
    backend = (options.attention_backend or "trtllm").lower()
    if backend not in ATTENTION_PAGE:
        raise UnknownName("attention_backend", backend, ATTENTION_PAGE)


def pipeline_split(layers: int, stages: int, version: str, partition: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Decoder layers on each stage: one more on each of the first stages.

    Source: TensorRT-LLM tensorrt_llm/mapping.py Mapping.pp_layers.

    >>> pipeline_split(61, 8, "1.0")
    (8, 8, 8, 8, 8, 7, 7, 7)
    """
    if partition is not None:
        return rules.partition(layers, stages, partition)
    base, rest = divmod(layers, stages)
    return tuple(base + (stage < rest) for stage in range(stages))


def capture_sizes(options: Options, facts: Facts) -> tuple[int, ...]:
    """Batch sizes with a captured graph, ascending (assumed: 1, 2, 4, steps of 8 up to 128, then doubling)."""
    now = options if options.max_graph_batch and options.cuda_graphs is not None else resolve(options, facts)[0]
    if not now.cuda_graphs or now.max_graph_batch is None:
        return ()
    sizes = [1, 2, 4, *range(8, 129, 8), *(2**power for power in range(8, 16))]
    kept = [size for size in sizes if size <= now.max_graph_batch]
    return tuple(kept if kept[-1] == now.max_graph_batch else [*kept, now.max_graph_batch])


def prefill_graph_tokens(options: Options, facts: Facts) -> int:
    """Largest chunk whose prefill needs no launches from Python: none but with torch_compile_config, all before 1.0.

    Source: TensorRT-LLM llmapi/llm_args.py TorchCompileConfig, enable_piecewise_cuda_graph off by default.
    """
    built = not at_least(options.version or VERSIONS[-1], "1.0")
    return (resolve(options, facts)[0].prefill_chunk or 0) if options.prefill_graphs or built else 0


def slots(options: Options) -> int:
    """Micro-batches over which the running set splits: one a stage (assumed)."""
    return options.pp


def slot_limit(options: Options, max_running: int) -> int:
    """Sequences of one engine copy that one micro-batch may hold: all that may run."""
    return max_running


def fill(concurrency: int, options: Options, max_running: int, arrival: str = "staggered") -> tuple[int, ...]:
    """Sequences per micro-batch: a burst into one, staggered arrivals evenly (assumed)."""
    rules.arrivals(arrival)
    place = rules.greedy if arrival == "burst" else rules.spread
    return place(min(concurrency, max_running), slots(options), max_running)


def max_running(options: Options, facts: Facts, kv_tokens: int) -> int:
    """Sequences that one engine copy may run at once: max_batch_size on each attention group."""
    return (options.max_sequences or 2048) * options.dp_attention


def overlaps_host(options: Options) -> bool:
    """Whether scheduling hides behind the GPU: the overlap scheduler is on without a pipeline (assumed)."""
    return options.pp == 1


def schedules_ahead(options: Options) -> bool:
    """Whether the next step is made up while one runs, so that who comes meanwhile misses it: since 1.0."""
    return options.pp == 1 and at_least(options.version or VERSIONS[-1], "1.0")


def mixes_prefill(options: Options) -> bool:
    """Whether prompt tokens join the decode batch: in-flight batching does."""
    return True


def admission_reserve(options: Options) -> tuple[float, float, float]:
    """Share of the unmade tokens of running requests that admission keeps free: all (GUARANTEED_NO_EVICT).

    Source: TensorRT-LLM llmapi CapacitySchedulerPolicy, the default of trtllm-serve.
    """
    return (1.0, 1.0, 0.0)


__all__ = ["KV_DTYPES", "VERSIONS", "all_reduce_backend", "capture_sizes", "check", "fill", "kv_pool",
           "launch_command", "layer_collectives", "max_running", "mixes_prefill", "overlaps_host", "parse_command",
           "pipeline_split", "prefill_graph_tokens", "resolve", "runtime_rows", "schedules_ahead", "slot_limit",
           "slots", "step_collectives"]
