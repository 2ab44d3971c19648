"""``vllm serve`` lines to options and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from perfmodel.catalog.yaml import parse_yaml
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
from perfmodel.engines.machines import spread, vllm_words
from perfmodel.engines.options import Options
from perfmodel.engines.rules import draft_tokens
from perfmodel.engines.versions import at_least
from perfmodel.errors import BadInput, PerfModelError

FLAGS = (
    Flag(("--tensor-parallel-size", "-tp"), "tp", "int"),
    Flag(("--pipeline-parallel-size", "-pp"), "pp", "int"),
    Flag(("--data-parallel-size", "-dp"), "dp", "int"),
    Flag(("--enable-expert-parallel", "-ep"), "ep", "true"),
    Flag(("--no-enable-expert-parallel",), "ep", "false"),
    Flag(("--decode-context-parallel-size", "-dcp"), "dcp", "int"),
    Flag(("--quantization", "-q"), "quantization", "str"),
    Flag(("--kv-cache-dtype",), "kv_dtype", "str"),
    Flag(("--max-model-len",), "context", "size"),
    Flag(("--gpu-memory-utilization", "--device-memory-utilization"), "memory_fraction", "float"),
    Flag(("--max-num-seqs",), "max_sequences", "int"),
    Flag(("--max-num-batched-tokens",), "prefill_chunk", "size"),
    Flag(("--block-size",), "page_size", "int"),
    Flag(("--enforce-eager",), "cuda_graphs", "false"),
    Flag(("--no-enforce-eager",), "cuda_graphs", "true"),
    Flag(("--max-cudagraph-capture-size",), "max_graph_batch", "int"),
    Flag(("--compilation-config", "-cc"), "_compilation", "str"), Flag(("-O",), "_level", "str"),
    Flag(("--attention-backend",), "attention_backend", "str"),
    Flag(("--moe-backend",), "moe_backend", "str"),
    Flag(("--disable-custom-all-reduce",), "all_reduce", "true"),
    Flag(("--kv-offloading-size",), "kv_offload", "float"),
    Flag(("--speculative-config", "-sc"), "speculative", "str"),
    Flag(("--model",), "_model", "str"),
    skip("-m"),
)
# what is read, but written in another way
READ = (*FLAGS, Flag(("--cuda-graph-sizes", "--cudagraph-capture-sizes"), "max_graph_batch", "most"))
_SWITCHES = {"pcie_ipc": "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "symm_mem": "VLLM_ALLREDUCE_USE_SYMM_MEM"}
ONLINE = ("fp8",)           # formats that are made of 16-bit weights while they load
_APART = ("tp", "dp", "ep", "quantization", "cuda_graphs", "max_graph_batch", "all_reduce", "attention_backend",
          "speculative", "kv_offload", "_model", "_compilation", "_level")


def launch_command(options: Options, model_id: str, moe: bool = True, online: bool = True,
                   machine_gpus: int | None = None, worker: bool = False) -> str:
    """The ``vllm serve`` line of one engine copy; what is None stays the engine's default and is not written.

    A dense model writes ``dp`` as ``--data-parallel-size``; copies of an MoE model (``moe``) are separate launches,
    since vLLM's data parallelism is attention parallelism there. ``online``: the weights are in 16 bits, of which some
    formats are made while they load. Over several machines of ``machine_gpus`` GPUs that of the first, or of each
    other one (``worker``).

    >>> launch_command(Options(version="0.33.0", tp=8, ep=8, memory_fraction=0.94), "org/model")
    'vllm serve org/model --tensor-parallel-size 8 --enable-expert-parallel --gpu-memory-utilization 0.94'
    """
    _, options, machines = spread(options, machine_gpus)
    made = ONLINE if online else ()
    named, remark = checkpoint(options, model_id, made)
    words = ["vllm", "serve", named, "--tensor-parallel-size", str(options.attention_tp)]
    copies = options.dp_attention if options.dp_attention > 1 or moe else options.dp
    if copies > 1:
        words += ["--data-parallel-size", str(copies)]
    if options.ep > 1:
        words.append("--enable-expert-parallel")
    plain = replace(options, max_micro_batch=None, async_depth=None, layers_per_stage=None)
    words += ["--quantization", str(options.quantization)] if options.quantization in made else []
    words += write(plain, FLAGS, _APART)
    words += _graphs(options)
    if options.all_reduce == "nccl":
        words.append("--disable-custom-all-reduce")
    if "kimi" in model_id.lower():
        words.append("--trust-remote-code")
    environment = _environment(options)
    if options.attention_backend is not None and "VLLM_ATTENTION_BACKEND" not in environment:
        words += ["--attention-backend", options.attention_backend.upper()]
    if options.speculative is not None:
        method = options.speculative.partition(":")[0]
        drafts = {"method": method, "num_speculative_tokens": draft_tokens(options.speculative)}
        words += ["--speculative-config", f"'{json.dumps(drafts)}'"]
    words += vllm_words(options, copies, machines, worker)
    return " ".join([*environment_words(options, environment), *words]) + remark


def _graphs(options: Options) -> list[str]:
    if options.cuda_graphs is False:
        return ["--enforce-eager"]
    words = []
    if options.prefill_graphs is False:
        words += ["--compilation-config", """'{"cudagraph_mode": "FULL_DECODE_ONLY"}'"""]
    if options.max_graph_batch is not None:
        recent = at_least(options.version or "9999", "0.12")
        words += ["--max-cudagraph-capture-size" if recent else "--cuda-graph-sizes", str(options.max_graph_batch)]
    return words


def _environment(options: Options) -> dict[str, str]:
    settings: dict[str, str] = {}
    version = options.version or "9999"
    if options.layers_per_stage is not None:
        settings["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, options.layers_per_stage))
    if options.attention_backend is not None and not at_least(version, "0.13"):
        settings["VLLM_ATTENTION_BACKEND"] = options.attention_backend.upper()
    if options.all_reduce in _SWITCHES:
        settings[_SWITCHES[options.all_reduce]] = "1"
    return settings


def parse_command(
    text: str, moe: bool = True, model_needed: bool = True
) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """Model, contract keywords and unknown flags of a ``vllm serve`` line. ``moe`` says how ``-dp`` reads."""
    environment, words = split(text)
    found, free, unknown = read([_undotted(word) for word in words], READ, "vllm")
    model = str(found.pop("_model", "")) or next((word for word in free if word not in _PROGRAM), "")
    if not model and model_needed:
        raise BadInput("the command names no model", ["vllm serve MODEL ..."])
    compilation = [str(found.pop(name, "")) for name in ("_compilation", "_level")]
    if any(map(_no_graphs, compilation)):
        found["cuda_graphs"] = False
    elif any("FULL_DECODE_ONLY" in text.upper() for text in compilation):
        found["prefill_graphs"] = False
    ranks, copies = int(str(found.get("tp", 1))), int(str(found.pop("dp", 1)))
    spread = bool(found.pop("ep", False))
    if copies > 1 and (moe or spread):
        found["tp"], found["dp_attention"] = ranks * copies, copies
    elif copies > 1:
        found["dp"] = copies
    if spread:
        found["ep"] = found.get("tp", ranks)
    if found.pop("all_reduce", False):
        found["all_reduce"] = "nccl"
    found |= environment_layers(environment, "VLLM_PP_LAYER_PARTITION")
    for word, name in _SWITCHES.items():
        if environment.get(name) == "1":
            found["all_reduce"] = word
    backend = found.get("attention_backend", environment.get("VLLM_ATTENTION_BACKEND"))
    if backend is not None:
        found["attention_backend"] = str(backend).lower()
    if "speculative" in found:
        found["speculative"] = _speculative(str(found["speculative"]))
    if weights := weights_remark(text):
        model, found["quantization"] = weights
    return model, found, unknown


_PROGRAM = ("vllm", "serve", "python", "python3", "vllm.entrypoints.openai.api_server")


def _undotted(word: str) -> str:
    """``-O0`` and ``-cc.mode=3`` with their value apart, so that the table finds the flag.

    >>> _undotted("-O0"), _undotted("-cc.cudagraph_mode=NONE"), _undotted("-tp=2")
    ('-O=0', '-cc={cudagraph_mode: NONE}', '-tp=2')
    """
    match = re.fullmatch(r"(-O|-cc|--compilation-config)(\d|\.([\w.]+)=(.*))", word)
    if match is None:
        return word
    return f"{match[1]}={match[2]}" if match[3] is None else f"{match[1]}={{{match[3]}: {match[4]}}}"


def _no_graphs(text: str) -> bool:
    """Whether a compilation config turns graphs off: level 0, or cudagraph_mode NONE."""
    return text.strip() == "0" or re.search(r"cudagraph_mode\W+(NONE|0)\b", text, re.IGNORECASE) is not None


def _speculative(text: str) -> str:
    """``method:tokens`` of a speculative config in JSON or in YAML's flow style."""
    try:
        given = parse_yaml(text[:10_000], "--speculative-config")
        return f"{given.get('method', 'draft')}:{int(given.get('num_speculative_tokens', 1))}"
    except (PerfModelError, ValueError, TypeError):
        raise BadInput(f"--speculative-config is not JSON: {text[:80]!r}") from None
