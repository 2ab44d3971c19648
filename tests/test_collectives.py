"""Collectives by every algorithm, what links carry when all talk, P2P pair by pair, and what an engine's rule runs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import catalog
from perfmodel.catalog.load import validate
from perfmodel.catalog.schema import Node
from perfmodel.cli import main
from perfmodel.costs.network import expert_exchange_s, nvls_all_reduce_s, staged_send_s
from perfmodel.errors import BadInput, DescriptorError, UnknownName
from perfmodel.insight.crossovers import crossovers, kinks, meet
from perfmodel.insight.validate import score
from perfmodel.insight.validate import validate as compare
from perfmodel.placement.links import Links, links_for
from perfmodel.placement.topology import Graph
from perfmodel.probe.descriptors import node_from_topology
from perfmodel.probe.topology import parse_topo
from perfmodel.step.algorithms import DEEPEP_NIC, DEEPEP_NVLINK, DEEPEP_START_S, WORDS
from perfmodel.step.communication import STAGED_CHUNK_BYTES, nccl_choice

PLAIN = {"collective_latency_factor": 1.0, "collective_bandwidth_factor": 1.0}
SIZES = list(2.0 ** np.arange(10, 29))
KIB, MIB = 1024, 2**20


def raw(name: str) -> dict[str, object]:
    import yaml

    return dict(yaml.safe_load(catalog.lookup.files("node")[catalog.lookup.fold(name)].read_text()))


def node_with(name: str, **changes: object) -> Node:
    return validate(Node, "node", raw(name) | changes, "node.yaml")


def links(node: Node | str, nccl: str | None = None) -> Links:
    machine = catalog.load_node(node) if isinstance(node, str) else node
    return links_for(machine, catalog.load_accelerator(machine.accelerator), nccl, own=False)


# ---------------------------------------------------------------- contention, by hand

def test_a_pcie_link_carries_both_directions_at_once() -> None:
    # WRX90, two switches, measured: 2 or 4 flows one way 56.4 GB/s in all, one flow each way 109.3 GB/s in all
    graph = Graph(catalog.load_node("8x-rtx-pro-6000-server-2switch"))
    one_way = [("gpu0", "gpu4"), ("gpu1", "gpu5")]
    both = [("gpu0", "gpu4"), ("gpu5", "gpu1")]
    assert 2 * graph.shared_Bps(one_way) == pytest.approx(56.4e9, rel=0.01, abs=0)
    assert 2 * graph.shared_Bps(both) == pytest.approx(109.3e9, rel=0.04, abs=0)
    assert graph.load(both).most_common(1)[0][1] == 1


def test_all_to_all_loads_an_uplink_with_sixteen_flows_each_way() -> None:
    # 4 GPUs x 4 peers on the other switch; measured 179 GB/s over all 56 flows, 3.2 GB/s a flow
    graph = Graph(catalog.load_node("8x-rtx-pro-6000-server-2switch"))
    flows = [(a, b) for a in graph.gpus for b in graph.gpus if a != b]
    assert max(graph.load(flows).values()) == 16
    assert graph.shared_Bps(flows) == pytest.approx(56.4e9 / 16, rel=1e-9, abs=0)
    assert 56 * graph.shared_Bps(flows) == pytest.approx(179e9, rel=0.11, abs=0)


def test_the_socket_link_carries_a_ring_once_each_way_and_an_exchange_sixteen_times() -> None:
    # dual Turin: 51 GB/s one flow, 99 GB/s both ways; all to all 173 to 190 GB/s in all
    graph = Graph(catalog.load_node("8x-rtx-pro-6000-server"))
    ring = list(zip(graph.gpus, [*graph.gpus[1:], graph.gpus[0]], strict=True))
    over = {hop: n for hop, n in graph.load(ring).items() if {graph.kinds[hop.a], graph.kinds[hop.b]} == {"socket"}}
    assert sorted((hop.a, hop.b, n) for hop, n in over.items()) == [("cpu0", "cpu1", 1), ("cpu1", "cpu0", 1)]
    assert graph.ring_Bps(graph.gpus) == pytest.approx(51e9, rel=1e-9, abs=0)
    assert graph.exchange_Bps(graph.gpus) == pytest.approx(7 * 51e9 / 16, rel=1e-9, abs=0)
    assert 2 * graph.shared_Bps([("gpu0", "gpu4"), ("gpu4", "gpu0")]) == pytest.approx(99e9, rel=0.04, abs=0)


@given(st.permutations(range(8)))
def test_a_ring_is_no_faster_than_its_slowest_link_in_any_order(order: list[int]) -> None:
    graph = Graph(catalog.load_node("8x-rtx-pro-6000-server-2switch"))
    gpus = [f"gpu{i}" for i in order]
    assert graph.ring_Bps(gpus) <= min(hop.bandwidth_Bps for a, b in zip(gpus, [*gpus[1:], gpus[0]], strict=True)
                                       for hop in graph.path(a, b).hops) * (1 + 1e-12)


# ---------------------------------------------------------------- P2P, pair by pair

def test_a_pair_without_p2p_is_staged_and_slows_the_ring() -> None:
    pair = [{"a": "gpu1", "b": "gpu2", "p2p": False}]
    closed = links(node_with("4x-rtx-pro-6000-server-1switch", p2p_pairs=pair))
    open_ = links("4x-rtx-pro-6000-server-1switch")
    assert (open_.transport(4), closed.transport(4)) == ("pcie", "host")
    assert (closed.transport(2), closed.graph.peer_access("gpu2", "gpu1")) == ("pcie", False)
    size = np.array([16384.0, 2.0**26])
    slow, fast = (nccl_choice("all_reduce", size, 4, found, PLAIN)[2] for found in (closed, open_))
    assert np.all(slow > fast)


def test_a_pair_with_p2p_on_a_box_without_keeps_the_rest_staged() -> None:
    pair = [{"a": "gpu0", "b": "gpu1", "p2p": True}]
    found = links(node_with("4x-rtx-5090", p2p_pairs=pair), "NCCL_P2P_LEVEL=SYS")
    assert (found.transport(2), found.transport(4)) == ("pcie", "host")
    whole = links("4x-rtx-5090", "NCCL_P2P_LEVEL=SYS")
    times = [nccl_choice("all_reduce", np.array([4096.0]), 4, one, PLAIN)[2][0] for one in (found, whole)]
    assert times[0] < times[1]          # one step of four is quicker


@pytest.mark.parametrize(("pairs", "said"), [
    ([{"a": "gpu0", "b": "cpu0", "p2p": False}], "'cpu0' is not a GPU"),
    ([{"a": "gpu0", "b": "gpu9", "p2p": False}], "'gpu9' is not a GPU"),
    ([{"a": "gpu0", "b": "gpu0", "p2p": False}], "must be two GPUs, named once"),
    ([{"a": "gpu0", "b": "gpu1", "p2p": False}, {"a": "gpu1", "b": "gpu0", "p2p": True}], "named once")])
def test_pairs_that_cannot_be_are_refused(pairs: list[dict[str, object]], said: str) -> None:
    with pytest.raises(DescriptorError, match=said):
        node_with("4x-rtx-5090", p2p_pairs=pairs)


def test_nccl_stages_what_crosses_root_ports_unless_told_otherwise() -> None:
    # the ASUS box: SHM between its two logical switches by default, 30.3 GB/s; 39.3 GB/s with NCCL_P2P_LEVEL=SYS
    default, told = (links("4x-rtx-pro-6000-server-2switch", text) for text in (None, "NCCL_P2P_LEVEL=SYS"))
    assert (default.transport(2), default.transport(4), told.transport(4)) == ("pcie", "host", "pcie")
    bus = [1.5 * 2**25 / nccl_choice("all_reduce", np.array([2.0**25]), 4, one, PLAIN)[2][0] for one in (default, told)]
    assert bus == pytest.approx([30.3e9, 39.3e9], rel=0.2, abs=0)


ASUS = """
        GPU0  GPU1  GPU2  GPU3  NIC0  CPU Affinity  NUMA Affinity
