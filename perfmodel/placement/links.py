"""Links of a group of ranks, and what NCCL's protocols cost there: measured on the node, else of its class of links."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.catalog import Accelerator, AllReduce, Fabric, Figure, Node, load_fabric, names
from perfmodel.deployment import Deployment
from perfmodel.errors import DescriptorError, IllegalDeployment
from perfmodel.placement.nccl import NIC, Search, Setup, limits, peer_to_peer, read_setup, search
from perfmodel.placement.topology import Graph

RING_OPS = ("all_reduce", "all_gather", "reduce_scatter")
# A kernel with few peers keeps few NVLink reads in flight: 290 GB/s x2, 336 x4, 375 x8 of 450. Kind: derived from the
# custom all-reduce of vLLM 0.24.0 and SGLang 0.5.14 on H200, aiconfigurator-core 0.12.0.
_FEW_PEERS = 0.4
CLASS_GPUS = 8          # GPUs behind the widest figures of a class of links
_MISS = 0.15            # 90th percentile of what three straight lines miss a measured curve by
_TREE_SHARE = 0.92       # of the ring's bandwidth: NCCL 2.30.7 src/graph/tuning.cc
_FEW_CHANNELS = 0.5     # of the bandwidth where NCCL falls back to two channels: 22 against 40 GB/s, sjug/rtx6kpro


@dataclass(frozen=True)
class Protocol:
    """One NCCL protocol for one operation and group: start-up, one step, bus bandwidth, copy of a rank's own share.

    ``until_bytes`` is the largest message that NCCL runs it for; infinite where the fastest protocol is taken.
    """

    name: str
    base_s: float
    hop_s: float
    busbw_Bps: float
    until_bytes: float = math.inf
    copy_Bps: float = math.inf
    inner_steps: float = 0.0        # of a tree, inside a machine and between machines
    outer_steps: float = 0.0
    net_hop_s: float = 0.0

    @property
    def tree(self) -> bool:
        """Whether it runs up and down a tree; else around a ring, or through the switch."""
        return self.name.startswith("Tree")

    def line(self, op: str, ranks: int) -> tuple[float, float]:
        """Seconds of an empty message and of each byte: where two of these lines meet, the faster protocol changes."""
        if self.tree:
            return self.base_s + self.inner_steps * self.hop_s + self.outer_steps * self.net_hop_s, 2 / self.busbw_Bps
        steps = {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(op, ranks - 1)
        share = 1.0 if op == "send_recv" else steps / ranks
        return self.base_s + steps * self.hop_s, share / self.busbw_Bps + 1 / (ranks * self.copy_Bps)


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
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def measured(self) -> bool:
        """The node's own all-reduce was measured; else the figures of its class of links."""
        return self.figures is not None

    def gpus(self, ranks: int) -> tuple[str, ...]:
        """The GPUs of a group: the first ones, since groups take consecutive devices."""
        return self.graph.gpus[:ranks]

    def own(self, op: str) -> AllReduce | None:
        """The node's own figures for an operation; a ring's all-reduce stands for its gather and scatter too."""
        if self.figures is None:
            return None
        return self.figures.ops.get(op) or (self.figures if op in RING_OPS else None)    # type: ignore[call-overload]

    def protocols(self, op: str, ranks: int) -> tuple[Protocol, ...]:
        """What NCCL chooses from, in the order of their limits."""
        key = ("protocols", op, ranks)
        if key not in self._cache:
            own = self.own(op)
            found = (_settled(op, ranks, _measured(own, op, ranks, self.graph.node.count)) if own
                     else self._of_class(op, ranks))
            wanted = self._wanted(tuple(p.name for p in found))
            kept = tuple(p for p in found if p.name in wanted)
            last = kept[-1:] if all(math.isfinite(p.until_bytes) for p in kept) else ()
            self._cache[key] = tuple(_endless(p) if p in last else p for p in kept)
        return self._cache[key]

    def _wanted(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """Protocols that NCCL_PROTO and NCCL_ALGO leave."""
        text = self.setup.environment.get("NCCL_PROTO", "")
        stated = {word.strip().lower() for word in text.removeprefix("^").split(",") if word.strip()}
        rest = tuple(name for name in found if not stated or (
            ("simple" if name == "NVLS" else name.split()[-1].lower()) in stated) != text.startswith("^"))
        if not rest:
            raise IllegalDeployment(f"NCCL_PROTO={text} leaves no protocol on {self.graph.node.name}",
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

    def fabric(self, ranks: int) -> Fabric:
        """The class of links of a group."""
        return fabric_for(self.transport(ranks), self.capability)

    def _of_class(self, op: str, ranks: int) -> tuple[Protocol, ...]:
        """Figures of the class, scaled by this node's links; NCCL's own choice between them."""
        fabric, gpus = self.fabric(ranks), self.gpus(ranks)
        machines = self.graph.machines(gpus)
        local = max(2, ranks // machines)
        figures = fabric.figures.ops.get(op) or fabric.figures               # type: ignore[call-overload]
        ring = op in RING_OPS or op == "send_recv"
        inside = [gpu for gpu in gpus if self.graph.machine_of[gpu] == 0]
        rate = (self.graph.ring_Bps if ring else self.graph.exchange_Bps)(inside if len(inside) > 1 else gpus)
        found = self.search(ranks)
        scale = rate / float(fabric.bandwidth)
        if found.fallback and fabric.transport == "pcie":
            scale *= _FEW_CHANNELS
        table = {p.name: p for p in _measured(figures, op, local, CLASS_GPUS, scale)}
        if op in RING_OPS and not found.nvlink and fabric.transport != "nvlink":
            table.pop("LL128", None)
        if machines > 1:
            table = self._across(table, op, ranks, machines)
        if op not in RING_OPS:                          # NCCL has no tuning model for these: the fastest line
            return tuple(map(_endless, table.values()))
        order = self._order(op, ranks, tuple(table))
        return _no_later_than_they_meet(op, ranks, [replace(table[name], until_bytes=until) for name, until in order])

    def _order(self, op: str, ranks: int, known: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
        """Which of these protocols NCCL's tuning model runs, each up to which message."""
        found, gpus = self.search(ranks), self.gpus(ranks)
        if found.nvlink and self.transport(ranks) != "nvlink":
            found = Search(20e9, 1, False, found.port_Bps, False)       # its NVLinks unused: one PCIe ring
        nvls = "NVLS" in known and self.setup.environment.get("NCCL_NVLS_ENABLE", "1") != "0"
        wanted = self._wanted(tuple(name for name in ("LL", "LL128", "Simple") if name in known))
        return limits(
            op, ranks, self.graph.machines(gpus), found, self._network_Bps(gpus), self.capability, nvls, wanted
        )

    def chosen(self, op: str, ranks: int, message_bytes: Any) -> list[str]:
        """The protocol that NCCL's tuning model runs for every message of a ring."""
        known = ("LL", "LL128", "Simple", "NVLS") if self.transport(ranks) == "nvlink" else ("LL", "Simple")
        order = self._order(op, ranks, known)
        return [next(name for name, until in order if size <= until) for size in message_bytes]

    @property
    def capability(self) -> float:
        """Of the GPU, for NCCL's tables; RCCL on AMD is taken as NCCL on Ampere (assumed)."""
        return self.accelerator.compute_capability if self.accelerator.vendor == "nvidia" else 8.0

    def _network_Bps(self, gpus: tuple[str, ...]) -> float:
        if self.graph.machines(gpus) == 1:
            return math.inf
        rate = min(self.graph.uplink_Bps(self.graph.machine_of[gpu]) for gpu in gpus)
        return rate if math.isfinite(rate) else NIC

    def _across(self, table: dict[str, Protocol], op: str, ranks: int, machines: int) -> dict[str, Protocol]:
        """The same protocols with steps over the network, and trees for an all-reduce."""
        net, gpus = load_fabric("network"), self.gpus(ranks)
        far = max(self.graph.path(gpus[0], gpu).latency_s for gpu in gpus)
        hops = {p.name: p.hop_s for p in _measured(net.figures, op, machines, CLASS_GPUS)}
        width = self._network_Bps(gpus)
        shares = {p.name: p.busbw_Bps / float(net.bandwidth) for p in _measured(net.figures, op, machines, CLASS_GPUS)}
        steps = {"all_reduce": 2 * machines, "all_to_all": 0, "send_recv": 1}.get(op, machines - 1)
        out: dict[str, Protocol] = {}
        for name, p in table.items():
            kind = "Simple" if name == "NVLS" else name
            hop = hops[kind] + far
            reach = 2 * (ranks - 1) / ranks if name == "NVLS" else 1.0  # NVLS sums inside: a NIC carries a byte once
            rate = min(p.busbw_Bps, math.inf if op == "all_to_all" else shares[kind] * width * reach)
            if op == "all_to_all":
                rate = min(rate, shares[kind] * self.graph.exchange_Bps(gpus))
            out[name] = replace(p, base_s=p.base_s + steps * (hop - p.hop_s), busbw_Bps=rate)
            if op == "all_reduce" and name != "NVLS":
                out[f"Tree {name}"] = Protocol(
                    f"Tree {name}", p.base_s, p.hop_s, _TREE_SHARE * rate, inner_steps=2 * (ranks / machines - 1),
                    outer_steps=2 * math.floor(math.log2(machines)), net_hop_s=hop)
        return out

    # ------------------------------------------------------------ kernels that skip NCCL

    def peer_Bps(self, ranks: int) -> float:
        """What one GPU reads from all its peers while all read. [B/s]"""
        key = ("peer", ranks)
        if key not in self._cache:
            gpus = self.gpus(max(2, ranks))
            rate = self.graph.exchange_Bps(gpus)
            if self.graph.all_nvlink(gpus):
                share = (1 - _FEW_PEERS / len(gpus)) / (1 - _FEW_PEERS / CLASS_GPUS)
                rate *= float(fabric_for("nvlink", self.capability).peers) * min(1.0, share)
            elif len(gpus) > 2:
                port = min(hop.bandwidth_Bps for gpu in gpus for hop in self.graph.edges[gpu].values())
                rate = min(rate, float(fabric_for("pcie", self.capability).peers) * port)
            self._cache[key] = rate
        return self._cache[key]

    def spread(self, op: str, ranks: int) -> tuple[float, float]:
        """What the description leaves open, as deviations of the logarithm: of latencies, of bandwidths."""
        if self.own(op) is not None or ranks < 2:
            return 0.0, 0.0
        fabric = self.fabric(ranks)
        return float(fabric.latency_sd), float(fabric.bandwidth_sd)

    def origin(self, op: str, ranks: int) -> str:
        """Where the figures of an operation come from."""
        if self.own(op) is not None or ranks < 2:
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
    """Graph, figures and NCCL set-up for this deployment's node."""
    return links_for(deployment.node, deployment.accelerator, deployment.options.nccl, max(1, deployment.options.world))


def links_for(node: Node, accelerator: Accelerator, nccl: str | None = None, world: int = 2,
              figures: AllReduce | None = None, own: bool = True) -> Links:
    """Links of a node without a deployment; ``figures`` stand in for the node's own, which ``own=False`` leaves out."""
    graph, setup = Graph(node), read_setup(nccl, node)
    _check(graph, accelerator)
    width, latency = _neighbour_path(graph, world, accelerator)
    if figures is not None:
        return Links(graph, accelerator, setup, figures, width, latency, f"{node.name}: figures given")
    variant = _variant(node, setup) if own else None
    if variant is None or node.collectives is None:
        return Links(graph, accelerator, setup, None, width, latency,
                     "figures of the class of links; nothing measured on this node")
    source = f"{node.name}: all-reduce measured, variant {variant!r} of {', '.join(sorted(node.collectives.variants))}"
    return Links(graph, accelerator, setup, node.collectives.variants[variant], width, latency, source)


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


def _no_later_than_they_meet(op: str, ranks: int, order: list[Protocol]) -> tuple[Protocol, ...]:
    """NCCL's switches, moved down to where the curves meet if a protocol were kept beyond that.

    NCCL believes that its curves meet at the switch; where it switches too early the time jumps up, as it does.
    """
    out: list[Protocol] = []
    for p, q in itertools.pairwise(order):
        (start, per_byte), (later, less) = p.line(op, ranks), q.line(op, ranks)
        until = p.until_bytes
        if later + less * until < start + per_byte * until:
            until = max(0.0, (later - start) / (per_byte - less)) if per_byte > less else 0.0
        out.append(replace(p, until_bytes=until))
    return (*out, *order[-1:])


def _settled(op: str, ranks: int, found: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Measured limits, moved to where the lines meet if the time would fall by less than the lines miss."""
    out: list[Protocol] = []
    for p, q in itertools.pairwise(found):
        (start, per_byte), (later, less) = p.line(op, ranks), q.line(op, ranks)
        fall = (
            1 - (later + less * p.until_bytes) / (start + per_byte * p.until_bytes)
            if math.isfinite(p.until_bytes)
            else 0
        )
        out.append(_no_later_than_they_meet(op, ranks, [p, q])[0] if 0 < fall < _MISS else p)
    return (*out, *found[-1:])


def _endless(p: Protocol) -> Protocol:
    return replace(p, until_bytes=math.inf)


def _measured(table: AllReduce, op: str, ranks: int, count: int, scale: float = 1.0) -> tuple[Protocol, ...]:
    """Protocols of a table of figures for a group; those without a bandwidth for it are not used."""
    rows = (
        ("LL", table.base_s, table.hop_s, "ll_busbw", table.ll_until),
        ("LL128", table.ll128_base_s, table.ll128_hop_s, "ll128_busbw", table.ll128_until),
        ("Simple", table.simple_base_s, table.simple_hop_s, "simple_busbw", None),
        ("NVLS", table.nvls_base_s, None, "nvls_busbw", None),
    )
    copy = scale * (_value(table.copy_rate) or math.inf) if op in ("all_gather", "reduce_scatter") else math.inf
    found = []
    for name, base, hop, bandwidth, until in rows:
        start, step, width = _value(base), _value(hop), _width(table, bandwidth, ranks, count)
        if name == "NVLS" and (op != "all_reduce" or start is None):
            continue
        if start is None or width is None or step is None and name != "NVLS":
            continue
        found.append(Protocol(name, start, step or 0.0, scale * width, _value(until) or math.inf,
                              copy if name == "Simple" else math.inf))
    return tuple(found)


def _width(table: AllReduce, name: str, ranks: int, count: int) -> float | None:
    """Bus bandwidth of a group: between the measured groups around it, by the logarithm of their sizes. [B/s]

    Below the smallest it is that one's. None: the protocol is not used by the next larger group measured.
    """
    known = {size: _value(getattr(group, name)) for size, group in table.by_ranks.items()}
    if known and count <= max(known):       # figures borrowed from a larger node of the same kind
        count = 2 * max(known)
    known[count] = _value(getattr(table, name))
    above = min((size for size in known if size >= ranks), default=count)
    below = max((size for size in known if size < ranks), default=above)
    high, low = known[above], known[below]
    if high is None or low is None or above <= below:
        return high
    part = math.log(ranks / below) / math.log(above / below)
    return math.exp(part * math.log(high) + (1 - part) * math.log(low))


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def _neighbour_path(graph: Graph, ranks: int, accelerator: Accelerator) -> tuple[float, float]:
    """Narrowest bandwidth and largest latency over the paths between neighbouring GPUs of the first ``ranks``."""
    gpus = graph.gpus[: max(2, min(ranks, graph.node.count))]
    if len(gpus) < 2:
        return float("inf"), 0.0
    widths, delays = [], []
    for a, b in zip(gpus[:-1], gpus[1:], strict=True):
        path = graph.path(a, b)
        staged = path.level != "NET" and not graph.peer_access(a, b)
        fabric = fabric_for("host", accelerator.compute_capability) if staged else None
        share = float(fabric.figures.simple_busbw) / float(fabric.bandwidth) if fabric else 1.0
        widths.append(share * path.bandwidth_Bps)
        delays.append(path.latency_s)
    return min(widths), max(delays)


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
