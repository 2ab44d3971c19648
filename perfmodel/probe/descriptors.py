"""What was read and measured -> accelerator and node descriptors, checked by the catalog before they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from perfmodel import catalog
from perfmodel.catalog import Accelerator, Node
from perfmodel.catalog.load import validate
from perfmodel.errors import BadInput, UnknownName
from perfmodel.probe.journal import Record
from perfmodel.probe.plan import MIB
from perfmodel.probe.topology import Topo, groups
from perfmodel.units import si

NVLINKS_OF_A_GPU = 18           # most that a GPU has had (Hopper, Blackwell); a sum beyond it needs a switch
UNMEASURED_LATENCY = "0.5 us"
_SXM = re.compile(r"SXM|HBM3|\bH[12]0?0\b|\bG?B[23]00\b")
_NOT_SXM = re.compile(r"PCIe|NVL\b|RTX|GeForce|\b[ALT]\d{1,2}S?\b")


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """Measured figures of one kind of link. [B/s], [s]"""

    bandwidth_Bps: float | None = None
    latency_s: float | None = None
    note: str = ""
    latency_note: str = ""


def slug(name: str) -> str:
    """A catalog name from a driver's name.

    >>> slug("NVIDIA GeForce RTX 5090"), slug("NVIDIA H100 80GB HBM3")
    ('geforce-rtx-5090', 'h100-80gb-hbm3')
    """
    text = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")[:60]
    return text or "gpu"


def known_accelerator(gpu: str) -> str | None:
    """The catalog's name for what the driver calls a GPU, if it has one."""
    try:
        return catalog.load_accelerator(gpu).name
    except UnknownName:
        return None


# ---------------------------------------------------------------- node

def node_from_topology(topo: Topo, accelerator: str, *, name: str = "", p2p: bool | str | None = None,
                       nvlink: LinkFigures | None = None, pcie: LinkFigures | None = None,
                       socket: LinkFigures | None = None, host: dict[str, Any] | None = None,
                       source: dict[str, Any] | None = None,
                       collectives: dict[str, Any] | None = None) -> dict[str, Any]:
    """A node descriptor from a parsed `nvidia-smi topo -m`, with measured figures where there are any.

    Figures that were not measured are the accelerator's own; latencies are then assumed, and a note says so.
    """
    gpus = [gpu.lower() for gpu in topo.gpus]
    if not gpus:
        raise BadInput("the topology has no GPU")
    known = known_accelerator(accelerator)
    part = catalog.load_accelerator(known) if known else None
    pairs = [topo.nvlinks(a, b) for a in topo.gpus for b in topo.gpus if a < b]
    vertices = dict.fromkeys(gpus, "gpu")
    links: list[dict[str, str]] = []
    if pairs and min(pairs) > 0:
        links += _nvlink_all(topo, vertices, pairs)
    else:
        links += _nvlink_pairs(topo) + _pcie_tree(topo, vertices)
    used = {link["kind"] for link in links}
    rates = {"pcie": part.link.host.value if part else None,
             "socket": part.link.host.value if part else None, "inner": part.link.host.value if part else None,
             **{kind: _nvlink_rate(kind, part, pairs) for kind in used if kind.startswith("nvlink")}}
    measured = {"pcie": pcie, "socket": socket, "inner": pcie,
                **{kind: nvlink for kind in used if kind.startswith("nvlink")}}
    kinds = {kind: _link_kind(kind, measured[kind], rates[kind]) for kind in sorted(used)}
    near: list[dict[str, Any]] = []
    if p2p is None:
        near = [{"a": a.lower(), "b": b.lower(), "p2p": True} for i, a in enumerate(topo.gpus)
                for b in topo.gpus[i + 1:] if topo.links[a, b] in ("PIX", "PXB") or topo.nvlinks(a, b)]
        p2p = bool(pairs) and len(near) == len(pairs)
    raw: dict[str, Any] = {
        "schema": "node/1", "name": name or f"{len(gpus)}x-{known or slug(accelerator)}",
        "title": f"{len(gpus)} x {part.title if part else accelerator}, as probed",
        "sources": {"probe": source or {"title": "nvidia-smi topo -m"}},
        "accelerator": known or slug(accelerator), "count": len(gpus), "p2p": p2p,
        **({"p2p_pairs": near} if near and not p2p else {}),
        "host": {"cpu": str((host or {}).get("cpu", "")), "sockets": _sockets(topo, host)},
        "topology": {"kind": "nvlink" if any(pairs) else "pcie", "vertices": vertices, "links": links,
                     "link_kinds": kinds},
    } | ({"collectives": collectives} if collectives else {})
    validate(Node, "node", raw, f"{raw['name']}.yaml")
    return raw


def _sockets(topo: Topo, host: dict[str, Any] | None) -> int:
    return int((host or {}).get("sockets") or max(1, len({numa for numa in topo.numa.values() if numa})))


