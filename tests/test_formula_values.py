"""Formulas at values worked out by hand, chosen so that no sign, factor or limit can be wrong and still agree."""

import math

import numpy as np
import pytest
import sympy

from perfmodel.costs import dispatch
from perfmodel.costs.attention import (
    attention_flop,
    decode_kv_bytes,
    decode_parallel_efficiency,
    linear_attention_flop,
    recurrence_flop,
)
from perfmodel.costs.difference import smooth_difference
from perfmodel.costs.disaggregation import kv_transfer_s, pools_req_s, router_imbalance, share_within
from perfmodel.costs.energy import board_power
from perfmodel.costs.forecast import finished_answers, pooled, pooled_sd
from perfmodel.costs.launch import eager_host_s
from perfmodel.costs.moe import (
    busiest_rank_experts,
    busiest_rank_tokens,
    distinct_experts,
    expected_maximum_of_normals,
    padded_pairs,
)
from perfmodel.costs.network import (
    expert_exchange_s,
    hierarchical_all_reduce_s,
    multimem_all_reduce_s,
    nvls_all_reduce_s,
    staged_send_s,
    tree_all_reduce_s,
)
from perfmodel.costs.reliability import checkpointed_wall_first_order_s, checkpointed_wall_s, young_interval_s
from perfmodel.costs.serving import benchmark_wait_s, burst_share, lived_tokens, queue_wait_quantile_s, queue_wait_s
from perfmodel.costs.speculative import chance_of_length, tokens_by_position, tokens_per_step


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


# ---------------------------------------------------------------- dispatch


def test_the_smaller_and_the_larger_of_symbols_and_numbers() -> None:
    x = sympy.Symbol("x", positive=True)
    for first, second in ((x, 2.0), (2.0, x)):
        assert dispatch.maximum(first, second) == sympy.Max(x, 2.0)
        assert dispatch.minimum(first, second) == sympy.Min(x, 2.0)


def test_where_is_symbolic_if_any_of_its_three_is() -> None:
    x = sympy.Symbol("x", positive=True)
    for chosen in (dispatch.where(True, x, 5), dispatch.where(False, 5, x)):
        assert isinstance(chosen, sympy.Symbol) and chosen == x
    assert dispatch.where(x > 2, 7, 5).subs(x, 3) == 7
    assert dispatch.where(x > 2, 7, 5).subs(x, 1) == 5


def test_functions_of_a_symbol_are_sympy_s_own() -> None:
    x = sympy.Symbol("x", positive=True)
    assert dispatch.exp(x) == sympy.exp(x)
    assert dispatch.log1p(x) == sympy.log(1 + x)
    assert float(dispatch.log2(x).subs(x, 32)) == near(5)
    assert dispatch.sqrt(x) == sympy.sqrt(x)
    assert dispatch.ceil(x) == sympy.ceiling(x)


# ---------------------------------------------------------------- own benchmark, forecast, energy


def test_differences_are_weighted_by_their_distance() -> None:
    # 0.1 e^(-(1/2)^2 / 2) - 0.2 e^(-(2/2)^2 / 2)
    assert float(smooth_difference(2.0, [1.0, 4.0], [0.1, -0.2], 2.0)) == near(
        0.1 * math.exp(-0.125) - 0.2 * math.exp(-0.5)
    )
    with pytest.raises(ValueError, match="shorter"):
        smooth_difference(2.0, [1.0, 4.0], [0.1], 2.0)


def test_answers_that_are_done() -> None:
    # 100 answers' worth of tokens; of 40 running ones half an answer each is not done, less what long ones have made
    assert finished_answers(2e5, 40, 2000, 0.0) == 100 - 20
    assert finished_answers(2e5, 40, 2000, 0.5) == 100 - 20 * 0.75
    assert finished_answers(2e5, 40, 2000, 1.0) == 100


def test_a_measurement_weighs_by_its_precision() -> None:
    # sd 0.2 beside 0.1: weights 1 / 0.04 and 1 / 0.01 are 1 to 4, of logarithms
    assert float(pooled(100.0, 0.2, 50.0, 0.1)) == near(100 * 0.5**0.8)
    assert float(pooled(50.0, 0.1, 100.0, 0.2)) == near(100 * 0.5**0.8)  # whichever is called the prior
    assert float(pooled_sd(0.2, 0.1)) == near(1 / math.sqrt(25 + 100))


