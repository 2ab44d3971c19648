"""Public serving benchmarks, run again in the simulator: TTFT, TPOT and output rate beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.catalog import load_model
from perfmodel.deployment import Deployment, deploy
from perfmodel.insight.observed import read
from perfmodel.serving.frontend import FRONT, Front
from perfmodel.serving.lengths import Lengths, falling, lognormal, sample, uniform
from perfmodel.serving.predict import predict
from perfmodel.serving.simulate import Simulation, simulate

ROWS = "e2e-serving"
METRICS = {"ttft_ms": "ms", "tpot_ms": "ms", "output_tok_s": "tok/s"}
# Prompts of a closed loop whose source does not say how many: ten rounds. Kind: assumed.
ROUNDS = 10
MOST_CAPTURED = 1024    # a benchmark that states graphs captured the batches that it ran
# ShareGPT prompts as vLLM's benchmark samples them: deviation of the logarithm. Kind: assumed. Answers: the longest of
# 200 is three times the mean, by the makespans of the iog rows at 16 and 32 requests a second. Kind: derived.
SHAREGPT_SIGMA = 1.1


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
    figures = {
        "ttft_ms": 1e3 * float(middle(run.ttft_s)),
        "tpot_ms": 1e3 * float(middle(run.tpot_s)),
        "output_tok_s": run.output_tok_s,
    }
    return [
        Replayed(row["id"], row["author"], row["gpu"], row["engine"], row["load"], name, row["use"], float(row[name]),
                 figures[name])
        for name in METRICS
        if row[name] and (name != "ttft_ms" or row["statistic"])
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
    deployment = deployment_of(tuple((key, row[key]) for key in _DEPLOYED))
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
    if row["load"] == "steady":
        load["arrivals"] = _ramp(deployment, inputs, outputs, int(flight))
    elif row["load"] == "rate":
        gaps = np.random.default_rng(spread).exponential(1 / float(row["request_rate"]), count)
        load["arrivals"] = np.cumsum(gaps)
    return simulate(deployment, inputs=inputs, outputs=outputs, front=front, **load)


def _ramp(deployment: Deployment, inputs: np.ndarray, outputs: np.ndarray, flight: int) -> np.ndarray:
    """Arrivals of a closed loop in steady state: the first ones come evenly over the time of one request."""
    curve = predict(deployment, concurrency=flight, input_tokens=float(inputs.mean()),
                    output_tokens=float(outputs.mean()), arrival="staggered")
    whole = flight * float(outputs.mean()) / float(curve.output_tok_s[0][0])
    times = np.full(len(inputs), whole)
    times[:flight] = np.arange(flight) / flight * whole
    return times


_DEPLOYED = ("model", "quantization", "kv_dtype", "gpu", "n_gpus", "tp", "ep", "pp", "dp", "dp_attention", "engine",
             "engine_version", "cuda_graphs", "max_sequences", "context", "prefill_chunk")


@lru_cache(maxsize=512)
def deployment_of(pairs: tuple[tuple[str, str], ...]) -> Deployment:
    """The deployment of a row; what its source leaves open is the default of the engine's stated version."""
    row = dict(pairs)
    given: dict[str, Any] = {key: int(row[key]) for key in ("tp", "ep", "pp", "dp", "dp_attention")}
    given |= {key: int(row[key]) for key in ("max_sequences", "context", "prefill_chunk") if row[key]}
    if row["engine"] == "tensorrt-llm" or row["cuda_graphs"] == "on":
        given["max_graph_batch"] = MOST_CAPTURED
    return deploy(
        row["model"], node=f"{max(8, int(row['n_gpus']))}x-{row['gpu']}", engine=_engine(row),
        quantization=row["quantization"] or None, kv_dtype=row["kv_dtype"] or load_model(row["model"]).kv_cache,
        cuda_graphs=False if row["cuda_graphs"] == "off" else None, **given)


def _engine(row: dict[str, str]) -> str:
    """Engine and version, where the source gives one that is a number; TensorRT-LLM has one set of rules."""
    version = row["engine_version"].removeprefix("v").split()[0] if row["engine_version"] else ""
    numbered = version[:1].isdigit() and "." in version and row["engine"] != "tensorrt-llm"
    return f"{row['engine']}=={version}" if numbered else row["engine"]


def _lengths(kind: str, mean: float, answer: int) -> Lengths:
    if kind == "sharegpt":
        return falling(mean) if answer else lognormal(mean, SHAREGPT_SIGMA)
    if kind.startswith("uniform"):
        low, high = (float(x) for x in kind.split("-")[1:])
        scale = 2 * mean / (low + high)
        return uniform(max(1.0, low * scale), high * scale)
    return Lengths(mean, 0.0, f"{mean:g}")


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
                  "fit: the front end was fitted on TTFT of these sources. TTFT and rates of the",
                  "others were never fitted on; TPOT of most sources is in the calibrations"]
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
    reasons = {"TTFT of a source that does not say whether it is a mean or a median": unstated} if unstated else {}
    return ServingValidation(tuple(figures), reasons)


def rows_of() -> list[dict[str, str]]:
    """Every row of the file."""
    return list(read(ROWS))
