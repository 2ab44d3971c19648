"""What a newcomer stumbled over: idle GPUs, brief answers, versions, options given twice, units, what does not fit."""

import json
import re
from pathlib import Path

import pytest
from command_line import WHAT, ask, both

SMALL = ["--model", "llama-3.1-8b", "--node", "8x-h100-sxm"]


@pytest.mark.parametrize("command", ["memory", "predict", "simulate"])
def test_idle_gpus_are_a_warning_and_not_only_an_assumption(command: str) -> None:
    more = ["--requests", "10"] if command == "simulate" else []
    result = ask(command, *SMALL, *more, "--json")
    (idle,) = [line for line in json.loads(result.stdout)["warnings"] if "idle" in line]
    assert idle.startswith("7 of the 8 GPUs of 8x-h100-sxm are idle: TP1 uses 1")
    assert f"warning: {idle}" in result.stderr.splitlines()
    full = ask(command, *SMALL, *more, "--tp", "8", "--json")
    assert "idle" not in full.stderr and not any("idle" in line for line in json.loads(full.stdout)["warnings"])


@pytest.mark.parametrize(
    ("words", "kept", "left"),
    [
        (["memory", *SMALL, "--tp", "8"], "KV cache:", "rank 0 holds"),
        (["predict", *SMALL, "--tp", "8"], "TTFT, ms", "TPOT by what"),
        (["compare", *SMALL, "--strategy", "tp=8", "--strategy", "pp=8"], "KV tokens", "assumptions of some"),
        (["job", *SMALL, "--tp", "8", "--samples", "100000"], "GPU-hours", "energy: that of"),
        (["job", *SMALL, "--samples", "100000", "--strategy", "tp=8", "--strategy", "pp=8"], "GPU-hours", "phases"),
        (["whatif", *SMALL, "--tp", "8", "--change", "lost=1"], "lost=1", "lost=1 ("),
        (["simulate", *SMALL, "--tp", "8", "--requests", "20"], "TTFT, ms", "TTFT at the client"),
        (["plan", "--model", "llama-3.1-8b", "--node", "2x-h100-sxm", "--concurrency", "64"], "strategy", "Pareto"),
    ],
    ids=["memory", "predict", "compare", "job", "jobs", "whatif", "simulate", "plan"],
)  # fmt: skip
def test_brief_is_the_beginning_of_the_answer_without_assumptions(words: list[str], kept: str, left: str) -> None:
    whole, brief = ask(*words), ask(*words, "--brief")
    assert whole.exit_code == brief.exit_code == 0, both(brief)
    assert whole.stdout.startswith(brief.stdout.rstrip("\n"))
    assert kept in brief.stdout and left in whole.stdout
    assert left not in brief.stdout and "assumptions" not in brief.stdout and "launch" not in brief.stdout


def test_simulate_fills_the_slots_of_a_pipeline_as_it_is_told() -> None:
    words = ["simulate", *WHAT, "--engine", "sglang", "--pp", "8", "--memory-fraction", "0.92", "--requests", "24",
             "--concurrency", "8", "--output-tokens", "64", "--json"]  # fmt: skip
    burst, spread = (json.loads(ask(*words, "--arrival", way).stdout) for way in ("burst", "staggered"))
    assert spread["output_tok_s"] > 1.2 * burst["output_tok_s"]


def test_a_folder_without_a_slash_is_told_from_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    words = ["memory", "--node", "1x-h100-sxm", "--model"]
    assert "hint: a path has a slash in it: ./my-model" in ask(*words, "my-model").stderr
    assert "slash" not in ask(*words, "my-other").stderr


def test_one_gpu_is_not_over_gpus() -> None:
    text = ask("memory", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm").stdout
    assert "(15.0 GiB) on 1 GPU\n" in text and "1 GPUs\n" not in text


def test_the_request_rate_stands_with_the_workload_in_help() -> None:
    text = ask("predict", "--help").stdout
    workload = text[text.index("Workload:"):]
    assert "--request-rate" in workload[:workload.index("\n\n")]


@pytest.mark.parametrize("command", ["memory", "predict", "compare"])
def test_the_rules_of_another_version_are_said_even_in_brief(command: str) -> None:
    words = [command, "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--brief"]
    done = ask(*words, "--engine", "vllm==0.9.1")
    assert "warning: vllm 0.9.1 is not one of the versions read; the rules of 0.8.5 apply" in done.stderr
    assert "versions read" not in ask(*words, "--engine", "vllm==0.33.0").stderr
    assert "versions read" not in ask(*words).stderr


def test_an_option_given_twice_is_said_and_the_last_counts() -> None:
    words = ["memory", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--context", "8192", "--json"]
    done = ask(*words, "--node", "2x-h100-sxm", "--tp=1", "--tp", "2")
    assert json.loads(done.stdout)["deployment"]["node"] == "2x-h100-sxm"
    assert done.stderr.splitlines() == [
        "warning: --node is given more than once; the last one counts",
        "warning: --tp is given more than once; the last one counts",
    ]
    assert ask(*words, "--patches", "pp", "--patches", "pp").stderr == ""


@pytest.mark.parametrize(("word", "says"), [
    ("models", "perfmodel catalog --kind model lists them"), ("node", "perfmodel catalog --kind node lists them"),
    ("h200-sxm", "perfmodel catalog show h200-sxm says what it is"), ("shwo", "did you mean show"),
])
def test_catalog_tells_a_kind_or_a_name_from_a_slip(word: str, says: str) -> None:
    done = ask("catalog", word)
    assert done.exit_code == 2 and says in done.stderr


def test_a_unit_may_stand_close_to_its_number() -> None:
    words = ["collective", "all_reduce", "--node", "4x-h100-sxm", "--json", "--message-bytes"]
    assert ask(*words, "1MB").stdout == ask(*words, "1 MB").stdout != ""
    assert ask(*words, "1MX").exit_code == 2


def test_what_does_not_fit_is_marked_beside_its_speed() -> None:
    words = ["compare", *WHAT, "--strategy", "tp=8", "--strategy", "pp=8", "--concurrency", "8"]
    text = ask(*words).stdout
    assert re.search(r"^TP8 \* +[0-9.]+$", text, re.M) and re.search(r"^PP8 +[0-9.]+$", text, re.M)
    assert "* does not fit; speed as if it did" in text and "no: KV too small" in text
    assert "*" not in ask(*words, "--context", "32768").stdout


def test_small_slips_are_answered() -> None:
    run = ask("job", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--samples", "1000", "--deadline", "7")
    assert run.exit_code == 2 and "--deadline 7d" in both(run)
    line = "vllm serve meta-llama/Llama-3.1-8B --kv-cache-dtyp fp8 --data-parallel-address $HEAD_ADDR"
    run = ask("doctor", line, "--node", "1x-h100-sxm")
    assert "write --kv-cache-dtype in place of --kv-cache-dtyp" in both(run) and "'$HEAD_ADDR'" not in both(run)
    assert ask("explain", "TTFT", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm").exit_code == 0
    assert "and " in both(ask("predict", "--model", "llama-3.1-8b", "--node", "qqqqqqqq"))
    sglang = ask("plan", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--engine", "sglang", "--kv-dtype", "fp8")
    assert "--kv-cache-dtype fp8_e4m3" in both(sglang)
