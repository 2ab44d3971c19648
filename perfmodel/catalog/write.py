"""A raw model description -> the YAML text of a file in models/, and the one way in which files are written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfmodel.errors import BadInput

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+-]+)*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}
BLANK_BEFORE = {"sources", "source", "blocks", "attention", "mlp", "formats", "storage", "kv_cache", "vision", "mtp",
                "per_layer_input", "note"}  # fmt: skip
NESTED = {"sources", "attention", "mlp", "formats", "storage", "vision", "mtp", "per_layer_input"}


def to_yaml(raw: dict[str, Any]) -> str:
    """One section a line, as the files of models/ are written.

    >>> print(to_yaml({"name": "a", "blocks": [{"repeat": 2, "of": [{"layers": 1, "mlp": "x"}]}]}), end="")
    name: a
    <BLANKLINE>
    blocks:
      - {repeat: 2, of: [{layers: 1, mlp: x}]}
    """
    lines: list[str] = []
    for key, value in raw.items():
        if key in BLANK_BEFORE and lines:
            lines.append("")
        if key == "blocks":
            lines += ["blocks:", *(f"  - {flow(block)}" for block in value)]
        elif key in NESTED:
            lines += [f"{key}:" if value else f"{key}: {{}}",
                      *(f"  {word(name)}: {flow(item)}" for name, item in value.items())]
        else:
            lines.append(f"{key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{word(str(key))}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return word(str(value))


def word(text: str) -> str:
    """Text, in quotes where YAML would read it otherwise."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


@contextlib.contextmanager
def in_place_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """The name of a new file that takes the place of ``path`` at the end: readers find the old one or the new one.

    It lies beside it under a name of its own, is forced to the disk, and is then renamed. Whatever stops the body, the
    old file stays and nothing is left behind. Two writers at once do not mix: the later one wins.
    """
    target = Path(path)
    try:
        target = target.resolve() if target.is_symlink() else target                    # a link stays a link
        if target.is_symlink():                                 # to itself; Python before 3.13 says so above
            raise RuntimeError
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}-", suffix=target.suffix[:20])
        os.close(handle)
    except (OSError, ValueError, RuntimeError) as error:        # odd characters; a link to itself
        raise _refused(path, error) from None
    try:
        yield aside
        _to_disk(aside)
        os.chmod(aside, _mode(target))
        os.replace(aside, target)
        _to_disk(target.parent)
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(aside)


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Text as a file, whole or not at all."""
    with in_place_of(path) as aside, open(aside, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return Path(path)


def _refused(path: str | os.PathLike[str], error: Exception) -> BadInput:
    why = getattr(error, "strerror", None) or "no such file"
    return BadInput(f"{os.fspath(path)}: cannot be written, {why.lower()}")


def _mode(target: Path) -> int:
    """The mode that the file has, or the one that a new file would get."""
    with contextlib.suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _to_disk(path: str | Path) -> None:
    """A file, or the names in a folder; not every system lets a folder be opened."""
    with contextlib.suppress(PermissionError, IsADirectoryError):
        handle = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
