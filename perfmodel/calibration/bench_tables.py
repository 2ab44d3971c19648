"""Results that benchmark tools write as text: AIPerf's CSV, llama-bench's CSV and markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

from perfmodel.calibration.bench_json import llama_bench, profile
from perfmodel.calibration.bench_row import Stated, maybe
from perfmodel.calibration.measured import Measurement
from perfmodel.catalog.once import csv_rows
from perfmodel.errors import BadInput

MAX_ROWS = 2_000
_TEST = re.compile(r"(?:pp(\d{1,9}))?(?:\+?tg(\d{1,9}))?(?: @ d(\d{1,9}))?")
Table = tuple[str, Callable[[str], bool], Callable[[str, str, Stated], list[Measurement]]]


def is_nccl(text: str) -> bool:
    """Whether a text looks like output of nccl-tests, printed or JSON."""
    head = text[:20_000]
    return any(mark in head for mark in ("algbw", "# Collective test starting", "# nThread", '"out_of_place"'))


def header(text: str) -> list[str]:
    """Cells of the first line."""
    return [cell.strip() for cell in _first(text).split(",")]


def dictionaries(text: str, where: str) -> list[dict[str, Any]]:
    """Rows of a CSV by its header; columns beyond it are refused."""
    rows: list[dict[str, Any]] = []
    try:
        for row in csv_rows(io.StringIO(text), where, strict=True):
            if None in row or None in row.values():
                raise BadInput(f"{where}: row {len(rows) + 1} has more or fewer cells than the header")
            rows.append(row)
            if len(rows) > MAX_ROWS:
                raise BadInput(f"{where}: more than {MAX_ROWS:,} rows")
        return rows
    except csv.Error as error:
        raise BadInput(f"{where}: not a CSV, {error}") from None


def llama_csv(text: str, where: str, given: Stated) -> list[Measurement]:
    """`llama-bench -o csv`: the columns of its JSON."""
    return [made for i, row in enumerate(dictionaries(text, where), start=1)
            for made in llama_bench({**row, **{key: _whole(row.get(key)) for key in ("n_prompt", "n_gen", "n_depth")}},
                                    f"{where}: row {i}", given)]


def _whole(text: str | None) -> str | int | None:
    return 0 if (text or "").strip() in ("", "0") else text


def llama_markdown(text: str, where: str, given: Stated) -> list[Measurement]:
    """`llama-bench` as printed: a column test (pp512, tg128, pp512+tg128, with @ d4096) and a column t/s."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")]
             for line in text.splitlines()[: 2 * MAX_ROWS] if line.lstrip().startswith("|")]
    names = lines[0]
    if not {"test", "t/s"} <= set(names):
        raise BadInput(f"{where}: a table of llama-bench has the columns test and t/s")
    made: list[Measurement] = []
    for i, cells in enumerate(lines[2:], start=1):
        at = f"{where}: row {i}"
        if len(cells) != len(names):
            raise BadInput(f"{at} has {len(cells)} cells where the header has {len(names)}")
        row = dict(zip(names, cells, strict=True))
        test = _TEST.fullmatch(row["test"])
        if test is None or not any(test.groups()):
            raise BadInput(f"{at}: the test {row['test'][:40]!r} is none of pp, tg, pp+tg")
        sizes = dict(zip(("n_prompt", "n_gen", "n_depth"), (int(part or 0) for part in test.groups()), strict=True))
        made += llama_bench({**sizes, "avg_ts": row["t/s"].split("±")[0].strip()}, at, given)
    return made


def aiperf_csv(text: str, where: str, given: Stated) -> list[Measurement]:
    """`profile_export_aiperf.csv`: a table of statistics, then single values. It does not say the concurrency."""
    figures: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    try:
        for cells in csv.reader(io.StringIO(text)):
            if not cells or len(figures) > MAX_ROWS:
                continue
            if cells[0] == "Metric":
                columns = cells
            elif columns:
                figures.setdefault(re.sub(r" \(.*\)$", "", cells[0]).strip().lower(),
                                   dict(zip(columns[1:], cells[1:], strict=False)))
    except csv.Error as error:
        raise BadInput(f"{where}: not a CSV, {error}") from None

    def figure(name: str, *statistics: str) -> float | None:
        return maybe(f"{where}: {name}", figures.get(name, {}), *statistics)

    load = given.need(where, "AIPerf (CSV)", "concurrency")
    prompt = figure("input sequence length", "avg") or given.need(where, "AIPerf (CSV)", "input_tokens")
    answer = figure("output sequence length", "avg") or given.need(where, "AIPerf (CSV)", "output_tokens")
    return [profile(where, load, prompt, answer, figure("inter token latency", "p50", "avg"),
                    figure("output token throughput", "Value", "avg"))]


def _first(text: str) -> str:
    return text.partition("\n")[0][:10_000]


READERS: tuple[Table, ...] = (
    ("AIPerf", lambda text: _first(text).startswith("Metric,"), aiperf_csv),
    ("llama-bench", lambda text: "avg_ts" in _first(text) and "n_gen" in _first(text), llama_csv),
    ("llama-bench", lambda text: text.startswith("|") and "t/s" in _first(text) and "test" in _first(text),
     llama_markdown),
)
