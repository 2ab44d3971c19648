"""Notebooks keep their word: they are readable without running, check themselves, and need only the notebook extra.
`.ci/run` executes every one of them on the wheel, away from the checkout; `jupyter-execute --inplace` renews what is
stored."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
MOST_BYTES = {"01_does_pp8_fit": 500_000}
BYTES, CELLS = 300_000, 15
NEEDS = {"matplotlib", "numpy", "perfmodel"}

if not NOTEBOOKS:
    pytest.skip("notebooks lie in the checkout and in the sdist", allow_module_level=True)


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def code(path: Path) -> ast.Module:
    """All code of a notebook, without the lines that only IPython knows."""
    text = "\n".join(source(cell) for cell in cells(path, "code"))
    return ast.parse(re.sub(r"^%.*$", "", text, flags=re.M))


def test_every_question_has_its_notebook() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_as_it_ran(path: Path) -> None:
    book = json.loads(path.read_text())
    assert path.stat().st_size <= MOST_BYTES.get(path.stem, BYTES)
    assert len(book["cells"]) <= CELLS
    assert set(book["metadata"]) <= {"kernelspec", "language_info"}
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert all(set(cell["metadata"]) <= {"execution"} for cell in book["cells"])
    outputs = [output for cell in cells(path, "code") for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert all(output["name"] == "stdout" for output in outputs if output["output_type"] == "stream")
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture is stored"
    told = "".join("".join(output.get("text", "")) for output in outputs)
    assert not re.search(r"/(home|root|tmp|work)/", told), "a path of the machine that ran it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_checks_itself_and_needs_little(path: Path) -> None:
    tree = code(path)
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= NEEDS | sys.stdlib_module_names
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 3
    said = "\n".join(source(cell) for cell in cells(path, "markdown"))
    assert "measure" in said and re.search(r"[\w-]+\.csv", said), "says neither what is measured nor where it lies"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_files_and_links_exist(path: Path) -> None:
    from perfmodel.catalog.lookup import find

    said = "\n".join(source(cell) for cell in cells(path, "markdown"))
    for stem in re.findall(r"`(?:hardware/observations/)?([\w-]+)\.csv`", said):
        assert find("observations", stem), f"{stem}.csv is not in the catalog"
    for target in re.findall(r"\]\(([^)\s]+)\)", said):
        there = (path.parent / target.partition("#")[0]).resolve()
        if target.endswith(".ipynb") or (ROOT / "perfmodel").is_dir():  # the wheel has no pages
            assert re.match(r"https?:", target) or there.exists(), f"{target} leads nowhere"
