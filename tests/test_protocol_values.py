"""NCCL's protocols as tables of figures, as lines and over links of another width, worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.catalog import AllReduce
from perfmodel.placement.protocols import (
    Protocol,
    bound_by_channels,
    no_later_than_they_meet,
    on_nvlink5,
    read_protocols,
    settled,
)
from perfmodel.placement.tuning import nccl_nvls_s

GB, US = 1e9, 1e-6


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


# ---------------------------------------------------------------- tables of figures


def figures(**changes: float | None) -> AllReduce:
    """A table of easy numbers: LL, LL128 and Simple on 8 ranks, with groups of 2 and 4."""
    given: dict[str, Any] = {"base_s": 1 * US, "hop_s": 2 * US, "ll_busbw": 80 * GB, "simple_base_s": 3 * US,
                             "simple_hop_s": 4 * US, "simple_busbw": 160 * GB, "ll128_base_s": 5 * US,
                             "ll128_hop_s": 6 * US, "ll128_busbw": 120 * GB, "nvls_base_s": 7 * US,
                             "nvls_busbw": 200 * GB, "copy_rate": 900 * GB, "ll_until": 1000.0,
                             "ll128_until": 5000.0} | changes  # fmt: skip
    units = {"until": "B", "_s": "s", "busbw": "B/s", "rate": "B/s"}

    def said(name: str, value: float) -> dict[str, Any]:
        unit = next(word for ending, word in units.items() if name.endswith(ending))
        return {"value": f"{value!r} {unit}", "kind": "assumed", "note": "toy"}

    groups = {2: {"ll_busbw": 20 * GB, "simple_busbw": 40 * GB, "ll128_busbw": 30 * GB},
              4: {"ll_busbw": 40 * GB, "simple_busbw": 160 * GB}}
    return AllReduce.model_validate(
        {name: said(name, value) for name, value in given.items() if value is not None}
        | {"by_ranks": {n: {k: said(k, v) for k, v in group.items()} for n, group in groups.items()}})


def test_a_table_gives_what_it_measured() -> None:
    found = read_protocols(figures(), "all_reduce", 8, 8)
    ll, ll128, simple, nvls = found
    assert [p.name for p in found] == ["LL", "LL128", "Simple", "NVLS"]
    assert (ll.base_s, ll.hop_s, ll.busbw_Bps, ll.until_bytes) == near((1 * US, 2 * US, 80 * GB, 1000))
    assert (ll128.base_s, ll128.hop_s, ll128.busbw_Bps) == near((5 * US, 6 * US, 120 * GB))
    assert (simple.base_s, simple.hop_s, simple.busbw_Bps) == near((3 * US, 4 * US, 160 * GB))
    assert (nvls.base_s, nvls.hop_s, nvls.busbw_Bps) == near((7 * US, 0, 200 * GB))
    assert (ll128.until_bytes, simple.until_bytes, nvls.until_bytes) == near((5000, math.inf, math.inf))
    assert {p.copy_Bps for p in found} == {math.inf}
    gather = read_protocols(figures(), "all_gather", 8, 8)  # a rank's own share is copied, at the end of Simple
    assert [p.name for p in gather] == ["LL", "LL128", "Simple"]
    assert [p.copy_Bps for p in gather] == near([math.inf, math.inf, 900 * GB])
    assert read_protocols(figures(), "reduce_scatter", 8, 8) == gather
    assert [p.copy_Bps for p in read_protocols(figures(copy_rate=None), "all_gather", 8, 8)] == [math.inf] * 3
    half = read_protocols(figures(), "all_gather", 8, 8, 0.5)
    assert [p.busbw_Bps for p in half] == near([40 * GB, 60 * GB, 80 * GB]) and half[2].copy_Bps == near(900 * GB)


def test_a_table_leaves_out_what_it_lacks() -> None:
    def names(ranks: int = 8, **changes: float | None) -> list[str]:
        return [p.name for p in read_protocols(figures(**changes), "all_reduce", ranks, 8)]

    assert names() == ["LL", "LL128", "Simple", "NVLS"]
    assert names(nvls_base_s=None) == ["LL", "LL128", "Simple"]
    assert names(nvls_busbw=None) == ["LL", "LL128", "Simple"]
    assert names(ll128_hop_s=None) == names(ll128_base_s=None) == ["LL", "Simple", "NVLS"]
    assert names(ll128_busbw=None) == ["LL", "Simple", "NVLS"]
    assert names(4) == ["LL", "Simple"]  # neither has a figure for four
    assert names(2) == ["LL", "LL128", "Simple"]


@pytest.mark.parametrize(("ranks", "simple"), [(1, 40), (2, 40), (3, 40 * 4 ** math.log2(1.5)), (4, 160), (6, 160),
                                               (8, 160), (16, 160)])
def test_groups_between_those_that_were_measured(ranks: int, simple: float) -> None:
    found = {p.name: p.busbw_Bps for p in read_protocols(figures(), "all_reduce", ranks, 8)}
    assert found["Simple"] == near(simple * GB)
    if ranks >= 4:
        share = math.log2(min(ranks, 8) / 4)  # of the way from 4 to 8 ranks
        assert found["LL"] == near(40 * 2**share * GB)


def test_figures_of_a_larger_node_are_borrowed() -> None:
    for count in (2, 4):  # the whole table counts for twice its largest group
        found = {p.name: p.busbw_Bps for p in read_protocols(figures(), "all_reduce", 4, count)}
        assert found["LL"] == near(40 * GB)
    wide = {p.name: p.busbw_Bps for p in read_protocols(figures(), "all_reduce", 8, 16)}
    assert wide["LL"] == near(40 * 2**0.5 * GB)  # half of the way from 4 to 16


# ---------------------------------------------------------------- lines


def test_lines_of_a_ring_a_tree_and_one_message() -> None:
    p = Protocol("Simple", 10 * US, 2 * US, 100 * GB, copy_Bps=400 * GB)
    for op, steps in (("all_reduce", 14), ("all_gather", 7), ("reduce_scatter", 7)):
        start, each = p.line(op, 8)
        assert (start, each) == near(((10 + 2 * steps) * US, steps / 8 / (100 * GB) + 1 / (8 * 400 * GB)))
    assert p.line("send_recv", 8) == near((12 * US, 1 / (100 * GB) + 1 / (8 * 400 * GB)))
    ramped = replace(p, ramp_Bps=50 * GB, copy_Bps=math.inf)
    assert ramped.line("all_gather", 4)[1] == near(3 / 4 / (50 * GB))
    tree = Protocol("Tree LL", 5 * US, 1 * US, 40 * GB, inner_steps=14, outer_steps=2, net_hop_s=3 * US)
    assert tree.tree and not p.tree
    assert tree.line("all_reduce", 16) == near(((5 + 14 + 6) * US, 2 / (40 * GB)))


def pair(until: float, later_base: float = 30, later_width: float = 200) -> list[Protocol]:
    return [Protocol("LL", 10 * US, 0.0, 100 * GB, until), Protocol("Simple", later_base * US, 0.0, later_width * GB)]


def test_a_switch_is_moved_down_to_where_lines_meet() -> None:
    # 10 us + n / 100 and 30 us + n / 200 GB/s (of 2 ranks, half to all of it) meet where n x (1/100 - 1/200) = 20 us
    meet = 20 * US / (1 / (100 * GB) - 1 / (200 * GB))
    for until, kept in ((2 * meet, meet), (meet / 2, meet / 2), (meet, meet)):
        first, last = no_later_than_they_meet("all_reduce", 2, pair(until))
        assert first.until_bytes == near(kept) and last.until_bytes == math.inf
    first, _ = no_later_than_they_meet("all_reduce", 2, pair(1e6, 5, 50))  # starts sooner, and falls behind
    assert first.until_bytes == 1e6
    first, _ = no_later_than_they_meet("all_reduce", 2, pair(1e6, 5, 100))  # better everywhere
    assert first.until_bytes == 0
    first, _ = no_later_than_they_meet("all_reduce", 2, pair(1e6, 15, 200))
    assert first.until_bytes == near(5 * US / (1 / (100 * GB) - 1 / (200 * GB)))
    assert no_later_than_they_meet("all_reduce", 2, pair(1e6)[:1]) == tuple(pair(1e6)[:1])


def test_a_measured_switch_moves_only_within_the_error_of_the_lines() -> None:
    meet = 20 * US / (1 / (100 * GB) - 1 / (200 * GB))
    for times, moved in ((0.9, False), (1.2, True), (1.5, True), (4.0, False), (0.5, False)):
        until = times * meet
        before, after = 10 * US + until / (100 * GB), 30 * US + until / (200 * GB)
        assert (0 < 1 - after / before < 0.15) == moved
        found = settled("all_reduce", 2, tuple(pair(until)))
        assert found[0].until_bytes == near(meet if moved else until) and found[1] == pair(until)[1]
    assert settled("all_reduce", 2, tuple(pair(math.inf)))[0].until_bytes == math.inf


# ---------------------------------------------------------------- links of another width


def test_channels_carry_as_much_over_a_wider_link() -> None:
    given = {"LL": Protocol("LL", 0, 0, 20 * GB), "Simple": Protocol("Simple", 0, 0, 40 * GB)}
    widest = {"LL": Protocol("LL", 0, 0, 25 * GB), "Simple": Protocol("Simple", 0, 0, 45 * GB)}

    def of(op: str, ranks: int, rate: float) -> list[float]:
        return [p.busbw_Bps for p in bound_by_channels(given, widest, op, ranks, rate * GB, 50 * GB, 0.6).values()]

    for op in ("all_reduce", "all_gather", "reduce_scatter", "send_recv"):
        assert of(op, 8, 100) == near([20 * GB, 40 * GB])
        assert of(op, 8, 25) == near([12.5 * GB, 22.5 * GB])  # shares 0.5 and 0.9 of the link
    assert of("all_to_all", 2, 30) == near([20 * GB, 27 * GB])
    assert of("all_to_all", 8, 100) == near([60 * GB, 60 * GB])  # 0.6 of the port
    assert of("all_to_all", 2, 1000) == near([20 * GB, 40 * GB])
    assert of("all_to_all", 4, 1000) == near([60 * GB, 120 * GB])  # two channels for each of three peers


def test_hopper_s_figures_on_blackwell() -> None:
    given = {name: Protocol(name, 1 * US, 2 * US, 200 * GB) for name in ("LL", "LL128", "Simple", "NVLS")}
    found = on_nvlink5(given, 2.0, 16, 8)
    assert {name: p.hop_s for name, p in found.items()} == near(
        {"LL": 3.6 * US, "LL128": 3.6 * US, "Simple": 2 * US, "NVLS": 2 * US})
    assert (found["LL"].busbw_Bps, found["LL128"].busbw_Bps, found["Simple"].busbw_Bps) == near(
        (125 * GB, 200 * GB, 200 * GB))
    nvls = found["NVLS"]
    assert (nvls.busbw_Bps, nvls.ramp_Bps) == near((200 * 0.74 / 0.85 * GB, 100 * GB))
    assert nvls.ramp_bytes == 8 * 16 * 8 * 65536
    assert on_nvlink5(given, 2.0, 16, 4)["NVLS"].ramp_bytes == 8 * 16 * 4 * 65536
    assert on_nvlink5(given, 1.0, 16, 8)["NVLS"].ramp_Bps == near(200 * 0.74 / 0.85 * GB)
    assert on_nvlink5(given, 1.0, 16, 8)["LL"].busbw_Bps == 200 * GB


def test_nvls_by_generation() -> None:
    # a port of 500 GB/s for nine heads' shares: channels of 50 GB/s on both; 8 x 2 x 50 x share x 7/8
    for capability, share in ((9.0, 0.85), (9.9, 0.85), (10.0, 0.74), (12.0, 0.74)):
        bound = 60 if capability < 10 else 90  # the next speeds of the ladder, below twice 50
        width = 8 * min(2 * 50 * share * 7 / 8, bound) * GB
        assert float(nccl_nvls_s(2.0**30, 8, 1, 500 * GB, capability)) == near(25 * US + 7 / 4 * 2**30 / width)
    assert float(nccl_nvls_s(2.0**30, 8, 1, 500 * GB, 8.9)) == float(nccl_nvls_s(1.0, 2, 1, 500 * GB, 9.0)) == math.inf
    across = float(nccl_nvls_s(1.0, 16, 2, 500 * GB, 9.0))
    assert across == pytest.approx(43 * US, rel=1e-4, abs=0)
