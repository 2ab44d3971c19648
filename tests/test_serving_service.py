"""What a service adds: pools, routers, KV from elsewhere, images, limits, and the front end before it all."""

from typing import Any

import numpy as np
import pytest
from cases import kimi, toy
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.costs.disaggregation import kv_transfer_s, pools_req_s, router_imbalance, share_within
from perfmodel.errors import PerfModelError
from perfmodel.serving.frontend import FRONT, NO_FRONT, Front
from perfmodel.serving.service import kv_bytes_per_token
from perfmodel.serving.simulate import simulate

LLAMA = pm.deploy("llama-3.1-8b", node="8x-h100-sxm")
GROUPS = kimi("sglang==0.5.23", tp=8, ep=8, dp_attention=8, memory_fraction=0.92, kv_dtype="fp8", context=32768)
LOAD: dict[str, Any] = {"input_tokens": 2000, "output_tokens": 300}


def test_kv_bytes_are_those_of_the_model_card() -> None:
    """Llama 3.1 8B: 32 layers x 8 heads x 128 x 2 (K and V) x 2 bytes = 128 KiB a token."""
    assert kv_bytes_per_token(LLAMA) == 131072


def test_the_way_of_the_kv_cache_is_part_of_the_first_token() -> None:
    fast, slow = (pm.predict(LLAMA, concurrency=1, disaggregation="1:1", kv_bandwidth=b, **LOAD) for b in (1e11, 1e9))
    more = 2000 * 131072 * (1 / 1e9 - 1 / 1e11)
    assert slow.ttft_s[0][0] - fast.ttft_s[0][0] == pytest.approx(more, rel=0.01, abs=0)
    assert slow.tpot_s[0][0] == pytest.approx(fast.tpot_s[0][0], rel=1e-6, abs=0)


def test_decode_beside_no_prefill_is_faster_and_the_slower_pool_sets_the_pace() -> None:
    mixed = pm.predict(LLAMA, concurrency=64, **LOAD)
    apart = pm.predict(LLAMA, concurrency=64, disaggregation="1:1", **LOAD)
    assert apart.tpot_s[0][0] < mixed.tpot_s[0][0]
    capacity = [pm.predict(LLAMA, request_rate=1, disaggregation=pools, **LOAD).capacity_req_s for pools in
                ("1:1", "2:2", "1:8", "8:1")]  # fmt: skip
    assert capacity[1] == pytest.approx(2 * float(capacity[0] or 0), rel=1e-9, abs=0)
    assert all(float(c or 0) <= 8 * float(capacity[0] or 0) for c in capacity)
    over = pm.predict(LLAMA, request_rate=1e4, disaggregation="1:1", **LOAD)
    assert np.isnan(over.ttft_s[0][0]) and any("without bound" in line for line in over.warnings)


@given(st.integers(1, 64), st.floats(1, 1e4), st.floats(0, 3))
@settings(max_examples=60)
def test_the_fullest_place_holds_at_least_the_mean(places: int, each: float, spread: float) -> None:
    factor = float(router_imbalance(places, each, spread))
    assert 1.0 <= factor <= 1 + 3 / (2 * each) ** 0.5
    assert factor <= float(router_imbalance(places + 1, each, spread))


@pytest.mark.parametrize("spread", [0.1, 0.3, 0.58])
def test_the_fullest_of_places_that_are_dealt_to_in_turn(spread: float) -> None:
    """Against requests dealt out in turn: eight places, each answer as long as it wants, evenly spread lengths."""
    rng, places, each = np.random.default_rng(0), 8, 32
    begin = np.cumsum(rng.exponential(1 / (places * each), 200_000))
    end = begin + rng.uniform(1 - 3**0.5 * spread, 1 + 3**0.5 * spread, len(begin))
    at = np.linspace(5.0, begin[-1] - 5.0, 4000)
    held = [np.searchsorted(begin[i::places], at) - np.searchsorted(np.sort(end[i::places]), at) for i in range(places)]
    seen = np.max(held, axis=0).mean() / np.mean(held)
    assert float(router_imbalance(places, each, spread)) - 1 == pytest.approx(seen - 1, abs=0, rel=0.25)


