"""Topology, contention, NCCL's choice, fits of nccl-tests tables, and how right tables are that no fit has seen."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import catalog
from perfmodel.calibration.interconnect import Table, fit_node
from perfmodel.catalog.load import validate
from perfmodel.catalog.schema import Node
from perfmodel.catalog.yaml import read_yaml
from perfmodel.errors import BadInput, DescriptorError, UnknownName
from perfmodel.insight import interconnect as tables
from perfmodel.insight.validate import score
from perfmodel.insight.validate import validate as compare
from perfmodel.placement.links import Links, links_for
from perfmodel.placement.topology import Graph
from perfmodel.placement.tuning import channel_Bps
from perfmodel.step.communication import nccl_choice

PLAIN = {"collective_latency_factor": 1.0, "collective_bandwidth_factor": 1.0}
SIZES = 2.0 ** np.arange(8, 31, 0.25)
NODES = catalog.names("node")


def links(node: str, nccl: str | None = None, own: bool = True) -> Links:
    machine = catalog.load_node(node)
    return links_for(machine, catalog.load_accelerator(machine.accelerator), nccl, own=own)


def seconds(found: Links, op: str, ranks: int, sizes: np.ndarray = SIZES) -> np.ndarray:
    return np.asarray(nccl_choice(op, sizes, ranks, found, PLAIN)[2])


# ---------------------------------------------------------------- topology

@pytest.mark.parametrize("name", NODES)
def test_every_pair_of_every_node_has_a_path(name: str) -> None:
    graph = Graph(catalog.load_node(name))
    a, *others = graph.gpus
    for b in others:
        path = graph.path(a, b)
        assert path.hops[0].a == a and path.hops[-1].b == b
        assert [hop.b for hop in path.hops[:-1]] == [hop.a for hop in path.hops[1:]]
        assert graph.path(b, a).level == path.level


@pytest.mark.parametrize(("node", "a", "b", "level"), [
    ("8x-h200-sxm", "gpu0", "gpu7", "NVL"), ("8x-rtx-pro-6000-server", "gpu0", "gpu3", "PHB"),
    ("8x-rtx-pro-6000-server", "gpu0", "gpu4", "SYS"), ("8x-rtx-pro-6000-server-2switch", "gpu0", "gpu3", "PIX"),
    ("8x-rtx-pro-6000-server-3switch", "gpu0", "gpu7", "PXB"), ("2x-dgx-h100", "gpu0", "gpu8", "NET")])  # fmt: skip
def test_levels_are_those_of_nvidia_smi(node: str, a: str, b: str, level: str) -> None:
    assert Graph(catalog.load_node(node)).path(a, b).level == level


def test_one_uplink_is_shared_by_all_that_cross_it() -> None:
    # sjug/rtx6kpro: all flows from one switch to another share 56 GB/s
    graph = Graph(catalog.load_node("8x-rtx-pro-6000-server-2switch"))
    assert graph.shared_Bps([("gpu0", "gpu4")]) == pytest.approx(56.3e9, rel=1e-9)
    for flows in (2, 4):
        crossing = [(f"gpu{i}", f"gpu{i + 4}") for i in range(flows)]
        assert graph.shared_Bps(crossing) == pytest.approx(56.4e9 / flows, rel=1e-9)
    assert graph.shared_Bps([("gpu0", "gpu4"), ("gpu5", "gpu1")]) == pytest.approx(56.3e9, rel=1e-9)  # other direction


@pytest.mark.parametrize(("node", "low", "high"), [
    ("8x-rtx-pro-6000-server", 173e9, 190e9), ("8x-rtx-pro-6000-server-2switch", 162e9, 190e9)])
def test_all_to_all_is_bound_by_the_socket_link_or_the_uplink(node: str, low: float, high: float) -> None:
    # sjug/rtx6kpro, p2pmark: what 8 GPUs send in all; the graph says an upper bound
    graph = Graph(catalog.load_node(node))
    assert low * 0.95 <= 8 * graph.exchange_Bps(graph.gpus) <= high * 1.1


def test_machines_are_what_stays_joined_without_the_network() -> None:
    graph = Graph(catalog.load_node("2x-dgx-h100"))
    assert graph.machines(graph.gpus) == 2 and graph.machines(graph.gpus[:8]) == 1
    assert graph.ring_Bps(graph.gpus) == pytest.approx(8 * 50e9) and graph.ring_Bps(graph.gpus[:8]) == pytest.approx(
        450e9
    )


def altered(change: str, into: str) -> dict[str, object]:
    """The raw node of 8 RTX PRO 6000 with one piece of its text replaced."""
    import yaml

    folder = catalog.lookup.files("node")
    text = folder["8xrtxpro6000server"].read_text()
    assert change in text
    return dict(yaml.safe_load(text.replace(change, into, 1)))


@pytest.mark.parametrize(("change", "into", "said"), [
    ("    - {a: cpu0, b: cpu1, kind: xgmi}\n", "", "no path of links between gpu0 and gpu4"),
    ("{a: cpu0, b: cpu1, kind: xgmi}", "{a: cpu0, b: cpu9, kind: xgmi}", "'cpu9' is not a vertex"),
    ("{a: cpu0, b: cpu1, kind: xgmi}", "{a: gpu0, b: cpu1, kind: xgmi}", "gpu0 has 2 PCIe links; a GPU has one"),
    ("{a: gpu1, b: cpu0, kind: pcie5-x16}", "{a: gpu0, b: cpu0, kind: pcie5-x16}", "appears twice"),
    ("count: 8", "count: 9", "the topology has 8 GPUs"),
    ("{a: gpu1, b: cpu0, kind: pcie5-x16}", "{a: gpu1, b: cpu0, kind: pcie5-x16, count: 2}", "gpu1 has 2 PCIe links")])
def test_a_topology_that_cannot_be_is_refused(change: str, into: str, said: str) -> None:
    with pytest.raises(DescriptorError, match=re.escape(said)):
        validate(Node, "node", altered(change, into), "node.yaml")


def test_links_beyond_what_the_accelerator_has_are_refused() -> None:
    node = validate(Node, "node", altered("value: 55.5 GB/s", "value: 155.5 GB/s"), "node.yaml")
    with pytest.raises(DescriptorError, match="155.5 GB/s of host links, rtx-pro-6000-server has 56.3 GB/s"):
        links_for(node, catalog.load_accelerator(node.accelerator))


# ---------------------------------------------------------------- NCCL's choice

@pytest.mark.parametrize(("node", "channels", "GBps"), [
    ("8x-a100-sxm-80gb", 12, 240), ("8x-h100-sxm", 12, 360), ("8x-h200-sxm", 12, 360), ("8x-b200-sxm", 16, 720)])
def test_search_finds_what_nccl_finds_on_nvswitch(node: str, channels: int, GBps: float) -> None:
    found = links(node).search(8)
    assert (found.channels, round(found.graph_Bps / 1e9)) == (channels, GBps)


def test_the_search_gives_up_across_amd_sockets_unless_a_graph_file_helps() -> None:
    # nccl-tests issue 287, sjug/rtx6kpro: 0.1 GB/s, so Simple from 1 KiB on; 48 us at 32 KiB, 26 us with the file
    lost = links("8x-rtx-pro-6000-server", "2.28.3 NCCL_P2P_LEVEL=SYS")
    found = links("8x-rtx-pro-6000-server", "2.28.3 NCCL_P2P_LEVEL=SYS NCCL_GRAPH_FILE=own.xml")
    assert lost.search(8).fallback and not found.search(8).fallback
    size = np.array([32768.0])
    assert lost.chosen("all_reduce", 8, size) == ["Simple"] and found.chosen("all_reduce", 8, size) == ["LL"]
    assert seconds(lost, "all_reduce", 8, size)[0] > 1.6 * seconds(found, "all_reduce", 8, size)[0]
    assert (
        not links("8x-rtx-pro-6000-server", "2.25.1 NCCL_P2P_LEVEL=SYS").search(8).fallback
    )  # older ladder ends lower


def test_versions_change_the_ladder() -> None:
    assert [channel_Bps(48e9, 12.0, minor) / 1e9 for minor in (25, 26, 28, 29)] == [40, 40, 40, 45]


def test_the_environment_moves_traffic_or_is_refused() -> None:
    assert links("8x-h100-sxm").transport(8) == "nvlink"
    assert links("8x-h100-sxm", "NCCL_P2P_DISABLE=1").transport(8) == "host"
    names = {p.name for p in links("8x-h100-sxm", "NCCL_PROTO=Simple").protocols("all_reduce", 4)}
    assert names == {"Simple"}
    with pytest.raises(UnknownName, match="NCCL_P2P_LEVEL"):
        links("8x-h100-sxm", "NCCL_P2P_LEVL=SYS")
    with pytest.raises(BadInput, match="NCCL_P2P_LEVEL must be one of"):
        links("8x-h100-sxm", "NCCL_P2P_LEVEL=FAR")


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_time_grows_with_the_message_where_no_figure_was_measured(name: str, op: str) -> None:
    found = links(name, own=False)
    for ranks in {2, min(4, len(found.graph.gpus)), len(found.graph.gpus)}:
        times = seconds(found, op, ranks)
        assert np.all(np.diff(times) >= -1e-9 * times[:-1]), ranks


def test_crossovers_lie_where_the_curves_meet() -> None:
    found = links("8x-a100-sxm-80gb")
    for op, ranks in (("all_reduce", 8), ("all_gather", 8)):
        first, second, *_ = found.protocols(op, ranks)
        (a, per_a), (b, per_b) = first.line(op, ranks), second.line(op, ranks)
        meet = (b - a) / (per_a - per_b)
        assert 1 / 1.5 <= first.until_bytes / meet <= 1.5


@pytest.mark.parametrize(("node", "measured"), [
    ("8x-rtx-pro-6000-server-3switch", 62 * 1024), ("8x-rtx-pro-6000-server", 49152)])
def test_one_shot_gives_way_to_nccl_where_it_was_measured_to(node: str, measured: float) -> None:
    """Three switches: 16.5 against 24.5 us at 32 KiB, 25.9 against 24.1 at 64 KiB, so 62 KiB on straight lines. Dual
    Turin: SGLang's own search at start-up. Both of sjug/rtx6kpro@738985bb."""
    sizes = 2.0 ** np.arange(12, 22, 1 / 16)
    cost = pm.collective("all_reduce", node=node, message_bytes=list(sizes))
    ours = sizes[np.argmax(np.asarray(cost.curves["custom one shot"]) > np.asarray(cost.seconds))]
    assert 1 / 1.5 <= ours / measured <= 1.5


