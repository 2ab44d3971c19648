"""A benchmark's figures as times, and what the model says about the same figures: series that a fit can price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.engines.speculation import speculation
from perfmodel.errors import BadInput
from perfmodel.insight.observed import Observation, Series, by_row, decode_seconds
from perfmodel.insight.served import join
from perfmodel.placement import place
from perfmodel.serving.lengths import fixed
from perfmodel.serving.loop import Loop, loop_of
from perfmodel.serving.loop_times import loop_times, rate_of, together_s, tpot_of
from perfmodel.step import forward
from perfmodel.step.factors import NAMES, idle_factors

WORDS = {"tpot": "time per output token", "rate": "output rate", "step": "decode step", "prefill": "prefill",
         "batch": "one batch from prompt to end"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a benchmark as a time.

    ``seconds`` is the time per output token of a request (tpot), one over the output rate of all requests (rate), one
    decode step (step), a prefill of ``load`` prompts (prefill), or all of a static batch (batch). ``load`` counts
    requests in flight or sequences; ``context`` is what a prompt finds in the cache, or mean cached tokens of a step.
    """

    kind: str
    seconds: float
    load: float
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    context: float = 0.0
    source: str = ""

    @property
    def words(self) -> str:
        """The conditions in a few words."""
        lengths = {"tpot": f"{self.input_tokens:g} in, {self.output_tokens:g} out", "step": f"context {self.context:g}",
                   "prefill": f"{self.input_tokens:g} tokens after {self.context:g}"}
        return f"{WORDS[self.kind]} at {self.load:g}, {lengths.get(self.kind, lengths['tpot'])}"


def series_of(deployment: Deployment, rows: Sequence[Measurement]) -> list[tuple[Series, list[int]]]:
    """Series that price the rows, each with the places of its rows."""
    limit = float(loop_of(deployment, np.array([1.0]), fixed(1), fixed(1)).limit) * deployment.options.dp
    kinds: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        waits = row.kind == "batch" and row.load > limit      # more requests than run at once: the queue drains
        kinds.setdefault("rate" if waits else row.kind, []).append(i)
    made = {"tpot": _served, "rate": _served, "step": _step, "prefill": _prefill, "batch": _batch}
    found = []
    for kind, where in kinds.items():
        part = [rows[i] for i in where]
        found.append((_series(deployment, kind, part, made[kind](deployment, kind, part)), where))
    return found


Price = Callable[[dict[str, Any]], np.ndarray]


def _series(deployment: Deployment, kind: str, rows: list[Measurement], price: Price) -> Series:
    kept = tuple(Observation(f"{kind} {i}", kind, "own benchmark", "fit", _times(kind, row), "s", concurrency=row.load)
                 for i, row in enumerate(rows))
    return Series(kept, price, np.zeros(len(rows)), deployment.accelerator.name, deployment.options.engine,
                  uses=frozenset(NAMES) - idle_factors(deployment))


def _times(kind: str, row: Measurement) -> float:
    """Seconds as the series counts them: a static batch that has to queue is a rate."""
    return row.seconds / (row.load * row.output_tokens) if kind == "rate" and row.kind == "batch" else row.seconds


def _shaped(factors: dict[str, Any]) -> dict[str, Any]:
    return {name: np.reshape(np.asarray(value, float), (-1, 1, 1)) for name, value in factors.items()}


def _served(deployment: Deployment, kind: str, rows: list[Measurement]) -> Price:
    loop = _loop(deployment, rows)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        table = _shaped(factors)
        times = loop_times(loop, table)
        if kind == "rate":
            return by_row(1.0 / rate_of(loop, times), len(rows))
        return by_row(tpot_of(loop, times, together_s(loop, table)), len(rows))  # as `predict` answers

    return seconds


def _loop(deployment: Deployment, rows: list[Measurement]) -> Loop:
    """The loops of all rows, one entry of every array each."""
    return join([loop_of(deployment, np.array([row.load]), fixed(row.input_tokens), fixed(row.output_tokens))
                 for row in rows])


def _step(deployment: Deployment, kind: str, rows: list[Measurement]) -> Price:
    batch = np.array([row.load / deployment.options.dp for row in rows])
    price = decode_seconds(deployment, batch, np.array([row.context for row in rows]))
    return lambda factors: price(_shaped(factors))


def _prefill(deployment: Deployment, kind: str, rows: list[Measurement]) -> Price:
    placement = place(deployment)
    prompts = np.array([max(1.0, row.load / deployment.options.dp) for row in rows])
    tokens = prompts * np.array([row.input_tokens for row in rows])
    cached = np.array([row.context for row in rows])
    return lambda factors: by_row(forward.prefill(placement, tokens, cached, _shaped(factors), prompts).seconds,
                                  len(rows))


def _batch(deployment: Deployment, kind: str, rows: list[Measurement]) -> Price:
    """Prefill of all prompts together, then as many steps as tokens are left."""
    first = _prefill(deployment, kind, rows)
    middle = [Measurement("step", 1.0, row.load, context=row.input_tokens + row.output_tokens / 2) for row in rows]
    step, left = _step(deployment, kind, middle), np.array([max(row.output_tokens - 1, 0.0) for row in rows])
    spec = speculation(deployment.options.speculative)
    each = 1.0 / spec.tokens if spec else 1.0
    return lambda factors: first(factors) + each * left * step(factors)


def measurements(rows: Iterable[dict[str, float]], where: str) -> list[Measurement]:
    """Rows of the columns concurrency, output_tok_s or tpot_ms, input_tokens, output_tokens."""
    made = []
    for line, row in enumerate(rows, start=1):
        given = {"tpot": row.get("tpot_ms", 0.0) * 1e-3, "rate": 1.0 / row["output_tok_s"] if row.get("output_tok_s")
                 else 0.0}
        kind = "rate" if given["rate"] else "tpot"
        if not given[kind]:
            raise BadInput(f"{where}: row {line} has neither output_tok_s nor tpot_ms")
        made.append(Measurement(kind, given[kind], row["concurrency"], row["input_tokens"], row["output_tokens"],
                                source=f"{where}: row {line}"))
    return made