GPU0     X    PIX   NODE  NODE  PIX   0-63          0
GPU1    PIX    X    NODE  NODE  PIX   0-63          0
GPU2    NODE  NODE   X    PIX   NODE  0-63          0
GPU3    NODE  NODE  PIX    X    NODE  0-63          0
NIC0    PIX   PIX   NODE  NODE   X
"""


def test_the_matrix_of_nvidia_smi_becomes_that_box() -> None:
    made = node_from_topology(parse_topo(ASUS), "rtx-pro-6000-server", name="asus")
    assert {(pair["a"], pair["b"]) for pair in made["p2p_pairs"]} == {("gpu0", "gpu1"), ("gpu2", "gpu3")}
    found = links(validate(Node, "node", made, "asus.yaml"))
    assert [found.transport(n) for n in (2, 4)] == ["pcie", "host"]
    ours, file = (nccl_choice("all_reduce", np.array([2.0**20]), 4, one, PLAIN)[2][0]
                  for one in (found, links("4x-rtx-pro-6000-server-2switch")))
    assert ours == pytest.approx(file, rel=0.1, abs=0)


# ---------------------------------------------------------------- every algorithm

WHERE = {
    "nccl": "8x-h100-sxm", "ring": "8x-h100-sxm", "ring-ll": "8x-h100-sxm", "ring-ll128": "8x-h100-sxm",
    "ring-simple": "8x-h100-sxm", "nvls": "8x-h100-sxm", "custom": "8x-h100-sxm", "one-shot": "8x-h100-sxm",
    "two-shot": "8x-h100-sxm", "symm-mem": "8x-h100-sxm", "multimem": "8x-h100-sxm", "host-staged": "8x-h100-sxm",
    "pcie-ipc": "8x-rtx-pro-6000-server", "tree": "2x-dgx-h100", "tree-ll": "2x-dgx-h100", "tree-ll128": "2x-dgx-h100",
    "tree-simple": "2x-dgx-h100", "hierarchical": "2x-dgx-h100", "deepep": "2x-dgx-h100",
}  # fmt: skip


@pytest.mark.parametrize("algorithm", WORDS)
def test_every_algorithm_can_be_asked_for(algorithm: str) -> None:
    op = "all_to_all" if algorithm == "deepep" else "all_reduce"
    cost = pm.collective(op, node=WHERE[algorithm], message_bytes=SIZES, algorithm=algorithm)
    times = np.asarray(cost.seconds, float)
    assert np.all(np.isfinite(times)) and np.all(np.diff(times) >= -1e-9 * times[1:]) and times[-1] > 2 * times[0]
    if algorithm != "nccl":
        known = {row["algorithm"]: row for row in cost.all_algorithms()}
        if algorithm in known:
            assert all(known[algorithm]["runs"])
            assert times == pytest.approx(np.asarray(known[algorithm]["seconds"], float), rel=0.02, abs=0)


def test_what_a_node_cannot_run_is_refused_with_what_it_can() -> None:
    with pytest.raises(BadInput, match="multimem is not to be had.*ring-ll"):
        pm.collective("all_reduce", node="8x-rtx-pro-6000-server", message_bytes=1024, algorithm="multimem")
    with pytest.raises(BadInput, match="hierarchical is not to be had"):
        pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=1024, algorithm="hierarchical")
    with pytest.raises(UnknownName, match="one-shot"):
        pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=1024, algorithm="one-shoot")
    with pytest.raises(BadInput, match="one GPU talks to nobody"):
        pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=1024, ranks=1, algorithm="ring")


def test_exactly_one_of_all_algorithms_runs_at_every_size() -> None:
    for node, engine in (("8x-b200-sxm", "vllm"), ("8x-h200-sxm", "sglang"), ("2x-dgx-h100", None)):
        found = pm.collective("all_reduce", node=node, engine=engine, message_bytes=SIZES).all_algorithms()
        assert np.sum([row["runs"] for row in found], axis=0).tolist() == [1] * len(SIZES)


def test_the_command_prints_all_algorithms_and_marks_what_runs() -> None:
    asked = ["collective", "all_reduce", "--node", "8x-h100-sxm", "--engine", "vllm", "--all"]
    text = CliRunner().invoke(main, asked)
    assert text.exit_code == 0 and all(len(line) <= 80 for line in text.stdout.splitlines())
    rows = {line.split()[0]: line for line in text.stdout.splitlines() if " us" in line}
    assert {"one-shot", "two-shot", "multimem", "ring-ll", "nvls", "host-staged"} <= set(rows)
    assert [name for name, line in rows.items() if "*" in line.split("us")[1]] == ["one-shot"]
    found = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    assert {row["algorithm"] for row in found["algorithms"]} == set(rows)


def test_the_command_draws_all_sizes(tmp_path: Path) -> None:
    asked = ["collective", "all_reduce", "--node", "8x-h100-sxm", "--message-bytes", "1024", "--plot"]
    assert CliRunner().invoke(main, [*asked, str(tmp_path / "a.png")]).exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert CliRunner().invoke(main, [*asked, str(tmp_path / "a.txt")]).exit_code == 2


def test_one_rank_takes_no_time_on_any_node() -> None:
    for node in ("8x-h200-sxm", "72x-gb200", "8x-mi300x", "8x-rtx-4090"):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
            assert pm.collective(op, node=node, ranks=1, message_bytes=[1024, MIB]).seconds == pytest.approx([0, 0])
    with pytest.raises(BadInput, match="ranks must lie between 1 and 8, not 9"):
        pm.collective("all_reduce", node="8x-h200-sxm", ranks=9, message_bytes=1024)


def test_nccl_algo_leaves_its_own() -> None:
    names = {p.name for p in links("2x-dgx-h100", "NCCL_ALGO=Tree").protocols("all_reduce", 16)}
    assert names and all(name.startswith("Tree") for name in names)
    with pytest.raises(BadInput, match="NCCL_ALGO must be Ring, Tree or NVLS"):
        links("2x-dgx-h100", "NCCL_ALGO=Star")


# ---------------------------------------------------------------- the engine's rule

RULES = [   # engine, node, ranks, size -> kernel. vLLM 0.33.0, SGLang 0.5.14 and 0.5.20, from their sources
    ("vllm==0.33.0", "8x-h100-sxm", 8, 128 * KIB, "custom_one_shot"),
    ("vllm==0.33.0", "8x-h100-sxm", 8, 256 * KIB, "multimem"),
    ("vllm==0.33.0", "8x-h100-sxm", 8, 128 * MIB, "nccl"),
    ("vllm==0.33.0", "8x-h100-sxm", 4, 256 * KIB, "custom_one_shot"),
    ("vllm==0.33.0", "8x-h100-sxm", 4, MIB, "custom_two_shot"),
    ("vllm==0.33.0", "8x-h100-sxm", 2, 4 * MIB, "custom_one_shot"),
    ("vllm==0.33.0", "8x-b200-sxm", 8, 512 * KIB, "custom_two_shot"),
    ("vllm==0.33.0", "8x-b200-sxm", 8, 2 * MIB, "multimem"),
    ("vllm==0.33.0", "8x-b200-sxm", 2, 4 * MIB, "symm_mem"),
    ("vllm==0.10.0", "8x-h100-sxm", 8, MIB, "custom_two_shot"),         # before torch symmetric memory
    ("vllm==0.10.0", "8x-h100-sxm", 8, 16 * MIB, "nccl"),
    ("vllm==0.33.0", "8x-a100-sxm-80gb", 8, MIB, "custom_two_shot"),
    ("vllm==0.33.0", "8x-rtx-pro-6000-server", 8, 14336, "nccl"),       # PCIe, more than two GPUs
    ("vllm==0.33.0", "8x-rtx-pro-6000-server", 2, 14336, "custom_one_shot"),
    ("vllm==0.33.0", "8x-rtx-4090", 2, 14336, "nccl"),                  # no P2P
    ("sglang==0.5.14", "8x-h200-sxm", 8, 512 * KIB, "custom_two_shot"),
    ("sglang==0.5.20", "8x-h200-sxm", 8, 128 * KIB, "custom_one_shot"),
    ("sglang==0.5.20", "8x-h200-sxm", 8, 32 * MIB, "nccl"),
    ("sglang==0.5.20", "8x-rtx-pro-6000-server", 4, 14336, "nccl"),
]


@pytest.mark.parametrize(("engine", "node", "ranks", "size", "kernel"), RULES)
def test_the_engine_runs_what_its_source_says(engine: str, node: str, ranks: int, size: int, kernel: str) -> None:
    cost = pm.collective("all_reduce", node=node, ranks=ranks, message_bytes=size, engine=engine)
    assert cost.algorithm == kernel
    assert (cost.protocol != "") == (kernel == "nccl")


# ---------------------------------------------------------------- against tables of others

DEEPEP = [  # EP, dispatch us, combine us: DeepEP docs/legacy.md, low latency, 128 tokens of 7168, top 8, H800
    (8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)]  # fmt: skip


@pytest.mark.parametrize(("ep", "dispatch", "combine"), DEEPEP)
def test_expert_exchange_against_the_table_of_deepep(ep: int, dispatch: float, combine: float) -> None:
    """The constants come from the dispatch column; FP8 with scales of 128 one way, BF16 the other."""
    ours = [float(expert_exchange_s(128, 8, size, 1 - 8 / ep, DEEPEP_START_S, DEEPEP_NVLINK * 200e9, DEEPEP_NIC * 50e9))
            for size in (7168 + 7168 / 128 * 4, 2 * 7168)]
    assert ours == pytest.approx([1e-6 * dispatch, 1e-6 * combine], rel=0.1, abs=0)


def probed(table: str, transport: str) -> tuple[np.ndarray, np.ndarray]:
    path = catalog.lookup.files("observations")[catalog.lookup.fold("h200-probe-2026-11")]
    wanted = {"table": table, "transport": transport, "mode": "graph_unmixed"}
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if wanted.items() <= row.items()]
    return (np.array([float(row["message_bytes"]) for row in rows]),
            np.array([1e-6 * float(row["latency_us"]) for row in rows]))


def test_two_h200_as_probed() -> None:
    """16 MiB take 75 us; vLLM's own kernel, which runs there by default, takes less: the two must not be compared."""
    sizes, times = probed("all_reduce", "default")
    ours = np.asarray(pm.collective("all_reduce", node="8x-h200-sxm", ranks=2, message_bytes=list(sizes)).seconds)
    large = sizes >= 256 * KIB
    assert np.median(np.abs(ours[large] / times[large] - 1)) < 0.05
    assert ours[sizes == 16 * MIB][0] == pytest.approx(times[sizes == 16 * MIB][0], rel=0.03, abs=0)