def test_power_of_a_board() -> None:
    # 100 W waiting, half of the way to 400 W and a tenth of the way to 600 W
    assert float(board_power(100.0, 0.5, 400.0, 0.1, 600.0, 700.0)) == near(100 + 150 + 50)
    assert float(board_power(100.0, 0.5, 400.0, 0.1, 600.0, 250.0)) == 250.0


# ---------------------------------------------------------------- several copies as one service


def test_a_cache_that_travels() -> None:
    assert kv_transfer_s(1000, 70e3, 7e9, 2e-3) == near(2e-3 + 1e-2)


def test_the_slower_pool_sets_the_pace() -> None:
    assert float(pools_req_s(2, 0.25, 3, 2.0)) == 6.0  # 8 prefills a second, 6 answers
    assert float(pools_req_s(1, 0.25, 3, 2.0)) == 4.0


def test_a_router_in_turn() -> None:
    largest = expected_maximum_of_normals(4)
    assert float(router_imbalance(4, 8.0, 0.5)) == near(1 + largest * 0.5**0.5 / 4)  # sqrt(0.5 / 16)
    assert float(router_imbalance(4, 8.0, 3.0)) == float(router_imbalance(4, 8.0, 1.0))  # no wider than exponential
    assert float(router_imbalance(4, 0.25, 0.5)) == float(router_imbalance(4, 1.0, 0.5))
    assert router_imbalance(1, 16.0, 1.0) == 1.0  # one place has all, whatever the lengths
    assert float(router_imbalance(2, 16.0, 1.0)) > 1.0


def test_share_within_a_limit() -> None:
    assert float(share_within(0.1, 0.2, 0.4)) == pytest.approx(0.05, abs=0, rel=1e-6)  # as far below as q95 is above
    assert float(share_within(0.4, 0.2, 0.4)) == pytest.approx(0.95, abs=0, rel=1e-6)
    assert [float(share_within(limit, 0.2, 0.2)) for limit in (0.19, 0.21)] == [0.0, 1.0]  # all alike: all or none
    assert share_within(np.array([0.1, 0.4]), 0.2, 0.4) == pytest.approx([0.05, 0.95], abs=0, rel=1e-6)


# ---------------------------------------------------------------- attention, experts


def test_attention_by_hand() -> None:
    assert attention_flop(3, 100, 8, 6, 5) == 2 * 3 * 100 * 8 * 11
    assert recurrence_flop(3, 8, 6, 5) == 6 * 3 * 8 * 30
    assert linear_attention_flop(3, 8, 6, 5, 64) == 2 * 3 * 8 * (64 * 11 + 2 * 30)
    assert decode_kv_bytes(3, 100, 7, 20) == 3 * 120 * 7
    assert float(decode_parallel_efficiency(3, 20, 40, 0.5)) == near(0.5 * 60 / 100)
    assert float(decode_parallel_efficiency(0, 20, 40, 0.5)) == near(0.5 * 20 / 60)  # counts as one sequence


def test_distinct_experts_with_a_few_popular_ones() -> None:
    # E = 4, k = 1, B = 3, a = 2: unseen = 3/4 (1 + 2 ln(4/3) / 2)^-2
    assert float(distinct_experts(3, 4, 1, 2.0)) == near(4 * (1 - 0.75 / (1 + math.log(4 / 3)) ** 2))
    assert float(distinct_experts(0, 4, 1, 2.0)) == near(1.0)  # fewer than one token counts as one
    assert distinct_experts(np.array([1, 5]), 8, 8, 1.0).tolist() == [8.0, 8.0]


def test_blom_s_approximation_by_hand() -> None:
    # R = 3: quantile of (3 - 0.375) / 3.25 = 0.80769, from tables of the normal distribution 0.8694
    assert expected_maximum_of_normals(3) == pytest.approx(0.8694, abs=0, rel=2e-4)
    assert expected_maximum_of_normals(0) == expected_maximum_of_normals(1) == 0.0


