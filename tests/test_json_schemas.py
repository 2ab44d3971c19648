"""What ``--json`` prints is what its published schema says: every command is run."""

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import FITS, MODEL, NODE, WHAT, ask
from jsonschema import Draft202012Validator

from perfmodel.cli.group import COMMANDS
from perfmodel.cli.schemas import schema
from perfmodel.cli.schemas_more import PRINTED

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests" / "samples"
LLAMA = ["--model", "llama-3.1-8b", "--node", "1x-h100-sxm"]
SWEEP = "concurrency,output_tok_s,input_tokens,output_tokens\n1,91.4,1024,1024\n8,407,1024,1024\n64,1010,1024,1024\n"
CALLS: dict[str, list[list[str]]] = {
    "memory": [["memory", *WHAT, *FITS], ["memory", "--model", MODEL, "--node", "4x-rtx-pro-6000-server", "--pp", "4"]],
    "predict": [["predict", *WHAT, *FITS], ["predict", *LLAMA, "--request-rate", "1,2", "--ttft-limit", "500ms"]],
    "simulate": [["simulate", *LLAMA, "--requests", "30", "--concurrency", "4"],
                 ["simulate", *LLAMA, "--requests", "30", "--output-tokens", "1", "--ttft-limit", "10s"]],
    "compare": [["compare", *WHAT, "--context", "32768"]],
    "step": [["step", *WHAT, *FITS], ["step", *LLAMA, "--batch", "1"]],
    "prefill": [["prefill", *LLAMA], ["prefill", *WHAT, *FITS, "--tokens", "16,1024"]],
    "collective": [["collective", "all_reduce", "--node", NODE, "--all"],
                   ["collective", "send_recv", "--node", NODE, "--message-bytes", "1 MiB"]],
    "plan": [["plan", *WHAT, "--context", "32768", "--tp", "8"],
             ["plan", *WHAT, "--context", "32768", "--tp", "8", "--target", "time", "--samples", "90000"]],
    "job": [["job", *LLAMA, "--samples", "500"], ["job", *LLAMA, "--samples", "500", "--sensitivity"],
            ["job", *LLAMA, "--samples", "90000", "--deadline", "2h"],
            ["job", *LLAMA, "--samples", "9000", "--progress", "PROGRESS"],
            ["job", *WHAT, "--samples", "50000", "--context", "32768", "--strategy", "tp=8", "--strategy", "pp=8"]],
    "calibrate": [["calibrate", "SWEEP", *WHAT, "--tp", "8"]],
    "validate": [["validate", what] for what in ("case", "kernels", "memory", "order", "speculation")],
    "explain": [["explain", "tok_s", *WHAT, *FITS, "--against", "tp=8"], ["explain", "weights", *LLAMA]],
    "whatif": [["whatif", *LLAMA], ["whatif", *WHAT, "--tp", "8", "--change", "lost=1", "--change", "tp=3"]],
    "doctor": [["doctor", "vllm serve moonshotai/Kimi-K2.6 -tp 8 --enforce-eager", "--node", NODE],
               ["doctor", "vllm serve meta-llama/Llama-3.1-8B --no-such", "--node", "1x-h100-sxm",
                "--benchmark", "SWEEP"],
               ["doctor", "--texts", "TEXTS"]],
    "probe": [["probe", "--dry-run"]],
    "catalog": [["catalog"], ["catalog", "--kind", "engine"]],
    "catalog show": [["catalog", "show", name] for name in (NODE, "h200-sxm", MODEL, "vllm", "2x-dgx-h100")]
    + [["catalog", "show", "rtx-pro-6000-server", "--kind", "calibration"]],
    "import": [["import", "CONFIG"]],
    "report": [["report", *LLAMA, "--concurrency", "1,8", "--samples", "500"]],
}  # fmt: skip
# Fit again for a minute or more, so not run here; their types are made from the dataclasses that they print.
SLOW = ("calibrate --shipped", "validate own", "validate serving", "validate speed")
EACH = [(name, call) for name, calls in CALLS.items() for call in calls]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("json")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 1024,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    texts = {"SWEEP": ("sweep.csv", SWEEP), "TEXTS": ("launches.txt", "vllm serve a/b -tp 2\nnothing\n"),
             "PROGRESS": ("progress.json", json.dumps({"samples_done": 900, "seconds": 120})),
             "CONFIG": ("config.json", json.dumps(config))}  # fmt: skip
    for name, text in texts.values():
        (folder / name).write_text(text)
    return {word: str(folder / name) for word, (name, _) in texts.items()}


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema(name))


def said(call: list[str], files: dict[str, str]) -> Any:
    done = ask(*(files.get(word, word) for word in call), "--json")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize(("name", "call"), EACH, ids=[" ".join(call[:3])[:60] for _, call in EACH])
def test_a_command_prints_what_its_schema_says(name: str, call: list[str], files: dict[str, str]) -> None:
    answer = said(call, files)
    errors = [f"{list(e.absolute_path)}: {e.message[:300]}" for e in validator(name).iter_errors(answer)]
    assert not errors, errors[:3]
    answer = short(answer)
    assert not validator(name).is_valid(changed(answer, lambda entry: entry.update(no_such_key=1)))
    first = answer[0] if isinstance(answer, list) else answer
    less = {key: changed(answer, lambda entry, key=key: entry.pop(key)) for key in first}
    needed = [key for key, shorter in less.items() if not validator(name).is_valid(shorter)]
    # descriptors leave out what they do not know, and the catalog with --kind is one list
    assert len(needed) > len(first) / 2 or name.startswith("catalog")


def short(part: Any) -> Any:
    """The same with at most two entries in every list."""
    if isinstance(part, dict):
        return {key: short(value) for key, value in part.items()}
    return [short(value) for value in part[:2]] if isinstance(part, list) else part


def changed(answer: Any, change: Callable[[Any], Any]) -> Any:
    """The answer with its first entry changed."""
    other = copy.deepcopy(answer)
    change(other[0] if isinstance(other, list) else other)
    return other


def test_every_command_that_prints_json_has_a_schema_and_is_run() -> None:
    assert set(CALLS) == set(PRINTED)
    assert {name.split()[0] for name in PRINTED} == set(COMMANDS) - {"ui", "schema"}


def objects(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if "properties" in part:
            yield part
        for value in part.values():
            yield from objects(value)
    elif isinstance(part, list):
        for value in part:
            yield from objects(value)


@pytest.mark.parametrize("name", PRINTED)
def test_schemas_are_schemas_and_closed(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert all(part.get("additionalProperties") is False for part in objects(schema(name)))


def test_schema_prints_them() -> None:
    assert ask("schema").stdout.split("\n")[:2] == ["memory", "predict"]
    assert json.loads(ask("schema", "catalog", "show").stdout) == schema("catalog show")
    wrong = ask("schema", "memry")
    assert wrong.exit_code == 2 and "nearest: memory" in wrong.stderr


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="documents are in the checkout")
def test_published_schemas_are_those_of_the_code() -> None:
    from perfmodel.cli.docs_json import files as made

    for name, text in made().items():
        assert (ROOT / "docs" / name).read_text() == text, "python -m perfmodel.cli.docs docs/json.md"
    assert {path.name for path in (ROOT / "docs/schemas").iterdir()} == {Path(one).name for one in made() if "/" in one}