def test_a_staged_message_as_probed() -> None:
    """A message through the host's memory over 2 H200: link 55.5 GB/s, of which 0.66."""
    sizes, times = probed("send", "host_staged")
    kept = (sizes >= 16 * KIB) & (sizes <= 2.0**28)
    ours = staged_send_s(sizes, 5.4e-6, 0.66 * 55.5e9, 0.66 * 55.5e9, np.minimum(sizes, STAGED_CHUNK_BYTES))
    assert np.max(np.abs(ours / times - 1)[kept]) < 0.25 and np.median(np.abs(ours / times - 1)[kept]) < 0.08


@given(st.floats(1e3, 1e9), st.floats(1.0, 4.0))
def test_nvls_never_takes_less_for_more(size: float, factor: float) -> None:
    time = [float(nvls_all_reduce_s(n, 8, 34e-6, 750e9, 431e9, 2.0**26)) for n in (size, size * factor)]
    assert time[1] >= time[0]


def test_nvls_on_nvlink_5_is_as_fast_as_on_4_until_its_chunks_grow() -> None:
    b200, h100 = (links(name) for name in ("8x-b200-sxm", "8x-h100-sxm"))
    new, old = ({p.name: p for p in found.everything("all_reduce", 8)}["NVLS"] for found in (b200, h100))
    assert new.ramp_bytes == 8 * 16 * 8 * 64 * KIB and new.ramp_Bps == pytest.approx(old.busbw_Bps, rel=1e-9, abs=0)
    assert new.busbw_Bps == pytest.approx(2 * 0.74 / 0.85 * old.busbw_Bps, rel=1e-9, abs=0)


