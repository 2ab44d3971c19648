"""Every parser of perfmodel that reads what a stranger wrote: its samples, and a call on bytes."""

import atexit
import csv
import itertools
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import perfmodel as pm
from perfmodel import engines
from perfmodel.calibration.bench_files import read_text_of
from perfmodel.calibration.bench_row import Stated
from perfmodel.catalog import Accelerator, Calibration, Fabric, ModelArch, Node, load_accelerator, load_node
from perfmodel.catalog.gguf import raw_from_gguf
from perfmodel.catalog.hf import model_from_hf, raw_from_hf
from perfmodel.catalog.hf_keys import parse_json
from perfmodel.catalog.load import validate
from perfmodel.catalog.lookup import files, find
from perfmodel.catalog.observations import load_kernels, load_observations, load_rows
from perfmodel.catalog.patterns import Patterns
from perfmodel.catalog.safetensors import checkpoint_bytes, index_bytes
from perfmodel.catalog.write import to_yaml
from perfmodel.catalog.yaml import parse_yaml
from perfmodel.cli.options import duration, numbers, quantity, strategy, whole
from perfmodel.engines.logs import parse_log
from perfmodel.engines.serving_logs import metric_sums, parse_metrics, parse_serving_log, rates_by_load, remarks
from perfmodel.engines.speculation import speculation
from perfmodel.errors import PerfModelError
from perfmodel.insight.changes import read_change
from perfmodel.insight.launch import read_launch
from perfmodel.insight.launch_files import launch_of
from perfmodel.insight.launch_lists import read_texts
from perfmodel.insight.reality import decode_points, read_metrics
from perfmodel.placement.nccl import read_setup
from perfmodel.planner.job_progress_files import progress_of
from perfmodel.probe.descriptors import node_from_topology
from perfmodel.probe.files import nccl_tests_to_csv
from perfmodel.probe.journal import read_journal
from perfmodel.probe.machine import parse_nvlinks, parse_smi
from perfmodel.probe.nccl_tests import parse_nccl_tests
from perfmodel.probe.plan import Task
from perfmodel.probe.topology import parse_topo
from perfmodel.report.measured import matching, read_rows
from perfmodel.serving.length_files import read_lengths
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.requests import read_requests
from perfmodel.serving.traces import read_trace
from perfmodel.ui import uploads
from perfmodel.ui.address import from_address, pack, unpack
from perfmodel.units import split

HERE = Path(__file__).parent
TESTS = HERE.parent
STATED = Stated(input_tokens=1024.0, output_tokens=128.0, concurrency=8.0)
SCHEMAS: dict[str, Any] = {"model": ModelArch, "node": Node, "accelerator": Accelerator, "calibration": Calibration,
                           "fabric": Fabric}
MODULES = [f"layers.{i}.{name}" for i in (0, 3, 61) for name in
           ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa", "mlp.experts.117.down_proj",
            "mlp.shared_experts.up_proj")]


@dataclass(frozen=True)
class Parser:
    """What reads bytes, and the samples that are damaged for it; ``share`` of all inputs, larger where it is quick."""

    read: Callable[[bytes], Any]
    samples: Callable[[], list[bytes]]
    share: int = 4


# ---------------------------------------------------------------- samples

def corpus(*names: str) -> Callable[[], list[bytes]]:
    """Samples of folders beside this file."""
    return lambda: [path.read_bytes() for name in names for path in sorted((HERE / "corpus" / name).iterdir())]


def sampled(*patterns: str) -> Callable[[], list[bytes]]:
    """Files of tests/samples."""
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted((TESTS / "samples").glob(pattern))]


