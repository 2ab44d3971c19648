"""One collective by itself: the question behind `pm.collective`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel import catalog
from perfmodel.catalog import Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import BadInput, UnknownName
from perfmodel.placement import links_of
from perfmodel.step.communication import collective_s, nccl_choice
from perfmodel.step.cost import plain, scalar
from perfmodel.step.factors import factors_of

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_NCCL_TESTS = {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
EAGER_LAUNCH_S = 5.0e-6  # of a collective outside a graph; 5 us against 1 us: fit to 13 public nccl-tests tables


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
) -> CollectiveCost:
    """Time of one collective over the node's first ``ranks`` GPUs (all by default). Sizes are those of nccl-tests."""
    name = op.strip().lower().replace("-", "_").removesuffix("_perf")
    name = _NCCL_TESTS.get(name, name)
    if name not in OPS:
        raise UnknownName("collective", op, (*OPS, *_NCCL_TESTS))
    if algorithm not in (None, "nccl"):
        raise UnknownName("algorithm", str(algorithm), ("nccl",))
    machine = node if isinstance(node, Node) else catalog.load_node(node)
    ways = machine.count if ranks is None else int(ranks)
    if not 1 <= ways <= machine.count:
        raise BadInput(f"ranks must lie between 1 and {machine.count}, not {ranks}")
    sizes = np.asarray(message_bytes, float)
    if not np.all(np.isfinite(sizes)) or np.any(sizes <= 0):
        raise BadInput(f"message_bytes must be positive and finite, not {message_bytes!r}")
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
    fastest = fastest + (0.0 if in_graph or ways == 1 else EAGER_LAUNCH_S)
    point, low, high = factors.band(np.broadcast_to(fastest, (len(fastest), *sizes.shape)))
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
        (links.source,),
    )


def _carrier(node: Node, engine: str, nccl: str | None, ranks: int) -> Deployment:
    """A deployment whose only purpose is to know the node's links and the engine's rule."""
    return deploy("kimi-k2.6", node=node, engine=engine, tp=ranks if 64 % ranks == 0 else 1, nccl=nccl)
