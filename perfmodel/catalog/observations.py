"""Measurements by others: a row of hardware/observations/*.csv -> a frozen Observation. Empty means "not stated"."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from perfmodel.catalog.lookup import find, is_path, unknown
from perfmodel.catalog.yaml import read_text
from perfmodel.errors import DescriptorError

MAX_CSV_BYTES = 2**23


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured value and the conditions that its source states."""

    id: str
    source: str
    date: str
    model: str
    weights: str
    kv_dtype: str
    gpu: str
    n_gpus: int | None
    topology: str
    tp: int | None
    ep: int | None
    pp: int | None
    dp: int | None
    dp_attention: int | None
    dcp: int | None
    engine: str
    engine_version: str
    cuda_graphs: str
    attention_backend: str
    spec: str
    prompts: str
    isl: float | None
    osl: float | None
    concurrency: int | None
    metric: str
    value: float
    unit: str
    confidence: str
    use: str
    sweep: str
    notes: str


COLUMNS = tuple(field.name for field in fields(Observation))
USES = ("fit", "check", "unusable")
_INTEGERS = tuple(field.name for field in fields(Observation) if field.type == "int | None")
_REALS = ("isl", "osl", "value")


def load_observations(name_or_path: str | os.PathLike[str]) -> tuple[Observation, ...]:
    """All rows of an observation file, by name or path, in the order of the file."""
    path = _find(name_or_path)
    return _observations(path, path.stat().st_mtime_ns)


def load_kernels(name_or_path: str | os.PathLike[str]) -> tuple[dict[str, str], ...]:
    """All rows of a table of kernel times, as text; `latency_us` is a positive number in every row."""
    path = _find(name_or_path)
    header, rows = _table(path)
    if "table" not in header or "latency_us" not in header:
        raise DescriptorError(f"{path.name}: not a table of kernels; the columns table and latency_us are missing")
    for line, row in enumerate(rows, start=2):
        if not _number(row["latency_us"], path, line, "latency_us") > 0:
            raise DescriptorError(f"{path.name}: line {line}: latency_us must be above zero")
    return tuple(rows)


def load_rows(name_or_path: str | os.PathLike[str]) -> tuple[dict[str, str], ...]:
    """All rows of an observation file with columns of its own, as text; every row has an ``id`` and a ``use``."""
    path = _find(name_or_path)
    header, rows = _table(path)
    missing = [column for column in ("id", "source", "use") if column not in header]
    if missing:
        raise DescriptorError(f"{path.name}: the column {missing[0]} is missing")
    return tuple(rows)


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_path)
    path = Path(name) if is_path(name) else find("observations", name)
    if path is None:
        raise unknown("observations", name)
    if not path.is_file():
        raise DescriptorError(f"{path}: no such file")
    return path


@lru_cache(maxsize=32)
def _observations(path: Path, stamp: int) -> tuple[Observation, ...]:
    header, rows = _table(path)
    if tuple(header) != COLUMNS:
        odd = [column for column in header if column not in COLUMNS] or [c for c in COLUMNS if c not in header]
        what = repr(odd[0][:80]) if odd else "their order"
        raise DescriptorError(f"{path.name}: columns differ from {', '.join(COLUMNS)}; first odd one: {what}")
    observations = tuple(_observation(row, path, line) for line, row in enumerate(rows, start=2))
    seen: set[str] = set()
    for observation in observations:
        if observation.id in seen:
            raise DescriptorError(f"{path.name}: id {observation.id!r} appears twice")
        seen.add(observation.id)
    return observations


def _observation(row: dict[str, str], path: Path, line: int) -> Observation:
    values: dict[str, object] = dict(row)
    for column in (*_INTEGERS, *_REALS):
        values[column] = _number(row[column], path, line, column) if row[column] or column == "value" else None
    for column in _INTEGERS:
        number = values[column]
        if isinstance(number, float):
            if number != int(number) or number < 1:
                raise DescriptorError(f"{path.name}: line {line}: {column} is {row[column]!r}, not a count")
            values[column] = int(number)
    if row["use"] not in USES:
        raise DescriptorError(f"{path.name}: line {line}: use is {row['use']!r}, not one of {', '.join(USES)}")
    return Observation(**values)  # type: ignore[arg-type]


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DescriptorError(f"{path.name}: line {line}: {column} is {text[:40]!r}, not a finite number")
    return value


def _table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Header and rows; a row with too many or too few cells is refused."""
    reader = csv.reader(io.StringIO(read_text(path, MAX_CSV_BYTES), newline=""))
    try:
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise DescriptorError(f"{path.name}: a column appears twice")
        rows = []
        for cells in reader:
            if len(cells) != len(header):
                found = f"{len(cells)} cells where {len(header)} are needed"
                raise DescriptorError(f"{path.name}: line {reader.line_num}: {found}")
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise DescriptorError(f"{path.name}: line {reader.line_num}: {error}") from None
    return header, rows
