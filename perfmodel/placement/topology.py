"""Questions to a node's graph: paths, how far two GPUs are apart, what a link carries when many talk at once."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfmodel.catalog import Node
from perfmodel.errors import DescriptorError

# From nearest to farthest, in NCCL's words; NET is another machine.
LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "NET")
OUTSIDE = ("rail", "network")       # what joins machines


@dataclass(frozen=True, slots=True)
class Hop:
    """One link in one direction."""

    a: str
    b: str
    bandwidth_Bps: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Path:
    """Links from one GPU to another, and how far that is."""

    hops: tuple[Hop, ...]
    level: str

    @property
    def bandwidth_Bps(self) -> float:
        """Of its narrowest link, while nobody else talks. [B/s]"""
        return min((hop.bandwidth_Bps for hop in self.hops), default=float("inf"))

    @property
    def latency_s(self) -> float:
        """Of all its links. [s]"""
        return sum(hop.latency_s for hop in self.hops)


class Graph:
    """A node's topology, ready to be asked. Paths are computed once."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kinds = node.topology.vertices
        self.edges: dict[str, dict[str, Hop]] = {name: {} for name in self.kinds}
        for link in node.topology.links:
            kind = node.topology.link_kinds[link.kind]
            width, delay = link.count * float(kind.bandwidth), float(kind.latency)
            self.edges[link.a][link.b] = Hop(link.a, link.b, width, delay)
            self.edges[link.b][link.a] = Hop(link.b, link.a, width, delay)
        self._paths: dict[tuple[str, str], Path] = {}
        self._stated = {frozenset((pair.a, pair.b)): pair.p2p for pair in node.p2p_pairs}

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPUs in the order of the file, which is the order of ranks."""
        return tuple(name for name, kind in self.kinds.items() if kind == "gpu")

    @cached_property
    def _onward(self) -> dict[str, dict[int | None, tuple[tuple[int, str], ...]]]:
        """Numbered neighbours through which a path can go on, by machine: no GPU and no machine forwards for others."""
        found: dict[str, dict[int | None, tuple[tuple[int, str], ...]]] = {}
        for here, around in self.edges.items():
            of_machine: dict[int | None, list[tuple[int, str]]] = {}
            for number, there in enumerate(around):
                if self.kinds[there] != "gpu":
                    of_machine.setdefault(self.machine_of.get(there), []).append((number, there))
            found[here] = {machine: tuple(several) for machine, several in of_machine.items()}
        return found

    @cached_property
    def machine_of(self) -> dict[str, int]:
        """Machine of every vertex: what stays joined when rails and network are taken away."""
        found: dict[str, int] = {}
        for gpu in self.gpus:
            if gpu in found:
                continue
            number, queue = len(set(found.values())), [gpu]
            for here in queue:                          # grows while it is walked
                found[here] = number
                queue += [there for there in self.edges[here]
                          if there not in found and there not in queue and self.kinds[there] not in OUTSIDE]
        return found

    def machines(self, gpus: Iterable[str]) -> int:
        """Machines that these GPUs sit in."""
        return len({self.machine_of[gpu] for gpu in gpus})

    def path(self, a: str, b: str) -> Path:
        """The way that NCCL takes: NVLink before PCIe before the network, then few links, then wide ones."""
        if (a, b) not in self._paths:
            self._paths[a, b] = self._search(a, b)
        return self._paths[a, b]

    def _search(self, a: str, b: str) -> Path:
        queue: list[tuple[float, int, float, int, str, tuple[Hop, ...]]] = [(0.0, 0, 0.0, 0, a, ())]
        done: set[str] = set()
        ticket = 0                                      # breaks ties, so that what was found first comes first
        inside = {None, self.machine_of.get(a), self.machine_of.get(b)}
        while queue:
            cost, links, narrow, _, here, hops = heapq.heappop(queue)
            if here == b:
                return Path(hops, self._level(a, hops))
            if here in done:
                continue
            done.add(here)
            last = (b,) if self.kinds.get(b) == "gpu" and b in self.edges[here] else ()
            near = self._onward[here]
            onward = sorted(pair for machine in inside for pair in near.get(machine, ()))
            for there in (*(name for _, name in onward), *last):
                hop = self.edges[here][there]
                ticket += 1
                narrower = max(narrow, 1 / hop.bandwidth_Bps)
                heapq.heappush(queue, (cost + self._far(here, there), links + 1, narrower, ticket, there, (*hops, hop)))
        raise DescriptorError(f"{self.node.name}: no path of links between {a} and {b}")

    def _far(self, here: str, there: str) -> float:
        """Distance of a link: between sockets farther than any tree below one, the network farther than that."""
        ends = {self.kinds[here], self.kinds[there]}
        if ends & set(OUTSIDE):
            return 1e4
        if ends == {"socket"}:
            return 1e2
        return 0.0 if ends <= {"gpu", "nvswitch"} else 1.0

    def _level(self, start: str, hops: Sequence[Hop]) -> str:
        if not hops:
            return "LOC"
        ends = [(self.kinds[hop.a], self.kinds[hop.b]) for hop in hops]
        if self.machine_of[start] != self.machine_of[hops[-1].b]:
            return "NET"
        if any(set(pair) == {"socket"} for pair in ends):
            return "SYS"
        inner = [pair[1] for pair in ends[:-1]]
        if any(kind in ("socket", "root") for kind in inner):
            return "PHB"
        switches = inner.count("switch")
        return "NVL" if not switches else "PIX" if switches == 1 else "PXB"

    # ------------------------------------------------------------ contention

    def load(self, flows: Iterable[tuple[str, str]]) -> Counter[Hop]:
        """How many of these flows every link carries, per direction."""
        return Counter(hop for a, b in flows for hop in self.path(a, b).hops)

    def shared_Bps(self, flows: Iterable[tuple[str, str]]) -> float:
        """What the slowest of these flows gets when all run at once and every link is shared fairly. [B/s]"""
        return min((hop.bandwidth_Bps / count for hop, count in self.load(flows).items()), default=float("inf"))

    def ring_Bps(self, gpus: Sequence[str]) -> float:
        """Bandwidth of a ring over these GPUs; between machines all their NICs carry a channel each. [B/s]"""
        if len(gpus) < 2:
            return float("inf")
        if all(b in self.edges[a] for a in gpus for b in gpus if a != b):       # a full mesh: one ring a link
            return min(sum(self.edges[a][b].bandwidth_Bps for b in gpus if b != a) for a in gpus)
        flows = [(a, b) for a, b in zip(gpus, [*gpus[1:], gpus[0]], strict=True)]
        inside = [(a, b) for a, b in flows if self.machine_of[a] == self.machine_of[b]]
        if len(inside) == len(flows):
            return self.shared_Bps(flows)
        return min(self.shared_Bps(inside), min(self.uplink_Bps(self.machine_of[gpu]) for gpu in gpus))

    def exchange_Bps(self, gpus: Sequence[str]) -> float:
        """What one GPU sends to all others together while all do the same. [B/s]"""
        if len(gpus) < 2:
            return float("inf")
        members: dict[int, list[str]] = {}
        for gpu in gpus:
            members.setdefault(self.machine_of[gpu], []).append(gpu)
        inside = [(a, b) for machine in members.values() for a in machine for b in machine if a != b]
        rate = self.shared_Bps(inside) * (len(gpus) - 1)
        if len(members) > 1:
            away = max(len(here) * (len(gpus) - len(here)) / self.uplink_Bps(number)
                       for number, here in members.items())
            rate = min(rate, (len(gpus) - 1) / away)
        return rate

    def host_Bps(self, a: str, b: str, staged: bool) -> float:
        """Bandwidth of the path; through the host's memory that of the GPU's own PCIe port, if the file has one."""
        ports = [hop.bandwidth_Bps for gpu in (a, b) for there, hop in self.edges[gpu].items()
                 if self.kinds[there] in ("socket", "root", "switch")]
        path = self.path(a, b)
        return min(ports) if staged and path.level == "NVL" and ports else path.bandwidth_Bps

    def uplink_Bps(self, machine: int) -> float:
        """Bandwidth of a machine to the outside, one direction, all NICs. [B/s]"""
        return self._uplinks.get(machine, float("inf"))

    @cached_property
    def _uplinks(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for name, number in self.machine_of.items():
            for there, hop in self.edges[name].items():
                if self.kinds[there] in OUTSIDE:
                    found[number] = found.get(number, 0.0) + hop.bandwidth_Bps
        return found

    # ------------------------------------------------------------ peer access

    def peer_access(self, a: str, b: str) -> bool:
        """Whether the node lets one of these GPUs read the other's memory."""
        level = self.path(a, b).level
        if level == "NET":
            return False
        if (stated := self._stated.get(frozenset((a, b)))) is not None:
            return stated
        if level == "NVL":
            return True
        return bool(self.node.p2p) if self.node.p2p != "within_socket" else level != "SYS"

    def all_nvlink(self, gpus: Sequence[str]) -> bool:
        """Whether the ring over these GPUs runs over NVLink alone, inside every machine."""
        pairs = zip(gpus, [*gpus[1:], gpus[0]], strict=True)
        return (
            all(self.path(a, b).level in ("LOC", "NVL", "NET") for a, b in pairs)
            and self.node.topology.kind == "nvlink"
        )
