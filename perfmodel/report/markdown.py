"""A report as Markdown; its pictures are files beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perfmodel.report.page import Answers, sections, title
from perfmodel.report.page_blocks import Block, Code, Items, Links, Picture, Section, Table, Text


def render(answers: Answers, file: Path) -> tuple[str, Mapping[Path, bytes]]:
    """The text, and the pictures by the path that it names them with."""
    pictures: dict[Path, bytes] = {}
    parts = [f"# {_words(title(answers))}"]
    parts += [_section(section, file, pictures) for section in sections(answers)]
    return "\n\n".join(parts) + "\n", pictures


def _words(text: str) -> str:
    r"""Text that cannot become markup, on one line.

    >>> print(_words("a|b *c* <i> [d](e)"))
    a\|b \*c\* \<i\> \[d\](e)
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = re.sub(r"([\\`*_<>\[\]|~#!&])", r"\\\1", line)
    return re.sub(r"^(\d+)([.)] )|^([-+=])", lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", line)


def _section(section: Section, file: Path, pictures: dict[Path, bytes]) -> str:
    return "\n\n".join([f"## {_words(section.title)}", *(_block(block, file, pictures) for block in section.blocks)])


def _block(block: Block, file: Path, pictures: dict[Path, bytes]) -> str:
    match block:
        case Text():
            return f"**{_words(block.words)}**" if block.strong else _words(block.words)
        case Code():
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block.words)), default=0))
            return f"{fence}sh\n{block.words}\n{fence}"
        case Items():
            head = [f"### {_words(block.title)}", ""] if block.title else []
            return "\n".join([*head, *(f"* {_words(word)}" for word in block.words)])
        case Table():
            rows = [[_words(word) or " " for word in row] for row in block.rows]
            head = [_words(word) or " " for word in block.head]
            rule = ["---:" if _numbers([row[i] for row in block.rows]) else "---" for i in range(len(head))]
            return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])
        case Picture():
            path = file.with_name(f"{file.stem}-{block.name}.svg")
            pictures[path] = block.content(".svg")
            return f"![{_words(block.alt)}](<{_address(path.name)}>)"
        case Links():
            sources = [f"{_words(key)}: {_words(words)}, {_words(at)}" for key, words, at in block.rows]
            return "\n".join(["### Sources", "", *(f"* {said.removesuffix(', ')}" for said in sources)])


def _numbers(column: list[str]) -> bool:
    return bool(column) and all(re.fullmatch(r"[-+<]?[\d.,]+(-[\d.,]+)?( %|%)?|-", word) for word in column)


def _address(name: str) -> str:
    """The name of a file inside ``<>``."""
    return re.sub(r"([\\<>])", r"\\\1", name)
