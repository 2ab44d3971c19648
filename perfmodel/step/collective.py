"""One collective by itself: the question behind `pm.collective`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel import catalog
from perfmodel.catalog import Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import BadInput, UnknownName, is_number, shown, word
from perfmodel.placement import Links, links_of
from perfmodel.step.algorithms import algorithms, choices, named
from perfmodel.step.communication import collective_s, nccl_choice
from perfmodel.step.cost import plain, scalar
from perfmodel.step.factors import Z80, Factors, factors_of, from_calibration

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
# torch.distributed launches one after another no faster than this: 28 to 30 us from 1 to 128 KiB. Kind: measured, eager
# all-reduce of 2 H200, hardware/observations/h200-probe-2026-11.csv.
TORCH_LAUNCH_S = 28.0e-6


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
    running: Any = ""       # which of them runs, for every size

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

    def all_algorithms(self) -> list[dict[str, Any]]:
        """Everything that could run, as JSON: name for ``algorithm``, seconds by size, and where it is what runs."""
        runs = np.atleast_1d(np.asarray(self.running, dtype=object)).ravel()
        shape = np.shape(self.message_bytes)
        return [{"algorithm": word, "name": name, "seconds": plain(np.broadcast_to(times, shape)),
                 "runs": [bool(what == name) for what in runs]}
                for word, (name, times) in zip(choices(self.curves), self.curves.items(), strict=True)]


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

    Alone, as nccl-tests times it; with ``engine`` as in a step of that engine, whose calibration then holds.

    ``algorithm`` is None for what the engine runs (NCCL without one), "nccl" for NCCL's own choice, or one of those
    that `CollectiveCost.all_algorithms` lists, such as "ring-ll128", "nvls", "one-shot", "multimem", "hierarchical".
    ``nccl`` names a variant of the node file, a version, variables such as NCCL_P2P_DISABLE=1, or several of them.
    ``gpus_per_process`` matters outside graphs: one process launches for its GPUs in turn (nccl-tests ``-g``).
    """
    name = word("op", op).strip().lower().replace("-", "_").removesuffix("_perf")
    name = _NCCL_TESTS.get(name, name)
    if name not in OPS:
        raise UnknownName("collective", op, (*OPS, *_NCCL_TESTS))
    if algorithm is not None:
        algorithm = word("algorithm", algorithm)
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
    d = _carrier(machine, "vllm" if engine is None else engine, nccl, ways)
    links = links_of(d)
    factors = factors_of(d) if engine else _alone(from_calibration(catalog.load_calibration(d.accelerator.name)))
    table = factors.draws(sizes.ndim)
    running, fastest = _what_runs(name, sizes, ways, d, links, table, algorithm, engine)
    if not in_graph and ways > 1:
        fastest = eager_s(fastest, gpus_per_process)
    point, low, high = factors.band(np.broadcast_to(fastest, (len(fastest), *sizes.shape)))
    low, high = widened(name, ways, links, sizes, (point, low, high))
    kernel = np.array([_kernel_of(what) for what in np.ravel(running)], dtype=object).reshape(sizes.shape)
    protocol = np.array([what.removeprefix("NCCL ") if what.startswith("NCCL ") else "" for what in np.ravel(running)],
                        dtype=object).reshape(sizes.shape)
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
        scalar(protocol),
        scalar(busbw),
        (links.origin(name, ways),),
        algorithms(name, sizes, ways, links, factors.draws(0, uncertain=False), d.options.engine),
        scalar(running),
    )


def _what_runs(op: str, sizes: Any, ranks: int, d: Deployment, links: Links, factors: dict[str, Any],
               algorithm: str | None, engine: str | None) -> tuple[Any, Any]:
    """Name of what runs for every size, and its seconds with a leading axis of draws."""
    if ranks < 2:
        if algorithm is not None and algorithm.lower() != "nccl":
            raise BadInput(f"one GPU talks to nobody: there is no {shown(algorithm)} to choose")
        return np.full(sizes.shape, "NCCL", dtype=object), np.zeros((1, *sizes.shape))
    if algorithm is not None and algorithm.lower() != "nccl":
        known = algorithms(op, sizes[None], ranks, links, factors, d.options.engine)
        chosen, times = named(algorithm, known)
        return np.broadcast_to(chosen[0], sizes.shape), times
    names, index, fastest = nccl_choice(op, sizes[None], ranks, links, factors)
    running = np.array([f"NCCL {name}" for name in names], dtype=object)[np.ravel(index[0])].reshape(sizes.shape)
    if op == "all_reduce" and engine is not None and algorithm is None:
        fastest = collective_s(op, np.broadcast_to(sizes[None], fastest.shape), ranks, d, links, factors)
        kernels = [d.engine.all_reduce_backend(d.options, d.facts, ranks, float(n)) for n in sizes.ravel()]
        skips = {"symm_mem": "multimem" if links.multimem(ranks) else "symm mem"}
        running = np.array([was if kernel == "nccl" else skips.get(kernel, kernel.replace("_", " "))
                            for was, kernel in zip(running.ravel(), kernels, strict=True)], dtype=object)
    return running.reshape(sizes.shape), fastest


def _kernel_of(name: str) -> str:
    """`algorithm` of the public contract: nccl, or the kernel or library."""
    return "nccl" if name.startswith("NCCL") else name.lower().replace(" ", "_")


def eager_s(seconds: Any, gpus_per_process: int, by_torch: bool = False) -> Any:
    """Seconds of a collective outside a graph: its launch on top, and no less than its process needs to launch it."""
    least = TORCH_LAUNCH_S if by_torch else PROCESS_LAUNCH_S * gpus_per_process
    return np.maximum(seconds + EAGER_LAUNCH_S, least)


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


def _alone(factors: Factors) -> Factors:
    """The factors of collectives: what a fit of other kernels missed says nothing about them."""
    return replace(factors, residual_sd=0.0,
                   sd=np.where([name.startswith("collective") for name in factors.names], factors.sd, 0.0))


def _carrier(node: Node, engine: str, nccl: str | None, ranks: int) -> Deployment:
    """A deployment whose only purpose is to know the node's links and the engine's rule."""
    return deploy("kimi-k2.6", node=node, engine=engine, tp=ranks if 64 % ranks == 0 else 1, nccl=nccl)