def both(*makers: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    """All samples of several sources."""
    return lambda: [sample for make in makers for sample in make()]


@cache
def configs() -> tuple[dict[str, Any], ...]:
    """config.json of public models."""
    lines = (TESTS / "tables" / "hf_configs.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["config"] for line in lines)


def small_configs() -> list[bytes]:
    """Configs of every model type, the shortest of each."""
    best: dict[str, bytes] = {}
    for config in configs():
        text = json.dumps(config, separators=(",", ":")).encode()
        kind = str(config.get("model_type"))
        if len(text) < 6_000 and len(text) < len(best.get(kind, b"x" * 10**6)):
            best[kind] = text
    return [best[kind] for kind in sorted(best)]


def quantizations() -> list[bytes]:
    """Quantization sections of those configs, short ones."""
    found = {json.dumps(config["quantization_config"], separators=(",", ":")) for config in configs()
             if config.get("quantization_config")}
    return [text.encode() for text in sorted(found) if len(text) < 4_000]


def descriptors(kind: str) -> Callable[[], list[bytes]]:
    """Shipped YAML files of a kind, those of at most 8 kB."""
    return lambda: [text for _, path in sorted(files(kind).items()) if len(text := path.read_bytes()) <= 8_192]


def tables(*names: str) -> Callable[[], list[bytes]]:
    """Header and first rows of shipped observation files."""
    return lambda: [b"".join(path.read_bytes().splitlines(keepends=True)[:6])
                    for name in names if (path := find("observations", name))]


def launches() -> list[bytes]:
    """Launch lines that people wrote."""
    lines = (TESTS / "samples" / "launch-lines.txt").read_bytes().splitlines()
    with (TESTS / "tables" / "launch_commands.csv").open(encoding="utf-8", newline="") as file:
        return lines + [row["command"].encode() for row in csv.DictReader(file)]


def gguf() -> list[bytes]:
    """A small model as GGUF, both byte for byte as llama.cpp lays it out."""
    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    keys = {"block_count": 1, "embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 4,
            "attention.head_count_kv": 2, "context_length": 2048, "vocab_size": 1000}  # fmt: skip
    meta = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    meta += [text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in keys.items()]
    meta.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"))
    meta.append(text("llama.rope.scaling") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<2f", 1.0, 2.0))
    shapes = {"token_embd": ([256, 1000], 14), "output_norm": ([256], 0), "blk.0.attn_q": ([256, 256], 12),
              "blk.0.attn_k": ([256, 128], 12), "blk.0.attn_v": ([256, 128], 14), "blk.0.ffn_up": ([256, 512], 12)}
    rows = [text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
            for name, (shape, kind) in shapes.items()]  # fmt: skip
    return [b"GGUF" + struct.pack("<IQQ", version, len(rows), len(meta)) + b"".join(meta + rows) for version in (2, 3)]


def safetensors() -> list[bytes]:
    """Headers of safetensors files."""
    header = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape, dtype, size in (("model.layers.0.self_attn.q_proj.weight", [8, 4], "BF16", 64),
                                     ("model.layers.0.mlp.experts.1.up_proj.weight_scale", [8], "F32", 32),
                                     ("lm_head.weight", [4, 4], "F8_E4M3", 16)):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}  # type: ignore[dict-item]
        at += size
    raw = json.dumps(header).encode()
    return [struct.pack("<Q", len(raw)) + raw + b"\0" * at]


def indexes() -> list[bytes]:
    """An index of shards."""
    index = {"metadata": {"total_size": 16_060_522_496.0}, "weight_map": {"a.weight": "1.safetensors"}}
    return [json.dumps(index).encode()]


def journals() -> list[bytes]:
    """A journal of the probe."""
    task = Task("all_reduce", "nccl", "bf16", "graph", "default", 2, 1024)
    lines = [{"machine": {"gpus": ["A"], "driver": "1", "peer_access": [[True]]}},
             {"task": task.to_dict(), "us": 1.5, "us_min": 1.0, "us_max": 2.0, "iterations": 10, "repeats": 3},
             {"task": task.to_dict(), "error": "why"}]
    return ["\n".join(map(json.dumps, lines)).encode()]


def addresses() -> list[bytes]:
    """Addresses of the page."""
    packed = pack(small_configs()[0].decode())
    given = [{"model": "qwen3-8b", "strategies": ["tp=2", "tp=1,dp=2"], "fit": "on", "samples": "500", "page": "job"},
             {"config": packed, "context": "4096", "price": "2.5"}, {"log": pack('{"weights_gib": 14.5}'), "on": "1"},
             {"measured": pack('["concurrency,output_tok_s\\n8,700"]'), "concurrency": "64"}]
    return [urlencode(one, doseq=True).encode() for one in given]


def strategies() -> list[bytes]:
    """Strategies as --strategy takes them."""
    return [b"tp=8,ep=8", b"tp=1,pp=2,layers_per_stage=16,16,cuda_graphs=off", b"tp=2,dp=4,kv_dtype=fp8,context=32k",
            b"tp=8,dp_attention=8,ep=8,memory_fraction=0.92,max_sequences=256", b"tp=4,speculative=eagle3:3:0.7",
            b"tp=2,nccl=NCCL_ALGO=Ring,power_limit=450 W", b"engine=sglang==0.5.10,tp=4,page_size=64"]


# ---------------------------------------------------------------- calls

def said(data: bytes) -> str:
    """Words of a command line: what is no UTF-8 comes as lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def text(data: bytes) -> str:
    """Text of a file that is read whatever it holds."""
    return data.decode("utf-8", "replace")


@cache
def scratch() -> Path:
    """A folder for inputs that are read from a file, gone at the end; TMPDIR says where."""
    folder = tempfile.mkdtemp(prefix="perfmodel-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


_COUNT = itertools.count()


def as_file(read: Callable[[Path], Any], name: str) -> Callable[[bytes], Any]:
    """A reader of files as one of bytes. No two inputs have one name, since readers may keep what they read."""
    def call(data: bytes) -> Any:
        stem, _, ending = name.rpartition(".")
        path = scratch() / f"{stem}{next(_COUNT)}.{ending}"
        path.write_bytes(data)
        try:
            return read(path)
        finally:
            path.unlink()

    return call


def in_folder(read: Callable[[Path], Any], name: str) -> Callable[[bytes], Any]:
    """A reader of a checkpoint's folder, with one file in it."""
    def call(data: bytes) -> Any:
        folder = scratch() / name
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        return read(folder)

    return call


def each(*calls: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several readers of one text; a refusal is told where all of them refuse."""
    def call(given: Any) -> Any:
        refused: list[PerfModelError] = []
        for one in calls:
            try:
                one(given)
            except PerfModelError as error:
                refused.append(error)
        if len(refused) == len(calls):
            raise refused[-1]

    return call


def descriptor(kind: str) -> Callable[[bytes], Any]:
    """A YAML file of the catalog."""
    return lambda data: validate(SCHEMAS[kind], kind, parse_yaml(uploads.text_of(data, "a.yaml"), "a.yaml"), "a.yaml")


def imported(data: bytes) -> Any:
    """A config.json, and the YAML that `import` writes of it, which must load."""
    raw = raw_from_hf(parse_json(uploads.text_of(data, "config.json")))
    model = validate(ModelArch, "model", raw, "config.json")
    again = validate(ModelArch, "model", parse_yaml(to_yaml(raw)), "written")
    assert again.layers == model.layers
    return model


def quantized(data: bytes) -> Any:
    """The quantization section of a small model."""
    section = parse_json(uploads.text_of(data, "config.json"))
    config = {"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "max_position_embeddings": 4096,
              "intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    return model_from_hf({**config, "quantization_config": section})


def ignored(data: bytes) -> Any:
    """An ignore list against names of modules."""
    patterns = Patterns(text(data).splitlines(), "config.json", "ignore")
    return [patterns.matches(module) for module in MODULES]


def nccl_text(data: bytes) -> Any:
    """Output of nccl-tests, and the observations that it makes."""
    return nccl_tests_to_csv(parse_nccl_tests(text(data)), ranks=8, op="all_reduce")


def topology(data: bytes) -> Any:
    """A matrix of nvidia-smi, and the node that it makes, which must load."""
    raw = node_from_topology(parse_topo(text(data)), "h200-sxm")
    return validate(Node, "node", raw, "node.yaml")


def uploaded(data: bytes) -> Any:
    """Bytes as each kind of upload of the page."""
    return each(uploads.pack_model, uploads.pack_node, uploads.pack_log, lambda d: uploads.pack_benchmark([d]))(data)


def packed(data: bytes) -> Any:
    """Text in an address."""
    return each(unpack, uploads.log, uploads.benchmark)(said(data))


def settings(data: bytes) -> Any:
    """One value of a flag, as each kind that there is."""
    node = load_node("8x-rtx-pro-6000-server")
    kinds: tuple[Callable[[str], Any], ...] = (
        lambda t: numbers("n", t), lambda t: quantity("q", t, "B"), lambda t: duration("d", t), lambda t: whole("w", t),
        speculation, read_change, lambda t: read_setup(t, node), lambda t: engines.get(t),
        lambda t: parse_lengths(t) if not t.strip().lower().startswith("file:") else None)  # fmt: skip
    return each(*kinds)(said(data))


def named(data: bytes) -> Any:
    """A name of a node or an accelerator."""
    return each(load_node, load_accelerator)(said(data))


def quantity_of(data: bytes) -> Any:
    """A quantity with its unit; the parser of units says ValueError, which pydantic turns into a refusal."""
    try:
        return split(said(data))
    except ValueError as error:
        raise PerfModelError(str(error)) from None


@cache
def small() -> Any:
    """A deployment that is made once."""
    return pm.deploy("llama-3.1-8b", node="8x-h100-sxm", tp=2)


def measured(data: bytes) -> Any:
    """A table of measurements to draw beside a curve, and its points."""
    return as_file(lambda path: matching(read_rows(path), small(), 1024.0, 1024.0), "a.csv")(data)


def deployed(data: bytes) -> Any:
    """A strategy, and the deployment of a small dense model."""
    return pm.deploy("llama-3.1-8b", node="8x-h100-sxm", **{"engine": "vllm", **strategy(said(data))})


def log_lines(data: bytes) -> Any:
    """A log as text lines, by each reader of speeds."""
    return each(parse_serving_log, rates_by_load, remarks, parse_metrics, metric_sums)(text(data).splitlines())


# Traces and observations go through files; a table that is refused at its header would be most of a blind search, so
# their samples are short.
PARSERS: dict[str, Parser] = {
    "address": Parser(lambda d: from_address(parse_qs(text(d), keep_blank_values=True)), addresses),
    "packed": Parser(packed, lambda: [pack(t).encode() for t in ('{"weights_gib": 14.5}', '["a,b\\n1,2"]', "x" * 999)]),
    "bench": Parser(lambda d: read_text_of(text(d), "f", STATED), corpus("bench"), 8),
    "config": Parser(imported, small_configs, 6),
    "quantization": Parser(quantized, quantizations, 6),
    "ignore list": Parser(ignored, corpus("patterns")),
    "gguf": Parser(as_file(raw_from_gguf, "a.gguf"), gguf),
    "safetensors": Parser(in_folder(checkpoint_bytes, "model.safetensors"), safetensors),
    "safetensors index": Parser(in_folder(index_bytes, "model.safetensors.index.json"), indexes, 2),
    "model": Parser(descriptor("model"), descriptors("model"), 2),
    "node": Parser(descriptor("node"), both(descriptors("node"), sampled("probed-*.yaml")), 2),
    "accelerator": Parser(descriptor("accelerator"), descriptors("accelerator"), 2),
    "calibration": Parser(descriptor("calibration"), descriptors("calibration"), 2),
    "fabric": Parser(descriptor("fabric"), descriptors("fabric"), 2),
    "observations": Parser(as_file(each(load_observations, load_rows), "a.csv"),
                           tables("h200-vllm-parallel-2026-11", "h200-vllm-served-2026-11"), 2),
    "kernels": Parser(as_file(load_kernels, "a.csv"), tables("kernels-h200", "h200-probe-2026-11"), 2),
    "launch log": Parser(lambda d: parse_log(text(d).splitlines()), corpus("launch_log"), 6),
    "serving log": Parser(log_lines, both(corpus("serving_log"), sampled("*-metrics.txt")), 4),
    "nccl-tests": Parser(nccl_text, sampled("nccl-tests-*.txt")),
    "topology": Parser(topology, sampled("topo-*.txt"), 2),
    "nvidia-smi": Parser(lambda d: (parse_smi(text(d)), parse_nvlinks(text(d))), corpus("machine"), 4),
    "journal": Parser(lambda d: read_journal(text(d)), journals, 8),
    "trace csv": Parser(as_file(read_trace, "a.csv"), corpus("trace_csv")),
    "trace jsonl": Parser(as_file(read_trace, "a.jsonl"), corpus("trace_jsonl")),
    "lengths": Parser(as_file(lambda path: read_lengths(str(path)), "a.csv"), corpus("lengths")),
    "progress": Parser(lambda d: progress_of(text(d), "f", None), both(corpus("progress", "serving_log"),
                                                                       sampled("*-metrics.txt")), 8),
    "launch line": Parser(lambda d: read_launch(said(d)), both(launches, corpus("launch_line")), 6),
    "launch yaml": Parser(as_file(launch_of, "a.yaml"), sampled("launch-*.yaml")),
    "launch unit": Parser(as_file(launch_of, "a.service"), sampled("launch-*.service", "launch-*.sh"), 4),
    "launch list": Parser(as_file(read_texts, "a.csv"), corpus("launch_list"), 2),
    "strategy": Parser(lambda d: strategy(said(d)), strategies, 8),
    "deployment": Parser(deployed, strategies, 4),
    "flag": Parser(settings, corpus("text_values"), 6),
    "name": Parser(named, lambda: [b"8x-h100-sxm", b"4x8x-h100-sxm", b"h100", b"2x-h200-sxm", b"a100-sxm-80gb"], 1),
    "unit": Parser(quantity_of, corpus("text_values"), 8),
    "requests csv": Parser(as_file(read_requests, "a.csv"), corpus("requests_csv")),
    "requests jsonl": Parser(as_file(read_requests, "a.jsonl"), corpus("requests_jsonl")),
    "metrics page": Parser(lambda d: (read_metrics(text(d)), decode_points(text(d).splitlines())),
                           both(sampled("*-metrics.txt"), corpus("serving_log"))),
    "measured": Parser(measured, corpus("measured")),
    "upload": Parser(uploaded, both(small_configs, corpus("bench", "launch_log"), sampled("probed-*.yaml")), 2),
}

