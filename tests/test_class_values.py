"""Links of nodes and clusters by class: which protocols run there, and what steps between machines cost, by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from test_protocol_values import figures, near

import perfmodel as pm
from perfmodel.catalog import AllReduce, Node, load_accelerator, load_fabric, load_node
from perfmodel.errors import DescriptorError, IllegalDeployment
from perfmodel.placement.links import Links, fabric_for, links_for, links_of
from perfmodel.placement.nccl import Setup, staged_share
from perfmodel.placement.protocols import Protocol, read_protocols
from perfmodel.placement.topology import Graph

GB, US = 1e9, 1e-6
GPUS = {"dgx-h100": "h100-sxm", "dgx-b200": "b200-sxm", "dgx-a100": "a100-sxm-80gb", "tcp": "rtx-pro-6000-server",
        "h200-sxm": "h200-sxm", "b200-sxm": "b200-sxm", "server": "rtx-pro-6000-server", "l40s": "l40s",
        "h100-sxm": "h100-sxm", "roce": "h100-sxm", "a100-sxm-80gb": "a100-sxm-80gb"}  # fmt: skip


def linked(node: str, nccl: str | None = None, **extra: Any) -> Links:
    gpu = next(gpu for ending, gpu in GPUS.items() if node.endswith(ending))
    return links_for(load_node(node), load_accelerator(gpu), nccl, **extra)


def table(found: Links, op: str, ranks: int) -> dict[str, Protocol]:
    return {p.name: p for p in found.everything(op, ranks)}


def figure(figures: AllReduce, name: str) -> float:
    return float(getattr(figures, name).value)


def network() -> AllReduce:
    return load_fabric("network").figures


# ---------------------------------------------------------------- which links a group has


def test_transport_by_peer_access() -> None:
    assert [linked("8x-h200-sxm", nccl).transport(8) for nccl in (None, "NCCL_P2P_DISABLE=1")] == ["nvlink", "host"]
    server = "8x-rtx-pro-6000-server"
    assert [linked(server, nccl).transport(8) for nccl in (None, "NCCL_P2P_LEVEL=SYS", "NCCL_P2P_LEVEL=PHB")] == [
        "host", "pcie", "host"]
    assert linked("8x-l40s", "NCCL_P2P_LEVEL=SYS").transport(4) in ("pcie", "host")
    assert linked("2x-dgx-h100", world=16).transport(16) == "nvlink"
    found = linked(server, "NCCL_P2P_LEVEL=SYS")
    assert found.fabric(8).transport == "pcie" and found.fabric(8) == fabric_for("pcie", 12.0)


def test_links_of_a_class_are_scaled_by_the_node_s_own() -> None:
    h100 = linked("8x-h100-sxm", own=False)
    given, link = load_fabric("nvlink4"), float(load_fabric("nvlink4").bandwidth)
    ring = h100.graph.ring_Bps(h100.gpus(8))
    found = table(h100, "all_gather", 8)
    assert found["Simple"].busbw_Bps == near(figure(given.figures, "simple_busbw") * ring / link)
    assert found["LL"].hop_s == near(figure(given.figures, "hop_s"))
    assert found["Simple"].copy_Bps == near(figure(given.figures, "copy_rate"))
    b200 = linked("8x-b200-sxm", own=False)
    scale = b200.graph.ring_Bps(b200.gpus(8)) / link
    assert scale == near(2.0)
    wide = table(b200, "all_gather", 8)
    assert wide["LL"].hop_s == near(1.8 * figure(given.figures, "hop_s"))
    assert wide["Simple"].hop_s == near(figure(given.figures, "simple_hop_s"))
    assert wide["LL"].busbw_Bps == near(1.25 * figure(given.figures, "ll_busbw"))
    assert wide["LL128"].busbw_Bps == near(scale * figure(given.figures, "ll128_busbw"))
    exchange = table(b200, "all_to_all", 8)  # not a ring: scaled, and no slower in its steps
    assert exchange["Simple"].busbw_Bps == near(
        b200.graph.exchange_Bps(b200.gpus(8)) / link * float(given.figures.ops["all_to_all"].simple_busbw.value))  # type: ignore[index]
    assert exchange["Simple"].hop_s == near(float(given.figures.ops["all_to_all"].simple_hop_s.value))  # type: ignore[index]


def test_a_ring_that_is_staged_in_part_lies_between_both_classes() -> None:
    server = linked("8x-rtx-pro-6000-server", "NCCL_P2P_LEVEL=PHB", own=False)
    share = staged_share(server.graph, server.gpus(8), server.setup)
    assert share == near(2 / 8)
    host, pcie = fabric_for("host", 12.0).figures, fabric_for("pcie", 12.0).figures
    found = table(server, "all_reduce", 8)
    for name, key in (("LL", "hop_s"), ("Simple", "simple_hop_s")):
        assert found[name].hop_s == near(share * figure(host, key) + (1 - share) * figure(pcie, key))
    whole = table(linked("8x-rtx-pro-6000-server", own=False), "all_reduce", 8)
    assert whole["LL"].hop_s == near(figure(host, "hop_s"))
    exchange = table(server, "all_to_all", 8)
    assert exchange["LL"].hop_s == near(float(host.ops["all_to_all"].hop_s.value))  # type: ignore[index]


# ---------------------------------------------------------------- between machines


CLUSTERS = [("2x-dgx-h100", 16, 2), ("4x-dgx-h100", 32, 4), ("4x-dgx-h100", 16, 2), ("2x-dgx-b200", 16, 2),
            ("2x-dgx-a100", 16, 2), ("2x-8x-rtx-pro-6000-server-tcp", 16, 2)]  # fmt: skip


@pytest.mark.parametrize(("node", "ranks", "machines"), CLUSTERS)
def test_steps_between_machines_cost_the_network_s(node: str, ranks: int, machines: int) -> None:
    found, net = linked(node, world=ranks), network()
    inside = {op: table(found, op, ranks // machines) for op in ("all_reduce", "all_gather", "send_recv")}
    far = max(found.graph.path("gpu0", gpu).latency_s for gpu in found.gpus(ranks))
    names = {"LL": "hop_s", "LL128": "ll128_hop_s", "Simple": "simple_hop_s"}
    for op, steps in (("all_reduce", 2 * machines), ("all_gather", machines - 1), ("send_recv", 1)):
        across = table(found, op, ranks)
        for name in set(names) & set(across):
            p, near_one = across[name], inside[op].get(name)
            if near_one is None:
                continue
            hop = figure(net, names[name]) + far
            assert p.hop_s == near(near_one.hop_s)
            assert p.base_s == near(near_one.base_s + steps * (hop - near_one.hop_s))
    exchange, local = (table(found, "all_to_all", n) for n in (ranks, ranks // machines))
    assert all(exchange[name].base_s == near(local[name].base_s) for name in set(exchange) & set(local))


@pytest.mark.parametrize(("node", "ranks", "machines"), CLUSTERS)
def test_trees_go_up_and_down_inside_and_between(node: str, ranks: int, machines: int) -> None:
    found, net = linked(node, world=ranks), network()
    far = max(found.graph.path("gpu0", gpu).latency_s for gpu in found.gpus(ranks))
    everything, inside = table(found, "all_reduce", ranks), table(found, "all_reduce", ranks // machines)
    trees = {name: p for name, p in everything.items() if name.startswith("Tree")}
    assert "Tree Simple" in trees and "Tree NVLS" not in trees
    for name, p in trees.items():
        ring = everything[name.removeprefix("Tree ")]
        assert p.busbw_Bps == near(0.92 * ring.busbw_Bps)
        assert (p.inner_steps, p.outer_steps) == (2 * (ranks // machines - 1), 2 * int(math.log2(machines)))
        assert p.base_s == near(inside[ring.name].base_s) and p.hop_s == near(ring.hop_s)
        key = {"LL": "hop_s", "LL128": "ll128_hop_s", "Simple": "simple_hop_s"}[ring.name]
        assert p.net_hop_s == near(figure(net, key) + far)
    assert not [name for name in table(found, "all_gather", ranks) if name.startswith("Tree")]


@pytest.mark.parametrize(("node", "ranks", "machines"), CLUSTERS)
def test_a_protocol_carries_no_more_than_nics_and_links(node: str, ranks: int, machines: int) -> None:
    found, net = linked(node, world=ranks), network()
    nics, wire = found.network_Bps(found.gpus(ranks)), float(load_fabric("network").bandwidth)
    share = {name: figure(net, key) / wire
             for name, key in (("LL", "ll_busbw"), ("LL128", "ll128_busbw"), ("Simple", "simple_busbw"))}
    across, inside = table(found, "all_reduce", ranks), table(found, "all_reduce", ranks // machines)
    for name in set(share) & set(across):
        assert across[name].busbw_Bps == near(min(inside[name].busbw_Bps, share[name] * nics))
    if "NVLS" in across:  # sums inside: 2 (p - 1) / p of the bytes cross a NIC once; and a tree between
        p, local = across["NVLS"], inside["NVLS"]
        assert p.busbw_Bps == near(min(local.busbw_Bps, share["Simple"] * nics * 2 * (ranks - 1) / ranks))
        far = max(found.graph.path("gpu0", gpu).latency_s for gpu in found.gpus(ranks))
        steps = 2 * int(math.log2(machines))
        assert p.base_s == near(local.base_s + steps * (figure(net, "simple_hop_s") + far - local.hop_s))
    exchange, local_ones = table(found, "all_to_all", ranks), table(found, "all_to_all", ranks // machines)
    for name in set(exchange) & set(local_ones):
        bound = share[name] * found.graph.exchange_Bps(found.gpus(ranks))
        assert exchange[name].busbw_Bps == near(min(local_ones[name].busbw_Bps, bound))
    one_nic = min(found.graph.path(a, b).bandwidth_Bps for a, b in zip(found.gpus(ranks)[:-1], found.gpus(ranks)[1:],
                                                                       strict=True))
    sent = table(found, "send_recv", ranks)
    assert sent["Simple"].busbw_Bps == near(share["Simple"] * min(nics, one_nic))


# ---------------------------------------------------------------- what is left to choose from


@pytest.mark.parametrize(("nccl", "names"), [
    (None, ["LL", "NVLS"]), ("NCCL_NVLS_ENABLE=0", ["LL", "LL128", "Simple"]), ("NCCL_NVLS_ENABLE=1", ["LL", "NVLS"]),
    ("NCCL_ALGO=ring", ["LL", "LL128", "Simple"]), ("NCCL_ALGO=^nvls", ["LL", "LL128", "Simple"]),
    ("NCCL_ALGO=^ring", ["NVLS"]), ("NCCL_ALGO=nvls", ["NVLS"]), ("NCCL_PROTO=LL NCCL_ALGO=ring", ["LL"]),
    ("NCCL_PROTO=^LL NCCL_ALGO=ring", ["LL128", "Simple"]), ("NCCL_PROTO=simple", ["NVLS"]),
    ("NCCL_PROTO=simple NCCL_ALGO=ring", ["Simple"]), ("NCCL_PROTO=LL128 NCCL_NVLS_ENABLE=0", ["LL128"]),
])  # fmt: skip
def test_what_a_user_leaves_to_nccl_on_hopper(nccl: str | None, names: list[str]) -> None:
    found = linked("8x-h200-sxm", nccl, own=False)
    kept = found.protocols("all_reduce", 8)
    assert [p.name for p in kept] == names and kept[-1].until_bytes == math.inf
    limits = [p.until_bytes for p in kept]
    assert limits == sorted(limits) and all(until > 0 for until in limits)
    sizes = [256.0, 1e5, 1e9]
    assert set(found.chosen("all_reduce", 8, sizes)) <= set(names)
    assert found.chosen("all_reduce", 8, sizes)[-1] == names[-1]


@pytest.mark.parametrize("nccl", ["NCCL_ALGO=nvls", "NCCL_ALGO=tree", "NCCL_PROTO=LL128", "NCCL_ALGO=^ring"])
def test_nothing_left_is_refused_by_the_variable(nccl: str) -> None:
    found = linked("8x-rtx-pro-6000-server", nccl, own=False)
    with pytest.raises(IllegalDeployment, match=nccl.split("=")[0]):
        found.protocols("all_reduce", 8)


def test_ll128_is_of_nvlink() -> None:
    for node, has in (("8x-h200-sxm", True), ("8x-rtx-pro-6000-server", False), ("8x-a100-sxm-80gb", True)):
        for op in ("all_reduce", "all_gather", "reduce_scatter"):
            assert ("LL128" in table(linked(node, own=False), op, 8)) == has
    assert "LL128" in table(linked("8x-rtx-pro-6000-server", own=False), "all_to_all", 8)


def test_figures_of_one_machine_do_not_hold_for_several() -> None:
    own = linked("8x-h200-sxm")
    assert own.own("all_reduce", 8) is own.figures and own.own("all_gather", 8) is not None
    figures_of = own.figures
    assert figures_of is not None
    for op in ("all_to_all", "send_recv"):
        assert own.own(op, 8) is figures_of.ops.get(op)  # type: ignore[call-overload]
    assert linked("2x-dgx-h100").own("all_reduce", 8) is None
    known = own.protocols("all_reduce", 8)
    assert known[-1].until_bytes == math.inf and own.spread("all_reduce", 8) == (0.0, 0.0)
    assert linked("8x-h200-sxm", own=False).spread("all_reduce", 8) == (
        float(load_fabric("nvlink4").latency_sd), float(load_fabric("nvlink4").bandwidth_sd))


def test_classes_are_there_for_every_capability() -> None:
    for word in ("nvlink", "pcie", "host"):
        assert {fabric_for(word, capability).transport for capability in (7.0, 8.0, 9.0, 12.0)} == {word}
    assert fabric_for("nvlink", 8.0).name == "nvlink3" and fabric_for("nvlink", 10.0).name == "nvlink4"


# ---------------------------------------------------------------- which figures hold, and what a stage sends


def test_the_measurement_that_holds_for_a_set_up() -> None:
    node = load_node("8x-h200-sxm")
    assert node.collectives is not None
    tables = node.collectives.variants
    for nccl, name in ((None, "stock"), ("stock", "stock"), ("host-staged", "host-staged"), ("2.28.3", "stock"),
                       ("NCCL_P2P_DISABLE=1", "host-staged"), ("NCCL_ALGO=ring", "stock")):
        found = linked("8x-h200-sxm", nccl)
        assert found.figures is tables[name] and repr(name) in found.source
    other = linked("8x-h200-sxm", "NCCL_SHM_DISABLE=1")  # moves traffic, and nobody measured that
    assert other.figures is None and "nothing measured" in other.source
    own = links_for(node, load_accelerator("h200-sxm"), figures=figures())
    assert own.figures is not None and own.source == "8x-h200-sxm: figures given" and own.measured


def test_one_protocol_that_is_left_has_no_limit() -> None:
    for name in ("LL", "LL128"):
        (kept,) = linked("8x-h200-sxm", f"NCCL_PROTO={name} NCCL_ALGO=ring").protocols("all_reduce", 8)
        assert (kept.name, kept.until_bytes) == (name, math.inf)


def test_a_node_carries_no_more_than_its_accelerators() -> None:
    node = load_node("8x-h100-sxm")
    with pytest.raises(DescriptorError, match="900 GB/s of nvlink"):  # not of the H100, of one with half its links
        links_for(node.model_copy(update={"topology": doubled(node, "nvlink")}), load_accelerator("h100-sxm"))
    links_for(node.model_copy(update={"topology": doubled(node, "nvlink", 1.04)}), load_accelerator("h100-sxm"))
    with pytest.raises(DescriptorError, match="of nvlink links"):
        links_for(node.model_copy(update={"topology": doubled(node, "nvlink", 1.06)}), load_accelerator("h100-sxm"))


def doubled(node: Node, kind: str, times: float = 2.0) -> Any:
    """The topology with wider links of a kind."""
    kinds = dict(node.topology.link_kinds)
    name = next(name for name in kinds if kind in name)
    wider = kinds[name].bandwidth.model_copy(update={"value": times * float(kinds[name].bandwidth)})
    return node.topology.model_copy(update={"link_kinds": kinds | {name: kinds[name].model_copy(
        update={"bandwidth": wider})}})  # fmt: skip


def test_neighbouring_stages_send_at_once_between_machines() -> None:
    one, eight = (linked("2x-dgx-h100", world=16, stage=stage) for stage in (1, 8))
    assert (one.hop_Bps, one.hop_staged) == (near(50 * GB), False)
    assert eight.hop_Bps == near(50 * GB)  # each of eight through a NIC of its own
    far = one.graph.path("gpu7", "gpu8")
    assert one.hop_latency_s == near(far.latency_s) and far.level == "NET"
    inside = linked("2x-dgx-h100", world=8)
    assert (inside.hop_Bps, inside.hop_latency_s) == (near(450 * GB), near(inside.graph.path("gpu0", "gpu1").latency_s))
    server = linked("8x-rtx-pro-6000-server", "NCCL_P2P_LEVEL=SYS", world=8)
    neighbours = zip(server.gpus(8)[:-1], server.gpus(8)[1:], strict=True)
    ports = [server.graph.path(a, b).bandwidth_Bps for a, b in neighbours]
    staged = not server.graph.peer_access("gpu0", "gpu1")
    assert server.hop_Bps == near((0.66 if staged else 1.0) * min(ports)) and server.hop_staged == staged


def test_one_gpu_has_no_neighbour_and_no_network() -> None:
    alone = links_for(load_node("1x-h100-sxm"), load_accelerator("h100-sxm"), world=1)
    assert (alone.hop_Bps, alone.hop_latency_s, alone.hop_staged) == (math.inf, 0.0, False)
    assert alone.network_Bps(alone.gpus(1)) == math.inf


def test_links_are_kept_for_the_deployments_that_share_them() -> None:
    given = {"node": "8x-h100-sxm", "engine": "vllm==0.33.0"}
    a, b = (links_of(pm.deploy("llama-3.1-8b", tp=4, **given)) for _ in range(2))
    assert a is b
    assert links_of(pm.deploy("llama-3.1-8b", tp=8, **given)) is not a
    assert links_of(pm.deploy("llama-3.1-8b", tp=4, nccl="NCCL_ALGO=ring", **given)) is not a


# ---------------------------------------------------------------- paths


def test_levels_and_distances_of_a_server_of_two_sockets() -> None:
    graph = linked("8x-rtx-pro-6000-server").graph
    assert [graph.path("gpu0", f"gpu{i}").level for i in (0, 1, 3, 4, 7)] == ["LOC", "PHB", "PHB", "SYS", "SYS"]
    same, other = graph.path("gpu0", "gpu1"), graph.path("gpu0", "gpu4")
    assert other.latency_s > same.latency_s and len(other.hops) > len(same.hops)
    assert [hop.a for hop in other.hops][0] == "gpu0" and other.hops[-1].b == "gpu4"
    back = graph.path("gpu4", "gpu0")
    assert [(hop.b, hop.a) for hop in reversed(back.hops)] == [(hop.a, hop.b) for hop in other.hops]
    assert not graph.all_nvlink(("gpu0", "gpu1"))
    flows = [("gpu0", "gpu1"), ("gpu0", "gpu4"), ("gpu0", "gpu5")]
    assert graph.load(flows)[graph.path("gpu0", "gpu1").hops[0]] == 3
    assert graph.shared_Bps(flows) <= graph.path("gpu0", "gpu1").hops[0].bandwidth_Bps / 3 * (1 + 1e-9)


def test_switches_between_gpus_count() -> None:
    for name, level in (("8x-rtx-pro-6000-server-1switch", "PIX"), ("8x-rtx-pro-6000-server-3switch", "PXB")):
        graph = Graph(load_node(name))
        levels = {graph.path("gpu0", gpu).level for gpu in graph.gpus[1:]}
        assert level in levels
    mesh = Graph(load_node("8x-mi300x"))
    each = mesh.edges["gpu0"]["gpu1"].bandwidth_Bps
    assert mesh.ring_Bps(mesh.gpus) == near(7 * each) and mesh.exchange_Bps(mesh.gpus) == near(7 * each)
    assert mesh.path("gpu0", "gpu1").hops == (mesh.edges["gpu0"]["gpu1"],)


# ---------------------------------------------------------------- small print


def test_two_gpus_of_an_amd_host_copy_across_sockets() -> None:
    pair = Graph(load_node("2x-rtx-pro-6000-server-2socket"))
    eight = Graph(load_node("8x-rtx-pro-6000-server"))
    for node, cpu, share in ((pair, "AMD EPYC 9575F", 0.0), (pair, "epyc", 0.0), (pair, "amd", 0.0),
                             (pair, "Intel Xeon", 1.0), (pair, "", 1.0), (eight, "AMD EPYC 9575F", 1.0)):
        host = node.node.host.model_copy(update={"cpu": cpu})
        node.node = node.node.model_copy(update={"host": host, "p2p": True})
        assert staged_share(node, node.gpus, Setup()) == share


def test_pairs_that_are_stated_apart() -> None:
    node = load_node("8x-rtx-pro-6000-server")
    pairs = (SimpleNamespace(a="gpu0", b="gpu1", p2p=False), SimpleNamespace(a="gpu4", b="gpu2", p2p=True))
    graph = Graph(node.model_copy(update={"p2p_pairs": pairs, "p2p": True}))
    assert not graph.peer_access("gpu1", "gpu0") and graph.peer_access("gpu2", "gpu4")
    assert graph.peer_access("gpu0", "gpu2")


def test_an_exchange_is_bound_by_what_it_loads_and_nvls_by_its_chunks() -> None:
    server = linked("8x-rtx-pro-6000-server", "NCCL_P2P_LEVEL=SYS", own=False)
    pcie = fabric_for("pcie", 12.0)
    own = {p.name: p for p in read_protocols(pcie.figures.ops["all_to_all"], "all_to_all", 8, 8)}  # type: ignore[index]
    rate = server.graph.exchange_Bps(server.gpus(8))
    assert rate != near(server.graph.ring_Bps(server.gpus(8)))
    share = 0.5 if server.search(8).fallback else 1.0
    for name, p in table(server, "all_to_all", 8).items():
        assert p.busbw_Bps == near(share * min(7 * own[name].busbw_Bps, float(pcie.peers) * rate))
    b200 = linked("8x-b200-sxm", own=False)
    assert table(b200, "all_reduce", 8)["NVLS"].ramp_bytes == 8 * b200.search(8).channels * 8 * 65536
