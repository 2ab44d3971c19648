"""`doctor`: launch lines of the wild read or named, costs that are the model's own, and runs beside predictions."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import NODE, ask, both, width
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.engines.flag_versions import TABLES, flag_warnings
from perfmodel.errors import BadInput, PerfModelError, UnknownName
from perfmodel.insight.doctor import Doctor, Finding, flag_change
from perfmodel.insight.findings import balanced
from perfmodel.insight.launch import MOST_CHARACTERS, NotACommand, read_launch
from perfmodel.insight.launch_files import launch_of
from perfmodel.insight.reality import decode_points, read_benchmark, read_metrics

COMMANDS = list(csv.DictReader((Path(__file__).parent / "tables" / "launch_commands.csv").read_text().splitlines()))
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


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("row", COMMANDS, ids=range(len(COMMANDS)))
def test_every_launch_line_parses_and_every_other_text_is_named(row: dict[str, str]) -> None:
    if row["starts"] == "no":
        with pytest.raises(NotACommand, match="not a command that starts a server"):
            read_launch(row["command"])
        return
    launch = read_launch(row["command"])
    assert launch.engine == row["starts"]
    assert launch.model or "<" in row["command"] or "--model" not in row["command"]
    assert set(launch.unknown) <= {"(VLLM_PLE_CPU_OFFLOAD=1)", "MXFP8>", "<MiniMax-M3"}  # remarks, not flags


def test_the_table_of_launch_lines_is_not_empty() -> None:
    starts = [row["starts"] for row in COMMANDS]
    assert len(set(row["command"] for row in COMMANDS)) == len(COMMANDS) > 100
    assert set(starts) == {"vllm", "sglang", "no"}
    assert all(row["source"].startswith("https://") for row in COMMANDS)


@pytest.mark.parametrize(
    ("text", "engine", "model", "keywords"),
    [
        ("vllm serve m -tp=4 --max_model_len 32k", "vllm", "m", {"tp": 4, "context": 32000}),
        ("vllm serve m --max-model-len auto -O0", "vllm", "m", {"cuda_graphs": False}),
        ("vllm serve m -cc.cudagraph_mode=NONE", "vllm", "m", {"cuda_graphs": False}),
        ('vllm serve m -cc \'{"cudagraph_mode": "NONE"}\' -O3', "vllm", "m", {"cuda_graphs": False}),
        ("vllm serve m --cuda-graph-sizes 1 2 16 8 -tp 2", "vllm", "m", {"max_graph_batch": 16, "tp": 2}),
        ("vllm serve m --speculative-config {method: mtp, num_speculative_tokens: 3}", "vllm", "m",
         {"speculative": "mtp:3"}),
        ("/opt/bin/vllm serve m 2>&1 | tee log", "vllm", "m", {}),
        ("nohup python3 -m vllm.entrypoints.openai.api_server --model m -pp 2 &", "vllm", "m", {"pp": 2}),
        ("bash -c 'pip list && exec vllm serve m -tp 2'", "vllm", "m", {"tp": 2}),
        ("docker run --gpus all -e NCCL_P2P_DISABLE=1 -p 1:1 vllm/vllm-openai:v0.11.0 --model m -tp 8", "vllm", "m",
         {"tp": 8, "nccl": "NCCL_P2P_DISABLE=1"}),
        ("VLLM_PP_LAYER_PARTITION=30,31 vllm serve m -pp 2", "vllm", "m", {"pp": 2, "layers_per_stage": (30, 31)}),
        ("M=org/m; python -m sglang.launch_server --model-path ${M2:-x} --tp 8", "sglang", "x", {"tp": 8}),
        ("python -m sglang.launch_server --model m --tp 8 --dp 8 --enable-dp-attention", "sglang", "m",
         {"tp": 8, "dp_attention": 8}),
        ("python -m sglang.launch_server --model m --chunked-prefill-size -1", "sglang", "m", {"prefill_chunk": 16384}),
        ("python -m sglang.launch_server --model m \\\n  --pp-size 8 \\\n  --disable-cuda-graph", "sglang", "m",
         {"pp": 8, "cuda_graphs": False}),
        ("trtllm-serve m --tp_size 8 --ep-size 8", "tensorrt-llm", "m", {"tp": 8, "ep": 8}),
    ],
)  # fmt: skip
def test_spellings(text: str, engine: str, model: str, keywords: dict[str, Any]) -> None:
    launch = read_launch(text)
    assert (launch.engine, launch.model, launch.keywords, launch.unknown) == (engine, model, keywords, ())


def test_an_ambiguous_prefix_and_a_stray_word_are_named() -> None:
    launch = read_launch("python -m sglang.launch_server --model-path m --pp 8 stray --no-such 1")
    assert launch.unknown == ("--pp", "--no-such", "stray")


def test_what_is_known_but_not_followed_is_said() -> None:
    launch = read_launch("VLLM_FOO=1 NCCL_BUFFSIZE=4 vllm serve m --cpu-offload-gb 10")
    assert [note.partition(":")[0] for note in launch.notes] == [
        "--cpu-offload-gb", "environment VLLM_FOO='1'", "environment NCCL_BUFFSIZE='4'"]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "version", "flag", "said"),
    [
        ("sglang", "0.5.23", "--cuda-graph-max-bs", "removed in sglang 0.5.20"),
        ("sglang", "0.5.18", "--cuda-graph-max-bs", "deprecated since sglang 0.5.15"),
        ("sglang", "0.5.6", "--pp-async-batch-depth", "not in sglang 0.5.6, since 0.5.9"),
        ("vllm", "0.11.0", "--attention_backend=X", "not in vllm 0.11.0, since 0.13"),
    ],
)
def test_flags_by_version(engine: str, version: str, flag: str, said: str) -> None:
    (warning,) = flag_warnings(engine, version, [flag, "1"])
    assert said in warning


@pytest.mark.parametrize(("engine", "flag"), [(e, f) for e, table in TABLES.items() for f in table])
def test_every_flag_with_a_life_is_one_that_the_reader_knows(engine: str, flag: str) -> None:
    program = "vllm serve m" if engine == "vllm" else "python -m sglang.launch_server --model-path m"
    value = "" if flag.startswith(("--enable-", "--disable-", "--async", "--calculate", "--stream-o")) else " 1"
    assert read_launch(f"{program} {flag}{value}").unknown == ()


UNIT = "[Service]\nEnvironment=NCCL_P2P_LEVEL=SYS M=org/m\nExecStart=/usr/bin/vllm serve ${M} \\\n  -tp 8\n"
COMPOSE = """services:
  web: {image: nginx, command: nginx}
  llm:
    image: vllm/vllm-openai:v0.19.1
    command: --model org/m --tensor-parallel-size 8
    environment: [NCCL_P2P_LEVEL=SYS]
