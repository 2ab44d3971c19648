"""The answers as text: memory, step and collective."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.layout import (
    heading,
    launch_line,
    listed,
    no_room,
    number,
    over_gpus,
    span,
    table,
    tables,
    wrapped,
)
from perfmodel.units import format_bytes, gb_gib, si

if TYPE_CHECKING:
    from perfmodel.step import CollectiveCost, MemoryReport, StepCost


def memory_text(report: MemoryReport, brief: bool = False) -> str:
    """Does it fit: a row a stage, what binds, and, unless ``brief``, all that the binding rank holds."""
    d = report.deployment
    answer = "Fits" if report.fits else f"Does not fit ({no_room(report.verdict)})"
    bound = report.binding_rank // d.options.tp
    lines = [wrapped(f"{answer}: {heading(d)}", rest="  "), "", *_stages(report)]
    if d.options.dp > 1:
        lines.append(f"each of the {d.options.dp} copies the same")
    stage = f" (stage {bound})" if report.placement.stages > 1 else ""
    reason = re.sub(r"; rank \d+ binds$", "", report.pool.reason)
    lines += ["", wrapped(reason, f"rank {report.binding_rank}{stage} binds: ", "  ")]
    lines += _kv_lines(report)
    if brief:
        return "\n".join(lines)
    lines += ["", f"rank {report.binding_rank} holds:", *_holds(report, bound)]
    return "\n".join([*lines, *launch_line(d.command()), *listed("assumptions", report.assumptions)])


def ranks_of(stage: int, tp: int) -> str:
    """Ranks of a stage in the first copy.

    >>> ranks_of(1, 4), ranks_of(3, 1)
    ('4-7', '3')
    """
    return f"{stage * tp}-{stage * tp + tp - 1}" if tp > 1 else f"{stage}"


def _stages(report: MemoryReport) -> list[str]:
    tp, pool = report.deployment.options.tp, report.pool
    rows = []
    for stage in range(report.placement.stages):
        weights = float(report.placement.weights_bytes[stage])
        parts = (weights, pool.pool_bytes[stage], report.runtime_bytes(stage), pool.free_bytes[stage])
        rows.append(
            [
                str(stage),
                ranks_of(stage, tp),
                str(int(report.placement.layers[stage])),
                f"{weights / 1e9:.1f}",
                *(f"{size / 2**30:.1f}" for size in parts),
                "<- binds" if stage == report.binding_rank // tp else "",
            ]
        )
    sizes = [f"{what}\nGiB" for what in ("weights", "KV pool", "runtime", "free")]
    return table(["stage", "ranks", "layers", "weights\nGB", *sizes, ""], rows, left=(0, 1, 8))


def _kv_lines(report: MemoryReport) -> list[str]:
    d = report.deployment
    context = d.options.context or d.facts.max_context
    whole = float(np.sum(report.placement.weights_bytes)) * d.options.tp * d.options.dp
    per_group = " in each attention group" if d.options.dp_attention > 1 else ""
    kv = (
        f"{report.kv_tokens:,} tokens{per_group} (80 % band {report.kv_tokens_low:,} to {report.kv_tokens_high:,}), "
        f"{report.kv_tokens_total:,} in the whole deployment: "
        f"{report.max_sequences_at_context:,} sequences of {context:,} tokens at once"
    )
    return [wrapped(kv, "KV cache: ", "  "), wrapped(f"{gb_gib(whole)} {over_gpus(d.gpus)}", "weights: ", "  ")]


def _holds(report: MemoryReport, stage: int) -> list[str]:
    """Every part of one rank; the parts add up to the card's memory."""
    parts = {name: float(values[stage]) for name, values in report.placement.parts.items()}
    named: list[tuple[str, float, str, str]] = [
        (name, size, "", "derived") for name, size in sorted(parts.items(), key=lambda item: -item[1]) if size
    ]
    named.append(("KV pool", report.pool.pool_bytes[stage], "", "engine rule"))
    for row in sorted(report.pool.rows[stage], key=lambda row: -row.bytes):
        named.append((row.name, row.bytes, f"{row.low / 2**30:.2f}-{row.high / 2**30:.2f}", row.kind))
    named.append(("free", report.pool.free_bytes[stage], "", ""))
    total = sum(size for _, size, _, _ in named)
    named.append(("memory of the GPU", total, "", report.deployment.accelerator.memory.total.kind))
    rows = [[name, f"{size / 1e9:.2f}", f"{size / 2**30:.2f}", band, kind] for name, size, band, kind in named]
    return table(["", "GB", "GiB", "80 % band, GiB", "kind"], rows, left=(0, 4))


