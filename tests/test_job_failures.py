"""Failures: the formula against printed optima and against a simulation of failing work; its limits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from perfmodel.costs.reliability import checkpointed_wall_first_order_s, checkpointed_wall_s, young_interval_s
from perfmodel.errors import BadInput, Infeasible
from perfmodel.planner import size_job
from perfmodel.planner.job import LLAMA3_PER_NODE_HOUR
from tests.cases import kimi

TP8 = kimi("sglang==0.5.23", tp=8, memory_fraction=0.92)
CASE: dict[str, Any] = {"samples": 900_000, "input_tokens": 200, "output_tokens": 2000}
HOUR = 3600.0


@pytest.mark.parametrize(("mtbf_hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_best_interval_is_the_one_that_daly_prints(mtbf_hours: float, minutes: float) -> None:
    """J. T. Daly 2006, figures 3 to 5: 500 h of work, restarts of 10 min, checkpoints of 5 min."""

    def wall(interval: float) -> float:
        return float(checkpointed_wall_s(500 * HOUR, interval, 300.0, 600.0, mtbf_hours * HOUR))

    best = minimize_scalar(wall, bounds=(60, 20 * HOUR), method="bounded")
    assert best.x / 60 == pytest.approx(minutes, abs=0, rel=0.01)


def failing(work: float, interval: float, dump: float, restart: float, mtbf: float, rng: Any) -> float:
    """One run of work that fails at random: wall time, event by event."""
    wall, pieces = 0.0, round(work / interval)
    while pieces:
        need = interval + dump
        fails = rng.exponential(mtbf)
        if fails >= need:
            wall, pieces = wall + need, pieces - 1
            continue
        wall += fails
        while (again := rng.exponential(mtbf)) < restart:
            wall += again
        wall += restart
    return wall


@pytest.mark.parametrize(("interval", "dump", "restart", "mtbf"), [
    (10.0, 1.0, 5.0, 100.0), (50.0, 0.0, 20.0, 60.0), (5.0, 2.0, 0.0, 30.0), (1.0, 0.0, 30.0, 500.0)])  # fmt: skip
def test_simulated_failures_take_as_long(interval: float, dump: float, restart: float, mtbf: float) -> None:
    rng = np.random.default_rng(1)
    runs = [failing(200.0, interval, dump, restart, mtbf, rng) for _ in range(3000)]
    exact = float(checkpointed_wall_s(200.0, interval, dump, restart, mtbf))
    error = np.std(runs) / np.sqrt(len(runs))
    assert abs(np.mean(runs) - exact) < 4 * error
    assert error < 0.02 * exact


@given(st.floats(1e3, 1e6), st.floats(1.0, 100.0), st.floats(0.0, 10.0), st.floats(0.0, 100.0), st.floats(1e6, 1e9))
def test_rare_failures_agree_with_first_order(work: float, interval: float, dump: float, restart: float,
                                              mtbf: float) -> None:  # fmt: skip
    exact = float(checkpointed_wall_s(work, interval, dump, restart, mtbf))
    first = float(checkpointed_wall_first_order_s(work, interval, dump, restart, mtbf))
    small = (interval + dump + restart) / mtbf
    assert exact == pytest.approx(first, abs=0, rel=small**2 + 1e-12)


@given(st.floats(1.0, 1e3), st.floats(1e6, 1e8))
def test_young_finds_the_least(dump: float, mtbf: float) -> None:
    at = float(young_interval_s(dump, mtbf))
    least = checkpointed_wall_first_order_s(1.0, at, dump, 0.0, mtbf)
    assert all(checkpointed_wall_first_order_s(1.0, at * times, dump, 0.0, mtbf) > least for times in (0.5, 2.0))


# ------------------------------------------------------------------ in a job


def test_a_job_without_failures_is_the_limit_of_rare_ones() -> None:
    never, rare, often = (size_job(TP8, **CASE, failure_rate=rate) for rate in (0.0, 1e-6, 1e-2))
    assert never.parts["restart_s"] == 0 == never.failures
    assert 0 < rare.parts["restart_s"] < 1 < often.parts["restart_s"]
    assert often.failures == pytest.approx(1e-2 * often.phases.work_s / HOUR, abs=0, rel=0.01)


@given(st.floats(1e-300, 1e-6))
@settings(max_examples=10)
def test_the_rarest_failures_still_cost_time(rate: float) -> None:
    wall = float(checkpointed_wall_s(1e6, 1.0, 0.0, 400.0, HOUR / rate))
    assert wall == pytest.approx(1e6 * (1 + 400.5 * rate / HOUR), abs=0, rel=1e-12)


def test_writes_take_their_time_without_failures_too() -> None:
    plain, never, rare = (size_job(TP8, **CASE, **more) for more in (
        {}, {"checkpoint_interval": 600, "checkpoint_time": 60},
        {"checkpoint_interval": 600, "checkpoint_time": 60, "failure_rate": 1e-9}))  # fmt: skip
    assert never.parts["restart_s"] == pytest.approx(plain.phases.work_s / 10, abs=0, rel=1e-9)
    assert never.makespan_s == pytest.approx(rare.makespan_s, abs=0, rel=1e-6)


def test_a_failure_costs_the_start_and_what_was_in_flight() -> None:
    """2.8 failures of 388 s of start and 99 s of half-made answers: 177 running, 1,000 tokens each, at 1,786 tok/s."""
    job = size_job(TP8, **CASE, failure_rate=0.01)
    each = job.parts["load_s"] + job.parts["warmup_s"] + job.concurrency * 1000 / job.phases.tok_s
    assert job.parts["restart_s"] == pytest.approx(job.failures * each, abs=0, rel=0.01)
    sure = size_job(TP8, **CASE, restarts=3)
    assert sure.parts["restart_s"] == pytest.approx(3 * each, abs=0, rel=0.01)


def test_rare_writes_lose_half_an_interval() -> None:
    job, coarse = (size_job(TP8, **CASE, failure_rate=0.01, checkpoint_interval=s) for s in (1.0, 7200.0))
    lost = coarse.parts["restart_s"] - job.parts["restart_s"]
    assert lost == pytest.approx(3600 * job.failures, abs=0, rel=0.05)
    assert size_job(TP8, **CASE, failure_rate=0.01, checkpoint_interval=7200, checkpoint_time=60).makespan_s > (
        coarse.makespan_s)  # fmt: skip


def test_nodes_fail_each_for_itself() -> None:
    """As many failures in all, each of which stops one node of four."""
    one, four = (size_job(TP8, **CASE, failure_rate=0.01, nodes=n) for n in (1, 4))
    assert four.failures == pytest.approx(one.failures, abs=0, rel=0.02)
    assert four.parts["restart_s"] == pytest.approx(one.parts["restart_s"] / 4, abs=0, rel=0.02)


def test_work_that_never_ends_is_said() -> None:
    with pytest.raises(Infeasible, match="never ends"):
        size_job(TP8, **CASE, failure_rate=100, checkpoint_interval=1e6)


@pytest.mark.parametrize("bad", [{"failure_rate": -1}, {"failure_rate": "x"}, {"checkpoint_interval": 0},
                                 {"checkpoint_time": -1}, {"checkpoint_time": 60}, {"restarts": 0.5},
                                 {"checkpoint_time": float("nan")}])
def test_nonsense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        size_job(TP8, **CASE, **bad)


def test_the_rate_of_llama_3() -> None:
    """419 unexpected interruptions of 16,384 GPUs in 54 days: one in about three hours, as the paper says."""
    hours = 1 / (LLAMA3_PER_NODE_HOUR * 16_384 / 8)
    assert hours == pytest.approx(3.09, abs=0, rel=0.01)
