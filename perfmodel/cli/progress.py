"""A bar on stderr for what takes long: nothing where that is no terminal, and nothing in the first second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 1.0


@contextmanager
def bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """Gives ``advance(done, total)``; the bar appears when a call comes after a second, and goes when all is done."""
    shown: list[Any] = []
    began = time.monotonic()

    def advance(done: int, total: int) -> None:
        if not shown and sys.stderr is not None and sys.stderr.isatty() and time.monotonic() - began > PATIENCE_S:
            shown.append(_started(words, total))
        if shown:
            progress, line = shown[0]
            progress.update(line, completed=done, total=total)

    try:
        yield advance
    finally:
        for progress, _ in shown:
            progress.stop()


def _started(words: str, total: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress, progress.add_task(words, total=total)
