"""A raw model description -> the YAML text of a file in models/."""

from __future__ import annotations

import json
import re
from typing import Any

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