def test_one_request_never_waits_for_itself_and_littles_law_holds() -> None:
    for many in (1, 8, 64):
        curve = pm.predict(LLAMA, concurrency=many, disaggregation="2:3", input_tokens=16000, output_tokens=300)
        stay = curve.ttft_s[0][0] + 299 * curve.tpot_s[0][0]
        assert curve.output_tok_s[0][0] / 300 * stay == pytest.approx(many, abs=0, rel=0.005)
    rare = pm.predict(LLAMA, request_rate=1e-5, disaggregation="2:3", input_tokens=16000, output_tokens=300)
    alone = pm.predict(LLAMA, concurrency=1, disaggregation="2:3", input_tokens=16000, output_tokens=300)
    assert alone.ttft_s[0][0] == pytest.approx(rare.ttft_s[0][0], abs=0, rel=1e-3)


def test_groups_that_a_router_fills_unevenly_wait_for_the_fullest() -> None:
    load: dict[str, Any] = {"concurrency": 64, "output_tokens": "lognormal:1000:0.8"}
    even, turn, least = (pm.predict(GROUPS, **load, router=r) for r in ("even", "round-robin", "least-loaded"))
    assert turn.tpot_s[0][0] > even.tpot_s[0][0] and turn.output_tok_s[0][0] < even.output_tok_s[0][0]
    assert least.tpot_s[0][0] == pytest.approx(even.tpot_s[0][0], rel=1e-9, abs=0)  # 64 over 8 is even
    assert sum(turn.parts.values())[0] == pytest.approx(turn.tpot_s[0][0], rel=1e-9, abs=0)


def test_a_router_that_looks_sees_what_one_that_deals_out_does_not() -> None:
    """Every fourth prompt is long, so that four copies in turn give all long ones to the same copy."""
    d = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", dp=4)
    load: dict[str, Any] = {"inputs": [30000, 50, 50, 50] * 60, "outputs": [200, 5, 5, 5] * 60,
                            "arrivals": np.arange(240) * 0.15}  # fmt: skip
    turn, least = (simulate(d, **load, router=router) for router in ("round-robin", "least-loaded"))
    assert np.percentile(least.ttft_s, 95) < 0.5 * np.percentile(turn.ttft_s, 95)
    assert least.makespan_s < turn.makespan_s


def test_kv_from_a_slower_place_comes_later_but_costs_no_arithmetic() -> None:
    load: dict[str, Any] = {"concurrency": 8, "input_tokens": 16000, "output_tokens": 200}
    none = pm.predict(LLAMA, **load)
    host, disk = (pm.predict(LLAMA, **load, offload_hit_rate=0.8, offload_from=where) for where in ("host", "disk"))
    cached = pm.predict(pm.deploy("llama-3.1-8b", node="8x-h100-sxm", prefix_hit_rate=0.8), **load)
    assert cached.ttft_s[0][0] < host.ttft_s[0][0] < disk.ttft_s[0][0]
    assert host.tpot_s[0][0] == pytest.approx(cached.tpot_s[0][0], rel=1e-12, abs=0)
    assert host.ttft_s[0][0] < none.ttft_s[0][0]
    assert any("assumed" in line and "disk" in line for line in disk.assumptions)


def test_images_are_prompt_tokens() -> None:
    vision = pm.deploy("qwen2.5-vl-7b", node="1x-h100-sxm")
    with_images = pm.predict(vision, concurrency=4, input_tokens=200, images=2, tokens_per_image=900)
    as_text = pm.predict(vision, concurrency=4, input_tokens=2000)
    assert with_images.output_tok_s[0][0] == pytest.approx(as_text.output_tok_s[0][0], rel=1e-9, abs=0)
    assert any("images" in line for line in with_images.assumptions)