@pytest.mark.parametrize("node", ["8x-rtx-pro-6000-server", "8x-h200-sxm"])
def test_a_smaller_node_borrows_the_figures_of_its_size(node: str) -> None:
    for ranks in (2, 4):
        part = pm.collective("all_reduce", node=node, ranks=ranks, message_bytes=list(SIZES))
        whole = pm.collective("all_reduce", node=node.replace("8x", f"{ranks}x"), message_bytes=list(SIZES))
        assert np.asarray(part.seconds, float) == pytest.approx(np.asarray(whole.seconds, float), rel=1e-9)


# ---------------------------------------------------------------- fits

def test_a_fit_recovers_what_made_the_tables() -> None:
    true = links("8x-h200-sxm", own=True)
    sizes = 2.0 ** np.arange(9, 30)
    made = [Table("all_reduce", n, sizes, seconds(true, "all_reduce", n, sizes), f"n{n}") for n in (2, 4, 8)]
    found = fit_node(made, catalog.load_node("8x-h200-sxm"))
    assert found.median_error < 0.005 and found.error_p90 < 0.05


@given(noise=st.integers(0, 2**31))
def test_a_fit_survives_noise_and_outliers(noise: int) -> None:
    rng = np.random.default_rng(noise)
    true, sizes = links("8x-h100-sxm"), 2.0 ** np.arange(10, 29)
    made = []
    for n in (2, 8):
        times = seconds(true, "all_gather", n, sizes) * np.exp(0.02 * rng.standard_normal(len(sizes)))
        times[rng.integers(len(sizes))] *= 2.0
        made.append(Table("all_gather", n, sizes, times, f"n{n}"))
    found = fit_node(made, catalog.load_node("8x-h100-sxm"))
    clean = np.concatenate([seconds(true, "all_gather", t.ranks, sizes) / t.seconds for t in made])
    assert found.median_error < np.median(np.abs(clean - 1)) + 0.04


