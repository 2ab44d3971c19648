"""The answers of `whatif` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.report.layout import heading, listed, no_fit, number, span, table, wrapped

if TYPE_CHECKING:
    from perfmodel.insight.whatif import Outcome, WhatIf

MOST_LOADS = 4


def whatif_text(answer: WhatIf, brief: bool = False) -> str:
    """One line a change, best first; below, unless ``brief``, how each was asked."""
    loads = answer.concurrency[-MOST_LOADS:]
    first = len(answer.concurrency) - len(loads)
    rows = [["now", *_rates(answer.base, first, False), "", _load(answer.base)]]
    rows += [[_label(o), *_rates(o, first, True), _money(o), _load(o)] for o in answer.outcomes if not o.refused]
    priced = any(o.price is not None for o in answer.outcomes)
    head = ["tok/s", *(f"C={c:g}" for c in loads), f"per 1,000\nat C={loads[-1]:g}", "load\ns"]
    if not priced:
        head, rows = head[:-2] + head[-1:], [row[:-2] + row[-1:] for row in rows]
    order = "most for its price first" if priced else f"best at C={loads[-1]:g} first"
    lines = [wrapped(heading(answer.deployment), rest="  "), "", f"With one thing changed, {order}:", "",
             *table(head, rows)]
    lines += listed("not answered", (f"{o.change}: {o.refused}" for o in answer.outcomes if o.refused))
    if brief:
        return "\n".join(lines)
    for o in answer.outcomes:
        if not o.refused:
            lines += ["", *_details(answer, o)]
    return "\n".join([*lines, *listed("assumptions of all", answer.base.assumptions)])


def _label(o: Outcome) -> str:
    return o.change if len(o.change) <= 26 else o.change[:23] + "..."


def _rates(o: Outcome, first: int, gains: bool) -> list[str]:
    assert o.tok_s is not None
    values = list(o.tok_s[0])[first:]
    if not gains:
        return [number(value) for value in values]
    if o.memory is not None and not o.memory.fits:
        return ["no fit"] * len(values)
    now = [value - gain for value, gain in zip(values, o.gain[first:], strict=True)]
    return [f"{number(v)} {100 * (v / n - 1):+.0f}%" for v, n in zip(values, now, strict=True)]


def _money(o: Outcome) -> str:
    return "" if o.per_money is None else f"{o.per_money:+,.3g}"


def _load(o: Outcome) -> str:
    if o.load_s is None:
        return "-"
    low, high = o.load_s
    return number(low) if high < 1.01 * low else span(low, high)


def _details(answer: WhatIf, o: Outcome) -> list[str]:
    assert o.tok_s is not None and o.memory is not None
    point, low, high = (band[-1] for band in o.tok_s)
    way = f" ({o.way})" if o.way else ""
    speed = (f"{number(point)} tok/s at C={answer.concurrency[-1]:g}, 80 % band {span(low, high)}; "
             f"{o.memory.kv_tokens_total:,} KV tokens")
    fits = o.memory.fits
    lines = [wrapped(f"{o.change}{way}: {speed if fits else f'{no_fit(o.memory.verdict)} ({o.memory.pool.reason})'}",
                     "", "  ")]
    lines += [wrapped(note, "  - ", "    ") for note in o.assumptions]
    if o.others and fits:
        lines.append(wrapped("; ".join(o.others), "  other ways: ", "    "))
    return lines