def test_goodput_is_the_rate_within_the_limits() -> None:
    curve = pm.predict(LLAMA, request_rate=[1.0, 5.0], ttft_limit_s=10, tpot_limit_s=10, **LOAD)
    assert curve.points[0]["goodput_req_s"] == pytest.approx(1.0, rel=1e-6, abs=0)
    tight = pm.predict(LLAMA, request_rate=[1.0], tpot_limit_s=1e-4, **LOAD)
    assert tight.points[0]["goodput_req_s"] == 0.0
    assert float(share_within(2.0, 2.0, 3.0)) == 0.5


def test_goodput_of_the_closed_form_follows_the_simulator() -> None:
    rng, count, rate = np.random.default_rng(3), 3000, 6.0
    run = simulate(LLAMA, inputs=np.full(count, 2000), outputs=np.full(count, 300),
                   arrivals=np.cumsum(rng.exponential(1 / rate, count)))  # fmt: skip
    form = pm.predict(LLAMA, request_rate=rate, ttft_limit_s=float(np.percentile(run.ttft_s, 80)), **LOAD)
    assert form.points[0]["good_share"] == pytest.approx(0.80, rel=0.2, abs=0)
    assert form.points[0]["ttft_p95_ms"] == pytest.approx(1e3 * np.percentile(run.ttft_s, 95), rel=0.2, abs=0)


@pytest.mark.parametrize("bad", [{"router": "magic"}, {"offload_hit_rate": 1.0}, {"offload_hit_rate": -0.1},
                                 {"offload_hit_rate": 0.5, "offload_from": "tape"}, {"images": 1},
                                 {"images": -1, "tokens_per_image": 5}, {"ttft_limit_s": 0}, {"disaggregation": "2"},
                                 {"disaggregation": "0:1"}, {"disaggregation": "1:1", "kv_bandwidth": 0},
                                 {"colour": "red"}, {"offload_bandwidth": float("nan")}])  # fmt: skip
def test_what_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(PerfModelError) as caught:
        pm.predict(LLAMA, concurrency=8, **bad)
    assert caught.value.exit_code == 2


def test_what_an_engine_cannot_do_is_refused() -> None:
    old = pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="vllm==0.8.5")
    with pytest.raises(PerfModelError, match="kv-offloading"):
        pm.predict(old, concurrency=8, offload_hit_rate=0.5)
    with pytest.raises(PerfModelError, match="not modelled"):
        trt = pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="tensorrt-llm")
        pm.predict(trt, concurrency=8, disaggregation="1:1")
    with pytest.raises(PerfModelError, match="images"):
        pm.predict(pm.deploy(toy(), node="1x-h100-sxm"), concurrency=8, images=1, tokens_per_image=10)


def test_a_front_end_takes_prompts_one_after_another() -> None:
    """A hundred prompts at once through a process that needs 25 ms each: the last waits 2.5 s for them."""
    slow = Front(0.0, 0.025, 0.0)
    load: dict[str, Any] = {"inputs": [100] * 100, "outputs": [2] * 100}
    run, none = simulate(LLAMA, **load, front=slow), simulate(LLAMA, **load, front=NO_FRONT)
    assert 2.5 <= run.ttft_s[-1] < 3.0 and run.ttft_s[0] < 0.2
    assert none.ttft_s[-1] < 1.0
    assert FRONT.alone_s(1000) == pytest.approx(FRONT.way_s + FRONT.request_s + 1000 * FRONT.token_s, rel=1e-12, abs=0)


def test_transfer_and_pools_by_hand() -> None:
    assert float(kv_transfer_s(1000, 100e3, 1e9, 0.0)) == pytest.approx(0.1, rel=1e-12, abs=0)
    assert float(pools_req_s(1, 0.5, 1, 10.0)) == 2.0 and float(pools_req_s(9, 0.5, 1, 10.0)) == 10.0
