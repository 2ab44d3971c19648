"""The search: nothing that does not fit, best first, limits kept, and what is sane for the case."""

from typing import Any

import pytest

import perfmodel as pm
from perfmodel.errors import BadInput, Infeasible, UnknownName
from perfmodel.planner.space import strategies
from tests.cases import CASE_NODE, toy

CASE: dict[str, Any] = {"node": CASE_NODE, "engine": "sglang==0.5.23", "context": 32768}


@pytest.fixture(scope="module")
def best() -> Any:
    return pm.plan("kimi-k2.6", **CASE, concurrency=256)


def test_the_plan_holds_only_what_memory_accepts(best: Any) -> None:
    assert len(best.choices) == 10
    for choice in best.choices:
        assert pm.memory(choice.deployment, hints=False).fits
        assert choice.deployment.gpus <= 8


def test_the_best_comes_first_and_each_strategy_once(best: Any) -> None:
    scores = [choice.score for choice in best.choices]
    assert scores == sorted(scores, reverse=True)
    names = [choice.deployment.name for choice in best.choices]
    assert len(set(names)) == len(names)
    rows = best.to_dict()
    assert [row["rank"] for row in rows] == list(range(1, 11))
    assert all(row["command"] for row in rows)


def test_whether_the_first_is_ahead_follows_from_the_bands(best: Any) -> None:
    first, second = (choice.curve.output_tok_s for choice in best.choices[:2])
    assert best.separated == (first[1][0] > second[2][0])


def test_the_front_trades_speed_for_a_user_against_speed_of_a_gpu(best: Any) -> None:
    user = [row["tok_s_per_user"] for row in best.pareto]
    gpu = [row["tok_s_per_gpu"] for row in best.pareto]
    assert user == sorted(user, reverse=True) and gpu == sorted(gpu)
    assert len(best.pareto) > 3


def test_limits_are_kept() -> None:
    bounded = pm.plan("kimi-k2.6", **CASE, concurrency=256, max_tpot_ms=40)
    assert all(choice.curve.tpot_s[0][0] <= 0.040 * 1.001 for choice in bounded.choices)


def test_what_is_fixed_stays() -> None:
    found = pm.plan("kimi-k2.6", **CASE, concurrency=64, tp=8, kv_dtype="bf16")
    assert all(choice.deployment.options.tp == 8 for choice in found.choices)
    assert all(choice.deployment.options.kv_dtype == "bf16" for choice in found.choices)


def test_latency_picks_tensor_parallel_for_one_user(best: Any) -> None:
    """One stream: every stage of a pipeline waits for the others, so splitting each layer is faster."""
    found = pm.plan("kimi-k2.6", **CASE, target="latency", concurrency=1)
    assert found.choices[0].deployment.name.startswith("TP8")


def test_a_small_model_is_copied() -> None:
    found = pm.plan(toy(), node=CASE_NODE, engine="vllm", concurrency=512, input_tokens=100, output_tokens=100)
    assert found.choices[0].deployment.options.dp > 1


def test_no_answer_is_an_answer_in_words() -> None:
    with pytest.raises(Infeasible, match="nothing fits"):
        pm.plan("kimi-k2.6", node="1x-rtx-pro-6000-server")
    with pytest.raises(Infeasible, match="limits"):
        pm.plan("kimi-k2.6", **CASE, concurrency=8, max_tpot_ms=0.01)


@pytest.mark.parametrize("bad", [{"target": "speed"}, {"concurrency": -1}, {"max_tpot_ms": 0}, {"keep": "ten"}])
def test_nonsense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises((BadInput, UnknownName)):
        pm.plan("kimi-k2.6", **CASE, **bad)


def test_strategies_stay_within_the_gpus() -> None:
    found = list(strategies(8, moe=True, layers=61))
    assert all(s["tp"] * s["pp"] * s["dp"] <= 8 for s in found)
    assert all(s["tp"] % s["ep"] == 0 and s["tp"] % s["dp_attention"] == 0 for s in found)
    assert len({tuple(s.values()) for s in found}) == len(found)
