"""`perfmodel validate own`, `speculation` and `order`: checks that fit or price before they compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

CHECKS = ("own", "speculation", "order")


def run(what: str) -> Any:
    """One of `CHECKS`; a result with text and to_dict."""
    if what == "own":
        from perfmodel.calibration.own_check import check

        return check(progress("sweeps"))
    if what == "order":
        from perfmodel.insight.order import order

        return order()
    from perfmodel.insight.speculation import check as check_speculation

    return check_speculation()


def progress(words: str) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return lambda items: track(list(items), description=words, console=console, transient=True,
                               disable=not console.is_terminal)