def test_busiest_rank_by_hand() -> None:
    # D = 30 of E = 121 over R = 3: 10 + c sqrt(10 x 91 / 120) + (c^2 - 1) / 6 ... negative, counts as none
    c = expected_maximum_of_normals(3)
    assert c < 1
    assert float(busiest_rank_experts(30, 121, 3)) == near(10 + c * math.sqrt(10 * 91 / 120))
    # R = 8: c = 1.4342, third moment (c^2 - 1) / 6 x 6/8 x 3/4
    c = expected_maximum_of_normals(8)
    whole = 16 / 8 + c * math.sqrt(2 * 48 / 63) + (c**2 - 1) / 6 * 0.75 * 0.75
    assert float(busiest_rank_experts(16, 64, 8)) == near(whole)
    assert float(busiest_rank_experts(64, 64, 8)) == 8.0
    assert float(busiest_rank_experts(1, 64, 8)) == 1.0
    two = expected_maximum_of_normals(2)
    assert float(busiest_rank_experts(32, 64, 2)) == near(16 + two * math.sqrt(16 * 32 / 63))


def test_pairs_on_the_busiest_rank_by_hand() -> None:
    # 100 pairs over 4 ranks of 16 experts, a = 2: 25 (1 + c sqrt(4 / 100 + 4 / 16 / 2))
    c = expected_maximum_of_normals(4)
    assert float(busiest_rank_tokens(50, 2, 16, 4, 2.0)) == near(25 * (1 + c * math.sqrt(0.04 + 0.125)))
    assert float(busiest_rank_tokens(1, 1, 16, 4, 0.01)) == 1.0  # at most all
    assert busiest_rank_tokens(50, 2, 16, 1, 2.0) == 100.0


def test_rows_padded_to_a_tile() -> None:
    # 30 pairs on 10 experts, tile 4: 30 + 10 x 3/2 (1 + e^(-2/4))
    assert float(padded_pairs(30, 10, 4)) == near(30 + 15 * (1 + math.exp(-0.5)))
    assert float(padded_pairs(10, 10, 4)) == near(40.0)  # one row an expert is a whole tile
    assert float(padded_pairs(5, 10, 4)) == near(35.0)  # fewer pairs than experts: no exponent above nought
    assert float(padded_pairs(0, 0, 4)) == 0.0
    assert float(padded_pairs(30, 10, 1)) == near(30.0)


# ---------------------------------------------------------------- network


def test_an_all_reduce_over_machines() -> None:
    # l = 4, m = 3, n = 0.6 GB: 10 us + 2 x 3/4 x n / 300 GB/s = 3 ms, + 2 x 2 x 5 us, + 2 x 2/3 x n / 400 GB/s = 2 ms
    assert float(hierarchical_all_reduce_s(6e8, 4, 3, 1e-5, 3e11, 4e11, 5e-6)) == near(1e-5 + 3e-3 + 2e-5 + 2e-3)
    # one GPU in each of two machines: n over the network and back, and two steps
    assert float(hierarchical_all_reduce_s(4e8, 1, 2, 1e-5, 3e11, 4e11, 5e-6)) == near(1e-5 + 1e-5 + 1e-3)
    assert hierarchical_all_reduce_s(0.0, 1, 1, 1e-5, 3e11, 4e11, 5e-6) == 0
    assert hierarchical_all_reduce_s(4e8, 1, 1, 1e-5, 3e11, 4e11, 5e-6) == 0


def test_trees_switches_and_ramps() -> None:
    assert float(tree_all_reduce_s(1e9, 1e-5, 14, 1e-6, 4, 5e-6, 1e11)) == near(1e-5 + 14e-6 + 2e-5 + 2e-2)
    assert float(multimem_all_reduce_s(8e8, 4, 1e-5, 1e11)) == near(1e-5 + 1.25 * 8e-3)
    # four ranks: 2 x 3/4; small chunks at 1e11 up to 1e8 B, then flat until 4e11 takes over
    times = [float(nvls_all_reduce_s(n, 4, 1e-5, 4e11, 1e11, 1e8)) for n in (5e7, 1e8, 3e8, 8e8)]
    assert times == [near(1e-5 + 1.5 * t) for t in (5e-4, 1e-3, 1e-3, 2e-3)]
    for call in (multimem_all_reduce_s(0.0, 1, 1e-5, 1e11), nvls_all_reduce_s(0.0, 1, 1e-5, 4e11, 1e11, 1e8)):
        assert call == 0
    assert multimem_all_reduce_s(1e9, 1, 1e-5, 1e11) == nvls_all_reduce_s(1e9, 1, 1e-5, 4e11, 1e11, 1e8) == 0
    assert float(multimem_all_reduce_s(1e9, 2, 1e-5, 1e11)) == near(1e-5 + 1.5e-2)
    assert float(nvls_all_reduce_s(5e7, 2, 1e-5, 4e11, 1e11, 1e8)) == near(1e-5 + 5e-4)


