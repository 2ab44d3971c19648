"""``trtllm-serve`` lines to options and back. What only the YAML file of extra options can say is not written."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines.flags import (
    Flag,
    checkpoint,
    environment_words,
    read,
    split,
    weights_remark,
    write,
)
from perfmodel.engines.machines import mpi_words, spread
from perfmodel.engines.options import Options
from perfmodel.errors import BadInput

FLAGS = (
    Flag(("--tp_size", "--tensor_parallel_size"), "tp", "int"),
    Flag(("--pp_size", "--pipeline_parallel_size"), "pp", "int"),
    Flag(("--ep_size", "--moe_expert_parallel_size"), "ep", "int"),
    Flag(("--max_batch_size",), "max_sequences", "int"),
    Flag(("--max_num_tokens",), "prefill_chunk", "int"),
    Flag(("--max_seq_len",), "context", "int"),
    Flag(("--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction"), "memory_fraction", "float"),
    Flag(("--kv_cache_dtype",), "kv_dtype", "str"),
    Flag(("--set",), "_set", "str"),
)
# Keys of the YAML file of extra options (--config), and the contract keyword that each sets
YAML_KEYS = {"cuda_graph_config": "cuda_graphs", "cuda_graph_config.max_batch_size": "max_graph_batch",
             "kv_cache_config.tokens_per_block": "page_size", "enable_attention_dp": "dp_attention",
             "attn_backend": "attention_backend", "moe_config.backend": "moe_backend",
             "allreduce_strategy": "all_reduce", "pp_partition": "layers_per_stage",
             "speculative_config": "speculative", "batch_wait_timeout_iters": "batch_wait_steps",
             "batch_wait_max_tokens_ratio": "batch_wait_ratio",
             "torch_compile_config.enable_piecewise_cuda_graph": "prefill_graphs"}


def launch_command(options: Options, model_id: str, moe: bool = True, online: bool = True,
                   machine_gpus: int | None = None, worker: bool = False) -> str:
    """The ``trtllm-serve`` line of one engine copy; what is None stays the engine's default and is not written.

    Settings that have no flag follow as a comment with the keys of the YAML file for ``--config``; `parse_command`
    reads them there. Over several machines of ``machine_gpus`` GPUs ``mpirun`` starts it on all of them.

    >>> launch_command(Options(engine="tensorrt-llm", tp=8, ep=8, memory_fraction=0.8), "org/model")
    'trtllm-serve org/model --tp_size 8 --ep_size 8 --kv_cache_free_gpu_memory_fraction 0.8'
    """
    _, options, machines = spread(options, machine_gpus)
    named, weights = checkpoint(options, model_id, ())
    before = mpi_words(options, machines, environment_words(options))
    words = [*before, "trtllm-serve", named, "--tp_size", str(options.tp)]
    words += write(replace(options, tp=1), FLAGS, ("_set",))
    if "kimi" in model_id.lower():
        words.append("--trust_remote_code")
    settings = [f"{key}={_yaml(getattr(options, word))}" for key, word in YAML_KEYS.items()
                if getattr(options, word) not in (None, getattr(_DEFAULTS, word))]
    return " ".join(words) + (f"  # --config: {' '.join(settings)}" if settings else "") + weights


_DEFAULTS = Options()


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_command(
    text: str, moe: bool = True, model_needed: bool = True
) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """Model, contract keywords and unknown flags of a ``trtllm-serve`` line; ``-`` and ``_`` are the same in flags."""
    line, _, remark = text.partition("# --config:")
    _, words = split(line)
    words = words[words.index("trtllm-serve"):] if "trtllm-serve" in words else words
    found, free, unknown = read(words, FLAGS, "tensorrt-llm")
    model = next((word for word in free if word not in ("trtllm-serve", "serve")), "")
    if not model and model_needed:
        raise BadInput("the command names no model", ["trtllm-serve MODEL ..."])
    found.pop("_set", None)
    if weights := weights_remark(text):
        model, found["quantization"] = weights
    for setting in remark.partition("#")[0].split():
        key, _, value = setting.partition("=")
        if key not in YAML_KEYS:
            unknown += (key,)
            continue
        found[YAML_KEYS[key]] = _read(YAML_KEYS[key], value)
    return model, {key: value for key, value in found.items() if value != getattr(_DEFAULTS, key)}, unknown


def _read(keyword: str, text: str) -> object:
    if text in ("on", "off"):
        return text == "on"
    try:
        if keyword == "layers_per_stage":
            return tuple(int(part) for part in text.split(","))
        if keyword == "batch_wait_ratio":
            return float(text)
        return int(text) if text.isdecimal() else text
    except ValueError:
        raise BadInput(f"{keyword} takes numbers, got {text[:80]!r}") from None