def test_a_node_fitted_to_its_own_run_is_within_5_percent() -> None:
    by_node: dict[str, list[Table]] = {}
    for sweep, rows in tables.rows_by_sweep().items():
        if rows[0]["backend"] in ("nccl-tests", "torch") and len(rows) >= 9 and rows[0]["mode"] == "graph":
            by_node.setdefault(rows[0]["system"] + rows[0]["backend"], []).append(Table(
                rows[0]["table"], int(rows[0]["gpus"]), np.array([float(r["message_bytes"]) for r in rows]),
                1e-6 * np.array([float(r["latency_us"]) for r in rows]), sweep))
    assert len(by_node) >= 5
    for found in by_node.values():
        node = catalog.load_node("8x-h100-sxm")
        assert fit_node(found, node).median_error <= 0.05, found[0].name


def test_a_fit_refuses_what_it_cannot_use() -> None:
    node = catalog.load_node("8x-h200-sxm")
    with pytest.raises(BadInput, match="9 ranks does not fit"):
        fit_node([Table("all_reduce", 9, SIZES, SIZES * 1e-9)], node)
    with pytest.raises(BadInput, match="too few message sizes"):
        fit_node([Table("all_reduce", 8, SIZES[:1], SIZES[:1] * 1e-9)], node)


# ---------------------------------------------------------------- what is reached

