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

VertexKind = Literal["gpu", "socket", "switch", "nvswitch", "network"]


# ---------------------------------------------------------------- accelerator

class Memory(Strict):
    capacity: Size          # as the vendor sells it
    total: Size             # what the driver reports as total
    bandwidth: Rate
    l2: Size


class PowerLimits(Strict):
    limit: Power
    idle: Power


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
    a: str
    b: str
    kind: str


class LinkKind(Strict):
    bandwidth: Rate         # per direction
    latency: Seconds


class Topology(Strict):
    """The node as a graph: GPUs, sockets and switches joined by links."""

    kind: Literal["pcie", "nvlink"]
    vertices: dict[str, VertexKind]
    links: tuple[Link, ...] = ()
    link_kinds: dict[str, LinkKind]

    @model_validator(mode="after")
    def _links_join_known_vertices(self) -> Topology:
        for link in self.links:
            for end in (link.a, link.b):
                if end not in self.vertices:
                    raise ValueError(f"link {link.a} - {link.b}: {end!r} is not a vertex")
            if link.kind not in self.link_kinds:
                raise ValueError(f"link {link.a} - {link.b}: kind {link.kind!r} is not in link_kinds")
        return self


class Host(Strict):
    cpu: str = ""
    sockets: Count = 1
    memory: Size | None = None
    note: str = ""


class GroupBandwidth(Strict):
    """Bus bandwidth of a group of another size; null where that protocol is not used or was not measured."""

    ll_busbw: Rate | None = None
    ll128_busbw: Rate | None = None
    simple_busbw: Rate | None = None


class AllReduce(Strict):
    """NCCL's all-reduce on one node: ``t = base_s + 2 (n-1) hop_s + 2 (n-1)/n S/busbw`` for each protocol.

    ``base_s``, ``hop_s`` and ``ll_busbw`` belong to LL; a protocol whose figures are null is never used there.
    The bus bandwidths hold for all GPUs of the node, ``by_ranks`` for smaller groups (which cross fewer links).
    NCCL runs LL up to ``ll_until`` bytes and LL128 up to ``ll128_until``, which is not always the fastest choice.
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
    by_ranks: dict[int, GroupBandwidth] = {}
    note: str = ""


class Collectives(Strict):
    default: str
    variants: dict[str, AllReduce]

    @model_validator(mode="after")
    def _default_exists(self) -> Collectives:
        if self.default not in self.variants:
            raise ValueError(f"default {self.default!r} is not one of {', '.join(self.variants)}")
        return self


class Node(Descriptor):
    """One machine: `count` accelerators of one kind on a graph of links."""

    accelerator: str
    count: Count
    topology: Topology
    p2p: bool | Literal["within_socket"]
    host: Host = Host()
    collectives: Collectives | None = None
    assumptions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_vertex_a_gpu(self) -> Node:
        gpus = sum(kind == "gpu" for kind in self.topology.vertices.values())
        if gpus != self.count:
            raise ValueError(f"count is {self.count}, but the topology has {gpus} GPUs")
        return self


# ---------------------------------------------------------------- calibration

class Parameter(Sourced):
    """A fitted or assumed factor; ``value`` may be written with a unit, ``sd`` is the standard deviation of its log."""

    value: float
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
        return data


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
    used: tuple[str, ...] = ()
