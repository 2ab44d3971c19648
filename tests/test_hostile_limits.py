"""One input just beyond each limit that docs/threats.md states: refused in one line, soon, and nothing is opened."""

import csv
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.parsers import PARSERS
from fuzz.run import outcome

from perfmodel.calibration.bench_files import MAX_FILES, read_files
from perfmodel.catalog import load_model
from perfmodel.catalog.safetensors import checkpoint_bytes
from perfmodel.engines.logs import read_log
from perfmodel.errors import PerfModelError
from perfmodel.insight.launch_files import launch_of
from perfmodel.planner.job_progress_files import read_progress
from perfmodel.probe.files import observations_to_csv
from perfmodel.probe.journal import Record
from perfmodel.probe.plan import Task
from perfmodel.probe.run import nccl_tests_file
from perfmodel.serving.traces import read_trace
from perfmodel.ui.address import pack

DOCS = Path(__file__).parents[1] / "docs" / "threats.md"
CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 1000, "num_key_value_heads": 2, "intermediate_size": 512, "max_position_embeddings": 4096}
NODE = "schema: node/1\nname: a\ntitle: a\n"


def config(**changes: object) -> bytes:
    return json.dumps(CONFIG | changes).encode()


def header(tensors: object, length: int | None = None) -> bytes:
    raw = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + b"\0" * 64


def aliases(levels: int) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines).encode()


def ignoring(*patterns: str) -> bytes:
    return "\n".join(patterns).encode()


