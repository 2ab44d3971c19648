"""Served TTFT of closed loops -> what the closed form says about the same rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.insight.observed import Observation, Series, by_row, read
from perfmodel.insight.served import KEYS, SPREADS, _loop, deployment_of, engine_of, join, source_of
from perfmodel.serving.loop_times import loop_times, together_s, ttft_of
from perfmodel.step.factors import NAMES, idle_factors

ROWS, KIND = "e2e-serving", "ttft"
COLD = "cold:"  # notes of rows whose first round compiled kernels
_LAUNCH = tuple(key for key in KEYS if key != "prompts_at_once")


@lru_cache(maxsize=1)
def series() -> tuple[Series, ...]:
    """Mean TTFT of closed loops whose source says that it is a mean, grouped by deployment and lengths."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read(ROWS):
        if row["load"] == "closed" and steady_ttft(row) and row["statistic"] == "mean" and row["lengths"] in SPREADS:
            groups.setdefault((engine_of(row), *(row[key] for key in _LAUNCH)), []).append(row)
    return tuple(_series(rows) for rows in groups.values())


def steady_ttft(row: dict[str, str]) -> bool:
    """Whether a row has a TTFT that says something of a warm server."""
    return bool(row["ttft_ms"]) and not row["notes"].startswith(COLD)


def _series(rows: list[dict[str, str]]) -> Series:
    deployment = deployment_of(rows[0])
    rounds = [float(row["prompts"]) / float(row["concurrency"]) for row in rows]
    loop = join([_loop(deployment, row, n) for row, n in zip(rows, rounds, strict=True)])
    kept = tuple(Observation(row["id"], KIND, f"{KIND}/{source_of(row)}", row["use"], 1e-3 * float(row["ttft_ms"]), "s",
                             concurrency=float(row["concurrency"])) for row in rows)

    def seconds(factors: dict[str, Any]) -> np.ndarray:
        table = {name: np.reshape(np.asarray(value, float), (-1, 1, 1)) for name, value in factors.items()}
        return by_row(ttft_of(loop, loop_times(loop, table), together_s(loop, table)), len(rows))

    return Series(kept, seconds, np.zeros(len(rows)), deployment.accelerator.name, deployment.options.engine,
                  uses=frozenset(NAMES) - idle_factors(deployment))
