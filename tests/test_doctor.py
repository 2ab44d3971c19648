"""`doctor`: costs that are the model's own, and runs beside predictions."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import NODE, ask, both, width

import perfmodel as pm
from perfmodel.errors import BadInput, PerfModelError, UnknownName
from perfmodel.insight.asking import Finding, flag_change
from perfmodel.insight.doctor import Doctor
from perfmodel.insight.findings_pipeline import balanced
from perfmodel.insight.launch import NotACommand
from perfmodel.insight.reality import decode_points, points_of, read_metrics

SAMPLES = Path(__file__).parent / "samples"
CASE = (
    "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.6 --tp-size 1 --pp-size 8 "
    "--max-running-requests 64 --disable-cuda-graph --mem-fraction-static 0.92"
)
LOADS = (1, 4, 8, 16)
TP8 = "vllm serve moonshotai/Kimi-K2.6 -tp 8 --gpu-memory-utilization 0.94 --max-model-len 32768"


@pytest.fixture(scope="module")
def case() -> Doctor:
    return pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS)  # type: ignore[no-any-return]


def named(answer: Doctor, words: str) -> Finding:
    (finding,) = [f for f in answer.findings if words in f.name]
    return finding


def names(command: str, **more: Any) -> list[str]:
    asked = {"node": NODE, "concurrency": (1, 8, 64), **more}
    return [f.name for f in pm.doctor(command, **asked).findings]


# ---------------------------------------------------------------- findings


def test_the_case_finds_graphs_slot_and_depth(case: Doctor) -> None:
    slot, graphs = named(case, "crowded pipeline slot"), named(case, "CUDA graphs off")
    assert slot.at == 8 and slot.changes == {"max_micro_batch": 1}
    assert slot.flag == "set --pp-max-micro-batch-size 1"
    assert slot.gains[LOADS.index(8)] > 0.5 * slot.tok_s_now[LOADS.index(8)]
    assert graphs.flag == "remove --disable-cuda-graph" and graphs.at == 1
    assert case.findings.index(slot) < case.findings.index(graphs)
    depth = named(case, "without async depth")
    assert "--pp-async-batch-depth" in depth.flag and depth.source


@pytest.mark.parametrize("words", ["crowded pipeline slot", "CUDA graphs off", "KV cache in 16 bits"])
def test_a_cost_is_what_the_model_says_with_the_change(case: Doctor, words: str) -> None:
    """The finding's figures against a deployment made by hand."""
    finding = named(case, words)
    base = {"pp": 8, "max_sequences": 64, "cuda_graphs": False, "memory_fraction": 0.92}
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", **{**base, **finding.changes})
    index = LOADS.index(int(finding.at))
    curve = pm.predict(d, concurrency=[finding.at])
    assert finding.tok_s[index] == pytest.approx(float(curve.output_tok_s[0][0]), rel=1e-9, abs=1e-9)
    assert finding.tok_s_now[index] == pytest.approx(float(case.curve.output_tok_s[0][index]), rel=1e-9, abs=1e-9)
    assert finding.kv_tokens == pm.memory(d).kv_tokens_total


def test_a_launch_that_does_not_start_says_first_what_would(case: Doctor) -> None:
    answer = pm.doctor(CASE.replace(" --mem-fraction-static 0.92", ""), node=NODE, engine="sglang==0.5.10",
                       concurrency=LOADS)  # fmt: skip
    first = answer.findings[0]
    assert not answer.memory.fits and first.kind == "start" and first.kv_tokens > 0
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, max_sequences=64, cuda_graphs=False,
                  **first.changes)  # fmt: skip
    assert pm.memory(d).fits
    assert any("what follows is asked with" in note for note in answer.assumptions)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{TP8} --enforce-eager", "CUDA graphs off"),
        (f"{TP8} --max-num-seqs 4", "sequence limit below the load"),
        (f"{TP8} --enable-expert-parallel", "EP that still pays all-reduces"),
        (TP8, "KV replicated (DCP would share it)"),
        (TP8, "KV cache in 16 bits"),
        (TP8, "custom all-reduce unavailable on PCIe"),
        (TP8, "the answer takes NCCL as tuned"),
        (f"NCCL_P2P_DISABLE=1 {TP8}", "P2P between GPUs switched off"),
        (TP8.replace("0.94", "0.86"), "memory fraction leaves GPUs idle"),
        (TP8.replace("-tp 8", "-tp 8 --max-num-batched-tokens 256"), "prefill chunk small"),
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct", "GPUs idle"),
    ],
)
def test_rules(command: str, words: str) -> None:
    answer = pm.doctor(command, node=NODE, concurrency=(1, 8, 64))
    assert any(words in name for name in [f.name for f in answer.findings] + list(answer.not_asked)), answer


