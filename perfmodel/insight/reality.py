"""What a run shows against what was predicted, and which term or setting explains the difference best.

Memory comes from the start-up lines of a log (`engines.logs`), speed from its decode lines and from Prometheus text
(`engines.serving_logs`), or from rows of a benchmark, which the readers of result files give.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.catalog.yaml import read_text
from perfmodel.deployment import Deployment
from perfmodel.engines.logs import parse_log
from perfmodel.engines.memory import GIB
from perfmodel.engines.serving_logs import metric_sums, rates_by_load, remarks
from perfmodel.errors import BadInput, PerfModelError, is_number, shown
from perfmodel.insight.log_terms import culprit, terms
from perfmodel.insight.terms import KINDS, Explanation, SpeedPoint, explain_speed
from perfmodel.step import MemoryReport

MOST_BYTES, MOST_POINTS = 2**25, 200
LEAST_LINES = 3         # decode lines at one load that make a point


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


def differences(d: Deployment, report: MemoryReport, *, log: str | os.PathLike[str] | None = None,
                metrics: str | os.PathLike[str] | None = None, benchmark: Iterable[Any] | None = None,
                arrival: str | None = None) -> tuple[Difference, ...]:
    """Figures that a run left, beside the prediction: paths of a log and of a metrics page, rows of a benchmark."""
    found: list[Difference] = []
    points: dict[str, list[SpeedPoint]] = {}
    if log is not None:
        lines = read_text(log, MOST_BYTES).splitlines()
        points["log"] = decode_points(lines)
        found += _start_up(report, lines)
        if not found and not points["log"]:
            raise BadInput("log: no line of a known engine in it")
    if metrics is not None:
        page = read_metrics(read_text(metrics, MOST_BYTES))
        points["metrics"] = page.points
        if page.kv_tokens is None and not page.points and not page.remarks:
            raise BadInput("metrics: no vllm: or sglang: figure in it that is known")
        found += [_kv_tokens(d, report, page.kv_tokens, "metrics")] if page.kv_tokens is not None else []
        found += [Difference("remark", None, None, "", "metrics", said) for said in page.remarks]
        found += _cached(d, page)
    if benchmark is not None:
        points["benchmark"], skipped = points_of(benchmark)
        found += [Difference("remark", None, None, "", "benchmark", said) for said in skipped]
    for name, many in points.items():
        if many:
            found += _speed(d, many[:MOST_POINTS], name, arrival)
    return tuple(found)


def _start_up(report: MemoryReport, lines: list[str]) -> list[Difference]:
    """Every figure of memory that a log states, beside ours, and its remarks."""
    stated = parse_log(lines)
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
    others = (*remarks(lines), *stated.errors[:5])
    return [*found, *(Difference("remark", None, None, "", "log", text) for text in others)]


def decode_points(lines: Iterable[str]) -> list[SpeedPoint]:
    """Median throughput by running requests, from the lines that an engine prints while it serves."""
    return [SpeedPoint(load, float(np.median(rates))) for load, rates in sorted(rates_by_load(lines).items())
            if len(rates) >= LEAST_LINES]


@dataclass(frozen=True)
class Page:
    """What a metrics page says."""

    kv_tokens: float | None
    points: list[SpeedPoint]
    remarks: list[str]
    hit_rate: float | None


def read_metrics(text: str) -> Page:
    """KV tokens, what ran at the moment of the scrape, time per output token, and remarks, from Prometheus text."""
    sums, labels = metric_sums(text.splitlines())

    def mean(name: str) -> float | None:
        for engine in ("vllm", "sglang"):
            total, count = sums.get(f"{engine}:{name}_sum", 0.0), sums.get(f"{engine}:{name}_count", 0.0)
            if total > 0 and count > 0 and math.isfinite(total / count):
                return total / count
        return None

    tokens: float | None = None
    cache = labels.get("vllm:cache_config_info", {})
    if cache.get("num_gpu_blocks", "").isdecimal() and cache.get("block_size", "").isdecimal():
        tokens = float(int(cache["num_gpu_blocks"]) * int(cache["block_size"]))
    if "sglang:max_total_num_tokens" in sums:
        tokens = sums["sglang:max_total_num_tokens"]
    lengths = (mean("request_prompt_tokens") or mean("prompt_tokens_histogram") or 1024.0,
               mean("request_generation_tokens") or mean("generation_tokens_histogram") or 1024.0)
    running = sums.get("sglang:num_running_reqs", sums.get("vllm:num_requests_running", 0.0))
    rate, each = sums.get("sglang:gen_throughput", 0.0), mean("inter_token_latency_seconds") or mean(
        "time_per_output_token_seconds")
    points = []
    if running >= 1 and math.isfinite(running):
        if rate > 0 and math.isfinite(rate):
            points.append(SpeedPoint(running, rate, *lengths))
        elif each is not None:
            points.append(SpeedPoint(running, 1 / each, *lengths, kind="tpot"))
    said = []
    if (lost := sums.get("vllm:num_preemptions_total", sums.get("sglang:num_retracted_reqs", 0.0))) > 0:
        said.append(f"{lost:,.0f} preemptions or retractions: the KV pool was full")
    asked, hits = sums.get("vllm:prefix_cache_queries_total", 0.0), sums.get("vllm:prefix_cache_hits_total", 0.0)
    share = hits / asked if asked > 0 else sums.get("sglang:cache_hit_rate")
    return Page(tokens, points, said, share if share is not None and 0 <= share < 1 else None)


def _cached(d: Deployment, page: Page) -> list[Difference]:
    """A share of prompts found in the prefix cache that is not the one asked about."""
    if page.hit_rate is None or abs(page.hit_rate - d.options.prefix_hit_rate) < 0.05:
        return []
    said = f"ask with prefix_hit_rate={page.hit_rate:.2f}: prefill and TTFT fall by what the cache holds"
    return [Difference("prefix hit rate", page.hit_rate, d.options.prefix_hit_rate, "", "metrics", said)]


def points_of(rows: Iterable[Any]) -> tuple[list[SpeedPoint], list[str]]:
    """Points of benchmark rows, and what was left out.

    A row is a mapping with concurrency and output_tok_s or tpot_ms, or a measurement as the readers of result files
    give it (``kind``, ``seconds``, ``load``).
    """
    if isinstance(rows, str | bytes | os.PathLike) or not isinstance(rows, Iterable):
        raise BadInput(f"benchmark takes rows, not {shown(rows)}",
                       ["perfmodel.calibration.bench_files.read_files([path]).rows reads a result file"])
    points, left = [], []
    for row in rows:
        kind = getattr(row, "kind", None)
        if kind is not None and kind not in KINDS:
            left.append(f"a row of kind {kind!r} is not compared")
        else:
            points.append(_measured(row) if kind is not None else _plain(row))
    if not points:
        raise BadInput("benchmark: no row that can be compared", left[:1])
    return points, list(dict.fromkeys(left))


def _measured(row: Any) -> SpeedPoint:
    return SpeedPoint(float(row.load), 1 / float(row.seconds), float(row.input_tokens) or 1024.0,
                      float(row.output_tokens) or 1024.0, row.kind, float(row.context))


def _plain(row: Any) -> SpeedPoint:
    try:
        load, rate, each = row["concurrency"], row.get("output_tok_s"), row.get("tpot_ms")
        lengths = row.get("input_tokens", 1024.0), row.get("output_tokens", 1024.0)
    except (TypeError, KeyError, AttributeError):
        raise BadInput(f"a row of a benchmark has concurrency and output_tok_s or tpot_ms; not {shown(row)}") from None
    given = (load, each if rate is None else rate, *lengths)
    if not all(is_number(v) and math.isfinite(v) and v > 0 for v in given):
        raise BadInput(f"a row of a benchmark needs positive numbers, not {shown(row)}")
    prompt, made = map(float, lengths)
    if rate is None:
        return SpeedPoint(float(load), 1e3 / float(each), prompt, made, "tpot")
    return SpeedPoint(float(load), float(rate), prompt, made)


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


_NAMES = {"rate": ("output tok/s", "tok/s"), "tpot": ("tokens/s of one request", "1/s"),
          "step": ("decode steps/s", "1/s"), "prefill": ("prefills/s", "1/s")}


def _speed(d: Deployment, points: list[SpeedPoint], name: str, arrival: str | None) -> list[Difference]:
    try:
        rates, best = explain_speed(d, points, arrival)
    except PerfModelError as problem:
        return [Difference(_NAMES[p.kind][0], p.tok_s, None, _NAMES[p.kind][1], name,
                           f"not predicted: {problem.message}") for p in points]
    found = []
    for point, (rate, low, high) in zip(points, rates, strict=True):
        said = "inside the predicted band" if low <= point.tok_s <= high else (
            best[0].text if best else "no single term explains it")
        what, unit = _NAMES[point.kind]
        found.append(Difference(f"{what} at C={point.concurrency:g}", point.tok_s, rate, unit, name, said, best))
    return found