def _nvlink_all(topo: Topo, vertices: dict[str, str], pairs: list[int]) -> list[dict[str, str]]:
    """Every pair has NVLinks: bonded pair by pair where the GPU has that many, else through an NVSwitch."""
    through_switch = len(set(pairs)) == 1 and pairs[0] * (len(topo.gpus) - 1) > NVLINKS_OF_A_GPU
    if through_switch:
        vertices["nvswitch0"] = "nvswitch"
        return [{"a": gpu.lower(), "b": "nvswitch0", "kind": f"nvlink-x{pairs[0]}"} for gpu in topo.gpus]
    for gpu in topo.gpus:
        total = sum(topo.nvlinks(gpu, other) for other in topo.gpus if other != gpu)
        if total > NVLINKS_OF_A_GPU:
            raise BadInput(f"{gpu} has {total} NVLinks in the topology matrix, more than {NVLINKS_OF_A_GPU}; only an "
                           "NVSwitch with equal links to all GPUs could join them")
    return _nvlink_pairs(topo)


def _nvlink_pairs(topo: Topo) -> list[dict[str, str]]:
    return [{"a": a.lower(), "b": b.lower(), "kind": f"nvlink-x{topo.nvlinks(a, b)}"}
            for i, a in enumerate(topo.gpus) for b in topo.gpus[i + 1:] if topo.nvlinks(a, b)]


def _pcie_tree(topo: Topo, vertices: dict[str, str]) -> list[dict[str, str]]:
    """Sockets by NUMA node, switches by PXB and PIX. What NVLink hides in the matrix goes by the NUMA affinity."""
    links: list[dict[str, str]] = []
    sockets: dict[str, str] = {}
    for numa, members in _numa_groups(topo).items():
        sockets[numa] = f"cpu{len(sockets)}"
        vertices[sockets[numa]] = "socket"
        for outer in (group for group in groups(topo, "PXB") if group[0] in members):
            inner = [group for group in groups(topo, "PIX") if group[0] in outer]
            top = _switch(vertices, links, sockets[numa], "pcie") if len(outer) > 1 else sockets[numa]
            for group in inner:
                nested = len(group) > 1 and len(inner) > 1
                below = _switch(vertices, links, top, "inner") if nested else top
                links += [{"a": gpu.lower(), "b": below, "kind": "pcie"} for gpu in group]
    names = list(sockets.values())
    links += [{"a": a, "b": b, "kind": "socket"} for i, a in enumerate(names) for b in names[i + 1:]]
    return links


def _switch(vertices: dict[str, str], links: list[dict[str, str]], above: str, kind: str) -> str:
    name = f"sw{sum(kind == 'switch' for kind in vertices.values())}"
    vertices[name] = "switch"
    links.append({"a": name, "b": above, "kind": kind})
    return name


def _numa_groups(topo: Topo) -> dict[str, list[str]]:
    """GPUs by the processor they hang on: what the matrix joins below SYS, told apart by NUMA where it says nothing."""
    found: dict[str, list[str]] = {}
    for group in groups(topo, "NODE"):
        numas = {topo.numa[gpu] for gpu in group if topo.numa[gpu]}
        if len(numas) > 1:
            raise BadInput(f"topology matrix: {', '.join(group)} meet below the socket link, but lie on NUMA nodes "
                           f"{', '.join(sorted(numas))}")
        hidden = any(topo.nvlinks(gpu, other) for gpu in group for other in topo.gpus if other != gpu)
        key = next(iter(numas)) if numas and hidden else f"of {group[0]}"
        found.setdefault(key, []).extend(group)
    return found


def _nvlink_rate(kind: str, part: Accelerator | None, pairs: list[int]) -> float | None:
    """A bond's share of the accelerator's NVLinks; all of them where the pair has the most that is seen."""
    if part is None or part.link.nvlink is None or part.link.nvlink.value is None:
        return None
    return part.link.nvlink.value * int(kind.removeprefix("nvlink-x")) / max(pairs)


def _link_kind(kind: str, measured: LinkFigures | None, fallback: float | None) -> dict[str, Any]:
    if measured and measured.bandwidth_Bps:
        bandwidth = _figure(si(measured.bandwidth_Bps, "B/s", 4), "measured", "probe", measured.note)
    elif fallback:
        bandwidth = _figure(si(fallback, "B/s", 4), "assumed", None, "not measured: the accelerator's own")
    else:
        raise BadInput(f"no bandwidth is known for the {kind} links: neither measured nor in the catalog's accelerator",
                       hints=["name an accelerator of the catalog", "run `perfmodel probe` on the machine"])
    if measured and measured.latency_s:
        latency = _figure(si(measured.latency_s, "s", 3), "derived", "probe", measured.latency_note)
    else:
        latency = _figure(UNMEASURED_LATENCY, "assumed", None, "not measured")
    return {"bandwidth": bandwidth, "latency": latency}


