"""A node with one thing changed: width of its PCIe links, NVLink, P2P, a second machine, GPUs lost, another GPU.

Every function gives the node, the accelerator where its own figures move too, and what was assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from perfmodel import catalog
from perfmodel.catalog import Accelerator, AllReduce, Node
from perfmodel.catalog.base import Rate, Seconds, Source
from perfmodel.catalog.lookup import find
from perfmodel.catalog.schema import GroupBandwidth, Link, LinkKind, Topology
from perfmodel.errors import BadInput, IllegalDeployment
from perfmodel.placement.topology import OUTSIDE, Graph

GEN3_BPS = 15.75e9      # of sixteen lanes on the wire, one direction; each generation doubles it (PCI-SIG)
PCIE = ("gpu", "root", "switch", "socket")
NVLINK_LATENCY = "0.5 us"
NIC_RATE, NIC_LATENCY = 50e9, "5 us"    # one port of 400 Gb/s. Kind: assumed


class Changed(NamedTuple):
    """A changed machine. ``accelerator`` None: the catalog's."""

    node: Node
    accelerator: Accelerator | None
    assumptions: tuple[str, ...]


def _rate(value: float, note: str) -> Rate:
    return Rate.model_validate({"value": f"{value:.6g} B/s", "kind": "assumed", "note": note})


def _latency(text: str, note: str) -> Seconds:
    return Seconds.model_validate({"value": text, "kind": "assumed", "note": note})


# ---------------------------------------------------------------- PCIe


def generation(rate_Bps: float) -> int:
    """PCIe generation of a link of sixteen lanes that carries this much payload.

    >>> [generation(rate) for rate in (12.5e9, 25e9, 55.5e9, 63e9, 110e9)]
    [3, 4, 5, 5, 6]
    """
    return max(1, round(math.log2(rate_Bps / (0.88 * GEN3_BPS))) + 3)


def pcie(node: Node, gpu: Accelerator, wanted: str) -> Changed:
    """All PCIe links of another generation: payload doubles or halves with each, latencies and sockets stay."""
    match = re.fullmatch(r"(?:gen\s?)?([3-7])(?:\.0)?", wanted.strip().lower())
    if match is None:
        raise BadInput(f"pcie must be gen3 to gen7, not {wanted[:40]!r}")
    now, new = generation(float(gpu.link.host)), int(match[1])
    if now == new:
        raise BadInput(f"the PCIe links of {gpu.name} are of generation {now} already")
    times = 2.0 ** (new - now)
    topology, kinds = node.topology, dict(node.topology.link_kinds)
    inside = {link.kind for link in topology.links if _is_pcie(topology, link)}
    if not inside:
        raise IllegalDeployment(f"{node.name} describes no PCIe links between its GPUs")
    for name in inside:
        kinds[name] = kinds[name].model_copy(update={"bandwidth": scaled(kinds[name].bandwidth, times)})
    host = gpu.link.model_copy(update={"host": scaled(gpu.link.host, times)})
    wide = node.model_copy(update={"topology": topology.model_copy(update={"link_kinds": kinds})})
    wide = rescaled(node, wide)
    gpus = Graph(node).gpus
    ring = Graph(wide).ring_Bps(gpus) / Graph(node).ring_Bps(gpus) if len(gpus) > 1 else times
    return Changed(wide, gpu.model_copy(update={"link": host}), (
        f"PCIe generation {new} in place of {now}: links between GPUs, roots, switches and sockets carry {times:g} "
        "times the payload, with the same latency; GPU, board and CPU must all have it",
        *(("bus bandwidths measured on this node: scaled as the ring over its GPUs; start-up and steps kept",)
          if wide.collectives else ()),
        *((f"the ring over all GPUs becomes {ring:.2f} times as fast: its narrowest link is not PCIe",)
          if 0.99 < ring < 0.99 * times else ())))


def _is_pcie(topology: Topology, link: Link) -> bool:
    ends = {topology.vertices[link.a], topology.vertices[link.b]}
    return ends <= set(PCIE) and ends not in ({"socket"}, {"gpu"})


def scaled(figure: Rate, times: float) -> Rate:
    """A bandwidth times a number; what is not known stays so."""
    return figure if figure.value is None else figure.model_copy(update={"value": figure.value * times})


def rescaled(old: Node, new: Node) -> Node:
    """The measured collectives, their bandwidths moved as the bandwidth of the ring over the same GPUs."""
    if old.collectives is None:
        return new
    before, after = Graph(old), Graph(new)

    def ratio(ranks: int) -> float:
        gpus = before.gpus[:max(2, ranks)]
        return after.ring_Bps(gpus) / before.ring_Bps(gpus)

    variants = {name: _moved(table, ratio, old.count) for name, table in old.collectives.variants.items()}
    return new.model_copy(update={"collectives": old.collectives.model_copy(update={"variants": variants})})


