"""The search: nothing that does not fit, best first, limits kept, and what is sane for the case."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import BadInput, IllegalDeployment, Infeasible, QuestionError, UnknownName
from perfmodel.planner.price import concurrencies, front
from perfmodel.planner.space import copies, strategies
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


@pytest.mark.parametrize("gpus", [1, 6, 8, 72, 1024])
def test_strategies_stay_within_the_gpus(gpus: int) -> None:
    found = list(strategies(gpus, moe=True, layers=61))
    assert all(s["tp"] * s["pp"] * n <= gpus for s in found for n in copies(gpus, s["tp"] * s["pp"]))
    assert all(s["tp"] % s["ep"] == 0 and s["tp"] % (s["dp_attention"] * s["dcp"]) == 0 for s in found)
    assert len({tuple(s.values()) for s in found}) == len(found)


def test_wide_expert_groups_are_tried() -> None:
    """A rack of 72 as one group of experts, two racks as one of 144."""
    for gpus in (72, 144):
        assert {"tp": gpus, "pp": 1, "ep": gpus, "dp_attention": gpus, "dcp": 1} in strategies(gpus, True, 61)


def test_the_search_is_large(best: Any) -> None:
    assert best.priced >= 10_000
    assert best.priced == best.deployments * len(concurrencies(256, 128))
    assert best.refused["memory"] > 0


def test_copies_of_one_checkpoint_in_other_formats() -> None:
    found = pm.plan("qwen3-8b", node="1x-l40s", variants=True, context=4096, concurrency=64)
    assert {choice.deployment.model.name for choice in found.choices} == {"qwen3-8b", "qwen3-8b-fp8"}
    assert any("not judged" in note for note in found.assumptions)


def test_kinds_of_node_compete_and_add_up() -> None:
    nodes = ["2x-l40s", "1x-h100-sxm"]
    found = pm.plan("qwen3-8b", node=nodes, target="cost", price_per_gpu_hour={"l40s": 0.9, "1x-h100-sxm": 2.5},
                    context=4096, concurrency=128)  # fmt: skip
    costs = [choice.cost_per_mtok for choice in found.choices]
    assert costs == sorted(costs) and {choice.deployment.node.name for choice in found.choices} == set(nodes)
    assert [row["node"] for row in found.fleet] == nodes
    assert sum(row["share"] for row in found.fleet) == pytest.approx(1, abs=0, rel=1e-9)
    first = found.choices[0]
    per_hour = first.curve.points[0]["output_tok_s"] * 3600
    price = {"2x-l40s": 0.9, "1x-h100-sxm": 2.5}[first.deployment.node.name]
    assert first.cost_per_mtok == pytest.approx(1e6 * first.deployment.gpus * price / per_hour, abs=0, rel=1e-9)


def test_dear_gpus_lose_their_place() -> None:
    """The order by cost follows the prices, the order by throughput does not."""
    same: dict[str, Any] = {"node": ["1x-l40s", "1x-h100-sxm"], "context": 4096, "concurrency": 64}
    cheap = pm.plan("qwen3-8b", target="cost", price_per_gpu_hour={"l40s": 0.01, "h100-sxm": 9}, **same)
    dear = pm.plan("qwen3-8b", target="cost", price_per_gpu_hour={"l40s": 9, "h100-sxm": 0.01}, **same)
    assert cheap.choices[0].deployment.node.name == "1x-l40s"
    assert dear.choices[0].deployment.node.name == "1x-h100-sxm"


def test_a_number_of_gpus_of_an_accelerator() -> None:
    found = pm.plan("qwen3-8b", node="l40s", gpus=3, context=4096, concurrency=64)
    assert found.choices[0].deployment.node.name == "3x-l40s"
    few = pm.plan("qwen3-8b", node="8x-l40s", gpus=2, context=4096, concurrency=64)
    assert max(choice.deployment.gpus for choice in few.choices) == 2


def test_machines_are_joined_where_one_is_not_enough() -> None:
    """Two machines hold what one does not; every plan is a legal deployment on both."""
    with pytest.raises(Infeasible):
        pm.plan("deepseek-v3.1", node="8x-rtx-pro-6000-server", gpus=8, context=4096, quantization="bf16")
    found = pm.plan("deepseek-v3.1", node="rtx-pro-6000-server", gpus=16, context=4096, concurrency=64, tp=8,
                    dp_attention=1, quantization="bf16", kv_dtype="fp8", keep=3)  # fmt: skip
    d = found.choices[0].deployment
    assert d.node.count == 16 and d.options.pp == 2 and pm.memory(d, hints=False).fits


def test_the_job_that_ends_first() -> None:
    found = pm.plan("qwen3-8b", node="2x-l40s", target="time", samples=300, input_tokens=100, output_tokens=200,
                    context=4096, keep=3)  # fmt: skip
    hours = [choice.job.makespan_s for choice in found.choices if choice.job]
    assert len(hours) == len(found.choices) and hours == sorted(hours)
    assert found.to_dict()[0]["job"]["samples"] == 300


@pytest.mark.parametrize("bad", [
    {"price_per_gpu_hour": {"h100": 2}}, {"price_per_gpu_hour": {"l40s": -1}}, {"gpus": 0}, {"gpus": 1.5},
    {"target": "time"}, {"samples": 5}, {"node": []}, {"nod": "x"}, {"kv_dtype": "nonsense"},
    {"node": ["1x-l40s", "1x-a10"], "target": "cost", "price_per_gpu_hour": {"l40s": 1}},
])  # fmt: skip
def test_questions_that_have_no_meaning(bad: dict[str, Any]) -> None:
    with pytest.raises(QuestionError):
        pm.plan("qwen3-8b", **{"node": "1x-l40s", "context": 4096, **bad})


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_nothing_beats_the_front(points: list[tuple[float, float]]) -> None:
    user, gpu = np.array(points).T
    kept = front(user, gpu).tolist()
    for i in range(len(points)):
        beaten = np.any((user >= user[i]) & (gpu >= gpu[i]) & ((user > user[i]) | (gpu > gpu[i])))
        assert (i in kept) <= (not beaten)
        assert any(user[k] >= user[i] and gpu[k] >= gpu[i] for k in kept)


def test_pools_that_prefill_and_decode_apart() -> None:
    """Where several copies fit, splits of them are priced as `predict` prices them, and take as many GPUs."""
    load: dict[str, Any] = {"input_tokens": 3000, "output_tokens": 200}
    found = pm.plan("qwen3-8b", node="4x-l40s", context=4096, concurrency=128, keep=60, max_tpot_ms=30, **load)
    split = [choice for choice in found.choices if choice.pools]
    assert split and all(choice.gpus <= 4 and " P" in choice.name for choice in split)
    first = split[0]
    assert first.pools is not None
    own = pm.predict(first.deployment, concurrency=first.curve.concurrency, disaggregation=first.pools, **load)
    assert own.output_tok_s[0][0] == pytest.approx(first.score, abs=0, rel=5e-3)
    roles = [(count, role) for count, role, _ in first.commands]
    assert roles == [(first.pools[0], "prefill"), (first.pools[1], "decode")]
    assert not any(choice.pools for choice in pm.plan(
        "qwen3-8b", node="4x-l40s", context=4096, concurrency=16, disaggregate=False, keep=60, **load).choices)


@pytest.mark.parametrize(("fixed", "reason", "near"), [
    ({"tp": 7}, "64 heads over 7 ranks", "tp=8 or tp=4 or tp=2 would fit"),
    ({"ep": 3}, "ep=3 does not divide", "ep=2 or ep=4 or ep=1 would fit"),
    ({"pp": 9}, "needs 9 GPUs", "pp=8 or pp=7 or pp=4 would fit"),
    ({"tp": 8, "dcp": 3}, "dcp=3 does not divide the attention group of 8 ranks", "dcp=2 or dcp=4 or dcp=1"),
    ({"dp": 3}, "needs 24 GPUs", "dp=1 would fit"),
    ({"tp": 10**12}, "needs 1000000000000 GPUs", "tp=8 or tp=4 or tp=2"),
])  # fmt: skip
def test_a_constraint_that_nothing_satisfies_is_named(fixed: dict[str, int], reason: str, near: str) -> None:
    with pytest.raises((Infeasible, IllegalDeployment)) as caught:
        pm.plan("kimi-k2.6", node=CASE_NODE, context=32768, **fixed)
    assert reason in caught.value.message and any(hint.startswith(near) for hint in caught.value.hints)
    name, value = caught.value.hints[0].split(" ")[0].split("=")
    assert pm.plan("kimi-k2.6", node=CASE_NODE, context=32768, keep=1, **{**fixed, name: int(value)}).choices


def test_what_refused_is_counted_and_the_exit_code_follows() -> None:
    with pytest.raises(Infeasible, match="by context.* refused; input and output together are 2048") as short:
        pm.plan("kimi-k2.6", **{**CASE, "context": 512})
    assert "context=2048 or more" in short.value.hints and short.value.exit_code == 1
    with pytest.raises(IllegalDeployment, match=r"\d+ by engine refused"):
        pm.plan("kimi-k2.6", **CASE, ep=3)


@pytest.mark.parametrize("fixed", [{"dp": 3}, {"tp": 4, "ep": 1}, {"pp": 3}])
def test_sizes_that_no_search_would_try_are_tried_when_they_are_given(fixed: dict[str, int]) -> None:
    found = pm.plan("qwen3-8b", node="4x-l40s", context=4096, concurrency=32, disaggregate=False, **fixed)
    assert all(getattr(choice.deployment.options, name) == value for choice in found.choices
               for name, value in fixed.items())  # fmt: skip
