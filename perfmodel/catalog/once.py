"""JSON and CSV of strangers: a key or a column that says two things is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from typing import Any

from perfmodel.errors import BadInput


def loads(text: str | bytes, finite: bool = False) -> Any:
    """As json.loads, but for the ValueError where one object has a key twice with two values.

    NaN and Infinity are no JSON, yet benchmark tools write them for what they did not measure; ``finite`` refuses them.

    >>> loads('{"a": 1, "a": 1.0}')
    {'a': 1.0}
    >>> loads('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: key 'a' appears twice
    >>> loads('{"a": NaN}', finite=True)
    Traceback (most recent call last):
    ValueError: NaN is no number of JSON
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse if finite else None)


def why(error: Exception) -> str:
    """What to say of a text that `loads` refuses, without its content.

    >>> why(ValueError("key 'a' appears twice")), why(RecursionError())
    ("key 'a' appears twice", 'not JSON')
    """
    if "set_int_max_str_digits" in str(error):
        return "a number of thousands of digits"
    return str(error)[:120] if type(error) is ValueError else "not JSON"


def csv_rows(lines: Iterable[str], where: str, strict: bool = False) -> csv.DictReader[str]:
    """Rows of a CSV by its header, which names no column twice.

    >>> list(csv_rows(["a,b", "1,2"], "x.csv"))
    [{'a': '1', 'b': '2'}]
    >>> csv_rows(["a,b,a", "1,2,3"], "x.csv")
    Traceback (most recent call last):
    perfmodel.errors.BadInput: x.csv: column 'a' appears twice
    """
    table, seen = csv.DictReader(lines, strict=strict), set[str]()
    for name in filter(None, map(str.strip, table.fieldnames or ())):
        if name in seen:
            raise BadInput(f"{where}: column {name[:80]!r} appears twice")
        seen.add(name)
    return table


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        for key, value in items:
            if found[key] != value:
                raise ValueError(f"key {key[:80]!r} appears twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")
