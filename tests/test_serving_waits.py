"""Requests that an engine does not look at yet: SGLang's receive interval, TensorRT-LLM's waiting for a batch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving_scheduler import Watched

import perfmodel as pm
from perfmodel.errors import IllegalDeployment
from perfmodel.serving.frontend import NO_FRONT
from perfmodel.serving.loop_times import steps_before_s
from perfmodel.serving.tables import server_tables

MODEL: dict[str, Any] = {"model": "llama-3.1-8b", "node": "1x-h100-sxm"}
LOAD: dict[str, Any] = {"input_tokens": "uniform:820:1024", "output_tokens": "uniform:820:1024"}


def run(arrivals: list[float], outputs: list[int], prompt: int = 500, **launch: Any) -> Watched:
    d = pm.deploy(**MODEL, **launch)
    tables = server_tables(d, 64, 1000.0, "staggered", float(prompt))
    copy = Watched(tables, arrivals, [prompt] * len(outputs), outputs, [0] * len(outputs))
    copy.go()
    return copy


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.floats(0.5, 3.0))
def test_a_request_is_seen_at_the_next_look(every: int, at: float) -> None:
    """One long answer decodes; a prompt that comes meanwhile waits for a multiple of the interval, and no longer."""
    alone = run([0.0], [2000], engine="sglang", receive_interval=every)
    both = run([0.0, at], [2000, 10], engine="sglang", receive_interval=every)
    step = alone.finish[0] / 2000
    waited = both.first[1] - at
    assert waited <= (every + 2) * 1.3 * step + 0.1
    if every > 20:
        many = [run([0.0, at + k * every / 8 * step], [2000, 10], engine="sglang", receive_interval=every)
                for k in range(8)]  # fmt: skip
        waits = [copy.first[1] - copy.began[1] for copy in many]
        assert np.ptp(waits) > 0.5 * every * step, "over a whole interval the waits differ by most of it"


def test_those_who_wait_together_are_prefilled_together() -> None:
    arrivals = [0.0, *(0.5 + 0.001 * k for k in range(8))]
    usual, rare = (run(arrivals, [1000] + [50] * 8, engine="sglang", receive_interval=n) for n in (1, 40))
    assert len(rare.forwards) < len(usual.forwards)
    assert max(prompts for _, _, prompts in rare.forwards) == 8


@pytest.mark.parametrize("steps", [5, 20])
def test_a_prompt_waits_for_others_so_many_steps_or_until_the_forward_is_full(steps: int) -> None:
    launch = {"engine": "tensorrt-llm", "prefill_chunk": 4000, "batch_wait_steps": steps, "batch_wait_ratio": 0.5}
    alone = run([0.0], [1000], engine="tensorrt-llm", prefill_chunk=4000)
    step = alone.finish[0] / 1000
    one = run([0.0, 1.0], [1000, 10], **launch)
    assert one.first[1] - 1.0 == pytest.approx(steps * step, abs=4 * step, rel=0)
    full = run([0.0, *[1.0] * 5], [1000, *[10] * 5], **launch)  # 5 x 500 tokens are more than half of 4,000
    assert full.first[1] - 1.0 < 0.15 and len(full.forwards) == 2


@pytest.mark.parametrize(("engine", "more"), [
    ("sglang", {"receive_interval": 1}), ("sglang", {"receive_interval": 10}), ("sglang", {"receive_interval": 30}),
    ("tensorrt-llm", {}), ("tensorrt-llm", {"batch_wait_steps": 20, "batch_wait_ratio": 0.9}),
])  # fmt: skip
def test_closed_form_and_simulator_agree(engine: str, more: dict[str, Any]) -> None:
    d = pm.deploy(**MODEL, engine=engine, **more)
    for streams in (4, 16):
        curve = pm.predict(d, concurrency=streams, **LOAD)
        inputs, outputs = np.random.default_rng(1).integers(820, 1025, (2, 10 * streams))
        seen = pm.simulate(d, concurrency=streams, inputs=inputs, outputs=outputs)
        assert curve.ttft_s[0][0] == pytest.approx(float(seen.ttft_s.mean()), rel=0.20, abs=0)
        assert curve.output_tok_s[0][0] == pytest.approx(seen.output_tok_s, rel=0.05, abs=0)


def test_waiting_costs_first_tokens_and_spares_prefills() -> None:
    ttft, tpot = [], []
    for every in (1, 10, 30):
        curve = pm.predict(pm.deploy(**MODEL, engine="sglang", receive_interval=every), concurrency=64, **LOAD)
        ttft.append(curve.ttft_s[0][0])
        tpot.append(curve.tpot_s[0][0])
    assert ttft == sorted(ttft) and tpot == sorted(tpot, reverse=True)


def test_steps_before_by_hand() -> None:
    d = pm.deploy(**MODEL, engine="tensorrt-llm", prefill_chunk=1000, batch_wait_steps=20, batch_wait_ratio=0.9)
    # half of the step under way and the one behind it; then 20 steps, in which 20 x 10 / 100 = 2 come who wait half
    assert float(steps_before_s(d, 10.0, 0.01, 100.0, 50.0)) == near(0.01 * (1.5 + 20 * 2 / 3))
    # a forward of 0.9 x 1,000 tokens is full with (900 - 10) / 445 = 2 prompts: the second comes after 10 steps
    assert float(steps_before_s(d, 10.0, 0.01, 100.0, 445.0)) == near(0.01 * (1.5 + 10 * 1.5 / 2))
    plain = pm.deploy(**MODEL, engine="sglang", receive_interval=8)
    assert float(steps_before_s(plain, 10.0, 0.01, 100.0, 50.0)) == near(0.01 * 5)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-12, abs=0)


@pytest.mark.parametrize(("engine", "more", "words"), [
    ("vllm", {"receive_interval": 10}, "scheduler-recv-interval"),
    ("tensorrt-llm", {"receive_interval": 10}, "scheduler-recv-interval"),
    ("vllm", {"batch_wait_steps": 5}, "batch_wait_timeout_iters"),
    ("sglang", {"batch_wait_ratio": 0.5}, "batch_wait_max_tokens_ratio"),
])  # fmt: skip
def test_an_engine_without_it_refuses(engine: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(IllegalDeployment, match=words):
        pm.deploy(**MODEL, engine=engine, **more)


def test_prefill_graphs_hide_the_launches_of_short_prompts() -> None:
    on, off = (pm.deploy("deepseek-r1", node="8x-b200-sxm", engine="vllm==0.18.0", tp=8, prefill_graphs=graphs)
               for graphs in (None, False))  # fmt: skip
    for tokens, faster in ((400, True), (30000, False)):
        times = [float(pm.prefill(d, tokens=tokens).seconds) for d in (on, off)]
        assert (times[0] < 0.9 * times[1]) is faster
    load: dict[str, Any] = {"concurrency": 1, "inputs": [400] * 3, "outputs": [5] * 3, "front": NO_FRONT}
    first = [pm.simulate(d, **load).ttft_s.mean() for d in (on, off)]
    assert first[0] < 0.9 * first[1]


def test_engines_built_beforehand_neither_launch_from_python_nor_work_ahead() -> None:
    launch: dict[str, Any] = {"model": "llama-3.1-70b", "node": "8x-h100-sxm", "tp": 4}
    old, new = (pm.deploy(**launch, engine=f"tensorrt-llm=={version}") for version in ("0.14", "1.0"))
    assert float(pm.prefill(old, tokens=100).seconds) < float(pm.prefill(new, tokens=100).seconds)
    assert float(steps_before_s(old, 10.0, 0.01, 100.0, 50.0)) == near(0.005)
    assert float(steps_before_s(new, 10.0, 0.01, 100.0, 50.0)) == near(0.015)
