"""The engines' own start-up logs beside the memory answer: weights, KV tokens and verdict of every log that ships."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from perfmodel.catalog.observations import load_rows
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import PerfModelError
from perfmodel.step import MemoryReport, memory

GIB = 2.0**30
TABLE = "memory-logs"
QUANTITIES = ("weights", "kv", "verdict")
# What issue of a miss counts: relative errors that the logs are held against
WEIGHTS_WITHIN, KV_WITHIN = 0.01, 0.12

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one log and ours: GiB a GPU for weights, tokens for KV, a word for the verdict."""

    id: str
    quantity: str
    use: str                    # fit or check: whether constants were fitted on this source
    logged: float | str
    predicted: float | str
    error: float                # predicted / logged - 1; 0 or 1 for a verdict
    answer: str                 # what was asked, in short
    source: str                 # the document

    @property
    def hit(self) -> bool:
        """Within the limit of its quantity."""
        return abs(self.error) <= {"weights": WEIGHTS_WITHIN, "kv": KV_WITHIN}.get(self.quantity, 0.0)


@dataclass(frozen=True, slots=True)
class Share:
    """How one quantity does over the logs of one use."""

    quantity: str
    use: str
    rows: int
    median_error: float
    error_p90: float
    hits: float


@dataclass(frozen=True, eq=False)
class MemoryValidation:
    """All comparisons, their shares, and the logs that say too little, by reason."""

    rows: tuple[Compared, ...]
    shares: tuple[Share, ...]
    excluded: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"shares": [asdict(share) for share in self.shares], "excluded": self.excluded,
                "rows": [{**asdict(row), "hit": row.hit} for row in self.rows]}

    def text(self) -> str:
        """Tables of at most 80 columns."""
        lines = [f"{'quantity':10}{'use':7}{'logs':>5}{'median error':>14}{'p90':>7}{'within the limit':>18}"]
        lines += [f"{s.quantity:10}{s.use:7}{s.rows:5}{100 * s.median_error:13.1f}%{100 * s.error_p90:6.1f}%"
                  f"{100 * s.hits:17.0f}%" for s in self.shares]
        lines += ["", f"limits: weights a GPU {WEIGHTS_WITHIN:.0%}, KV tokens {KV_WITHIN:.0%}, the same verdict",
                  "others: all but the one document that most rows come from"]
        misses = [row for row in self.rows if not row.hit]
        lines += ["", f"{len(misses)} misses:", *(_miss(row) for row in misses)]
        if self.excluded:
            lines += ["", f"{sum(self.excluded.values())} logs are not compared:",
                      *(f"{count:6}  {reason}"[:80] for reason, count in self.excluded.items())]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<MemoryValidation of {len(self.rows)} figures>"


def _miss(row: Compared) -> str:
    ours, theirs = _short(row.predicted), _short(row.logged)
    sign = "" if row.quantity == "verdict" else f" ({100 * row.error:+.1f} %)"
    return f"  {row.id[:36]:37}{row.quantity:8}{ours} for {theirs}{sign}"[:80]


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def validate_memory(rows: Iterable[Row] | None = None) -> MemoryValidation:
    """Replay every usable log; rows of hardware/observations/memory-logs.csv unless given."""
    compared: list[Compared] = []
    excluded: Counter[str] = Counter()
    for row in load_rows(TABLE) if rows is None else rows:
        if row["use"] != "usable":
            excluded[row["reason"].partition(":")[0]] += 1
            continue
        compared += compare(row)
    return MemoryValidation(tuple(compared), _shares(compared), dict(excluded.most_common()))


def compare(row: Row) -> list[Compared]:
    """The figures of one log that can be judged, beside ours. A refusal is a verdict of its own: ``refused``."""
    judged = row["judged"].split()
    try:
        report: MemoryReport | None = memory(replayed(row), hints=False)
    except PerfModelError as problem:
        report, refusal = None, str(problem).partition("\n")[0]
    found = []
    if report is None:
        return [Compared(row["id"], quantity, row["split"], logged(row, quantity), f"refused: {refusal}", 1.0, "",
                         row["source"])
                for quantity in judged]
    answer = f"{report.deployment.model.name} {report.deployment.name} {report.deployment.options.version}"
    for quantity in judged:
        theirs = logged(row, quantity)
        ours, error = predicted(row, quantity, report, theirs)
        found.append(Compared(row["id"], quantity, row["split"], theirs, ours, error, answer, row["source"]))
    return found


