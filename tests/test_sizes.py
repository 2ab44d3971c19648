"""A file that outgrows 400 lines is split, or a decision says why not."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for room in ("perfmodel", "tests", "benchmarks") for path in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_files_stay_below_400_lines(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= 400
