"""The event simulator, and the closed forms against it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import BadInput
from perfmodel.serving.frontend import NO_FRONT
from perfmodel.serving.lengths import parse_lengths, sample
from perfmodel.serving.simulate import simulate
from perfmodel.serving.validity import CLAIM, WITHIN, WITHIN_GROUPS
from tests.cases import kimi

SERVED = {
    "vllm tp8": kimi("vllm==0.33.0", tp=8, kv_dtype="fp8"),
    "sglang tp8": kimi("sglang==0.5.23", tp=8, memory_fraction=0.92, kv_dtype="fp8"),
    "sglang dpa8": kimi(
        "sglang==0.5.23", tp=8, ep=8, dp_attention=8, memory_fraction=0.92, kv_dtype="fp8", context=32768
    ),
}
LENGTHS = st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 600)), min_size=1, max_size=40)


@settings(max_examples=60)
@given(LENGTHS, st.sampled_from(sorted(SERVED)))
def test_every_request_begins_after_it_arrives_and_ends_after_it_begins(
    pairs: list[tuple[int, int]], name: str
) -> None:
    new, out = np.array(pairs).T
    run = simulate(SERVED[name], inputs=new, outputs=out)
    assert np.all(run.first_s > run.arrival_s)
    assert np.all(run.finish_s >= run.first_s)
    assert np.all(np.isfinite(run.tpot_s[out > 1]))
    again = simulate(SERVED[name], inputs=new, outputs=out)
    assert np.array_equal(run.finish_s, again.finish_s)  # the same requests give the same times


@pytest.mark.parametrize("name", ["vllm tp8", "sglang tp8"])
def test_one_request_alone_takes_its_prefill_and_its_steps(name: str) -> None:
    d = SERVED[name]
    run = simulate(d, inputs=[500], outputs=[101], front=NO_FRONT)
    assert run.ttft_s[0] == pytest.approx(pm.prefill(d, tokens=500).seconds, rel=0.02)
    assert run.tpot_s[0] == pytest.approx(pm.step(d, batch=1, context=550).seconds, rel=0.01)


@pytest.mark.parametrize("name", sorted(SERVED))
@pytest.mark.parametrize(("many", "new", "out"), [(8, 200, 500), (64, 1024, 1024), (128, 200, 2000)])
def test_the_closed_form_of_a_closed_loop_is_within_five_percent(name: str, many: int, new: int, out: int) -> None:
    d, count = SERVED[name], 20 * many
    outputs = np.random.default_rng(0).integers(int(0.8 * out), int(1.2 * out), count)
    run = simulate(d, inputs=np.full(count, new), outputs=outputs, concurrency=many)
    form = pm.predict(d, concurrency=many, input_tokens=new, requests=count,
                      output_tokens=f"uniform:{int(0.8 * out)}:{int(1.2 * out)}")  # fmt: skip
    assert form.output_tok_s[0][0] == pytest.approx(outputs.sum() / run.makespan_s, rel=0.05)
    assert form.tpot_s[0][0] == pytest.approx(np.nanmedian(run.tpot_s), rel=0.05)


@pytest.mark.parametrize("rate", [0.3, 0.9, 1.5])
def test_the_closed_form_of_an_open_loop_follows_the_simulator(rate: float) -> None:
    d, count = SERVED["vllm tp8"], 800
    gaps = np.random.default_rng(0).exponential(1 / rate, count)
    run = simulate(d, inputs=np.full(count, 1024), outputs=np.full(count, 1024), arrivals=np.cumsum(gaps))
    form = pm.predict(d, request_rate=rate)
    assert form.ttft_s[0][0] == pytest.approx(np.median(run.ttft_s), rel=0.05, abs=0)
    assert form.tpot_s[0][0] == pytest.approx(np.nanmedian(run.tpot_s), rel=0.10, abs=0)


def test_a_rate_above_the_capacity_has_no_ttft_and_says_so() -> None:
    curve = pm.predict(SERVED["vllm tp8"], request_rate=[0.1, 1000.0])
    low, high = curve.points
    assert low["request_rate"] == 0.1 and low["ttft_ms"] > 0
    assert high["ttft_ms"] is None
    assert high["output_tok_s"] < 1000 * 1024
    assert any("capacity" in line for line in curve.warnings)


def test_a_full_pool_preempts_and_still_finishes() -> None:
    d = SERVED["vllm tp8"]
    room = pm.memory(d).kv_tokens
    count = 2 * room // 3000
    run = simulate(d, inputs=np.full(count, 1000), outputs=np.full(count, 2000))
    assert run.preemptions > 0
    assert np.all(run.finish_s > 0)


def test_a_job_of_any_size_answers_the_same_by_both_methods() -> None:
    d = SERVED["sglang tp8"]
    lengths: dict[str, Any] = {"input_tokens": 200, "output_tokens": pm.lognormal(mean=2500, sigma=0.8)}
    small, large = (pm.size_job(d, samples=n, **lengths) for n in (20_000, 20_001))
    assert (small.method, large.method) == ("simulated", "closed form")
    assert large.makespan_s == pytest.approx(small.makespan_s, rel=0.06)


def test_parts_of_a_job_add_up_and_the_band_holds_the_point() -> None:
    job = pm.size_job(
        SERVED["sglang tp8"], samples=900_000, input_tokens=200, output_tokens=2500, restarts=1, price_per_gpu_hour=2.0
    )
    assert sum(job.parts.values()) == pytest.approx(job.makespan_s)
    assert job.makespan_s_low < job.makespan_s < job.makespan_s_high
    assert job.gpu_hours == pytest.approx(8 * job.makespan_s / 3600)
    assert job.cost == pytest.approx(2 * job.gpu_hours)
    assert job.to_dict()["output_tokens"] == 900_000 * 2500


@pytest.mark.parametrize("bad", [{"samples": 0}, {"samples": 1.5}, {}, {"samples": 3, "requests": [(1, 1)]},
                                 {"requests": [(1,)]}, {"requests": []}, {"samples": 3, "restarts": -1},
                                 {"samples": 3, "price_per_gpu_hour": -1}, {"samples": 3, "concurrency": 0}])
def test_a_job_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pm.size_job(SERVED["sglang tp8"], **bad)


@pytest.mark.parametrize("bad", [{}, {"concurrency": 1, "request_rate": 1}, {"request_rate": 0}, {"request_rate": "x"}])
def test_one_kind_of_load_is_asked_for(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pm.predict(SERVED["vllm tp8"], **bad)


@pytest.mark.parametrize("name", sorted(SERVED))
@pytest.mark.parametrize(("many", "new", "out"), [(8, 1024, "lognormal:1024:0.8"), (64, 200, "uniform:1800:2200"),
                                                  (64, 900, "lognormal:500:0.5")])  # fmt: skip
def test_the_closed_form_is_as_close_as_it_claims(name: str, many: int, new: int, out: str) -> None:
    """A loop that has run long: requests begin evenly over the time of one, and the middle of the run is looked at."""
    d, count, lengths = SERVED[name], 14 * many, parse_lengths(out)
    form = pm.predict(d, concurrency=many, input_tokens=new, output_tokens=out, requests=1e9)
    close = WITHIN_GROUPS if d.options.dp_attention > 1 else WITHIN
    assert CLAIM.format(close) in form.assumptions
    outputs = sample(lengths, count, 1)
    whole = many * outputs.mean() / form.output_tok_s[0][0]
    times = np.full(count, whole)
    times[:many] = np.arange(many) / many * whole
    run = simulate(d, inputs=np.full(count, new), outputs=outputs, concurrency=many, arrivals=times)
    middle = (run.timeline_s > 0.25 * run.makespan_s) & (run.timeline_s < 0.75 * run.makespan_s)
    assert form.output_tok_s[0][0] == pytest.approx(run.timeline_tok_s[middle].mean(), rel=close, abs=0)
    assert form.tpot_s[0][0] == pytest.approx(np.nanmedian(run.tpot_s), rel=close, abs=0)


def test_the_closed_form_says_where_it_claims_nothing() -> None:
    full = pm.predict(SERVED["vllm tp8"], concurrency=2000, input_tokens=1024, output_tokens=1024)
    assert any("outgrow the KV pool" in line for line in full.assumptions)
    cut = pm.predict(SERVED["sglang dpa8"], concurrency=8, input_tokens=8000, output_tokens=500)
    assert any("one attention group" in line for line in cut.assumptions)
