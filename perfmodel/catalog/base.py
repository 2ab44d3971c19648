"""What every descriptor is made of: figures with a unit, a kind and a source, and sections of whole numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from perfmodel.units import parse

Kind = Literal["datasheet", "derived", "measured", "assumed"]
Count = Annotated[int, Field(ge=1, le=10**9)]
Whole = Annotated[int, Field(ge=0, le=10**12)]


def quantity(base: str, positive: bool = True) -> BeforeValidator:
    """Text with a unit of this dimension -> SI float; null stays null."""

    def read(text: Any) -> float | None:
        value = None if text is None else parse(text, base)
        if value is not None and (value < 0 or positive and value == 0):
            raise ValueError(f"{text!r} must be {'above' if positive else 'at least'} zero")
        return value

    return BeforeValidator(read)


class Strict(BaseModel):
    """Frozen, and an unknown key is refused with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    near = difflib.get_close_matches(str(key)[:80], cls.model_fields, n=1, cutoff=0.5)
                    known = f"did you mean {near[0]!r}" if near else f"known: {', '.join(cls.model_fields)}"
                    raise ValueError(f"unknown key {str(key)[:80]!r}; {known}")
        return data


class Source(Strict):
    """A document that a figure can be checked against; `accessed` is null while nobody here has opened it."""

    title: str
    url: str | None = None
    accessed: date | None = None
    note: str = ""


class Sourced(Strict):
    """Anything that has a kind and a source of its own."""

    kind: Kind
    source: str | None = None
    note: str = ""


class Figure(Sourced):
    """One number in SI, and where it came from. ``float(figure)`` refuses an unknown value."""

    value: Annotated[float | None, quantity("1")]

    def __float__(self) -> float:
        if self.value is None:
            raise ValueError(f"this figure is not known: {self.note or 'no value in the descriptor'}")
        return self.value


class Size(Figure):
    value: Annotated[float | None, quantity("B")]


class Rate(Figure):
    value: Annotated[float | None, quantity("B/s")]


class Compute(Figure):
    value: Annotated[float | None, quantity("FLOP/s")]


class Seconds(Figure):
    value: Annotated[float | None, quantity("s", positive=False)]


class Power(Figure):
    value: Annotated[float | None, quantity("W", positive=False)]


class Frequency(Figure):
    value: Annotated[float | None, quantity("Hz")]


class Number(Figure):
    value: Annotated[float | None, quantity("1")]


class Section(Strict):
    """A group of whole numbers that share one source."""

    source: str | None = None
    source_kind: Kind
    note: str = ""


class Descriptor(Strict):
    """What every file of the catalog has; all its numbers must lead to `sources`."""

    name: str = Field(min_length=1, max_length=100)
    title: str = ""
    aliases: tuple[str, ...] = ()
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _every_number_has_its_source(self) -> Descriptor:
        for path, item in sourced(self):
            kind = item.source_kind if isinstance(item, Section) else item.kind
            if item.source is not None and item.source not in self.sources:
                raise ValueError(f"{path}: source {item.source!r} is not one of {', '.join(sorted(self.sources))}")
            if item.source is None and getattr(item, "value", 1) is not None and not (kind == "assumed" and item.note):
                raise ValueError(f"{path}: a source is missing (only an assumption with a note may go without)")
        return self


def sourced(item: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every Figure, Parameter and Section inside a noun, with its path."""
    if isinstance(item, (Sourced, Section)):
        yield path or "top level", item
    if isinstance(item, BaseModel):
        item = {name: getattr(item, name) for name in type(item).model_fields}
    if isinstance(item, dict):
        for key, value in item.items():
            yield from sourced(value, f"{path}.{key}".lstrip("."))
    elif isinstance(item, (list, tuple)):
        for index, value in enumerate(item):
            yield from sourced(value, f"{path}[{index}]")
