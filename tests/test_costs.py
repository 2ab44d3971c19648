"""Formulas: worked examples, limits, and laws that hold whatever the numbers are."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.costs.attention import attention_flop, decode_kv_bytes, decode_parallel_efficiency
from perfmodel.costs.collectives import (
    all_to_all_s,
    one_shot_all_reduce_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    send_recv_s,
    two_shot_all_reduce_s,
)
from perfmodel.costs.gemm import gemm_activation_bytes, gemm_flop
from perfmodel.costs.launch import eager_host_s, exposed_s
from perfmodel.costs.memory import bytes_per_weight, gqa_kv_values, mla_kv_values
from perfmodel.costs.moe import (
    busiest_rank_experts,
    busiest_rank_tokens,
    distinct_experts,
    expected_maximum_of_normals,
)
from perfmodel.costs.pipeline import chunked_prefill_s, hop_bytes, round_s
from perfmodel.costs.roofline import compute_s, memory_s, operation_s
from perfmodel.costs.serving import closed_loop_tpot_s, request_s

EVEN = 1e8  # concentration at which routing is uniform
seconds = st.floats(1e-9, 10.0)
share = st.floats(0.0, 1.0)
sizes = st.floats(1.0, 1e12)
growth = st.floats(1.0, 100.0)


# ---------------------------------------------------------------- roofline


@given(compute=seconds, memory=seconds, overlap=share, kernels=st.integers(0, 50), kernel=st.floats(0, 1e-4))
def test_an_operation_lies_between_the_larger_part_and_the_sum(
    compute: float, memory: float, overlap: float, kernels: int, kernel: float
) -> None:
    time = float(operation_s(compute, memory, kernels, kernel, overlap)) - kernels * kernel
    slack = 1e-9 * (compute + memory + kernels * kernel)
    assert max(compute, memory) - slack <= time <= compute + memory + slack


@given(flop=sizes, traffic=sizes, peak=st.floats(1e12, 1e16), bandwidth=st.floats(1e10, 1e13), overlap=share, by=growth)
def test_more_work_never_takes_less_and_a_faster_device_never_more(
    flop: float, traffic: float, peak: float, bandwidth: float, overlap: float, by: float
) -> None:
    def time(flop: float, traffic: float, peak: float, bandwidth: float) -> float:
        parts = compute_s(flop, peak, 0.7), memory_s(traffic, bandwidth, 0.87)
        return float(operation_s(*parts, 2, 3e-6, overlap))

    now = time(flop, traffic, peak, bandwidth) * (1 - 1e-12)
    assert time(flop * by, traffic, peak, bandwidth) >= now
    assert time(flop, traffic * by, peak, bandwidth) >= now
    assert time(flop, traffic, peak * by, bandwidth) * (1 - 1e-12) <= time(flop, traffic, peak, bandwidth)
    assert time(flop, traffic, peak, bandwidth * by) * (1 - 1e-12) <= time(flop, traffic, peak, bandwidth)


def test_overlap_goes_from_the_sum_to_the_larger_part() -> None:
    assert [float(operation_s(3e-3, 5e-3, 0, 0, overlap)) for overlap in (0, 0.25, 1)] == pytest.approx(
        [8e-3, 7.25e-3, 5e-3]
    )


def test_doubling_the_device_halves_the_time_but_not_the_start_up() -> None:
    one = operation_s(compute_s(1e12, 5e14, 0.8), memory_s(1e9, 2e12, 0.9), 4, 3e-6, 0.3)
    two = operation_s(compute_s(1e12, 1e15, 0.8), memory_s(1e9, 4e12, 0.9), 4, 3e-6, 0.3)
    assert float(two) - 12e-6 == pytest.approx((float(one) - 12e-6) / 2, rel=1e-12)


# ---------------------------------------------------------------- matrix products and attention


def test_a_matrix_product_has_two_operations_a_weight_and_row() -> None:
    assert gemm_flop(3, 5, 7) == 2 * 3 * 5 * 7
    assert [float(gemm_flop(m, 1, 1, tile=16)) / 2 for m in (1, 16, 17)] == [16, 16, 32]
    assert gemm_activation_bytes(3, 5, 7, 2) == 3 * (5 + 7) * 2


@given(tokens=st.integers(1, 300), cached=st.integers(0, 300))
def test_attention_of_a_prompt_is_the_sum_over_its_tokens(tokens: int, cached: int) -> None:
    one_by_one = sum(attention_flop(1, cached + seen, 8, 192, 128) for seen in range(1, tokens + 1))
    assert attention_flop(tokens, cached + (tokens + 1) / 2, 8, 192, 128) == pytest.approx(one_by_one, rel=1e-12)


def test_decode_reads_every_cached_token_once() -> None:
    assert decode_kv_bytes(8, 1000, 576, 0) == 8 * 1000 * 576
    assert decode_kv_bytes(8, 1000, 576, 24) == 8 * 1024 * 576


@given(batch=st.integers(1, 512), blocks=st.integers(1, 256), by=st.integers(2, 8))
def test_decode_attention_fills_the_device_as_it_gets_blocks(batch: int, blocks: int, by: int) -> None:
    def efficiency(n: int) -> float:
        return float(decode_parallel_efficiency(n, blocks, 75.0, 0.75))

    assert 0 < efficiency(batch) < efficiency(batch * by) < 0.75
    assert decode_parallel_efficiency(75, 1, 75, 0.75) == pytest.approx(0.375)  # half at the half-size
    # more sequences never take less time, although they run at a better rate
    assert batch / efficiency(batch) < batch * by / efficiency(batch * by)


# ---------------------------------------------------------------- experts


@pytest.mark.parametrize(("experts", "per_token"), [(384, 8), (256, 8), (64, 6), (16, 1), (8, 2)])
def test_distinct_experts_at_its_ends(experts: int, per_token: int) -> None:
    for concentration in (0.3, 2.5, EVEN):
        assert float(distinct_experts(1, experts, per_token, concentration)) == pytest.approx(per_token, rel=1e-9)
    batch = np.array([1, 2, 7, 32, 64, 500])
    uniform = experts * (1 - (1 - per_token / experts) ** batch)
    assert distinct_experts(batch, experts, per_token, EVEN) == pytest.approx(uniform, rel=1e-5)
    assert float(distinct_experts(1e9, experts, per_token, 2.5)) == pytest.approx(experts, rel=1e-3)


def test_a_layer_whose_tokens_pick_all_experts_reads_all() -> None:
    assert float(distinct_experts(3, 8, 8, 1.0)) == 8


@given(st.integers(1, 4096), st.integers(1, 64), st.floats(0.05, 1e6), st.integers(1, 12), st.integers(2, 512))
def test_distinct_experts_grow_with_tokens_and_evenness(
    tokens: int, more: int, concentration: float, per_token: int, experts: int
) -> None:
    def touched(tokens: int, concentration: float) -> float:
        return float(distinct_experts(tokens, experts, per_token, concentration))

    now = touched(tokens, concentration)
    assert min(per_token, experts) * (1 - 1e-9) <= now <= experts
    assert now <= touched(tokens + more, concentration) * (1 + 1e-12)
    assert now <= touched(tokens, concentration * 2) * (1 + 1e-9)
    assert now <= min(tokens * per_token, experts) * (1 + 1e-9)


def simulate(experts: int, per_token: int, tokens: int, ranks: int, draws: int) -> tuple[float, float, float]:
    """Means over even routing: experts touched, most of them on one rank, most token-expert pairs on one rank."""
    rng = np.random.default_rng(20260901)
    picked = np.argpartition(rng.random((draws, tokens, experts)), per_token - 1, axis=2)[:, :, :per_token]
    counts = np.zeros((draws, experts))
    np.add.at(counts, (np.arange(draws)[:, None, None], picked), 1)
    by_rank = counts.reshape(draws, ranks, -1)
    return (
        float((counts > 0).sum(1).mean()),
        float((by_rank > 0).sum(2).max(1).mean()),
        float(by_rank.sum(2).max(1).mean()),
    )


@pytest.mark.parametrize(
    ("experts", "per_token", "tokens", "ranks"),
    [(384, 8, 1, 8), (384, 8, 4, 8), (384, 8, 32, 8), (384, 8, 1, 4), (384, 8, 8, 2), (256, 8, 2, 8), (64, 6, 4, 8)],
)
def test_busiest_rank_against_simulation(experts: int, per_token: int, tokens: int, ranks: int) -> None:
    touched, most, pairs = simulate(experts, per_token, tokens, ranks, draws=max(500, 8000 // tokens))
    distinct = distinct_experts(tokens, experts, per_token, EVEN)
    assert float(distinct) == pytest.approx(touched, rel=0.02)
    assert float(busiest_rank_experts(distinct, experts, ranks)) == pytest.approx(most, rel=0.05)  # as documented
    assert float(busiest_rank_tokens(tokens, per_token, experts, ranks, EVEN)) == pytest.approx(pairs, rel=0.07)


def test_one_token_over_eight_ranks_hits_two_and_a_half_experts_on_the_busiest() -> None:
    assert float(busiest_rank_experts(8, 384, 8)) == pytest.approx(2.575, abs=0.05)  # exact: counting


@given(st.integers(1, 16), st.integers(1, 64), st.integers(2, 8), st.floats(0, 1), st.floats(0, 1))
def test_the_busiest_rank_has_at_least_its_share_and_at_most_all(
    per_token: int, per_rank: int, ranks: int, low: float, high: float
) -> None:
    experts = ranks * max(per_rank, -(-per_token // ranks))
    few, many = (per_token + (experts - per_token) * part for part in sorted((low, high)))
    busiest = [float(busiest_rank_experts(distinct, experts, ranks)) for distinct in (few, many)]
    for distinct, most in zip((few, many), busiest, strict=True):
        least = max(distinct / ranks, 1.0)  # a pigeon sits in some hole
        assert least * (1 - 1e-9) <= most <= min(distinct, experts / ranks) * (1 + 1e-9)
    assert busiest[0] <= busiest[1] * (1 + 1e-9)


@given(st.integers(1, 10_000), st.integers(1, 1000), st.integers(1, 8), st.integers(2, 16), st.floats(0.1, 1e9))
def test_pairs_on_the_busiest_rank(tokens: int, more: int, per_token: int, ranks: int, concentration: float) -> None:
    def most(tokens: int) -> float:
        return float(busiest_rank_tokens(tokens, per_token, ranks * 16, ranks, concentration))

    assert tokens * per_token / ranks <= most(tokens) <= tokens * per_token
    assert most(tokens) <= most(tokens + more)


def test_one_rank_has_all_experts_and_all_pairs() -> None:
    assert busiest_rank_experts(100.0, 384, 1) == 100.0
    assert busiest_rank_tokens(32, 8, 384, 1, 2.5) == 256.0
    assert expected_maximum_of_normals(1) == 0.0


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
def test_largest_of_normals_against_simulation(ranks: int) -> None:
    draws = np.random.default_rng(7).standard_normal((40_000, ranks)).max(1).mean()
    assert expected_maximum_of_normals(ranks) == pytest.approx(draws, rel=0.05)


# ---------------------------------------------------------------- collectives

BASE, HOP = {"LL": 6.6e-6, "Simple": 8.4e-6}, {"LL": 1.0e-6, "Simple": 5.7e-6}  # NCCL 2.30.7, one PCIe node


def nccl(protocol: str, message: float, ranks: int, graph_Bps: float) -> float:
    """NCCL's own tuning time of a ring all-reduce on PCIe: LL sends as many flags as payload."""
    busbw = graph_Bps * {"LL": 0.5, "Simple": 1.0}[protocol]
    return float(ring_all_reduce_s(message, ranks, BASE[protocol], HOP[protocol], busbw))


