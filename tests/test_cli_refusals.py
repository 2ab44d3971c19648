"""A question that is wrong gets one line, the nearest names, and exit code 2; only a bug gets a traceback."""

from pathlib import Path
from typing import Any

import pytest
from command_line import MODEL, NODE, WHAT, ask, both, descriptor

WRONG = [
    (["memory", "--model", "kimi-k2.7", "--node", NODE], "unknown model 'kimi-k2.7'; nearest: kimi-k2"),
    (["memory", "--model", MODEL, "--node", "8x-rtx-pro-600"], "unknown node '8x-rtx-pro-600'; nearest: 8x-rtx-pro"),
    (["memory", *WHAT, "--engine", "vlm"], "unknown engine 'vlm'; nearest: vllm"),
    (["memory", *WHAT, "--engine", "vllm==new"], "engine version 'new' is not a version"),
    (["memory", *WHAT, "--tpp", "8"], "no such option --tpp; did you mean --tp"),
    (["memory", *WHAT, "--kv-dtype", "fp9"], "unknown kv_dtype 'fp9'; nearest: fp8"),
    (["memory", *WHAT, "--prompts", "randm"], "unknown prompts 'randm'; nearest: random"),
    (["memory", *WHAT, "--tp", "3"], "vLLM does not pad attention heads: 64 heads over 3 ranks"),
    (["memory", *WHAT, "--tp", "8", "--pp", "2"], "dp 1 x pp 2 x tp 8 needs 16 GPUs; 8x-rtx-pro-6000-server has 8"),
    (["memory", *WHAT, "--tp", "-8"], "tp must be a whole number from 1, not -8"),
    (["memory", *WHAT, "--tp", "eight"], "tp must be a whole number, not 'eight'"),
    (["memory", *WHAT, "--memory-fraction", "-0.5"], "memory_fraction must lie above 0"),
    (["memory", *WHAT, "--layers-per-stage", "7,x"], "layers-per-stage must be a whole number, not 'x'"),
    (["memory", *WHAT, "--kv-offload", "64 GHz"], "kv-offload: '64 GHz' is in Hz; a quantity in B is needed"),
    (["memory", *WHAT, "--plot", "a.jpg"], "cannot draw a .jpg; known: .png, .svg, .pdf"),
    (["memory", *WHAT, "--plot", "no/such/folder/a.png"], "no/such/folder/a.png: there is no folder no/such/folder"),
    (["memory", *WHAT, "extra"], "got unexpected extra argument (extra)"),
    (["memory", "--node", NODE], "missing option '--model'"),
    (["memroy"], "no such command 'memroy'; did you mean memory"),
    (["catalog", "shw"], "no such command 'shw'; did you mean show"),
    (["catalog", "show", "kimi-k2.66"], "unknown name 'kimi-k2.66'; nearest: kimi-k2.6"),
    (["catalog", "--kind", "modle"], "unknown kind of descriptor 'modle'; nearest: model"),
    (["predict", *WHAT, "--tp", "8", "--concurrency", "1,x"], "concurrency must be numbers with commas between"),
    (["predict", *WHAT, "--tp", "8", "--concurrency", "-1"], "concurrency must lie between 1 and 1e7"),
    (["predict", *WHAT, "--tp", "8", "--output-tokens", "unifrom:1:2"], "'unifrom:1:2' is not a length"),
    (["predict", *WHAT, "--tp", "8", "--input-tokens", "-5"], "length must lie between 1 and 1e9 tokens"),
    (["predict", *WHAT, "--tp", "8", "--measured", "no.csv"], "no.csv: cannot be read, no such file or directory"),
    (["compare", *WHAT, "--tp", "8"], '--tp is part of a strategy; write it as --strategy "tp=..."'),
    (["compare", *WHAT, "--strategy", "tpp=8"], "unknown keyword in a strategy 'tpp'; nearest: tp"),
    (["compare", *WHAT, "--strategy", "tp8"], "strategy 'tp8': 'tp8' has no '='"),
    (["compare", *WHAT, "--strategy", "tp=8,tp=4"], "strategy 'tp=8,tp=4' says tp twice"),
    (["compare", *WHAT, "--strategy", "cuda_graphs=maybe"], "cuda-graphs must be on or off, not 'maybe'"),
    (["step", *WHAT, "--batch", "1,2", "--cached-tokens", "1,2,3"], "the lists must be of one length"),
    (["step", *WHAT, "--batch", "0"], "batch must be 1 or more and finite"),
    (["collective", "all_reduse", "--node", NODE], "unknown collective 'all_reduse'; nearest: all_reduce"),
    (["collective", "all_reduce", "--node", NODE, "--ranks", "9"], "ranks must lie between 1 and 8, not 9"),
    (["collective", "all_reduce", "--node", NODE, "--message-bytes", "-1"], "message_bytes must be positive"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_question_is_one_line_and_exit_code_2(words: list[str], says: str) -> None:
    result = ask(*words)
    assert result.exit_code == 2, both(result)
    assert result.stdout == ""
    first, *hints = result.stderr.splitlines()
    assert first.startswith(f"error: {says}")
    assert not first.endswith(".")
    assert all(hint.startswith("hint: ") for hint in hints)


NODE_FAULTS = [
    ("count: 8", "cuont: 8", "node.yaml: unknown key 'cuont'; did you mean 'count'"),
    (
        "value: 55.5 GB/s",
        "value: 55.5",
        "link_kinds.pcie5-x16.bandwidth.value - '55.5' is a bare number; a quantity in B/s",
    ),
    ("value: 55.5 GB/s", "value: 55.5 GB", "'55.5 GB' is in B; a quantity in B/s is needed"),
    ("count: 8", "count: -8", "count"),
]


@pytest.mark.parametrize(("old", "new", "says"), NODE_FAULTS, ids=[new for _, new, _ in NODE_FAULTS])
def test_a_faulty_yaml_is_said_with_its_place(old: str, new: str, says: str, tmp_path: Path) -> None:
    text = descriptor("node", NODE)
    assert old in text
    (tmp_path / "node.yaml").write_text(text.replace(old, new, 1))
    result = ask("memory", "--model", MODEL, "--node", str(tmp_path / "node.yaml"), "--tp", "8")
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("perfmodel.deployment.deploy", broken)
    result = ask("memory", *WHAT)
    assert isinstance(result.exception, ZeroDivisionError)


def test_infeasible_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfmodel.errors import Infeasible

    def no(*_: Any, **__: Any) -> None:
        raise Infeasible("nothing meets the target", hints=["ask for less"])

    monkeypatch.setattr("perfmodel.deployment.deploy", no)
    result = ask("memory", *WHAT)
    assert result.exit_code == 1
    assert result.stderr == "error: nothing meets the target\nhint: ask for less\n"


HINTED = [
    (["memory", "--model", MODEL, "--node", "h200"], "'h200' is an accelerator; a node says how many of them",
     "8x-h200-sxm, or any other number: 1x-h200-sxm, 4x-h200-sxm"),
    (["memory", *WHAT, "--tp", "3"], "vLLM does not pad attention heads", "--tp 1, 2, 4, 8 or 16"),
    (["predict", *WHAT, "--tp", "8", "--concurrency", "1-8"], "concurrency must be numbers with commas between them",
     "--concurrency 1,2,4,8"),
    (["predict", *WHAT, "--tp", "8", "--request-rate", "0.5 1"], "request_rate must be numbers with commas between",
     "--request-rate 0.5,1"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says", "hint"), HINTED, ids=[" ".join(words) for words, _, _ in HINTED])
def test_a_slip_is_answered_with_what_to_write(words: list[str], says: str, hint: str) -> None:
    result = ask(*words)
    assert result.exit_code == 2, both(result)
    first, *hints = result.stderr.splitlines()
    assert first.startswith(f"error: {says}") and hints == [f"hint: {hint}"]


@pytest.mark.parametrize(("header", "row", "column"), [
    ("arrival_s,input_tokens,output_tokens", "0,10,-5", "output_tokens"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00.0,x,7", "ContextTokens"),
])
def test_a_wrong_trace_names_its_column(header: str, row: str, column: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n{row}\n")
    result = ask("simulate", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--trace", str(tmp_path / "t.csv"))
    assert f"t.csv, row 1: {column} must be a whole number of tokens" in result.stderr


ENGINE_WORDS = [
    ("predict", "--tensor-parallel-size", "--tp"), ("memory", "-tp", "--tp"), ("predict", "--isl", "--input-tokens"),
    ("predict", "--max-model-len", "--context"), ("memory", "--mem-fraction-static", "--memory-fraction"),
    ("memory", "--enforce-eager", "--no-cuda-graphs"), ("predict", "--kv_cache_dtype", "--kv-dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "theirs", "ours"), ENGINE_WORDS)
def test_the_word_of_an_engine_is_answered_with_ours(command: str, theirs: str, ours: str) -> None:
    result = ask(command, *WHAT, theirs, "8")
    assert result.exit_code == 2 and f"; here it is {ours}\n" in result.stderr


@pytest.mark.parametrize("words", [["--context", "8k"], ["--input-tokens", "8k"], ["--output-tokens", "8K"]])
def test_a_k_could_be_either_and_both_are_offered(words: list[str]) -> None:
    result = ask("predict", *WHAT, "--tp", "8", *words)
    assert result.exit_code == 2 and "hint: write 8192 or 8000" in result.stderr


def test_a_result_file_is_no_table_of_points_and_where_it_goes_is_said(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text('{"backend": "vllm", "max_concurrency": 64, "output_throughput": 1560.4}')
    result = ask("predict", *WHAT, "--tp", "8", "--measured", str(file))
    assert result.exit_code == 2 and "a result file, and no CSV of points" in result.stderr
    assert "perfmodel doctor COMMAND --benchmark FILE" in result.stderr
