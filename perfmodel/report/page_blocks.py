"""What a page is built of; how it looks is the business of html.py and markdown.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Text:
    words: str
    strong: bool = False


@dataclass(frozen=True)
class Code:
    """A command, to be copied."""

    words: str


@dataclass(frozen=True)
class Items:
    words: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, eq=False)
class Picture:
    """What `perfmodel.report.plot` draws of a noun; ``alt`` says it in words."""

    name: str
    noun: Any
    alt: str
    keywords: dict[str, Any] = field(default_factory=dict)

    def content(self, ending: str) -> bytes:
        """The picture as the content of a file."""
        from perfmodel.report.plots import plot
        from perfmodel.report.style import drawn

        return drawn(lambda ax: plot(self.noun, ax=ax, **self.keywords), ending)


@dataclass(frozen=True)
class Links:
    """Sources: key, title, address."""

    rows: Sequence[tuple[str, str, str]]


Block = Text | Code | Items | Table | Picture | Links


@dataclass(frozen=True, eq=False)
class Section:
    """A heading and what stands below it; ``folded`` ones are long and open when asked for, or on paper."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False
