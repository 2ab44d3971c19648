"""Collectives and hops of a step, priced on the node's links."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from perfmodel.costs.collectives import (
    all_to_all_s,
    one_shot_all_reduce_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    send_recv_s,
    two_shot_all_reduce_s,
)
from perfmodel.costs.dispatch import minimum
from perfmodel.costs.network import multimem_all_reduce_s, nvls_all_reduce_s, staged_send_s, tree_all_reduce_s
from perfmodel.costs.pipeline import hop_bytes
from perfmodel.deployment import Deployment
from perfmodel.engines.rules import Collective
from perfmodel.placement import Links, Protocol
from perfmodel.step.operations import ACTIVATION, Bench, Load, Row

# Start-up of kernels that skip NCCL, inside a CUDA graph, and what every peer beyond the first adds to their barriers.
# Kind: derived from kernel tables of aiconfigurator-core 0.12.0 (custom_allreduce, vLLM 0.24.0; RTX PRO 6000 x2: 4.1
# us; H200 x8: 4.7 us one-shot, 9 us two-shot) and github sjug/rtx6kpro@738985bb (one-shot over PCIe: 6.1, 7.5).
ONE_SHOT_BASE_S, TWO_SHOT_BASE_S = 4.5e-6, 8.0e-6
_BARRIER_S = {"nvlink": 0.05e-6, "pcie": 0.5e-6, "host": 0.5e-6}
# SGLang's second kernels signal through NVLink multicast: 2.3 us x2 to 3.5 us x8. Same source, SGLang 0.5.14, H200.
SGLANG_ONE_SHOT_S, SGLANG_TWO_SHOT_S = 2.4e-6, 5.5e-6
# Start-up on Blackwell. Kind: derived from the kernels on 6 B300 of hardware/observations/nccl-kernels.csv.
BLACKWELL_S = {"custom_one_shot": 6.5e-6, "custom_two_shot": 18e-6, "symm_mem": 16e-6, "multimem": 12.5e-6}


def nccl_choice(
    op: str, message_bytes: Any, ranks: int, links: Links, factors: dict[str, Any]
) -> tuple[tuple[str, ...], Any, Any]:
    """What NCCL runs: names of the protocols it can take, index of the one it takes, and its seconds.

    That is the first protocol whose limit holds the message; where no limits are known, the fastest.
    """
    protocols = links.protocols(op, ranks)
    names = tuple(p.name for p in protocols)
    limits = np.maximum.accumulate([p.until_bytes for p in protocols])
    if not any(np.isfinite(p.until_bytes) for p in protocols):
        times = np.stack(np.broadcast_arrays(*(nccl_s(op, message_bytes, ranks, p, factors) for p in protocols)))
        index = np.argmin(times, axis=0)
        return names, index, np.take_along_axis(times, index[None], axis=0)[0]
    index = np.searchsorted(limits, message_bytes)
    first, last = int(np.min(index)), int(np.max(index))
    seconds = nccl_s(op, message_bytes, ranks, protocols[first], factors)
    for i in range(first + 1, last + 1):                # only protocols that some message takes
        seconds = np.where(index < i, seconds, nccl_s(op, message_bytes, ranks, protocols[i], factors))
    return names, np.broadcast_to(index, np.shape(seconds)), seconds


def nccl_s(op: str, message_bytes: Any, ranks: int, p: Protocol, factors: dict[str, Any]) -> Any:
    """Seconds of one protocol. [s]"""
    slow, wide = factors["collective_latency_factor"], factors["collective_bandwidth_factor"]
    start, width = p.base_s * slow, p.busbw_Bps * wide
    if p.tree:
        return tree_all_reduce_s(
            message_bytes, start, p.inner_steps, p.hop_s * slow, p.outer_steps, p.net_hop_s * slow, width
        )
    if p.ramp_bytes:
        return nvls_all_reduce_s(message_bytes, ranks, start, width, p.ramp_Bps * wide, p.ramp_bytes)
    if op == "all_to_all":
        return all_to_all_s(message_bytes, ranks, start + (ranks - 1) * p.hop_s * slow, width)
    if op == "send_recv":
        return send_recv_s(message_bytes, start + p.hop_s * slow, width)
    formula = ring_all_reduce_s if op == "all_reduce" else ring_all_gather_s
    own = np.asarray(message_bytes) / ranks / (p.copy_Bps * wide)
    return formula(message_bytes, ranks, start, p.hop_s * slow, width) + own


def collective_s(
    op: str, message_bytes: Any, ranks: int, deployment: Deployment, links: Links, factors: dict[str, Any]
) -> Any:
    """Seconds of a collective with the kernel that the engine would run. [s]"""
    if ranks <= 1:
        return 0.0 * message_bytes
    _, _, fastest = nccl_choice(op, message_bytes, ranks, links, factors)
    if op != "all_reduce":
        return fastest
    backends = _backends(deployment, ranks, message_bytes)
    for name in KERNELS:
        chosen = backends == name
        if np.any(chosen):
            quick = kernel_s(name, message_bytes, ranks, links, factors, deployment.options.engine)
            fastest = np.where(chosen, quick, fastest)
    return fastest


KERNELS = ("custom_one_shot", "custom_two_shot", "symm_mem", "multimem", "pcie_ipc")
STAGED_CHUNK_BYTES = 131072.0       # of NCCL's transport through the host's memory: src/transport/shm.cc


def kernel_s(
    name: str, message_bytes: Any, ranks: int, links: Links, factors: dict[str, Any], engine: str = "vllm",
    sums: bool = True,
) -> Any:
    """Seconds of an all-reduce kernel that skips NCCL. [s]

    PyTorch's symmetric memory (``symm_mem``) lets the NVSwitch add (``multimem``) in groups of some sizes, unless
    ``sums`` is false.
    """
    if name == "symm_mem" and sums and links.multimem(ranks):
        name = "multimem"
    one_shot, transport = name in ("custom_one_shot", "pcie_ipc"), links.transport(ranks)
    start = ONE_SHOT_BASE_S if one_shot else TWO_SHOT_BASE_S
    if links.capability >= 10 and transport == "nvlink":
        start = BLACKWELL_S.get(name, start)
    if engine == "sglang" and transport == "nvlink" and name.startswith("custom"):
        start = SGLANG_ONE_SHOT_S if one_shot else SGLANG_TWO_SHOT_S
    start += max(0, ranks - 2) * _BARRIER_S[transport]
    formula = {"multimem": multimem_all_reduce_s}.get(name, one_shot_all_reduce_s if one_shot
                                                      else two_shot_all_reduce_s)
    return formula(message_bytes, ranks, start * factors["collective_latency_factor"],
                   links.peer_Bps(ranks, name) * factors["collective_bandwidth_factor"])


def _backends(deployment: Deployment, ranks: int, message_bytes: Any) -> Any:
    """Name of the engine's kernel for every message size."""
    sizes = np.atleast_1d(np.asarray(message_bytes, float))
    unique, index = np.unique(sizes, return_inverse=True)

    def name(i: int) -> str:
        return str(deployment.engine.all_reduce_backend(deployment.options, deployment.facts, ranks, float(unique[i])))

    names, known = np.empty(len(unique), dtype=object), {}
    octave = np.floor(np.log2(np.maximum(unique, 1.0)))
    edges = [0, *(np.flatnonzero(np.diff(octave)) + 1).tolist(), len(unique)]
    for a, b in itertools.pairwise(edges):  # no kernel holds for less than a factor of two: equal ends, one kernel
        known[a], known[b - 1] = name(a), name(b - 1)
        names[a:b] = known[a] if known[a] == known[b - 1] else [known.get(i) or name(i) for i in range(a, b)]
    return names[index].reshape(sizes.shape)


