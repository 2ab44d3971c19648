"""Cold start is part of the product: heavy packages load only where they are used."""

import re
import subprocess
import sys

import pytest

HEAVY = {"sympy", "scipy", "matplotlib", "torch", "streamlit"}
QUESTION = ["--model", "kimi-k2.6", "--node", "8x-rtx-pro-6000-server", "--engine", "sglang", "--tp", "1", "--pp", "8",
            "--memory-fraction", "0.92"]


def packages_loaded_by(code: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Top-level packages that a fresh interpreter imports while it runs ``code``."""
    run = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, timeout=120)
    names = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s*(\S+)$", run.stderr, re.M)
    return {name.split(".")[0] for name in names}, run


def test_the_reader_sees_what_is_loaded() -> None:
    loaded, _ = packages_loaded_by("import numpy")
    assert {"numpy"} <= loaded
    assert not HEAVY & loaded


def test_import_perfmodel_loads_no_third_party_package() -> None:
    loaded, run = packages_loaded_by("import perfmodel")
    assert run.returncode == 0, run.stderr
    assert "perfmodel" in loaded
    assert not loaded & {*HEAVY, "numpy", "pydantic", "yaml", "rich", "click"}


@pytest.mark.parametrize("arguments", [["memory", *QUESTION, "--json"], ["memory", *QUESTION], ["--help"]])
def test_the_command_line_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded, run = packages_loaded_by(f"from perfmodel.cli import main; main({arguments!r})")
    assert run.returncode == 0, run.stderr
    assert run.stdout
    assert not loaded & HEAVY
