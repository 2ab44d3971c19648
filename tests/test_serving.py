"""Closed-loop serving: identities at one request, bounds at many, and refusals."""

from typing import Any

import numpy as np
import pytest
from cases import CASE_NODE, kimi, toy
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import BadInput
from perfmodel.serving.frontend import FRONT
from perfmodel.serving.simulate import simulate

CASE = {"cuda_graphs": False, "max_sequences": 64, "memory_fraction": 0.92}
STRATEGIES: dict[str, dict[str, Any]] = {
    "vllm tp8": {"engine": "vllm==0.19.1", "tp": 8, "kv_dtype": "fp8"},
    "sglang tp8": {"tp": 8, "memory_fraction": 0.92},
    "sglang tp8 eager": {"tp": 8, "memory_fraction": 0.92, "cuda_graphs": False},
    "sglang ep8": {"tp": 8, "ep": 8, "memory_fraction": 0.92},
    "sglang pp8 of the case": {"pp": 8, **CASE},
    "vllm pp8": {"engine": "vllm==0.19.1", "pp": 8, "memory_fraction": 0.94},
}
DEPLOYED = {name: kimi(**keywords) for name, keywords in STRATEGIES.items()}
each = pytest.mark.parametrize("name", DEPLOYED)
CAPTURED = [1, 2, 4, 8, 16, 32, 64, 128]


@each
def test_one_request_alone_gets_a_token_a_step(name: str) -> None:
    d = DEPLOYED[name]
    curve = pm.predict(d, concurrency=1, input_tokens=1000, output_tokens=500)
    step = pm.step(d, batch=1, context=1250)
    assert curve.tpot_s[0][0] == pytest.approx(step.seconds, rel=1e-12)
    assert curve.bound_by[0] == step.bound_by
    prompt = pm.prefill(d, tokens=1000).seconds
    engine = curve.ttft_s[0][0] - FRONT.alone_s(1000)  # what the client sees beside the engine
    assert engine == pytest.approx(prompt, rel=1e-12, abs=0)  # nobody else's step is under way
    whole = curve.ttft_s[0][0] + 499 * curve.tpot_s[0][0]
    assert curve.output_tok_s[0][0] == pytest.approx(500 / whole, rel=1e-9)


@each
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=5), st.integers(1, 8000), st.integers(2, 4000))
@settings(max_examples=15)
def test_parts_bands_and_bounds(name: str, concurrency: list[int], prompt: int, answer: int) -> None:
    curve = pm.predict(DEPLOYED[name], concurrency=concurrency, input_tokens=prompt, output_tokens=answer)
    assert sum(curve.parts.values()) == pytest.approx(curve.tpot_s[0], rel=1e-9)
    assert all(np.all(part >= 0) for part in curve.parts.values())
    for point, low, high in (curve.output_tok_s, curve.ttft_s, curve.tpot_s):
        assert np.all(low < point)
        assert np.all(point < high)
    asked = np.array(concurrency)
    assert np.all(curve.running <= asked)
    # Little's law: the tokens of n requests take at least n - 1 intervals
    assert np.all(curve.output_tok_s[0] <= curve.running / curve.tpot_s[0] * answer / (answer - 1) * (1 + 1e-9))


@each
def test_throughput_is_below_concurrency_over_tpot(name: str) -> None:
    curve = pm.predict(DEPLOYED[name], concurrency=CAPTURED, input_tokens=1024, output_tokens=1024)
    assert np.all(curve.output_tok_s[0] <= np.array(CAPTURED) / curve.tpot_s[0])


@pytest.mark.parametrize("name", ["vllm tp8", "sglang tp8", "sglang tp8 eager", "sglang ep8"])
def test_more_requests_in_flight_never_give_less_throughput(name: str) -> None:
    """At captured batch sizes: between them, padding may cost more than one more sequence brings."""
    curve = pm.predict(DEPLOYED[name], concurrency=CAPTURED, input_tokens=256, output_tokens=1024)
    assert np.all(np.diff(curve.output_tok_s[0]) >= 0)
    assert np.all(np.diff(curve.tpot_s[0]) >= 0)
    assert np.all(np.diff(curve.ttft_s[0]) >= 0)


