"""Public serving benchmarks, run again in the simulator: TTFT, TPOT and output rate beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.insight.first_token import COLD, steady_ttft
from perfmodel.insight.observed import read
from perfmodel.insight.served import LAUNCH, deployment_of
from perfmodel.serving.frontend import FRONT, Front
from perfmodel.serving.lengths import Lengths, empirical, lognormal, sample, uniform
from perfmodel.serving.simulate import Simulation, simulate

ROWS = "e2e-serving"
METRICS = {"ttft_ms": "ms", "tpot_ms": "ms", "output_tok_s": "tok/s"}
# Prompts of a closed loop whose source does not say how many: ten rounds. Kind: assumed.
ROUNDS = 10
# ShareGPT as vLLM's benchmark samples it. Prompts: deviation of the logarithm; kind: assumed. Answers fall off
# exponentially, none above five times the mean; kind: assumed, between the makespans of the iog rows (200 prompts, the
# longest about three times the mean) and of the gpustack rows (1,000 prompts, five to eight).
SHAREGPT_SIGMA, SHAREGPT_LONGEST = 1.1, 5.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """One measured figure and what the simulator says about it."""

    id: str
    author: str
    accelerator: str
    engine: str
    load: str               # closed, burst, rate
    metric: str
    use: str
    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def replay(row: dict[str, str]) -> list[Replayed]:
    """Simulate one benchmark run as its tool ran it, and set its figures beside those measured."""
    run, middle = simulated(row), np.nanmean if row["statistic"] == "mean" else np.nanmedian
    first = int(row["concurrency"]) if row["load"] == "steady" else 0  # requests that began together are not counted
    figures = {
        "ttft_ms": 1e3 * float(middle(run.ttft_s[first:])),
        "tpot_ms": 1e3 * float(middle(run.tpot_s[first:])),
        "output_tok_s": run.output_tok_s,
    }
    return [
        Replayed(row["id"], row["author"], row["gpu"], row["engine"], row["load"], name, row["use"], float(row[name]),
                 figures[name])
        for name in METRICS
        if row[name] and (name != "ttft_ms" or row["statistic"] and steady_ttft(row))
    ]


def replay_all(
    rows: list[dict[str, str]], executor: Executor | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Replayed]:
    """All rows, in order; on an executor where one is given."""
    found: list[Replayed] = []
    for done, one in enumerate((executor.map if executor else map)(replay, rows), start=1):
        found += one
        if progress:
            progress(done, len(rows))
    return found


def simulated(row: dict[str, str], front: Front = FRONT) -> Simulation:
    """The run of a row: all prompts at once, so many in flight, or at a rate."""
    deployment = _deployed(tuple((key, row[key]) for key in (*LAUNCH, "engine", "engine_version", "date")))
    flight = float(row["concurrency"] or 0)
    count = int(row["prompts"] or max(ROUNDS * flight, 2 * ROUNDS))
    spread = sum(map(ord, row["id"]))
    inputs, outputs = (
        sample(_lengths(row["lengths"], float(row[name]), at), count, spread + at)
        for at, name in enumerate(("isl", "osl"))
    )
    load: dict[str, Any] = {}
    if row["load"] in ("closed", "steady"):
        load["concurrency"] = int(flight)
    elif row["load"] == "rate":
        gaps = np.random.default_rng(spread).exponential(1 / float(row["request_rate"]), count)
        load["arrivals"] = np.cumsum(gaps)
    return simulate(deployment, inputs=inputs, outputs=outputs, front=front, **load)


@lru_cache(maxsize=512)
def _deployed(pairs: tuple[tuple[str, str], ...]) -> Deployment:
    return deployment_of(dict(pairs))


def _lengths(kind: str, mean: float, answer: int) -> Lengths:
    if kind == "sharegpt":
        return _answers(mean) if answer else lognormal(mean, SHAREGPT_SIGMA)
    if kind.startswith("uniform"):
        low, high = (float(x) for x in kind.split("-")[1:])
        scale = 2 * mean / (low + high)
        return uniform(max(1.0, low * scale), high * scale)
    return Lengths(mean, 0.0, f"{mean:g}")


@lru_cache(maxsize=256)
def _answers(mean: float) -> Lengths:
    """Conversations: an exponential cut off at `SHAREGPT_LONGEST` means."""
    chance, scale = (np.arange(2000) + 0.5) / 2000, mean
    for _ in range(20):  # what is cut off would lower the mean
        lengths = np.clip(-scale * np.log1p(-chance), 1.0, SHAREGPT_LONGEST * mean)
        scale *= mean / lengths.mean()
    return empirical([round(value) for value in lengths], "sharegpt")


@dataclass(frozen=True, eq=False)
class ServingValidation:
    """All figures, and how many were left out, by reason."""

    rows: tuple[Replayed, ...]
    excluded: dict[str, int]

    def scores(self) -> list[Group]:
        """Errors by figure and load, then by source; fitted and checked apart."""
        members: dict[tuple[str, str], list[Replayed]] = {}
        for row in self.rows:
            for name in (row.metric, f"{row.metric}, {row.load}", f"{row.metric}, by {row.author}"):
                members.setdefault((name, row.use), []).append(row)
        return [_group(name, use, rows) for (name, use), rows in sorted(members.items())]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [{**asdict(row), "ratio": row.ratio} for row in self.rows]
        return {"scores": [asdict(score) for score in self.scores()], "excluded": self.excluded, "rows": rows}

    def text(self) -> str:
        """Tables of at most 80 columns."""
        lines = [f"{'figure':34}{'use':7}{'rows':>6}{'ratio':>8}{'error':>8}{'p90':>8}"]
        lines += [f"{s.name[:33]:34}{s.use:7}{s.rows:6}{s.median_ratio:8.2f}{100 * s.median_error:7.0f}%"
                  f"{min(100 * s.error_p90, 99999):7.0f}%" for s in self.scores()]
        lines += ["", "ratio: median of predicted / measured; error: median of its distance from 1;",
                  "fit: TTFT and TPOT of these sources are in the calibrations. TTFT and rates of",
                  "the others were never fitted on; TPOT of most sources is in the calibrations"]
        if self.excluded:
            lines += ["", f"{sum(self.excluded.values()):,} figures are not compared:",
                      *(f"{count:6}  {reason}" for reason, count in self.excluded.items())]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Group:
    """How a group of figures does."""

    name: str
    use: str
    rows: int
    median_ratio: float
    median_error: float
    error_p90: float


def _group(name: str, use: str, rows: list[Replayed]) -> Group:
    ratio = np.array([row.ratio for row in rows])
    errors = np.abs(ratio - 1)
    return Group(name, use, len(rows), float(np.median(ratio)), float(np.median(errors)),
                 float(np.percentile(errors, 90)))


def validate_serving(
    executor: Executor | None = None, progress: Callable[[int, int], None] | None = None
) -> ServingValidation:
    """Every row of the file, simulated as its tool ran it."""
    rows = rows_of()
    unstated = sum(bool(row["ttft_ms"]) for row in rows if not row["statistic"])
    figures = replay_all(rows, executor, progress)
    cold = sum(row["notes"].startswith(COLD) for row in rows)
    reasons = {"TTFT of a source that does not say whether it is a mean or a median": unstated} if unstated else {}
    reasons |= {"TTFT of a server that was not warmed up": cold} if cold else {}
    return ServingValidation(tuple(figures), reasons)


def rows_of() -> list[dict[str, str]]:
    """Every row of the file."""
    return list(read(ROWS))
