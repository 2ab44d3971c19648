"""A descriptor as text: every figure with its kind and its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.report.layout import WIDTH, listed, wrapped
from perfmodel.units import gb_gib, si

if TYPE_CHECKING:
    from perfmodel.catalog.base import Descriptor

UNITS = {"Rate": "B/s", "Compute": "FLOP/s", "Seconds": "s", "Power": "W", "Frequency": "Hz"}
TITLED = ("name", "title", "aliases", "sources", "assumptions", "hashes")  # said elsewhere; hashes only in JSON


def descriptor_text(noun: Descriptor, kind: str = "") -> str:
    """Figures with their sources, then the sources."""
    title = f"{kind} {noun.name}" + (f": {' '.join(noun.title.split())}" if noun.title else "")
    lines = [wrapped(title.strip(), rest="  ")]
    lines += [wrapped(f"also {', '.join(noun.aliases)}", rest="  ")] if noun.aliases else []
    rows = [(path, f"{value}  [{kind}{', ' + source if source else ''}]" if kind else value)
            for path, value, kind, source in figures(noun)]  # fmt: skip
    width = min(max(len(path) for path, _ in rows), 40)
    lines.append("")
    for path, text in rows:
        first, rest = f"{path:<{width}}  ", " " * min(width + 2, 30)
        longest = max(map(len, text.split()), default=0)
        if len(path) <= width and len(first) + longest <= WIDTH:
            lines.append(wrapped(text, first, rest))
        else:
            lines += [path, wrapped(text, rest if len(rest) + longest <= WIDTH else "    ")]
    from perfmodel.catalog import sourced

    notes = [f"{path}: {item.note}" for path, item in sourced(noun) if item.note]
    sources = [
        f"{key}: {source.title}" + (f", {source.url}" if source.url else "") for key, source in noun.sources.items()
    ]
    assumptions = getattr(noun, "assumptions", ())
    lines += [*listed("notes", notes), *listed("sources", sources), *listed("assumptions", assumptions)]
    return "\n".join(lines)


def figures(noun: Any) -> list[tuple[str, str, str, str]]:
    """(path, value, kind, source) of every figure and word of a descriptor; kind and source are empty for words."""
    return _rows(noun, "", "", "")


def _rows(item: Any, path: str, kind: str, source: str) -> list[tuple[str, str, str, str]]:
    """(path, value, kind, source) of every number and word below an item; a section's source holds for all in it."""
    from pydantic import BaseModel

    if isinstance(item, BaseModel):
        if type(item).__name__ == "Link":
            return [(path, f"{item.a} - {item.b}, {item.kind}", "", "")]  # type: ignore[attr-defined]
        if hasattr(item, "value"):
            return [(path, _value(item), item.kind, item.source or "")]  # type: ignore[attr-defined]
        if hasattr(item, "source_kind"):
            kind, source = item.source_kind, getattr(item, "source", None) or ""
        skip = {"source", "source_kind", "note", *(TITLED if not path else ())}
        item = {name: getattr(item, name) for name in type(item).model_fields if name not in skip}
    if isinstance(item, dict) and item and all(isinstance(value, str) for value in item.values()):
        return [(path, ", ".join(f"{key}={value}" for key, value in item.items()), kind, source)]
    if isinstance(item, dict):
        return [row for key, value in item.items() for row in _rows(value, f"{path}.{key}".lstrip("."), kind, source)]
    if isinstance(item, list | tuple) and any(isinstance(value, BaseModel) for value in item):
        return [row for i, value in enumerate(item) for row in _rows(value, f"{path}[{i}]", kind, source)]
    if item is None or item == "" or item == ():
        return []
    if isinstance(item, list | tuple):
        return [(path, ", ".join(map(str, item)), kind, source)]
    return [(path, f"{item:,}" if type(item) is int else str(item), kind, source)]


def _value(figure: Any) -> str:
    name = type(figure).__name__
    if figure.value is None:
        return "not known"
    if name == "Parameter":
        band = f" x/ {1 + figure.sd:.2g}" if figure.sd else ""
        unit = getattr(figure, "unit", "1")
        return (f"{figure.value:g}" if unit == "1" else si(figure.value, unit)) + band
    if name == "Size":
        return gb_gib(figure.value)
    return si(figure.value, UNITS[name]) if name in UNITS else f"{figure.value:g}"
