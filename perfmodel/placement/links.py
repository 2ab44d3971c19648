"""Links of a group of ranks, and what NCCL's protocols cost there: measured on the node, else of its class of links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.catalog import Accelerator, AllReduce, Fabric, Node, load_fabric, names
from perfmodel.deployment import Deployment
from perfmodel.errors import DescriptorError, IllegalDeployment
from perfmodel.placement.nccl import NIC, Search, Setup, limits, peer_to_peer, read_setup, search, staged_share
from perfmodel.placement.peers import CLASS_GPUS, peers_Bps, sums_in_switch
from perfmodel.placement.protocols import (
    RING_OPS,
    Protocol,
    algorithm_word,
    bound_by_channels,
    endless,
    no_later_than_they_meet,
    on_nvlink5,
    protocol_word,
    read_protocols,
    settled,
)
from perfmodel.placement.topology import Graph

_TREE_SHARE = 0.92       # of the ring's bandwidth: NCCL 2.30.7 src/graph/tuning.cc
# Of a GPU's link to the host that one message staged through memory reaches: 36.5 of 55.5 GB/s. Kind: measured, send
# over 2 H200 with NCCL_P2P_DISABLE=1, hardware/observations/h200-probe-2026-11.csv.
_STAGED_SHARE = 0.66
_FEW_CHANNELS = 0.5     # of the bandwidth where NCCL falls back to two channels: 22 against 40 GB/s, sjug/rtx6kpro


@dataclass(frozen=True)
class Links:
    """What the groups of a deployment talk over. ``measured``: the node's own collectives were."""

    graph: Graph
    accelerator: Accelerator
    setup: Setup
    figures: AllReduce | None
    hop_Bps: float          # slowest link between neighbouring pipeline stages
    hop_latency_s: float
    source: str
    hop_staged: bool = False    # a hop between stages goes through the host's memory
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def measured(self) -> bool:
        """The node's own all-reduce was measured; else the figures of its class of links."""
        return self.figures is not None

    def gpus(self, ranks: int) -> tuple[str, ...]:
        """The GPUs of a group: the first ones, since groups take consecutive devices."""
        return self.graph.gpus[:ranks]

    def own(self, op: str, ranks: int = 1) -> AllReduce | None:
        """The node's own figures for an operation; a ring's all-reduce stands for its gather and scatter too.

        Figures of one machine of several do not hold for a group that spans them.
        """
        if self.figures is None or ranks > (self.graph.node.machine_gpus or ranks):
            return None
        return self.figures.ops.get(op) or (self.figures if op in RING_OPS else None)    # type: ignore[call-overload]

    def protocols(self, op: str, ranks: int) -> tuple[Protocol, ...]:
        """What NCCL chooses from, in the order of their limits."""
        key = ("protocols", op, ranks)
        if key not in self._cache:
            own, count = self.own(op, ranks), self.graph.node.machine_gpus or self.graph.node.count
            found = (settled(op, ranks, read_protocols(own, op, ranks, count)) if own
                     else self._of_class(op, ranks))
            wanted = self._wanted(tuple(p.name for p in found))
            kept = tuple(p for p in found if p.name in wanted)
            last = kept[-1:] if all(math.isfinite(p.until_bytes) for p in kept) else ()
            self._cache[key] = tuple(endless(p) if p in last else p for p in kept)
        return self._cache[key]

    def everything(self, op: str, ranks: int) -> tuple[Protocol, ...]:
        """All protocols that have figures here, also those that NCCL's tuning model never takes."""
        chosen = self.protocols(op, ranks)
        if self.own(op, ranks) is not None:
            return chosen
        rest = self._class_table(op, ranks)
        return (*chosen, *(p for name, p in rest.items() if name not in {p.name for p in chosen}))

    def _wanted(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """Protocols that NCCL_PROTO and NCCL_ALGO leave."""
        rest = found
        for variable, word_of in (("NCCL_PROTO", protocol_word), ("NCCL_ALGO", algorithm_word)):
            text = self.setup.environment.get(variable, "")
            stated = {word.strip().lower() for word in text.removeprefix("^").split(",") if word.strip()}
            rest = tuple(name for name in rest if not stated or (word_of(name) in stated) != text.startswith("^"))
            if not rest:
                raise IllegalDeployment(f"{variable}={text} leaves no protocol on {self.graph.node.name}",
                                        [f"it runs {', '.join(found)}"])
        return rest

    # ------------------------------------------------------------ class of links

    def search(self, ranks: int) -> Search:
        """What NCCL's graph search finds for this group."""
        key = ("search", ranks)
        if key not in self._cache:
            self._cache[key] = search(self.graph, self.gpus(ranks), self.capability, self.setup)
        return self._cache[key]

    def transport(self, ranks: int) -> str:
        """nvlink, pcie, or host: staged through the host's memory."""
        gpus = self.gpus(ranks)
        peers = peer_to_peer(self.graph, gpus, self.setup)
        if self.graph.all_nvlink(gpus) and peers:
            return "nvlink"
        return "pcie" if peers else "host"

    def _staged(self, ranks: int) -> float:
        return staged_share(self.graph, self.gpus(ranks), self.setup)

    def fabric(self, ranks: int) -> Fabric:
        """The class of links of a group."""
        return fabric_for(self.transport(ranks), self.capability)

    def _of_class(self, op: str, ranks: int) -> tuple[Protocol, ...]:
        """Figures of the class, scaled by this node's links; NCCL's own choice between them."""
        table = self._class_table(op, ranks)
        if op not in RING_OPS:                          # NCCL has no tuning model for these: the fastest line
            return tuple(map(endless, table.values()))
        order = self._order(op, ranks, tuple(table))
        return no_later_than_they_meet(op, ranks, [replace(table[name], until_bytes=until) for name, until in order])

    def _class_table(self, op: str, ranks: int) -> dict[str, Protocol]:
        fabric, gpus = self.fabric(ranks), self.gpus(ranks)
        machines = self.graph.machines(gpus)
        local = max(2, ranks // machines)
        figures = fabric.figures.ops.get(op) or fabric.figures               # type: ignore[call-overload]
        inside = [gpu for gpu in gpus if self.graph.machine_of[gpu] == 0]
        widths = {"all_to_all": self.graph.exchange_Bps, "send_recv": self._neighbours_Bps}
        rate = widths.get(op, self.graph.ring_Bps)(inside if len(inside) > 1 else gpus)
        table = self._scaled(fabric, figures, op, local, rate)
        if op in RING_OPS and not self.search(ranks).nvlink and fabric.transport != "nvlink":
            table.pop("LL128", None)
        return self._across(table, op, ranks, machines) if machines > 1 else table

    def _neighbours_Bps(self, gpus: Sequence[str]) -> float:
        """What each GPU sends to its neighbour while all do, over the one path between them. [B/s]"""
        return self.graph.shared_Bps(list(zip(gpus, [*gpus[1:], gpus[0]], strict=True)))

    def _scaled(self, fabric: Fabric, figures: AllReduce, op: str, ranks: int, rate_Bps: float) -> dict[str, Protocol]:
        """The class's figures for a group inside a machine whose links carry ``rate_Bps``."""
        link, found = float(fabric.bandwidth), self.search(ranks)
        scale = 1.0 if fabric.transport == "pcie" else rate_Bps / link
        table = {p.name: p for p in read_protocols(figures, op, ranks, CLASS_GPUS, scale)}
        if fabric.transport == "host" and op in RING_OPS and (share := self._staged(ranks)) < 1:
            pcie = fabric_for("pcie", self.capability).figures
            near = {p.name: p for p in read_protocols(pcie, op, ranks, CLASS_GPUS)}
            table = {name: replace(p, hop_s=share * p.hop_s + (1 - share) * near[name].hop_s)
                     for name, p in table.items() if name in near}
        if fabric.transport == "pcie":
            groups = [read_protocols(fabric.figures, "all_reduce", n, CLASS_GPUS) for n in (2, 4, CLASS_GPUS)]
            widest = {p.name: p for p in sorted((p for group in groups for p in group), key=lambda p: p.busbw_Bps)}
            table = bound_by_channels(table, widest, op, ranks, rate_Bps, link, float(fabric.peers))
            share = _FEW_CHANNELS if found.fallback else 1.0
            table = {name: replace(p, busbw_Bps=share * p.busbw_Bps) for name, p in table.items()}
        if fabric.transport == "nvlink" and self.capability >= 10 and op in RING_OPS:
            table = on_nvlink5(table, scale, found.channels, ranks)
        return table

    def _order(self, op: str, ranks: int, known: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
        """Which of these protocols NCCL's tuning model runs, each up to which message."""
        found, gpus = self.search(ranks), self.gpus(ranks)
        if found.nvlink and self.transport(ranks) != "nvlink":
            found = Search(20e9, 1, False, found.port_Bps, False)       # its NVLinks unused: one PCIe ring
        nvls = "NVLS" in known and self.setup.environment.get("NCCL_NVLS_ENABLE", "1") != "0"
        wanted = tuple(name for name in ("LL", "LL128", "Simple") if protocol_word(name) in {
            protocol_word(name) for name in self._wanted(tuple(known))})
        algorithms = frozenset(algorithm_word(name) for name in self._wanted(tuple(known)))
        return limits(op, ranks, self.graph.machines(gpus), found, self.network_Bps(gpus), self.capability,
                      nvls and "nvls" in algorithms, wanted, "ring" in algorithms, "tree" in algorithms)

    def chosen(self, op: str, ranks: int, message_bytes: Any) -> list[str]:
        """The protocol that NCCL's tuning model runs for every message of a ring."""
        known = ("LL", "LL128", "Simple", "NVLS") if self.transport(ranks) == "nvlink" else ("LL", "Simple")
        order = self._order(op, ranks, known)
        return [next(name for name, until in order if size <= until) for size in message_bytes]

    @property
    def capability(self) -> float:
        """Of the GPU, for NCCL's tables; RCCL on AMD is taken as NCCL on Ampere (assumed)."""
        return self.accelerator.compute_capability if self.accelerator.vendor == "nvidia" else 8.0

    def network_Bps(self, gpus: tuple[str, ...]) -> float:
        """What all NICs of the narrowest of these machines carry, one direction; infinite inside one machine."""
        if self.graph.machines(gpus) == 1:
            return math.inf
        rate = min(self.graph.uplink_Bps(self.graph.machine_of[gpu]) for gpu in gpus)
        return rate if math.isfinite(rate) else NIC

    def _across(self, table: dict[str, Protocol], op: str, ranks: int, machines: int) -> dict[str, Protocol]:
        """The same protocols with steps over the network, and trees for an all-reduce."""
        net, gpus = load_fabric("network"), self.gpus(ranks)
        far = max(self.graph.path(gpus[0], gpu).latency_s for gpu in gpus)
        hops = {p.name: p.hop_s for p in read_protocols(net.figures, op, machines, CLASS_GPUS)}
        width = self.network_Bps(gpus)
        if op == "send_recv":                           # one message takes the NIC of its GPU, not all of them
            width = min(width, *(self.graph.path(a, b).bandwidth_Bps for a, b in zip(gpus, [*gpus[1:], gpus[0]],
                                                                                      strict=True)))
        shares = {p.name: p.busbw_Bps / float(net.bandwidth)
                  for p in read_protocols(net.figures, op, machines, CLASS_GPUS)}
        steps = {"all_reduce": 2 * machines, "all_to_all": 0, "send_recv": 1}.get(op, machines - 1)
        out: dict[str, Protocol] = {}
        for name, p in table.items():
            kind = "Simple" if name == "NVLS" else name
            hop = hops[kind] + far
            reach = 2 * (ranks - 1) / ranks if name == "NVLS" else 1.0  # NVLS sums inside: a NIC carries a byte once
            rate = min(p.busbw_Bps, math.inf if op == "all_to_all" else shares[kind] * width * reach)
            if op == "all_to_all":
                rate = min(rate, shares[kind] * self.graph.exchange_Bps(gpus))
            far_steps = 2 * math.floor(math.log2(machines)) if name == "NVLS" else steps    # NVLS with a tree between
            out[name] = replace(p, base_s=p.base_s + far_steps * (hop - p.hop_s), busbw_Bps=rate)
            if op == "all_reduce" and name != "NVLS":
                out[f"Tree {name}"] = Protocol(
                    f"Tree {name}", p.base_s, p.hop_s, _TREE_SHARE * rate, inner_steps=2 * (ranks / machines - 1),
                    outer_steps=2 * math.floor(math.log2(machines)), net_hop_s=hop)
        return out

    # ------------------------------------------------------------ kernels that skip NCCL

    def peer_Bps(self, ranks: int, kernel: str = "custom_one_shot") -> float:
        """What one GPU reads from all its peers while all read, in an all-reduce kernel. [B/s]"""
        key = ("peer", ranks, kernel)
        if key not in self._cache:
            shares = {kind: float(fabric_for(kind, self.capability).peers) for kind in ("nvlink", "pcie")}
            self._cache[key] = peers_Bps(self.graph, self.gpus(max(2, ranks)), shares, kernel, self.capability)
        return self._cache[key]

    def multimem(self, ranks: int) -> bool:
        """Whether PyTorch's symmetric-memory all-reduce is summed by the switch."""
        return sums_in_switch(self.graph, self.gpus(ranks), self.capability)

    def spread(self, op: str, ranks: int) -> tuple[float, float]:
        """What the description leaves open, as deviations of the logarithm: of latencies, of bandwidths."""
        if self.own(op, ranks) is not None or ranks < 2:
            return 0.0, 0.0
        fabric = self.fabric(ranks)
        return float(fabric.latency_sd), float(fabric.bandwidth_sd)

    def origin(self, op: str, ranks: int) -> str:
        """Where the figures of an operation come from."""
        if self.own(op, ranks) is not None or ranks < 2:
            return self.source
        fabric, found = self.fabric(ranks), self.search(ranks)
        what = "gives up its graph search (0.1 GB/s)" if found.fallback else (
            f"finds {found.channels} channels, {found.graph_Bps / 1e9:g} GB/s")
        version = self.setup.version or f"2.{self.setup.minor} (newest known; not stated)"
        return (f"{self.graph.node.name}: {op} over {ranks} GPUs was not measured there; figures of the class "
                f"{fabric.name!r} on its links; NCCL {version} {what}")


def fabric_for(transport: str, capability: float) -> Fabric:
    """The class of links with this transport whose range of compute capabilities holds the GPU."""
    found = [load_fabric(name) for name in names("fabric")]
    fitting = [f for f in found if f.transport == transport]
    inside = [
        f
        for f in fitting
        if not f.compute_capability or f.compute_capability[0] <= capability < f.compute_capability[1]
    ]
    return (inside or fitting)[0]


def links_of(deployment: Deployment) -> Links:
    """Graph, figures and NCCL set-up for this deployment's node; kept, since a search asks a thousand times."""
    node, accelerator, options = deployment.node, deployment.accelerator, deployment.options
    key = (id(node), id(accelerator), options.nccl, max(1, options.world), options.tp if options.pp > 1 else 1)
    links = _KEPT.get(key)
    if links is None or links.graph.node is not node or links.accelerator is not accelerator:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        links = _KEPT[key] = links_for(node, accelerator, options.nccl, key[3], stage=key[4])
    return links


_KEPT: dict[tuple[int, int, str | None, int, int], Links] = {}
_MOST_KEPT = 64
_GRAPHS: list[Graph] = []       # of the nodes asked about last: paths are found once


def _graph_of(node: Node) -> Graph:
    found = next((graph for graph in _GRAPHS if graph.node is node), None)
    if found is None:
        found = Graph(node)
        _GRAPHS.insert(0, found)
        del _GRAPHS[4:]
    return found


def links_for(node: Node, accelerator: Accelerator, nccl: str | None = None, world: int = 2,
              figures: AllReduce | None = None, own: bool = True, stage: int = 1) -> Links:
    """Links of a node without a deployment; ``figures`` stand in for the node's own, which ``own=False`` leaves out.

    ``stage``: ranks of a pipeline stage, which send to the next one at once.
    """
    graph, setup = _graph_of(node), read_setup(nccl, node)
    _check(graph, accelerator)
    width, latency, staged = _neighbour_path(graph, world, setup, stage)
    variant = _variant(node, setup) if own and figures is None else None
    source = "figures of the class of links; nothing measured on this node"
    if figures is not None:
        source = f"{node.name}: figures given"
    elif variant is not None and node.collectives is not None:
        figures, known = node.collectives.variants[variant], ", ".join(sorted(node.collectives.variants))
        source = f"{node.name}: all-reduce measured, variant {variant!r} of {known}"
    return Links(graph, accelerator, setup, figures, width, latency, source, staged)


def _variant(node: Node, setup: Setup) -> str | None:
    """The node's measurement that holds for this set-up: the named one, one with this environment, else the default."""
    if node.collectives is None:
        return None
    if setup.variant:
        return setup.variant
    if not setup.moves_traffic or setup.environment == dict(node.nccl.environment):
        return node.collectives.default
    return next((name for name, table in node.collectives.variants.items()
                 if table.environment and table.environment.items() <= setup.environment.items()), None)


def _neighbour_path(graph: Graph, ranks: int, setup: Setup, stage: int = 1) -> tuple[float, float, bool]:
    """Narrowest bandwidth and largest latency between neighbours of the first ``ranks`` GPUs; whether one is staged.

    Between machines the neighbour of a rank has its place in the next stage, and ranks of a stage share the NICs.
    """
    gpus = graph.gpus[: max(2, min(ranks, graph.node.count))]
    if len(gpus) < 2:
        return float("inf"), 0.0, False
    widths, delays, off = [], [], setup.environment.get("NCCL_P2P_DISABLE", "0") not in ("0", "")
    through_host = []
    for at in range(0, len(gpus) - stage, stage):
        leaving = [(a, b) for a, b in zip(gpus[at:at + stage], gpus[at + stage:at + 2 * stage], strict=False)
                   if graph.machine_of[a] != graph.machine_of[b]]
        if leaving:
            widths.append(graph.shared_Bps(leaving))
            delays.append(max(graph.path(a, b).latency_s for a, b in leaving))
    for a, b in zip(gpus[:-1], gpus[1:], strict=True):
        if graph.machine_of[a] != graph.machine_of[b]:
            continue
        path = graph.path(a, b)
        through_host.append(off or not graph.peer_access(a, b))
        widths.append((_STAGED_SHARE if through_host[-1] else 1.0) * graph.host_Bps(a, b, through_host[-1]))
        delays.append(path.latency_s)
    return min(widths), max(delays), any(through_host)


def _check(graph: Graph, accelerator: Accelerator) -> None:
    """Refuse a node whose links carry more than its accelerators can: a wrong count or a wrong bandwidth."""
    node = graph.node
    most = {"nvlink": accelerator.link.nvlink, "host": accelerator.link.host}
    for gpu in graph.gpus:
        sums = {"nvlink": 0.0, "host": 0.0}
        for there, hop in graph.edges[gpu].items():
            if graph.kinds[there] in ("gpu", "nvswitch"):
                sums["nvlink"] += hop.bandwidth_Bps
            elif graph.kinds[there] in ("socket", "root", "switch"):
                sums["host"] += hop.bandwidth_Bps
        for name, total in sums.items():
            figure = most[name]
            limit = 0.0 if figure is None else figure.value
            if limit is not None and total > 1.05 * limit:
                raise DescriptorError(f"{node.name}: {gpu} has {total / 1e9:g} GB/s of {name} links, "
                                        f"{accelerator.name} has {limit / 1e9:g} GB/s")
