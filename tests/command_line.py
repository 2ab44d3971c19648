"""Asking on the command line, in this process or as a shell does."""

import os
import subprocess
import sys
from inspect import signature
from pathlib import Path

from click.testing import CliRunner, Result

import perfmodel as pm
from perfmodel.cli import main

MODEL, NODE = "kimi-k2.6", "8x-rtx-pro-6000-server"
WHAT = ["--model", MODEL, "--node", NODE]
FITS = ["--pp", "8", "--context", "32768"]


def ask(*words: str) -> Result:
    """Run a command line in this process."""
    apart = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}  # click before 8.2
    return CliRunner(**apart).invoke(main, list(words), prog_name="perfmodel")


def both(result: Result) -> str:
    return result.stdout + result.stderr


def width(text: str) -> int:
    """Columns that a text takes; a line that ends in an address may stick out."""
    return max((len(line) for line in text.splitlines() if "://" not in line), default=0)


def command_line(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in its own process, as a shell does, with a pipe for stdout."""
    known = {**os.environ, "PYTHONPATH": str(Path(pm.__file__).parents[1]), **environment}
    call = [sys.executable, "-m", "perfmodel", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, env=known, cwd=environment.get("PWD"))


def descriptor(kind: str, name: str) -> str:
    from perfmodel.catalog.lookup import files, fold

    return files(kind)[fold(name)].read_text()
