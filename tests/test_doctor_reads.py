"""Launch lines of the wild, read or named; units, compose files and manifests; flags by version; hostile text."""

import contextlib
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import ask, width
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog.yaml import parse_yaml
from perfmodel.engines.flag_versions import TABLES, flag_warnings
from perfmodel.errors import BadInput, PerfModelError
from perfmodel.insight.launch import NotACommand, read_launch
from perfmodel.insight.launch_files import commands, launch_of
from perfmodel.insight.launch_lists import read_texts
from perfmodel.insight.shell_words import MOST_CHARACTERS

COMMANDS = list(csv.DictReader((Path(__file__).parent / "tables" / "launch_commands.csv").read_text().splitlines()))


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


# ---------------------------------------------------------------- files as people have them

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize(
    ("name", "engine", "version", "keywords", "gpus", "note"),
    [
        ("launch-vllm.service", "vllm", "", {"tp": 4, "context": 32000, "memory_fraction": 0.92}, 4, "EnvironmentFile"),
        ("launch-compose.yaml", "sglang", "0.5.10.post1",
         {"pp": 4, "max_sequences": 64, "layers_per_stage": (8, 8, 8, 8)}, 4, "env_file"),
        ("launch-kubernetes.yaml", "vllm", "0.20.0", {"tp": 8, "ep": 8, "context": 65536}, 8, ""),
        ("launch-slurm.sh", "sglang", "", {"tp": 8, "kv_dtype": "fp8", "memory_fraction": 0.92}, 8, ""),
    ],
)  # fmt: skip
def test_real_files(
    name: str, engine: str, version: str, keywords: dict[str, Any], gpus: int, note: str
) -> None:
    launch, where = launch_of(SAMPLES / name)
    assert (launch.engine, launch.version, launch.gpus) == (engine, version, gpus)
    assert launch.keywords == {**keywords, "nccl": "NCCL_P2P_LEVEL=SYS"}
    assert launch.model in ("meta-llama/Llama-3.1-8B-Instruct", "moonshotai/Kimi-K2.6")
    assert launch.unknown == () and where.startswith(name)
    assert any(note in said for said in launch.notes) if note else launch.notes == ()


def test_lines_without_a_known_origin_are_read_too() -> None:
    counts = read_texts(SAMPLES / "launch-lines.txt").counts()
    assert counts == {"texts": 16, "parse": 16, "not_a_command": 0, "refused": 0, "sglang": 5, "vllm": 11}


@pytest.mark.parametrize(
    "text",
    [
        "srun -N1 --gpus=8 vllm serve m -tp 2",
        "torchrun --nproc-per-node=2 -m vllm.entrypoints.openai.api_server --model m -tp 2",
        "mpirun -n 2 --allow-run-as-root /usr/bin/env vllm serve m -tp 2",
        "numactl -N 1 -m 1 nsys profile -o x uv run vllm serve m -tp 2",
        "ssh host 'source env.sh && vllm serve m -tp 2'",
        'tmux new-session -d "bash -lc \'vllm serve m -tp 2\'"',
        "kubectl exec -it pod -- sh -c 'exec vllm serve m -tp 2'",
        "sudo -E env A=1 nohup vllm serve m -tp 2 > log 2>&1 &",
        "podman run --rm --gpus all -v /a:/b vllm/vllm-openai:v0.20.0 --model m -tp 2",
        "if true; then\n  vllm serve m \\\n    -tp 2\nfi",
    ],
)
def test_wrappers(text: str) -> None:
    launch = read_launch(text)
    assert (launch.engine, launch.model, launch.keywords, launch.unknown) == ("vllm", "m", {"tp": 2}, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve m \\ \n -tp 2", "a shell ends the command there"),
        ("vllm serve m # old -tp 4 --enforce-eager", "reads nothing after it"),
        ("vllm serve m –tp 2", "a dash that is no hyphen"),
        ("vllm serve m --served-model-name “x”", "curly quotes"),
    ],
)
def test_slips_of_the_pen_are_said(text: str, said: str) -> None:
    assert any(said in note for note in read_launch(text).notes)
    assert read_launch("vllm serve m -tp 2").notes == ()


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("CUDA_VISIBLE_DEVICES=0,2 vllm serve m", 2), ("NVIDIA_VISIBLE_DEVICES=all vllm serve m", None),
     ("docker run --gpus '\"device=0,1,2\"' vllm/vllm-openai:v0.20.0 --model m", 3),
     ("docker run --gpus=4 vllm/vllm-openai:v0.20.0 --model m", 4),
     ("docker run --gpus all vllm/vllm-openai:v0.20.0 --model m", None), ("vllm serve m", None)],
)  # fmt: skip
def test_gpus_that_the_settings_leave(text: str, gpus: int | None) -> None:
    assert read_launch(text).gpus == gpus


@pytest.mark.parametrize(
    ("engine", "version", "flag", "said"),
    [
        ("vllm", "0.33.0", "--max-model-length", "unknown to vllm; nearest: --max-model-len"),
        ("sglang", "0.5.23", "--tp-sise", "unknown to sglang; nearest: --tp-size"),
        ("sglang", "0.5.23", "--pp", "ambiguous in sglang 0.5.23: --pp-"),
        ("vllm", "0.33.0", "--swap-space", "removed in vllm 0.18; write --kv-offloading-size"),
        ("vllm", "0.33.0", "--num-scheduler-steps", "removed in vllm 0.10.2; --async-scheduling took its place"),
        ("sglang", "0.5.20", "--attn-dp-size", "not in sglang 0.5.20, since 0.5.22; write --dp-size N"),
        ("tensorrt-llm", "1.0", "--tensor-parallel-sise", "nearest: --tensor-parallel-size"),
    ],
)
def test_what_a_version_says_to_a_flag(engine: str, version: str, flag: str, said: str) -> None:
    (warning,) = flag_warnings(engine, version, [flag, "1"])
    assert warning.startswith(f"{flag}: ") and said in warning