def test_worked_example_of_nccl_2_30_7() -> None:
    # src/graph/tuning.cc by hand: 6.6 + 14 x 1.0 + 14336 x 14/8 / (1000 x 20) us on eight ranks with 2 x 20 GB/s
    assert nccl("LL", 14336, 8, 40e9) == pytest.approx(21.8544e-6, rel=1e-9, abs=0)
    assert nccl("Simple", 14336, 8, 40e9) == pytest.approx(88.8272e-6, rel=1e-9, abs=0)
    # all-gather of the logits, 327,680 B in total: 6.6 + 7 x 1.0 + 327680 x 7/8 / 20000
    gather = ring_all_gather_s(327680, 8, BASE["LL"], HOP["LL"], 20e9)
    assert float(gather) == pytest.approx(27.936e-6, rel=1e-9, abs=0)


@pytest.mark.parametrize(("ranks", "graph_Bps", "megabytes"), [(8, 20e9, 0.77), (4, 40e9, 0.80)])
def test_nccl_changes_its_protocol_where_the_two_times_cross(ranks: int, graph_Bps: float, megabytes: float) -> None:
    crossing = (1.8e-6 + 9.4e-6 * (ranks - 1)) * graph_Bps * ranks / (2 * (ranks - 1))
    assert crossing == pytest.approx(megabytes * 1e6, rel=0.01)
    ll, simple = (nccl(protocol, crossing, ranks, graph_Bps) for protocol in ("LL", "Simple"))
    assert ll == pytest.approx(simple, rel=1e-9)
    assert nccl("LL", crossing / 2, ranks, graph_Bps) < nccl("Simple", crossing / 2, ranks, graph_Bps)
    assert nccl("LL", crossing * 2, ranks, graph_Bps) > nccl("Simple", crossing * 2, ranks, graph_Bps)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_bus_bandwidth_of_nccl_tests_goes_in_unchanged(ranks: int) -> None:
    size, bus = 2.0**30, 42e9
    of = {
        2 * (ranks - 1) / ranks: (
            ring_all_reduce_s(size, ranks, 0, 0, bus), two_shot_all_reduce_s(size, ranks, 0, bus)
        ),
        (ranks - 1) / ranks: (ring_all_gather_s(size, ranks, 0, 0, bus), all_to_all_s(size, ranks, 0, bus)),
    }  # fmt: skip
    for share, times in of.items():
        for time in times:
            assert size / float(time) * share == pytest.approx(bus, rel=1e-12)
    assert size / send_recv_s(size, 0, bus) == pytest.approx(bus, rel=1e-12)
    # every rank reads p - 1 whole buffers
    assert float(one_shot_all_reduce_s(size, ranks, 0, bus)) == pytest.approx((ranks - 1) * size / bus, rel=1e-12)


