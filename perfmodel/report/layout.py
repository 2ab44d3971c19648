"""Plain text that reads well without colour: aligned tables, wrapped lists, numbers with sensible digits."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields

from perfmodel.deployment import Deployment

WIDTH = 80


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = (0,), gap: str = "  ") -> list[str]:
    """Lines of an aligned table; columns in ``left`` are left-aligned, a header may have two lines.

    >>> print(*table(["stage", "free\\nGiB"], [["0", "7.1"], ["1", "16.4"]]), sep="\\n")
    stage  free
            GiB
    -----  ----
    0       7.1
    1      16.4
    """
    words, heads = [list(row) for row in rows], [text.split("\n") for text in head]
    tall = max(len(lines) for lines in heads)
    heads = [[*lines, *[""] * (tall - len(lines))] for lines in heads]
    widths = [max(map(len, [*lines, *(row[i] for row in words)])) for i, lines in enumerate(heads)]
    flush = set(left)

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i in flush else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return gap.join(padded).rstrip()

    named = [i == 0 or any(lines) for i, lines in enumerate(heads)]
    rule = gap.join(("-" if under else " ") * width for under, width in zip(named, widths, strict=True)).rstrip()
    return [*(line([lines[k] for lines in heads]) for k in range(tall)), rule, *map(line, words)]


def tables(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = WIDTH) -> list[str]:
    """Lines of a table; where it is wider than the page, the columns go on below, after the first one again.

    >>> print(*tables(["", "a", "b"], [["x", "1", "2"]], most=6), sep="\\n")
       a
    -  -
    x  1
    <BLANKLINE>
       b
    -  -
    x  2
    """
    count = len(head) - 1
    while count > 1 and max(map(len, table(head[: count + 1], [row[: count + 1] for row in rows]))) > most:
        count -= 1
    lines = table(head[: count + 1], [row[: count + 1] for row in rows])
    if count + 1 >= len(head):
        return lines
    rest = [[row[0], *row[count + 1 :]] for row in rows]
    return [*lines, "", *tables([head[0], *head[count + 1 :]], rest, most)]


def wrapped(text: str, first: str = "", rest: str | None = None) -> str:
    """A paragraph at most 80 columns wide (only a longer word, such as an address, sticks out).

    ``first`` stands before the first line, ``rest`` before the others.
    """
    rest = " " * len(first) if rest is None else rest
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def listed(title: str, items: Iterable[str]) -> list[str]:
    """A titled, indented list; nothing if there are no items."""
    lines = [wrapped(item, "  - ", "    ") for item in items]
    return ["", f"{title}:", *lines] if lines else []


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table: ``digits`` significant, thousands marked, at most four places behind the point.

    >>> number(2310.4), number(91.44), number(0.5217), number(2e-6), number(None)
    ('2,310', '91.4', '0.522', '<0.0001', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if 0 < value < 5e-5:
        return "<0.0001"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(places, 0), 4)}f}"


def span(low: float | None, high: float | None) -> str:
    """A band, such as ``84.1-101``."""
    return f"{number(low)}-{number(high)}"


_NO_ROOM = {  # verdict of a memory answer -> what finds no room
    "oom_weights": "weights",
    "no_kv": "KV pool",
    "kv_too_small": "KV too small",
    "oom_request_table": "request table",
    "oom_graphs": "CUDA graphs",
    "oom_sampler": "sampler",
    "oom_prefill": "a prefill chunk",
    "state_slots": "state slots",
}


def no_room(verdict: str) -> str:
    """What finds no room, in words, by the verdict of a memory answer."""
    return _NO_ROOM.get(verdict, verdict)


def no_fit(verdict: str) -> str:
    """A verdict of a memory answer in words.

    >>> no_fit("oom_weights")
    'does not fit: weights'
    """
    return f"does not fit: {no_room(verdict)}"


def over_gpus(count: int) -> str:
    """How many GPUs something lies on.

    >>> over_gpus(1), over_gpus(8)
    ('on 1 GPU', 'over 8 GPUs')
    """
    return "on 1 GPU" if count == 1 else f"over {count:,} GPUs"


def heading(deployment: Deployment) -> str:
    """What is asked about, in one line."""
    d, o = deployment, deployment.options
    return f"{d.model.name}, {d.name} on {d.gpus} of {d.node.count} GPUs of {d.node.name}, {o.engine} {o.version}"


def labels(deployments: Sequence[Deployment]) -> list[str]:
    """Short names of several deployments, each told apart from the others by what differs in the request."""
    names = [d.name for d in deployments]
    if len({(d.options.engine, d.options.version) for d in deployments}) > 1:
        names = [f"{name} {d.options.engine} {d.options.version}" for name, d in zip(names, deployments, strict=True)]
    return [
        " ".join([name, *_differences(d, [e for e, same in zip(deployments, names, strict=True) if same == name])])
        for name, d in zip(names, deployments, strict=True)
    ]


def _differences(one: Deployment, namesakes: Sequence[Deployment]) -> list[str]:
    keys = [f.name for f in fields(one.requested) if f.name not in ("engine", "version")]
    differing = [key for key in keys if len({getattr(d.requested, key) for d in namesakes}) > 1]
    own = [f"{key}={getattr(one.requested, key)}" for key in differing if getattr(one.requested, key) is not None]
    nodes = {d.node.name for d in namesakes} | {d.model.name for d in namesakes}
    return own + ([f"{one.model.name} on {one.node.name}"] if len(nodes) > 2 else [])


_PARTS = (  # of a strategy's name
    (r"\bTP\d", "TP: tensor parallel"),
    (r"\bDPA\d", "DPA: attention groups"),
    (r"\bPP\d", "PP: pipeline stages"),
    (r"\bEP\d", "EP: expert groups"),
    (r"\bDCP\d", "DCP: ways a sequence's KV cache is split"),
    (r" x\d", "x2 behind a name: copies"),
)


def legend(names: Iterable[str]) -> str:
    """What the letters in these names of strategies mean.

    >>> legend(["TP8+EP4", "TP2xPP4"])
    'TP: tensor parallel; PP: pipeline stages; EP: expert groups'
    """
    text = " | ".join(names).replace("x", " x").replace(" xPP", " PP").replace(" xTP", " TP")
    return "; ".join(words for pattern, words in _PARTS if re.search(pattern, text))


def launch_line(command: str, title: str = "launch") -> list[str]:
    """A launch command over several lines that a shell still reads as one."""
    words = textwrap.wrap(command, WIDTH - 6, break_on_hyphens=False, break_long_words=False)
    return ["", f"{title}:", *(f"  {text} \\" for text in words[:-1]), *(f"  {text}" for text in words[-1:])]
