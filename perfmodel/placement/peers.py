"""What kernels that skip NCCL read from all their peers at once, and whether the NVSwitch may add for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfmodel.placement.topology import Graph

CLASS_GPUS = 8          # GPUs behind the widest figures of a class of links
# A kernel with few peers keeps few NVLink reads in flight: 290 GB/s x2, 336 x4, 375 x8 of 450. Kind: derived from the
# custom all-reduce of vLLM 0.24.0 and SGLang 0.5.14 on H200, aiconfigurator-core 0.12.0.
_FEW_PEERS = 0.4
# Kernels run in a fixed number of blocks, which wider links do not speed up. Kind: derived from the all-reduce kernels
# on 6 B300 and 8 Hopper GPUs of hardware/observations/nccl-kernels.csv (vLLM pull requests 37756 and 42324). [B/s]
_BLOCKS_Bps = {"custom_one_shot": 600e9, "pcie_ipc": 600e9, "custom_two_shot": 265e9, "symm_mem": 320e9,
               "multimem": 320e9}
_BLOCKS_FROM = {"custom_two_shot": 5}       # ranks; four read 336 GB/s
# Share of a port that PyTorch's symmetric-memory kernels reach on Hopper: 258 and 243 of 450 GB/s. Same source.
_SYMMETRIC = {"symm_mem": 0.57, "multimem": 0.54}
# Sizes of group that PyTorch symmetric memory sums in the switch. Source: vLLM 0.33.0 symm_mem.py.
_MULTIMEM_RANKS = {9: (4, 6, 8), 10: (6, 8)}


def peers_Bps(graph: Graph, gpus: Sequence[str], shares: Mapping[str, float], kernel: str, capability: float) -> float:
    """What one GPU reads from its peers while all read, or what its port carries for the switch. [B/s]

    ``shares`` are those of a port that a GPU with several peers reaches, over nvlink and pcie.
    """
    rate = graph.exchange_Bps(gpus)
    if graph.all_nvlink(gpus):
        few = (1 - _FEW_PEERS / len(gpus)) / (1 - _FEW_PEERS / CLASS_GPUS)
        custom = shares["nvlink"] * min(1.0, few)
        hopper = capability >= 9        # the kernels of these figures; elsewhere every kernel is taken as a custom one
        rate *= _SYMMETRIC.get(kernel, custom) if hopper else custom
        bound = hopper and len(gpus) >= _BLOCKS_FROM.get(kernel, 2)
        return min(rate, _BLOCKS_Bps[kernel] if bound else math.inf)
    if len(gpus) > 2:
        port = min(hop.bandwidth_Bps for gpu in gpus for hop in graph.edges[gpu].values())
        rate = min(rate, shares["pcie"] * port)
    return rate


def switch_adds(graph: Graph, gpus: Sequence[str], capability: float) -> bool:
    """Whether an NVSwitch with multicast joins all these GPUs: NVLink 4 and later, inside one machine."""
    switches = [{there for there in graph.edges[gpu] if graph.kinds[there] == "nvswitch"} for gpu in gpus]
    return capability >= 9 and len(gpus) > 1 and bool(set.intersection(*switches))


def sums_in_switch(graph: Graph, gpus: Sequence[str], capability: float) -> bool:
    """Whether PyTorch's symmetric-memory all-reduce lets the switch add for a group of this size."""
    ranks = _MULTIMEM_RANKS.get(min(10, int(capability)), ())
    return len(gpus) in ranks and switch_adds(graph, gpus, capability)