def _moved(table: AllReduce, ratio: Callable[[int], float], count: int) -> AllReduce:
    update: dict[str, object] = {name: scaled(figure, ratio(count)) for name, figure in table
                                 if isinstance(figure, Rate)}
    update["by_ranks"] = {
        ranks: group.model_copy(update={n: scaled(f, ratio(ranks)) for n, f in group if isinstance(f, Rate)})
        for ranks, group in table.by_ranks.items()}
    update["ops"] = {op: _moved(inner, ratio, count) for op, inner in table.ops.items()}
    return table.model_copy(update=update)


# ---------------------------------------------------------------- NVLink, P2P


def nvlink(node: Node, gpu: Accelerator, wanted: str) -> Changed:
    """NVLink all to all through a switch at this rate a GPU and direction, or none: one PCIe tree."""
    word = wanted.strip().lower()
    if Graph(node).machines(Graph(node).gpus) > 1:
        raise IllegalDeployment("NVLink is changed inside one machine; this node is several")
    if word in ("off", "no", "none"):
        if node.topology.kind != "nvlink":
            raise BadInput(f"{node.name} has no NVLink")
        bare = gpu.model_copy(update={"form": "pcie"})
        from perfmodel.catalog.synthesis import node as joined

        tree = joined(node.count, bare, None)   # a tree of its own, nothing measured
        plain = node.model_copy(update={"topology": tree.topology, "p2p": True, "collectives": None})
        return Changed(plain, bare, (f"no NVLink: one PCIe root port of {float(gpu.link.host) / 1e9:g} GB/s a GPU, P2P "
                                     "on; collectives of the class of links",))
    rate = _quantity(word, gpu)
    vertices = {f"gpu{i}": "gpu" for i in range(node.count)} | {"nvswitch0": "nvswitch"}
    note = "what-if"
    kind = LinkKind(bandwidth=_rate(rate, note), latency=_latency(NVLINK_LATENCY, note))
    links = tuple(Link(a=f"gpu{i}", b="nvswitch0", kind="nvlink") for i in range(node.count))
    topology = Topology.model_validate({"kind": "nvlink", "vertices": vertices, "links": links,
                                        "link_kinds": {"nvlink": kind}})
    link = gpu.link.model_copy(update={"nvlink": _rate(rate, note)})
    wide = node.model_copy(update={"topology": topology, "p2p": True, "p2p_pairs": (), "collectives": None})
    return Changed(wide, gpu.model_copy(update={"link": link}), (
        f"NVLink all to all through a switch, {rate / 1e9:g} GB/s a GPU and direction, latency {NVLINK_LATENCY}: "
        "collectives of the class of NVLink, nothing measured with this GPU",))


def _quantity(word: str, gpu: Accelerator) -> float:
    from perfmodel.units import parse

    if word in ("on", "yes"):
        if gpu.link.nvlink is None or gpu.link.nvlink.value is None:
            raise BadInput(f"{gpu.name} has no NVLink", ["say how fast: nvlink=450 GB/s"])
        return float(gpu.link.nvlink)
    try:
        rate = parse(word.replace("gb/s", " GB/s").replace("  ", " ").replace("tb/s", " TB/s"), "B/s")
    except ValueError:
        raise BadInput(f"nvlink must be on, off or a rate such as '450 GB/s', not {word[:40]!r}") from None
    if not 1e9 <= rate <= 1e14:
        raise BadInput(f"nvlink must lie between 1 GB/s and 100 TB/s, not {rate:g} B/s")
    return rate


def p2p(node: Node, on: bool) -> Changed:
    """GPUs read each other's memory, or not; figures measured the other way do not hold."""
    if node.p2p is on and not node.p2p_pairs:
        raise BadInput(f"P2P is {'on' if on else 'off'} on {node.name} already")
    note = "P2P on: a driver and platform that allow it" if on else "P2P off: messages go through host memory"
    changed = node.model_copy(update={"p2p": on, "p2p_pairs": (), "collectives": None})
    return Changed(changed, None, (f"{note}; collectives of the class of links, nothing measured so on this node",))


# ---------------------------------------------------------------- machines and GPUs


