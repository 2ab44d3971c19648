"""Many launch texts at once: which parse, which are no command, and which of their flags are not understood."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perfmodel.catalog.once import csv_rows, loads, why
from perfmodel.catalog.yaml import read_text
from perfmodel.errors import BadInput, PerfModelError, one_line
from perfmodel.insight.launch import NotACommand, read_launch

MOST_BYTES, MOST_TEXTS = 2**24, 20_000
KEYS = ("launch_command", "command", "launch", "cmd")


@dataclass(frozen=True)
class Read:
    """What became of one text: its engine and what was not understood, or why it was not read."""

    text: str
    engine: str                     # empty: it starts no server, or is refused
    refused: str                    # empty: it parses, or is no command
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """parses, not a command, refused."""
        return "parses" if self.engine else "refused" if self.refused else "not a command"


@dataclass(frozen=True)
class Texts:
    """All texts of a file, each once."""

    reads: tuple[Read, ...]

    def counts(self) -> dict[str, int]:
        """How many of each outcome, and of each engine."""
        outcomes = Counter(read.outcome for read in self.reads)
        engines = Counter(read.engine for read in self.reads if read.engine)
        return {"texts": len(self.reads), "parse": outcomes["parses"], "not_a_command": outcomes["not a command"],
                "refused": outcomes["refused"], **dict(sorted(engines.items()))}

    def to_dict(self) -> dict[str, Any]:
        """Counts, and every text that is not plainly read."""
        return {
            **self.counts(),
            "not_understood": [{"text": r.text, "unknown": list(r.unknown)} for r in self.reads if r.unknown],
            "not_commands": [r.text for r in self.reads if r.outcome == "not a command"],
            "refusals": [{"text": r.text, "why": r.refused} for r in self.reads if r.refused],
            "flag_warnings": dict(Counter(w for r in self.reads for w in r.warnings).most_common()),
        }


def read_texts(path: str | os.PathLike[str]) -> Texts:
    """Texts of JSON lines (``launch_command`` or ``command``), of a CSV with such a column, or one a line."""
    name = os.path.basename(os.fspath(path))
    found = dict.fromkeys(_texts(read_text(path, MOST_BYTES), name))
    if not found:
        raise BadInput(f"{name}: no text in it", [f"a column or key named {' or '.join(KEYS[:2])}, or one text a line"])
    if len(found) > MOST_TEXTS:
        raise BadInput(f"{name}: more than {MOST_TEXTS:,} texts")
    return Texts(tuple(map(read_one, found)))


def read_one(text: str) -> Read:
    """One text, whatever it is."""
    try:
        launch = read_launch(text)
    except NotACommand:
        return Read(one_line(text), "", "")
    except PerfModelError as problem:
        return Read(one_line(text), "", problem.message)
    return Read(one_line(text), launch.engine, "", launch.unknown, launch.warnings)


def _texts(text: str, name: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].lstrip().startswith("{"):
        for number, line in enumerate(lines, start=1):
            try:
                row = loads(line)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{name}: line {number}: {why(error)}") from None
            yield from _given(row)
    elif lines and set(lines[0].split(",")) & set(KEYS):
        try:
            for row in csv_rows(text.splitlines(keepends=True), name):
                yield from _given(row)
        except csv.Error as problem:
            raise BadInput(f"{name}: not a CSV, {problem}") from None
    else:
        yield from lines


def _given(row: Any) -> Iterator[str]:
    for key in KEYS:
        if isinstance(row, dict) and isinstance(row.get(key), str) and row[key].strip():
            yield row[key]
            return
