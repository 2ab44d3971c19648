"""The answers of insight as text: the examination of a launch, and the explanation of a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.report.layout import heading, launch_line, listed, no_fit, no_room, number, span, table, wrapped
from perfmodel.units import gb_gib, si

if TYPE_CHECKING:
    from perfmodel.insight.asking import Finding
    from perfmodel.insight.doctor import Doctor
    from perfmodel.insight.explain import Explained
    from perfmodel.insight.launch_lists import Texts
    from perfmodel.insight.reality import Difference
    from perfmodel.insight.sensitivity import BreakEven, Elasticity

_SHOWN = 12
_START = "does not start: "     # and the verdict of the memory answer


def doctor_text(answer: Doctor) -> str:
    """What was read, what is predicted, and the findings, the largest effect first."""
    d, report = answer.deployment, answer.memory
    lines = [wrapped(heading(d), rest="  "), wrapped(f"read from {answer.where}", rest="  ")]
    launch = answer.launch
    lines += listed("not understood", launch.others) + listed("flags", launch.other_warnings)
    verdict = "fits" if report.fits else no_fit(report.verdict)
    lines += ["", wrapped(f"{verdict}, {report.kv_tokens_total:,} KV tokens", "memory: ", "  ")]
    points = answer.curve.points
    rows = [[f"{p['concurrency']:g}", number(p["output_tok_s"]), span(p["output_tok_s_low"], p["output_tok_s_high"]),
             number(p["tpot_ms"]), p["bound_by"]] for p in points]
    if not report.fits:
        lines.append("speed as if it started:")
    lines += ["", *table(["C", "tok/s", "80 % band", "TPOT, ms", "bound by"], rows, left=(4,)), ""]
    lines += _overview(answer) if answer.findings else ["nothing found that is worth a line"]
    for rank, finding in enumerate(answer.findings[:_SHOWN], start=1):
        lines += ["", *_finding(answer, rank, finding)]
    lines += _differences(answer.differences)
    lines += listed("not modelled", answer.launch.notes) + listed("not proposed", answer.not_asked)
    title = "launch as it was meant" if any(item.unknown for item in launch.refused) else "launch"
    return "\n".join([*lines, *launch_line(launch.line, title), *listed("assumptions", answer.assumptions)])


def _overview(answer: Doctor) -> list[str]:
    rows = []
    for rank, finding in enumerate(answer.findings, start=1):
        effect = finding.to_dict(answer.concurrency)
        percent = "all" if finding.kind == "start" else f"{effect['effect_percent']:+.0f} %"
        tokens = f"{effect['effect_kv_tokens']:+,}" if effect["effect_kv_tokens"] else "0"
        speed = f"{effect['effect_tok_s']:+,.0f}"
        rows.append([str(rank), _cut(_name(finding)), speed, percent, f"{finding.at:g}", tokens])
    head = ["", "finding", "tok/s", "", "at C", "KV tokens"]
    risks = any(finding.kind == "risk" for finding in answer.findings)
    title = "What each change brings" + ("; a risk, what it would take away:" if risks else ":")
    return [title, *table(head, rows, left=(0, 1), gap=" ")]


def _cut(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _name(finding: Finding) -> str:
    chance = "" if finding.chance is None else f" ({100 * finding.chance:.0f} % chance)"
    if finding.kind == "start" and finding.name.startswith(_START):
        return f"{_START}{no_room(finding.name.removeprefix(_START))}"
    return f"risk: {finding.name}" if finding.kind == "risk" else f"{finding.name}{chance}"


def _finding(answer: Doctor, rank: int, finding: Finding) -> list[str]:
    lines = [wrapped(f"{_name(finding)}: {finding.what}", f"{rank}. ", "   ")]
    lines.append(wrapped(finding.flag, "   if: " if finding.kind == "risk" else "   change: ", "     "))
    pairs = ", ".join(f"C={c:g}: {number(old)} -> {number(new)}" for c, old, new
                      in zip(answer.concurrency, finding.tok_s_now, finding.tok_s, strict=True))
    lines.append(wrapped(pairs, "   tok/s: ", "     "))
    if finding.kv_tokens != finding.kv_tokens_now:
        lines.append(f"   KV tokens: {finding.kv_tokens_now:,} -> {finding.kv_tokens:,}")
    lines += [wrapped(note, "   ", "     ") for note in finding.notes]
    return [*lines, wrapped(finding.source, "   source: ", "     ")]


def _differences(found: tuple[Difference, ...]) -> list[str]:
    if not found:
        return []
    lines = ["", "what the run shows:"]
    said: set[str] = set()
    for item in found:
        if item.measured is None:
            lines.append(wrapped(f"{item.source}: {item.explanation}", "  - ", "    "))
            continue
        ratio = f", {item.ratio:.2f} times that" if item.ratio is not None else ""
        said_so = item.unit in ("1/s", "tok/s")         # by the name of the figure
        unit = "" if said_so or not item.unit else f" {item.unit}"
        figures = f"predicted {number(item.predicted)}{unit}, measured {number(item.measured)}{ratio}"
        lines.append(wrapped(f"{item.what}: {figures}; {item.explanation}", "  - ", "    "))
        texts = [other.text for other in item.alternatives[1:]]
        if texts and "|".join(texts) not in said:
            said.add("|".join(texts))
            lines.append(wrapped("; ".join(texts), "      or ", "      "))
    if any(item.explanation == "no single term explains it" for item in found):
        text = ("perfmodel calibrate fits several factors to the run at once; clocks held down, other work on the "
                "GPUs, and the client of the benchmark are not in the model")
        lines.append(wrapped(text, "  - next: ", "    "))
    return lines


def texts_text(answer: Texts) -> str:
    """How many launch texts parse, and what is not understood in which."""
    counts = answer.counts()
    engines = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[4:])
    found = answer.to_dict()
    lines = [wrapped(f"{counts['texts']:,} texts: {counts['parse']:,} parse ({engines or 'none'}), "
                     f"{counts['not_a_command']:,} are not a command that starts a server, {counts['refused']:,} are "
                     "refused", rest="  ")]
    lines += listed("not understood", (f"{', '.join(item['unknown'])} in: {_short(item['text'])}"
                                       for item in found["not_understood"]))
    lines += listed("not a command", map(_short, found["not_commands"]))
    lines += listed("refused", (f"{item['why']}: {_short(item['text'])}" for item in found["refusals"]))
    lines += listed("flags", (f"{said} ({count}x)" for said, count in found["flag_warnings"].items()))
    return "\n".join(lines)


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[:most] + "..."


def explained_text(answer: Explained) -> str:
    """The figure, its formula and terms, what it answers to, limits and break-even."""
    d, asked = answer.deployment, answer.question
    load = (f"{asked['concurrency']:g} in flight, {asked['input_tokens']:g} tokens in, {asked['output_tokens']:g} out")
    band = f" (80 % band {_value(answer, answer.low)} to {_value(answer, answer.high)})" if answer.low else ""
    lines = [wrapped(heading(d), rest="  "), load, "",
             wrapped(f"{_NAMES[answer.figure]} = {_value(answer, answer.value)}{band}", rest="  ")]
    if answer.figure != "step":
        lines.append(wrapped(answer.formula, "  = ", "    "))
    lines += ["", "terms, largest first:", *_terms(answer)]
    lines += _elasticities(answer)
    if answer.limits:
        rows = [[name, _value(answer, value), f"{value / answer.value:.2f}"] for name, value in answer.limits.items()]
        lines += ["", "limits:", *table(["if", _NAMES[answer.figure], "of it now"], rows)]
    if answer.break_even is not None and answer.against is not None:
        lines += ["", *_break_even(answer.break_even, d.name, answer.against.name)]
    shown = [f"{name} = {value:.6g}" for name, value in answer.values.items()]
    lines += ["", wrapped(", ".join(shown), "with (SI units): ", "  ")]
    return "\n".join([*lines, *listed("notes", answer.notes)])


_NAMES = {"step": "step", "tok_s": "output tok/s", "ttft": "TTFT", "tpot": "TPOT",
          "memory": "memory of the binding rank", "kv_tokens": "KV tokens", "weights": "weights",
          "collective": "collective"}


def _value(answer: Explained, value: float | None) -> str:
    if value is None:
        return "-"
    if answer.figure in ("weights", "memory"):
        return gb_gib(value)
    if answer.figure in ("step", "ttft", "tpot", "collective"):
        return si(value, "s")
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _terms(answer: Explained) -> list[str]:
    units = {"tok_s": "s of a request", "weights": "GB", "memory": "GB", "kv_tokens": "tokens"}
    unit = units.get(answer.figure, "us" if answer.figure == "collective" else "ms")
    scale = {"us": 1e6, "ms": 1e3, "GB": 1e-9}.get(unit, 1.0)
    rows = [[part.name, number(abs(scale * part.value)) if part.value >= 0 else f"-{number(-scale * part.value)}",
             f"{100 * part.share:.1f}"] for part in answer.parts]
    lines = table(["", unit, "%"], rows)
    if answer.figure in ("step", "ttft", "collective"):
        lines += ["", "each term as SymPy has it, every maximum on the side that holds:"]
        lines += [wrapped(f"{part.name} = {part.formula}", "  ", "      ") for part in answer.parts if part.formula]
    return lines


def _elasticities(answer: Explained) -> list[str]:
    if not answer.elasticities:
        return []
    rows = [[e.name, e.kind, f"{e.elasticity:+.3f}", plus_ten(e)] for e in answer.elasticities]
    return ["", f"what +10 % of a parameter does to {_NAMES[answer.figure]}:",
            *table(["parameter", "of", "elasticity", "+10 % gives"], rows, left=(0, 1))]


def plus_ten(e: Elasticity) -> str:
    """What +10 % of a parameter gives, or as much more of it as is possible."""
    text = f"{100 * e.plus_ten_percent:+.2f} %"
    return text if e.moved > 0.0999 else f"{text} (only {100 * e.moved:+.1f} % fits)"


def _break_even(found: BreakEven, first: str, second: str) -> list[str]:
    units = {"concurrency": "requests in flight", "context": "cached tokens", "bandwidth": "times the memory bandwidth",
             "links": "times the bandwidth of the links"}
    unit = units[found.axis]
    reach = f"from {found.low:,g} to {found.high:,g} {unit}"
    if found.crossings:
        places = ", ".join(f"{c:,.4g}" for c in found.crossings[:8])
        text = f"{found.ahead_at_low} is ahead at {found.low:,g}, {found.ahead_at_high} at {found.high:,g}; " \
               f"they change places at {places} {unit}"
    else:
        text = f"none {reach}: {found.ahead_at_low} is ahead throughout"
    ratio = f"{first} / {second} between {found.ratio_min:.2f} and {found.ratio_max:.2f} in tok/s"
    word = "proof" if found.proven else "not proven"
    return [wrapped(f"{text} ({ratio})", "break-even: ", "  "), wrapped(found.proof, f"  {word}: ", "    ")]
