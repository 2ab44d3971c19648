"""One collective by itself: the question behind `pm.collective`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel import catalog
from perfmodel.catalog import Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import BadInput, UnknownName, is_number, shown, word
from perfmodel.placement import Links, links_of
from perfmodel.step.communication import KERNELS, collective_s, kernel_s, nccl_choice, nccl_s
from perfmodel.step.cost import plain, scalar
from perfmodel.step.factors import Z80, factors_of

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_NCCL_TESTS = {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
# Of a collective outside a graph. Kind: derived, median over six public tables of small messages beside the figures of
# their class of links (0 to 7 us); nccl-tests with one process a GPU hides most of it behind the kernel before.
EAGER_LAUNCH_S = 3.0e-6
# One process that drives n GPUs launches for one after another: 35 to 40 us x8 A100, 39 us x8 and 18.5 us x4 RTX 4090.
# Kind: derived from public nccl-tests tables run with -g n.
PROCESS_LAUNCH_S = 4.7e-6


@dataclass(frozen=True, eq=False)
class CollectiveCost:
    """Seconds and bus bandwidth of a collective; arrays have the shape of ``message_bytes``."""

    op: str
    ranks: int
    message_bytes: Any
    seconds: Any
    seconds_low: Any
    seconds_high: Any
    algorithm: Any
    protocol: Any
    busbw_Bps: Any
    assumptions: tuple[str, ...]
    curves: dict[str, Any] = field(default_factory=dict, repr=False)  # seconds of every protocol and kernel

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract."""
        names = (
            "op",
            "ranks",
            "message_bytes",
            "seconds",
            "seconds_low",
            "seconds_high",
            "algorithm",
            "protocol",
            "busbw_Bps",
        )
        return {**{name: plain(getattr(self, name)) for name in names}, "assumptions": list(self.assumptions)}


def collective(
    op: str,
    *,
    node: str | Node,
    message_bytes: Any,
    algorithm: str | None = None,
    engine: str | None = None,
    in_graph: bool = True,
    ranks: int | None = None,
    nccl: str | None = None,
    gpus_per_process: int = 1,
) -> CollectiveCost:
    """Time of one collective over the node's first ``ranks`` GPUs (all by default). Sizes are those of nccl-tests.

    ``nccl`` names a variant of the node file, a version, variables such as NCCL_P2P_DISABLE=1, or several of them.
    ``gpus_per_process`` matters outside graphs: one process launches for its GPUs in turn (nccl-tests ``-g``).
    """
    name = word("op", op).strip().lower().replace("-", "_").removesuffix("_perf")
    name = _NCCL_TESTS.get(name, name)
    if name not in OPS:
        raise UnknownName("collective", op, (*OPS, *_NCCL_TESTS))
    if algorithm is not None and word("algorithm", algorithm) != "nccl":
        raise UnknownName("algorithm", str(algorithm), ("nccl",))
    machine = node if isinstance(node, Node) else catalog.load_node(node)
    if ranks is not None and (not is_number(ranks) or not 1 <= ranks <= machine.count or ranks != int(ranks)):
        raise BadInput(f"ranks must lie between 1 and {machine.count}, not {shown(ranks)}")
    ways = machine.count if ranks is None else int(ranks)
    try:
        sizes = np.asarray(message_bytes, float)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"message_bytes must be a number or a list of them, not {shown(message_bytes)}") from None
    if not sizes.size or not np.all((sizes > 0) & (sizes <= 1e15)):
        raise BadInput(f"message_bytes must be positive and at most 1e15, not {shown(message_bytes)}")
    d = _carrier(machine, engine or "vllm", nccl, ways)
    links, factors = links_of(d), factors_of(d)
    table = factors.draws(sizes.ndim)
    names, index, fastest = nccl_choice(name, sizes[None], ways, links, table)
    protocol = np.array(names, dtype=object)[index[0]]
    kernel = np.full(sizes.shape, "nccl", dtype=object)
    if name == "all_reduce" and engine is not None and algorithm is None:
        fastest = collective_s(name, np.broadcast_to(sizes[None], fastest.shape), ways, d, links, table)
        kernel = np.array(
            [d.engine.all_reduce_backend(d.options, d.facts, ways, float(n)) for n in sizes.ravel()], dtype=object
        ).reshape(sizes.shape)
    if not in_graph and ways > 1:
        fastest = eager_s(fastest, gpus_per_process)
    point, low, high = factors.band(np.broadcast_to(fastest, (len(fastest), *sizes.shape)))
    low, high = widened(name, ways, links, sizes, (point, low, high))
    share = {"all_reduce": 2 * (ways - 1) / ways, "send_recv": 1.0}.get(name, (ways - 1) / ways)
    with np.errstate(divide="ignore", invalid="ignore"):
        busbw = np.where(point > 0, share * sizes / point, np.inf)
    return CollectiveCost(
        name,
        ways,
        scalar(sizes),
        scalar(point),
        scalar(low),
        scalar(high),
        scalar(kernel),
        scalar(np.where(kernel == "nccl", protocol, "")),
        scalar(busbw),
        (links.origin(name, ways),),
        curves(name, sizes, ways, d, links),
    )


