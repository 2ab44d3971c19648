"""What nccl-tests prints, as text or as JSON (`-J`), -> rows. Old and new versions; reads text only."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from perfmodel.catalog.once import loads
from perfmodel.errors import BadInput

MAX_CHARS = 2**24
MAX_ROWS = 10_000
MAX_RANKS = 4096

OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "hypercube": "hypercube", "alltoallv": "all_to_all_v",
}  # fmt: skip
_DTYPES = {"bfloat16": "bf16", "half": "fp16", "float": "fp32", "double": "fp64"}
_PREFIX = re.compile(r"^\[\d+,\d+\](?:<std\w+>)?:\s?", re.M)        # mpirun --tag-output
_ROW = re.compile(r"\s*\d+\s+\d+\s+[A-Za-z]\w*\s")
_NAME = re.compile(r"\b(" + "|".join(sorted(OPS, key=len, reverse=True)) + r")_perf\b")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d+)\b[^\n]*?\bdevice\s+\S+\s+\[[^\]\n]*\]\s+([^\n]+?)\s*$", re.M)
_BLANK = ("N/A", "None", "")

Group = tuple[float | None, float | None, float | None]       # time in us, busbw in GB/s, wrong elements


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One line of nccl-tests; times in s, bandwidths in B/s, None where N/A was printed."""

    message_bytes: int
    count: int
    dtype: str
    redop: str
    out_of_place_s: float | None
    out_of_place_busbw_Bps: float | None
    in_place_s: float | None
    in_place_busbw_Bps: float | None
    wrong: int | None               # wrong elements, out of place and in place; None where not checked


@dataclass(frozen=True, slots=True)
class NcclTable:
    """One run of one collective, with the conditions that it printed."""

    op: str                         # all_reduce, all_to_all, ...; empty where the text does not say
    ranks: int | None
    gpus: tuple[str, ...]
    nccl: str
    in_graph: bool | None
    rows: tuple[NcclRow, ...]


def bus_factor(op: str, ranks: int) -> float:
    """busbw over algbw, as nccl-tests defines it (doc/PERFORMANCE.md). [1]

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 4), bus_factor("send_recv", 2)
    (1.75, 0.75, 1.0)
    """
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if op in ("send_recv", "send", "broadcast", "reduce", "hypercube") else (ranks - 1) / ranks


def parse_nccl_tests(text: str) -> NcclTable:
    """Read the output of one ``*_perf`` program: text as printed, or the JSON of ``-J``.

    >>> table = parse_nccl_tests('''# Collective test starting: all_reduce_perf
    ...  1048576  262144  float  sum  -1  51.20  20.48  35.84  0  50.80  20.64  36.12  N/A''')
    >>> table.op, table.rows[0].message_bytes, table.rows[0].out_of_place_s, table.rows[0].wrong
    ('all_reduce', 1048576, 5.12e-05, 0)
    """
    if len(text) > MAX_CHARS:
        raise BadInput(f"nccl-tests output is longer than {MAX_CHARS} characters")
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return _from_json(text.lstrip("\ufeff \t\r\n"))
    text = _PREFIX.sub("", text)
    names = set(_NAME.findall(text))
    if len(names) > 1:
        raise BadInput(f"the text holds several tests ({', '.join(sorted(names))}); give them one by one")
    lines = [line for line in text.splitlines() if _ROW.match(line)]
    if not lines:
        raise BadInput("no row of nccl-tests found", hints=["rows begin with size, count and type"])
    _bounded("rows", len(lines), MAX_ROWS)
    columns = _columns(text)
    devices = dict(_DEVICE.findall(text))
    _bounded("ranks", len(devices), MAX_RANKS)
    graph = re.search(r"^#.*\bgraph: (\d{1,6})", text, re.M)
    version = re.search(r"nccl-library=(\d{4,6})\b", text)
    return NcclTable(
        OPS[names.pop()] if names else "", len(devices) or None, tuple(name[:100] for name in devices.values()),
        _version(int(version[1])) if version else "", bool(int(graph[1])) if graph else None,
        tuple(_row(line, columns) for line in lines))


def _bounded(what: str, found: int, most: int) -> None:
    if found > most:
        raise BadInput(f"{found} {what} of nccl-tests; at most {most} are read")


def _columns(text: str) -> list[str]:
    """Columns of one group of results, as the header names them; the four that every version has without a header."""
    header = next((line for line in text.splitlines() if line.startswith("#") and "algbw" in line), "")
    if "cputime" in header:
        raise BadInput("this run of nccl-tests reports CPU time (-C), not the time of the collective")
    cells = header.split()
    if cells.count("algbw") != 2 or cells.count("time") != 2:
        return ["time", "algbw", "busbw", "#wrong"]
    first, second = (i for i, cell in enumerate(cells) if cell == "time")
    return cells[first:second]


