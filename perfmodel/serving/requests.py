"""Lengths of requests from a file: CSV or JSON lines with input_tokens and output_tokens."""

from __future__ import annotations

import csv
from pathlib import Path

from perfmodel.catalog.once import csv_rows, loads, why
from perfmodel.catalog.yaml import check_plain
from perfmodel.errors import BadInput

_MOST_BYTES, _MOST_ROWS = 256 * 2**20, 5_000_000


def read_requests(path: str | Path) -> list[tuple[int, int]]:
    """(input, output) of every row, in the order of the file. Bounded; nothing is executed from it."""
    file = Path(path)
    try:
        check_plain(file)
        if file.stat().st_size > _MOST_BYTES:
            raise BadInput(f"{file.name} is larger than {_MOST_BYTES >> 20} MiB")
        with file.open(newline="", encoding="utf-8") as handle:
            rows = map(_object, handle) if file.suffix in (".jsonl", ".ndjson") else csv_rows(handle, file.name)
            pairs = []
            for number, row in enumerate(rows, start=1):
                if number > _MOST_ROWS:
                    raise BadInput(f"{file.name} has more than {_MOST_ROWS:,} rows")
                pairs.append(_pair(row, f"{file.name}, row {number}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file.name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not pairs:
        raise BadInput(f"{file.name} has no rows")
    return pairs


def _object(line: str) -> dict[str, object]:
    try:
        value = loads(line, finite=True)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"a line of requests: {why(error)}") from None
    return value if isinstance(value, dict) else {}


def _pair(row: dict[str, object], where: str) -> tuple[int, int]:
    found = []
    for name in ("input_tokens", "output_tokens"):
        value = row.get(name)
        try:
            number = float(str(value))
        except ValueError:
            number = float("nan")
        if not 1 <= number <= 1e9 or number != int(number):
            raise BadInput(
                f"{where}: {name} must be a whole number of tokens, not {str(value)[:40]!r}",
                ["columns are input_tokens,output_tokens"],
            )
        found.append(int(number))
    return found[0], found[1]