def test_a_sound_launch_has_no_repair_of_speed() -> None:
    """Its own repairs, made, are found no more."""
    again = CASE.replace(" --disable-cuda-graph", "") + " --pp-max-micro-batch-size 1"
    found = names(again, engine="sglang==0.5.10", concurrency=(1, 8))
    assert "one crowded pipeline slot" not in found and "CUDA graphs off" not in found


def test_findings_are_ranked_by_what_they_cost(case: Doctor) -> None:
    shares = [max(g / old for g, old in zip(f.gains, f.tok_s_now, strict=True)) for f in case.findings]
    shares = [f.chance or 0.0 if f.kind == "safety" else abs(share)
              for f, share in zip(case.findings, shares, strict=True)]  # fmt: skip
    worth = [share if share >= 0.01 else 0.0 for share in shares]
    assert worth == sorted(worth, reverse=True)


def test_balanced_stages_carry_less() -> None:
    layers, weights = [7, 7, 7, 8, 8, 8, 8, 8], [62.0, 68.7, 68.7, 78.5, 78.5, 78.5, 78.5, 81.0]
    split = balanced(layers, weights)
    assert sum(split) == 61 and split[-1] <= split[1]


def test_flag_change_in_words() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, cuda_graphs=False)
    e = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, kv_dtype="fp8")
    assert flag_change(d, e) == "set --kv-cache-dtype fp8_e4m3; remove --disable-cuda-graph"
    assert flag_change(d, d) == "no flag says this"


@pytest.mark.parametrize(
    ("command", "error"),
    [("rm -rf /", NotACommand), ("vllm serve no-such-model-at-all", UnknownName), ("vllm serve", BadInput),
     ("vllm serve 'm", BadInput)],
)  # fmt: skip
def test_refusals(command: str, error: type[PerfModelError]) -> None:
    with pytest.raises(error):
        pm.doctor(command, node=NODE)


# ---------------------------------------------------------------- what a run shows


def points(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"concurrency": load, "output_tok_s": rate} for load, rate in pairs]


def test_a_setting_that_differs_is_found(case: Doctor) -> None:
    """A run whose slots were filled evenly, made by the model itself, is recognised."""
    even = pm.predict(case.deployment, concurrency=[4, 8, 16], arrival="staggered").output_tok_s[0]
    rows = points(*zip((4, 8, 16), map(float, even), strict=True))
    answer = pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS, benchmark=rows)
    best = answer.differences[0].alternatives[0]
    assert best.name == "slots filled staggered rather than burst"
    assert best.error_after < 1e-6 < best.error_before


def test_a_factor_that_differs_is_found() -> None:
    from perfmodel.insight.variants import with_factors

    d = pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS).deployment
    value = d.calibration.parameters["eager_kernel_s"].value
    slow = pm.predict(with_factors(d, {"eager_kernel_s": 1.5 * value}), concurrency=[1, 4, 8]).output_tok_s[0]
    rows = points(*zip((1, 4, 8), map(float, slow), strict=True))
    answer = pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS, benchmark=rows)
    best = answer.differences[0].alternatives[0]
    assert best.name in ("eager_kernel_s", "host_speed") and best.factor is not None and best.factor > 1.2


LOG = """[PP0] Load weight begin. avail mem=94.20 GB
[PP0] Load weight end. type=K, dtype=bf16, avail mem=15.00 GB, mem usage=79.20 GB.
[PP0] max_total_num_tokens=600000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, \
context_len=262144, available_gpu_mem=7.0 GB
"""


def test_a_log_beside_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text(LOG)
    answer = pm.doctor(CASE, str(file), node=NODE, engine="sglang==0.5.10", concurrency=(8,))
    seen = {d.what: d for d in answer.differences}
    assert seen["KV tokens"].measured == 600000
    assert "GiB less for KV" in seen["KV tokens"].explanation
    assert seen["weights"].ratio == pytest.approx(79.2 / seen["weights"].predicted, rel=1e-9, abs=1e-9)


