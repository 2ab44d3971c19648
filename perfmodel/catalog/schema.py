"""The nouns: what an accelerator, node or calibration may say. A number without a source does not load.

The noun of a model is in architecture.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from perfmodel.catalog.base import (
    Compute,
    Count,
    Descriptor,
    Frequency,
    Number,
    Power,
    Rate,
    Seconds,
    Size,
    Sourced,
    Strict,
)
from perfmodel.units import split

VertexKind = Literal["gpu", "socket", "root", "switch", "nvswitch", "nic", "rail", "network"]
NVLINKS_OF_A_GPU = 18           # most that a GPU has had (Hopper, Blackwell)


# ---------------------------------------------------------------- accelerator

class Memory(Strict):
    capacity: Size          # as the vendor sells it
    total: Size             # what the driver reports as total (nvidia-smi)
    process_total: Size | None = None       # what a process sees as total (cudaMemGetInfo); null: the same
    bandwidth: Rate
    l2: Size


class PowerLimits(Strict):
    """Power by load: idle without a process, waiting with one, and held busy by products of either bound."""

    limit: Power
    idle: Power
    waiting: Power | None = None    # a process is open, nothing runs
    memory: Power | None = None     # products that read weights: decode
    compute: Power | None = None    # products bound by arithmetic: prefill


class AcceleratorLink(Strict):
    host: Rate              # PCIe, per direction
    nvlink: Rate | None = None      # per direction, all links of one GPU


class Accelerator(Descriptor):
    """One GPU, as the vendor prints it. Efficiencies are not here: they live in calibrations."""

    vendor: str
    compute_capability: float
    form: Literal["sxm", "pcie"]
    sms: Number
    clock_boost: Frequency
    memory: Memory
    power: PowerLimits
    peak: dict[str, Compute]        # dense FLOP/s by dtype
    link: AcceleratorLink


# ---------------------------------------------------------------- node

class Link(Strict):
    """``count`` equal links side by side: bonded NVLinks, NICs of one vertex."""

    a: str
    b: str
    kind: str
    count: Count = 1


class LinkKind(Strict):
    bandwidth: Rate         # per direction
    latency: Seconds

    @model_validator(mode="after")
    def _both_are_known(self) -> LinkKind:
        for name in ("bandwidth", "latency"):
            if getattr(self, name).value is None:
                raise ValueError(f"{name} has no value; a kind of link needs both, an assumption with a note will do")
        return self


class Topology(Strict):
    """The node as a graph: GPUs, root ports, switches, sockets, NVSwitches, NICs and rails joined by links.

    Machines of a cluster are what stays joined when rails and network are taken away.
    """

    kind: Literal["pcie", "nvlink"]
    vertices: dict[str, VertexKind]
    links: tuple[Link, ...] = ()
    link_kinds: dict[str, LinkKind]

    @model_validator(mode="after")
    def _links_join_known_vertices(self) -> Topology:
        seen: set[frozenset[str]] = set()
        for link in self.links:
            for end in (link.a, link.b):
                if end not in self.vertices:
                    raise ValueError(f"link {link.a} - {link.b}: {end!r} is not a vertex")
            if link.kind not in self.link_kinds:
                raise ValueError(f"link {link.a} - {link.b}: kind {link.kind!r} is not in link_kinds")
            if link.a == link.b:
                raise ValueError(f"link {link.a} - {link.b} joins a vertex to itself")
            if frozenset((link.a, link.b)) in seen:
                raise ValueError(f"link {link.a} - {link.b} appears twice; links side by side are written as count")
            seen.add(frozenset((link.a, link.b)))
        return self

    @model_validator(mode="after")
    def _all_vertices_are_joined(self) -> Topology:
        near: dict[str, list[str]] = {name: [] for name in self.vertices}
        for link in self.links:
            near[link.a].append(link.b)
            near[link.b].append(link.a)
        reached = list(self.vertices)[:1]
        found = set(reached)
        for name in reached:                        # grows while it is walked
            new = [other for other in near[name] if other not in found]
            found.update(new)
            reached += new
        lost = [name for name in self.vertices if name not in found]
        if lost:
            raise ValueError(f"no path of links between {reached[0]} and {lost[0]}")
        return self

    @model_validator(mode="after")
    def _a_gpu_has_the_ports_that_gpus_have(self) -> Topology:
        ports: dict[str, int] = {}
        bonds: dict[str, int] = {}
        for link in self.links:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                if self.vertices[here] != "gpu":
                    continue
                if self.vertices[there] in ("socket", "root", "switch"):
                    ports[here] = ports.get(here, 0) + link.count
                elif self.vertices[there] == "gpu":
                    bonds[here] = bonds.get(here, 0) + link.count
        for gpu, count in ports.items():
            if count > 1:
                raise ValueError(f"{gpu} has {count} PCIe links; a GPU has one")
        for gpu, count in bonds.items():
            if count > NVLINKS_OF_A_GPU:
                raise ValueError(f"{gpu} has {count} NVLinks; a GPU has at most {NVLINKS_OF_A_GPU}")
        return self


class Host(Strict):
    cpu: str = ""
    sockets: Count = 1
    memory: Size | None = None
    note: str = ""


CollectiveName = Literal["all_gather", "reduce_scatter", "all_to_all", "send_recv"]


class GroupBandwidth(Strict):
    """Bus bandwidth of a group of another size; null where that protocol is not used or was not measured."""

    ll_busbw: Rate | None = None
    ll128_busbw: Rate | None = None
    simple_busbw: Rate | None = None
    nvls_busbw: Rate | None = None


class AllReduce(Strict):
    """NCCL's all-reduce on one node: ``t = base_s + 2 (n-1) hop_s + 2 (n-1)/n S/busbw`` for each protocol.

    ``base_s``, ``hop_s`` and ``ll_busbw`` belong to LL; a protocol whose figures are null is never used there.
    The bus bandwidths hold for all GPUs of the node, ``by_ranks`` for smaller groups (which cross fewer links).
    NCCL runs LL up to ``ll_until`` bytes and LL128 up to ``ll128_until``, which is not always the fastest choice.
    All-gather and reduce-scatter follow from the same figures with half the steps and ``copy_rate``, at which a rank
    copies its own share; ``ops`` holds figures of operations that were measured by themselves.
    """

    base_s: Seconds
    hop_s: Seconds
    ll_busbw: Rate
    simple_base_s: Seconds
    simple_hop_s: Seconds
    simple_busbw: Rate
    ll128_base_s: Seconds | None = None
    ll128_hop_s: Seconds | None = None
    ll128_busbw: Rate | None = None
    ll_until: Size | None = None
    ll128_until: Size | None = None
    by_ranks: dict[Annotated[int, Field(ge=2, le=10**6)], GroupBandwidth] = {}
    nvls_base_s: Seconds | None = None
    nvls_busbw: Rate | None = None
    copy_rate: Rate | None = None
    ops: dict[CollectiveName, AllReduce] = {}
    environment: dict[str, str] = {}        # of NCCL, if these figures hold for another one than the node's
    note: str = ""


class Collectives(Strict):
    default: str
    variants: dict[str, AllReduce]

    @model_validator(mode="after")
    def _default_exists(self) -> Collectives:
        if self.default not in self.variants:
            raise ValueError(f"default {self.default!r} is not one of {', '.join(self.variants)}")
        return self


class NcclSetup(Strict):
    """NCCL as it runs on a node: version and environment, as far as they are stated."""

    version: str = ""
    environment: dict[str, str] = {}
    note: str = ""


class PairAccess(Strict):
    """Whether two GPUs reach each other's memory; if not, what they send is staged through the host's."""

    a: str
    b: str
    p2p: bool


class Node(Descriptor):
    """One machine, or a cluster of equal ones: `count` accelerators of one kind on a graph of links.

    ``p2p`` says whether a GPU may read another's memory: all, none, or those of one socket.
    ``p2p_pairs`` names pairs for which that is otherwise.
    """

    accelerator: str
    count: Count
    topology: Topology
    p2p: bool | Literal["within_socket"]
    p2p_pairs: tuple[PairAccess, ...] = ()
    host: Host = Host()
    nccl: NcclSetup = NcclSetup()
    collectives: Collectives | None = None
    machine_gpus: Count | None = None   # of one machine of several, where the collectives are those of one alone
    assumptions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_vertex_a_gpu(self) -> Node:
        gpus = sum(kind == "gpu" for kind in self.topology.vertices.values())
        if gpus != self.count:
            raise ValueError(f"count is {self.count}, but the topology has {gpus} GPUs")
        return self

    @model_validator(mode="after")
    def _pairs_are_gpus(self) -> Node:
        seen: set[frozenset[str]] = set()
        for pair in self.p2p_pairs:
            for end in (pair.a, pair.b):
                if self.topology.vertices.get(end) != "gpu":
                    raise ValueError(f"p2p_pairs: {end!r} is not a GPU of the topology")
            if pair.a == pair.b or frozenset((pair.a, pair.b)) in seen:
                raise ValueError(f"p2p_pairs: {pair.a} - {pair.b} must be two GPUs, named once")
            seen.add(frozenset((pair.a, pair.b)))
        return self


# ---------------------------------------------------------------- fabric

class Fabric(Descriptor):
    """What NCCL's protocols cost over one class of links, measured where the links carry ``bandwidth``.

    A node without figures of its own is priced with those of its class, bus bandwidths scaled by its own links.
    ``latency_sd`` and ``bandwidth_sd`` are the spread of hosts of this class (log scale): what no description states.
    ``peers`` is the share of its port that a GPU reaches when it talks to several others at once.
    """

    transport: Literal["nvlink", "pcie", "host", "network"]
    compute_capability: tuple[float, ...] = ()      # from, below; empty: any
    bandwidth: Rate
    peers: Number
    latency_sd: Number
    bandwidth_sd: Number
    figures: AllReduce


# ---------------------------------------------------------------- calibration

class Parameter(Sourced):
    """A fitted or assumed factor; ``value`` may be written with a unit, ``sd`` is the standard deviation of its log."""

    value: Annotated[float, Field(ge=1e-12, le=1e15)]
    unit: str = "1"
    sd: Annotated[float, Field(ge=0, le=10)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _read_unit(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("value"), str):
            value, unit = split(data["value"])
            if data.get("unit", unit) != unit:
                raise ValueError(f"{data['value']!r} is in {unit}, but unit says {data['unit']!r}")
            data = {**data, "value": value, "unit": unit}
        if isinstance(data, dict) and isinstance(data.get("value"), bool):
            raise ValueError(f"value must be a number, not {data['value']}")
        return data


class Difference(Strict):
    """What an own benchmark of one deployment says beyond the factors: a smooth curve over the batch of a copy."""

    model: str
    strategy: str
    length: Annotated[float, Field(gt=0, le=100)]
    batches: Annotated[tuple[Annotated[float, Field(ge=0.5, le=1e7)], ...], Field(max_length=1000)]
    weights: Annotated[tuple[Annotated[float, Field(ge=-100, le=100)], ...], Field(max_length=1000)]

    @model_validator(mode="after")
    def _paired(self) -> Difference:
        if len(self.batches) != len(self.weights):
            raise ValueError("batches and weights must be of one length")
        return self


class Calibration(Descriptor):
    """Factors for one accelerator, engine or node; `used` names the files that a merged one came from."""

    accelerator: str | None = None
    engine: str | None = None
    node: str | None = None
    parameters: dict[str, Parameter] = {}
    correlations: dict[str, Annotated[float, Field(ge=-1, le=1)]] = {}
    fitted_on: tuple[str, ...] = ()
    checked_on: tuple[str, ...] = ()
    command: str = ""
    versions: dict[str, str] = {}
    hashes: dict[str, str] = {}
    residual_sd: Annotated[float, Field(ge=0, le=10)] | None = None
    difference: Difference | None = None
    used: tuple[str, ...] = ()
