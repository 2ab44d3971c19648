"""The scheduler of each engine: budgets, admission, preemption; and the same answers on any executor."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cases import kimi
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import BadInput
from perfmodel.serving.frontend import NO_FRONT
from perfmodel.serving.scheduler import Copy
from perfmodel.serving.simulate import Simulation, simulate
from perfmodel.serving.tables import server_tables

ENGINES = {
    "vllm": pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="vllm==0.33.0", max_sequences=64),
    "vllm v0": pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="vllm==0.7.3", context=16384),
    "sglang": pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="sglang==0.5.23", max_sequences=64),
    "tensorrt-llm": pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="tensorrt-llm", max_sequences=64),
    "groups": kimi("sglang==0.5.23", tp=8, ep=8, dp_attention=8, memory_fraction=0.92, kv_dtype="fp8", context=32768),
}


class Watched(Copy):
    """A copy that notes every forward of prompt tokens, and checks its own books."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.forwards: list[tuple[int, int, int]] = []

    def _forward(self, tokens: int, seen: float, prompts: int, done: list[int]) -> None:
        self.forwards.append((tokens, self.size, prompts))
        super()._forward(tokens, seen, prompts, done)

    def _advance(self, steps: int) -> None:
        super()._advance(steps)
        assert self.cached >= 0 and self.parted >= 0 and self.unmade >= 0 and self.size <= self.tables.limit


def watched(name: str, new: Any, out: Any, arrivals: Any = None, **tables: Any) -> Watched:
    d = ENGINES[name]
    made = server_tables(d, 64, float(np.mean(new) + np.mean(out) / 2), "staggered", float(np.mean(new)))
    if tables:
        from dataclasses import replace

        made = replace(made, **tables)
    times = [0.0] * len(new) if arrivals is None else arrivals
    copy = Watched(made, times, list(new), list(out), [0] * len(new))
    copy.go()
    return copy


@pytest.mark.parametrize("name", ENGINES)
@given(st.lists(st.tuples(st.integers(1, 12000), st.integers(1, 300), st.floats(0, 2)), min_size=1, max_size=25))
@settings(max_examples=25)
def test_no_forward_holds_more_than_the_budget_and_nothing_is_lost(
    name: str, rows: list[tuple[int, int, float]]
) -> None:
    new, out, gaps = (list(column) for column in zip(*rows, strict=True))
    copy = watched(name, new, out, np.cumsum(gaps).tolist())
    rules, groups = copy.rules, copy.tables.groups
    for tokens, size, prompts in copy.forwards:
        assert tokens <= max(rules.budget * min(prompts, groups), 0 if rules.splits else max(new))
        if rules.mixes and rules.splits:
            assert tokens + size <= rules.budget
    assert sum(tokens for tokens, _, _ in copy.forwards) == sum(new)  # no preemption here, so every token once
    assert copy.produced == sum(out) and copy.preempted == 0
    assert (copy.size, copy.cached, copy.parted, copy.unmade, copy.promised) == (0, 0, 0, 0, 0)
    for began, first, finish in zip(copy.began, copy.first, copy.finish, strict=True):
        assert finish >= first > began


@pytest.mark.parametrize("name", ["vllm", "sglang", "vllm v0"])
def test_a_small_pool_preempts_and_every_answer_is_still_complete(name: str) -> None:
    copy = watched(name, [500] * 40, [800] * 40, kv_tokens=16_000)
    assert copy.preempted > 0 or name == "sglang"  # SGLang keeps room for answers instead
    assert copy.produced >= 40 * 800
    assert (copy.size, copy.cached, copy.parted) == (0, 0, 0)


def test_an_engine_that_evicts_nobody_runs_fewer_at_once() -> None:
    vllm, trt = (watched(name, [500] * 40, [800] * 40, kv_tokens=16_000) for name in ("vllm", "tensorrt-llm"))
    assert trt.preempted == 0 < vllm.preempted
    most = [max(running for _, running, _ in copy.timeline) for copy in (vllm, trt)]
    assert most[1] <= 16_000 // 1300 < most[0]