"""
MANIFEST = """kind: Service
---
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: server
          image: vllm/vllm-openai:v0.19.1
          env: [{name: NCCL_P2P_LEVEL, value: SYS}]
          command: [vllm, serve, org/m]
          args: [--tensor-parallel-size, "8"]
"""
SCRIPT = "#!/bin/bash\nexport NCCL_P2P_LEVEL=SYS\n# vllm serve other\nvllm serve org/m \\\n  -tp 8\n"


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [("a.service", UNIT, ""), ("b.yaml", COMPOSE, "0.19.1"), ("c.yml", MANIFEST, "0.19.1"), ("d.sh", SCRIPT, "")],
)
def test_files_that_hold_a_launch(tmp_path: Path, name: str, text: str, version: str) -> None:
    (tmp_path / name).write_text(text)
    launch, where = launch_of(str(tmp_path / name))
    assert (launch.model, launch.keywords, launch.version) == (
        "org/m", {"tp": 8, "nccl": "NCCL_P2P_LEVEL=SYS"}, version)  # fmt: skip
    assert where.startswith(name)


@pytest.mark.parametrize(
    "text",
    ["a: &x 1\nb: *x\n", "a: !!python/object/apply:os.system [id]\n", "services: {a: {command: nginx}}\n", "[1, 2]\n"],
)
def test_a_hostile_or_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(PerfModelError):
        launch_of(str(tmp_path / "f.yaml"))


def test_size_is_bounded_and_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="longer than"):
        read_launch("vllm serve m " + "x" * MOST_CHARACTERS)
    mark = tmp_path / "mark"
    launch = read_launch(f"vllm serve m --served-model-name $(touch {mark}) `touch {mark}`; touch {mark}")
    assert launch.model == "m" and not mark.exists()
    with pytest.raises(BadInput, match="no such file"):
        launch_of("missing.yaml")


@settings(max_examples=150)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=80))
def test_any_text_behind_a_program_parses_or_is_refused(text: str) -> None:
    try:
        launch = read_launch("vllm serve m " + text)
    except PerfModelError:
        return
    assert launch.engine == "vllm"


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
    worth = [share if share >= 0.01 else 0.0 for share in shares]
    assert worth == sorted(worth, reverse=True)


def test_balanced_stages_carry_less() -> None:
    layers, weights = [7, 7, 7, 8, 8, 8, 8, 8], [62.0, 68.7, 68.7, 78.5, 78.5, 78.5, 78.5, 81.0]
    split = balanced(layers, weights)
    assert sum(split) == 61 and split[-1] <= split[1]


def test_flag_change_in_words() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, cuda_graphs=False)
    e = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, kv_dtype="fp8")
    assert flag_change(d, e) == "set --kv-cache-dtype fp8; remove --disable-cuda-graph"
    assert flag_change(d, d) == "no flag says this"


@pytest.mark.parametrize(
    ("command", "error"),
    [("rm -rf /", NotACommand), ("vllm serve no/such-model-at-all", UnknownName), ("vllm serve", BadInput),
     ("vllm serve 'm", BadInput)],
)  # fmt: skip
def test_refusals(command: str, error: type[PerfModelError]) -> None:
    with pytest.raises(error):
        pm.doctor(command, node=NODE)


# ---------------------------------------------------------------- what a run shows


def points(*pairs: tuple[float, float]) -> str:
    return "\n".join(
        json.dumps({"completed": c, "max_concurrency": c, "output_throughput": rate, "total_input_tokens": 1024 * c,
                    "total_output_tokens": 1024 * c})
        for c, rate in pairs
    )  # fmt: skip


def test_a_setting_that_differs_is_found(tmp_path: Path, case: Doctor) -> None:
    """A run whose slots were filled evenly, made by the model itself, is recognised."""
    even = pm.predict(case.deployment, concurrency=[4, 8, 16], arrival="staggered").output_tok_s[0]
    file = tmp_path / "bench.jsonl"
    file.write_text(points(*zip((4, 8, 16), map(float, even), strict=True)))
    answer = pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS, benchmark=str(file))
    best = answer.differences[0].alternatives[0]
    assert best.name == "slots filled staggered rather than burst"
    assert best.error_after < 1e-6 < best.error_before


def test_a_factor_that_differs_is_found(tmp_path: Path) -> None:
    from perfmodel.insight.variants import with_factors

    d = pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS).deployment
    value = d.calibration.parameters["eager_kernel_s"].value
    slow = pm.predict(with_factors(d, {"eager_kernel_s": 1.5 * value}), concurrency=[1, 4, 8]).output_tok_s[0]
    file = tmp_path / "bench.jsonl"
    file.write_text(points(*zip((1, 4, 8), map(float, slow), strict=True)))
    answer = pm.doctor(CASE, node=NODE, engine="sglang==0.5.10", concurrency=LOADS, benchmark=str(file))
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
    log = "\n".join([f"{line}{rate}, #queue-req: 0" for rate in (90.0, 95.0, 100.0)])
    log += "\nEngine 000: Avg generation throughput: 50.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs"
    (point,) = decode_points(log)  # a load seen once or twice is no point
    assert (point.concurrency, point.tok_s) == (8, 95)
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\nvllm:num_requests_running{m="x"} 4\n'
    text += "vllm:inter_token_latency_seconds_sum 10\nvllm:inter_token_latency_seconds_count 500\n"
    tokens, (point,) = read_metrics(text)
    assert (tokens, point.concurrency, point.tok_s) == (16000, 4, 200)
    tokens, found = read_metrics("sglang:max_total_num_tokens 5\nsglang:num_running_reqs 2\nsglang:gen_throughput 30\n")
    assert (tokens, found[0].tok_s) == (5, 30)


@pytest.mark.parametrize("text", ["", "{}", "[" * 5000, '{"completed": 0, "output_throughput": 1}', "not json"])
def test_a_broken_benchmark_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_benchmark(text)


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
    assert "not understood: --no-such-flag" in result.stderr
    assert json.loads(result.stdout)[0]["unknown_flags"] == ["--no-such-flag"]
    refused = ask("doctor", "ls -l", "--node", NODE)
    assert refused.exit_code == 2 and "not a command that starts a server" in refused.stderr
