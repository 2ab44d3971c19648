"""Descriptors and observations -> files that the catalog loads. Every file appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from perfmodel.catalog import write
from perfmodel.errors import BadInput
from perfmodel.probe.journal import Record
from perfmodel.probe.nccl_tests import NcclTable
from perfmodel.probe.plan import COLLECTIVES, Task

# Names shared with the kernel tables of the catalog keep their meaning there.
COLUMNS = (
    "table", "backend", "version", "kernel", "dtype", "mode", "transport", "gpus", "message_bytes", "m", "n", "k",
    "src", "dst", "latency_us", "latency_us_min", "latency_us_max", "iterations", "repeats", "l2", "gpu", "driver",
    "cuda", "torch", "nccl", "environment", "node", "date", "source", "notes",
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9][\w .+/%-]*(?<! )")
_NOT_TEXT = re.compile(r"[-+]?[\d.]+([eE][-+]?\d+)?|null|true|false|yes|no|on|off|~", re.IGNORECASE)


def observations_to_csv(records: Iterable[Record], machine: dict[str, Any], node: str, notes: str = "") -> str:
    """Measured tasks as a table of kernel times, each row with its conditions."""
    gpus = [str(gpu) for gpu in machine.get("gpus", [])]
    set_by = dict(machine.get("environment") or {})
    same = {name: machine.get(name, "") for name in ("driver", "cuda", "torch", "nccl")}
    same |= {"gpu": " + ".join(dict.fromkeys(gpus)), "node": node, "source": "perfmodel probe", "notes": notes}
    rows = []
    for record in records:
        task, collective = record.task, record.task.table in COLLECTIVES
        given = set_by | task.environment
        rows.append(same | _task_cells(task) | {
            "backend": "nccl" if collective else "torch", "version": same["nccl"] if collective else same["torch"],
            "latency_us": record.us, "latency_us_min": record.us_min, "latency_us_max": record.us_max,
            "iterations": record.iterations, "repeats": record.repeats, "l2": record.l2, "date": record.date,
            "environment": " ".join(f"{name}={value}" for name, value in sorted(given.items()))})
    return _csv(rows)


def nccl_tests_to_csv(table: NcclTable, ranks: int | None = None, op: str = "", notes: str = "") -> str:
    """Rows of nccl-tests in the same columns; the time out of place, in place where that was not run."""
    op, ranks = op or table.op, ranks or table.ranks
    if not op or not ranks:
        missing = "which collective" if not op else "how many GPUs"
        raise BadInput(f"the text of nccl-tests does not say {missing} it ran", hints=["keep its header lines"])
    rows = [{
        "table": op, "backend": "nccl-tests", "version": table.nccl, "kernel": "nccl", "dtype": row.dtype,
        "mode": {None: "", True: "graph", False: "eager"}[table.in_graph], "gpus": ranks,
        "message_bytes": row.message_bytes, "latency_us": float(f"{1e6 * seconds:.6g}"), "nccl": table.nccl,
        "gpu": " + ".join(dict.fromkeys(table.gpus)), "source": "nccl-tests",
        "notes": "; ".join(filter(None, [notes, "in place" if row.out_of_place_s is None else "",
                                         f"{row.wrong} wrong elements" if row.wrong else ""]))}
        for row in table.rows if (seconds := row.out_of_place_s or row.in_place_s)]
    if not rows:
        raise BadInput("no row of nccl-tests holds a time")
    return _csv(rows)


def _task_cells(task: Task) -> dict[str, Any]:
    return {field.name: value for field in fields(task)
            if (value := getattr(task, field.name)) != field.default or field.name in ("table", "gpus")}


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet does not run: names come from drivers and from files of others."""
    if not isinstance(value, str):
        return value
    value = re.sub(r"[\x00-\x1f\x7f]+", " ", value)[:500]
    return f"'{value}" if value[:1] in ("=", "+", "-", "@") else value


def to_yaml(value: Any, depth: int = 0) -> str:
    """A descriptor as the catalog's files look: a figure a line, groups as blocks.

    >>> print(to_yaml({"memory": {"total": {"value": "1 GB", "kind": "measured"}}, "links": [{"a": "x"}]}), end="")
    memory:
      total: {value: 1 GB, kind: measured}
    links:
      - {a: x}
    """
    pad, lines = "  " * depth, []
    for key, item in value.items():
        if isinstance(item, dict) and item and any(isinstance(inner, (dict, list)) for inner in item.values()):
            lines.append(f"{pad}{_scalar(key)}:\n{to_yaml(item, depth + 1)}")
        elif isinstance(item, list) and item and all(isinstance(inner, dict) for inner in item):
            lines.append(f"{pad}{_scalar(key)}:\n" + "".join(f"{pad}  - {_flow(inner)}\n" for inner in item))
        else:
            lines.append(f"{pad}{_scalar(key)}: {_flow(item)}\n")
    return "".join(lines)


def _flow(item: Any) -> str:
    if isinstance(item, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(value)}" for key, value in item.items()) + "}"
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(map(_flow, item)) + "]"
    return _scalar(item)


def _scalar(item: Any) -> str:
    if item is None or isinstance(item, bool):
        return {None: "null", True: "true", False: "false"}[item]
    if isinstance(item, (int, float)):
        return repr(item)
    text = str(item)
    plain = _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text)
    return text if plain else json.dumps(re.sub(r"[\x00-\x1f\x7f]+", " ", text), ensure_ascii=False)


def write_whole(path: Path, text: str) -> Path:
    """A file, whole or not at all, and the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written, {(error.strerror or 'unknown error').lower()}") from None
    return write.write_whole(path, text)