def test_readers_of_files() -> None:
    line = "Decode batch, #running-req: 8, #token: 9, cuda graph: False, gen throughput (token/s): "
    log = [f"{line}{rate}, #queue-req: 0" for rate in (90.0, 95.0, 100.0)]
    log.append("Engine 000: Avg generation throughput: 50.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs")
    (point,) = decode_points(log)  # a load seen once or twice is no point
    assert (point.concurrency, point.tok_s) == (8, 95)
    page = read_metrics((SAMPLES / "vllm-metrics.txt").read_text())
    (point,) = page.points
    assert (page.kv_tokens, point.concurrency, point.tok_s, point.kind) == (16000, 4, 50, "tpot")
    assert (point.input_tokens, point.output_tokens) == (800, 250)
    assert page.hit_rate == pytest.approx(0.25, rel=1e-12, abs=0) and "3 preemptions" in page.remarks[0]
    page = read_metrics((SAMPLES / "sglang-metrics.txt").read_text())
    assert (page.kv_tokens, page.points[0].tok_s, page.points[0].kind) == (5000, 30, "rate")


def test_a_metrics_page_beside_the_answer() -> None:
    answer = pm.doctor(TP8, node=NODE, metrics=SAMPLES / "vllm-metrics.txt", concurrency=(4,))
    seen = {d.what: d for d in answer.differences}
    assert seen["KV tokens"].measured == 16000 and "for KV on rank" in seen["KV tokens"].explanation
    assert seen["prefix hit rate"].measured == pytest.approx(0.25, rel=1e-12, abs=0)
    assert seen["tokens/s of one request at C=4"].measured == 50


@pytest.mark.parametrize(
    "rows", ["bench.json", 5, [], [{}], [5], [{"concurrency": 8}], [{"concurrency": -1, "output_tok_s": 5}],
             [{"concurrency": True, "output_tok_s": 5}], [{"concurrency": 1, "output_tok_s": float("nan")}]]
)  # fmt: skip
def test_broken_rows_of_a_benchmark_are_refused(rows: Any) -> None:
    with pytest.raises(BadInput, match="benchmark"):
        points_of(rows)


def test_the_command_reads_result_files_of_a_benchmark(tmp_path: Path) -> None:
    row = {"completed": 64, "max_concurrency": 8, "output_throughput": 120.0, "total_input_tokens": 64 * 1024,
           "total_output_tokens": 64 * 1024, "mean_tpot_ms": 60.0, "duration": 546.0, "request_throughput": 0.117,
           "backend": "vllm", "date": "2026", "num_prompts": 64, "total_token_throughput": 240.0}  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(row))
    result = ask("doctor", CASE, "--node", NODE, "--engine", "sglang==0.5.10", "--concurrency", "8",
                 "--benchmark", str(tmp_path / "result.json"))  # fmt: skip
    assert result.exit_code == 0, both(result)
    assert "what the run shows" in result.stdout and "at C=8" in result.stdout


# ---------------------------------------------------------------- the face


def test_json_is_finite_and_complete(case: Doctor) -> None:
    (answer,) = case.to_dict()
    text = json.dumps(answer, allow_nan=False)
    assert json.loads(text) == answer
    assert {"findings", "points", "unknown_flags", "flag_warnings", "command", "launch", "assumptions"} <= set(answer)
    assert [f["rank"] for f in answer["findings"]] == list(range(1, len(answer["findings"]) + 1))
    assert "crowded" in repr(case)


def test_the_command_prints_findings_in_80_columns() -> None:
    result = ask("doctor", CASE, "--node", NODE, "--engine", "sglang==0.5.10", "--concurrency", "1,8")
    assert result.exit_code == 0, both(result)
    assert "one crowded pipeline slot" in result.stdout and "set --pp-max-micro-batch-size 1" in result.stdout
    assert width(result.stdout) <= 80


def test_the_command_names_what_it_does_not_understand() -> None:
    result = ask("doctor", f"{TP8} --no-such-flag", "--node", NODE, "--json")
    assert "the server will not start: --no-such-flag: unknown to vllm" in result.stderr
    assert json.loads(result.stdout)[0]["unknown_flags"] == ["--no-such-flag"]
    refused = ask("doctor", "ls -l", "--node", NODE)
    assert "did you mean" not in refused.stderr
    assert refused.exit_code == 2 and "not a command that starts a server" in refused.stderr


# ---------------------------------------------------------------- flags at which the engine's parser stops