def step_text(cost: StepCost) -> str:
    """What a step takes, row by row; the rows add up."""
    asked, answer = cost.to_dict(), np.atleast_1d(np.asarray(cost.seconds, float)).ravel()
    words = [str(word) for word in np.ravel(np.asarray(cost.bound_by, dtype=object))]
    names = point_names(cost)
    lows, highs = (1e3 * np.asarray(band, float).ravel() for band in (cost.seconds_low, cost.seconds_high))
    lines = [wrapped(f"{heading(cost.deployment)}: one {cost.phase} step", rest="  ")]
    if len(answer) == 1:
        lines += ["", *_one_point(asked["rows"])]
    else:
        lines += ["", *_many_points(cost, names)]
    lines.append("")
    for i, name in enumerate(names):
        band = span(lows[i], highs[i])
        lines.append(f"{name}: {number(1e3 * answer[i])} ms (80 % band {band}), bound by {words[i]}")
    return "\n".join([*lines, *listed("assumptions", cost.assumptions)])


def point_names(cost: StepCost) -> list[str]:
    """One name a point, such as ``batch 8``, with what differs between the points."""
    shape = np.shape(cost.seconds)
    asked = {name: np.broadcast_to(np.asarray(v, float), shape).ravel() for name, v in cost.question.items()}
    kept = [name for i, (name, values) in enumerate(asked.items()) if i == 0 or len(set(values.tolist())) > 1]
    return [", ".join(f"{name} {asked[name][i]:,g}" for name in kept) for i in range(int(np.prod(shape)))]


def _one_point(rows: list[dict[str, Any]]) -> list[str]:
    flat = [{key: np.ravel(value)[0] if value is not None else 0.0 for key, value in row.items()} for row in rows]
    whole = sum(float(row["seconds"]) for row in flat)
    flop, flop_unit = (1e12, "TFLOP") if max(float(row["flop"]) for row in flat) >= 1e13 else (1e9, "GFLOP")
    sent, sent_unit = (1e6, "MB") if max(float(row["message_bytes"]) for row in flat) >= 1e7 else (1e3, "kB")
    body = [
        [
            str(row["name"]),
            number(1e3 * float(row["seconds"])),
            f"{100 * float(row['seconds']) / whole:.0f}",
            number(float(row["flop"]) / flop),
            number(float(row["bytes"]) / 1e9),
            number(float(row["message_bytes"]) / sent),
            f"{float(row['kernels']):.0f}",
            str(row["bound_by"]),
        ]
        for row in flat
    ]
    body.append(["sum", number(1e3 * whole), "100", *[""] * 5])
    head = ["", "ms", "%", flop_unit, "GB", f"{sent_unit}\nsent", "calls", "bound by"]
    return table(head, body, left=(0, 7), gap=" ")


def _many_points(cost: StepCost, names: list[str]) -> list[str]:
    shape = np.shape(cost.seconds)
    values = {row.name: np.broadcast_to(np.asarray(row.seconds, float), shape).ravel() for row in cost.rows}
    body = [[name, *(number(1e3 * s) for s in seconds)] for name, seconds in values.items()]
    body.append(["sum", *(number(1e3 * s) for s in np.sum(list(values.values()), axis=0))])
    return tables(["ms", *(name.replace(", ", "\n") for name in names)], body)


def collective_text(cost: CollectiveCost) -> str:
    """Time and bus bandwidth by size."""
    answer = {name: np.ravel(np.asarray(value, dtype=object)) for name, value in cost.to_dict().items()}
    names = ("message_bytes", "seconds", "seconds_low", "seconds_high", "busbw_Bps", "algorithm", "protocol")
    rows = [
        [
            _size(float(size)),
            si(float(seconds), "s"),
            f"{si(float(low), 's')} to {si(float(high), 's')}",
            "-" if busbw is None else f"{float(busbw) / 1e9:.1f}",
            " ".join(filter(None, (str(algorithm), str(protocol)))),
        ]
        for size, seconds, low, high, busbw, algorithm, protocol in zip(*(answer[n] for n in names), strict=True)
    ]
    head = ["size", "time", "80 % band", "busbw, GB/s", "runs as"]
    lines = [f"{cost.op} {over_gpus(cost.ranks)}", "", *table(head, rows, left=(4,))]
    return "\n".join([*lines, *listed("assumptions", cost.assumptions)])


def _size(size: float) -> str:
    """Bytes as nccl-tests users say them: whole binary units, else the number.

    >>> _size(2**20), _size(14336.0), _size(1000.0)
    ('1 MiB', '14 KiB', '1,000 B')
    """
    for unit in ("GiB", "MiB", "KiB"):
        text = format_bytes(size, unit, 0)
        if size % {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}[unit] == 0:
            return text
    return f"{size:,.0f} B"
