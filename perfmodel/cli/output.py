"""How every command prints: JSON or text on stdout, warnings and hints on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import click


def finite(value: Any) -> Any:
    """The same with null for what is not finite, so that it is JSON.

    >>> finite({"a": [1.0, float("inf")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_json(answer: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(finite(answer), indent=2, allow_nan=False, ensure_ascii=False))


def warn(lines: Iterable[str], word: str = "warning") -> None:
    """Talk, one line each, on stderr."""
    for line in lines:
        click.echo(f"{word}: {line}", err=True)


def show(answer: Any, text: Callable[[], str], given: dict[str, Any], **drawing: Any) -> None:
    """The answer as ``--json`` or as text, and as a picture where ``--plot`` asks for one."""
    if given["as_json"]:
        print_json(answer.to_dict())
    else:
        click.echo(text())
    if given.get("plot"):
        from perfmodel.report import save

        save(answer, given["plot"], **drawing)


def check_picture(path: str | None) -> None:
    """Refuse a picture that cannot be written before anything is computed."""
    if path:
        from perfmodel.report.plots import check_path

        check_path(path)