def test_a_misspelt_flag_is_the_first_finding_and_is_priced_as_it_was_meant() -> None:
    typo = TP8.replace("-tp 8", "--tensor-paralel-size 8")
    assert typo != TP8
    meant, found = pm.doctor(TP8, node=NODE), pm.doctor(typo, node=NODE)
    first = found.findings[0]
    assert first.kind == "start" and first.name == "the server will not start: --tensor-paralel-size"
    assert first.flag == "write --tensor-parallel-size in place of --tensor-paralel-size"
    assert found.deployment.name == meant.deployment.name == "TP8"
    assert first.tok_s_now == (0.0,) * len(first.tok_s) and min(first.tok_s) > 0
    rest, whole = ([f.to_dict(one.concurrency) for f in one.findings] for one in (found, meant))
    assert rest[1:] == whole
    assert found.curve.points == meant.curve.points
    assert "paralel" not in found.launch.line and "--tensor-parallel-size 8" in found.launch.line


def test_a_misspelt_flag_is_said_once_below_and_once_beside() -> None:
    result = ask("doctor", TP8.replace("-tp 8", "--tensor-paralel-size=8"), "--node", NODE)
    assert result.exit_code == 0, both(result)
    assert result.stderr.count("paralel-") == 1 and result.stdout.count("--tensor-paralel-size: unknown to vllm") == 1
    assert "not understood" not in result.stdout and "launch as it was meant:" in result.stdout
    assert width(result.stdout) <= 80


@pytest.mark.parametrize(
    ("words", "engine", "flag", "change"),
    [
        ("vllm serve moonshotai/Kimi-K2.6 -tp 8 --no-such-thing 5", "vllm==0.33.0", "--no-such-thing",
         "remove --no-such-thing"),
        ("sglang serve --model-path moonshotai/Kimi-K2.6 --tp 8 --cuda-graph-max-bs 64", "sglang==0.5.20",
         "--cuda-graph-max-bs", "write --cuda-graph-max-bs-decode in place of --cuda-graph-max-bs"),
    ],
)  # fmt: skip
def test_a_flag_that_this_version_lacks_keeps_the_server_from_starting(
    words: str, engine: str, flag: str, change: str
) -> None:
    found = pm.doctor(words, node=NODE, engine=engine)
    assert (found.findings[0].name, found.findings[0].flag) == (f"the server will not start: {flag}", change)
    if flag == "--no-such-thing":
        assert found.launch.line.endswith("-tp 8")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("vllm serv moonshotai/Kimi-K2.6", "did you mean vllm serve?"),
        ("/opt/bin/vlm serve moonshotai/Kimi-K2.6", "did you mean vllm serve?"),
        ("sglang server --model-path moonshotai/Kimi-K2.6", "did you mean sglang serve?"),
        ("python -m sglang.launch_serverr --model-path m", "did you mean python -m sglang.launch_server?"),
        ("trtlm-serve m", "did you mean trtllm-serve?"),
    ],
)
def test_a_misspelt_program_is_named(words: str, hint: str) -> None:
    result = ask("doctor", words, "--node", NODE)
    assert result.exit_code == 2 and f"hint: {hint}" in result.stderr


@pytest.mark.parametrize("more", [["--tensor-parallel-size", "2"], []])
def test_a_launch_without_quotes_is_told_from_a_wrong_option(more: list[str]) -> None:
    done = ask("doctor", "vllm", "serve", "org/model", *more, "--node", NODE)
    assert done.exit_code == 2
    assert done.stderr.startswith('error: the launch needs quotes around it: perfmodel doctor "vllm serve ..." --node')
    assert "no such option --nod" in ask("doctor", "vllm serve org/model", "--nod", NODE).stderr


def test_a_benchmark_in_another_unit_is_told_from_a_slow_run(tmp_path: Path) -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, tp=8, context=32768, memory_fraction=0.94)
    rates = pm.predict(d, concurrency=[1, 8, 32]).output_tok_s[0]
    for share, says in ((1 / 8, "tokens/s of one GPU in place of all 8"), (0.5, "")):
        file = tmp_path / "seen.csv"
        rows = [f"{c},{share * rate:.6g},1024,1024" for c, rate in zip((1, 8, 32), rates, strict=True)]
        file.write_text("\n".join(["concurrency,output_tok_s,input_tokens,output_tokens", *rows]) + "\n")
        done = ask("doctor", TP8, "--node", NODE, "--benchmark", str(file))
        assert done.exit_code == 0, both(done)
        assert ("probably" in done.stderr or "that is about what" in done.stderr) == bool(says)
        assert says in done.stderr
        assert "output tok/s at C=8: predicted " in done.stdout and "times that" in done.stdout
