"""``sglang.launch_server`` lines to options and back."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines.flags import (
    Flag,
    checkpoint,
    environment_layers,
    environment_words,
    read,
    skip,
    split,
    weights_remark,
    write,
)
from perfmodel.engines.machines import sglang_words, spread
from perfmodel.engines.options import Options
from perfmodel.engines.rules import draft_tokens
from perfmodel.engines.versions import at_least
from perfmodel.errors import BadInput

FLAGS = (
    Flag(("--tp-size", "--tensor-parallel-size"), "tp", "int"),
    Flag(("--pp-size", "--pipeline-parallel-size"), "pp", "int"),
    Flag(("--dp-size", "--data-parallel-size"), "dp", "int"),
    Flag(("--ep-size", "--expert-parallel-size", "--ep"), "ep", "int"),
    Flag(("--dcp-size",), "dcp", "int"),
    Flag(("--attn-dp-size", "--attention-data-parallel-size"), "dp_attention", "int"),
    Flag(("--enable-dp-attention",), "_dp_attention", "true"),
    Flag(("--quantization",), "quantization", "str"),
    Flag(("--kv-cache-dtype",), "kv_dtype", "str"),
    Flag(("--context-length",), "context", "int"),
    Flag(("--mem-fraction-static",), "memory_fraction", "float"),
    Flag(("--max-running-requests",), "max_sequences", "int"),
    Flag(("--chunked-prefill-size",), "prefill_chunk", "int"),
    Flag(("--page-size",), "page_size", "int"),
    Flag(("--disable-cuda-graph", "--disable-decode-cuda-graph"), "cuda_graphs", "false"),
    Flag(("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"), "max_graph_batch", "int"),
    Flag(("--cuda-graph-bs-decode", "--cuda-graph-bs"), "max_graph_batch", "most"),
    Flag(("--cuda-graph-backend-decode",), "_graph_backend", "str"),
    Flag(("--disable-prefill-cuda-graph", "--disable-piecewise-cuda-graph"), "prefill_graphs", "false"),
    Flag(("--enable-piecewise-cuda-graph",), "prefill_graphs", "true"),
    Flag(("--cuda-graph-backend-prefill",), "_prefill_backend", "str"),
    Flag(("--pp-max-micro-batch-size",), "max_micro_batch", "int"),
    Flag(("--pp-async-batch-depth",), "async_depth", "int"),
    Flag(("--scheduler-recv-interval",), "receive_interval", "int"),
    Flag(("--attention-backend",), "attention_backend", "str"),
    Flag(("--moe-runner-backend",), "moe_backend", "str"),
    Flag(("--disable-custom-all-reduce",), "_nccl", "true"),
    Flag(("--enable-torch-symm-mem",), "_symm_mem", "true"),
    Flag(("--speculative-algorithm",), "_method", "str"),
    Flag(("--speculative-num-draft-tokens",), "_drafts", "int"),
    Flag(("--model-path", "--model"), "_model", "str"),
    skip("-m"),
)
ONLINE = ("fp8",)           # formats that are made of 16-bit weights while they load
_APART = ("dp", "dp_attention", "quantization", "cuda_graphs", "max_graph_batch", "prefill_graphs", *(
    flag.keyword for flag in FLAGS if flag.keyword is not None and flag.keyword.startswith("_")))


def launch_command(options: Options, model_id: str, moe: bool = True, online: bool = True,
                   machine_gpus: int | None = None, worker: bool = False) -> str:
    """The ``sglang.launch_server`` line of one engine copy; what is None stays SGLang's default and is not written.

    Over several machines of ``machine_gpus`` GPUs that of the first, or of each other one (``worker``).

    >>> launch_command(Options(engine="sglang", version="0.5.10", pp=8, cuda_graphs=False), "org/model")
    'python -m sglang.launch_server --model-path org/model --tp-size 1 --pp-size 8 --disable-cuda-graph'
    """
    _, options, machines = spread(options, machine_gpus)
    version = options.version or "9999"
    made = ONLINE if online else ()
    named, remark = checkpoint(options, model_id, made)
    words = ["python", "-m", "sglang.launch_server", "--model-path", named, "--tp-size", str(options.tp)]
    words += ["--quantization", str(options.quantization)] if options.quantization in made else []
    words += write(replace(options, tp=1, layers_per_stage=None, kv_dtype=_kv_word(options.kv_dtype)), FLAGS, _APART)
    if options.dp_attention > 1:
        words += ["--attn-dp-size", str(options.dp_attention)] if at_least(version, "0.5.22") else [
            "--dp-size", str(options.dp_attention), "--enable-dp-attention"]
    elif options.dp > 1:
        words += ["--dp-size", str(options.dp)]
    recent = at_least(version, "0.5.20")
    if options.cuda_graphs is False:
        words += ["--cuda-graph-backend-decode", "disabled"] if recent else ["--disable-cuda-graph"]
    elif options.max_graph_batch is not None:
        words += ["--cuda-graph-max-bs-decode" if recent else "--cuda-graph-max-bs", str(options.max_graph_batch)]
    if options.prefill_graphs is False and at_least(version, "0.5.10"):
        words += ["--disable-prefill-cuda-graph" if recent else "--disable-piecewise-cuda-graph"]
    elif options.prefill_graphs and not at_least(version, "0.5.10"):
        words += ["--enable-piecewise-cuda-graph"]
    reduce = {"nccl": ["--disable-custom-all-reduce"], "symm_mem": ["--enable-torch-symm-mem"]}
    words += reduce.get(options.all_reduce or "", [])
    if options.speculative is not None:
        words += ["--speculative-algorithm", options.speculative.partition(":")[0].upper(),
                  "--speculative-num-draft-tokens", str(draft_tokens(options.speculative))]
    if "kimi" in model_id.lower():
        words.append("--trust-remote-code")
    words += sglang_words(machines, worker)
    settings = {}
    if options.layers_per_stage is not None:
        settings["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, options.layers_per_stage))
    if options.all_reduce == "pcie_ipc":
        settings["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"] = "1"
    return " ".join([*environment_words(options, settings), *words]) + remark


# What --kv-cache-dtype takes for our words. Source: SGLang server_args.py, choices of --kv-cache-dtype
_KV_WORDS = {"fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"}


def _kv_word(word: str) -> str:
    return _KV_WORDS.get(word, word)


def parse_command(
    text: str, moe: bool = True, model_needed: bool = True
) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """Model, contract keywords and unknown flags of a ``sglang.launch_server`` line."""
    environment, words = split(text)
    found, _, unknown = read(words, FLAGS, "sglang")
    model = str(found.pop("_model", ""))
    if not model and model_needed:
        raise BadInput("the command names no model", ["--model-path MODEL"])
    for ours, theirs in _KV_WORDS.items():
        if found.get("kv_dtype") == theirs:
            found["kv_dtype"] = ours
    if found.pop("_dp_attention", False) and "dp" in found:
        found["dp_attention"] = found.pop("dp")
    if found.pop("_prefill_backend", None) == "disabled":
        found["prefill_graphs"] = False
    if found.pop("_graph_backend", None) == "disabled":
        found["cuda_graphs"] = False
    if found.pop("_nccl", False):
        found["all_reduce"] = "nccl"
    if found.pop("_symm_mem", False):
        found["all_reduce"] = "symm_mem"
    if environment.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE") == "1":
        found["all_reduce"] = "pcie_ipc"
    method, drafts = found.pop("_method", None), found.pop("_drafts", 1)
    if method is not None:
        found["speculative"] = f"{str(method).lower()}:{drafts}"
    found |= environment_layers(environment, "SGLANG_PP_LAYER_PARTITION")
    if weights := weights_remark(text):
        model, found["quantization"] = weights
    return model, {key: value for key, value in found.items() if (key, value) not in _DEFAULT}, unknown


_DEFAULT = {("tp", 1), ("pp", 1), ("dp", 1), ("ep", 1), ("dcp", 1), ("dp_attention", 1)}
