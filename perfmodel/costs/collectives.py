"""Times of collectives on one level of a network. Sizes are those that nccl-tests prints."""

from __future__ import annotations

from typing import Any


def ring_all_reduce_s(message_bytes: Any, ranks: int, base_s: Any, hop_s: Any, busbw_Bps: Any) -> Any:
    r"""All-reduce on a ring: reduce-scatter, then all-gather.

    .. math:: t = t_0 + 2(p-1)\,\alpha + \frac{2(p-1)}{p}\,\frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p` in the ring. [1]
    base_s : float or array
        Start-up :math:`t_0` of the call. [s]
    hop_s : float or array
        Latency :math:`\alpha` of one ring step in this protocol. [s]
    busbw_Bps : float or array
        Bus bandwidth :math:`B` of the ring in this protocol, as nccl-tests defines it. [B/s]

    Returns
    -------
    float or array
        Time until the last rank holds the sum; zero for one rank. [s]

    Notes
    -----
    Valid for one NCCL protocol (LL, LL128, Simple) at a time; NCCL runs the one that its tuning model thinks
    fastest. A measured
    busbw goes in unchanged.

    Examples
    --------
    14,336 B, one token of Kimi K2.6, over 8 PCIe GPUs:

    >>> round(1e6 * float(ring_all_reduce_s(14336, 8, 6.6e-6, 1.0e-6, 18e9)), 1)  # us
    22.0

    References
    ----------
    .. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
       Int. J. HPC Appl. 19(1), 2005; NVIDIA nccl-tests, doc/PERFORMANCE.md, section "AllReduce".
    .. [2] NCCL 2.30.7, src/graph/tuning.cc, ncclTopoGetAlgoTime: latency and bandwidth terms.
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    steps = 2 * (ranks - 1)
    return base_s + steps * hop_s + steps / ranks * message_bytes / busbw_Bps


def ring_all_gather_s(message_bytes: Any, ranks: int, base_s: Any, hop_s: Any, busbw_Bps: Any) -> Any:
    r"""All-gather or reduce-scatter on a ring.

    .. math:: t = t_0 + (p-1)\,\alpha + \frac{p-1}{p}\,\frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        Whole buffer :math:`n`: what every rank holds after a gather or before a scatter. [B]
    ranks : int
        Ranks :math:`p` in the ring. [1]
    base_s : float or array
        Start-up :math:`t_0` of the call. [s]
    hop_s : float or array
        Latency :math:`\alpha` of one ring step. [s]
    busbw_Bps : float or array
        Bus bandwidth :math:`B` of the ring. [B/s]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid for equal shares: half of an all-reduce. The size is the total, as nccl-tests prints it, not what one rank
    contributes.

    Examples
    --------
    >>> round(1e6 * float(ring_all_gather_s(2**20, 8, 6.6e-6, 1.0e-6, 18e9)), 1)  # us
    64.6

    References
    ----------
    .. [1] NVIDIA nccl-tests, doc/PERFORMANCE.md, section "AllGather"; NCCL 2.30.7, src/graph/tuning.cc.
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    return base_s + (ranks - 1) * hop_s + (ranks - 1) / ranks * message_bytes / busbw_Bps


def one_shot_all_reduce_s(message_bytes: Any, ranks: int, base_s: Any, link_Bps: Any) -> Any:
    r"""One-shot all-reduce: every rank reads the buffers of all others and adds them itself.

    .. math:: t = t_0 + (p-1)\,\frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p`. [1]
    base_s : float or array
        Start-up :math:`t_0` with both barriers. [s]
    link_Bps : float or array
        What one rank can read from its peers while all read. [B/s]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid with peer access between all ranks, for small messages; the traffic of a rank grows with ``p``.

    Examples
    --------
    >>> round(1e6 * float(one_shot_all_reduce_s(14336, 8, 6e-6, 24e9)), 1)  # us
    10.2

    References
    ----------
    .. [1] vLLM 0.33.0, csrc/custom_all_reduce.cuh, one-stage kernel.
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    return base_s + (ranks - 1) * message_bytes / link_Bps


def two_shot_all_reduce_s(message_bytes: Any, ranks: int, base_s: Any, link_Bps: Any) -> Any:
    r"""Two-shot all-reduce: every rank reduces its own slice, then reads the other slices.

    .. math:: t = t_0 + \frac{2(p-1)}{p}\,\frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p`. [1]
    base_s : float or array
        Start-up :math:`t_0` with three barriers. [s]
    link_Bps : float or array
        What one rank can read from its peers while all read. [B/s]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid with peer access between all ranks. The traffic of a ring without its latency per step.

    Examples
    --------
    >>> round(1e6 * float(two_shot_all_reduce_s(2**20, 8, 10e-6, 350e9)), 1)  # us
    15.2

    References
    ----------
    .. [1] vLLM 0.33.0, csrc/custom_all_reduce.cuh, two-stage kernel.
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    return base_s + 2 * (ranks - 1) / ranks * message_bytes / link_Bps


def all_to_all_s(message_bytes: Any, ranks: int, base_s: Any, link_Bps: Any) -> Any:
    r"""All-to-all as grouped sends and receives.

    .. math:: t = t_0 + \frac{p-1}{p}\,\frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        What one rank sends in all, :math:`n`, its own share included. [B]
    ranks : int
        Ranks :math:`p`. [1]
    base_s : float or array
        Start-up :math:`t_0` of the group. [s]
    link_Bps : float or array
        What one rank can send while all send. [B/s]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid where the bisection of the network carries all ranks at ``link_Bps``; NCCL has no tuning model for it.

    Examples
    --------
    >>> round(1e6 * float(all_to_all_s(2**20, 8, 20e-6, 20e9)), 1)  # us
    65.9

    References
    ----------
    .. [1] NVIDIA nccl-tests, doc/PERFORMANCE.md, section "AlltoAll".
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    return base_s + (ranks - 1) / ranks * message_bytes / link_Bps


def send_recv_s(message_bytes: Any, base_s: Any, link_Bps: Any) -> Any:
    r"""One message from one device to another.

    .. math:: t = t_0 + n / B

    Parameters
    ----------
    message_bytes : float or array
        Message :math:`n`. [B]
    base_s : float or array
        Start-up :math:`t_0`. [s]
    link_Bps : float or array
        Bandwidth of the path, one direction. [B/s]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for a path that nobody else uses meanwhile.

    Examples
    --------
    >>> round(1e6 * send_recv_s(28672, 10e-6, 50e9), 1)  # us
    10.6

    References
    ----------
    .. [1] R. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.
    """
    return base_s + message_bytes / link_Bps
