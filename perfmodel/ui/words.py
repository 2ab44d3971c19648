"""Words on the page: text of others shown as it stands, refusals with their remedy, small tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from perfmodel.errors import PerfModelError, one_line

NO_BREAK = "\u2011"  # a hyphen at which no line ends
_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:&^=])")


def plain(text: Any) -> str:
    """Text that Markdown shows as it stands: no picture, link, formula or colour comes out of it.

    >>> print(plain("![x](http://a) $y$"))
    \\!\\[x\\]\\(http\\://a\\) \\$y\\$
    """
    return _MARKS.sub(r"\\\1", one_line(str(text)))


def listed(items: Iterable[str]) -> str:
    """A Markdown list of texts that stand as they are."""
    return "\n".join(f"- {plain(item)}" for item in items)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; the first column is left, the others right. Short cells do not break over lines."""
    words = [[_cell(cell) for cell in row] for row in (head, *rows)]
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [words[0], rule, *words[1:]])


def _cell(text: Any) -> str:
    words = plain(text)
    return words.replace(" ", "\u00a0").replace("\\-", NO_BREAK) if len(words) < 36 else words


def refused(error: PerfModelError, about: str = "") -> None:
    """What is wrong with the question (about which strategy), and what may help."""
    import streamlit as st

    help_text = f"\n\nWhat may help:\n{listed(error.hints)}" if error.hints else ""
    st.error(f"{plain(f'{about}: ' if about else '')}{plain(error.message)}{help_text}")
