"""Every parser of perfmodel that reads what a stranger wrote: its samples, and a call on bytes."""

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import perfmodel as pm
from perfmodel import engines
from perfmodel.calibration.bench_files import read_text_of
from perfmodel.calibration.bench_row import Stated
from perfmodel.catalog import Accelerator, Calibration, Fabric, ModelArch, Node, load_accelerator, load_node
from perfmodel.catalog.gguf import raw_from_gguf
from perfmodel.catalog.hf import model_from_hf, raw_from_hf
from perfmodel.catalog.hf_keys import parse_json
from perfmodel.catalog.load import validate
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
from perfmodel.probe.topology import parse_topo
from perfmodel.report.measured import matching, read_rows
from perfmodel.serving.length_files import read_lengths
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.requests import read_requests
from perfmodel.serving.traces import read_trace
from perfmodel.ui import uploads
from perfmodel.ui.address import from_address, pack, unpack
from perfmodel.units import split

from . import samples as of

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
    "address": Parser(lambda d: from_address(parse_qs(text(d), keep_blank_values=True)), of.addresses),
    "packed": Parser(packed, lambda: [pack(t).encode() for t in ('{"weights_gib": 14.5}', '["a,b\\n1,2"]', "x" * 999)]),
    "bench": Parser(lambda d: read_text_of(text(d), "f", STATED), of.corpus("bench"), 8),
    "config": Parser(imported, of.small_configs, 6),
    "quantization": Parser(quantized, of.quantizations, 6),
    "ignore list": Parser(ignored, of.corpus("patterns")),
    "gguf": Parser(as_file(raw_from_gguf, "a.gguf"), of.gguf),
    "safetensors": Parser(in_folder(checkpoint_bytes, "model.safetensors"), of.safetensors),
    "safetensors index": Parser(in_folder(index_bytes, "model.safetensors.index.json"), of.indexes, 2),
    "model": Parser(descriptor("model"), of.descriptors("model"), 2),
    "node": Parser(descriptor("node"), of.both(of.descriptors("node"), of.sampled("probed-*.yaml")), 2),
    "accelerator": Parser(descriptor("accelerator"), of.descriptors("accelerator"), 2),
    "calibration": Parser(descriptor("calibration"), of.descriptors("calibration"), 2),
    "fabric": Parser(descriptor("fabric"), of.descriptors("fabric"), 2),
    "observations": Parser(as_file(each(load_observations, load_rows), "a.csv"),
                           of.tables("h200-vllm-parallel-2026-11", "h200-vllm-served-2026-11"), 2),
    "kernels": Parser(as_file(load_kernels, "a.csv"), of.tables("kernels-h200", "h200-probe-2026-11"), 2),
    "launch log": Parser(lambda d: parse_log(text(d).splitlines()), of.corpus("launch_log"), 6),
    "serving log": Parser(log_lines, of.both(of.corpus("serving_log"), of.sampled("*-metrics.txt")), 4),
    "nccl-tests": Parser(nccl_text, of.sampled("nccl-tests-*.txt")),
    "topology": Parser(topology, of.sampled("topo-*.txt"), 2),
    "nvidia-smi": Parser(lambda d: (parse_smi(text(d)), parse_nvlinks(text(d))), of.corpus("machine"), 4),
    "journal": Parser(lambda d: read_journal(text(d)), of.journals, 8),
    "trace csv": Parser(as_file(read_trace, "a.csv"), of.corpus("trace_csv")),
    "trace jsonl": Parser(as_file(read_trace, "a.jsonl"), of.corpus("trace_jsonl")),
    "lengths": Parser(as_file(lambda path: read_lengths(str(path)), "a.csv"), of.corpus("lengths")),
    "progress": Parser(lambda d: progress_of(text(d), "f", None), of.both(of.corpus("progress", "serving_log"),
                                                                       of.sampled("*-metrics.txt")), 8),
    "launch line": Parser(lambda d: read_launch(said(d)), of.both(of.launches, of.corpus("launch_line")), 6),
    "launch yaml": Parser(as_file(launch_of, "a.yaml"), of.sampled("launch-*.yaml")),
    "launch unit": Parser(as_file(launch_of, "a.service"), of.sampled("launch-*.service", "launch-*.sh"), 4),
    "launch list": Parser(as_file(read_texts, "a.csv"), of.corpus("launch_list"), 2),
    "strategy": Parser(lambda d: strategy(said(d)), of.strategies, 8),
    "deployment": Parser(deployed, of.strategies, 4),
    "flag": Parser(settings, of.corpus("text_values"), 6),
    "name": Parser(named, lambda: [b"8x-h100-sxm", b"4x8x-h100-sxm", b"h100", b"2x-h200-sxm", b"a100-sxm-80gb"], 1),
    "unit": Parser(quantity_of, of.corpus("text_values"), 8),
    "requests csv": Parser(as_file(read_requests, "a.csv"), of.corpus("requests_csv")),
    "requests jsonl": Parser(as_file(read_requests, "a.jsonl"), of.corpus("requests_jsonl")),
    "metrics page": Parser(lambda d: (read_metrics(text(d)), decode_points(text(d).splitlines())),
                           of.both(of.sampled("*-metrics.txt"), of.corpus("serving_log"))),
    "measured": Parser(measured, of.corpus("measured")),
    "upload": Parser(uploaded, of.both(of.small_configs, of.corpus("bench", "launch_log"),
                                       of.sampled("probed-*.yaml")), 2),
}

