"""Several equal machines on a network that nobody described. Everything guessed is listed as an assumption."""

from __future__ import annotations

import re

from perfmodel.catalog.base import Rate, Seconds
from perfmodel.catalog.schema import Link, LinkKind, Node, Topology, VertexKind
from perfmodel.catalog.synthesis import MAX_GPUS
from perfmodel.errors import BadInput

# What joins the machines: GB/s and seconds of a hop, and what that stands for. Kind: assumed; the figures are those of
# the catalog's own nodes with such networks (2x-dgx-h100, 2x-dgx-a100, 2x-8x-rtx-pro-6000-server-tcp), where a hop is
# NIC and half a switch, and the PCIe link between GPU and NIC.
NETWORKS = {
    "ib": (50, "1 us", "one 400 Gb/s NIC"),
    "tcp": (11, "12 us", "one 100 Gb/s port with plain TCP"),
}
OLDER = {"ib": (25, "1 us", "one 200 Gb/s NIC")}  # where PCIe Gen4 carries no more
RAIL = "0.5 us"  # between the switch of a rail and those that join the rails
GEN5_BPS = 40e9  # a GPU's port above this is Gen5


def split_cluster(name: str) -> tuple[int, str, str | None] | None:
    """`4x-8x-h200-sxm-ib` -> (4, "8x-h200-sxm", "ib"); without an ending the network is the usual one.

    >>> split_cluster("4x-8x-h200-sxm"), split_cluster("2x-8x-l40s-tcp"), split_cluster("8x-h200-sxm")
    ((4, '8x-h200-sxm', None), (2, '8x-l40s', 'tcp'), None)
    """
    ending = "|".join(NETWORKS)
    match = re.fullmatch(rf"(\d{{1,9}})x[-_ ]*(\d{{1,9}}x\S*?|\S*dgx\S*?)(?:-({ending}))?", name.strip(), re.I)
    return (int(match[1]), match[2], match[3].lower() if match[3] else None) if match else None


def cluster(machines: int, node: Node, network: str | None, host_Bps: float | None = None) -> Node:
    """``machines`` copies of a node: a NIC for each GPU of NVLink machines, one for each socket with InfiniBand, one
    for each machine with TCP. Without a word NVLink machines get InfiniBand, others TCP. ``host_Bps`` of a GPU's PCIe
    port bounds the NICs.

    A GPU's NIC hangs on the GPU, and NICs of one place in their machines on one rail: what one rank sends to one other
    takes one NIC, and rings of all GPUs take all.
    """
    if machines < 2 or machines * node.count > MAX_GPUS:
        raise BadInput(f"a cluster has 2 machines or more and at most {MAX_GPUS} GPUs, not {machines} x {node.count}")
    if any(kind in ("network", "rail") for kind in node.topology.vertices.values()):
        raise BadInput(f"{node.name} is several machines already")
    word = network or ("ib" if node.topology.kind == "nvlink" else "tcp")
    ports = _ports(node, word)
    older = host_Bps is not None and host_Bps < GEN5_BPS
    width, latency, note = OLDER.get(word, NETWORKS[word]) if older else NETWORKS[word]
    vertices: dict[str, VertexKind] = {}
    links: list[Link] = []
    railed = word == "ib" and node.topology.kind == "nvlink"
    for number in range(machines):
        names = {name: f"{name}.{number}" for name in node.topology.vertices}
        vertices |= {names[name]: kind for name, kind in node.topology.vertices.items()}
        links += [Link(a=names[link.a], b=names[link.b], kind=link.kind) for link in node.topology.links]
        links += [Link(a=names[port], b=f"rail{place}" if railed else "network", kind="nic")
                  for place, port in enumerate(ports)]
    if railed:
        vertices |= {f"rail{place}": "rail" for place in range(len(ports))}
        links += [Link(a=f"rail{place}", b="network", kind="rail", count=machines) for place in range(len(ports))]
    vertices["network"] = "network"
    kinds = {**node.topology.link_kinds, "nic": _kind(width, latency, note)}
    if railed:
        kinds["rail"] = _kind(width, RAIL, "between switches, for each machine")
    name = f"{machines}x-{node.name}" + (f"-{network}" if network else "")
    said = f"{name}: {machines} machines, each with {len(ports)} x {note}, {latency} a hop"
    return node.model_copy(update={
        "name": name, "title": f"{machines} x {node.title or node.name}", "aliases": (), "count": machines * node.count,
        "topology": Topology(kind=node.topology.kind, vertices=vertices, links=tuple(links), link_kinds=kinds),
        "machine_gpus": node.count, "assumptions": (*node.assumptions, said)})


def machine_size(node: Node) -> int:
    """GPUs of one machine: what stays joined when rails and network are taken away. Two to a Grace CPU (GB200, GB300),
    whose trays are machines of their own inside one NVLink domain. [1]"""
    kinds, joined = node.topology.vertices, node.machine_gpus or node.count
    if node.machine_gpus is None and any(kind in ("network", "rail") for kind in kinds.values()):
        around: dict[str, list[str]] = {name: [] for name in kinds}
        for link in node.topology.links:
            if not {kinds[link.a], kinds[link.b]} & {"network", "rail"}:
                around[link.a].append(link.b)
                around[link.b].append(link.a)
        reached = [next(name for name, kind in kinds.items() if kind == "gpu")]
        found = set(reached)
        for name in reached:  # grows while it is walked
            new = [other for other in around[name] if other not in found]
            found.update(new)
            reached += new
        joined = sum(kinds[name] == "gpu" for name in reached)
    return min(joined, 2 * node.host.sockets) if "grace" in node.host.cpu.lower() else joined


def _kind(width: int, latency: str, note: str) -> LinkKind:
    said = {"kind": "assumed", "note": note}
    return LinkKind(bandwidth=Rate.model_validate({"value": f"{width} GB/s", **said}),
                    latency=Seconds.model_validate({"value": latency, **said}))


def _ports(node: Node, word: str) -> list[str]:
    """Vertices of a machine that have a NIC."""
    of_kind = {kind: [name for name, is_kind in node.topology.vertices.items() if is_kind == kind]
               for kind in ("nvswitch", "socket", "gpu")}
    if word == "ib" and node.topology.kind == "nvlink":
        return of_kind["gpu"]
    ends = of_kind["socket"] or of_kind["nvswitch"] or of_kind["gpu"]
    return ends if word == "ib" else ends[:1]
