"""Many machines: names that stand for clusters, wide expert groups, pipelines over the network, mixed fleets."""

from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.errors import BadInput, UnknownName
from perfmodel.placement.links import links_of
from perfmodel.placement.topology import Graph

SIZES = np.array([14336.0, 2**20, 2**26])


def seconds(node: str, ranks: int) -> Any:
    return np.asarray(pm.collective("all_reduce", node=node, message_bytes=SIZES, ranks=ranks).seconds)


@pytest.mark.parametrize("machine", ["8x-rtx-pro-6000-server", "8x-h200-sxm", "8x-l40s"])
def test_inside_a_machine_of_a_cluster_nothing_changes(machine: str) -> None:
    np.testing.assert_allclose(seconds(f"4x-{machine}", 8), seconds(machine, 8), rtol=1e-9)
    assert np.all(seconds(f"4x-{machine}", 16) > seconds(machine, 8))


def test_infiniband_is_faster_than_tcp() -> None:
    slow, fast = (seconds(f"2x-8x-l40s-{word}", 16) for word in ("tcp", "ib"))
    assert np.all(fast < slow)


def test_a_file_goes_before_a_name_that_could_be_put_together() -> None:
    assert not pm.load_node("2x-8x-rtx-pro-6000-server-tcp").assumptions
    assert pm.load_node("2x-8x-rtx-pro-6000-server-ib").assumptions[-1].endswith("a hop")


@pytest.mark.parametrize(("name", "error"), [
    ("2x-8x-nonsense", UnknownName), ("1x-8x-h200-sxm", BadInput), ("4000x-8x-h200-sxm", BadInput),
    ("2x-2x-dgx-h100", BadInput)])  # fmt: skip
def test_clusters_that_cannot_be(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        pm.load_node(name)


@pytest.mark.parametrize(("node", "wide"), [("72x-gb200", 72), ("2x-72x-gb200", 144)])
def test_wide_expert_groups_are_legal_and_priced(node: str, wide: int) -> None:
    d = pm.deploy("deepseek-v3.1", node=node, engine="vllm", tp=wide, ep=wide, dp_attention=wide, context=16384,
                  prefill_chunk=2048)  # fmt: skip
    assert d.name == f"DPA{wide}+EP{wide}" and pm.memory(d, hints=False).fits
    narrow = pm.deploy("deepseek-v3.1", node=node, engine="vllm", tp=8, ep=8, dp_attention=8, context=16384)
    experts = [next(row.bytes for row in pm.step(x, batch=8 * x.options.tp, context=1024).rows
                    if row.name == "routed experts") for x in (d, narrow)]  # fmt: skip
    assert experts[0] < experts[1]  # fewer experts on a rank are read by as many tokens


def test_a_pipeline_over_the_network_pays_its_hops_only() -> None:
    """Sixteen stages over two machines: one hop of sixteen crosses, an all-reduce would cross in every layer."""
    same: dict[str, Any] = {"node": "2x-8x-rtx-pro-6000-server", "engine": "sglang", "memory_fraction": 0.9,
                            "context": 32768}  # fmt: skip
    piped, spread = (pm.deploy("kimi-k2.6", **same, tp=tp, pp=16 // tp) for tp in (1, 16))
    cost = {d.name: pm.step(d, batch=16, context=1024, arrival="staggered") for d in (piped, spread)}
    over = {name: sum(row.seconds for row in step.rows if row.bound == "communication" or row.name == "pipeline hops")
            for name, step in cost.items()}  # fmt: skip
    assert over["PP16"] < over["TP16"]


def test_a_fleet_of_1024_gpus_of_two_kinds() -> None:
    nodes = ["64x-8x-h200-sxm", "64x-8x-rtx-pro-6000-server"]
    found = pm.plan("deepseek-v3.1", node=nodes, tp=8, pp=2, dp_attention=8, ep=8, dcp=1, kv_dtype="fp8",
                    memory_fraction=0.95, context=16384, concurrency=65536, keep=4, disaggregate=False)  # fmt: skip
    assert {row["node"]: row["gpus"] for row in found.fleet} == dict.fromkeys(nodes, 512)
    rates = [row["output_tok_s"] for row in found.fleet]
    assert found.choices[0].curve.points[0]["output_tok_s"] == pytest.approx(max(rates), abs=0, rel=2e-3)
    assert all(pm.memory(choice.deployment, hints=False).fits for choice in found.choices)


@pytest.mark.parametrize("machines", [2, 4])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_a_cluster_by_name_is_the_cluster_of_the_file(machines: int, op: str) -> None:
    """One NIC a GPU on its own rail: a rank sends through one, a ring of all through all."""
    written, named = (np.asarray(pm.collective(op, node=node, message_bytes=SIZES).seconds)
                      for node in (f"{machines}x-dgx-h100", f"{machines}x-8x-h100-sxm-ib"))  # fmt: skip
    np.testing.assert_allclose(named, written, rtol=1e-9)


@pytest.mark.parametrize(("node", "GBps"), [("2x-8x-h200-sxm-ib", 50), ("2x-8x-a100-sxm-80gb-ib", 25)])
def test_one_rank_sends_through_one_nic(node: str, GBps: float) -> None:
    found = pm.collective("send_recv", node=node, message_bytes=2**30)
    assert 0.85 * GBps < found.busbw_Bps / 1e9 < GBps
    ring = pm.collective("all_reduce", node=node, message_bytes=2**30, algorithm="ring-simple")
    assert 6 * GBps < ring.busbw_Bps / 1e9 < 8.01 * GBps


@pytest.mark.parametrize(("node", "tp", "GBps"), [
    ("2x-dgx-h100", 8, 50), ("2x-8x-h100-sxm-ib", 8, 50), ("2x-dgx-h100", 1, 50),
    ("2x-8x-rtx-pro-6000-server-tcp", 1, 11), ("2x-8x-rtx-pro-6000-server-tcp", 8, 11 / 8)])  # fmt: skip
def test_ranks_of_a_stage_share_the_nics_of_their_machine(node: str, tp: int, GBps: float) -> None:
    d = pm.deploy("kimi-k2.6", node=node, engine="sglang", tp=tp, pp=16 // tp)
    assert links_of(d).hop_Bps == pytest.approx(GBps * 1e9, abs=0, rel=1e-9)


def test_paths_in_4096_gpus_look_at_two_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search for a path looks at does not grow with the machines."""
    looked = []
    far = Graph._far
    monkeypatch.setattr(Graph, "_far", lambda self, here, there: looked.append(here) or far(self, here, there))
    for node in ("4x-8x-l40s-tcp", "512x-8x-l40s-tcp"):
        graph = Graph(pm.load_node(node))
        graph.path(graph.gpus[0], graph.gpus[-1])
        looked.append("end")
    first = looked.index("end")
    assert first == len(looked) - first - 2 < 30


def test_no_machine_forwards_for_others() -> None:
    node = pm.load_node("3x-8x-l40s-tcp")
    graph = Graph(node)
    for a, b in ((0, 8), (7, 23), (3, 4)):
        path = graph.path(graph.gpus[a], graph.gpus[b])
        ends = {graph.machine_of[graph.gpus[i]] for i in (a, b)}
        assert {graph.machine_of.get(hop.b) for hop in path.hops} <= {None, *ends}