def test_a_printed_row_of_nccl_tests() -> None:
    # 16 MiB over 8 x RTX PRO 6000, tuned NCCL: 727 us, busbw 40.4 GB/s (github sjug/rtx6kpro@738985bb, nccl-tuning.md)
    assert float(ring_all_reduce_s(2**24, 8, 0, 0, 40.4e9)) == pytest.approx(727e-6, rel=0.002, abs=0)


@pytest.mark.parametrize("message", [0.0, 14336.0, 2.0**30])
def test_one_rank_costs_nothing(message: float) -> None:
    assert ring_all_reduce_s(message, 1, 1e-5, 1e-6, 1e9) == 0
    assert ring_all_gather_s(message, 1, 1e-5, 1e-6, 1e9) == 0
    assert one_shot_all_reduce_s(message, 1, 1e-5, 1e9) == 0
    assert two_shot_all_reduce_s(message, 1, 1e-5, 1e9) == 0
    assert all_to_all_s(message, 1, 1e-5, 1e9) == 0


@given(message=st.floats(0, 1e10), more=st.floats(0, 1e10), ranks=st.integers(2, 64), by=growth)
def test_collectives_are_monotone(message: float, more: float, ranks: int, by: float) -> None:
    for name, call in {
        "all-reduce": lambda n, p, w: ring_all_reduce_s(n, p, 1e-5, 1e-6, w),
        "all-gather": lambda n, p, w: ring_all_gather_s(n, p, 1e-5, 1e-6, w),
        "one-shot": lambda n, p, w: one_shot_all_reduce_s(n, p, 1e-5, w),
        "two-shot": lambda n, p, w: two_shot_all_reduce_s(n, p, 1e-5, w),
        "all-to-all": lambda n, p, w: all_to_all_s(n, p, 1e-5, w),
    }.items():
        now = call(message, ranks, 2e10)
        assert call(message + more, ranks, 2e10) >= now, name
        assert call(message, ranks + 1, 2e10) >= now * (1 - 1e-12), name
        assert call(message, ranks, 2e10 * by) <= now * (1 + 1e-12), name


