"""NCCL's tuning model and the lines of its protocols, worked out by hand."""

import math

import numpy as np
import pytest

from perfmodel.placement.protocols import Protocol, no_later_than_they_meet, settled
from perfmodel.placement.tuning import channel_Bps, nccl_nvls_s, nccl_ring_s, nccl_tree_s


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


# ---------------------------------------------------------------- NCCL's tuning model, src/graph/tuning.cc by hand


def test_a_tree_over_four_hopper_machines() -> None:
    # 32 ranks, 12 channels, 360 GB/s: tree min(0.92 x 360, 12 x 38.7) = 331.2 GB/s; 64 KiB is 2^10 x 64 B: share 0.6
    tree, moved = 331.2e9, 2 * 65536 / 0.6
    expected = [
        (6.8 + 14 * 0.6 + 4 * 5.0) * 1e-6 + moved / (tree / 3.8),
        (14.0 + 14 * 1.25 + 4 * 8.5) * 1e-6 + moved / (tree * 7 / 9),
        (8.4 + 14 * 4.0 + 4 * 14.0) * 1e-6 + moved / tree,
    ]
    assert nccl_tree_s(65536, 32, 4, 360e9, 12, 9.0, True) == near(expected)


@pytest.mark.parametrize(("power", "share"), [(5, 0.9), (6, 0.9), (13, 0.8), (28, 0.9), (29, 1.0), (31, 1.0)])
def test_what_nccl_takes_off_a_tree_by_size(power: int, share: float) -> None:
    # treeCorrectionFactor of Simple: entries of 64 B x 2^i, none from 512 MiB on
    simple = nccl_tree_s(2.0**power, 32, 4, 360e9, 12, 9.0, True)[2]
    assert simple == near(120.4e-6 + 2 * 2.0**power / (331.2e9 * share))


def test_limits_of_a_tree_by_generation() -> None:
    def slope(capability: float, channels: int, nvlink: bool = True) -> list[float]:
        """GB/s that 2 x n of a very large message move at."""
        times = nccl_tree_s(2.0**50, 16, 2, 600e9, channels, capability, nvlink)
        return [2 * 2.0**50 / float(t) / 1e9 for t in times]

    assert slope(7.0, 4) == pytest.approx([4 * 26.5 / 3.8, 80, 106], rel=1e-6, abs=0)  # LL128: 4 x 20
    assert slope(8.0, 24) == pytest.approx([87.7, 552 * 7 / 9, 552], rel=1e-6, abs=0)  # LL: its ceiling
    assert slope(9.0, 4) == pytest.approx([154.8 / 3.8, 154.8 * 7 / 9, 154.8], rel=1e-6, abs=0)
    assert slope(10.0, 4) == pytest.approx([280 / 3.8, 280 * 7 / 9, 280], rel=1e-6, abs=0)
    assert slope(12.0, 4, nvlink=False) == pytest.approx([280 / 3.8, 0.0, 280], rel=1e-6, abs=0)


def test_a_tree_over_pcie() -> None:
    ll, ll128, simple = nccl_tree_s(64.0, 4, 2, 20e9, 1, 12.0, False)
    assert ll == near((6.8 + 2 * 1.0 + 2 * 5.0) * 1e-6 + 128 / (0.92 * 20e9 / 3.8))
    assert math.isinf(ll128)
    assert simple == near((8.4 + 2 * 4.0 + 2 * 14.0) * 1e-6 + 128 / (0.9 * 0.92 * 20e9))


def test_a_ring_inside_and_between_machines() -> None:
    # 8 Hopper GPUs: LL at its ceiling of 141, LL128 at 0.92 of 360, Simple at 360 GB/s
    inside = nccl_ring_s(1e6, 14, 8, 0, 360e9, 12, 9.0, True)
    assert inside == near([15e-6 + 1.75e6 / 141e9, 40.6e-6 + 1.75e6 / 331.2e9, 56e-6 + 1.75e6 / 360e9])
    # 16 over two machines, 30 steps of which 4 over the network: LL has 39 GB/s there, and 20.4 over more machines
    across = nccl_ring_s(1e6, 30, 16, 4, 360e9, 12, 9.0, True)
    assert across == near([33e-6 + 1.875e6 / 39e9, 79.4e-6 + 1.875e6 / 331.2e9, 152.8e-6 + 1.875e6 / 360e9])
    assert nccl_ring_s(1e6, 46, 24, 6, 360e9, 12, 9.0, True)[0] == near(
        (6.6 + 40 * 0.6 + 6 * 2.7) * 1e-6 + 46 / 24 * 1e6 / 20.4e9
    )
    # few channels bind LL128: 4 x 36.7
    assert nccl_ring_s(1e6, 14, 8, 0, 360e9, 4, 9.0, True)[1] == near(40.6e-6 + 1.75e6 / 146.8e9)


def test_a_ring_over_pcie() -> None:
    ll, ll128, simple = nccl_ring_s(np.array([1e6, 2e6]), 14, 8, 0, 20e9, 1, 12.0, False)
    assert ll == near([20.6e-6 + 1.75e6 / 10e9, 20.6e-6 + 3.5e6 / 10e9])
    assert simple == near([88.2e-6 + 1.75e6 / 20e9, 88.2e-6 + 3.5e6 / 20e9])
    assert np.isinf(ll128).all() and ll128.shape == (2,)