def _row(line: str, columns: list[str]) -> NcclRow:
    """One printed row. Between type and the results lie redop and root, one of them, or neither, by version."""
    cells = re.sub(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$", "", line).split()       # without the timestamp of -S
    head, rest, width = cells[:3], cells[3:], len(columns)
    if 2 * width <= len(rest) <= 2 * width + 2:
        out, into, before = rest[-2 * width:-width], rest[-width:], rest[:-2 * width]
    elif width <= len(rest) <= width + 2:                   # trace replay prints no result out of place
        out, into, before = ["N/A"] * width, rest[-width:], rest[:-width]
    else:
        raise BadInput(f"a row of nccl-tests has two groups of {', '.join(columns)}; not {line.strip()[:80]!r}")
    redop = next((cell for cell in before if re.fullmatch(r"[a-z]+", cell)), "")
    return _checked(head[0], head[1], head[2], redop, _group(out, line), _group(into, line))


def _group(cells: list[str], where: str) -> Group:
    """A group of results; old versions print an error such as 4e-07 in the place of #wrong, which is none wrong."""
    values = [None if cell in _BLANK else _number(cell, where) for cell in cells[:4]]
    return values[0], values[2], values[3]


def _checked(size: Any, count: Any, dtype: str, redop: str, out: Group, into: Group) -> NcclRow:
    """A row in SI, once its numbers can be a measurement."""
    message, elements = _number(str(size), "size"), _number(str(count), "count")
    if not 1 <= message < 2**50 or not 0 <= elements <= message:
        raise BadInput(f"a message of {str(size)[:40]} B in {str(count)[:40]} elements is no row of nccl-tests")
    for time, busbw, wrong in (out, into):
        if any(value is not None and value < 0 for value in (busbw, wrong)) or time is not None and time <= 0:
            raise BadInput(f"a time of {time} us and a busbw of {busbw} GB/s at {message:g} B is no measurement")
    wrongs = [wrong for _, _, wrong in (out, into) if wrong is not None]
    (out_us, out_busbw, _), (in_us, in_busbw, _) = out, into
    return NcclRow(
        int(message), int(elements), _DTYPES.get(dtype, dtype[:40]), redop[:40],
        None if out_us is None else out_us / 1e6, None if out_busbw is None else out_busbw * 1e9,
        None if in_us is None else in_us / 1e6, None if in_busbw is None else in_busbw * 1e9,
        int(sum(wrong for wrong in wrongs if wrong >= 1)) if wrongs else None)


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell[:40])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{cell[:40]!r} is not a number of nccl-tests, in {where.strip()[:80]!r}")
    return value


def _version(code: int) -> str:
    """NCCL_VERSION_CODE as text; it had three digits for minor and patch before 2.9.

    >>> _version(22907), _version(2708)
    ('2.29.7', '2.7.8')
    """
    return f"{code // 10_000 or code // 1_000}.{code % (10_000 if code >= 10_000 else 1_000) // 100}.{code % 100}"


def _from_json(text: str) -> NcclTable:
    """The file that ``-J`` writes. Its environment is not kept."""
    try:
        document = loads(text)
        _bounded("rows", len(document["results"]), MAX_ROWS)
        rows = tuple(
            _checked(row["size"], row["count"], str(row["type"]), str(row.get("redop", "")),
                     _json_group(row.get("out_of_place")), _json_group(row.get("in_place")))
            for row in document["results"])
        config = document.get("config") or {}
        devices = config.get("devices") or document.get("devices") or []
        _bounded("ranks", len(devices), MAX_RANKS)
        gpus = tuple(str(device.get("device_info", ""))[:100] for device in devices)
        head = {key: value for key, value in document.items() if key not in ("results", "env", "config", "devices")}
        names = set(_NAME.findall(json.dumps(head)))
    except BadInput:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"not the JSON of nccl-tests: {type(error).__name__} {str(error)[:80]}") from None
    if not rows:
        raise BadInput("no row of nccl-tests found")
    code, graph = str(document.get("nccl_version", ""))[:40], config.get("graph")
    return NcclTable(OPS[names.pop()] if len(names) == 1 else "", len(gpus) or None, gpus,
                     _version(int(code)) if re.fullmatch(r"\d{4,6}", code) else code,
                     None if graph is None else bool(graph), rows)


def _json_group(group: dict[str, Any] | None) -> Group:
    if group is None:
        return None, None, None
    if "cpu_time" in group:
        raise BadInput("this run of nccl-tests reports CPU time (-C), not the time of the collective")
    cells = [str(group.get(key, "")) for key in ("time", "bus_bw", "nwrong")]
    time, busbw, wrong = (None if cell in _BLANK else _number(cell, str(group)) for cell in cells)
    return time, busbw, wrong
