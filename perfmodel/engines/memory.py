"""The noun of the memory rules, and the arithmetic on named rows that every engine shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from perfmodel.engines.options import RankFacts, RuntimeRow

GIB = float(2**30)
MIB = float(2**20)

VERDICTS = ("fits", "oom_weights", "no_kv", "kv_too_small", "oom_request_table", "oom_graphs", "oom_sampler",
            "oom_prefill", "state_slots")


@dataclass(frozen=True, slots=True)
class KvPool:
    """What an engine makes of the memory that is left for KV cache. One entry a rank class where a field is a tuple.

    ``tokens`` is what the version's own log line says for one attention group (DP rank); ``tokens_total`` is what all
    attention groups of one engine copy really hold (more than they print, where windows or states bound a sequence).
    On every rank
    ``total = weights + pool_bytes + sum of rows + free_bytes``.
    """

    tokens: int
    tokens_low: int
    tokens_high: int
    tokens_total: int
    pool_bytes: tuple[float, ...]       # KV tensors that are allocated [B]
    available_bytes: tuple[float, ...]  # what the rank offered before minimum and page rounding [B]
    free_bytes: tuple[float, ...]       # left after everything, negative when it does not fit [B]
    rows: tuple[tuple[RuntimeRow, ...], ...]
    verdict: str
    binding_rank: int
    reason: str
    requested_bytes: float              # vLLM: total x fraction; SGLang: pre x fraction [B]
    pre_bytes: float                    # smallest free memory before weights load [B]
    slack_bytes: float                  # what the fraction leaves beside weights and pool [B]
    sequences: float | None = None      # of full length that one group holds; None: tokens / context


def total(rows: Iterable[RuntimeRow], *when: str) -> float:
    """Sum of the rows [B], of those charged at ``when`` if given."""
    return sum(row.bytes for row in rows if not when or row.when in when)


def band(rows: Iterable[RuntimeRow], *when: str) -> tuple[float, float]:
    """How far the sum of rows may lie below and above its value [B], 80 %; rows count as independent.

    >>> a = RuntimeRow("a", 10.0, 7.0, 14.0, "slack", "assumed", "")
    >>> b = RuntimeRow("b", 10.0, 6.0, 13.0, "slack", "assumed", "")
    >>> band([a, b])
    (5.0, 5.0)
    """
    chosen = [row for row in rows if not when or row.when in when]
    return (sqrt(sum((row.bytes - row.low) ** 2 for row in chosen)),
            sqrt(sum((row.high - row.bytes) ** 2 for row in chosen)))


def row(name: str, size: float, low: float, high: float, when: str, kind: str, source: str) -> RuntimeRow:
    """A row from factors: ``low`` and ``high`` multiply the size."""
    return RuntimeRow(name, float(size), float(size * low), float(size * high), when, kind, source)


def of_ranks(ranks: Sequence[RankFacts],
             rows: Callable[[RankFacts], tuple[RuntimeRow, ...]]) -> tuple[tuple[RuntimeRow, ...], ...]:
    """The rows of every rank; stages that hold the same have the same, made once."""
    keys = [(rank.layers, rank.first, rank.last, rank.weights_bytes, rank.kv_bytes_per_token, rank.heads_local,
             rank.groups) for rank in ranks]
    made = {key: rows(rank) for key, rank in dict(zip(keys, ranks, strict=True)).items()}
    return tuple(made[key] for key in keys)


def smallest(values: Sequence[float]) -> int:
    """Index of the smallest value, the first of equals."""
    return min(range(len(values)), key=lambda index: values[index])