@pytest.mark.parametrize(("engine", "version", "flag"), [
    ("vllm", "0.33.0", "--tensor-parallel-size"), ("vllm", "0.33.0", "-tp"), ("vllm", "0.33.0", "--max-num-seq"),
    ("vllm", "0.33.0", "-cc.mode=3"), ("sglang", "0.5.22", "--attn-dp-size"), ("tensorrt-llm", "1.0", "--tp_size"),
])  # fmt: skip
def test_a_version_says_nothing_to_its_own_flags(engine: str, version: str, flag: str) -> None:
    assert flag_warnings(engine, version, [flag, "1"]) == ()


def test_a_flag_that_only_the_engine_knows_takes_its_values() -> None:
    launch = read_launch("vllm serve --lora-modules a=1 b=2 --disable-access-log-for-endpoints /x --model m -tp 2")
    assert (launch.model, launch.keywords, launch.unknown) == ("m", {"tp": 2}, ())


# ---------------------------------------------------------------- hostile text


def test_aliases_are_written_out_and_bounded() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}", aliases=True) == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    with pytest.raises(PerfModelError, match="more than 50,000 values"):
        parse_yaml(bomb, aliases=True)
    with pytest.raises(PerfModelError, match="not allowed"):
        parse_yaml("a: &x [*x]", aliases=True)


@pytest.mark.parametrize("text", [
    "A=$A$A$A$A; vllm serve $A", "vllm serve m " + "$A" * 20_000, "bash -c " * 200 + "vllm serve m",
    "A=" + "x" * 30_000 + " vllm serve $A $A $A $A $A $A $A $A $A $A", "sh -c \"sh -c 'vllm serve m'\" ",
])  # fmt: skip
def test_growth_and_nesting_are_bounded(text: str) -> None:
    try:
        launch = read_launch(text)
    except PerfModelError:
        return
    assert len(launch.line) < 10 * MOST_CHARACTERS


@pytest.mark.parametrize("given", [5, None, b"vllm serve m", ["vllm"], 1.5])
def test_what_is_no_text_is_refused_plainly(given: Any) -> None:
    with pytest.raises(BadInput, match="must be text"):
        launch_of(given)
    with pytest.raises(BadInput, match="must be text"):
        read_launch(given)
    with pytest.raises(PerfModelError, match="read from text"):
        parse_yaml(given)


@pytest.mark.parametrize("text", ["[Service]\nEnvironment='a\nExecStart=vllm serve m\n", "[Service]\nExecStart=\n"])
def test_a_broken_unit_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.service").write_text(text)
    with pytest.raises(PerfModelError):
        launch_of(str(tmp_path / "a.service"))


@settings(max_examples=100)
@given(st.text(alphabet="abc \n\t:-[]{}&*<>|'\"$=#!%@`\\", max_size=120), st.sampled_from(["yaml", "service", "sh"]))
def test_any_file_parses_or_is_refused(text: str, kind: str) -> None:
    try:
        found = list(commands(text, f"x.{kind}"))
    except PerfModelError:
        return
    for item in found:
        with contextlib.suppress(PerfModelError):
            read_launch(item.text)


# ---------------------------------------------------------------- many texts


def test_texts_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"launch_command": "vllm serve m --no-such 1"}\n{"command": "ls"}\n{"x": 1}\n'
                    '{"command": "vllm serve \'m"}\n{"launch_command": null}\n')  # fmt: skip
    result = ask("doctor", "--texts", str(file), "--json")
    answer = json.loads(result.stdout)
    assert {k: answer[k] for k in ("texts", "parse", "not_a_command", "refused", "vllm")} == {
        "texts": 3, "parse": 1, "not_a_command": 1, "refused": 1, "vllm": 1}  # fmt: skip
    assert answer["not_understood"] == [{"text": "vllm serve m --no-such 1", "unknown": ["--no-such"]}]
    assert answer["not_commands"] == ["ls"]


def test_the_command_prints_the_count_of_the_table() -> None:
    table = Path(__file__).parent / "tables" / "launch_commands.csv"
    result = ask("doctor", "--texts", str(table))
    parse = sum(row["starts"] != "no" for row in COMMANDS)
    assert result.stdout.startswith(f"{len(COMMANDS)} texts: {parse} parse")
    assert width(result.stdout) <= 80 and ", 0 are refused" in result.stdout.replace("\n  ", " ")


@pytest.mark.parametrize("words", [[], ["vllm serve m", "--texts", "x"], ["vllm serve m"]])
def test_doctor_asks_for_what_is_missing(words: list[str]) -> None:
    assert ask("doctor", *words).exit_code == 2


@pytest.mark.parametrize("text", ["", "{}", "{not json", '{"command": 5}', "[" * 9000])
def test_a_file_of_texts_may_be_broken(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with contextlib.suppress(PerfModelError):
        assert read_texts(tmp_path / "t").counts()["parse"] == 0
