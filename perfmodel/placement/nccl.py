"""NCCL as it is set up here: version, environment, transport, and from which size on it takes which protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from perfmodel.catalog import Node
from perfmodel.errors import BadInput, UnknownName
from perfmodel.placement.topology import LEVELS, Graph
from perfmodel.placement.tuning import channel_Bps, nccl_nvls_s, nccl_ring_s, nccl_tree_s

NEWEST = 30                         # NCCL 2.30, whose rules hold where no version is stated
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")     # NCCL_P2P_LEVEL=0..5
ENVIRONMENT = (
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_ALGO", "NCCL_GRAPH_FILE", "NCCL_NVLS_ENABLE",
    "NCCL_SHM_DISABLE", "NCCL_MIN_NCHANNELS", "NCCL_IB_DISABLE",
)  # fmt: skip
# Nominal link rates of NCCL in GB/s (src/graph/topo.h, topo.cc): PCIe x16 by generation; a share of a GPU's NVLinks;
# between sockets, by the first word that the CPU's name holds.
_PCIE = (96.0, 48.0, 24.0, 12.0, 6.0, 3.0)
_NVLINK_SHARE = {8: 0.8, 9: 0.824, 10: 0.802}
_SOCKETS = (("amd", 16.0), ("epyc", 16.0), ("granite", 40.0), ("sapphire", 22.0), ("emerald", 22.0), ("xeon", 10.0),
            ("intel", 10.0), ("grace", 6.0), ("power", 32.0))  # fmt: skip
UNKNOWN_SOCKET = 22.0               # assumed where the host's CPU is not stated
NIC = 50e9                          # of a rail where no NIC is in the graph [B/s]


@dataclass(frozen=True)
class Setup:
    """What the deployment and the node say about NCCL."""

    variant: str | None = None
    version: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def minor(self) -> int:
        """NCCL 2.x; the newest known where it is not stated."""
        found = re.match(r"2\.(\d{1,3})", self.version)
        return int(found[1]) if found else NEWEST

    @property
    def moves_traffic(self) -> bool:
        """Whether the environment sends messages another way than the node's own measurement did."""
        return any(key in self.environment for key in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"))


def read_setup(text: str | None, node: Node) -> Setup:
    """``tuned``, ``2.28.3``, ``NCCL_P2P_DISABLE=1`` or several of them -> a setup; the node's own holds otherwise."""
    variants = node.collectives.variants if node.collectives else {}
    variant, version, environment = None, node.nccl.version, dict(node.nccl.environment)
    given: dict[str, str] = {}
    for word in re.split(r"[\s,]+", (text or "").strip()):
        name, equals, value = word.partition("=")
        if not word:
            continue
        if equals:
            if name.upper() not in ENVIRONMENT:
                raise UnknownName("NCCL variable", name, ENVIRONMENT)
            given[name.upper()] = _value(name.upper(), value)
        elif re.fullmatch(r"v?\d+\.\d+(\.\d+)*(\S*)", word):
            version = word.removeprefix("v")
        elif word in variants:
            variant = word
        else:
            raise UnknownName("nccl variant of this node", word, variants or ("a version such as 2.28.3",))
    moved = {key for key in given if given[key] != environment.get(key)}
    return Setup(variant, version, environment | {key: given[key] for key in moved} if moved else environment)


def _value(name: str, value: str) -> str:
    value = value.strip().upper() if name != "NCCL_GRAPH_FILE" else value
    if name == "NCCL_P2P_LEVEL":
        value = _OLD_LEVELS[int(value)] if re.fullmatch("[0-5]", value) else value
        if value not in LEVELS[:-1]:
            raise BadInput(f"NCCL_P2P_LEVEL must be one of {', '.join(LEVELS[:-1])}, not {value[:40]!r}")
    if name == "NCCL_PROTO" and not set(re.split(r"[,^]", value)) & {"LL", "LL128", "SIMPLE"}:
        raise BadInput(f"NCCL_PROTO must be LL, LL128 or Simple, not {value[:40]!r}")
    if name == "NCCL_ALGO" and not set(re.split(r"[,^]", value)) & {"RING", "TREE", "NVLS"}:
        raise BadInput(f"NCCL_ALGO must be Ring, Tree or NVLS, not {value[:40]!r}")
    return value


def peer_to_peer(graph: Graph, gpus: Sequence[str], setup: Setup) -> bool:
    """Whether NCCL lets all neighbours of the ring copy directly."""
    return staged_share(graph, gpus, setup) == 0


def staged_share(graph: Graph, gpus: Sequence[str], setup: Setup) -> float:
    """Share of the ring's steps inside machines that go through the host's memory. [1]

    NCCL decides pair by pair: peer access works and the path is near enough. Source: NCCL 2.30.7 src/graph/paths.cc,
    ncclTopoCheckP2p: up to PXB by default, up to SYS for two GPUs on AMD hosts.
    """
    pairs = [
        (a, b) for a, b in zip(gpus, [*gpus[1:], gpus[0]], strict=True) if graph.machine_of[a] == graph.machine_of[b]
    ]
    if setup.environment.get("NCCL_P2P_DISABLE", "0") not in ("0", ""):
        return 1.0
    amd = graph.node.host.cpu.lower()
    default = "SYS" if len(graph.gpus) <= 2 and ("amd" in amd or "epyc" in amd) else "PXB"
    limit = LEVELS.index(setup.environment.get("NCCL_P2P_LEVEL", default))
    staged = [not graph.peer_access(a, b) or LEVELS.index(graph.path(a, b).level) > limit for a, b in pairs]
    return sum(staged) / max(1, len(staged))


@dataclass(frozen=True, slots=True)
class Search:
    """What NCCL's graph search finds for a group: bandwidth, channels, and whether it had to give up."""

    graph_Bps: float
    channels: int
    nvlink: bool
    port_Bps: float
    fallback: bool


def search(graph: Graph, gpus: Sequence[str], capability: float, setup: Setup) -> Search:
    """Channels times speed of NCCL's ring inside a machine, from its nominal link rates.

    Source: NCCL 2.30.7 src/graph/search.cc; a graph file names the rates itself, so the link's own holds then.
    """
    local = [gpu for gpu in gpus if graph.machine_of[gpu] == graph.machine_of[gpus[0]]]
    if graph.all_nvlink(gpus) and len(local) > 1:  # one GPU a machine has no ring inside it
        port = graph.ring_Bps(local) * _NVLINK_SHARE[min(10, max(8, int(capability)))]
        speed = channel_Bps(port, capability, setup.minor)
        count = max(1, int(port / speed))
        if speed >= 25e9 and not (capability > 8 and speed < 50e9 and count > 4):
            count, speed = 2 * count, speed / 2
        return Search(count * speed, count, True, port, False)
    port = min(graph.edges[gpu][there].bandwidth_Bps for gpu in local for there in graph.edges[gpu])
    nominal = 1e9 * next((rate for rate in _PCIE if rate * 1e9 <= 1.05 * port), _PCIE[-1])
    pairs = list(zip(local, [*local[1:], local[0]], strict=True))
    across = any(graph.path(a, b).level == "SYS" for a, b in pairs)
    if across and "NCCL_GRAPH_FILE" not in setup.environment:
        cpu = graph.node.host.cpu.lower()
        nominal = min(nominal, 1e9 * next((rate for word, rate in _SOCKETS if word in cpu), UNKNOWN_SOCKET))
    speed = channel_Bps(nominal, capability, setup.minor)
    return Search(speed, 2 if speed >= 25e9 else 1, False, port, speed < 1e9)


@lru_cache(maxsize=512)
def limits(op: str, ranks: int, machines: int, found: Search, network_Bps: float, capability: float, nvls: bool,
           protocols: tuple[str, ...], ring: bool = True, tree: bool = True) -> tuple[tuple[str, float], ...]:
    """(algorithm and protocol, largest message that NCCL takes it for), smallest first; the last one has no limit."""
    sizes = 2.0 ** np.arange(6, 34, 1 / 16)
    width = min(found.graph_Bps, network_Bps)
    steps = 2 * (ranks - 1) if op == "all_reduce" else ranks - 1
    inter = 0 if machines == 1 else 2 * machines if op == "all_reduce" else machines - 1
    names, times = list(protocols), list(nccl_ring_s(sizes, steps, ranks, inter, width, found.channels, capability,
                                                     found.nvlink))
    times = [time for name, time in zip(("LL", "LL128", "Simple"), times, strict=True) if name in protocols]
    if not ring:
        names, times = [], []
    if op == "all_reduce" and machines > 1 and tree:
        trees = nccl_tree_s(sizes, ranks, machines, width, found.channels, capability, found.nvlink)
        for name, time in zip(("LL", "LL128", "Simple"), trees, strict=True):
            if name in protocols:
                names.append(f"Tree {name}")
                times.append(time)
    if op == "all_reduce" and nvls and found.nvlink and ("Simple" in protocols or not protocols):
        names.append("NVLS")
        nvls_s = nccl_nvls_s(sizes, ranks, machines, found.port_Bps, capability)
        times.append(np.maximum(nvls_s, sizes / network_Bps) if machines > 1 else nvls_s)
    chosen = np.argmin(np.stack(times), axis=0)
    last = {int(index): float(size) for index, size in zip(chosen, sizes, strict=True)}
    ordered = sorted(last.items(), key=lambda item: item[1])
    return tuple(
        (names[index], size if i < len(ordered) - 1 else float("inf")) for i, (index, size) in enumerate(ordered)
    )
