"""Links of known machines by hand: what NCCL is told, what a graph carries, what kernels beside NCCL read."""

import math
from typing import Any

import pytest

from perfmodel import catalog
from perfmodel.errors import BadInput, UnknownName
from perfmodel.placement.links import fabric_for, links_for
from perfmodel.placement.nccl import Search, Setup, limits, peer_to_peer, read_setup, search, staged_share
from perfmodel.placement.peers import peers_Bps, sums_in_switch, switch_adds
from perfmodel.placement.topology import Graph

GB = 1e9


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


def graph(name: str) -> Graph:
    return Graph(catalog.load_node(name))


# ---------------------------------------------------------------- what NCCL is told


def told(text: str | None, node: str = "8x-a100-sxm-80gb") -> Setup:
    return read_setup(text, catalog.load_node(node))


def test_versions_and_variables() -> None:
    own = catalog.load_node("8x-a100-sxm-80gb").nccl
    plain = told(None)
    assert (plain.variant, plain.version, plain.environment) == (None, own.version, dict(own.environment))
    assert told("").environment == plain.environment
    assert (told("v2.28.3").version, told("2.28.3").minor, told("2.20rc1").version) == ("2.28.3", 28, "2.20rc1")
    assert [Setup(version=v).minor for v in ("2.19.4", "2.7", "", "3.1")] == [19, 7, 30, 30]
    both = told("2.27.1, nccl_algo=ring NCCL_PROTO=^ll128")
    assert both.version == "2.27.1"
    assert (both.environment["NCCL_ALGO"], both.environment["NCCL_PROTO"]) == ("RING", "^LL128")
    assert told("NCCL_GRAPH_FILE=/etc/Graph.xml").environment["NCCL_GRAPH_FILE"] == "/etc/Graph.xml"


@pytest.mark.parametrize("word", ["LL", "ll", "LL128", "Simple", "LL,Simple", "^LL128", "LL128,LL"])
def test_protocols_that_nccl_knows(word: str) -> None:
    assert told(f"NCCL_PROTO={word.split(',')[0]}").environment["NCCL_PROTO"] == word.split(",")[0].upper()


@pytest.mark.parametrize("word", ["Ring", "tree", "NVLS", "^nvls"])
def test_algorithms_that_nccl_knows(word: str) -> None:
    assert told(f"NCCL_ALGO={word}").environment["NCCL_ALGO"] == word.upper()


@pytest.mark.parametrize(
    ("value", "level"),
    [("0", "LOC"), ("1", "PIX"), ("2", "PXB"), ("3", "PHB"), ("4", "SYS"), ("5", "SYS"), ("nvl", "NVL")],
)
def test_levels_of_peer_access(value: str, level: str) -> None:
    assert told(f"NCCL_P2P_LEVEL={value}").environment["NCCL_P2P_LEVEL"] == level


@pytest.mark.parametrize(
    "text", ["NCCL_PROTO=LL256", "NCCL_ALGO=star", "NCCL_P2P_LEVEL=6", "NCCL_P2P_LEVEL=NET", "NCCL_P2P_LEVEL=x"]
)
def test_values_that_nccl_does_not_know(text: str) -> None:
    with pytest.raises(BadInput, match=text.partition("=")[0]):
        told(text)


def test_names_that_nobody_knows() -> None:
    for text in ("NCCL_NO_SUCH=1", "fastest", "2"):
        with pytest.raises(UnknownName, match="nccl|NCCL"):
            told(text)


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"])
def test_variables_that_send_messages_another_way(name: str) -> None:
    assert Setup(environment={name: "1"}).moves_traffic
    assert not Setup(environment={"NCCL_ALGO": "RING"}).moves_traffic


def test_a_ring_is_staged_pair_by_pair() -> None:
    node = graph("8x-rtx-pro-6000-server")  # two sockets of four GPUs, each on a root port of its own: PHB and SYS
    assert staged_share(node, node.gpus, Setup()) == 1.0  # up to PXB by default
    assert staged_share(node, node.gpus, Setup(environment={"NCCL_P2P_LEVEL": "PHB"})) == near(2 / 8)
    everywhere = Setup(environment={"NCCL_P2P_LEVEL": "SYS"})
    assert staged_share(node, node.gpus, everywhere) == 0.0 and peer_to_peer(node, node.gpus, everywhere)
    assert not peer_to_peer(node, node.gpus, Setup())
    for value, share in (("1", 1.0), ("0", 0.0), ("", 0.0)):
        setup = Setup(environment={"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": value})
        assert staged_share(node, node.gpus, setup) == share


