"""A file about a job under way -> Progress: JSON, CSV, a metrics page of Prometheus, or the log of an engine."""

from __future__ import annotations

import csv
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from perfmodel.catalog.once import csv_rows, loads, why
from perfmodel.catalog.yaml import check_plain
from perfmodel.engines.logs import MAX_BYTES
from perfmodel.engines.serving_logs import parse_metrics, parse_serving_log
from perfmodel.errors import BadInput, UnknownName, shown
from perfmodel.planner.job_progress import Progress

KEYS = tuple(f.name for f in fields(Progress) if f.name not in ("serving", "source"))
_FORMS = [
    'JSON: {"samples_done": 1200, "seconds": 5400}',
    "CSV: samples_done,seconds; the last row counts",
    "a metrics page of vLLM or SGLang, with --elapsed",
    "a log of vLLM or SGLang with its lines about throughput",
]


def read_progress(path: str | Path, elapsed: float | None = None) -> Progress:
    """What a file says about the work done so far; ``elapsed`` seconds replace those of the file."""
    file = Path(path)
    try:
        check_plain(file)
        if file.stat().st_size > MAX_BYTES:
            raise BadInput(f"{file.name} is larger than {MAX_BYTES >> 20} MiB")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"{file.name} cannot be read: {(error.strerror or 'unknown error').lower()}") from None
    return progress_of(text, file.name, elapsed)


def progress_of(text: str, name: str, elapsed: float | None = None) -> Progress:
    """The same of a text."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("{"):
        return _keys(_json(start, name), name, elapsed)
    head = start.partition("\n")[0].strip().lower()
    if "seconds" in head.split(",") or "samples_done" in head.split(","):
        return _keys(_last_row(start, name), name, elapsed)
    if start.startswith("#") or start.startswith(("vllm:", "sglang:")):
        done, tokens = parse_metrics(start.splitlines())
        if done is not None or tokens is not None:
            if elapsed is None:
                raise BadInput(f"{name}: a metrics page does not say how long the job runs", ["add --elapsed 3h"])
            return Progress(elapsed, done, tokens, source="metrics page")
    served = parse_serving_log(start.splitlines())
    if served is None:
        raise BadInput(f"{name} says nothing about the work done", _FORMS)
    if elapsed is not None:
        raise BadInput(f"{name}: a log says itself how long the engine has served; leave --elapsed out")
    return Progress(served.seconds, None, served.output_tokens, serving=True, source="engine log")


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        value = loads(text, finite=True)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name}: {why(error)}", _FORMS) from None
    if not isinstance(value, dict):
        raise BadInput(f"{name} must be one JSON object", _FORMS)
    return value


def _last_row(text: str, name: str) -> dict[str, Any]:
    try:
        rows = list(csv_rows(text.splitlines(), name))
    except csv.Error as error:
        raise BadInput(f"{name} cannot be read: {error}") from None
    if not rows:
        raise BadInput(f"{name} has no rows", _FORMS)
    return {str(key).strip(): value for key, value in rows[-1].items() if key is not None and value not in (None, "")}


def _keys(raw: dict[str, Any], name: str, elapsed: float | None) -> Progress:
    for key in raw:
        if key not in KEYS:
            raise UnknownName(f"key in {name}", str(key)[:80], KEYS)
    found = {key: _number(name, key, value) for key, value in raw.items()}
    if elapsed is not None:
        found["seconds"] = elapsed
    if "seconds" not in found:
        raise BadInput(f"{name} does not say how long the job runs", ["add a key seconds, or --elapsed 3h"])
    return replace(Progress(found.pop("seconds"), source=name), **found)  # type: ignore[arg-type]


def _number(name: str, key: str, value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not 0 <= number < math.inf:
        raise BadInput(f"{name}: {key} must be a number of at least 0, not {shown(value)}")
    return number