def test_blackwell_and_clusters_that_no_fit_has_seen() -> None:
    rows = [row for row in compare("interconnect").rows if row.use == "check"]
    for part, most in (("b200", 0.15), ("h100-2x4", 0.25), ("mi350x", 0.35), ("vllm-42324/", 0.2)):
        found = score(part, "check", [row for row in rows if part in row.sweep])
        assert found.rows >= 3 and found.error_p90 <= most, part


def test_crossovers_lie_where_measured_curves_meet() -> None:
    found = [one for one in crossovers() if one.use == "check"]
    near = {one.name for one in found if one.factor <= 1.5}
    assert len(found) >= 10 and len(near) >= 0.6 * len(found)
    assert {"asus/x4-one-shot to NCCL", "luke/one-shot to NCCL", "vllm-42324/multimem to NCCL",
            "aic/h100_sxm/all_reduce/2 to a wider protocol"} <= near


def test_meet_and_kinks_find_nothing_where_nothing_is() -> None:
    sizes = np.array(SIZES)
    assert meet(sizes, 1 + sizes, 2 + 2 * sizes) is None and kinks(sizes, 5 + sizes / 1e5) == []
    with_jump = np.where(sizes <= 2**20, 5 + sizes / 1e4, 60 + sizes / 1e6)
    assert kinks(sizes, with_jump) == [pytest.approx(2**20, rel=0.5, abs=0)]


@pytest.mark.parametrize(("node", "link"), [("8x-mi300x", 64e9), ("2x-dgx-h100", 50e9), ("4x-dgx-h100", 50e9)])
def test_a_message_between_neighbours_takes_one_link_of_a_mesh_and_one_nic(node: str, link: float) -> None:
    """xGMI carries 64 GB/s between two MI300X; a 400 Gbit/s NIC 50 GB/s. A ring of all-reduce uses all of them."""
    size = 2.0**30
    assert 0.5 * link < size / float(pm.collective("send_recv", node=node, message_bytes=size).seconds) < link
    assert 2 * size / float(pm.collective("all_reduce", node=node, message_bytes=size).seconds) > 2 * link
