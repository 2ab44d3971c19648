"""A node that nobody described: N accelerators joined the usual way. Everything guessed is listed as an assumption."""

from __future__ import annotations

import re

from perfmodel.catalog.base import Rate, Seconds, Source
from perfmodel.catalog.schema import Accelerator, Collectives, Host, Link, LinkKind, Node, Topology, VertexKind
from perfmodel.errors import BadInput

GPUS_A_SXM_NODE = 8
GPUS_A_SOCKET = 4
MAX_GPUS = 4096


def split_name(name: str) -> tuple[int, str] | None:
    """`8x-h200-sxm` -> (8, "h200-sxm").

    >>> split_name("8x-h200-sxm"), split_name("dgx-h200")
    ((8, 'h200-sxm'), None)
    """
    match = re.fullmatch(r"(\d{1,9})\s*x[-_ ]*(\S.*)", name.strip(), re.IGNORECASE)
    return (int(match[1]), match[2]) if match else None


def node(count: int, accelerator: Accelerator, like: Node | None) -> Node:
    """`count` accelerators: NVLink all to all for SXM parts (8 a machine), one PCIe tree for PCIe parts.

    `like` is the measured eight-GPU node of that accelerator, whose link and collective figures are borrowed.
    """
    if not 1 <= count <= MAX_GPUS:
        raise BadInput(f"a node has 1 to {MAX_GPUS} GPUs, not {count}")
    topology, assumptions = (_nvlink if accelerator.form == "sxm" else _pcie)(count, accelerator, like)
    name = f"{count}x-{accelerator.name}"
    collectives: Collectives | None = like.collectives if like else None
    if count == 1:
        collectives = None
    elif like and collectives:
        assumptions.append(f"{name}: all-reduce figures are those measured on {like.name}")
    else:
        assumptions.append(f"{name}: no all-reduce was measured on such a node")
    sources = {"synthesis": Source(title="put together by perfmodel, not measured")} | accelerator.sources
    return Node(name=name, title=f"{count} x {accelerator.title or accelerator.name}",
                sources=sources | (like.sources if like else {}), accelerator=accelerator.name, count=count,
                topology=topology, p2p=like.p2p if like else accelerator.form == "sxm",
                host=Host(cpu=like.host.cpu if like else "", sockets=_sockets(count)), collectives=collectives,
                assumptions=tuple(assumptions))


def _sockets(count: int) -> int:
    return 1 if count <= GPUS_A_SOCKET else 2


def _pcie(count: int, accelerator: Accelerator, like: Node | None) -> tuple[Topology, list[str]]:
    """One root port a GPU; one socket up to four GPUs, two beyond."""
    sockets = _sockets(count)
    vertices: dict[str, VertexKind] = {f"gpu{i}": "gpu" for i in range(count)}
    vertices |= {f"cpu{i}": "socket" for i in range(sockets)}
    links = [Link(a=f"gpu{i}", b=f"cpu{i * sockets // count}", kind="pcie") for i in range(count)]
    kinds = {"pcie": _kind_like(like, "gpu", accelerator.link.host, "0.5 us")}
    if sockets == 2:
        links.append(Link(a="cpu0", b="cpu1", kind="socket"))
        kinds["socket"] = _kind_like(like, "socket", accelerator.link.host, "0.5 us")
    text = f"{count}x-{accelerator.name}: one PCIe root port a GPU, {'one socket' if sockets == 1 else 'two sockets'}"
    if like is None:
        text += "; no P2P; link latencies assumed"
    return Topology(kind="pcie", vertices=vertices, links=tuple(links), link_kinds=kinds), [text]


def _nvlink(count: int, accelerator: Accelerator, like: Node | None) -> tuple[Topology, list[str]]:
    """NVSwitch machines of eight; more than eight GPUs are several machines on a network."""
    machines = -(-count // GPUS_A_SXM_NODE)
    vertices: dict[str, VertexKind] = {f"gpu{i}": "gpu" for i in range(count)}
    vertices |= {f"nvswitch{m}": "nvswitch" for m in range(machines)}
    links = [Link(a=f"gpu{i}", b=f"nvswitch{i // GPUS_A_SXM_NODE}", kind="nvlink") for i in range(count)]
    kinds = {"nvlink": _kind_like(like, "gpu", accelerator.link.nvlink or accelerator.link.host, "0.5 us")}
    assumptions = [f"{count}x-{accelerator.name}: NVLink all to all through NVSwitch"]
    if machines > 1:
        vertices["network"] = "network"
        links += [Link(a=f"nvswitch{m}", b="network", kind="network") for m in range(machines)]
        note = "one 400 Gb/s NIC a GPU"
        bandwidth = Rate.model_validate({"value": "400 GB/s", "kind": "assumed", "note": note})
        kinds["network"] = LinkKind(bandwidth=bandwidth, latency=_guess("5 us", note))
        assumptions.append(f"{count}x-{accelerator.name}: {machines} machines of 8 GPUs, {note}, 5 us")
    return Topology(kind="nvlink", vertices=vertices, links=tuple(links), link_kinds=kinds), assumptions


def _kind_like(like: Node | None, vertex: str, bandwidth: Rate, latency: str) -> LinkKind:
    """The link kind of `like` that joins a vertex of this kind (two sockets, or a GPU to anything); else a guess."""
    for link in like.topology.links if like else ():
        ends = {like.topology.vertices[link.a], like.topology.vertices[link.b]}     # type: ignore[union-attr]
        if ends == {"socket"} if vertex == "socket" else vertex in ends:
            return like.topology.link_kinds[link.kind]                              # type: ignore[union-attr]
    return LinkKind(bandwidth=bandwidth, latency=_guess(latency, "no such link was measured"))


def _guess(latency: str, note: str) -> Seconds:
    return Seconds.model_validate({"value": latency, "kind": "assumed", "note": note})
