"""What readers of result files share: numbers that are checked, and what is asked for when a file does not say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.errors import BadInput, shown

MOST = 1e9


@dataclass(frozen=True, slots=True)
class Stated:
    """What the user states beside a file, because no file of that tool says it."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float | None = None

    def need(self, where: str, tool: str, name: str) -> float:
        """A figure that the file lacks; asked for by its flag."""
        value: float | None = getattr(self, name)
        if value is None:
            raise BadInput(f"{where}: a result of {tool} does not say {name}",
                           hints=[f"state it: --{name.replace('_', '-')} N"])
        return value


def positive(where: str, name: str, given: Any, most: float = MOST) -> float:
    """A finite number above zero, from a number or its text (with commas as AIPerf writes them)."""
    try:
        value = float(given.replace(",", "") if isinstance(given, str) else given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(given, bool) or not (math.isfinite(value) and 0 < value < most):
        raise BadInput(f"{where}: {name} must be a positive number, not {shown(given, 40)}")
    return value


def number(where: str, row: Mapping[str, Any], name: str) -> float:
    """A positive number of a row."""
    return positive(where, name, row.get(name))


def maybe(where: str, row: Mapping[str, Any], *names: str) -> float | None:
    """The first of these that is there and not empty, as a positive number; zero counts as not measured."""
    for name in names:
        if row.get(name) not in (None, "", 0, 0.0):
            return positive(where, name, row[name])
    return None