def machines(node: Node, gpu: Accelerator, wanted: str) -> Changed:
    """Several of this machine on one network; ``2`` or ``2@12.5 GB/s``, the rate of a machine's port."""
    from perfmodel.units import parse

    count, at, text = wanted.partition("@")
    if not re.fullmatch(r"\s*\d{1,2}\s*", count) or not 2 <= int(count) <= 64:
        raise BadInput(f"nodes must be 2 to 64, or 2@12.5 GB/s, not {wanted[:40]!r}")
    if set(node.topology.vertices.values()) & set(OUTSIDE):
        raise IllegalDeployment(f"{node.name} is on a network already")
    many = int(count)
    rate = NIC_RATE * (node.count if gpu.form == "sxm" else 1)
    try:
        rate = parse(text.strip(), "B/s") if at else rate
    except ValueError as problem:
        raise BadInput(f"nodes: {problem}") from None
    if not 1e6 <= rate <= 1e14:
        raise BadInput(f"nodes: the rate of a port must lie between 1 MB/s and 100 TB/s, not {text[:40]!r}")
    vertices = {f"{name}.{m}": kind for m in range(many) for name, kind in node.topology.vertices.items()}
    links = [link.model_copy(update={"a": f"{link.a}.{m}", "b": f"{link.b}.{m}"})
             for m in range(many) for link in node.topology.links]
    door = next((name for kind in ("nvswitch", "socket", "switch", "root", "gpu")
                 for name, k in node.topology.vertices.items() if k == kind))
    vertices |= {f"nic.{m}": "nic" for m in range(many)}
    vertices["network"] = "network"
    links += [Link(a=f"{door}.{m}", b=f"nic.{m}", kind="to-nic") for m in range(many)]
    links += [Link(a=f"nic.{m}", b="network", kind="network") for m in range(many)]
    note = "what-if: port of a machine"
    kinds = dict(node.topology.link_kinds) | {
        "to-nic": LinkKind(bandwidth=_rate(rate, note), latency=_latency("0.5 us", note)),
        "network": LinkKind(bandwidth=_rate(rate, note), latency=_latency(NIC_LATENCY, note))}
    topology = Topology.model_validate({"kind": node.topology.kind, "vertices": vertices, "links": tuple(links),
                                        "link_kinds": kinds})
    pairs = tuple(pair.model_copy(update={"a": f"{pair.a}.{m}", "b": f"{pair.b}.{m}"})
                  for m in range(many) for pair in node.p2p_pairs)
    whole = node.model_copy(update={"topology": topology, "count": many * node.count, "p2p_pairs": pairs,
                                    "collectives": None, "name": f"{many}x {node.name}"})
    said = "given" if text else "assumed: one 400 Gb/s port" + (" a GPU" if gpu.form == "sxm" else " a machine")
    return Changed(whole, None, (f"{many} machines on a network, {rate / 1e9:g} GB/s each way ({said}), {NIC_LATENCY}; "
                                 "collectives of the class of links",))


def with_collectives(many: Node, one: Node) -> Node:
    """Several machines with what was measured on one, for groups that stay inside it."""
    if one.collectives is None:
        return many
    return many.model_copy(update={"collectives": one.collectives.model_copy(update={"variants": {
        name: _inside(table, one.count) for name, table in one.collectives.variants.items()}})})


def _inside(table: AllReduce, count: int) -> AllReduce:
    whole = GroupBandwidth(**{name: getattr(table, name) for name in GroupBandwidth.model_fields})
    return table.model_copy(update={"by_ranks": {**table.by_ranks, count: whole},
                                    "ops": {op: _inside(inner, count) for op, inner in table.ops.items()}})


def without(node: Node, lost: int) -> Changed:
    """The node less its last GPUs."""
    if node.count == 1:
        raise BadInput(f"{node.name} has one GPU; none is left when it is lost")
    if not 1 <= lost < node.count:
        raise BadInput(f"lost must be 1 to {node.count - 1}, not {lost}")
    gone = set(Graph(node).gpus[node.count - lost:])
    vertices = {name: kind for name, kind in node.topology.vertices.items() if name not in gone}
    links = tuple(link for link in node.topology.links if not {link.a, link.b} & gone)
    topology = node.topology.model_copy(update={"vertices": vertices, "links": links})
    pairs = tuple(pair for pair in node.p2p_pairs if not {pair.a, pair.b} & gone)
    left = node.model_copy(update={"topology": topology, "count": node.count - lost, "p2p_pairs": pairs})
    return Changed(left, None, (f"the last {lost} of {node.count} GPUs are gone; the others keep links and figures",))


def another(node: Node, old: Accelerator, name: str) -> Changed:
    """Another GPU in the same slots, or, where it needs another board, the catalog's node of as many."""
    new = catalog.load_accelerator(name)
    same = new.form == "pcie" and node.topology.kind == "pcie" and old.form == "pcie"
    known = find("node", f"{node.count}x-{new.name}")
    if not same:
        board = catalog.load_node(f"{node.count}x-{new.name}")
        return Changed(board, None, (f"{node.count} x {new.name} on their own board, {board.name}"
                                     f"{'' if known else ', which nobody described: see its assumptions'}",))
    width = float(new.link.host) / float(old.link.host)
    kinds, topology = dict(node.topology.link_kinds), node.topology
    if width < 1:
        for kind in {link.kind for link in topology.links if _is_pcie(topology, link)
                     and "gpu" in (topology.vertices[link.a], topology.vertices[link.b])}:
            kinds[kind] = kinds[kind].model_copy(update={"bandwidth": scaled(kinds[kind].bandwidth, width)})
    peers = catalog.load_node(f"{node.count}x-{new.name}").p2p if known else node.p2p
    slots = node.model_copy(update={
        "accelerator": new.name, "p2p": peers, "topology": topology.model_copy(update={"link_kinds": kinds}),
        "sources": {**node.sources, "what-if": Source(title="changed by a what-if question")}})
    kept = rescaled(node, slots) if peers == node.p2p else slots.model_copy(update={"collectives": None})
    says = "as its own node has it" if known else "as on this node"
    return Changed(kept, None, (f"{new.name} in the slots of {old.name}: same host and wiring, no link wider than the "
                                f"card's, P2P {says}",))
