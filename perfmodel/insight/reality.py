"""What a run shows against what was predicted, and which term or setting explains the difference best.

Memory comes from the start-up lines of a log (`engines.logs`), speed from its decode lines, from Prometheus text, or
from the JSON of `vllm bench serve` and SGLang's `bench_serving`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.catalog.yaml import read_text
from perfmodel.deployment import Deployment
from perfmodel.engines.logs import parse_log
from perfmodel.engines.memory import GIB
from perfmodel.errors import BadInput, PerfModelError
from perfmodel.insight.log_terms import culprit, terms
from perfmodel.insight.terms import Explanation, explain_speed
from perfmodel.step import MemoryReport

MOST_BYTES, MOST_POINTS = 2**25, 200
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_DECODE = (re.compile(rf"Decode batch.*?#running-req: (\d+),.*?gen throughput \(token/s\): {_NUMBER}"),
           re.compile(rf"Avg generation throughput: {_NUMBER} tokens/s, Running: (\d+) reqs"))
_SAID = {
    "Custom allreduce is disabled": "custom all-reduce is off, NCCL runs every all-reduce",
    "Falling back to": "the engine fell back to another kernel",
    "CUDA out of memory": "the run ran out of memory",
    "Retract requests": "requests were retracted: admission took in more than the KV pool held",
    "is preempted": "requests were preempted: the KV pool was full",
}


@dataclass(frozen=True)
class Difference:
    """One figure of a run beside the predicted one. ``ratio`` is measured / predicted."""

    what: str
    measured: float | None
    predicted: float | None
    unit: str
    source: str
    explanation: str
    alternatives: tuple[Explanation, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return self.measured / self.predicted if self.measured is not None and self.predicted else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"what": self.what, "measured": self.measured, "predicted": self.predicted, "unit": self.unit,
                "ratio": self.ratio, "source": self.source, "explanation": self.explanation,
                "alternatives": [a.to_dict() for a in self.alternatives]}


@dataclass(frozen=True)
class SpeedPoint:
    """A measured throughput: requests in flight, output tok/s, mean lengths where they are known."""

    concurrency: float
    tok_s: float
    input_tokens: float = 1024.0
    output_tokens: float = 1024.0


def differences(d: Deployment, report: MemoryReport, *, log: str | None = None, metrics: str | None = None,
                benchmark: str | None = None, arrival: str | None = None) -> tuple[Difference, ...]:
    """Figures of files that a run left, beside the prediction. Paths, not texts."""
    found: list[Difference] = []
    points: dict[str, list[SpeedPoint]] = {}
    if log is not None:
        text = read_text(log, MOST_BYTES)
        points["log"] = decode_points(text)
        found += _start_up(report, text)
        if not found and not points["log"]:
            raise BadInput("log: no line of a known engine in it")
    if metrics is not None:
        tokens, points["metrics"] = read_metrics(read_text(metrics, MOST_BYTES))
        if tokens is None and not points["metrics"]:
            raise BadInput("metrics: no vllm: or sglang: figure in it that is known")
        found += [_kv_tokens(d, report, tokens, "metrics")] if tokens is not None else []
    if benchmark is not None:
        points["benchmark"] = read_benchmark(read_text(benchmark, MOST_BYTES))
    for name, many in points.items():
        if many:
            found += _speed(d, many[:MOST_POINTS], name, arrival)
    return tuple(found)


def _start_up(report: MemoryReport, text: str) -> list[Difference]:
    """Every figure of memory that a log states, beside ours, and its remarks."""
    stated = parse_log(text.splitlines())
    compared = terms(report, stated)
    worst = culprit(compared)
    found = []
    for term in compared:
        if term.name == "KV tokens":
            found.append(_kv_tokens(report.deployment, report, term.logged, "log"))
            if worst is not None and "band" not in found[-1].explanation:
                cause = f"; of memory, {worst.name} differs most, {worst.difference:+.2f} GiB"
                found[-1] = replace(found[-1], explanation=found[-1].explanation + cause)
            continue
        near = abs(term.difference) < (0.1 if term.unit == "GiB" else 0.01 * max(abs(term.logged), 1e-9))
        said = "as predicted" if near else f"{term.difference:+.2f} {term.unit}".rstrip() + " predicted beyond it"
        if term is worst:
            said += "; this term explains most of what is missing"
        found.append(Difference(term.name, term.logged, term.predicted, term.unit, "log", said))
    remarks = [meaning for words, meaning in _SAID.items() if words in text]
    return [*found, *(Difference("remark", None, None, "", "log", said) for said in (*remarks, *stated.errors[:5]))]


def decode_points(text: str) -> list[SpeedPoint]:
    """Median throughput by running requests, from the lines that an engine prints while it serves."""
    running: dict[float, list[float]] = {}
    for line in text.splitlines():
        if "throughput" not in line:
            continue
        for pattern, (count, rate) in zip(_DECODE, ((1, 2), (2, 1)), strict=True):
            match = pattern.search(line[:2_000])
            if match and float(match[count]) >= 1 and float(match[rate]) > 0:
                running.setdefault(float(match[count]), []).append(float(match[rate]))
    return [SpeedPoint(c, float(np.median(rates))) for c, rates in sorted(running.items()) if len(rates) >= 3]


def read_metrics(text: str) -> tuple[float | None, list[SpeedPoint]]:
    """KV tokens, and what ran at the moment of the scrape, from Prometheus text of vLLM or SGLang."""
    values: dict[str, float] = {}
    labels: dict[str, str] = {}
    for match in re.finditer(r"^((?:vllm|sglang):\w+)(?:\{([^}]*)\})? (\S+)", text, re.MULTILINE):
        try:
            values[match[1]] = values.get(match[1], 0.0) + float(match[3])
        except ValueError:
            continue
        labels[match[1]] = match[2] or ""
    tokens: float | None = None
    cache = dict(re.findall(r'(\w+)="([^"]*)"', labels.get("vllm:cache_config_info", "")))
    if cache.get("num_gpu_blocks", "").isdigit() and cache.get("block_size", "").isdigit():
        tokens = float(int(cache["num_gpu_blocks"]) * int(cache["block_size"]))
    if "sglang:max_total_num_tokens" in values:
        tokens = values["sglang:max_total_num_tokens"]
    running = values.get("sglang:num_running_reqs", values.get("vllm:num_requests_running", 0.0))
    rate = values.get("sglang:gen_throughput", 0.0)
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        total, count = values.get(f"vllm:{name}_sum", 0.0), values.get(f"vllm:{name}_count", 0.0)
        if not rate and total > 0 and count > 0:
            rate = running * count / total
    return tokens, [SpeedPoint(running, rate)] if running >= 1 and rate > 0 and math.isfinite(rate) else []


def read_benchmark(text: str) -> list[SpeedPoint]:
    """Points of `vllm bench serve` JSON, SGLang's `bench_serving` JSON lines, or a list of such objects."""
    objects: list[Any] = []
    try:
        whole = json.loads(text)
        objects = whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        for line in text.splitlines():
            if line.strip():
                try:
                    objects.append(json.loads(line))
                except (ValueError, RecursionError):
                    raise BadInput("benchmark: neither JSON nor JSON lines") from None
    points = []
    for item in objects:
        try:
            done, rate = float(item["completed"]), float(item["output_throughput"])
            load = float(item.get("max_concurrency") or item.get("concurrency") or item.get("num_prompts") or done)
            lengths = float(item["total_input_tokens"]) / done, float(item["total_output_tokens"]) / done
        except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError):
            continue
        if rate > 0 and load >= 1 and min(lengths) >= 1 and all(map(math.isfinite, (rate, load, *lengths))):
            points.append(SpeedPoint(load, rate, *lengths))
    if not points:
        raise BadInput("benchmark: no result with completed, output_throughput and the token totals", [
                        "the JSON of vllm bench serve --save-result, or of sglang.bench_serving"])
    return points