# ---------------------------------------------------------------- when NCCL takes what


def test_ll_gives_way_to_simple_where_nccl_s_own_lines_meet() -> None:
    # 8 GPUs, 20 GB/s: 20.6 us + 7/4 n / 10 GB/s and 88.2 us + 7/4 n / 20 GB/s meet at 772,571 B
    pcie = Search(20 * GB, 1, False, 48 * GB, False)
    (first, until), (last, endless) = limits("all_reduce", 8, 1, pcie, math.inf, 12.0, False, ("LL", "Simple"))
    assert (first, last, endless) == ("LL", "Simple", math.inf)
    assert 772_571 * 2 ** (-1 / 16) <= until <= 772_571
    # gathers take 7 steps: 13.6 + 7/8 n / 10 and 48.3 + 7/8 n / 20 GB/s meet at 793,143 B
    (_, gather), _ = limits("all_gather", 8, 1, pcie, math.inf, 12.0, False, ("LL", "Simple"))
    assert 793_143 * 2 ** (-1 / 16) <= gather <= 793_143
    assert limits("all_reduce", 8, 1, pcie, math.inf, 12.0, False, ("Simple",)) == (("Simple", math.inf),)


def test_the_switch_takes_large_messages_and_trees_small_ones_between_machines() -> None:
    hopper = Search(360 * GB, 12, True, 370.8 * GB, False)
    three = ("LL", "LL128", "Simple")
    order = [name for name, _ in limits("all_reduce", 8, 1, hopper, math.inf, 9.0, True, three)]
    assert order[0] == "LL" and order[-1] == "NVLS"
    assert "NVLS" not in dict(limits("all_reduce", 8, 1, hopper, math.inf, 9.0, False, three))
    assert "NVLS" not in dict(limits("all_gather", 8, 1, hopper, math.inf, 9.0, True, three))
    assert [n for n, _ in limits("all_reduce", 8, 1, hopper, math.inf, 9.0, True, three, ring=False)] == ["NVLS"]
    # over 8 machines a tree starts at 6.8 + 14 x 0.6 + 6 x 5 = 45.2 us, NVLS at 43, a ring at many more
    across = limits("all_reduce", 64, 8, hopper, 400 * GB, 9.0, False, three)
    assert across[0][0] == "Tree LL"
    assert limits("all_reduce", 64, 8, hopper, 400 * GB, 9.0, True, three)[0][0] == "NVLS"
    rings = limits("all_reduce", 64, 8, hopper, 400 * GB, 9.0, False, three, tree=False)
    assert not [name for name, _ in rings if name.startswith("Tree")]
    assert not [name for name, _ in limits("all_gather", 64, 8, hopper, 400 * GB, 9.0, True, three) if "Tree" in name]
    assert [until for _, until in across] == sorted(until for _, until in across)


@pytest.mark.parametrize(
    ("name", "ranks", "capability", "graph_GBps", "channels", "port"),
    [
        ("8x-a100-sxm-80gb", 8, 8.0, 240, 12, 240),  # 300 x 0.8: six channels of 40, halved and doubled
        ("8x-h200-sxm", 8, 9.0, 360, 12, 370.8),  # 450 x 0.824: six of 60
        ("8x-b200-sxm", 8, 10.0, 720, 16, 721.8),  # 900 x 0.802: eight of 90
    ],
)  # fmt: skip
def test_search_over_nvlink(
    name: str, ranks: int, capability: float, graph_GBps: float, channels: int, port: float
) -> None:
    node = graph(name)
    found = search(node, node.gpus[:ranks], capability, Setup())
    assert (found.channels, found.nvlink, found.fallback) == (channels, True, False)
    assert (found.graph_Bps, found.port_Bps) == near((graph_GBps * GB, port * GB))


