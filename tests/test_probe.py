"""Reading what others print, and the probe around measuring processes that are made up: no GPU is needed here."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.errors import BadInput
from perfmodel.probe import files, nccl_tests_to_csv, node_from_topology, parse_nccl_tests, parse_topo
from perfmodel.probe.plan import MIB
from perfmodel.probe.topology import groups

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


# ---------------------------------------------------------------- topology


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "first", "last", "numa"),
    [
        ("topo-2x-h200.txt", 2, 0, "NV18", "NV18", ("0", "0")),
        ("topo-8x-nvswitch.txt", 8, 2, "NV18", "NV18", ("0", "1")),
        ("topo-8x-two-sockets.txt", 8, 0, "NODE", "SYS", ("0", "1")),
        ("topo-8x-switches.txt", 8, 0, "PIX", "PHB", ("0", "0")),
        ("topo-4x-nvlink-bridges.txt", 4, 0, "NV4", "SYS", ("0", "1")),
        ("topo-old-driver.txt", 2, 0, "SYS", "SYS", ("", "")),
    ],
)
def test_topology_is_read(name: str, gpus: int, nics: int, first: str, last: str, numa: tuple[str, str]) -> None:
    topo = parse_topo(sample(name))
    assert (len(topo.gpus), len(topo.nics)) == (gpus, nics)
    assert topo.links["GPU0", "GPU1"] == first
    assert topo.links["GPU0", f"GPU{gpus - 1}"] == last
    assert (topo.numa["GPU0"], topo.numa[f"GPU{gpus - 1}"]) == numa
    spaces = parse_topo(sample(name).replace("\t", "    "))     # pasted into an issue
    assert (spaces.links, spaces.cpus) == (topo.links, topo.cpus)


def test_topology_names_nics_and_groups_gpus() -> None:
    topo = parse_topo(sample("topo-8x-nvswitch.txt"))
    assert topo.nic_names == {"NIC0": "mlx5_0", "NIC1": "mlx5_1"}
    assert topo.links["GPU4", "NIC1"] == "PIX"
    switches = parse_topo(sample("topo-8x-switches.txt"))
    assert [len(group) for group in groups(switches, "PIX")] == [2, 2, 2, 2]
    assert [len(group) for group in groups(switches, "PXB")] == [4, 4]


@pytest.mark.parametrize(
    ("name", "kind", "counts", "links"),
    [
        ("topo-2x-h200.txt", "nvlink", {"gpu": 2}, 1),
        ("topo-8x-nvswitch.txt", "nvlink", {"gpu": 8, "nvswitch": 1}, 8),
        ("topo-8x-two-sockets.txt", "pcie", {"gpu": 8, "socket": 2}, 9),
        ("topo-8x-switches.txt", "pcie", {"gpu": 8, "socket": 1, "switch": 6}, 14),
        ("topo-4x-nvlink-bridges.txt", "nvlink", {"gpu": 4, "socket": 2}, 7),
    ],
)
def test_topology_becomes_a_connected_node(
    tmp_path: Path, name: str, kind: str, counts: dict[str, int], links: int
) -> None:
    raw = node_from_topology(parse_topo(sample(name)), "h200-sxm")
    path = files.write_whole(tmp_path / f"{raw['name']}.yaml", files.to_yaml(raw))
    node = catalog.load_node(str(path))
    assert node.topology.kind == kind
    vertices = list(node.topology.vertices.values())
    assert {what: vertices.count(what) for what in set(vertices)} == counts
    assert len(node.topology.links) == links
    reached, edges = {"gpu0"}, [(link.a, link.b) for link in node.topology.links]
    for _ in edges:
        reached |= {end for edge in edges if reached & set(edge) for end in edge}
    assert reached == set(node.topology.vertices)


HEAD = "GPU0 GPU1 CPU Affinity NUMA Affinity\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no topology matrix"),
        (HEAD + "GPU0 X PHB 0-3 0\n", "no row for GPU1"),
        (HEAD + "GPU0 X PHB 0-3 0\nGPU1 PHB X 0-3 0\nGPU1 PHB X 0-3 0\n", "appears twice"),
        (HEAD + "GPU0 X PHB 0-3 0\nGPU1 SYS X 0-3 0\n", "GPU0 to GPU1 is PHB, but GPU1 to GPU0 is SYS"),
        (HEAD + "GPU0 X NV99 0-3 0\nGPU1 NV99 X 0-3 0\n", "NV99; a pair has 1 to 72"),
        (HEAD + "GPU0 X NV0 0-3 0\nGPU1 NV0 X 0-3 0\n", "NV0"),
        (HEAD + "GPU0 X WAT 0-3 0\nGPU1 WAT X 0-3 0\n", "'WAT', not a link"),
        (HEAD + "GPU0 PHB X 0-3 0\nGPU1 X PHB 0-3 0\n", "not a link"),
        (HEAD + "GPU0 X\nGPU1 PHB X\n", "1 cells where 2 are needed"),
        ("GPU0 GPU2\nGPU0 X PHB\nGPU2 PHB X\n", "not numbered"),
        ("GPU0 GPU0\nGPU0 X X\n", "appears twice"),
        (" ".join(f"GPU{i}" for i in range(300)), "at most 256"),
        ("x" * (2**20 + 1), "longer than"),
    ],
)
def test_topology_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_topo(text)


def test_node_refuses_what_contradicts_itself() -> None:
    three = "GPU0 GPU1 GPU2\nGPU0 X NV12 NV8\nGPU1 NV12 X NV4\nGPU2 NV8 NV4 X"
    with pytest.raises(BadInput, match="GPU0 has 20 NVLinks"):
        node_from_topology(parse_topo(three), "h200-sxm")
    with pytest.raises(BadInput, match="NUMA nodes 0, 1"):
        node_from_topology(parse_topo(HEAD + "GPU0 X PHB 0-3 0\nGPU1 PHB X 4-7 1\n"), "h200-sxm")
    with pytest.raises(BadInput, match="no bandwidth is known"):
        node_from_topology(parse_topo(sample("topo-2x-h200.txt")), "some unknown gpu")


@given(st.text(alphabet="GPU012 \tXNV18SYS\n-,", max_size=200))
def test_any_text_is_a_topology_or_bad_input(text: str) -> None:
    try:
        topo = parse_topo(HEAD + text)
    except BadInput:
        return
    assert all(topo.links[a, b] == topo.links[b, a] for a, b in topo.links)


# ---------------------------------------------------------------- nccl-tests


def test_nccl_tests_as_printed_today() -> None:
    table = parse_nccl_tests(sample("nccl-tests-new.txt"))
    assert (table.op, table.ranks, table.nccl, table.in_graph) == ("all_reduce", 2, "2.30.7", False)
    assert table.gpus == ("NVIDIA H100 80GB HBM3",) * 2
    assert [row.message_bytes for row in table.rows] == [1024, MIB, 256 * MIB]
    assert table.rows[0].out_of_place_s == pytest.approx(12.03e-6, rel=1e-9, abs=0)
    assert table.rows[0].wrong == 0
    assert table.rows[2].in_place_s == pytest.approx(1.2e-3, rel=1e-9, abs=0)
    assert table.rows[2].out_of_place_busbw_Bps == pytest.approx(358.01e9, rel=1e-9, abs=0)


def test_nccl_tests_of_old_versions() -> None:
    table = parse_nccl_tests(sample("nccl-tests-old.txt"))
    assert (table.op, table.ranks, table.nccl, table.in_graph) == ("", 4, "", None)
    assert table.rows[1].redop == "sum"
    assert table.rows[1].in_place_s == pytest.approx(46.1e-6, rel=1e-9, abs=0)
    assert table.rows[1].wrong == 0         # an error of 4e-07 is rounding


def test_nccl_tests_with_statistics_timestamps_and_mpi_tags() -> None:
    table = parse_nccl_tests(sample("nccl-tests-alltoall.txt"))
    assert (table.op, table.in_graph, table.nccl) == ("all_to_all", True, "2.28.7")
    assert [row.out_of_place_s for row in table.rows] == pytest.approx([15.2e-6, 16.4e-6], rel=1e-9, abs=0)
    assert [row.in_place_s for row in table.rows] == pytest.approx([15.1e-6, 16.3e-6], rel=1e-9, abs=0)
    assert [row.wrong for row in table.rows] == [0, 3]


def test_nccl_tests_json() -> None:
    group = {"time": 12.0, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": None}
    document: dict[str, Any] = {
        "version": "2.18.3", "args": ["./all_reduce_perf"], "env": ["PATH=/opt/alltoall_perf", "TOKEN=secret"],
        "nccl_version": 23007, "config": {"graph": 1, "devices": [{"rank": 0, "device_info": "A"}] * 4},
        "results": [{"size": 1024, "count": 512, "type": "half", "redop": "sum", "root": "-1", "out_of_place": None,
                     "in_place": group}],
    }  # fmt: skip
    table = parse_nccl_tests(json.dumps(document))
    assert (table.op, table.ranks, table.nccl, table.in_graph) == ("all_reduce", 4, "2.30.7", True)
    assert table.rows[0].out_of_place_s is None
    assert table.rows[0].in_place_s == pytest.approx(12e-6, rel=1e-9, abs=0)
    assert "secret" not in repr(table)
    for broken in ({**document, "results": 3}, {**document, "results": [1]}, {"results": []}, {}):
        with pytest.raises(BadInput):
            parse_nccl_tests(json.dumps(broken))
    with pytest.raises(BadInput, match="CPU time"):
        parse_nccl_tests(json.dumps(document).replace('"time"', '"cpu_time"'))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", "no row"),
        (sample("nccl-tests-new.txt") + sample("nccl-tests-alltoall.txt"), "several tests"),
        (sample("nccl-tests-new.txt").replace("    time", " cputime"), "CPU time"),
        ("1024 256 float sum -1 1 2 3 4 5", "two groups"),
        ("1024 256 float sum -1 0 1 1 0 1 1 1 0", "no measurement"),
        ("1024 256 float sum -1 nan 1 1 0 1 1 1 0", "'nan' is not a number"),
        ("1024 9999 float sum -1 1 1 1 0 1 1 1 0", "9999 elements"),
        ("1024 256 float sum -1 1 1 1 0 1 1 1 0\n" * 10_001, "at most 10000"),
        ("{" * 100_000, "not the JSON"),
    ],
)
def test_nccl_tests_that_cannot_be_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_nccl_tests(text)


def test_nccl_tests_become_observations(tmp_path: Path) -> None:
    path = files.write_whole(tmp_path / "a.csv", nccl_tests_to_csv(parse_nccl_tests(sample("nccl-tests-alltoall.txt"))))
    rows = catalog.load_kernels(str(path))
    assert [(row["table"], row["mode"], row["gpus"], row["latency_us"]) for row in rows] == [
        ("all_to_all", "graph", "2", "15.2"), ("all_to_all", "graph", "2", "16.4")]  # fmt: skip
    assert rows[1]["notes"] == "3 wrong elements"
    with pytest.raises(BadInput, match="which collective"):
        nccl_tests_to_csv(parse_nccl_tests(sample("nccl-tests-old.txt")))
