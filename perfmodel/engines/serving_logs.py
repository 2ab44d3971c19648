"""What an engine printed while it served: tokens per second over time, and counters of its metrics page.

Bounded as start-up logs are: lines are looked at only where they hold a literal word, patterns cannot backtrack far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from perfmodel.engines.logs import MAX_BYTES, MAX_LINE
from perfmodel.errors import BadInput

_N = r"(\d{1,12}(?:\.\d{1,6})?)"
_TIME = r"\d\d-\d\d \d\d:\d\d:\d\d"
_SGLANG = re.compile(rf"^\[(\d{{4}}-{_TIME})[^\]]{{0,60}}\] Decode batch.{{0,400}}?throughput \(token/s\): {_N}")
_SGLANG_RANK = re.compile(r"([A-Z]{2,8})(\d{1,5})")
_VLLM = re.compile(rf"({_TIME}) .{{0,200}}?Engine (\d{{1,5}}): .{{0,200}}?generation throughput: {_N} tok")
_METRIC = re.compile(r"^([a-z_:]{1,80})(?:\{[^}]{0,2000}\})? ([0-9.eE+-]{1,40})(?: \d{1,20})?$")
# counters of finished requests and of generated tokens
FINISHED = ("vllm:request_success_total", "sglang:num_requests_total")
GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")


@dataclass(frozen=True, slots=True)
class Served:
    """Output tokens in so many seconds of a log."""

    seconds: float
    output_tokens: float
    lines: int


def parse_serving_log(lines: Iterable[str]) -> Served | None:
    """Output tokens between the first and the last line that says a speed; None where fewer than two do.

    A line holds for the time since the line before it of the same engine copy. Of the stages of a pipeline the first
    counts.

    >>> parse_serving_log(["[2026-01-01 10:00:00 TP0] Decode batch. #running-req: 8, gen throughput (token/s): 90.0,",
    ...                    "[2026-01-01 10:00:20 TP0] Decode batch. #running-req: 8, gen throughput (token/s): 95.6,"])
    Served(seconds=20.0, output_tokens=1912.0, lines=2)
    """
    last: dict[str, datetime] = {}
    first: datetime | None = None
    tokens, count, size = 0.0, 0, 0
    for line in lines:
        size += len(line)
        if size > MAX_BYTES:
            raise BadInput(f"the log is longer than {MAX_BYTES} characters")
        found = _speed(line[:MAX_LINE])
        if found is None:
            continue
        when, copy, speed = found
        if copy in last:
            tokens += speed * max((when - last[copy]).total_seconds(), 0.0)
        first, last[copy], count = first or when, when, count + 1
    if first is None or count < 2:
        return None
    seconds = (max(last.values()) - first).total_seconds()
    return Served(seconds, tokens, count) if seconds > 0 else None


def _speed(line: str) -> tuple[datetime, str, float] | None:
    """Time, engine copy and output tokens per second of one line."""
    if "Decode batch" in line and (match := _SGLANG.search(line)):
        ranks = dict(_SGLANG_RANK.findall(line.partition("]")[0]))
        if ranks.get("PP", "0") != "0":
            return None
        return _time(match[1], "%Y-%m-%d %H:%M:%S"), ranks.get("DP", "0"), float(match[2])
    if "generation throughput" in line and (match := _VLLM.search(line)):
        return _time(f"2024-{match[1]}", "%Y-%m-%d %H:%M:%S"), match[2], float(match[3])  # vLLM prints no year
    return None


def _time(text: str, form: str) -> datetime:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        raise BadInput(f"the log holds a time that is none: {text!r}") from None


def parse_metrics(lines: Iterable[str]) -> tuple[float | None, float | None]:
    """Finished requests and generated tokens of a Prometheus page, summed over its labels; None where it has none.

    >>> parse_metrics(['vllm:request_success_total{finished_reason="stop"} 90', "vllm:generation_tokens_total 1.8e5"])
    (90.0, 180000.0)
    """
    sums: dict[str, float] = {}
    size = 0
    for line in lines:
        size += len(line)
        if size > MAX_BYTES:
            raise BadInput(f"the page is longer than {MAX_BYTES} characters")
        match = _METRIC.match(line[:MAX_LINE].strip()) if ("vllm:" in line or "sglang:" in line) else None
        if match and match[1] in (*FINISHED, *GENERATED):
            try:
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
            except ValueError:
                raise BadInput(f"{match[1]} is no number: {match[2]!r}") from None
    finished, generated = ([sums[name] for name in names if name in sums] for names in (FINISHED, GENERATED))
    return (finished[0] if finished else None), (generated[0] if generated else None)


# ---------------------------------------------------------------- speed by load, remarks, all of a metrics page

_RUNNING = (
    ("Decode batch", re.compile(
        rf"Decode batch.{{0,400}}?#running-req: (\d{{1,9}}),.{{0,400}}?\(token/s\): {_N}"), (1, 2)),
    ("generation throughput", re.compile(
        rf"generation throughput: {_N} tok.{{0,200}}?Running: (\d{{1,9}}) reqs"), (2, 1)),
)  # fmt: skip
REMARKS = {
    "Custom allreduce is disabled": "custom all-reduce is off, NCCL runs every all-reduce",
    "Falling back to": "the engine fell back to another kernel",
    "CUDA out of memory": "the run ran out of memory",
    "Retract requests": "requests were retracted: admission took in more than the KV pool held",
    "is preempted": "requests were preempted: the KV pool was full",
}
_SAMPLE = re.compile(r"^((?:vllm|sglang):\w{1,80})(?:\{([^}]{0,4000})\})? (\S{1,40})")
_LABEL = re.compile(r'(\w{1,80})="([^"]{0,200})"')


def rates_by_load(lines: Iterable[str]) -> dict[float, list[float]]:
    """Output tokens/s that decode lines state, by the requests that ran.

    >>> rates_by_load(["Decode batch, #running-req: 8, gen throughput (token/s): 95.5, #queue-req: 0"])
    {8.0: [95.5]}
    """
    found: dict[float, list[float]] = {}
    for line in lines:
        for key, pattern, (count, rate) in _RUNNING:
            if key in line and (match := pattern.search(line[:MAX_LINE])):
                load, speed = float(match[count]), float(match[rate])
                if load >= 1 and speed > 0:
                    found.setdefault(load, []).append(speed)
    return found


def remarks(lines: Iterable[str]) -> list[str]:
    """What a log says beside its figures, each once."""
    found: dict[str, None] = {}
    for line in lines:
        found |= {said: None for words, said in REMARKS.items() if words in line[:MAX_LINE]}
    return list(found)


def metric_sums(lines: Iterable[str]) -> tuple[dict[str, float], dict[str, dict[str, str]]]:
    """Every figure of a Prometheus page of vLLM or SGLang, summed over its labels, and the labels last seen."""
    sums: dict[str, float] = {}
    labels: dict[str, dict[str, str]] = {}
    for line in lines:
        match = _SAMPLE.match(line[:MAX_LINE]) if line.startswith(("vllm:", "sglang:")) else None
        if match is None or match[1].endswith("_bucket"):
            continue
        try:
            sums[match[1]] = sums.get(match[1], 0.0) + float(match[3])
        except ValueError:
            continue
        labels[match[1]] = dict(_LABEL.findall(match[2] or ""))
    return sums, labels