def eager_s(seconds: Any, gpus_per_process: int) -> Any:
    """Seconds of a collective outside a graph: its launch on top, and no less than a process needs for all its GPUs."""
    return np.maximum(seconds + EAGER_LAUNCH_S, PROCESS_LAUNCH_S * gpus_per_process)


def widened(op: str, ranks: int, links: Links, sizes: Any, band: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """The ends of a band once it also holds what the node's description leaves open."""
    point, low, high = band
    more = Z80 * unstated_sd(op, sizes, ranks, links)
    half = np.hypot(np.log(np.maximum(high, 1e-300) / np.maximum(point, 1e-300)), more)
    return point / np.exp(half), point * np.exp(half)


def unstated_sd(op: str, sizes: Any, ranks: int, links: Links) -> Any:
    """Deviation of the logarithm that hosts of one class show: that of latencies and bandwidths by their shares. [1]"""
    latency, bandwidth = links.spread(op, ranks)
    if ranks < 2 or not (latency or bandwidth):
        return np.zeros(np.shape(sizes))
    plain_factors = {"collective_latency_factor": 1.0, "collective_bandwidth_factor": 1.0}
    total = nccl_choice(op, np.asarray(sizes, float)[None], ranks, links, plain_factors)[2][0]
    start = nccl_choice(op, np.full((1, *np.shape(sizes)), 64.0), ranks, links, plain_factors)[2][0]
    part = np.clip(start / total, 0.0, 1.0)
    return np.hypot(part * latency, (1 - part) * bandwidth)


def curves(op: str, sizes: Any, ranks: int, deployment: Deployment, links: Links) -> dict[str, Any]:
    """Seconds of everything that could run, by name: NCCL's protocols, and the kernels that skip NCCL."""
    if ranks < 2:
        return {}
    table = factors_of(deployment).draws(0, uncertain=False)
    found = {f"NCCL {p.name}": nccl_s(op, sizes, ranks, p, table) for p in links.protocols(op, ranks)}
    if op == "all_reduce" and links.graph.machines(links.gpus(ranks)) == 1:
        for name in KERNELS:
            if name != "pcie_ipc" and (links.transport(ranks) == "nvlink" or name == "custom_one_shot"):
                found[name.replace("_", " ")] = kernel_s(name, sizes, ranks, links, table)
    return found


def _carrier(node: Node, engine: str, nccl: str | None, ranks: int) -> Deployment:
    """A deployment whose only purpose is to know the node's links and the engine's rule."""
    return deploy("kimi-k2.6", node=node, engine=engine, tp=ranks if 64 % ranks == 0 else 1, nccl=nccl)
