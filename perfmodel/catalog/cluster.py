"""Several equal machines on a network that nobody described. Everything guessed is listed as an assumption."""

from __future__ import annotations

import re

from perfmodel.catalog.base import Rate, Seconds
from perfmodel.catalog.schema import Link, LinkKind, Node, Topology, VertexKind
from perfmodel.catalog.synthesis import MAX_GPUS
from perfmodel.errors import BadInput

# What joins the machines: bytes per second and seconds of a hop, and what that stands for. Kind: assumed; the figures
# are those of the catalog's own nodes with such networks (2x-dgx-h100, 2x-8x-rtx-pro-6000-server-tcp).
NETWORKS = {
    "ib": ("50 GB/s", "5 us", "one 400 Gb/s NIC"),
    "tcp": ("11 GB/s", "12 us", "one 100 Gb/s port with plain TCP"),
}


def split_cluster(name: str) -> tuple[int, str, str | None] | None:
    """`4x-8x-h200-sxm-ib` -> (4, "8x-h200-sxm", "ib"); without an ending the network is the usual one.

    >>> split_cluster("4x-8x-h200-sxm"), split_cluster("2x-8x-l40s-tcp"), split_cluster("8x-h200-sxm")
    ((4, '8x-h200-sxm', None), (2, '8x-l40s', 'tcp'), None)
    """
    ending = "|".join(NETWORKS)
    match = re.fullmatch(rf"(\d{{1,9}})x[-_ ]*(\d{{1,9}}x\S*?|\S*dgx\S*?)(?:-({ending}))?", name.strip(), re.I)
    return (int(match[1]), match[2], match[3].lower() if match[3] else None) if match else None


def cluster(machines: int, node: Node, network: str | None) -> Node:
    """``machines`` copies of a node: a NIC for each GPU of NVLink machines, one for each socket with InfiniBand, one
    for each machine with TCP. Without a word NVLink machines get InfiniBand, others TCP."""
    if machines < 2 or machines * node.count > MAX_GPUS:
        raise BadInput(f"a cluster has 2 machines or more and at most {MAX_GPUS} GPUs, not {machines} x {node.count}")
    if any(kind in ("network", "rail") for kind in node.topology.vertices.values()):
        raise BadInput(f"{node.name} is several machines already")
    word = network or ("ib" if node.topology.kind == "nvlink" else "tcp")
    ports = _ports(node, word)
    width, latency, note = NETWORKS[word]
    vertices: dict[str, VertexKind] = {}
    links: list[Link] = []
    for number in range(machines):
        names = {name: f"{name}.{number}" for name in node.topology.vertices}
        vertices |= {names[name]: kind for name, kind in node.topology.vertices.items()}
        links += [Link(a=names[link.a], b=names[link.b], kind=link.kind) for link in node.topology.links]
        links += [Link(a=names[port], b="network", kind=f"network-{many}") for port, many in ports]
    vertices["network"] = "network"
    kinds = dict(node.topology.link_kinds)
    for many in {many for _, many in ports}:
        total_Bps = f"{many * float(width.split()[0])} GB/s"
        rate = Rate.model_validate({"value": total_Bps, "kind": "assumed", "note": note})
        kinds[f"network-{many}"] = LinkKind(
            bandwidth=rate, latency=Seconds.model_validate({"value": latency, "kind": "assumed", "note": note}))
    total = sum(many for _, many in ports)
    name = f"{machines}x-{node.name}" + (f"-{network}" if network else "")
    said = f"{name}: {machines} machines, each with {total} x {note}, {latency} a hop"
    return node.model_copy(update={
        "name": name, "title": f"{machines} x {node.title or node.name}", "aliases": (), "count": machines * node.count,
        "topology": Topology(kind=node.topology.kind, vertices=vertices, links=tuple(links), link_kinds=kinds),
        "machine_gpus": node.count, "assumptions": (*node.assumptions, said)})


def _ports(node: Node, word: str) -> list[tuple[str, int]]:
    """Vertices of a machine that the network reaches, each with its number of NICs."""
    of_kind = {kind: [name for name, is_kind in node.topology.vertices.items() if is_kind == kind]
               for kind in ("nvswitch", "socket", "gpu")}
    if word == "ib" and node.topology.kind == "nvlink":
        switches = of_kind["nvswitch"]
        return [(name, -(-node.count // len(switches))) for name in switches] if switches else [
            (name, 1) for name in of_kind["gpu"]]
    ends = of_kind["socket"] or of_kind["nvswitch"] or of_kind["gpu"]
    return [(name, 1) for name in (ends if word == "ib" else ends[:1])]
