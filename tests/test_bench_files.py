"""Result files of benchmark tools: each format gives the figures that it states; hostile or silent ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ask, both
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.calibration.bench_files import MAX_ROWS, Found, read_files, read_text_of
from perfmodel.calibration.bench_row import Stated
from perfmodel.calibration.measured import Measurement
from perfmodel.errors import PerfModelError, QuestionError

SERVE = {"date": "20261101-000000", "endpoint_type": "openai", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 64,
         "request_rate": "inf", "max_concurrency": 8, "duration": 20.0, "completed": 64, "total_input_tokens": 65536,
         "total_output_tokens": 8192, "output_throughput": 409.6, "mean_tpot_ms": 18.0, "median_tpot_ms": 17.5}
SGLANG = {k: v for k, v in SERVE.items() if k not in ("model_id", "endpoint_type")} | {
    "backend": "sglang", "total_output_tokens_retokenized": 8190, "random_input_len": 1024}
LATENCY = {"avg_latency": 2.5, "latencies": [2.4, 2.6], "percentiles": {"50": 2.5}}
THROUGHPUT = {"elapsed_time": 30.0, "num_requests": 100, "total_num_tokens": 115200, "requests_per_second": 3.3,
              "tokens_per_second": 3840.0}
ONE_BATCH = {"run_name": "x", "batch_size": 4, "input_len": 256, "output_len": 32, "prefill_latency": 0.05,
             "prefill_throughput": 20480.0, "median_decode_latency": 0.008, "total_latency": 0.3}
SERVER = {"run_name": "x", "batch_size": 16, "input_len": 1024, "output_len": 101, "latency": 2.5, "last_ttft": 0.5,
          "output_throughput": 800.0, "acc_length": 1.0, "cache_hit_rate": 0.0}
OFFLINE = {"backend": "engine", "successful_requests": 10, "total_latency": 5.0, "total_input_tokens": 10240,
           "total_output_tokens": 1280, "output_throughput": 256.0}
GUIDELLM = {"metadata": {"version": 2}, "benchmarks": [{
    "config": {"strategy": {"type_": "concurrent", "streams": 8}},
    "metrics": {name: {"successful": {"mean": value, "median": value}} for name, value in
                (("prompt_token_count", 512.0), ("output_token_count", 128.0), ("inter_token_latency_ms", 12.0),
                 ("request_concurrency", 7.9), ("output_tokens_per_second", 600.0))}}]}
AIPERF = {"schema_version": "1.4", "input_config": {"loadgen": {"concurrency": 64}},
          "inter_token_latency": {"unit": "ms", "avg": 35.2, "p50": 34.73},
          "output_token_throughput": {"unit": "tokens/sec", "avg": 1800.0},
          "input_sequence_length": {"avg": 256.0}, "output_sequence_length": {"avg": 64.0}}
AIPERF_CSV = ("Metric,avg,min,max,p50\r\nTime to First Token (ms),\"1,146.31\",1,2,3\r\nInter Token Latency (ms),30.35,"
              "27.59,35.60,30.13\r\nOutput Sequence Length (tokens),174.45,1,2,174\r\nInput Sequence Length (tokens),"
              "\"3,000.05\",1,2,3\r\n\r\nMetric,Value\r\nOutput Token Throughput (tokens/sec),261.25\r\n")
LLAMA = [{"build_commit": "c", "model_type": "llama 8B", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 5120.0},
         {"build_commit": "c", "model_type": "llama 8B", "n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 80.0}]
LLAMA_CSV = "build_commit,n_prompt,n_gen,n_depth,avg_ts\nc,512,0,0,5120.0\nc,0,128,4096,80.0\n"
LLAMA_MD = ("| model | size | backend | test | t/s |\n| --- | --- | --- | ---: | ---: |\n"
            "| llama 8B Q8_0 | 7.9 GiB | CUDA | pp512 | 5120.00 ± 3.10 |\n"
            "| llama 8B Q8_0 | 7.9 GiB | CUDA | tg128 @ d4096 | 80.00 ± 0.20 |\n\nbuild: c (1)\n")
CSV = "concurrency,tpot_ms,input_tokens,output_tokens\n8,17.5,1024,128\n"

ASKED = Stated(input_tokens=1024.0, output_tokens=128.0, concurrency=8.0)
PREFILL = ("prefill", 0.1, 1.0, 512.0, 1.0, 0.0)
STEP = ("step", 0.0125, 1.0, 0.0, 0.0, 4160.0)
CASES: dict[str, tuple[str, str, list[tuple[str, float, float, float, float, float]]]] = {
    "serve": (json.dumps(SERVE), "vllm bench serve", [("tpot", 0.0175, 8.0, 1024.0, 128.0, 0.0)]),
    "sglang": (json.dumps(SGLANG) + "\n" + json.dumps(SGLANG | {"max_concurrency": 2}), "SGLang bench_serving",
               [("tpot", 0.0175, 8.0, 1024.0, 128.0, 0.0), ("tpot", 0.0175, 2.0, 1024.0, 128.0, 0.0)]),
    "latency": (json.dumps(LATENCY), "vllm bench latency", [("batch", 2.5, 8.0, 1024.0, 128.0, 0.0)]),
    "throughput": (json.dumps(THROUGHPUT), "vllm bench throughput", [("batch", 30.0, 100.0, 1024.0, 128.0, 0.0)]),
    "offline": (json.dumps(OFFLINE), "SGLang bench_offline_throughput", [("batch", 5.0, 10.0, 1024.0, 128.0, 0.0)]),
    "one batch": (json.dumps(ONE_BATCH), "SGLang bench_one_batch",
                  [("prefill", 0.05, 4.0, 256.0, 1.0, 0.0), ("step", 0.008, 4.0, 0.0, 0.0, 272.0)]),
    "server": (json.dumps(SERVER), "SGLang bench_one_batch_server",
               [("prefill", 0.5, 16.0, 1024.0, 1.0, 0.0), ("step", 0.02, 16.0, 0.0, 0.0, 1074.5)]),
    "guidellm": (json.dumps(GUIDELLM), "GuideLLM", [("tpot", 0.012, 8.0, 512.0, 128.0, 0.0)]),
    "aiperf": (json.dumps(AIPERF), "AIPerf", [("tpot", 0.03473, 64.0, 256.0, 64.0, 0.0)]),
    "aiperf csv": (AIPERF_CSV, "AIPerf", [("tpot", 0.03013, 8.0, 3000.05, 174.45, 0.0)]),
    "llama": (json.dumps(LLAMA), "llama-bench", [PREFILL, STEP]),
    "llama lines": ("\n".join(map(json.dumps, LLAMA)), "llama-bench", [PREFILL, STEP]),
    "llama csv": (LLAMA_CSV, "llama-bench", [PREFILL, STEP]),
    "llama markdown": (LLAMA_MD, "llama-bench", [PREFILL, STEP]),
    "csv": (CSV, "CSV", [("tpot", 0.0175, 8.0, 1024.0, 128.0, 0.0)]),
}


def plain(row: Measurement) -> tuple[str, float, float, float, float, float]:
    return row.kind, row.seconds, row.load, row.input_tokens, row.output_tokens, row.context


@pytest.mark.parametrize("case", CASES)
def test_every_format_gives_the_figures_that_it_states(case: str) -> None:
    text, tool, wanted = CASES[case]
    name, rows, _, _, _ = read_text_of(text, "f", ASKED)
    assert name == tool
    assert [row.kind for row in rows] == [one[0] for one in wanted]
    for row, one in zip(rows, wanted, strict=True):
        assert plain(row)[1:] == pytest.approx(one[1:], rel=1e-9, abs=0) or plain(row)[1:] == one[1:]


@pytest.mark.parametrize("case", ["latency", "throughput", "aiperf csv"])
def test_what_a_file_does_not_say_is_asked_for_by_its_flag(case: str) -> None:
    with pytest.raises(QuestionError, match=r"does not say (concurrency|input_tokens)") as refusal:
        read_text_of(CASES[case][0], "f", Stated())
    assert any("--" in hint for hint in refusal.value.hints)


@pytest.mark.parametrize(("change", "match"), [
    ({"max_concurrency": None}, "request_rate"), ({"completed": 0}, "completed"),
    ({"median_tpot_ms": -1}, "median_tpot_ms"), ({"total_output_tokens": float("nan")}, "total_output_tokens"),
    ({"median_tpot_ms": 10**400}, "median_tpot_ms"), ({"completed": True}, "completed"),
    ({"completed": [1]}, "completed"),
])
def test_a_figure_that_is_none_is_refused_by_name(change: dict[str, object], match: str) -> None:
    with pytest.raises(QuestionError, match=match):
        read_text_of(json.dumps(SERVE | change), "f", Stated())


@pytest.mark.parametrize("text", [
    "", "{}", "[]", "[1, 2]", "null", '"x"', "{" * 5000, "[" * 200_000, '{"avg_ts": ' * 2000, "a,b\n1,2\n", "\x00\x01",
    '{"benchmarks": []}', '{"benchmarks": [1]}', '{"benchmarks": [{"metrics": 1}]}', "|a|b|\n|-|-|\n", "Metric,\n",
    "| test | t/s |\n| - | - |\n| rm512 | 1 |\n", "concurrency,output_tok_s\n1,2,3\n", "concurrency,output_tok_s\n1\n",
    json.dumps(SERVE) + json.dumps(SERVE), json.dumps(SERVE)[:-9], json.dumps([SERVE, LATENCY]),
])
def test_strangers_files_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(QuestionError) as refusal:
        read_text_of(text, "f", ASKED)
    assert len(refusal.value.message) < 700


def test_the_refusal_lists_the_formats(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"hello": 1}')
    run = ask("calibrate", str(tmp_path / "x.json"), "--model", "llama-3.1-8b", "--node", "1x-h200-sxm")
    assert run.exit_code == 2
    assert all(word in both(run) for word in ("GuideLLM", "AIPerf", "llama-bench", "vllm bench serve", "SGLang"))


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
                    max_leaves=8)
KNOWN = (SERVE, SGLANG, LATENCY, THROUGHPUT, ONE_BATCH, SERVER, OFFLINE, GUIDELLM, AIPERF, LLAMA[0])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KNOWN), st.data())
def test_any_value_in_any_key_is_read_or_refused(known: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(known)))
    text = json.dumps(known | {key: data.draw(JSON)})
    try:
        _, rows, _, _, _ = read_text_of(text, "f", ASKED)
    except PerfModelError:
        return
    assert all(0 < row.seconds < 1e12 and row.load > 0 for row in rows)


@pytest.mark.parametrize(("known", "key"), [(SERVE, "spec_decode_acceptance_length"), (SGLANG, "accept_length")])
def test_speculation_that_a_file_states_must_be_stated_of_the_launch(
    known: dict[str, object], key: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(known | {key: 2.4}))
    words = ["calibrate", str(tmp_path / "a.json"), "--model", "llama-3.1-8b", "--node", "1x-h200-sxm"]
    run = ask(*words)
    assert run.exit_code == 2
    assert "--speculative METHOD:DRAFTS:2.4" in both(run)
    assert ask(*words, "--speculative", "eagle3:3:2.4", "--force").exit_code == 0


def test_many_files_and_rows_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join([json.dumps(SERVE)] * (MAX_ROWS + 1)))
    with pytest.raises(QuestionError, match="at most"):
        read_files([path])
    with pytest.raises(QuestionError, match="at most"):
        read_files([path] * 1000)


def test_files_keep_their_digests_and_the_models_that_they_name(tmp_path: Path) -> None:
    found = read_some(tmp_path, {"a.json": json.dumps(SERVE), "b.json": json.dumps(SERVE | {"max_concurrency": 16})})
    assert [row.load for row in found.rows] == [8, 16]
    assert set(found.hashes) == {"a.json", "b.json"}
    assert len(set(found.hashes.values())) == 2
    assert found.models == ("meta-llama/Llama-3.1-8B",)


def read_some(folder: Path, texts: dict[str, str]) -> Found:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return read_files([folder / name for name in texts])


SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize("make", [lambda size: 12 + size / 15e3, lambda size: 20 + size / 40e3])
def test_nccl_tests_become_a_node_file_that_answers_as_measured(make: Callable[[int], float], tmp_path: Path) -> None:
    lines = ["# Collective test starting: all_reduce_perf", "#  Rank  0 on h device  0 [0x01] NVIDIA L40S",
             "#  Rank  1 on h device  1 [0x02] NVIDIA L40S"]
    sizes = [2**i for i in range(10, 26)]
    lines += [f" {n} {n // 4} float sum -1 {make(n):.2f} 1.0 1.0 0 {make(n):.2f} 1.0 1.0 0" for n in sizes]
    (tmp_path / "ar.log").write_text("\n".join(lines))
    out = tmp_path / "mine.yaml"
    run = ask("calibrate", str(tmp_path / "ar.log"), "--node", "8x-l40s", "-o", str(out), "--json")
    assert run.exit_code == 0, both(run)
    assert json.loads(run.stdout)["median_error"] < 0.05
    import perfmodel as pm

    d = pm.collective("all_reduce", node=str(out), ranks=2, message_bytes=sizes, algorithm="nccl", in_graph=True)
    errors = [abs(s / (1e-6 * make(n)) - 1) for s, n in zip(d.seconds, sizes, strict=True)]
    assert sorted(errors)[len(errors) // 2] < 0.05


def test_nccl_tests_do_not_mix_with_other_results(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SERVE))
    run = ask("calibrate", str(tmp_path / "a.json"), str(SAMPLES / "nccl-tests-new.txt"), "--node", "8x-l40s")
    assert run.exit_code == 2
    assert "apart" in both(run)
