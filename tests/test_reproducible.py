"""The same question gives the same bytes: whatever the seed of hashes, the order of folders, the day or the place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
KIMI = ("--model", "kimi-k2.6", "--node", "8x-rtx-pro-6000-server")
LLAMA = ("--model", "llama-3.1-8b", "--node", "2x-h100-sxm")
TOPOLOGY = str(TESTS / "samples" / "topo-8x-switches.txt")
WORDS = [
    ["memory", *KIMI, "--engine", "sglang", "--pp", "8"], ["predict", *KIMI, "--tp", "8", "--kv-dtype", "fp8"],
    ["compare", *LLAMA], ["plan", *LLAMA], ["job", *LLAMA, "--samples", "900"], ["step", *LLAMA, "--batch", "1,8"],
    ["doctor", "vllm serve meta-llama/Llama-3.1-8B -tp 2 --no-such-flag", "--node", "2x-h100-sxm"],
    ["explain", "tok_s", *LLAMA], ["collective", "all_reduce", "--node", "8x-h100-sxm", "--message-bytes", "1024"],
    ["whatif", *LLAMA], ["catalog"], ["simulate", *LLAMA, "--trace", "REQUESTS"],
    ["probe", "--topology", TOPOLOGY, "--accelerator", "h200-sxm", "--out", "OUT"],
    ["calibrate", "ROWS", *LLAMA, "-o", "mine.yaml"],
]  # fmt: skip
ASK = """
import sys
from perfmodel.cli import main
for words in WORDS:
    for form in ([], ["--json"]):
        print("==", words, form, flush=True)
        try:
            main([*words, *form])
        except SystemExit as end:
            print("== exit", end.code, flush=True)
"""


def answers(folder: Path, seed: str, **extra: str) -> str:
    """All answers and all files of a process that lives in a folder."""
    folder.mkdir()
    (folder / "rows.csv").write_text("concurrency,output_tok_s,input_tokens,output_tokens\n1,100,100,9\n8,700,100,9\n")
    (folder / "requests.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,20\n0.5,300,40\n2.5,10,20\n")
    code = ASK.replace("WORDS", repr(WORDS)).replace("'ROWS'", "'rows.csv'").replace("'OUT'", "'out'")
    code = code.replace("'REQUESTS'", "'requests.csv'")
    environment = {**os.environ, "PYTHONHASHSEED": seed, "MPLBACKEND": "Agg", **extra}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment,
                          timeout=300)  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-800:]
    written = [f"== {path.relative_to(folder)}\n{path.read_text(encoding='utf-8')}"
               for path in sorted(folder.rglob("*")) if path.is_file()]
    return "\n".join([done.stdout, *written])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    return answers(tmp_path_factory.mktemp("a") / "here", "0")


def test_every_command_answered(first: str) -> None:
    exits = [line for line in first.splitlines() if line.startswith("== exit")]
    assert len(exits) == 2 * len(WORDS) and "== exit 2" not in exits
    assert "== mine.yaml" in first and "== out/hardware/nodes/" in first


def test_the_same_bytes_come_again(first: str, tmp_path: Path) -> None:
    second = answers(tmp_path / "here", "4021", TZ="Asia/Tokyo", LC_ALL="C.UTF-8", COLUMNS="200")
    for one, other in zip(first.splitlines(), second.splitlines(), strict=True):
        assert one == other
