"""Hooks of the docs site: formulas become MathML, which browsers draw by themselves; links out of docs/ are paths."""

import html
import posixpath
import re

from latex2mathml.converter import convert

OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")
MATH = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_markdown(markdown: str, page, **_) -> str:
    """Links that leave docs/ cannot work on the site: they become their path in the project."""

    def plain(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[2]))
        return link[0] if target.startswith("docs/") else f"{link[1]} (`{target}`)"

    return OUTSIDE.sub(plain, markdown)


def on_page_content(content: str, **_) -> str:
    """arithmatex marks the formulas; each is turned into MathML, so the site needs no script and no network."""

    def formula(found: re.Match[str]) -> str:
        text = html.unescape(found[2]).strip()
        shown = text.startswith(r"\[")
        return convert(text[2:-2].strip(), display="block" if shown else "inline")

    return MATH.sub(formula, content)
