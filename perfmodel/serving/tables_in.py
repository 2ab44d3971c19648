"""Rows of a stranger's table, CSV, JSON lines or Parquet: bounded in size, rows and line length."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.catalog.once import csv_rows, loads, why
from perfmodel.catalog.yaml import check_plain
from perfmodel.errors import BadInput

MOST_BYTES, MOST_ROWS, MOST_LINE = 2 * 2**30, 5_000_000, 2**22
_JSON_LINES, _PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")


def rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Every row as a mapping, in the order of the file; the ending of the name says how it is read."""
    file = Path(path)
    try:
        check_plain(file)
        if file.stat().st_size > MOST_BYTES:
            raise BadInput(f"{file.name} is larger than {MOST_BYTES >> 30} GiB")
        kind = file.suffix.lower()
        found = _parquet(file) if kind in _PARQUET else _json_lines(file) if kind in _JSON_LINES else _csv(file)
        for number, row in enumerate(found, start=1):
            if number > MOST_ROWS:
                raise BadInput(f"{file.name} has more than {MOST_ROWS:,} rows")
            yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file.name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _lines(file: Path) -> Iterator[str]:
    with file.open(newline="", encoding="utf-8-sig") as handle:
        while line := handle.readline(MOST_LINE + 1):
            if len(line) > MOST_LINE:
                raise BadInput(f"{file.name} has a line of more than {MOST_LINE:,} characters")
            yield line


def _csv(file: Path) -> Iterator[dict[str, Any]]:
    for row in csv_rows(_lines(file), file.name):
        yield {str(key).strip(): value for key, value in row.items() if key is not None}


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            value = loads(line, finite=True)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file.name}, line {number}: {why(error)}") from None
        if not isinstance(value, dict):
            raise BadInput(f"{file.name}, line {number} is not a JSON object")
        yield value


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    try:
        parquet, broken = import_module("pyarrow.parquet"), import_module("pyarrow").ArrowException
    except ImportError:
        raise BadInput(f"{file.name}: Parquet needs pyarrow", ["pip install 'perfmodel[files]'"]) from None
    try:
        table = parquet.ParquetFile(file)
        if table.metadata.num_rows > MOST_ROWS:
            raise BadInput(f"{file.name} has more than {MOST_ROWS:,} rows")
        for batch in table.iter_batches(batch_size=65_536):
            yield from batch.to_pylist()
    except broken as error:
        raise BadInput(f"{file.name} is not Parquet: {str(error)[:120]}") from None


def whole(value: Any, where: str, name: str, least: int = 1) -> int:
    """A number of tokens in a table."""
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not least <= number <= 1e9 or number != int(number):
        raise BadInput(f"{where}: {name} must be a whole number of tokens, not {str(value)[:40]!r}")
    return int(number)