def test_what_exceeds_the_pool_waits_and_the_throughput_saturates() -> None:
    d = DEPLOYED["sglang tp8"]
    room = pm.memory(d).kv_tokens
    curve = pm.predict(d, concurrency=[64, 1000, 2000], input_tokens=8000, output_tokens=2000)
    reserved = 0.14 * 0.7 * 1000  # SGLang keeps this share of the answers still to come free
    assert curve.running[1] == curve.running[2] == room // (9000 + reserved)
    assert curve.output_tok_s[0][1] == pytest.approx(curve.output_tok_s[0][2])
    assert curve.ttft_s[0][2] > 1.9 * curve.ttft_s[0][1]
    assert any("wait" in warning for warning in curve.warnings)
    # closed loop: those who run and those who wait make up all that were asked for
    request = curve.ttft_s[0][2] + 1999 * curve.tpot_s[0][2]
    assert 2000 / request * 2000 == pytest.approx(curve.output_tok_s[0][2], rel=0.01)


@pytest.mark.parametrize("engine", ["sglang==0.5.23", "vllm==0.33.0"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_no_more_run_than_the_engine_admits(engine: str, groups: int) -> None:
    """SGLang's max_running_requests is shared by the attention groups, vLLM's max_num_seqs holds in each."""
    model = toy(experts=8, per_token=2)
    d = pm.deploy(model, node=CASE_NODE, engine=engine, tp=4, dp_attention=groups, max_sequences=16)
    curve = pm.predict(d, concurrency=500, input_tokens=100, output_tokens=100)
    assert curve.running[0] == (16 if engine.startswith("sglang") else 16 * groups)


def test_copies_share_the_requests() -> None:
    one, four = (pm.deploy("llama-3.1-8b", node=CASE_NODE, tp=2, dp=dp) for dp in (1, 4))
    single = pm.predict(one, concurrency=8, input_tokens=500, output_tokens=200)
    spread = pm.predict(four, concurrency=32, input_tokens=500, output_tokens=200)
    assert spread.output_tok_s[0][0] == pytest.approx(4 * single.output_tok_s[0][0], rel=1e-9)
    assert spread.tpot_s[0][0] == pytest.approx(single.tpot_s[0][0], rel=1e-9)


@each
def test_a_prefix_that_is_cached_lowers_the_first_token_and_nothing_gets_worse(name: str) -> None:
    curves = [
        pm.predict(kimi(**STRATEGIES[name], prefix_hit_rate=rate), concurrency=[1, 16], input_tokens=8000)
        for rate in (0.0, 0.5, 0.9)
    ]
    for less, more in zip(curves[:-1], curves[1:], strict=True):
        assert np.all(more.ttft_s[0] < less.ttft_s[0])
        assert np.all(more.tpot_s[0] <= less.tpot_s[0])
        assert np.all(more.output_tok_s[0] > less.output_tok_s[0])


def test_arrays_give_what_their_elements_give() -> None:
    d = DEPLOYED["vllm tp8"]
    together = pm.predict(d, concurrency=[1, 7, 64])
    for i, concurrency in enumerate((1, 7, 64)):
        alone = pm.predict(d, concurrency=concurrency)
        assert together.points[i]["output_tok_s"] == pytest.approx(alone.points[0]["output_tok_s"], rel=1e-12)
        assert together.points[i]["bound_by"] == alone.points[0]["bound_by"]


def test_points_have_the_keys_of_the_contract() -> None:
    answer = pm.predict(DEPLOYED["vllm tp8"], concurrency=[1, 8]).to_dict()
    assert {"points", "warnings", "assumptions"} <= set(answer)
    bands = {f"{name}{end}" for name in ("output_tok_s", "ttft_ms", "tpot_ms") for end in ("", "_low", "_high")}
    for point in answer["points"]:
        assert {"concurrency", "running", "bound_by", "parts", *bands} <= set(point)
        assert sum(point["parts"].values()) * 1e3 == pytest.approx(point["tpot_ms"], rel=1e-9)


def test_mean_and_spread_of_a_distribution_enter() -> None:
    """Who looks at a random time finds long answers more often: a running request is longer than the mean one."""
    d = DEPLOYED["vllm tp8"]
    prompts = [pm.predict(d, concurrency=8, input_tokens=n) for n in (900, "uniform:800:1000")]
    assert prompts[1].output_tok_s[0] == pytest.approx(prompts[0].output_tok_s[0])
    fixed, spread = (pm.predict(d, concurrency=8, output_tokens=n) for n in (2000, "lognormal:2000:0.8"))
    assert spread.tpot_s[0][0] > fixed.tpot_s[0][0]
    assert any("mean and spread" in line for line in spread.assumptions)
    assert not any("mean and spread" in line for line in fixed.assumptions)


def test_a_deployment_that_cannot_start_is_answered_with_a_warning() -> None:
    curve = pm.predict(kimi(pp=8), concurrency=8)
    assert any("no_kv" in warning for warning in curve.warnings)


def test_the_case_pp8_stalls_at_eight_and_a_smaller_micro_batch_repairs_it() -> None:
    """95.6 tok/s at eight, half of what eight slots give; --pp-max-micro-batch-size 1 gives about 197."""
    stalled = pm.predict(DEPLOYED["sglang pp8 of the case"], concurrency=[1, 4, 8], output_tokens=2000)
    repaired = pm.predict(kimi(pp=8, **CASE, max_micro_batch=1), concurrency=8, output_tokens=2000)
    for i, measured in enumerate((24.5, 68.3, 95.6)):
        assert stalled.output_tok_s[1][i] <= measured <= stalled.output_tok_s[2][i]
    assert repaired.output_tok_s[0][0] > 1.5 * stalled.output_tok_s[0][2]
    assert repaired.output_tok_s[1][0] <= 197 <= repaired.output_tok_s[2][0]


@pytest.mark.parametrize(
    "question", [{"concurrency": 0}, {"concurrency": -4}, {"concurrency": []}, {"concurrency": "many"},
                 {"concurrency": float("nan")}, {"concurrency": [1, None]}, {"concurrency": 1e9},
                 {"concurrency": 1, "input_tokens": 0}, {"concurrency": 1, "output_tokens": -1},
                 {"concurrency": 1, "input_tokens": "long"}, {"concurrency": 1, "input_tokens": "uniform:9:3"},
                 {"concurrency": 1, "output_tokens": "lognormal:100:-1"}, {"concurrency": 1, "input_tokens": 300_000}],
)  # fmt: skip
def test_questions_that_make_no_sense_are_refused(question: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pm.predict(DEPLOYED["vllm tp8"], **question)


def test_compare_ranks_by_throughput_and_puts_what_does_not_fit_last() -> None:
    deployments = [kimi(pp=8), kimi(tp=8, **CASE), kimi(pp=8, **CASE), kimi(tp=8, memory_fraction=0.92)]
    ranked = pm.compare(deployments, concurrency=[1, 32]).to_dict()
    assert [entry["fits"] for entry in ranked] == [True, True, True, False]
    rates = [entry["points"][-1]["output_tok_s"] for entry in ranked[:-1]]
    assert rates == sorted(rates, reverse=True)
    assert [entry["rank"] for entry in ranked] == [1, 2, 3, 4]
    assert all(entry["command"] for entry in ranked)
    with pytest.raises(BadInput):
        pm.compare([])


def test_ttft_of_a_longer_run_forgets_its_start() -> None:
    d = DEPLOYED["vllm tp8"]
    load: dict[str, Any] = {"concurrency": [8, 64], "input_tokens": 1000, "output_tokens": 500}
    short, usual, long = (pm.predict(d, requests=n, **load).ttft_s[0] for n in (64, None, 1e9))
    assert np.all(long <= usual) and long[1] < usual[1] < short[1]
    alone = [pm.predict(d, concurrency=1, input_tokens=1000, requests=n).ttft_s[0][0] for n in (1, 1e9)]
    assert alone[0] == pytest.approx(alone[1], rel=1e-9, abs=0)  # nobody starts beside it


def test_the_first_round_is_that_of_the_simulator() -> None:
    """One round: every prompt comes at once, and its mean TTFT is half of the last one's."""
    d = DEPLOYED["vllm tp8"]
    run = simulate(d, inputs=np.full(64, 1000), outputs=np.full(64, 500), concurrency=64)
    form = pm.predict(d, concurrency=64, input_tokens=1000, output_tokens=500, requests=64)
    assert form.ttft_s[0][0] == pytest.approx(float(np.mean(run.ttft_s)), rel=0.15, abs=0)


@pytest.mark.parametrize("requests", [7, "many", float("nan"), -1])
def test_too_few_requests_are_refused(requests: Any) -> None:
    with pytest.raises(BadInput, match="requests"):
        pm.predict(DEPLOYED["vllm tp8"], concurrency=8, requests=requests)