def test_decoding_goes_on_beside_prompts_only_where_the_engine_mixes() -> None:
    """One long answer runs while many prompts arrive: SGLang makes it wait for each, vLLM for a share of each."""
    new, out, times = [100] + [6000] * 10, [400] + [1] * 10, [0.0] + [0.5 + 0.02 * i for i in range(10)]
    loss = {}
    for name in ("vllm", "sglang"):
        run = simulate(ENGINES[name], inputs=new, outputs=out, arrivals=times, front=NO_FRONT)
        alone = simulate(ENGINES[name], inputs=new[:1], outputs=out[:1], front=NO_FRONT)
        prompts = sum(pm.prefill(ENGINES[name], tokens=6000).seconds for _ in range(10))
        loss[name] = (run.finish_s[0] - alone.finish_s[0]) / prompts
    assert 0 < loss["vllm"] < 1.1 < loss["sglang"] * 1.2


def test_long_prompts_are_cut_and_the_cut_ones_see_what_came_before() -> None:
    d = ENGINES["vllm"]
    whole = pm.prefill(d, tokens=24000).seconds
    run = simulate(d, inputs=[24000], outputs=[1], front=NO_FRONT)
    assert run.ttft_s[0] == pytest.approx(whole, rel=0.05, abs=0)
    assert run.finish_s[0] == run.first_s[0]


def same(one: Simulation, other: Simulation) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in
               ("arrival_s", "first_s", "finish_s", "timeline_s", "timeline_running", "timeline_tok_s"))  # fmt: skip


def workload(count: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    return {"inputs": rng.integers(10, 4000, count), "outputs": rng.integers(1, 400, count),
            "arrivals": np.cumsum(rng.exponential(0.02, count))}  # fmt: skip


def test_copies_on_an_executor_give_the_same_answer() -> None:
    d = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", dp=4)
    here = simulate(d, **workload())
    with ThreadPoolExecutor(2) as threads:
        assert same(here, simulate(d, **workload(), executor=threads))
    with ProcessPoolExecutor(1) as processes:
        assert same(here, simulate(d, **workload(), executor=processes))


def questions() -> list[dict[str, Any]]:
    d = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", tp=2)
    return [{"deployment": d, "concurrency": [1, 8, 64], "input_tokens": n} for n in (100, 1000, 4000)]


def test_a_sweep_runs_on_a_dask_cluster_bit_for_bit() -> None:
    distributed = pytest.importorskip("distributed")
    d = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", dp=4)
    here, alone = pm.sweep(pm.predict, questions()), simulate(d, **workload())
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = pm.sweep(pm.predict, questions(), executor=client.get_executor())
        assert same(alone, simulate(d, **workload(), executor=client.get_executor()))
    for one, other in zip(here, there, strict=True):
        assert one.to_dict() == other.to_dict()


def test_a_sweep_says_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    pm.sweep(pm.predict, questions(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_what_the_context_does_not_hold_is_refused_and_what_does_not_start_is_said() -> None:
    with pytest.raises(BadInput, match="context"):
        simulate(ENGINES["vllm v0"], inputs=[16000], outputs=[1000])
    run = simulate(kimi(pp=8), inputs=[100], outputs=[10])
    assert any("no_kv" in line for line in run.warnings)


def test_fewer_requests_in_flight_than_copies_leave_some_idle() -> None:
    """One stream over eight copies is one stream, not eight."""
    one, eight = (pm.deploy("llama-3.1-8b", node="8x-h100-sxm", dp=dp) for dp in (1, 8))
    load: dict[str, Any] = {"inputs": [500] * 16, "outputs": [50] * 16, "concurrency": 1}
    assert simulate(eight, **load).makespan_s == pytest.approx(simulate(one, **load).makespan_s, rel=1e-9, abs=0)


def test_no_claim_where_chunks_overlap_in_the_pipeline() -> None:
    """The closed form overlaps the chunks of a prompt, the simulator does not: its first token comes later."""
    d = pm.deploy("qwen3-32b", node="8x-l40s", engine="vllm", tp=4, pp=2)
    form, run = pm.predict(d, concurrency=1, input_tokens=8192), simulate(d, inputs=[8192], outputs=[1024])
    assert float(run.ttft_s[0]) > 1.2 * form.ttft_s[0][0]
    assert any("not here" in line and "pipeline one after another" in line for line in form.assumptions)


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_prompt_longer_than_a_forward_takes_all_its_time(name: str) -> None:
    """TensorRT-LLM cuts no prompt: one beyond the budget of a forward is not free."""
    d = ENGINES[name]
    for new in (9_000, 16_000):
        run = simulate(d, inputs=[new], outputs=[1], front=NO_FRONT)
        assert float(run.ttft_s[0]) == pytest.approx(float(pm.prefill(d, tokens=new).seconds), abs=0, rel=0.1)