def test_a_message_through_the_host() -> None:
    # written at 20, read at 10 GB/s: the whole message at 10, the first chunk of 1 MB at 20 before
    assert float(staged_send_s(1e8, 1e-5, 2e10, 1e10, 1e6)) == near(1e-5 + 5e-5 + 1e-2)
    assert float(staged_send_s(1e8, 1e-5, 1e10, 2e10, 1e6)) == near(1e-5 + 5e-5 + 1e-2)


def test_an_exchange_waits_for_the_slower_of_its_two_ways() -> None:
    # 100 tokens x 7 copies x 1 kB = 0.7 MB
    assert float(expert_exchange_s(100, 7, 1e3, 0.25, 1e-5, 1e11, 1e10)) == near(1e-5 + 7e5 * 0.25 / 1e10)
    assert float(expert_exchange_s(100, 7, 1e3, 0.25, 1e-5, 1e10, 1e11)) == near(1e-5 + 7e5 * 0.75 / 1e10)


# ---------------------------------------------------------------- launch, failures, serving, drafts


def test_the_slowest_of_several_launching_ranks() -> None:
    c = expected_maximum_of_normals(4)
    assert float(eager_host_s(100, 2e-5, 4, 0.5)) == near(2e-3 * (1 + 0.5 * c))


def test_checkpoints_by_hand() -> None:
    # Daly 2006: M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, with M = 1000, R = 100, tau = 200, delta = 50, W = 400
    assert float(checkpointed_wall_s(400.0, 200.0, 50.0, 100.0, 1000.0)) == near(
        1000 * math.exp(0.1) * (math.exp(0.25) - 1) * 2
    )
    # 400 s of work, a quarter more for dumps; a tenth for restarts and an eighth for what is lost
    assert checkpointed_wall_first_order_s(400.0, 200.0, 50.0, 100.0, 1000.0) == near(400 * 1.25 * (1 + 0.1 + 0.125))
    assert float(young_interval_s(50.0, 1000.0)) == near(math.sqrt(1e5))


def test_waits_by_hand() -> None:
    assert queue_wait_s(0.75, 3.0, 1.5) == near(3 * 3.0 * 1.5 / 2)
    assert float(queue_wait_quantile_s(0.5, 2.0, 0.05)) == near(math.log(10) * 2 / 0.5)
    assert float(queue_wait_quantile_s(0.01, 2.0, 0.05)) == 0.0
    assert lived_tokens(1000.0, 0.5) == 625.0


def test_what_the_first_round_adds() -> None:
    # all prompts together take 12 s, one alone 1 s: half of the difference, spread over two rounds
    assert float(benchmark_wait_s(12.0, 1.0, 2, 12, 1.0, 0.0)) == near(11 / 4)
    assert float(benchmark_wait_s(1.0, 2.0, 2, 12, 12.0)) == 0.0


def test_share_of_a_burst() -> None:
    assert float(burst_share(51, 100)) == near(0.5 * 0.75)
    assert float(burst_share(101, 100)) == float(burst_share(500, 100)) == 0.5


def test_drafts_by_hand() -> None:
    assert tokens_per_step(0.5, 2) == 1.75
    assert tokens_per_step(0.5, 0) == 1
    assert tokens_by_position([0.5, 0.25]) == 1.75
    assert tokens_by_position([]) == 1
    for length, drafts, chance in ((1.75, 2, 0.5), (1.0, 2, 0.0), (3.0, 2, 1.0)):
        assert chance_of_length(length, drafts) == pytest.approx(chance, rel=0, abs=1e-12)
    for length in (0.99, 3.01):
        with pytest.raises(ValueError, match="between 1 and 3"):
            chance_of_length(length, 2)
