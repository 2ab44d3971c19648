"""The command line: what it prints, what it refuses, and with which exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import FITS, MODEL, NODE, WHAT, ask, both, command_line, descriptor, width

import perfmodel as pm
from perfmodel.cli import docs, main
from perfmodel.cli.compare import default_strategies
from perfmodel.cli.options import KEYWORDS, strategy
from perfmodel.deployment.deploy import KEYWORDS as OF_DEPLOY
from perfmodel.errors import PerfModelError

ROOT = click.Context(main, info_name="perfmodel", terminal_width=80, **main.context_settings)
CONTEXTS = list(docs.commands(main, ROOT))


# ---------------------------------------------------------------- answers


def test_memory_answers_yes_with_exit_code_0() -> None:
    result = ask("memory", *WHAT, *FITS)
    assert result.exit_code == 0, both(result)
    assert result.stdout.startswith(f"Fits: {MODEL}, PP8 on 8 of 8 GPUs of {NODE}, vllm ")
    assert len(re.findall(r"^\d +\d +[78] ", result.stdout, re.M)) == 8  # a row a stage
    assert result.stdout.count("<- binds") == 1
    assert "assumptions:\n  - " in result.stdout


def test_memory_answers_no_with_exit_code_1_and_hints() -> None:
    result = ask("memory", "--model", MODEL, "--node", "6x-rtx-pro-6000-server", "--engine", "sglang", "--pp", "6")
    assert result.exit_code == 1
    assert result.stdout.startswith("Does not fit (")
    assert re.search(r"^hint: .+ fits, with [\d,]+ KV tokens$", result.stderr, re.M)


def test_what_a_rank_holds_adds_up_to_its_card() -> None:
    text = ask("memory", *WHAT, *FITS).stdout
    block = text[text.index(" holds:") :].split("\n\n")[0].splitlines()[3:]
    sizes = [float(re.split(r"  +", line)[1].replace(",", "")) for line in block]
    assert sum(sizes[:-1]) == pytest.approx(sizes[-1], abs=0.005 * len(sizes), rel=0)


def test_predict_shows_a_row_a_concurrency_and_what_binds() -> None:
    result = ask("predict", *WHAT, *FITS, "--concurrency", "1,8", "--output-tokens", "uniform:800:1000")
    assert result.exit_code == 0, both(result)
    rows = re.findall(
        r"^ *(\d+) +\d+ +[\d.,]+ +[\d.,]+-[\d.,]+ .+ (memory|compute|host|communication)$", result.stdout, re.M
    )
    assert [c for c, _ in rows] == ["1", "8"]
    assert "1024 tokens in, 900 out" in result.stdout


def test_predict_answers_what_does_not_fit_with_a_warning() -> None:
    result = ask("predict", *WHAT, "--tp", "8", "--concurrency", "1")
    assert result.exit_code == 0
    assert "warning: memory says no" in result.stderr
    assert "warning" not in result.stdout


def test_compare_lists_every_strategy_best_first() -> None:
    result = ask(
        "compare", *WHAT, "--context", "32768", "--strategy", "tp=8", "--strategy", "pp=8", "--concurrency", "1,8"
    )
    assert result.exit_code == 0, both(result)
    rows = re.findall(r"^(TP8|PP8) +([\d.,]+) +([\d.,]+)$", result.stdout, re.M)
    assert {name for name, _, _ in rows} == {"TP8", "PP8"}
    at_8 = [float(tok_s.replace(",", "")) for _, _, tok_s in rows]
    assert at_8 == sorted(at_8, reverse=True)


def test_compare_goes_on_without_what_the_engine_refuses() -> None:
    result = ask("compare", *WHAT, "--strategy", "tp=3", "--strategy", "tp=8", "--concurrency", "1", "--json")
    assert result.exit_code == 0
    assert [answer["strategy"] for answer in json.loads(result.stdout)] == ["TP8"]
    assert result.stderr.startswith("refused: tp=3: vLLM does not pad attention heads")


def test_compare_fails_when_all_are_refused() -> None:
    result = ask("compare", *WHAT, "--strategy", "tp=3", "--strategy", "tp=5")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no strategy can run\nhint: --strategy \"tp=3\": vLLM does not pad")


def test_compare_without_strategies_tries_the_usual_ones() -> None:
    result = ask("compare", *WHAT, "--engine", "sglang", "--memory-fraction", "0.9", "--concurrency", "8", "--json")
    assert {answer["strategy"] for answer in json.loads(result.stdout)} == {
        "TP8", "TP8+EP8", "TP8+EP4", "PP8", "TP2xPP4", "TP4xPP2", "DPA8+EP8", "DPA8",
    }  # fmt: skip


def test_compare_tries_copies_that_fit_and_says_nothing_of_what_nobody_asked_for() -> None:
    words = ["compare", "--node", "8x-h100-sxm", "--context", "8192", "--concurrency", "8", "--json"]
    small = ask(*words, "--model", "llama-3.1-8b", "--engine", "sglang")
    found = {answer["strategy"]: answer["fits"] for answer in json.loads(small.stdout)}
    assert {"TP4 x2", "TP1 x8", "DPA8"} <= set(found) and all(found.values())
    assert "refused" not in small.stderr and "ep=8" not in small.stderr
    large = ask(*words, "--model", "llama-3.1-405b", "--quantization", "fp8")
    assert not {"TP4 x2", "TP1 x8"} & {answer["strategy"] for answer in json.loads(large.stdout)}
    asked = ask(*words, "--model", "llama-3.1-8b", "--strategy", "tp=8,ep=8", "--strategy", "tp=8")
    assert "refused: tp=8,ep=8: ep=8 on a dense model" in asked.stderr


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8, 16])
def test_default_strategies_use_all_gpus_once(gpus: int) -> None:
    ways = [ways for _, ways in default_strategies(gpus)]
    assert all(way.get("tp", 1) * way.get("pp", 1) * way.get("dp", 1) == gpus for way in ways)
    assert len({tuple(sorted(way.items())) for way in ways}) == len(ways)
    assert all(strategy(text) == way for text, way in default_strategies(gpus))


def test_step_rows_add_up() -> None:
    answer = json.loads(ask("step", *WHAT, "--tp", "8", "--batch", "8", "--json").stdout)
    assert sum(row["seconds"] for row in answer["rows"]) == pytest.approx(answer["seconds"], rel=1e-9, abs=0)
    assert "bound by" in ask("prefill", *WHAT, "--tp", "8").stdout


# ---------------------------------------------------------------- JSON is to_dict


def deployment(**keywords: Any) -> Any:
    return pm.deploy(MODEL, node=NODE, **keywords)


SIZES = [14336.0, 2.0**20]
JSON_CASES: list[tuple[list[str], Any]] = [
    (["memory", *WHAT, *FITS], lambda: pm.memory(deployment(pp=8, context=32768))),
    (["predict", *WHAT, *FITS, "--concurrency", "1,8"],
     lambda: pm.predict(deployment(pp=8, context=32768), concurrency=[1, 8])),
    (["compare", *WHAT, "--strategy", "tp=8", "--strategy", "pp=8,cuda-graphs=off", "--concurrency", "1,8"],
     lambda: pm.compare([deployment(tp=8), deployment(pp=8, cuda_graphs=False)], concurrency=[1, 8])),
    (["step", *WHAT, "--tp", "8", "--no-cuda-graphs", "--batch", "1,8"],
     lambda: pm.step(deployment(tp=8, cuda_graphs=False), batch=[1, 8], context=1024)),
    (["prefill", *WHAT, "--tp", "8", "--tokens", "8192"], lambda: pm.prefill(deployment(tp=8), tokens=8192)),
    (["collective", "all_reduce", "--node", NODE, "--message-bytes", "14336,1 MiB"],
     lambda: pm.collective("all_reduce", node=NODE, message_bytes=SIZES)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "answer"), JSON_CASES, ids=lambda case: case[0] if isinstance(case, list) else "")
def test_json_is_to_dict(words: list[str], answer: Any) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    result = ask(*words, "--json")
    assert result.exit_code == 0, both(result)
    assert json.loads(result.stdout, parse_constant=refuse) == json.loads(json.dumps(answer().to_dict()))


def test_catalog_lists_and_shows() -> None:
    known = json.loads(ask("catalog", "--json").stdout)
    assert MODEL in known["models"] and NODE in known["nodes"] and {"vllm", "sglang"} <= set(known["engines"])
    assert MODEL in ask("catalog").stdout
    shown = json.loads(ask("catalog", "show", "rtx-pro-6000-server", "--json").stdout)
    assert shown["memory"]["bandwidth"]["value"] == pm.load_accelerator("rtx-pro-6000-server").memory.bandwidth.value
    assert re.search(r"memory.bandwidth +1.6 TB/s  \[datasheet, |memory.bandwidth +[\d.]+ TB/s  \[",
                     ask("catalog", "show", "rtx-pro-6000-server").stdout)  # fmt: skip


@pytest.mark.parametrize("kind", ["models", "nodes", "accelerators", "engines", "calibrations"])
def test_everything_in_the_catalog_can_be_shown(kind: str) -> None:
    names = json.loads(ask("catalog", "--json").stdout)[kind]
    assert names
    for name in names:
        result = ask("catalog", "show", name, "--kind", kind.removesuffix("s"))
        assert result.exit_code == 0, both(result)
        assert name in result.stdout
        assert width(result.stdout) <= 80


# ---------------------------------------------------------------- flags and help


def test_every_keyword_of_deploy_is_a_flag() -> None:
    assert set(KEYWORDS) == {*OF_DEPLOY, "calibration"}
    words = {word for option in main.get_command(ROOT, "memory").params for word in option.opts}  # type: ignore[union-attr]
    assert {f"--{name.replace('_', '-')}" for name in KEYWORDS} | {"--model", "--node", "--engine"} <= words


def test_flags_arrive_as_keywords() -> None:
    words = "--tp 1 --pp 8 --layers-per-stage 7,7,7,8,8,8,8,8 --no-cuda-graphs --patches pp,x --patches y"
    words += " --memory-fraction 0.9 --kv-offload '64 GiB' --power-limit 450 --prompts identical"
    words += " --kv-dtype fp8 --context 32768"
    result = ask("memory", *WHAT, "--engine", "sglang==0.5.10", *shlex.split(words), "--json")
    assert result.exit_code in (0, 1), both(result)
    answer = json.loads(result.stdout)["deployment"]
    assert answer["engine"] == "sglang==0.5.10"
    expected = {
        "pp": 8, "layers_per_stage": [7, 7, 7, 8, 8, 8, 8, 8], "cuda_graphs": False, "patches": ["pp", "x", "y"],
        "memory_fraction": 0.9, "kv_offload": 64 * 2.0**30, "power_limit": 450.0, "prompts": "identical",
        "kv_dtype": "fp8", "context": 32768,
    }  # fmt: skip
    given = {name: answer["options"][name] for name in expected}
    assert {**given, "kv_dtype": given["kv_dtype"][:3]} == expected


# A GPU, a checkpoint, or a browser: the flags of their examples are checked, not the answers.
NEEDS_A_GPU = {"probe", "import", "ui"}
TAKES_A_MINUTE = {("validate", what) for what in ("speed", "serving", "own", "e2e")}  # run for the pages of docs/


def flags_of(command: click.Command) -> set[str]:
    return {word for option in command.params for word in (*option.opts, *option.secondary_opts)}


def path_of(context: click.Context) -> str:
    return context.command_path


@pytest.mark.parametrize("context", CONTEXTS, ids=path_of)
def test_help_has_examples_that_work(context: click.Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.csv").write_text("concurrency,output_tok_s\n1,80\n8,300\n32,700\n")
    (tmp_path / "progress.json").write_text('{"samples_done": 900, "seconds": 2400}')
    (tmp_path / "mooncake_trace.jsonl").write_text(
        "".join(f'{{"timestamp": {300 * n}, "input_length": 900, "output_length": 90, "hash_ids": [{n}, 1]}}\n'
                for n in range(40)))
    (tmp_path / "launch_commands.csv").write_text("command\nvllm serve Qwen/Qwen3-8B --max-model-len 8192\n")
    text = context.get_help()
    assert width(text) <= 80
    lines = text[text.index("Examples:") :].replace("\\\n", " ").splitlines()[1:]
    calls = [shlex.split(line) for line in lines if line.strip()]
    assert len(calls) >= 2
    for call in calls:
        assert call[0] == "perfmodel"
        if call[1] in NEEDS_A_GPU or tuple(call[1:3]) in TAKES_A_MINUTE:
            assert {word for word in call if word.startswith("--")} <= flags_of(context.command)
            continue
        result = ask(*call[1:])
        assert result.exit_code in (0, 1), f"{call}: {both(result)}"
        assert width(result.stdout) <= 80 or "--json" in call
        if "--plot" in call:
            assert (tmp_path / call[call.index("--plot") + 1]).stat().st_size > 1000


@pytest.mark.parametrize("context", CONTEXTS, ids=path_of)
def test_every_command_has_json(context: click.Context) -> None:
    assert "--json" in flags_of(context.command) or context.info_name == "ui"  # a page has no answer of its own


def test_alone_it_says_what_to_ask_first() -> None:
    result = ask()
    assert result.exit_code == 0
    assert "perfmodel memory" in result.stdout
    assert width(result.stdout) <= 80
    assert ask("-V").stdout == ask("--version").stdout == f"perfmodel {pm.__version__}\n"
    assert ask("-h").stdout == ask("--help").stdout


def test_docs_are_current() -> None:
    file = Path(__file__).parents[1] / "docs" / "cli.md"
    if not file.is_file():
        pytest.skip("the wheel has no documents")
    assert file.read_text() == docs.page(), "python -m perfmodel.cli.docs docs/cli.md"


# ---------------------------------------------------------------- as a process


WIDE = [
    ["memory", *WHAT, "--tp", "8"],
    ["predict", *WHAT, *FITS, "--concurrency", "1,2,4,8,16,32,64,128,256,512,1000"],
    [
        "compare",
        *WHAT,
        "--engine",
        "sglang",
        "--memory-fraction",
        "0.9",
        "--concurrency",
        "1,2,4,8,16,32,64,128,256,512",
    ],
    ["step", *WHAT, "--tp", "8", "--batch", "1,8,32,64,128,256", "--cached-tokens", "1,2,3,4,5,60000"],
    ["prefill", *WHAT, *FITS, "--tokens", "8192"],
    ["collective", "all_reduce", "--node", NODE, "--message-bytes", "8,1000,4 GiB"],
]


@pytest.mark.parametrize("words", WIDE, ids=lambda words: words[0])
def test_tables_fit_80_columns_and_are_plain(words: list[str]) -> None:
    result = ask(*words)
    assert result.exit_code in (0, 1)
    assert width(result.stdout) <= 80
    assert result.stdout.isascii() and "\x1b" not in both(result)
    assert not re.search(r"\bnan\b|\binf\b", result.stdout)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}])
def test_a_pipe_gets_plain_text_from_any_directory(environment: dict[str, str], tmp_path: Path) -> None:
    run = command_line("memory", *WHAT, *FITS, PWD=str(tmp_path), **environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Fits: ") and "\x1b" not in run.stdout + run.stderr


def test_a_node_and_a_model_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(descriptor("node", NODE))
    (tmp_path / "model.yaml").write_text(descriptor("model", MODEL))
    run = command_line("memory", "--model", "model.yaml", "--node", "./mine.yaml", *FITS, "--json", PWD=str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["fits"] is True


def test_exit_codes_of_processes() -> None:
    assert command_line("memory", *WHAT, "--tp", "1").returncode == 1
    wrong = command_line("memory", *WHAT, "--tpp", "8")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    known = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1])}
    read, write = os.pipe()
    os.close(read)  # nobody will read
    call = [sys.executable, "-m", "perfmodel", "memory", *WHAT, *FITS, "--json"]
    run = subprocess.run(call, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, env=known)
    os.close(write)
    assert run.stderr == ""
    assert run.returncode == 141


SLEEPS = """
import sys, time
import perfmodel.deployment
def asleep(*_, **__):
    print("asleep", flush=True)
    time.sleep(60)
perfmodel.deployment.deploy = asleep
from perfmodel.cli import main
main(["memory", "--model", "a", "--node", "b"])
"""


def test_an_interrupt_is_quiet() -> None:
    known = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=known) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "asleep\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().strip() == ""


def test_completion_knows_the_names() -> None:
    run = command_line(_PERFMODEL_COMPLETE="bash_complete", COMP_WORDS="perfmodel memory --model ki", COMP_CWORD="3")
    assert MODEL in run.stdout


def test_plain_calls_still_raise() -> None:
    with pytest.raises(PerfModelError):
        main(["memory", *WHAT, "--tp", "3"], standalone_mode=False)
