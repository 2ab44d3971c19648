"""Writes that are stopped, that race, or that are not allowed: a file is the old one or the new one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfmodel.catalog import load_calibration, load_node
from perfmodel.catalog.write import in_place_of, write_whole
from perfmodel.cli.group import interrupts_that_come_again
from perfmodel.errors import BadInput

TESTS = Path(__file__).parent
LLAMA = ("--model", "llama-3.1-8b", "--node", "8x-h100-sxm")
ROWS = "concurrency,output_tok_s,input_tokens,output_tokens\n1,100,100,100\n8,700,100,100\n32,2000,100,100\n"
DOCTOR = "vllm serve meta-llama/Llama-3.1-8B -tp 2"
ASKED = [["memory", *LLAMA], ["predict", *LLAMA], ["step", *LLAMA], ["compare", *LLAMA], ["job", *LLAMA, "--samples=9"],
         ["plan", "--model", "llama-3.1-8b", "--node", "2x-h100-sxm"], ["catalog"], ["explain", "tok_s", *LLAMA],
         ["doctor", DOCTOR, "--node", "8x-h100-sxm"]]  # fmt: skip


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def python(code: str, *words: str, **extra: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MPLBACKEND": "Agg", **extra}
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=environment)  # fmt: skip


# ------------------------------------------------------------------ stopped

@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, MemoryError, ValueError, OSError(28, "No space left")])
@pytest.mark.parametrize("before", ["old", None])
def test_a_write_that_is_stopped_leaves_the_old_file(stop: BaseException, before: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    if before:
        path.write_text(before)
    with pytest.raises((BadInput, type(stop) if isinstance(stop, BaseException) else stop)), in_place_of(path) as aside:
        Path(aside).write_text("half of the n")
        raise stop
    assert (path.read_text() if path.exists() else None) == before
    assert left_over(tmp_path) == []


def test_a_process_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    code = ("import sys; from perfmodel.catalog.write import write_whole\n"
            "for i in range(10**6):\n    write_whole(sys.argv[1], f'{i % 10}' * 200_000)")  # fmt: skip
    for delay in (0.0, 0.011, 0.023):
        writer = python(code, str(path))
        while not path.exists():
            assert writer.poll() is None
            time.sleep(0.01)
        time.sleep(delay)
        writer.kill()
        writer.communicate()
        text = path.read_text()
        assert len(text) == 200_000 and len(set(text)) == 1
        path.unlink()


@pytest.mark.parametrize("words", [["calibrate", "--shipped", "--check"], ["validate"]], ids=" ".join)
def test_ctrl_c_ends_a_command_quietly(words: list[str], tmp_path: Path) -> None:
    code = ("import sys; from perfmodel.cli import main; import scipy.optimize, matplotlib\n"
            "print('begun', file=sys.stderr, flush=True); main(sys.argv[1:])")  # fmt: skip
    running = python(code, *words)
    assert running.stderr is not None and running.stderr.readline() == "begun\n"
    time.sleep(1.0)
    running.send_signal(signal.SIGINT)
    out, said = running.communicate(timeout=60)
    assert running.returncode == 130 and out == "" and "Traceback" not in said


@pytest.mark.parametrize("module", ["click", "perfmodel.cli.group", "yaml", "numpy"])
def test_ctrl_c_while_modules_load_ends_a_command_quietly(module: str) -> None:
    code = ("import builtins, os, runpy, signal, sys\n"
            "real, module = builtins.__import__, sys.argv.pop(1)\n"
            "def load(name, *rest, **more):\n"
            "    if name == module: builtins.__import__ = real; os.kill(os.getpid(), signal.SIGINT)\n"
            "    return real(name, *rest, **more)\n"
            "builtins.__import__ = load\n"
            "runpy.run_module('perfmodel', run_name='__main__')")  # fmt: skip
    running = python(code, module, "memory", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm")
    out, said = running.communicate(timeout=60)
    assert (running.returncode, out, said.strip()) == (130, "", "")


def test_ctrl_c_in_a_destructor_comes_again() -> None:
    class Closing:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), interrupts_that_come_again():
        Closing()
        time.sleep(0.1)


# ------------------------------------------------------------------ at once

def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    code = ("import sys; from perfmodel.catalog.write import write_whole\n"
            "for _ in range(60): write_whole(sys.argv[1], sys.argv[2] * 100_000)")  # fmt: skip
    writers = [python(code, str(path), letter) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            text = path.read_text()
            assert len(text) == 100_000 and len(set(text)) == 1
            seen.add(text[0])
        time.sleep(0.001)
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert seen and left_over(tmp_path) == []


def test_two_calibrations_into_one_file_leave_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    out = tmp_path / "mine.yaml"
    code = "import sys; from perfmodel.cli import main; main(sys.argv[1:])"
    runs = [python(code, "calibrate", str(tmp_path / "rows.csv"), *LLAMA, "-o", str(out)) for _ in range(2)]
    assert [(run.communicate(timeout=120)[1][-200:], run.returncode)[1] for run in runs] == [0, 0]
    assert load_calibration("h100-sxm", "vllm", out).used[-1] == "mine"
    assert left_over(tmp_path) == []


def test_two_probes_into_one_folder_leave_whole_files(tmp_path: Path) -> None:
    topology = TESTS / "samples" / "topo-8x-nvswitch.txt"
    code = "import sys; from perfmodel.cli import main; main(sys.argv[1:])"
    words = ("probe", "--topology", str(topology), "--accelerator", "h200-sxm", "--out", str(tmp_path))
    runs = [python(code, *words) for _ in range(2)]
    assert [(run.communicate(timeout=60), run.returncode)[1] for run in runs] == [0, 0]
    (found,) = (tmp_path / "hardware" / "nodes").glob("*")
    assert load_node(found).count == 8


# ------------------------------------------------------------------ not allowed

def test_a_link_stays_a_link_and_modes_stay(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "real.txt").chmod(0o640)
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_whole(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["no/such/folder.txt", "folder", "loop", "a" * 300, "nul\0"])
def test_a_place_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(BadInput, match="cannot be written"):
        write_whole(tmp_path / name, "x")
    assert left_over(tmp_path) == []


READ_ONLY = """
import os, sys
from pathlib import Path
def guard(event, args):
    writes = event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.chmod", "os.truncate",
                       "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp")
    if event == "open" and not writes:
        mode, flags = args[1] or "", args[2] or 0
        writes = any(c in mode for c in "wax+") or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        writes = writes and str(args[0]) != os.devnull
    if writes:
        raise PermissionError(30, "Read-only file system", str(args[0]) if args else "")