def test_search_over_pcie() -> None:
    node = graph("8x-rtx-pro-6000-server")  # PCIe 5 counts as 48 GB/s: a channel of 45; 16 between AMD sockets
    near_ones, across = (search(node, node.gpus[:n], 12.0, Setup()) for n in (4, 8))
    assert (near_ones.graph_Bps, near_ones.channels, near_ones.nvlink) == (45 * GB, 2, False)
    assert (across.fallback, across.channels) == (True, 1) and across.graph_Bps == near(0.1 * GB)
    older = search(node, node.gpus, 12.0, Setup(version="2.25.1"))
    assert (older.graph_Bps, older.channels, older.fallback) == (15 * GB, 1, False)
    told_all = search(node, node.gpus, 12.0, Setup(environment={"NCCL_GRAPH_FILE": "x"}))
    assert told_all.graph_Bps == 45 * GB


# ---------------------------------------------------------------- what a graph carries


def test_an_nvswitch_by_hand() -> None:
    node = graph("8x-h200-sxm")  # 450 GB/s a port, 0.3 us a link
    path = node.path("gpu0", "gpu7")
    assert (path.bandwidth_Bps, path.latency_s, path.level, len(path.hops)) == (450 * GB, near(0.6e-6), "NVL", 2)
    own = node.path("gpu0", "gpu0")
    assert (own.level, own.hops, own.bandwidth_Bps, own.latency_s) == ("LOC", (), math.inf, 0)
    assert node.ring_Bps(node.gpus) == near(450 * GB)
    assert node.exchange_Bps(node.gpus) == near(450 * GB)  # a seventh of the port for each of seven
    assert node.shared_Bps([("gpu0", "gpu1"), ("gpu0", "gpu2"), ("gpu3", "gpu2")]) == near(225 * GB)
    assert node.shared_Bps([]) == node.ring_Bps(["gpu0"]) == node.exchange_Bps(["gpu0"]) == math.inf
    assert node.machines(node.gpus) == 1 and node.uplink_Bps(0) == math.inf
    assert node.all_nvlink(node.gpus) and node.peer_access("gpu0", "gpu7")


def test_two_machines_by_hand() -> None:
    node = graph("2x-dgx-h100")  # eight NICs of 50 GB/s each
    assert node.machines(node.gpus) == 2 and node.machines(node.gpus[8:]) == 1
    assert [node.machine_of[gpu] for gpu in node.gpus] == [0] * 8 + [1] * 8
    assert node.uplink_Bps(0) == near(400 * GB)
    assert node.ring_Bps(node.gpus) == near(400 * GB)
    # 8 x 8 flows leave a machine: each GPU sends 15 of them at 400 / 64 GB/s
    assert node.exchange_Bps(node.gpus) == near(15 * 400 * GB / 64)
    assert node.path("gpu0", "gpu8").level == "NET"
    assert not node.peer_access("gpu0", "gpu8")
    assert node.all_nvlink(node.gpus)  # inside every machine


def test_peer_access_by_word() -> None:
    node = graph("8x-rtx-pro-6000-server")
    for p2p, inside, across in ((True, True, True), (False, False, False), ("within_socket", True, False)):
        node.node = node.node.model_copy(update={"p2p": p2p})
        assert (node.peer_access("gpu0", "gpu1"), node.peer_access("gpu0", "gpu4")) == (inside, across)
    node._stated = {frozenset(("gpu0", "gpu1")): False, frozenset(("gpu0", "gpu4")): True}
    assert (node.peer_access("gpu1", "gpu0"), node.peer_access("gpu4", "gpu0")) == (False, True)
    assert node.peer_access("gpu0", "gpu2")


# ---------------------------------------------------------------- kernels beside NCCL


@pytest.mark.parametrize(
    ("ranks", "kernel", "expected"),
    [
        (8, "custom_one_shot", 450 * 0.8), (4, "custom_one_shot", 450 * 0.8 * 0.9 / 0.95),
        (2, "custom_one_shot", 450 * 0.8 * 0.8 / 0.95), (8, "custom_two_shot", 265), (8, "symm_mem", 450 * 0.57),
        (8, "multimem", 450 * 0.54), (4, "custom_two_shot", 450 * 0.8 * 0.9 / 0.95),
    ],
)  # fmt: skip
def test_what_a_kernel_reads_over_nvlink(ranks: int, kernel: str, expected: float) -> None:
    node = graph("8x-h200-sxm")
    found = peers_Bps(node, node.gpus[:ranks], {"nvlink": 0.8, "pcie": 0.5}, kernel, 9.0)
    assert found == near(expected * GB)


