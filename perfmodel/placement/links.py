"""Which links a group of ranks talks over, and what the node's own all-reduce is known to cost there."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from perfmodel.catalog import AllReduce, Figure, Node
from perfmodel.deployment import Deployment
from perfmodel.errors import DescriptorError, UnknownName

# NCCL's own tuning constants, 2.30.7 src/graph/tuning.cc (baseLat, hwLat; NVLINK and PCI columns), in seconds:
# (LL base, LL hop, LL128 base, LL128 hop, Simple base, Simple hop); then the share of the ring's bandwidth of each.
_NCCL = {
    "nvlink": (6.6e-6, 0.6e-6, 14.0e-6, 1.9e-6, 8.4e-6, 3.4e-6),
    "pcie": (6.6e-6, 1.0e-6, None, None, 8.4e-6, 5.7e-6),
}
_LL_SHARE, _LL128_SHARE = 0.5, 0.92
_RING_SHARE = 0.8  # of a link's payload bandwidth that a ring of many GPUs sustains; assumed, see `Links.measured`


@dataclass(frozen=True, slots=True)
class Protocol:
    """One NCCL protocol on this node: start-up, one ring step, bus bandwidth by the number of ranks.

    ``until_bytes`` is the largest message that NCCL runs it for; infinite where the fastest protocol is taken.
    """

    name: str
    base_s: float
    hop_s: float
    busbw_all_Bps: float
    by_ranks: tuple[tuple[int, float | None], ...] = ()
    until_bytes: float = float("inf")

    def busbw_Bps(self, ranks: int) -> float | None:
        """Bus bandwidth of a group: that of the next larger group measured, else of all GPUs; None: not used. [B/s]"""
        return next((width for size, width in self.by_ranks if size >= ranks), self.busbw_all_Bps)


@dataclass(frozen=True, slots=True)
class Links:
    """What the groups of a deployment talk over."""

    protocols: tuple[Protocol, ...]
    hop_Bps: float  # slowest link between neighbouring pipeline stages
    hop_latency_s: float
    peer_Bps: float  # what one GPU reads from its peers
    measured: bool  # the node's own all-reduce was measured; else NCCL's constants on the graph's links
    source: str


def links_of(deployment: Deployment) -> Links:
    """Protocols and hop links for this deployment's node and NCCL variant."""
    node, options = deployment.node, deployment.options
    width, latency = _neighbour_path(node, max(1, options.world))
    collectives = node.collectives
    if collectives is not None:
        variant = options.nccl or collectives.default
        if variant not in collectives.variants:
            raise UnknownName("nccl variant of this node", variant, collectives.variants)
        protocols = _measured(collectives.variants[variant])
        source = f"{node.name}: all-reduce measured, variant {variant!r} of {', '.join(sorted(collectives.variants))}"
        return Links(protocols, width, latency, width, True, source)
    base = _NCCL[node.topology.kind]
    ring = _RING_SHARE * width
    protocols = tuple(
        Protocol(name, b, h, share * ring)
        for name, b, h, share in (
            ("LL", base[0], base[1], _LL_SHARE),
            ("LL128", base[2], base[3], _LL128_SHARE),
            ("Simple", base[4], base[5], 1.0),
        )
        if b is not None and h is not None
    )
    return Links(
        protocols,
        width,
        latency,
        width,
        False,
        "NCCL 2.30.7 tuning constants on the node's links; nothing measured on this node",
    )


def _measured(table: AllReduce) -> tuple[Protocol, ...]:
    rows = (
        ("LL", table.base_s, table.hop_s, "ll_busbw", table.ll_until),
        ("LL128", table.ll128_base_s, table.ll128_hop_s, "ll128_busbw", table.ll128_until),
        ("Simple", table.simple_base_s, table.simple_hop_s, "simple_busbw", None),
    )
    found = []
    for name, base, hop, field, until in rows:
        width = _value(getattr(table, field))
        if base is None or hop is None or width is None or base.value is None or hop.value is None:
            continue
        by_ranks = tuple((n, _value(getattr(group, field))) for n, group in sorted(table.by_ranks.items()))
        found.append(Protocol(name, base.value, hop.value, width, by_ranks, _value(until) or float("inf")))
    return tuple(found)


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def _neighbour_path(node: Node, ranks: int) -> tuple[float, float]:
    """Narrowest bandwidth and largest latency over the paths between neighbouring GPUs of the first ``ranks``."""
    gpus = [name for name, kind in node.topology.vertices.items() if kind == "gpu"][: max(2, min(ranks, node.count))]
    if len(gpus) < 2:
        return float("inf"), 0.0
    paths = [_widest_path(node, a, b) for a, b in zip(gpus[:-1], gpus[1:], strict=True)]
    return min(width for width, _ in paths), max(latency for _, latency in paths)


def _widest_path(node: Node, start: str, goal: str) -> tuple[float, float]:
    """Bandwidth and latency of the widest path through the node's graph. [B/s], [s]"""
    edges: dict[str, list[tuple[str, float, float]]] = {}
    for link in node.topology.links:
        kind = node.topology.link_kinds[link.kind]
        width, delay = float(kind.bandwidth), float(kind.latency)
        edges.setdefault(link.a, []).append((link.b, width, delay))
        edges.setdefault(link.b, []).append((link.a, width, delay))
    queue, done = [(-float("inf"), 0.0, start)], set()
    while queue:
        width, delay, here = heapq.heappop(queue)
        if here == goal:
            return -width, delay
        if here in done:
            continue
        done.add(here)
        for there, w, d in edges.get(here, ()):
            heapq.heappush(queue, (-min(-width, w), delay + d, there))
    raise DescriptorError(f"{node.name}: no path of links between {start} and {goal}")