def _kv_tokens(d: Deployment, report: MemoryReport, value: float, name: str) -> Difference:
    """KV tokens of a run, and how much memory the difference is."""
    ours = float(report.kv_tokens)
    if report.kv_tokens_low <= value <= report.kv_tokens_high:
        return Difference("KV tokens", value, ours, "tokens", name, "inside the predicted band")
    stage = report.binding_rank // d.options.tp
    per_token = max(float(report.placement.kv_bytes_per_token[stage]), 1.0)
    missing = (ours - value) * per_token / GIB
    rows = sorted(report.pool.rows[stage], key=lambda row: row.low - row.high)
    widest = rows[0].name if rows else "runtime memory"
    word = "less" if missing > 0 else "more"
    said = f"{abs(missing):.1f} GiB {word} for KV on rank {report.binding_rank} than predicted"
    if value > 0 and abs(value * 2 / ours - 1) < 0.05 or abs(value / ours / 2 - 1) < 0.05:
        said += "; a factor of two is the width of a KV value: compare the KV dtype"
    else:
        said += f"; the widest band there is of {widest!r}"
    return Difference("KV tokens", value, ours, "tokens", name, said)


def _speed(d: Deployment, points: list[SpeedPoint], name: str, arrival: str | None) -> list[Difference]:
    try:
        rates, best = explain_speed(d, points, arrival)
    except PerfModelError as problem:
        return [Difference("output tok/s", p.tok_s, None, "tok/s", name, f"not predicted: {problem.message}")
                for p in points]
    found = []
    for point, (rate, low, high) in zip(points, rates, strict=True):
        said = "inside the predicted band" if low <= point.tok_s <= high else (
            best[0].text if best else "no single term explains it")
        what = f"output tok/s at C={point.concurrency:g}"
        found.append(Difference(what, point.tok_s, rate, "tok/s", name, said, best))
    return found
