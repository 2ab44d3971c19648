"""Bad input of every kind gets one line and exit 2, or an answer whose numbers are finite; never a traceback."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.catalog import load_calibration, load_model, load_node, names
from perfmodel.catalog.lookup import find
from perfmodel.cli import main
from perfmodel.errors import MOST, BadInput, PerfModelError, QuestionError, UnknownName, one_line, shown

LLAMA = ("--model", "llama-3.1-8b", "--node", "8x-h100-sxm")
HEADER = "concurrency,output_tok_s,input_tokens,output_tokens\n"
ROWS = HEADER + "1,100,100,100\n8,700,100,100\n"


def ask(*words: str) -> tuple[int, str]:
    """Exit code and the first line of stderr; whatever is no refusal of ours is raised here."""
    result = CliRunner().invoke(main, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    lines = result.stderr.splitlines()
    if result.exit_code == 2:
        assert lines[0].startswith("error: ") and len(lines[0]) <= MOST + 20
        assert all(line.startswith("hint: ") for line in lines[1:])
    elif "--json" in words:
        json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} in the JSON"))
    return result.exit_code, lines[0] if lines else ""


def text_of(kind: str, name: str) -> str:
    path = find(kind, name)
    assert path is not None
    return path.read_text(encoding="utf-8")


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


# ------------------------------------------------------------------ messages

def test_a_message_is_one_printable_line() -> None:
    error = BadInput("a\nb\x1b[31m" + "x" * 10**6, ["c\nd"])
    assert error.message.isprintable() and len(error.message) <= MOST + 50
    assert error.hints == ("c\\nd",)
    assert one_line("\ud800").encode("ascii") == b"\\ud800"


@pytest.mark.parametrize("value", ["x" * 10**5, 10**5000, object(), [1] * 10**5, np.arange(5)], ids=range(5))
def test_every_value_can_be_shown(value: Any) -> None:
    assert 0 < len(shown(value)) <= 90


# ------------------------------------------------------------------ Python

ODD = [True, "8", "", b"8", float("nan"), float("inf"), -1, 1.5, 10**5000, [], {}, object(), np.array([1, 2])]
NO_WORDS = [value for value in ODD if not (isinstance(value, str) and value)]


@pytest.mark.parametrize("key", ["tp", "pp", "dp", "ep", "context", "page_size", "max_sequences", "max_graph_batch"])
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_a_count_is_a_whole_number(key: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{key} must be a whole number from 1"):
        pm.deploy("llama-3.1-8b", node="8x-h100-sxm", **{key: value})


@pytest.mark.parametrize(
    "key", ["kv_dtype", "quantization", "attention_backend", "moe_backend", "all_reduce", "nccl", "speculative"]
)
@pytest.mark.parametrize("value", NO_WORDS, ids=range(len(NO_WORDS)))
def test_a_word_is_text(key: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{key} must be a word"):
        pm.deploy("llama-3.1-8b", node="8x-h100-sxm", **{key: value})


@pytest.mark.parametrize("value", [0, 1, "off", "no", np.array(8), float("nan")])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(BadInput, match="cuda_graphs must be True or False"):
        pm.deploy("llama-3.1-8b", node="8x-h100-sxm", cuda_graphs=value)


def test_numbers_of_numpy_are_numbers() -> None:
    ours = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", tp=np.int64(2), memory_fraction=np.float32(0.5))
    json.dumps(ours.to_dict(), allow_nan=False)
    assert ours.options.tp == 2


@pytest.mark.parametrize("value", [None, 8, b"x", [], {}, object(), "\0", "x" * 5000], ids=range(8))
@pytest.mark.parametrize("load", [load_model, load_node, pm.load_accelerator])
def test_a_name_is_text_or_a_path(load: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(BadInput, match="is named by text or a path"):
        load(value)


NONE: Any = b"x"  # stands for None where None is an answer
VERBS: dict[str, Callable[[Any], Any]] = {
    "memory": lambda v: pm.memory(v),
    "step": lambda v: pm.step(v, batch=1),
    "predict": lambda v: pm.predict(v, concurrency=1),
    "compare": lambda v: pm.compare(v),
    "compare one": lambda v: pm.compare([v]),
    "job": lambda v: pm.size_job(v, samples=3),
    "calibrate": lambda v: pm.calibrate(v, deployment=LLAMA_TP2()),
    "plan engine": lambda v: pm.plan("llama-3.1-8b", node="2x-h100-sxm", engine=v),
    "plan target": lambda v: pm.plan("llama-3.1-8b", node="2x-h100-sxm", target=v),
    "plan keep": lambda v: pm.plan("llama-3.1-8b", node="2x-h100-sxm", keep=v),
    "engine": lambda v: pm.deploy("llama-3.1-8b", node="8x-h100-sxm", engine=v),
    "calibration": lambda v: pm.predict(pm.deploy("llama-3.1-8b", node="8x-h100-sxm", calibration=v or NONE)),
    "op": lambda v: pm.collective(v, node="8x-h100-sxm", message_bytes=8),
    "algorithm": lambda v: pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=8, algorithm=v or NONE),
    "message": lambda v: pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=v or "x"),
    "sigma": lambda v: pm.lognormal(mean=5, sigma=v),
    "mean": lambda v: pm.lognormal(mean=v, sigma=0.5),
    "price": lambda v: pm.size_job(LLAMA_TP2(), samples=3, price_per_gpu_hour=v or NONE),
    "concurrency": lambda v: pm.predict(LLAMA_TP2(), concurrency=v),
    "input": lambda v: pm.predict(LLAMA_TP2(), concurrency=1, input_tokens=v),
    "batch": lambda v: pm.step(LLAMA_TP2(), batch=v),
}


def LLAMA_TP2() -> Any:  # noqa: N802
    return pm.deploy("llama-3.1-8b", node="8x-h100-sxm", tp=2)


ODDER = [None, 10**5000, -1, float("nan"), object(), {}, ["x"]]


@pytest.mark.parametrize("value", ODDER, ids=range(len(ODDER)))
@pytest.mark.parametrize("verb", VERBS)
def test_verbs_refuse_what_is_no_question(verb: str, value: Any) -> None:
    with pytest.raises(QuestionError):
        VERBS[verb](value)


# ------------------------------------------------------------------ command line

@pytest.mark.parametrize("flag", ["tp", "context", "memory-fraction", "power-limit", "kv-offload", "expert-skew"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e400", "9" * 5000, "", "1e", "0x10", "'; rm"])
def test_bad_numbers_of_flags(flag: str, value: str) -> None:
    code, line = ask("memory", *LLAMA, f"--{flag}={value}")
    assert code == 2 and flag.replace("-", "_") in line.replace("-", "_")


@pytest.mark.parametrize("words", [
    ("memory", *LLAMA, "--engine", "vllm==" + "9" * 5000),
    ("memory", *LLAMA, "--max-graph-batch", "1000000000000"),
    ("compare", *LLAMA, "--strategy", "tp=8," * 3000),
    ("job", *LLAMA, "--samples", "1" * 500),
    ("job", *LLAMA, "--samples", "10", "--restarts", "1000000000000"),
    ("predict", *LLAMA, "--concurrency", ",".join(["8"] * 20_000)),
    ("predict", *LLAMA, "--input-tokens", ",".join(["8"] * 20_000)),
    ("explain", "tok_s", *LLAMA, "--against", "tp=2", "--to", "1e9"),
    ("predict", *LLAMA, "--plot", "a" * 300 + ".png"),
    ("import", "a" * 400),
    ("memory", "--model", "x" * 100_000, "--node", "8x-h100-sxm"),
])  # fmt: skip
def test_huge_words_get_a_short_refusal(words: tuple[str, ...]) -> None:
    assert ask(*words)[0] == 2


@pytest.mark.parametrize("words", [
    ("predict", *LLAMA, "--measured"), ("job", *LLAMA, "--requests"), ("memory", *LLAMA, "--log"),
    ("calibrate", *LLAMA), ("memory", "--node", "8x-h100-sxm", "--model"), ("import",),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe.csv", "pipe.gguf", "pipe.yaml", "loop.csv", "folder.csv", "/dev/zero"])
def test_what_is_no_plain_file_is_not_opened(words: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind.startswith("pipe"):
        os.mkfifo(path)
    elif kind.startswith("loop"):
        path.symlink_to(path)
    elif kind.startswith("folder"):
        path.mkdir()
    assert ask(*words, str(path))[0] == 2


CSVS = {
    "empty": b"", "other columns": b"a,b\n1,2\n", "long field": HEADER.encode() + b'1,"' + b"9" * 200_000 + b'",1,1\n',
    "nul": HEADER.encode() + b"1,\0,1,1\n", "utf-16": ROWS.encode("utf-16"), "binary": bytes(range(256)) * 20,
}  # fmt: skip


@pytest.mark.parametrize("content", CSVS.values(), ids=CSVS)
@pytest.mark.parametrize("words", [("predict", *LLAMA, "--json", "--measured"), ("calibrate", *LLAMA, "--json"),
                                   ("job", *LLAMA, "--json", "--requests")])  # fmt: skip
def test_broken_tables(words: tuple[str, ...], content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    code, _ = ask(*words, str(path))
    assert code == 2 or (code == 0 and b"\0" in content[:60])  # a cell that nobody asks for may hold anything


@pytest.mark.parametrize("row", ["nan,nan", "inf,inf", "-1,-5", "0,0", "1e300,1e300", "8,1e300", "one,two"])
def test_measured_points_that_are_none_are_left_out(row: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"\ufeffconcurrency,output_tok_s\n{row}\n8,700\n", encoding="utf-8")
    code, line = ask("predict", *LLAMA, "--json", "--measured", str(path), "--plot", str(tmp_path / "x.png"))
    assert code == 0 and line == "measured: 1 points from 2 rows were measured under these conditions"


def test_a_calibration_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "there.yaml").mkdir()
    code, line = ask("calibrate", str(tmp_path / "rows.csv"), *LLAMA, "-o", str(tmp_path / "there.yaml"))
    assert code == 2 and "cannot be written" in line
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_closed_and_full_outputs() -> None:
    command = f"{sys.executable} -m perfmodel catalog"
    for redirection, code in ((">&-", 0), ("> /dev/full", 2), ("--kind x 2> /dev/full", 2)):
        found = subprocess.run(["sh", "-c", f"{command} {redirection}"], capture_output=True, text=True, timeout=60)
        assert found.returncode == code and "Traceback" not in found.stderr, redirection


# ------------------------------------------------------------------ descriptors

@pytest.mark.parametrize("old,new,says", [
    ("value: 55.5 GB/s", "value: null", "bandwidth has no value"), ("value: 0.2 us", "value: null", "latency has no"),
    ("value: 55.5 GB/s", "value: -1 GB/s", "above zero"), ("value: 55.5 GB/s", "value: 55.5", "B/s is needed"),
    ("value: 55.5 GB/s", "value: 55.5 Gb/s", "is not a quantity"), ('"4": {ll', '"-4": {ll', "by_ranks"),
    ("count: 8", "count: 7", "count is 7"), ("- {a: cpu0, b: cpu1, kind: xgmi}", "", "no path of links"),
    ("p2p: true", "p2p: true\np2p: false", "appears twice"), ("p2p: true", "p2q: true", "did you mean 'p2p'"),
])  # fmt: skip
def test_broken_nodes(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(changed(text_of("node", "8x-rtx-pro-6000-server"), old, new), encoding="utf-8")
    code, line = ask("memory", "--model", "llama-3.1-8b", "--node", str(path))
    assert code == 2 and says in line


@pytest.mark.parametrize("parameter,says", [
    ("gemm_efficiency: {value: 0", "gemm_efficiency"), ("gemm_efficiency: {value: -1", "gemm_efficiency"),
    ("gemm_efficiency: {value: 1e300", "gemm_efficiency"), ("gemm_efficiency: {value: true", "must be a number"),
    ("gemm_efficiency: {value: 5 GB", "is in B, not in 1"), ("gemm_eficiency: {value: 0.7", "nearest: gemm_efficiency"),
])  # fmt: skip
def test_broken_calibrations(parameter: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema: calibration/1\nname: mine\nsources: {me: {title: me}}\nparameters:\n"
                    f"  {parameter}, kind: measured, source: me}}\n")  # fmt: skip
    code, line = ask("memory", *LLAMA, "--calibration", str(path))
    assert code == 2 and says in line


def test_shipped_calibrations_keep_the_rules_for_named_ones() -> None:
    for name in names("calibration"):
        parameters = load_calibration(None, None, name).parameters
        assert all(0 < p.value < math.inf for p in parameters.values())


@pytest.mark.parametrize("folder", ["/nonexistent", "/dev/zero", "a" * 5000, ":::"])
def test_search_path_that_leads_nowhere(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFMODEL_PATH", folder)
    assert ask("catalog", "--json")[0] == 0


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "/", "*", "a/../../b", "\u202e", "~"])
def test_names_lead_nowhere_else(name: str) -> None:
    with pytest.raises(PerfModelError):
        load_model(name)
    with pytest.raises(UnknownName):
        pm.deploy("llama-3.1-8b", node="8x-h100-sxm", engine=name)
