"""How every command prints: JSON or text on stdout, warnings and hints on stderr."""

from __future__ import annotations

import json
import math
import re
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


def other_rules(deployment: Any) -> list[str]:
    """A warning where a version was asked for and the rules of another one answer, as the assumptions have it."""
    ours = f"the rules of {deployment.options.version} apply"
    return [line.removeprefix("engine: ") for line in deployment.assumptions
            if line.startswith("engine: ") and line.endswith(ours)]


def show(answer: Any, text: Callable[[], str], given: dict[str, Any], **drawing: Any) -> None:
    """The picture that ``--plot`` asks for, which may be refused, and then the answer as ``--json`` or as text."""
    if given.get("plot"):
        from perfmodel.report import save

        if given.get("picture"):
            drawing = {"kind": given["picture"], **(drawing if given["picture"] == "throughput" else {})}
        save(answer, given["plot"], **drawing)
    if given["as_json"]:
        print_json(answer.to_dict())
    else:
        click.echo(text())


_PAIR = re.compile(r"(?:^|(?<= ))(?:with )?([a-z_]+)=(\S+)")


def as_flags(hint: str) -> str:
    """A hint that names keywords, in the words of the command line.

    >>> as_flags("tp=1 pp=8 with memory_fraction=0.92 on 8x-h100-sxm fits, with 10 KV tokens")
    '--tp 1 --pp 8 --memory-fraction 0.92 --node 8x-h100-sxm fits, with 10 KV tokens'
    >>> as_flags("cuda_graphs=False fits")
    '--no-cuda-graphs fits'
    """
    from perfmodel.cli.options import KEYWORDS

    def flag(pair: re.Match[str]) -> str:
        name, value = pair[1].replace("_", "-"), pair[2]
        if pair[1] not in KEYWORDS:
            return pair[0]
        if KEYWORDS[pair[1]].reads == "switch":
            return f"--{name}" if value == "True" else f"--no-{name}"
        return f"--{name} {value}"

    if "--" in hint:  # already so
        return hint
    return re.sub(r" on ([0-9]+x-\S+) fits", r" --node \1 fits", _PAIR.sub(flag, hint))


def check_picture(path: str | None) -> None:
    """Refuse a picture that cannot be written before anything is computed."""
    if path is not None:
        from perfmodel.report.style import check_path

        check_path(path)
