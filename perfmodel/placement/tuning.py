"""NCCL's own tuning model: what it believes a ring, a tree or NVLS takes, and so which of them it runs.

The beliefs are poor times (`costs.collectives` prices those), but they are what the choice of protocol follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

GB = 1e9
PROTOCOLS = ("LL", "LL128", "Simple")
_SPEEDS = {  # of a ring's channel inside a machine, by architecture, in GB/s: src/graph/search.cc
    8: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    9: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    10: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
# us: LL, LL128, Simple. src/graph/tuning.cc, baseLat and hwLat
_BASE = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_HOP = {
    "nvlink": {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)},
    "pcie": {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)},
    "network": {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)},
}
# GB/s by architecture: most of LL in a ring; per channel LL128 of a ring, LL128 of a tree, Simple of a tree
_LIMITS = {
    7: (39.0, 20.0, 20.0, 26.5),
    8: (87.7, 20.0, 20.0, 24.0),
    9: (141.0, 36.7, 36.7, 38.7),
    10: (282.0, 40.0, 55.6, 70.0),
}
_TREE_SHARE = {  # of a tree's bandwidth by log2(bytes / 64): treeCorrectionFactor
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip
_NVLS_S, _NVLS_NETWORK_S = 25e-6, 18e-6
NVLS_HOPPER, NVLS_BLACKWELL = 0.85, 0.74        # share of the links that NVLS reaches: nvlsEfficiency


def _generation(capability: float) -> int:
    return 7 if capability < 8 else 8 if capability < 9 else 9 if capability < 10 else 10


def channel_Bps(path_Bps: float, compute_capability: float, minor: int) -> float:
    r"""Bandwidth that NCCL's search settles on for one channel of a ring inside a machine.

    Parameters
    ----------
    path_Bps : float
        NCCL's nominal bandwidth of the narrowest link of the ring. [B/s]
    compute_capability : float
        Of the GPU: 8.0 Ampere, 9.0 Hopper, 10.0 and 12.0 Blackwell. [1]
    minor : int
        NCCL's version 2.``minor``. [1]

    Returns
    -------
    float
        First speed of the ladder that fits the path; 0.1 GB/s where none does ("falling back to simple order"). [B/s]

    Notes
    -----
    Valid for NCCL 2.19 to 2.30. Since 2.26 GPUs of capability 10 and up have a ladder of their own, which ends at 18
    GB/s: above NCCL's 16 GB/s between AMD sockets, so that no ring is found there and LL is hardly ever chosen.

    Examples
    --------
    RTX PRO 6000 under one root complex, across AMD sockets, and with an older NCCL:

    >>> [channel_Bps(w * 1e9, 12.0, v) / 1e9 for w, v in ((48, 30), (16, 28), (16, 25))]
    [45.0, 0.1, 15.0]

    References
    ----------
    .. [1] NCCL 2.30.7, src/graph/search.cc, speedArrayIntra, sm90SpeedArrayIntra, sm100SpeedArrayIntra.
    """
    generation = max(8, _generation(compute_capability))
    if generation == 10 and minor < 26:
        generation = 9
    speeds = [
        v for v in _SPEEDS[generation] if not (generation == 10 and (v == 45 and minor < 29 or v == 18 and minor < 27))
    ]
    return GB * next((v for v in speeds if v * GB <= path_Bps * 1.0001), 0.1)


def nccl_ring_s(message_bytes: Any, steps: int, ranks: int, net_steps: int, graph_Bps: float, channels: int,
                compute_capability: float, nvlink: bool) -> Any:
    r"""What NCCL believes a ring takes, for each protocol.

    .. math:: t = t_0 + (s - s_n)\,h + s_n\,h_n + \frac{s}{p}\,\frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        Whole buffer :math:`n`, as nccl-tests prints it. [B]
    steps : int
        Steps :math:`s`: 2 (p - 1) of an all-reduce, p - 1 of gather and scatter. [1]
    ranks : int
        Ranks :math:`p`. [1]
    net_steps : int
        Steps :math:`s_n` that cross machines; 0 inside one. [1]
    graph_Bps : float
        Bandwidth of the graph that NCCL found: channels times speed. [B/s]
    channels : int
        Channels of that graph. [1]
    compute_capability : float
        Of the GPU. [1]
    nvlink : bool
        Whether the ring runs over NVLink alone; LL128 is not used otherwise. [1]

    Returns
    -------
    array
        Seconds of LL, LL128, Simple, stacked in front; infinite where NCCL does not use one. [s]

    Notes
    -----
    Valid for NCCL 2.20 to 2.30 and equal machines. Across machines LL is limited as with other than AMD processors.

    Examples
    --------
    LL gives way to Simple between 512 KiB and 1 MiB on 8 PCIe GPUs:

    >>> [PROTOCOLS[int(np.argmin(nccl_ring_s(n, 14, 8, 0, 20e9, 1, 12.0, False)))] for n in (2**19, 2**20)]
    ['LL', 'Simple']

    References
    ----------
    .. [1] NCCL 2.30.7, src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime.
    """
    most, per_channel, _, _ = (GB * v for v in _LIMITS[_generation(compute_capability)])
    if net_steps:
        most = GB * (39.0 if net_steps <= 4 else 20.4)
    hop, net = _HOP["nvlink" if nvlink else "pcie"]["ring"], _HOP["network"]["ring"]
    widths = (min(most, 0.5 * graph_Bps), min(0.92 * graph_Bps, channels * per_channel) if nvlink else 0.0, graph_Bps)
    times = []
    for i, width in enumerate(widths):
        latency = 1e-6 * (_BASE["ring"][i] + (steps - net_steps) * hop[i] + net_steps * net[i])
        times.append(latency + steps / ranks * np.asarray(message_bytes, float) / width if width
                     else np.full(np.shape(message_bytes), np.inf))
    return np.stack(np.broadcast_arrays(*times))


def nccl_tree_s(message_bytes: Any, ranks: int, machines: int, graph_Bps: float, channels: int,
                compute_capability: float, nvlink: bool) -> Any:
    r"""What NCCL believes an all-reduce over its double tree takes, for each protocol.

    .. math:: t = t_0 + 2\left(\frac{p}{m}-1\right) h + 2 \lfloor\log_2 m\rfloor\,h_n + \frac{2n}{c(n)\,B}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p`. [1]
    machines : int
        Machines :math:`m`. [1]
    graph_Bps : float
        Bandwidth :math:`B` of the graph. [B/s]
    channels : int
        Channels of that graph. [1]
    compute_capability : float
        Of the GPU. [1]
    nvlink : bool
        Whether the machine is joined by NVLink; LL128 is not used otherwise. [1]

    Returns
    -------
    array
        Seconds of LL, LL128, Simple, stacked in front; infinite where NCCL does not use one. [s]

    Notes
    -----
    Valid for NCCL 2.20 to 2.30. The correction :math:`c` covers messages of 64 B to 256 MiB.

    Examples
    --------
    >>> times = nccl_tree_s(65536, 32, 4, 360e9, 12, 9.0, True)
    >>> [round(1e6 * float(t)) for t in times]  # us
    [38, 66, 121]

    References
    ----------
    .. [1] NCCL 2.30.7, src/graph/tuning.cc, treeCorrectionFactor.
    """
    size = np.asarray(message_bytes, float)
    _, _, ll128, simple = (GB * v for v in _LIMITS[_generation(compute_capability)])
    tree = min(0.92 * graph_Bps, channels * simple)
    most = GB * _LIMITS[_generation(compute_capability)][0]
    widths = (min(tree / 3.8, most), min(tree * 7 / 9, channels * ll128) if nvlink else 0.0, tree)
    hop, net = _HOP["nvlink" if nvlink else "pcie"]["tree"], _HOP["network"]["tree"]
    place = np.clip(np.floor(np.log2(np.maximum(size, 64.0) / 64.0)).astype(int), 0, 23)
    times = []
    for i, (name, width) in enumerate(zip(PROTOCOLS, widths, strict=True)):
        share = np.where(place < 23, np.asarray(_TREE_SHARE[name], float)[place], 1.0)
        latency = 1e-6 * (_BASE["tree"][i] + 2 * (ranks / machines - 1) * hop[i] + 2 * int(np.log2(machines)) * net[i])
        times.append(latency + 2 * size / (width * share) if width else np.full(np.shape(size), np.inf))
    return np.stack(np.broadcast_arrays(*times))


def nccl_nvls_s(message_bytes: Any, ranks: int, machines: int, port_Bps: float, compute_capability: float) -> Any:
    r"""What NCCL believes an all-reduce through the NVSwitch's own adders takes.

    .. math:: t = t_0 + \frac{2(p-1)}{p}\,\frac{n}{H\,\min(2\,b\,\eta\,(H-1)/H,\; b')}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p`. [1]
    machines : int
        Machines; across several NCCL speaks of NVLS with a tree. [1]
    port_Bps : float
        NCCL's nominal NVLink bandwidth of a GPU, which carries the shares of :math:`H+1` heads. [B/s]
    compute_capability : float
        Of the GPU; 9.0 and up. [1]

    Returns
    -------
    float or array
        Seconds; infinite below Hopper. [s]

    Notes
    -----
    Valid for up to 8 GPUs a machine, one head each. The speeds :math:`b, b'` are of the same ladder as the ring's.

    Examples
    --------
    >>> round(1e6 * float(nccl_nvls_s(2**28, 8, 1, 370.8e9, 9.0)))  # us
    1012

    References
    ----------
    .. [1] NCCL 2.30.7, src/graph/tuning.cc and search.cc, NCCL_ALGO_NVLS.
    """
    size = np.asarray(message_bytes, float)
    local = ranks // machines
    if compute_capability < 9 or local <= 2:
        return np.full(np.shape(size), np.inf)
    heads = min(local, 8)
    speed = channel_Bps(port_Bps / (heads + 1), compute_capability, 30)
    ladder = _SPEEDS[_generation(compute_capability)]
    above = [v * GB for v in ladder if speed < v * GB < 2 * speed]
    share = NVLS_HOPPER if compute_capability < 10 else NVLS_BLACKWELL
    width = heads * min(2 * speed * share * (heads - 1) / heads, max(above, default=speed))
    start = _NVLS_S + (_NVLS_NETWORK_S if machines > 1 else 0.0)
    return start + 2 * (ranks - 1) / ranks * size / width
