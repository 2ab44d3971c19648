"""Any answer as a table: plain rows, a pandas or polars frame if the reader has that, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from perfmodel.errors import BadInput
from perfmodel.report.layout import number
from perfmodel.step.cost import plain

Rows = list[dict[str, Any]]
MOST_ROWS = 60  # of a table in a notebook
REQUEST = ("arrival_s", "inputs", "outputs", "ttft_s", "tpot_s", "e2e_s", "finish_s")


def rows(noun: Any) -> Rows:
    """One dict a row, plain values, units in the names: ranks, points, operations, requests, plans, jobs, ..."""
    name = type(noun).__name__
    if name not in TABLES:
        raise BadInput(f"a {name} has no table; these have one: {', '.join(TABLES)}")
    return TABLES[name](noun)


def to_pandas(noun: Any) -> Any:
    """The rows as a pandas DataFrame."""
    return _library("pandas").DataFrame(rows(noun))


def to_polars(noun: Any) -> Any:
    """The rows as a polars DataFrame."""
    return _library("polars").DataFrame(rows(noun), infer_schema_length=None)


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise BadInput(f"{name} is not installed", [f"pip install {name}"]) from None


def flat(entry: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested values under names with points; lists are left out.

    >>> flat({"a": 1, "parts": {"host": 2.0}, "hints": []})
    {'a': 1, 'parts.host': 2.0}
    """
    found: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        elif not isinstance(value, list | tuple):
            found[f"{before}{key}"] = value
    return found


def _operations(cost: Any) -> Rows:
    shape = np.shape(cost.seconds)
    asked = {name: np.broadcast_to(np.asarray(v, float), shape).ravel() for name, v in cost.question.items()}
    found = []
    for entry in cost.to_dict()["rows"]:
        columns = {key: np.broadcast_to(np.asarray(value, object), shape).ravel() for key, value in entry.items()}
        for i in range(len(columns["seconds"])):
            point = {name: plain(values[i]) for name, values in asked.items()}
            found.append({**point, **{key: plain(values[i]) for key, values in columns.items()}})
    return found


def _sizes(cost: Any) -> Rows:
    entry = {key: value for key, value in cost.to_dict().items() if key != "assumptions"}
    shape = np.shape(cost.message_bytes)
    columns = {key: np.broadcast_to(np.asarray(value, object), shape).ravel() for key, value in entry.items()}
    return [{key: plain(values[i]) for key, values in columns.items()} for i in range(len(columns["seconds"]))]


def _strategies(comparison: Any) -> Rows:
    return [{"rank": entry["rank"], "strategy": entry["strategy"], "fits": entry["fits"], **flat(point)}
            for entry in comparison.to_dict() for point in entry["points"]]  # fmt: skip


def _requests(run: Any) -> Rows:
    columns = {name: np.asarray(getattr(run, name)).tolist() for name in REQUEST if hasattr(run, name)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _changes(answer: Any) -> Rows:
    return [{"change": entry["change"] or "now", "fits": entry["fits"], **point}
            for entry in answer.to_dict() for point in entry["points"]]  # fmt: skip


def _listed(answer: Any) -> Rows:
    return [flat(entry) for entry in answer.to_dict()]


TABLES: dict[str, Callable[[Any], Rows]] = {
    "MemoryReport": lambda report: [flat(rank) for rank in report.to_dict()["ranks"]],
    "StepCost": _operations,
    "CollectiveCost": _sizes,
    "ServingCurve": lambda curve: [flat(point) for point in curve.points],
    "Comparison": _strategies,
    "Simulation": _requests,
    "Plan": _listed,
    "Job": lambda job: [flat({**job.to_dict(), "timeline": []})],
    "JobComparison": lambda jobs: [flat({**entry, "timeline": []}) for entry in jobs.to_dict()],
    "InTime": lambda answer: [flat({**answer.to_dict(), "timeline": []})],
    "Forecast": lambda answer: [flat({**answer.to_dict(), "timeline": []})],
    "WhatIf": _changes,
    "Explained": lambda answer: [part for entry in answer.to_dict() for part in entry["parts"]],
    "Doctor": _listed,
    "Deployment": lambda d: [{"option": key, "value": value} for key, value in d.to_dict()["options"].items()],
}


def html(noun: Any) -> str:
    """What a notebook shows: the answer in one line, and its table."""
    table = rows(noun)
    # columns that never change say nothing in a table of many rows, and the long ones do not fit
    varying = [key for key in table[0] if len({repr(row.get(key)) for row in table}) > 1] if len(table) > 1 else []
    columns = varying or list(table[0]) if table else []
    shown = [[cell(row.get(key)) for key in columns] for row in table[:MOST_ROWS]]
    more = f"<p>{len(table) - MOST_ROWS:,} rows more; .to_rows() has all</p>" if len(table) > MOST_ROWS else ""
    return f"<p><code>{escape(repr(noun))}</code></p>{html_table(columns, shown)}{more}"


def html_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table, every word escaped; numbers to the right."""
    numeric = [all(_is_number(row[i]) for row in body) and bool(body) for i in range(len(head))]
    side = [' class="n" style="text-align:right"' if right else "" for right in numeric]
    top = "".join(f"<th{side[i]}>{escape(word)}</th>" for i, word in enumerate(head))
    lines = ["".join(f"<td{side[i]}>{escape(word)}</td>" for i, word in enumerate(row)) for row in body]
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _is_number(text: str) -> bool:
    return bool(text) and (text == "-" or text[0] in "-+<0123456789") and not any(c.isalpha() for c in text)


def cell(value: Any) -> str:
    """One value of a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value, 4) if abs(value) >= 1e-3 or value == 0 else f"{value:.3g}"
    return str(value)