# ---------------------------------------------------------------- launch, pipeline, serving, memory


@given(host=seconds, device=seconds)
def test_host_and_device_overlap_as_a_maximum(host: float, device: float) -> None:
    assert device + float(exposed_s(host, device)) == pytest.approx(max(host, device), rel=1e-9)


def test_one_host_thread_pays_its_launches_and_more_wait_for_the_slowest() -> None:
    times = [eager_host_s(1600, 20e-6, ranks, 0.15) for ranks in (1, 2, 4, 8)]
    assert times[0] == pytest.approx(32e-3)
    assert all(a < b for a, b in pairwise(times))
    assert eager_host_s(1600, 20e-6, 8, 0.0) == times[0]


@given(stages=st.lists(seconds, min_size=1, max_size=16), chunks=st.integers(1, 50))
def test_a_pipelined_prompt_lies_between_its_bounds(stages: list[float], chunks: int) -> None:
    time = chunked_prefill_s(chunks, max(stages), sum(stages))
    assert max(sum(stages), chunks * max(stages)) <= time * (1 + 1e-9)
    assert time <= chunks * sum(stages) * (1 + 1e-9)


def test_a_round_is_one_trip_or_the_queue_of_the_slowest_stage() -> None:
    stage, hops, pp = 5e-3, 2e-3, 8
    trip = pp * stage + hops
    times = [float(round_s(slots * stage, trip)) for slots in (1, 4, 8, 9, 16)]
    assert times[:3] == pytest.approx([trip] * 3)
    assert times[3:] == pytest.approx([9 * stage, 16 * stage])


