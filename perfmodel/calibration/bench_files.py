"""Result files of benchmark tools -> measurements. What a file holds is found by its content, never by its name.

Files come from anywhere: size, lines, nesting and counts are bounded, and every number is checked before it is used.
What a file does not say is asked for, not guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from perfmodel.calibration import bench_json, bench_tables
from perfmodel.calibration.bench_row import Stated, positive
from perfmodel.calibration.measured import Measurement, measurements
from perfmodel.catalog.once import loads, why
from perfmodel.catalog.yaml import read_text
from perfmodel.errors import BadInput, UnknownName, shown

MAX_BYTES = 2**26       # results with every request's details are long
MAX_LINES = 20_000
MAX_ROWS = 2_000
MAX_FILES = 200
COLUMNS = ("concurrency", "output_tok_s", "tpot_ms", "input_tokens", "output_tokens")
LENGTH = 1024.0         # tokens of a prompt and an answer where rows do not say, as `predict` does
FORMATS = (
    "vllm bench serve, latency or throughput (JSON)", "SGLang bench_serving, bench_one_batch, bench_one_batch_server, "
    "bench_offline_throughput (JSON lines)", "GuideLLM (JSON)", "AIPerf or GenAI-Perf (JSON, CSV)",
    "llama-bench (JSON, JSON lines, CSV, markdown)", "a CSV with concurrency and output_tok_s or tpot_ms",
    "nccl-tests output (with --node alone)")


@dataclass(frozen=True, slots=True)
class Found:
    """All measurements of some files, what was assumed, and a digest of each file."""

    rows: tuple[Measurement, ...]
    notes: tuple[str, ...]
    hashes: dict[str, str]
    formats: tuple[str, ...] = ()
    models: tuple[str, ...] = ()    # that the files name
    drafted: float | None = None    # most tokens a step of speculative decoding that a file states


def read_files(paths: Sequence[str | os.PathLike[str]], **missing: float | None) -> Found:
    """Measurements of several files. ``missing``: input_tokens, output_tokens, concurrency that no file states."""
    if len(paths) > MAX_FILES:
        raise BadInput(f"{len(paths)} files; at most {MAX_FILES} are read at once")
    for name in missing:
        if name not in ("input_tokens", "output_tokens", "concurrency"):
            raise UnknownName("keyword", name, ("input_tokens", "output_tokens", "concurrency"))
    given = Stated(**{name: positive("given", name, value) for name, value in missing.items() if value is not None})
    rows: list[Measurement] = []
    notes: list[str] = []
    hashes: dict[str, str] = {}
    formats: list[str] = []
    models: list[str] = []
    drafted: list[float] = []
    for path in paths:
        where, text = os.path.basename(os.fspath(path)), read_text(path, MAX_BYTES)
        name, found, said, named, lengths = read_text_of(text, where, given)
        rows += found
        notes += said
        formats.append(name)
        models += named
        drafted += lengths
        hashes[where if where not in hashes else f"{len(hashes)}-{where}"] = sha256(text.encode()).hexdigest()
    return Found(_bounded(rows, "the files"), tuple(dict.fromkeys(notes)), hashes, tuple(formats),
                 tuple(dict.fromkeys(models)), max(drafted, default=None))


def read_rows(table: Any, where: str) -> Found:
    """Measurements of rows given as mappings."""
    if not isinstance(table, Iterable) or isinstance(table, (bytes, Mapping)):
        raise BadInput(f"observations are files or rows, not {shown(table)}")
    rows = list(table)
    if not all(isinstance(row, Mapping) for row in rows):
        raise BadInput("a row of observations is a mapping, such as {'concurrency': 8, 'output_tok_s': 407}")
    text = repr(sorted(map(str, rows)))
    found, notes = plain(rows, where, Stated())
    return Found(_bounded(found, where), notes, {where: sha256(text.encode()).hexdigest()}, ("rows",))


Text = tuple[str, list[Measurement], tuple[str, ...], list[str], list[float]]


def read_text_of(text: str, where: str, given: Stated) -> Text:
    """Name of the format, its measurements, what was assumed, the models that it names, and accept lengths."""
    body = text.lstrip("\ufeff \t\r\n")
    if body.startswith(("{", "[")):
        objects = _objects(body, where)
        for name, holds, read in bench_json.READERS:
            if all(isinstance(item, dict) and holds(item) for item in objects):
                rows = [row for i, item in enumerate(objects, start=1)
                        for row in read(item, f"{where}: entry {i}" if len(objects) > 1 else where, given)]
                lengths = [bench_json.accepted(item, where) for item in objects]
                models = [model for model in map(bench_json.model_of, objects) if model]
                return name, rows, bench_json.NOTES.get(name, ()), models, [length for length in lengths if length]
    else:
        for name, matches, read_table in bench_tables.READERS:
            if matches(body):
                return name, read_table(body, where, given), bench_json.NOTES.get(name, ()), [], []
        if set(bench_tables.header(body)) & {"concurrency", "output_tok_s", "tpot_ms"}:
            return "CSV", *plain(bench_tables.dictionaries(body, where), where, given), [], []
    if bench_tables.is_nccl(text):
        raise BadInput(f"{where}: output of nccl-tests calibrates a node, by itself; give it with --node alone")
    raise BadInput(f"{where}: not a result file that is known here", hints=[f"known: {name}" for name in FORMATS])


def plain(table: Sequence[Mapping[str, Any]], where: str, given: Stated) -> tuple[list[Measurement], tuple[str, ...]]:
    """Rows of the plain columns; lengths that nobody states are assumed, and said so."""
    if not table:
        raise BadInput(f"{where}: no rows; a header with concurrency, output_tok_s and one row a measurement is needed")
    for key in table[0]:
        if key not in COLUMNS:
            raise UnknownName(f"column of {where}", str(key), COLUMNS)
    notes = []
    lengths = {"input_tokens": given.input_tokens, "output_tokens": given.output_tokens}
    for name, value in lengths.items():
        if name not in table[0] and value is None:
            lengths[name] = LENGTH
            notes.append(f"{name} {LENGTH:g} in every row")
    rows = []
    for line, row in enumerate(table, start=1):
        at = f"{where}: row {line}"
        loaded = row.get("concurrency", given.concurrency)
        clean = {"concurrency": positive(at, "concurrency", loaded)}
        for name, value in lengths.items():
            clean[name] = positive(at, name, row.get(name) if name in table[0] else value)
        figure = [name for name in ("output_tok_s", "tpot_ms") if row.get(name) not in (None, "")]
        clean |= {name: positive(at, name, row[name]) for name in (figure[:1] or ["output_tok_s"]) if name in row}
        rows.append(clean)
    return measurements(rows, where), tuple(notes)


def _objects(body: str, where: str) -> list[Any]:
    """The objects of a JSON file, a JSON array or JSON lines."""
    try:
        found = loads(body)
        return found if isinstance(found, list) and found else [found]
    except RecursionError:
        raise BadInput(f"{where}: JSON nested too deep") from None
    except ValueError as error:
        first = error
    lines = [line for line in body.splitlines() if line.strip()]
    if len(lines) > MAX_LINES:
        raise BadInput(f"{where}: more than {MAX_LINES:,} lines of JSON")
    try:
        return [loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        said = why(first if type(first) is ValueError else error)
        raise BadInput(f"{where}: {f'not JSON, {str(first)[:120]}' if said == 'not JSON' else said}") from None


def _bounded(rows: Sequence[Measurement], where: str) -> tuple[Measurement, ...]:
    if not rows:
        raise BadInput(f"{where}: no measurement found")
    if len(rows) > MAX_ROWS:
        raise BadInput(f"{where}: {len(rows):,} measurements; at most {MAX_ROWS:,} are fitted at once")
    return tuple(rows)