GOOD = {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
TWICE = json.dumps(GOOD)[:-1].encode() + b"," + json.dumps(GOOD)[1:].encode()
LAUNCH = b"vllm serve a -tp 2 "

# threat: (parser of tests/fuzz, input, words of the refusal)
BEYOND: dict[str, tuple[str, bytes, str]] = {
    "size, config": ("config", config() + b" " * 2**22, "at most"),
    "depth, config": ("config", config(a=json.loads("[" * 40 + "]" * 40)), "nested deeper"),
    "depth without end, config": ("config", b'{"a":' + b"[" * 100_000, "nested deeper"),
    "twice, config": ("config", b'{"a": 1, "a": 2}', "twice"),
    "text for a number, config": ("config", config(hidden_size="256"), "not a whole number"),
    "true for a number": ("config", config(hidden_size=True), "not a whole number"),
    "negative, config": ("config", config(hidden_size=-256), "is not from"),
    "huge, config": ("config", config(hidden_size=10**30), "is not from"),
    "digits, config": ("config", b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "digits"),
    "nan, config": ("config", config(hidden_size=float("nan")), "nan is not"),
    "inf, config": ("config", config(hidden_size=float("inf")), "inf is not"),
    "layers, config": ("config", config(num_hidden_layers=10**6), "is not from"),
    "utf-16, config": ("config", config().decode().encode("utf-16"), "not UTF-8"),
    "half, config": ("config", config()[:-40], "not JSON"),
    "binary, config": ("config", bytes(range(256)) * 9, "not UTF-8"),
    "repeat in a repeat": ("ignore list", ignoring("re:(a+)+b"), "already repeats"),
    "open repeats": ("ignore list", ignoring("re:a*b*c*d*e"), "more than 3 repeats"),
    "long expression": ("ignore list", ignoring("re:" + "a" * 300), "300 characters"),
    "back reference": ("ignore list", ignoring(r"re:(a)\1"), "refers back"),
    "many expressions": ("ignore list", ignoring(*(f"re:a{i}" for i in range(300))), "more than 256"),
    "stars": ("ignore list", ignoring("*a*b*c*d*e"), "too many stars"),
    "header length": ("safetensors", header(GOOD, 2**60), "header claims"),
    "header beyond the file": ("safetensors", header(GOOD, 10**6), "header claims"),
    "shape against bytes": (
        "safetensors", header({"a": GOOD["a"] | {"shape": [2**39, 2**39]}}), "where its shape needs"),
    "negative shape": ("safetensors", header({"a": GOOD["a"] | {"shape": [-4]}}), "is not known"),
    "dtype of a list": ("safetensors", header({"a": GOOD["a"] | {"dtype": ["BF16"]}}), "is not known"),
    "true for a shape": ("safetensors", header({"a": GOOD["a"] | {"shape": [True]}}), "is not known"),
    "tensor twice": ("safetensors", header(TWICE), "twice"),
    "falling offsets": ("safetensors", header({"a": GOOD["a"] | {"data_offsets": [8, 0]}}), "two rising"),
    "total size": ("safetensors index", b'{"metadata": {"total_size": 1e400}}', "not a size"),
    "gguf tensors": ("gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "is not read"),
    "gguf keys": ("gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "is not read"),
    "gguf text": ("gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "a text of"),
    "gguf array": (
        "gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 0, 2**60), "an array of"),
    "size, yaml": ("node", NODE.encode() + b"#" * 2**22, "at most"),
    "depth, yaml": ("node", b"a: " + b"[" * 40 + b"]" * 40, "nested deeper"),
    "tag": ("node", b"a: !!python/object/apply:os.system [id]", "tags such as"),
    "anchor": ("node", b"a: &a [*a]", "not allowed"),
    "alias bomb, yaml": ("node", aliases(9), "not allowed"),
    "merge key": ("node", b"a: {b: 1}\nc: {<<: {d: 1}}", "merge keys"),
    "twice, yaml": ("node", b"a: 1\na: 2", "twice"),
    "inf, yaml": ("node", b"a: 1e999", "finite"),
    "values, yaml": ("node", b"a: [" + b"1," * 60_000 + b"]", "more than 50,000"),
    "documents": ("node", b"a: 1\n---\nb: 1", "one document"),
    "alias bomb, compose": ("launch yaml", b"services: {a: {command: vllm}}\n" + aliases(9), "more than 50,000"),
    "documents, manifest": ("launch yaml", b"a: 1\n---\n" * 100, "more than 64"),
    "size, manifest": ("launch yaml", b"a: 1\n" + b"#" * 2**19, "larger than"),
    "long command": ("launch line", LAUNCH + b"x" * 70_000, "longer than"),
    "words": ("launch line", LAUNCH + b"x " * 3000, "more than 2,000 words"),
    "variables": ("launch line", b"A=" + b"x" * 40_000 + b" " + LAUNCH + b"$A " * 20, "variables put in"),
    "digits, flag": ("launch line", LAUNCH + b"--max-model-len " + b"9" * 5000, "takes a number"),
    "quotes": ("launch line", LAUNCH + b"'", "shell line"),
    "rate nan": ("bench", b"concurrency,output_tok_s\n8,nan\n", "positive number"),
    "rate negative": ("bench", b"concurrency,output_tok_s\n8,-1\n", "positive number"),
    "rate huge": ("bench", b"concurrency,output_tok_s\n8,1e300\n", "positive number"),
    "depth, result": ("bench", b"[" * 200_000, "too deep"),
    "lines, result": ("bench", b"{}\n" * 30_000, "more than 20,000"),
    "rows": ("bench", b"concurrency,output_tok_s\n" + b"8,7\n" * 3000, "more than 2,000"),
    "devices": ("topology", (" ".join(f"GPU{i}" for i in range(300)) + "\n").encode(), "at most 256"),
    "size, topology": ("topology", b"x" * 2**21, "longer than"),
    "nvlinks": ("topology", b"GPU0 GPU1\nGPU0 X NV99\nGPU1 NV99 X", "72 NVLinks"),
    "one-sided": ("topology", b"GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X", "but GPU1 to GPU0"),
    "rows, nccl-tests": ("nccl-tests", b" 8 2 float sum -1 5 1 1 0 5 1 1 0\n" * 11_000, "at most 10000"),
    "time, trace": ("trace jsonl", b'{"timestamp": 1e400, "input_length": 5, "output_length": 5}', "the time must"),
    "length, trace": ("trace csv", b"arrival_s,input_tokens,output_tokens\n0,1e12,5", "whole number of tokens"),
    "line, trace": ("trace jsonl", b'{"timestamp": 0, "a": "' + b"x" * 2**23 + b'"}', "more than 4,194,304"),
    "field": ("lengths", b'output_tokens\n"' + b"9" * 200_000, "field limit"),
    "progress nan": ("progress", b'{"samples_done": NaN, "seconds": 5}', "NaN is no number"),
    "bomb, address": ("packed", pack("x" * 10**7).encode(), "too large"),
    "strategies, address": ("address", b"strategies=tp%3D1&" * 9, "at most 4"),
    "path, address": ("address", b"strategies=calibration%3D%2Fetc%2Fpasswd", "only letters"),
    "shell, strategy": ("strategy", b"tp=$(id)", "whole number"),
    "binary, upload": ("upload", bytes(range(256)) * 99, "not UTF-8"),
    "cards": ("name", b"99999999x-h100-sxm", "unknown"),
    "exponent": ("unit", b"1e999 B", "finite"),
    "prefix": ("unit", b"1 mB", "not a quantity"),
}  # fmt: skip


@pytest.mark.parametrize("threat", BEYOND)
def test_beyond_a_limit_is_refused(threat: str) -> None:
    name, data, words = BEYOND[threat]
    assert outcome(PARSERS[name].read, data) == "refused"                   # in time, and in one line
    with pytest.raises(PerfModelError, match=re.escape(words)):
        PARSERS[name].read(data)


def sparse(name: str, size: int) -> Callable[[Path], Path]:
    """A file of zeros that takes no room."""
    def make(folder: Path) -> Path:
        path = folder / name
        with path.open("wb") as file:
            file.truncate(size)
        return path

    return make


def linked(folder: Path) -> Path:
    (folder / "model.safetensors").symlink_to("/dev/zero")
    return folder


def outside(folder: Path) -> Path:
    """An index that names files elsewhere; they are looked for among the names of the folder and never opened."""
    (folder / "model.safetensors").write_bytes(header(GOOD))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../../etc/passwd"}}')
    return folder


FILES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "size, log": (sparse("a.log", 2**27), read_log),
    "size, result": (sparse("a.json", 2**27), lambda p: read_files([p])),
    "size, trace": (sparse("a.csv", 2**32), read_trace), "size, progress": (sparse("a.json", 2**27), read_progress),
    "size, unit": (sparse("a.service", 2**20), launch_of), "size, gguf": (sparse("a.gguf", 2**40), load_model),
    "files": (sparse("a.json", 1), lambda p: read_files([p] * (MAX_FILES + 1))),
    "link to a device": (linked, checkpoint_bytes), "index that leads elsewhere": (outside, checkpoint_bytes),
    "name that leads elsewhere": (sparse("a.txt", 0), lambda p: nccl_tests_file(str(p), p.parent, name="../../x")),
}  # fmt: skip


@pytest.mark.parametrize("threat", FILES)
def test_a_file_beyond_a_limit_is_refused(threat: str, tmp_path: Path) -> None:
    make, read = FILES[threat]
    path = make(tmp_path)
    assert outcome(lambda _: read(path), b"") == "refused"


@pytest.mark.parametrize("name", ["config", "quantization", "gguf", "safetensors", "bench", "journal", "topology",
                                  "nccl-tests", "trace jsonl", "launch yaml", "model", "node"])  # fmt: skip
def test_a_half_written_file_is_read_or_refused(name: str) -> None:
    for sample in PARSERS[name].samples()[:3]:
        step = max(1, len(sample) // 60)
        assert {outcome(PARSERS[name].read, sample[:end]) for end in range(0, len(sample), step)} <= {"read", "refused"}


def test_a_refusal_names_the_file_and_never_shows_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": "' + "secret" * 10_000 + '"')
    with pytest.raises(PerfModelError, match=r"config\.json") as refusal:
        load_model(tmp_path / "config.json")
    assert len(refusal.value.message) < 700


def test_cells_of_a_table_are_text() -> None:
    """Names come from drivers; a spreadsheet must not run them."""
    task = Task("copy", "device_to_device", mode="graph", message_bytes=4096)
    machine = {"gpus": ["=cmd|' /C calc'!A0"], "driver": "@SUM(1)", "environment": {}}
    table = observations_to_csv([Record(task, 1.0, 1.0, 1.0, 1, 1)], machine, "+1x-a", "-1\n=2")
    (row,) = csv.DictReader(table.splitlines())
    assert not any(cell[:1] in "=+-@" for cell in row.values() if cell)


def test_every_test_that_the_threat_list_names_exists() -> None:
    if not DOCS.is_file():
        pytest.skip("docs are not beside the tests")
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", DOCS.read_text(encoding="utf-8")))
    assert len(named) > 10
    for file, test in named:
        text = (DOCS.parents[1] / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, (file, test)