sys.addaudithook(guard)
from perfmodel.cli import main
for words in WORDS:
    try:
        main(words)
    except SystemExit as end:
        assert end.code == 0, (words, end.code)
print("all answered")
"""


@pytest.mark.parametrize("home", ["", "/nonexistent"])
def test_nothing_is_written_that_nobody_asked_for(home: str) -> None:
    """Every question is answered on a read-only machine without a home folder."""
    asked = python(READ_ONLY.replace("WORDS", repr(ASKED)), HOME=home, XDG_CACHE_HOME=home, XDG_CONFIG_HOME=home)
    out, said = asked.communicate(timeout=120)
    assert (asked.returncode, out.splitlines()[-1:]) == (0, ["all answered"]), said[-500:]


def test_a_read_only_place_is_refused_in_one_line(tmp_path: Path) -> None:
    """The guard stands for a read-only disk, which root would not notice otherwise."""
    (tmp_path / "rows.csv").write_text(ROWS)
    for words in (["calibrate", str(tmp_path / "rows.csv"), *LLAMA, "-o", str(tmp_path / "x.yaml")],
                  ["probe", "--topology", str(TESTS / "samples" / "topo-2x-h200.txt"), "--accelerator", "h200-sxm",
                   "--out", str(tmp_path / "out")]):  # fmt: skip
        run = python(READ_ONLY.replace("WORDS", repr([words])))
        _, said = run.communicate(timeout=120)
        assert "error: " in said and "read-only file system" in said, said[-500:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]
