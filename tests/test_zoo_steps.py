"""Every model of the catalog has a step time: finite, positive, monotone, between its largest part and their sum."""

from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.catalog import names
from perfmodel.deployment import Deployment
from perfmodel.errors import IllegalDeployment
from perfmodel.placement import place
from perfmodel.step import forward
from perfmodel.step.factors import factors_of
from perfmodel.step.operations import Load, Row

BATCH, CONTEXT = [1, 2, 8, 64, 256], [[0], [100], [3000], [20000]]


def deployed(model: str) -> Deployment:
    """The widest tensor split that is legal for this model on eight B200."""
    for tp in (8, 4, 2, 1):
        try:
            return pm.deploy(model, node="8x-b200-sxm", engine="vllm", tp=tp, max_sequences=256)
        except IllegalDeployment:
            continue
    raise AssertionError(f"{model} deploys nowhere")


@pytest.mark.parametrize("model", names("model"))
def test_a_step_is_finite_positive_and_monotone(model: str) -> None:
    d = deployed(model)
    longest = [c for c in CONTEXT if c[0] < d.facts.max_context]
    cost = pm.step(d, batch=BATCH, context=longest)
    assert np.all(np.isfinite(cost.seconds)) and np.all(cost.seconds > 0)
    assert np.all(cost.seconds_low < cost.seconds) and np.all(cost.seconds < cost.seconds_high)
    assert np.all(np.diff(cost.seconds, axis=0) >= -1e-12), "context"
    assert np.all(np.diff(cost.seconds, axis=1) >= -1e-12), "batch"
    assert sum(row.seconds for row in cost.rows) == pytest.approx(cost.seconds, rel=1e-9)
    prefill = pm.prefill(d, tokens=[1, 100, 1000])
    assert np.all(np.diff(prefill.seconds) >= -1e-12) and np.all(prefill.seconds > 0)


@pytest.mark.parametrize("model", names("model"))
def test_rows_lie_between_their_largest_part_and_the_sum(model: str) -> None:
    d = deployed(model)
    placement = place(d)
    bench = forward.bench_of(placement, factors_of(d).draws(0, uncertain=False))
    many = np.array([1.0, 64.0])
    for phase in ("decode", "prefill"):
        load = Load(phase, many, many, many, np.array([500.0, 500.0]), many)
        rows = [row for k in range(len(placement.kinds)) for row in forward.layer_rows(placement, bench, k, load)]
        for row in rows:
            if row.bound != "communication":
                between(row)


def between(row: Row) -> None:
    parts: list[Any] = [np.asarray(part, float) for part in (row.compute_s, row.memory_s, row.latency_s)]
    assert np.all(row.seconds >= np.maximum.reduce(np.broadcast_arrays(*parts)) - 1e-15), row.name
    assert np.all(row.seconds <= sum(parts) + 1e-15), row.name


@pytest.mark.parametrize(("model", "window"), [("gemma-3-27b", 1024), ("gpt-oss-120b", 128)])
def test_a_window_stops_the_growth_of_a_layer(model: str, window: int) -> None:
    """Beyond the window only the full layers read more."""
    d = deployed(model)
    reads = [next(row.bytes for row in pm.step(d, batch=8, context=c).rows if row.name == "decode attention")
             for c in (window // 2, window, 2 * window, 3 * window)]
    inside, outside, later = np.diff(reads) / np.array([window / 2, window, window])
    assert 0 < later == pytest.approx(outside, rel=1e-6)
    assert outside < 0.7 * inside


def test_states_and_indexers_have_rows() -> None:
    for model, name in (("qwen3.5-397b-a17b", "recurrent state"), ("nemotron-3-nano-30b-a3b", "recurrent state"),
                        ("deepseek-v3.2", "indexer scores"), ("deepseek-v4-flash", "residual streams"),
                        ("gemma-4-26b-a4b", "residual MLP gate and up"), ("kimi-k3", "recurrent state")):
        assert name in [row.name for row in pm.step(deployed(model), batch=4, context=5000).rows], model


def test_a_sparse_layer_attends_to_no_more_than_it_picks() -> None:
    d = deployed("deepseek-v3.2")
    at = {c: next(row for row in pm.step(d, batch=4, context=c).rows if row.name == "decode attention")
          for c in (3000, 30000)}
    assert at[3000].bytes == pytest.approx(at[30000].bytes)
