"""Rules that engines share, launch lines and logs as engines print them, by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from test_engines import facts

from perfmodel import engines
from perfmodel.engines import rules, serving_logs, vllm
from perfmodel.engines.options import Options
from perfmodel.engines.serving_logs import Served, metric_sums, parse_metrics, parse_serving_log, rates_by_load
from perfmodel.engines.vllm_flags import parse_command
from perfmodel.errors import BadInput, IllegalDeployment


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "ep", "dp_attention", "dcp", "context", "max_sequences",
                                  "prefill_chunk", "page_size", "max_graph_batch", "max_micro_batch"])  # fmt: skip
def test_sizes_are_whole_and_at_least_one(name: str) -> None:
    rules.positive(replace(Options(), **{name: 1}))
    for wrong in (0, -1, 1.5):
        with pytest.raises(BadInput, match=name):
            rules.positive(replace(Options(), **{name: wrong}))


def test_shares_of_memory_and_depth_of_a_pipeline() -> None:
    for right in (1e-6, 0.5, 1.0):
        rules.positive(Options(memory_fraction=right))
    for wrong in (0.0, 1.0001, -0.1, float("nan")):
        with pytest.raises(BadInput, match="memory_fraction"):
            rules.positive(Options(memory_fraction=wrong))
    rules.positive(Options(async_depth=0))
    with pytest.raises(BadInput, match="async_depth"):
        rules.positive(Options(async_depth=-1))


@pytest.mark.parametrize(
    ("keywords", "model", "rule"),
    [
        ({"tp": 8, "dp_attention": 3}, {}, "does not divide tp"), ({"tp": 8, "ep": 3}, {}, "does not divide tp"),
        ({"tp": 2, "ep": 2}, {"experts": 0}, "no experts"), ({"tp": 3}, {}, "does not pad attention heads"),
        ({"tp": 8}, {"attention": "gqa", "kv_heads": 6, "heads": 48}, "uneven"),
        ({"tp": 8, "dcp": 3}, {}, "does not divide the attention group"),
        ({"tp": 64}, {"moe_intermediate": 2000}, "does not pad experts"),
        ({"tp": 8}, {"moe_intermediate": 128}, "cuts a quantisation group"),
    ],
)  # fmt: skip
def test_what_no_engine_runs(keywords: dict[str, Any], model: dict[str, Any], rule: str) -> None:
    with pytest.raises(IllegalDeployment, match=rule):
        rules.groups(Options(**keywords), facts(**model), "vLLM")


def test_what_every_engine_runs() -> None:
    for keywords, model in (
        ({"tp": 8, "dp_attention": 8, "ep": 8}, {}), ({"tp": 8}, {"attention": "gqa", "kv_heads": 4}),
        ({"tp": 8}, {"attention": "gqa", "kv_heads": 16}), ({"tp": 8, "dcp": 4}, {}),
        ({"tp": 8}, {"moe_intermediate": 256}), ({"tp": 1}, {"moe_intermediate": 2001}),
        ({"tp": 8}, {"moe_intermediate": 128, "weight_format": "fp8"}),
    ):  # fmt: skip
        rules.groups(Options(**keywords), facts(**model), "vLLM")


def test_words_of_a_cache() -> None:
    known = ("bf16", "fp8")
    assert [rules.kv_dtype(word, known, "vLLM") for word in ("AUTO", "bfloat16", "FP8", "bf16")] == [
        "auto", "bf16", "fp8", "bf16"]
    with pytest.raises(IllegalDeployment, match="no nvfp4"):
        rules.kv_dtype("fp4_e2m1", known, "vLLM")
    declared = facts(kv_cache="fp8")
    assert rules.kv_default(declared, known, True)[0] == "fp8"
    assert rules.kv_default(declared, known, False)[0] == "bf16"
    assert rules.kv_default(declared, ("bf16",), True)[0] == "bf16"
    assert rules.kv_default(facts(), known, True)[0] == "bf16"


def test_captured_sizes_go_by_steps() -> None:
    """1, 2, 4, then steps of 8, and of 16 from 256 on since 0.11.2."""
    def steps(version: str) -> set[tuple[int, int]]:
        o, _ = vllm.resolve(Options(version=version, max_graph_batch=512), facts())
        return {(a >= 256, b - a) for a, b in pairwise(vllm.capture_sizes(o, facts())) if a >= 8}

    assert steps("0.33.0") == {(False, 8), (True, 16)}
    assert steps("0.11.0") == {(False, 8), (True, 8)}


# ---------------------------------------------------------------- launch lines and logs


def test_small_print_of_vllm_s_launch_line() -> None:
    assert parse_command("vllm serve org/m -dp 2")[1] == {"tp": 2, "dp_attention": 2}  # tp is one where none is given
    assert parse_command("vllm serve org/m -dp 2 -ep", moe=False)[1] == {"tp": 2, "dp_attention": 2, "ep": 2}
    assert parse_command("vllm serve org/m --speculative-config '{\"method\": \"ngram\"}'")[1] == {
        "speculative": "ngram:1"}
    assert parse_command("VLLM_ATTENTION_BACKEND=FLASHMLA vllm serve org/m")[1] == {"attention_backend": "flashmla"}
    for word, name in (("pcie_ipc", "FLASHINFER_PCIE_IPC"), ("symm_mem", "SYMM_MEM")):
        assert parse_command(f"VLLM_ALLREDUCE_USE_{name}=1 vllm serve org/m")[1] == {"all_reduce": word}
        assert parse_command(f"VLLM_ALLREDUCE_USE_{name}=0 vllm serve org/m")[1] == {}
    with pytest.raises(BadInput, match="names no model"):
        parse_command("vllm serve -tp 2")
    assert parse_command("vllm serve -tp 2", model_needed=False)[0] == ""


def test_small_print_of_sglang_s_launch_line() -> None:
    parse = engines.get("sglang")[0].parse_command
    line = "python -m sglang.launch_server --model-path org/m --tp 8"
    assert parse(line)[:2] == ("org/m", {"tp": 8})
    assert parse(f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 {line}")[1] == {"tp": 8, "all_reduce": "pcie_ipc"}
    with pytest.raises(BadInput, match="names no model"):
        parse("python -m sglang.launch_server --tp 8")


def test_small_print_of_tensorrt_llm_s_launch_line() -> None:
    parse, write = (getattr(engines.get("tensorrt-llm")[0], name) for name in ("parse_command", "launch_command"))
    line = ("trtllm-serve org/m --tp_size 8 --set x=1  # --config: cuda_graph_config=off enable_attention_dp=8 "
            "pp_partition=30,31 attn_backend=vanilla no_such=1")  # fmt: skip
    said = {"tp": 8, "cuda_graphs": False, "dp_attention": 8, "layers_per_stage": (30, 31),
            "attention_backend": "vanilla"}  # fmt: skip
    assert parse(line) == ("org/m", said, ("no_such",))
    assert parse(write(Options(engine="tensorrt-llm", **said), "org/m"))[:2] == ("org/m", said)  # type: ignore[arg-type]
    assert "--trust_remote_code" in write(Options(engine="tensorrt-llm"), "org/Kimi-K2")
    with pytest.raises(BadInput, match="names no model"):
        parse("trtllm-serve --tp_size 8")
    with pytest.raises(BadInput, match="takes numbers, got 'a,b'"):
        parse("trtllm-serve org/m  # --config: pp_partition=a,b")


def test_speeds_of_vllm_s_log() -> None:
    """Engine 0 holds 20 s at 100 tok/s, engine 1 10 s at 50."""
    say = "INFO 01-02 10:00:{:02d} [loggers.py:1] Engine {:03d}: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: {} tokens/s, Running: 8 reqs, Waiting: 0 reqs"  # noqa: E501
    lines = [say.format(0, 0, 90.0), say.format(10, 1, 80.0), say.format(20, 0, 100.0), say.format(20, 1, 50.0)]
    assert parse_serving_log(lines) == Served(20.0, 20 * 100.0 + 10 * 50.0, 4)
    assert parse_serving_log(lines[:1]) is None
    assert rates_by_load([*lines, say.format(30, 0, 0.0)]) == {8.0: [90.0, 80.0, 100.0, 50.0]}


def test_the_first_stage_speaks_for_a_pipeline_and_each_group_for_itself() -> None:
    say = "[2026-01-01 10:00:{:02d} {}] Decode batch. #running-req: 1, gen throughput (token/s): {},"
    lines = [say.format(0, "DP0 TP0 PP0", 10.0), say.format(0, "DP0 TP0 PP1", 10.0), say.format(5, "DP1 TP0 PP0", 30.0),
             say.format(10, "DP0 TP0 PP0", 10.0), say.format(10, "DP1 TP0 PP0", 20.0)]  # fmt: skip
    assert parse_serving_log(lines) == Served(10.0, 10 * 10.0 + 5 * 20.0, 4)
    assert rates_by_load(lines[:1]) == {1.0: [10.0]}


def test_counters_are_summed_over_their_labels() -> None:
    finished = "vllm:request_success_total"
    page = [f'{finished}{{finished_reason="stop"}} 90', f'{finished}{{finished_reason="length"}} 10',
            "vllm:generation_tokens_total 1.8e5", 'vllm:time_bucket{le="1"} 7', "# HELP vllm:x", "x 3"]  # fmt: skip
    assert parse_metrics(page) == (100.0, 180000.0)
    assert parse_metrics(page[2:]) == (None, 180000.0)
    sums, labels = metric_sums(page)
    assert sums == {finished: 100.0, "vllm:generation_tokens_total": 180000.0}
    assert labels[finished] == {"finished_reason": "length"}


def test_counters_of_sglang() -> None:
    page = ['sglang:num_requests_total{model_name="m"} 5', "sglang:generation_tokens_total 700", "sglang:x 1"]
    assert parse_metrics(page) == (5.0, 700.0)
    assert metric_sums(page)[0]["sglang:x"] == 1.0
    assert parse_metrics(["num_requests_total 5"]) == (None, None)


@pytest.mark.parametrize("parse", [parse_serving_log, parse_metrics])
def test_a_log_beyond_the_limit_is_refused(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_logs, "MAX_BYTES", 12)
    parse(["123456", "123456"])
    with pytest.raises(BadInput, match="longer than 12"):
        parse(["123456", "123456", "1"])