def logged(row: Row, quantity: str) -> float | str:
    """What the log says: GiB of weights a GPU, KV tokens (or sequences of full length), or how it ended."""
    if quantity == "weights":
        return float(row["weights_gib"])
    if quantity == "verdict":
        return row["outcome"]
    return float(row["kv_tokens"] or float(row["concurrency"]) * float(row["context"]))


def predicted(row: Row, quantity: str, report: MemoryReport, theirs: float | str) -> tuple[float | str, float]:
    """Our figure in the same words, and its relative error."""
    if quantity == "verdict" or isinstance(theirs, str):
        return report.verdict, float(report.verdict != theirs)
    if quantity == "weights":
        ours = float(report.placement.weights_bytes[0]) / GIB
        return ours, ours / theirs - 1.0
    ours = float(report.kv_tokens)
    if row["kv_tokens"]:
        return ours, ours / theirs - 1.0 if theirs else 1.0
    context = float(row["context"])
    if row["engine"] == "tensorrt-llm" and theirs <= ours < theirs + context:       # whole sequences were counted
        return ours, 0.0
    return ours, ours / theirs - 1.0


def replayed(row: Row) -> Deployment:
    """The launch of a log, on a card with the memory that it printed."""
    gpus, card = int(row["n_gpus"]), row["accelerator"] or "h200-sxm"
    ranks = int(row["tp"]) * int(row["pp"])
    keywords: dict[str, Any] = {"tp": int(row["tp"]), "pp": int(row["pp"])}
    for name in ("context", "max_sequences", "prefill_chunk", "page_size"):
        if row[name]:
            keywords[name] = int(row[name])
    for name, column in (("ep", "ep"), ("dcp", "dcp"), ("dp_attention", "dp_attention")):
        if row[column] and int(row[column]) > 1:
            keywords[name] = int(row[column])
    if row["memory_fraction"]:
        keywords["memory_fraction"] = float(row["memory_fraction"])
    if row["cuda_graphs"]:
        keywords["cuda_graphs"] = row["cuda_graphs"] == "on"
    keywords["kv_dtype"] = kv_word(row["kv_dtype"])
    keywords["quantization"] = row["quantization"] or None
    keywords["speculative"] = draft_word(row["speculative"])
    version = f"=={row['version']}" if row["version"] else ""
    d = deploy(row["catalog"], node=f"{max(gpus, ranks)}x-{card}", engine=row["engine"] + version, **keywords)
    return d if not row["total_gib"] else with_memory(d, float(row["total_gib"]) * GIB)


def with_memory(d: Deployment, total_bytes: float) -> Deployment:
    """The same deployment on a GPU that shows another total; defaults are chosen anew. [B]"""
    facts = replace(d.facts, gpu_memory_bytes=total_bytes)
    options, _ = d.engine.resolve(d.requested, facts)
    return replace(d, facts=facts, options=options)


def kv_word(text: str) -> str:
    """The KV format out of a cell such as ``fp8`` or ``auto (bf16)``.

    >>> kv_word("auto (bf16)"), kv_word("fp8"), kv_word("")
    ('auto', 'fp8', 'auto')
    """
    return text.partition(" ")[0] or "auto"


def draft_word(text: str) -> str | None:
    """``method:tokens`` out of a cell such as ``mtp, 3 tokens``; None where nothing is drafted.

    >>> draft_word("mtp, 3 tokens"), draft_word("MTP 2"), draft_word("off")
    ('mtp:3', 'mtp:2', None)
    """
    match = re.match(r"(\w+)\D*(\d+)?", text.lower())
    if match is None or match[1] in ("off", "none"):
        return None
    return f"{match[1]}:{match[2] or 1}"


def _shares(rows: list[Compared]) -> tuple[Share, ...]:
    """Fit, check, all, and all but the one document that most rows come from: that one has one version and one GPU."""
    largest = Counter(row.source for row in rows).most_common(1)[0][0] if rows else ""
    shares = []
    for quantity in QUANTITIES:
        for use in ("fit", "check", "all", "others"):
            found = [row for row in rows if row.quantity == quantity
                     and (row.source != largest if use == "others" else use in (row.use, "all"))]
            if found:
                errors = sorted(abs(row.error) for row in found)
                shares.append(Share(quantity, use, len(found), _at(errors, 0.5), _at(errors, 0.9),
                                    sum(row.hit for row in found) / len(found)))
    return tuple(shares)


def _at(ordered: list[float], level: float) -> float:
    """Quantile of sorted values, linear between them."""
    place = level * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@lru_cache(maxsize=1)
def sources() -> tuple[str, ...]:
    """Documents that the logs come from, each once."""
    return tuple(dict.fromkeys(row["source"] for row in load_rows(TABLE)))