def collective_row(call: Collective, load: Load, deployment: Deployment, bench: Bench) -> Row:
    """One collective of the step as a priced row; calls of one size are priced once."""
    sampled_all = load.sampled * deployment.options.dp_attention
    tokens = {"local": load.tokens, "global": load.all_tokens, "sampled": load.sampled, "sampled_global": sampled_all}[
        call.tokens
    ]
    message = call.bytes_per_token * tokens + call.bytes_fixed
    seconds = bench.once(
        (load, call.op, call.ranks, call.tokens, call.bytes_per_token, call.bytes_fixed),
        lambda: collective_s(call.op, message, call.ranks, deployment, bench.machine.links, bench.factors),
    )
    name = f"{call.op.replace('_', '-')} ({call.place})"
    return Row(name, seconds, message_bytes=message, kernels=1.0, bound="communication")


def hop_row(tokens: Any, hidden: int, deployment: Deployment, links: Links, factors: dict[str, Any]) -> Row:
    """One pipeline hop: CPU metadata message and the activations of the micro-batch, split over the TP ranks.

    Where the host works ahead, its message is there before the device has the activations; it is then host time.
    """
    message = hop_bytes(tokens, hidden, ACTIVATION) / deployment.options.attention_tp
    width = links.hop_Bps * factors["collective_bandwidth_factor"]
    if links.hop_staged:
        chunk = minimum(message, STAGED_CHUNK_BYTES)
        wire = staged_send_s(message, links.hop_latency_s, width, width, chunk)
    else:
        wire = send_recv_s(message, links.hop_latency_s, width)
    ahead = deployment.engine.overlaps_host(deployment.options)
    seconds = wire + (0.0 if ahead else factors["pipeline_hop_s"])
    return Row("pipeline hops", seconds, message_bytes=message, kernels=1.0, bound="pipeline")
