"""A raw model description -> the YAML text of a file in models/, and the one way in which files are written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
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


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file in one step: whoever reads it, or stops us, finds the old one or the new one.

    The text goes to a file of its own name beside it, to the disk, and is then renamed over it. Two writers at once do
    not mix: the later one wins. Folders above it are made. Refused where the place cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target = target.resolve() if target.is_symlink() else target        # a link stays a link
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(aside, _mode(target))
            os.replace(aside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
        _sync_folder(target.parent)
    except (OSError, ValueError) as error:              # a name of odd characters is a ValueError
        why = getattr(error, "strerror", None) or "not a name of a file"
        raise BadInput(f"{path}: cannot be written, {why.lower()}") from None
    return Path(path)


def _mode(target: Path) -> int:
    """The mode that the file has, or the one that a new file would get."""
    with contextlib.suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """The new name on the disk as well, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