def test_a_hop_carries_hidden_state_and_residual() -> None:
    assert hop_bytes(1, 7168, 2) == 28672
    assert hop_bytes(16, 7168, 2) == 16 * 28672


def test_serving_identities() -> None:
    assert closed_loop_tpot_s(0.03, 9.9, 1, 1000, 1.0) == 0.03  # nobody else to stall for
    assert request_s(0.5, 0.05, 1) == 0.5
    assert request_s(0.5, 0.05, 101) == pytest.approx(5.5)
    # a round of n steps plus one prefill for each of B requests, shared by B n tokens
    batch, answer, step, prefill = 16, 400, 0.02, 0.3
    tpot = closed_loop_tpot_s(step, prefill, batch, answer, 1.0)
    assert answer * tpot + prefill == pytest.approx(answer * step + batch * prefill)


@pytest.mark.parametrize(
    ("form", "width"),
    [((16,), 2.0), ((4, 32, 16), 0.5625), ((4, 128, 16), 0.515625), ((4, 128, 16, 4), 0.51953125),
     ((4, 16, 8), 0.5625), ((4, 32, 8), 0.53125), ((8, 128 * 128, 32), 1 + 4 / 16384)],
)  # fmt: skip
def test_bytes_per_weight_of_known_formats(form: tuple[float, ...], width: float) -> None:
    assert bytes_per_weight(*form) == width


def test_an_expert_of_kimi_is_24_8_megabytes() -> None:
    assert 3 * 7168 * 2048 * bytes_per_weight(4, 32, 16) == pytest.approx(24.8e6, rel=0.05 / 24.8, abs=0)


def test_kv_values_per_token_and_layer() -> None:
    assert mla_kv_values(512, 64) == 576
    assert [gqa_kv_values(8, 128, 128, ways) for ways in (1, 2, 4, 8, 16)] == [2048, 1024, 512, 256, 256]
    assert [gqa_kv_values(10, 128, 96, ways) for ways in (1, 4, 16)] == [2240, 448, 224]  # whole heads, at least one
    assert math.prod([gqa_kv_values(4, 128, 128, 8), 94, 2]) == 48128  # Qwen3-235B at TP8
