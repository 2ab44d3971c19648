"""A report as one HTML file: no network, no script, every word escaped; for screens of all widths, dark or light, and
for paper."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from string import Template

from perfmodel.report.frames import html_table
from perfmodel.report.page import Answers, sections, title
from perfmodel.report.page_blocks import Block, Code, Items, Links, Picture, Section, Table, Text

MOST_LINK = 2000
_STYLE = """
:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--soft:#f3f4f6;--line:#d0d4da;--link:#0054a0}
@media (prefers-color-scheme:dark){
:root{--ink:#e8e8e8;--paper:#16181c;--soft:#22252b;--line:#3c4048;--link:#7cb8f0}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink)}
body{background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .25rem}
a{color:var(--link)}
ul{padding-left:1.25rem}
.scroll{overflow-x:auto;margin:.75rem 0}
table{border-collapse:collapse;font-size:.85rem;overflow-wrap:normal}
th,td{padding:.25rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{background:var(--soft)}
td{max-width:26rem}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
pre{background:var(--soft);padding:.75rem;overflow-x:auto;white-space:pre-wrap;font-size:.85rem}
figure{margin:1rem 0;overflow-x:auto}
img{display:block;width:100%;min-width:34rem;height:auto;background:#fff;border:1px solid var(--line);padding:.25rem}
summary{cursor:pointer;font-weight:600;margin:1.5rem 0 .5rem}
summary h2{display:inline;border:0}
strong{font-size:1.05rem}
@media print{
:root{--ink:#000;--paper:#fff;--soft:#f3f4f6;--line:#bbb;--link:#000}
body{max-width:none;font-size:10pt;padding:0}
details::details-content{content-visibility:visible;block-size:auto}
figure,tr,pre{break-inside:avoid}
figure,.scroll{overflow:visible}
img{min-width:0}
h2,h3{break-after:avoid}
table{font-size:8pt}}
""".strip()
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="perfmodel">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<h1>$title</h1>
<main>
$body
</main>
</body>
</html>
""")


def render(answers: Answers) -> str:
    """The whole file."""
    body = "\n".join(_section(section) for section in sections(answers))
    return _PAGE.substitute(title=_words(title(answers)), style=_STYLE, body=body)


def _words(text: str) -> str:
    """Text that cannot become markup, without characters that no page may hold."""
    return escape("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text))


def _section(section: Section) -> str:
    inside = "\n".join(map(_block, section.blocks))
    if section.folded:
        return f"<details><summary><h2>{_words(section.title)}</h2></summary>\n{inside}\n</details>"
    return f"<section>\n<h2>{_words(section.title)}</h2>\n{inside}\n</section>"


def _block(block: Block) -> str:
    match block:
        case Text():
            return f"<p><strong>{_words(block.words)}</strong></p>" if block.strong else f"<p>{_words(block.words)}</p>"
        case Code():
            return f"<pre><code>{_words(block.words)}</code></pre>"
        case Items():
            head = f"<h3>{_words(block.title)}</h3>" if block.title else ""
            return head + "<ul>" + "".join(f"<li>{_words(word)}</li>" for word in block.words) + "</ul>"
        case Table():
            rows = [[_printable(word) for word in row] for row in block.rows]
            return f'<div class="scroll">{html_table([_printable(word) for word in block.head], rows)}</div>'
        case Picture():
            data = b64encode(block.content(".svg")).decode("ascii")
            return f'<figure><img alt="{_words(block.alt)}" src="data:image/svg+xml;base64,{data}"></figure>'
        case Links():
            return "<h3>Sources</h3><ul>" + "".join(f"<li>{_link(*row)}</li>" for row in block.rows) + "</ul>"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _link(key: str, words: str, address: str) -> str:
    """A source; an address that is no web address stays text."""
    said = f"{_words(key)}: {_words(words)}"
    if address.startswith(("https://", "http://")) and len(address) <= MOST_LINK and address.isprintable():
        return f'{said}, <a href="{escape(address)}" rel="noreferrer">{_words(address)}</a>'
    return f"{said}, {_words(address)}" if address else said
