"""docs/json.md and docs/schemas/, made from the types in schemas.py and the two files beside it."""

from __future__ import annotations

import json
from typing import Any

from perfmodel.cli.schemas import schema
from perfmodel.cli.schemas_more import PRINTED

DESCRIBED = ("Accelerator", "Node", "ModelArch", "Calibration", "Engine")  # in the files of the catalog
INTRODUCTION = """# JSON

Made by `python -m perfmodel.cli.docs docs/json.md` from the types in `perfmodel/cli/schemas.py`; change it there.

Every command takes `--json`, which prints the same as `.to_dict()` in Python: one document on stdout, nothing else.
Units are in the names ([nomenclature](nomenclature.md)). Numbers are finite or null. Keys are added, never renamed or
removed without the notice that the [architecture](architecture.md#what-stays-and-for-how-long) promises; a key that is
not listed does not come.

`perfmodel schema` lists the commands, `perfmodel schema NAME` prints the JSON Schema (2020-12) of one; the same files
lie in `docs/schemas/`. In the tables `?` marks a key that comes only where it applies, and a type that several commands
share stands once, at the end. A column of one question is a scalar, of several a list.
"""


def files() -> dict[str, str]:
    """Page and schemas by their path below docs/."""
    found = {f"schemas/{name.replace(' ', '-')}.json": json.dumps(schema(name), indent=1) + "\n" for name in PRINTED}
    return {"json.md": page(), **found}


def page() -> str:
    """The page: a table a command, then the types that they share."""
    parts = [INTRODUCTION]
    shared: dict[str, Any] = {}
    for name in PRINTED:
        whole = schema(name)
        defined = whole.get("$defs", {})
        file = f"schemas/{name.replace(' ', '-')}.json"
        parts.append(f"## {name}\n\nPrints {_type(whole)}. Schema: [{file}]({file}).\n")
        if "properties" in whole:
            parts.append(_table(whole))
        shared |= {} if name == "catalog show" else defined  # descriptors have their own pages
    parts.append("## Types\n")
    parts += [f"### {name}\n\n{_said(one)}{_table(one)}" for name, one in sorted(shared.items()) if "properties" in one]
    return "\n".join(parts)


def _said(one: dict[str, Any]) -> str:
    words = " ".join(one.get("description", "").split()).replace("``", "`")
    return f"{words}\n\n" if words else ""


def _table(one: dict[str, Any]) -> str:
    needed = set(one.get("required", ()))
    rows = [f"| `{key}`{'' if key in needed else ' ?'} | {_type(kind)} | {kind.get('description', '')} |"
            for key, kind in one["properties"].items()]  # fmt: skip
    return "\n".join(["| key | type | |", "|---|---|---|", *rows, ""])


def _type(kind: dict[str, Any]) -> str:
    """A type in words."""
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return name if name in DESCRIBED else f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(dict.fromkeys(_type(one) for one in kind["anyOf"]))
    if "enum" in kind:
        return ", ".join(f"`{word}`" for word in kind["enum"])
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    if kind.get("type") == "object" and "properties" not in kind:
        values = kind.get("additionalProperties")
        return f"object of {_type(values)}" if isinstance(values, dict) else "object"
    return {"object": "an object of these keys", None: "any"}.get(kind.get("type"), str(kind.get("type")))
