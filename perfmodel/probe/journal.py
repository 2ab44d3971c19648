"""Finished measurements, one JSON object a line, on disk before the next one starts. A second run takes up there."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from perfmodel.catalog.once import loads
from perfmodel.errors import BadInput
from perfmodel.probe.plan import Task

MAX_BYTES = 2**26
FILE = "probe.jsonl"
# What two runs must share to be one probe.
SAME_MACHINE = ("gpus", "driver", "torch", "cuda", "nccl", "environment")


@dataclass(frozen=True, slots=True)
class Record:
    """A measured task: median and range of repeated averages over so many iterations."""

    task: Task
    us: float
    us_min: float
    us_max: float
    iterations: int
    repeats: int
    l2: str = ""                # cold: data rotated through memory; warm: it may sit in the L2 cache
    date: str = ""


@dataclass(slots=True)
class Journal:
    """An open journal. ``machine`` is what the first run wrote down about the machine."""

    path: Path
    file: IO[bytes]
    machine: dict[str, Any] | None
    records: dict[str, Record]
    failures: dict[str, str]

    def add_machine(self, machine: dict[str, Any]) -> None:
        """Write the machine down, or make sure that it is the one that was measured before."""
        if self.machine is None:
            self.machine = machine
            self._append({"machine": machine})
            return
        for name in SAME_MACHINE:
            before, now = self.machine.get(name), machine.get(name)
            if before != now:
                raise BadInput(
                    f"{self.path} holds measurements with {name} {_short(before)}, this machine has {_short(now)}",
                    hints=["choose another folder with --out"])

    def add(self, record: Record) -> None:
        """A finished measurement."""
        self.records[record.task.key] = record
        self.failures.pop(record.task.key, None)
        values = {field.name: getattr(record, field.name) for field in fields(record) if field.name != "task"}
        self._append({"task": record.task.to_dict(), **values})

    def fail(self, task: Task, why: str) -> None:
        """A task that could not be measured; a later run tries it again."""
        self.failures[task.key] = why
        self._append({"task": task.to_dict(), "error": why[:500]})

    def _append(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


@contextlib.contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """The journal of a folder, locked against a second probe. A line that a crash cut short is dropped."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b")                                                # noqa: SIM115 (closed below)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {(error.strerror or 'unknown error').lower()}") from None
    with file:
        _lock(file, path)
        file.seek(0)
        raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise BadInput(f"{path} is larger than {MAX_BYTES} bytes")
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) != len(raw):
            file.truncate(len(whole))
        yield Journal(path, file, *read_journal(whole.decode("utf-8", "replace"), str(path)))


def read_journal(text: str, name: str = FILE) -> tuple[dict[str, Any] | None, dict[str, Record], dict[str, str]]:
    """(machine, records, failures) of a journal's text."""
    machine: dict[str, Any] | None = None
    records: dict[str, Record] = {}
    failures: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            entry = loads(line)
            if "machine" in entry:
                machine = dict(entry["machine"])
                continue
            task = Task(**entry.pop("task"))
            if "error" in entry:
                failures[task.key] = str(entry["error"])
                continue
            records[task.key] = checked(Record(task, **entry))
            failures.pop(task.key, None)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise BadInput(f"{name}: line {number} is no measurement: {str(error)[:80]}",
                           hints=["move the file away, or choose another folder with --out"]) from None
    return machine, records, failures


def checked(record: Record) -> Record:
    """The record, if its times can be times, its counts counts and its names names."""
    for owner in (record.task, record):
        for field in fields(owner):
            if field.type in ("int", "str") and type(getattr(owner, field.name)).__name__ != field.type:
                raise ValueError(f"{field.name} must be of type {field.type}")
    times = (record.us, record.us_min, record.us_max)
    if not all(type(t) in (int, float) and math.isfinite(t) and t > 0 for t in times):
        raise ValueError(f"{times} are not times in us")
    return record


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:                                 # not on Windows, where nothing else locks either
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(f"{path} is in use by another probe") from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