def _figure(value: Any, kind: str, source: str | None = None, note: str = "") -> dict[str, Any]:
    return {"value": value, "kind": kind} | ({"source": source} if source else {}) | ({"note": note} if note else {})


# ---------------------------------------------------------------- accelerator

UNREAD = _figure(None, "measured", None, "not read")


def accelerator_from_probe(machine: dict[str, Any], records: Iterable[Record], name: str,
                           source: dict[str, Any]) -> dict[str, Any]:
    """An accelerator descriptor of what was read and measured on one GPU; what neither gives is null."""
    records = list(records)
    smi = (machine.get("smi") or [{}])[0]
    gpu = str(machine["gpus"][0])
    peaks = {dtype: max(rates) for dtype in ("bf16", "fp16", "fp8", "int8")
             if (rates := [2.0 * r.task.m * r.task.n * r.task.k / (r.us / 1e6) for r in records
                           if r.task.table == "gemm" and r.task.dtype == dtype])}
    clock, bits = machine.get("memory_clock_kHz"), machine.get("memory_bus_bits")
    total = smi.get("memory_MiB") or machine["memory_bytes"] / MIB
    links = (machine.get("nvlinks") or [[]])[0]

    def read(value: Any, write: Callable[[Any], Any], note: str = "") -> dict[str, Any]:
        return _figure(write(value), "measured", "probe", note) if value else UNREAD

    host = fastest_Bps(records, "host_to_device", 1.0)
    bandwidth = 2e3 * clock * bits / 8 if clock and bits else fastest_Bps(records, "device_to_device", 2.0)
    note = "memory clock x bus width x 2, as the driver reports" if clock and bits else "fastest copy, read plus write"
    raw: dict[str, Any] = {
        "schema": "accelerator/1", "name": name, "title": f"{gpu}, as probed",
        "aliases": [gpu] if name == slug(gpu) else [],
        "sources": {"probe": source}, "vendor": "amd" if machine.get("hip") else "nvidia",
        "compute_capability": machine["capability"],
        "form": "sxm" if _SXM.search(gpu) and not _NOT_SXM.search(gpu) else "pcie",
        "sms": read(machine["sms"], int),
        "clock_boost": read(smi.get("clock_MHz"), lambda v: f"{v:g} MHz", "highest SM clock that the driver allows"),
        "memory": {
            "capacity": read(total, lambda v: f"{v:.0f} MiB", "as the driver reports it; a vendor sells it in GB"),
            "total": read(total, lambda v: f"{v:.0f} MiB"),
            "bandwidth": read(bandwidth, lambda v: si(v, "B/s", 4), note),
            "l2": read(machine["l2_bytes"], lambda v: f"{v:.0f} B")},
        "power": {"limit": read(smi.get("power_W"), lambda v: f"{v:g} W"), "idle": UNREAD},
        "peak": {dtype: _figure(si(rate, "FLOP/s", 4), "measured", "probe",
                                "fastest GEMM, below the vendor's peak: an efficiency against it is near 1")
                 for dtype, rate in peaks.items()},
        "link": {
            "host": read(host, lambda v: si(v, "B/s", 4), "pinned memory, one way"),
            "nvlink": read(1e9 * sum(links), lambda v: si(v, "B/s", 4), f"{len(links)} links on the wire, one way")
            if links else None},
    }
    validate(Accelerator, "accelerator", raw, f"{name}.yaml")
    return raw


def fastest_Bps(records: Iterable[Record], kernel: str, passes: float) -> float | None:
    """Greatest rate of a copy whose data did not sit in the L2 cache. [B/s]"""
    rates = [passes * r.task.message_bytes / (r.us / 1e6) for r in records
             if r.task.table == "copy" and r.task.kernel == kernel and r.l2 != "warm"]
    return max(rates, default=None)


def pair_figures(records: Iterable[Record], pairs: set[tuple[int, int]], hops: int) -> LinkFigures | None:
    """What links between these GPUs carry: the median one-way copy, and what a read takes longer than at home.

    A read goes there and back over ``hops`` links each way.
    """
    import statistics

    records = [r for r in records if r.task.table == "p2p"]
    ways = [r for r in records if (r.task.src, r.task.dst) in pairs]
    rates = [r.task.message_bytes / (r.us / 1e6) for r in ways if r.task.kernel == "one_way"]
    reads = [r.us / 1e6 for r in ways if r.task.kernel == "read"]
    home = [r.us / 1e6 for r in records if r.task.kernel == "read" and r.task.src == r.task.dst]
    if not rates:
        return None
    latency = (statistics.median(reads) - statistics.median(home)) / (2 * hops) if reads and home else None
    return LinkFigures(statistics.median(rates), latency if latency and latency > 0 else None,
                       f"one-way P2P copies of 256 MiB by the copy engine, median of {len(rates)}",
                       f"1/{2 * hops} of what a read of the other GPU's L2 takes longer than one at home")