def test_tables_that_no_fit_has_seen() -> None:
    rows = [row for row in compare("interconnect").rows if row.use == "check"]
    everything = score("all", "check", rows)
    assert len(rows) > 500
    assert everything.median_error <= 0.12 and everything.error_p90 <= 0.35
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        found = score(op, "check", [row for row in rows if row.sweep.startswith(op + " ")])
        assert found.median_error <= 0.12 and found.error_p90 <= 0.35, op


def test_h100_is_predicted_from_the_figures_of_h200() -> None:
    rows = [row for row in compare("interconnect").rows if "aic/h100_sxm" in row.sweep]
    assert {row.use for row in rows} == {"check"} and len(rows) == 12 * 19
    found = score("h100", "check", rows)
    assert found.median_error <= 0.08 and found.error_p90 <= 0.2 and found.coverage >= 0.8


def test_what_a_description_leaves_open_widens_the_band() -> None:
    known = pm.collective("all_reduce", node="8x-h200-sxm", message_bytes=65536)
    open_ = pm.collective("all_reduce", node="8x-rtx-4090", message_bytes=65536)
    assert open_.seconds_high / open_.seconds > known.seconds_high / known.seconds
    assert "was not measured there" in open_.assumptions[0]


def test_classes_of_links_are_those_that_their_recipes_make() -> None:
    from perfmodel.calibration import fabrics

    for name in fabrics.CLASSES:
        path = catalog.lookup.files("fabric")[name]
        assert path.read_text() == fabrics.text(name, fabrics.fit(name)), name
        assert read_yaml(path)["schema"] == "fabric/1"


def test_printed_output_of_nccl_tests_becomes_figures_of_a_node() -> None:
    import yaml

    from perfmodel.probe.nccl_tests import parse_nccl_tests

    node, sizes = catalog.load_node("8x-h100-sxm"), 2 ** np.arange(10, 29)
    times = 1e6 * seconds(links("8x-h100-sxm"), "all_reduce", 8, sizes.astype(float))
    text = "# Collective test starting: all_reduce_perf\n" + "\n".join(
        f"{n:12d} {n // 4:12d}     float     sum      -1  {t:8.2f}  1.00  1.75      0  {t:8.2f}  1.00  1.75      0"
        for n, t in zip(sizes, times, strict=True))
    with pytest.raises(BadInput, match="how many ranks"):
        Table.of(parse_nccl_tests(text))
    found = fit_node([Table.of(parse_nccl_tests(text), ranks=8)], node)
    assert found.median_error < 0.05
    written = yaml.safe_load(found.yaml())["collectives"]
    again = catalog.Collectives.model_validate(written)
    gpu = catalog.load_accelerator("h100-sxm")
    read, kept = (links_for(node, gpu, figures=figures) for figures in (again.variants["own"], found.figures))
    assert seconds(read, "all_reduce", 8) == pytest.approx(seconds(kept, "all_reduce", 8), rel=2e-3, abs=0)


def test_the_picture_shows_all_that_could_run() -> None:
    import matplotlib

    matplotlib.use("Agg")
    cost = pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=list(2.0 ** np.arange(10, 28)), engine="vllm")
    ax = cost.plot()
    names = {line.get_label() for line in ax.get_lines()}
    assert {"NCCL LL", "NCCL NVLS", "custom one shot", "custom two shot", "what runs"} <= names
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    with pytest.raises(BadInput, match="two message sizes"):
        pm.collective("all_reduce", node="8x-h100-sxm", message_bytes=1024).plot()