def test_the_switch_in_nccl_s_eyes() -> None:
    # Hopper, 8 heads: 370.8 / 9 = 41.2 takes the speed 40; 2 x 40 x 0.85 x 7/8 = 59.5, below the 60 of the ladder
    assert nccl_nvls_s(2e9, 8, 1, 370.8e9, 9.0) == near(25e-6 + 1.75 * 2e9 / (8 * 59.5e9))
    assert nccl_nvls_s(2e9, 16, 2, 370.8e9, 9.0) == near(43e-6 + 1.875 * 2e9 / (8 * 59.5e9))
    # Blackwell, 4 heads: 450 / 5 = 90 is the top of its ladder, less than 2 x 90 x 0.74 x 3/4
    assert nccl_nvls_s(2e9, 4, 1, 450e9, 10.0) == near(25e-6 + 1.5 * 2e9 / (4 * 90e9))
    assert nccl_nvls_s(2e9, 3, 1, 450e9, 10.0) < math.inf
    for ranks, machines, capability in ((2, 1, 9.0), (4, 2, 9.0), (8, 1, 8.9)):
        assert math.isinf(nccl_nvls_s(2e9, ranks, machines, 370.8e9, capability))
    # 16 GPUs of one domain have no more than 8 heads
    assert nccl_nvls_s(2e9, 16, 1, 370.8e9, 9.0) == near(25e-6 + 1.875 * 2e9 / (8 * 59.5e9))


@pytest.mark.parametrize(
    ("path", "capability", "minor", "speed"),
    [
        (20.0, 7.0, 30, 20), (20.0, 8.0, 30, 20), (19.9, 8.9, 30, 18), (2.0, 8.0, 30, 0.1), (47.0, 9.0, 30, 40),
        (24.0, 10.0, 26, 24), (18.5, 10.0, 27, 18), (18.5, 10.0, 26, 0.1), (15.5, 12.0, 25, 15), (46.0, 12.0, 29, 45),
        (46.0, 12.0, 28, 40), (19.999, 12.0, 30, 20),
    ],
)  # fmt: skip
def test_ladders_of_nccl_s_search(path: float, capability: float, minor: int, speed: float) -> None:
    """src/graph/search.cc: own ladder of Blackwell since 2.26, its 18 since 2.27, its 45 since 2.29."""
    assert channel_Bps(path * 1e9, capability, minor) == near(speed * 1e9)


# ---------------------------------------------------------------- where one protocol gives way to the next


def test_lines_of_protocols() -> None:
    ring = Protocol("LL", 10e-6, 1e-6, 20e9)
    assert ring.line("all_reduce", 4) == near((16e-6, 1.5 / 20e9))
    assert ring.line("all_gather", 4) == near((13e-6, 0.75 / 20e9))
    assert ring.line("send_recv", 2) == near((11e-6, 1 / 20e9))
    copying = Protocol("Simple", 10e-6, 1e-6, 20e9, copy_Bps=1e12)
    assert copying.line("all_gather", 4) == near((13e-6, 0.75 / 20e9 + 1 / 4e12))
    ramp = Protocol("NVLS", 10e-6, 0.0, 400e9, ramp_bytes=1e8, ramp_Bps=100e9)
    assert ramp.line("all_reduce", 4) == near((10e-6, 1.5 / 100e9))
    tree = Protocol("Tree LL", 10e-6, 1e-6, 20e9, inner_steps=14, outer_steps=4, net_hop_s=5e-6)
    assert tree.line("all_reduce", 32) == near((44e-6, 2 / 20e9))
    assert tree.tree and not ring.tree


def test_a_switch_that_comes_too_late_moves_to_where_the_lines_meet() -> None:
    # all-gather of 2: starts 11 and 31 us, 1 / (2 x 10e9) and 1 / (2 x 40e9) s/B: they meet at 20 us / 37.5 ps = 533 kB
    slow, fast = Protocol("LL", 10e-6, 1e-6, 10e9, until_bytes=1e6), Protocol("Simple", 30e-6, 1e-6, 40e9)
    meet = 20e-6 / (0.5 / 10e9 - 0.5 / 40e9)
    late, last = no_later_than_they_meet("all_gather", 2, [slow, fast])
    assert late.until_bytes == near(meet)
    assert last == fast
    early = Protocol("LL", 10e-6, 1e-6, 10e9, until_bytes=1e5)
    assert no_later_than_they_meet("all_gather", 2, [early, fast])[0] == early  # the time jumps up, as it does
    # one that is worse in both never runs
    worse = Protocol("LL", 50e-6, 1e-6, 10e9, until_bytes=1e6)
    assert no_later_than_they_meet("all_gather", 2, [worse, Protocol("Simple", 30e-6, 1e-6, 10e9)])[0].until_bytes == 0
    assert no_later_than_they_meet("all_gather", 2, []) == ()


def test_measured_limits_move_only_by_what_three_lines_miss() -> None:
    fast = Protocol("Simple", 30e-6, 1e-6, 40e9)
    for until, moves in ((5.5e5, True), (1e6, False), (4e5, False), (math.inf, False)):
        slow = Protocol("LL", 10e-6, 1e-6, 10e9, until_bytes=until)  # falls by 1.6 % at 550 kB, by 28 % at 1 MB
        first, last = settled("all_gather", 2, (slow, fast))
        assert (first.until_bytes != until) == moves
        assert last == fast
    assert settled("all_gather", 2, ()) == ()
