"""Bad input to the commands and verbs for serving, planning and insight: refused in one line, nothing ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fuzz.run import limited

import perfmodel as pm
from perfmodel.catalog import load_node
from perfmodel.cli import main
from perfmodel.cli.options import duration, whole
from perfmodel.cli.predict import limit
from perfmodel.errors import BadInput, QuestionError, UnknownName, one_of, shown
from perfmodel.insight.launch_files import launch_of
from perfmodel.placement.topology import Graph

ONE = ("--model", "llama-3.1-8b", "--node", "1x-h100-sxm")
SERVED = ("simulate", *ONE, "--requests", "4")
TRACE = "arrival_s,input_tokens,output_tokens\n0,100,10\n1,200,20\n"


def refused(*words: str) -> str:
    """The refusal, after which stdout is empty."""
    result = CliRunner().invoke(main, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 2 and result.stdout == "", result.output
    return result.stderr.lstrip().splitlines()[0]  # older rich leaves an empty line for its progress


def small() -> Any:
    return pm.deploy("llama-3.1-8b", node="1x-h100-sxm")


# ------------------------------------------------------------------ command line

@pytest.mark.parametrize("words,says", [
    ((*SERVED, "--concurrency", "-1"), "concurrency must be a whole number from 1"),
    ((*SERVED, "--concurrency", "0"), "concurrency must be a whole number from 1"),
    ((*SERVED, "--seed", "-1"), "seed must be a whole number from 0"),
    (("simulate", *ONE, "--trace", "\0"), "no such file"),
    (("job", *ONE, "--samples", "9", "--progress", "\0"), "no such file"),
    (("job", *ONE, "--samples", "9", "--progress", ""), "not a plain file"),
    (("job", *ONE, "--requests", "\0"), "no such file"),
    (("job", *ONE, "--samples", "9", "--input-tokens", "file:\0"), "no such file"),
    (("job", *ONE, "--samples", "9", "--load-rate", "1e300"), "lie between 1e+06 and 1e18"),
    (("whatif", *ONE, "--change", "nodes=2@0 GB/s"), "rate of a port"),
    (("whatif", *ONE, "--change", "nodes=2@-1 GB/s"), "rate of a port"),
    (("whatif", *ONE, "--change", "nodes=2@"), "not a quantity"),
    (("whatif", *ONE, "--change", "engine=sglang"), "a change keeps the engine"),
    (("whatif", *ONE, "--change", "calibration=x"), "unknown keyword of a change"),
    (("whatif", *ONE, "--change", "lost=1"), "1x-h100-sxm has one GPU"),
    (("collective", "all_reduce", "--node", "8x-h100-sxm", "--engine", ""), "engine must be a word"),
    (("plan", *ONE, "--max-ttft-ms", "1e300"), "above 0 and below 1e9"),
    (("predict", *ONE, "--speculative", ":3:0.5"), "names no method"),
    (("predict", *ONE, "--disaggregation", "1:1", "--router", "round-robin"), "do not go together"),
    (("explain", "tok_s", *ONE, "--against", "tp=1", "--from", "0"), "0 < low"),
])  # fmt: skip
def test_values_out_of_range(words: tuple[str, ...], says: str) -> None:
    assert says in refused(*words)


@pytest.mark.parametrize("words,says", [
    ((*SERVED, "--limit", "2"), "--limit goes with --trace"),
    ((*SERVED, "--speed", "2"), "--speed goes with --trace"),
    ((*SERVED, "--trace-format", "azure"), "--trace-format goes with --trace"),
    (("simulate", *ONE, "--trace", "x.csv", "--input-tokens", "5"), "--input-tokens goes with --requests"),
    (("predict", *ONE, "--offload-from", "disk"), "--offload-from goes with --offload-hit-rate"),
    (("predict", *ONE, "--offload-bandwidth", "5 GB/s"), "--offload-bandwidth goes with --offload-hit-rate"),
    (("predict", *ONE, "--kv-bandwidth", "5 GB/s"), "--kv-bandwidth goes with --disaggregation"),
    (("predict", *ONE, "--tokens-per-image", "5"), "--tokens-per-image goes with --images"),
    (("predict", *ONE, "--concurrency", "8", "--request-rate", "1"), "either --concurrency or --request-rate"),
    (("explain", "tok_s", *ONE, "--over", "links"), "--over goes with --against"),
    (("explain", "tok_s", *ONE, "--from", "3"), "--from goes with --against"),
    (("report", *ONE, "--json", "--price-per-gpu-hour", "2"), "goes with --samples"),
    (("calibrate", "x.csv", "--shipped"), "give no FILE"),
    (("calibrate", "x.csv", "--node", "1x-h100-sxm", "--check"), "--check goes with --shipped"),
    (("plan", *ONE, "--price", "h100-sxm=2", "--price", "h100-sxm=3"), "says h100-sxm twice"),
    (("whatif", *ONE, "--change", "gpu=h200-sxm", "--price", "gpu=h200-sxm:1", "--price", "gpu=h200-sxm:2"), "twice"),
])  # fmt: skip
def test_no_flag_is_ignored(words: tuple[str, ...], says: str) -> None:
    assert says in refused(*words)


@pytest.mark.parametrize("words", [
    SERVED, ("predict", *ONE), ("memory", *ONE), ("collective", "all_reduce", "--node", "8x-h100-sxm"),
    ("job", *ONE, "--samples", "9"), ("plan", *ONE, "--context", "4096"),
])  # fmt: skip
@pytest.mark.parametrize("file", ["loop.png", "a" * 300 + ".png", "\0.png", ""])
def test_a_picture_that_cannot_be_written_leaves_no_answer(words: tuple[str, ...], file: str, tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    refused(*words, "--json", "--plot", file and str(tmp_path / file))


def test_a_trace_of_no_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    for count in ("0", "-1"):
        assert "limit must be a whole number" in refused("simulate", *ONE, "--trace", str(path), "--limit", count)
    with pytest.raises(BadInput, match="limit must be"):
        pm.read_trace(path, limit=0)


@pytest.mark.parametrize("read,text", [
    (whole, "0" * 40 + "8"), (limit, "0" * 37 + "1 s and more"), (duration, "1 h" + " " * 90 + "x"),
])  # fmt: skip
def test_no_text_is_cut_into_another_value(read: Callable[[str, str], Any], text: str) -> None:
    with pytest.raises(BadInput):
        read("value", text)


# ------------------------------------------------------------------ Python

class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError


ODD = [10**5000, float("nan"), float("inf"), "", "x", b"8", {}, [], object(), np.array([1, 2]), np.array([None])]
ASKED: dict[str, Callable[[Any], Any]] = {
    "simulated": lambda v: pm.simulate(v, inputs=[9], outputs=[9]),
    "inputs": lambda v: pm.simulate(small(), inputs=v, outputs=[9]),
    "arrivals": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], arrivals=v),
    "hash_ids": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], hash_ids=v),
    "ids": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], hash_ids=[[v, float("nan")]]),
    "block": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], hash_ids=[[1]], block=v),
    "flight": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], concurrency=v),
    "router": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], router=v),
    "way": lambda v: pm.simulate(small(), inputs=[9], outputs=[9], arrival=v),
    "limits": lambda v: pm.simulate(small(), inputs=[9], outputs=[9]).to_dict(ttft_s=v),
    "arrival": lambda v: pm.predict(small(), concurrency=1, arrival=v),
    "requests": lambda v: pm.predict(small(), concurrency=1, requests=v),
    "service": lambda v: pm.predict(small(), concurrency=1, router=v),
    "tier": lambda v: pm.predict(small(), concurrency=1, offload_from=v),
    "gpus": lambda v: pm.plan("llama-3.1-8b", node="1x-h100-sxm", gpus=v),
    "samples": lambda v: pm.plan("llama-3.1-8b", node="1x-h100-sxm", target="time", samples=v),
    "variants": lambda v: pm.plan("llama-3.1-8b", node="1x-h100-sxm", variants=v),
    "tp": lambda v: pm.plan("llama-3.1-8b", node="1x-h100-sxm", tp=v),
    "job": lambda v: pm.size_job(small(), samples=9, arrival=v),
    "change": lambda v: pm.whatif(small(), [v]),
    "keyword": lambda v: pm.whatif(small(), [{"node": v}]),
    "value": lambda v: pm.whatif(small(), [{"tp": v}]),
    "figure": lambda v: pm.explain(v, small()),
    "against": lambda v: pm.explain("weights", small(), against=v),
    "over": lambda v: pm.explain("weights", small(), against=small(), over=v),
    "low": lambda v: pm.explain("weights", small(), against=small(), low=v),
    "load": lambda v: pm.explain("weights", small(), concurrency=v),
    "version": lambda v: pm.doctor("vllm serve llama-3.1-8b", node="1x-h100-sxm",
                                   engine=5 if isinstance(v, str) and not v else v),
}


@pytest.mark.parametrize("value", [*ODD, NoRepr()], ids=range(len(ODD) + 1))
@pytest.mark.parametrize("verb", ASKED)
def test_verbs_refuse_values_of_other_types(verb: str, value: Any) -> None:
    with pytest.raises(QuestionError):
        ASKED[verb](value)


@pytest.mark.parametrize("value", [5, float("nan"), object()])
def test_lists_and_tables_are_asked_for(value: Any) -> None:
    with pytest.raises(BadInput, match="changes must be a list"):
        pm.whatif(small(), value)
    with pytest.raises(BadInput, match="prices must be a table"):
        pm.whatif(small(), ["nodes=2"], prices=value)


def test_counts_of_numpy_become_plain_numbers() -> None:
    job = pm.size_job(small(), samples=9, nodes=np.float32(2), warmup=np.int64(3))
    json.dumps(job.to_dict(), allow_nan=False)
    assert job.nodes == 2 and pm.plan("llama-3.1-8b", node="1x-h100-sxm", gpus=np.int64(1)).choices


def test_what_cannot_be_shown_is_named_by_its_type() -> None:
    assert shown(NoRepr()) == "a NoRepr"
    with pytest.raises(UnknownName, match="a huge int"):
        one_of("router", 10**5000, ("even",))


def test_paths_of_a_large_node_are_found_without_walking_through_its_gpus() -> None:
    graph = Graph(load_node("512x-h100-sxm"))
    onward = {there for around in graph._onward.values() for several in around.values() for _, there in several}
    assert onward and "gpu" not in {graph.kinds[there] for there in onward}
    assert [hop.a for hop in graph.path(graph.gpus[0], graph.gpus[-1]).hops][0] == graph.gpus[0]


# ------------------------------------------------------------------ break-even

@pytest.mark.parametrize("axis", ["bandwidth", "links", "context"])
def test_a_deployment_against_itself_is_answered_at_once(axis: str) -> None:
    with limited(8.0):
        result = CliRunner().invoke(main, ["explain", "tok_s", *ONE, "--against", "tp=1", "--over", axis, "--json"])
    (answer,) = json.loads(result.stdout)
    found = answer["break_even"]
    assert result.exit_code == 0 and found["crossings"] == [] and not found["proven"]
    assert found["ratio_min"] == found["ratio_max"] == 1.0 and "equal on all" in found["proof"]


@pytest.mark.parametrize("axis", ["bandwidth", "links"])
@pytest.mark.parametrize("ends", [("1e-300", "1"), ("1", "1e6"), ("2", "1")])
def test_factors_of_a_break_even_lie_within_reason(axis: str, ends: tuple[str, str]) -> None:
    between = ("--from", ends[0], "--to", ends[1])
    assert "range" in refused("explain", "tok_s", *ONE, "--against", "kv_dtype=fp8", "--over", axis, *between)


# ------------------------------------------------------------------ files of a launch

COMPOSE = """services:
  a:
    command: vllm serve org/model
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: COUNT, capabilities: [gpu]}]}}}
"""


@pytest.mark.parametrize(("count", "gpus"), [("8", 8), ("true", None), ("-1", None), ("0", None), ("all", None),
                                             ("1.5", None), ("[8]", None), ("null", None)])
def test_gpus_of_a_compose_file_are_counted_in_whole_ones(count: str, gpus: int | None, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE.replace("COUNT", count))
    assert launch_of(file)[0].gpus == gpus