def test_older_gpus_take_every_kernel_as_a_custom_one() -> None:
    node = graph("8x-h200-sxm")
    for kernel in ("custom_one_shot", "custom_two_shot", "symm_mem"):
        found = peers_Bps(node, node.gpus, {"nvlink": 0.8, "pcie": 0.5}, kernel, 8.0)
        assert found == near(450 * 0.8 * GB)


def test_what_a_kernel_reads_over_pcie() -> None:
    node = graph("8x-rtx-pro-6000-server")
    port = min(hop.bandwidth_Bps for hop in node.edges["gpu0"].values())
    shares: dict[str, Any] = {"nvlink": 0.8, "pcie": 0.01}
    assert peers_Bps(node, node.gpus[:4], shares, "custom_one_shot", 12.0) == near(0.01 * port)
    assert peers_Bps(node, node.gpus[:2], shares, "custom_one_shot", 12.0) == near(node.exchange_Bps(node.gpus[:2]))


@pytest.mark.parametrize(
    ("name", "capability", "adds", "sums"),
    [("8x-h200-sxm", 9.0, (2, 4, 6, 8), (4, 6, 8)), ("8x-b200-sxm", 10.0, (2, 4, 6, 8), (6, 8)),
     ("8x-a100-sxm-80gb", 8.0, (), ()), ("8x-rtx-pro-6000-server", 12.0, (), ())],
)  # fmt: skip
def test_where_the_switch_adds(name: str, capability: float, adds: tuple[int, ...], sums: tuple[int, ...]) -> None:
    node = graph(name)
    assert tuple(n for n in (1, 2, 4, 6, 8) if switch_adds(node, node.gpus[:n], capability)) == adds
    assert tuple(n for n in (1, 2, 4, 6, 8) if sums_in_switch(node, node.gpus[:n], capability)) == sums
    assert not sums_in_switch(node, node.gpus[:5], capability)


def test_classes_of_links_by_transport_and_generation() -> None:
    for transport in ("nvlink", "pcie", "host"):
        for capability in (8.0, 9.0, 10.0, 12.0):
            fabric = fabric_for(transport, capability)
            assert fabric.transport == transport
            bounds = fabric.compute_capability
            assert not bounds or bounds[0] <= capability < bounds[1]


def test_links_of_a_node() -> None:
    h200 = catalog.load_node("8x-h200-sxm")
    gpu = catalog.load_accelerator("h200-sxm")
    own, of_class = (links_for(h200, gpu, own=value) for value in (True, False))
    assert own.measured and not of_class.measured
    assert (own.transport(8), own.multimem(8), own.multimem(2)) == ("nvlink", True, False)
    assert own.spread("all_reduce", 8) == own.spread("all_reduce", 1) == (0.0, 0.0)
    assert all(sd > 0 for sd in of_class.spread("all_reduce", 8))
    assert "was not measured there" in of_class.origin("all_reduce", 8)
    assert "measured" in own.origin("all_reduce", 8)
    assert (own.hop_Bps, own.hop_latency_s, own.hop_staged) == (450 * GB, near(0.6e-6), False)
    assert {p.copy_Bps for p in of_class.protocols("all_reduce", 8)} == {math.inf}  # a gather copies its own share
    apart = links_for(h200, gpu, "NCCL_P2P_DISABLE=1")
    assert (apart.transport(8), apart.hop_staged) == ("host", True)
    assert apart.hop_Bps == near(0.66 * 450 * GB)
    far = links_for(catalog.load_node("2x-dgx-h100"), catalog.load_accelerator("h100-sxm"), world=16)
    assert far.hop_Bps == near(50 * GB) and not far.hop_staged
    assert far.network_Bps(far.gpus(16)) == near(400 * GB) and far.network_Bps(far.gpus(8)) == math.inf
