"""Times of collectives beyond one ring: trees, sums in the switch, machines behind a network, expert exchange."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import maximum, minimum


def tree_all_reduce_s(message_bytes: Any, base_s: Any, inner_steps: Any, hop_s: Any, outer_steps: Any, net_hop_s: Any,
                      tree_Bps: Any) -> Any:
    r"""All-reduce up and down a double tree: chains inside machines, trees between them.

    .. math:: t = t_0 + s\,\alpha + s_n\,\alpha_n + 2n/B

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    base_s : float or array
        Start-up :math:`t_0` of the call. [s]
    inner_steps : float or array
        Steps :math:`s` inside a machine: 2 (p / m - 1) for p ranks in m machines. [1]
    hop_s : float or array
        Latency :math:`\alpha` of one of them. [s]
    outer_steps : float or array
        Steps :math:`s_n` between machines: 2 floor(log2 m). [1]
    net_hop_s : float or array
        Latency :math:`\alpha_n` of one of them. [s]
    tree_Bps : float or array
        Bandwidth :math:`B` of the tree. [B/s]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for NCCL's double binary tree, whose two trees share the traffic; the latency grows with the logarithm of the
    machines where a ring's grows with their number.

    Examples
    --------
    One token of Kimi K2.6 over four machines of 8:

    >>> round(1e6 * float(tree_all_reduce_s(14336, 6.8e-6, 14, 0.6e-6, 4, 5e-6, 95e9)), 1)  # us
    35.5

    References
    ----------
    .. [1] NCCL 2.30.7, src/graph/tuning.cc; P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth
       broadcast, reduction and scan", Parallel Computing 35(12), 2009.
    """
    return base_s + inner_steps * hop_s + outer_steps * net_hop_s + 2 * message_bytes / tree_Bps


def multimem_all_reduce_s(message_bytes: Any, ranks: int, base_s: Any, link_Bps: Any) -> Any:
    r"""All-reduce by the NVSwitch: every rank fetches its slice summed by the switch, and stores it to all at once.

    .. math:: t = t_0 + \left(1 + \frac{1}{p}\right) \frac{n}{B}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p`. [1]
    base_s : float or array
        Start-up :math:`t_0` with both barriers. [s]
    link_Bps : float or array
        Bandwidth :math:`B` of a GPU's port, one direction. [B/s]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid for a group that one NVSwitch joins: a port sends its whole buffer and a slice of the result. PyTorch's kernel
    reaches 243 of 450 GB/s on 8 Hopper GPUs and little more on Blackwell, since its blocks are few.

    Examples
    --------
    >>> round(1e6 * float(multimem_all_reduce_s(2**20, 8, 8e-6, 450e9)), 1)  # us
    10.6

    References
    ----------
    .. [1] NVIDIA PTX ISA, multimem.ld_reduce and multimem.st; PyTorch symmetric memory, multimem_all_reduce_.
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    return base_s + (1 + 1 / ranks) * message_bytes / link_Bps


def nvls_all_reduce_s(
    message_bytes: Any, ranks: int, base_s: Any, busbw_Bps: Any, ramp_Bps: Any, ramp_bytes: Any
) -> Any:
    r"""All-reduce by NCCL through the NVSwitch (NVLS), whose chunks grow with the message.

    .. math:: t = t_0 + \frac{2(p-1)}{p}\,\max\!\left(\frac{\min(n, n_r)}{B_r},\, \frac{n}{B}\right)

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    ranks : int
        Ranks :math:`p`. [1]
    base_s : float or array
        Start-up :math:`t_0` of the call. [s]
    busbw_Bps : float or array
        Bus bandwidth :math:`B` with large chunks, as nccl-tests defines it. [B/s]
    ramp_Bps : float or array
        Bus bandwidth :math:`B_r` with small ones. [B/s]
    ramp_bytes : float or array
        Message :math:`n_r` from which on chunks are large. [B]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid inside one NVLink domain. Where large chunks take over the curve is flat: time does not fall.

    Examples
    --------
    8 B200, 16 MiB and 256 MiB:

    >>> [round(1e6 * float(nvls_all_reduce_s(n, 8, 34e-6, 750e9, 431e9, 2**26))) for n in (2**24, 2**28)]  # us
    [102, 660]

    References
    ----------
    .. [1] NCCL 2.30.7, src/enqueue.cc: chunks of an NVLS all-reduce.
    """
    if ranks <= 1:
        return 0.0 * message_bytes
    share = 2 * (ranks - 1) / ranks
    return base_s + share * maximum(minimum(message_bytes, ramp_bytes) / ramp_Bps, message_bytes / busbw_Bps)


def hierarchical_all_reduce_s(
    message_bytes: Any, local: int, machines: int, base_s: Any, inner_Bps: Any, uplink_Bps: Any, net_hop_s: Any
) -> Any:
    r"""All-reduce over machines: scatter inside, all-reduce of the slices across, gather inside.

    .. math:: t = t_0 + \frac{2(l-1)}{l}\frac{n}{B} + 2(m-1)\,\alpha_n + \frac{2(m-1)}{m}\frac{n}{U}

    Parameters
    ----------
    message_bytes : float or array
        Buffer :math:`n` on each rank. [B]
    local : int
        Ranks :math:`l` in a machine. [1]
    machines : int
        Machines :math:`m`. [1]
    base_s : float or array
        Start-up :math:`t_0` of all three calls. [s]
    inner_Bps : float or array
        Bus bandwidth :math:`B` inside a machine. [B/s]
    uplink_Bps : float or array
        What all NICs of a machine carry together, :math:`U`, one direction. [B/s]
    net_hop_s : float or array
        Latency :math:`\alpha_n` of a step over the network. [s]

    Returns
    -------
    float or array
        Seconds; zero for one rank. [s]

    Notes
    -----
    Valid where the phases run one after another; a library that overlaps them takes the longer of the two levels.

    Examples
    --------
    >>> round(1e3 * float(hierarchical_all_reduce_s(2**28, 8, 2, 3e-5, 360e9, 400e9, 3e-6)), 2)  # ms
    2.01

    References
    ----------
    .. [1] R. Thakur, R. Rabenseifner, W. Gropp, Int. J. HPC Appl. 19(1), 2005, applied on two levels.
    """
    if local * machines <= 1:
        return 0.0 * message_bytes
    inner = 2 * (local - 1) / local * message_bytes / inner_Bps
    outer = 2 * (machines - 1) * net_hop_s + 2 * (machines - 1) / machines * message_bytes / uplink_Bps
    return base_s + inner + outer


def staged_send_s(message_bytes: Any, base_s: Any, write_Bps: Any, read_Bps: Any, chunk_bytes: Any) -> Any:
    r"""One message staged through the host's memory: written by the sender, read by the receiver, chunk by chunk.

    .. math:: t = t_0 + \frac{c}{\max(W, R)} + \frac{n}{\min(W, R)}

    Parameters
    ----------
    message_bytes : float or array
        Message :math:`n`. [B]
    base_s : float or array
        Start-up :math:`t_0`. [s]
    write_Bps : float or array
        GPU to host, :math:`W`. [B/s]
    read_Bps : float or array
        Host to GPU, :math:`R`. [B/s]
    chunk_bytes : float or array
        Chunk :math:`c` after which the receiver may start. [B]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for a message of at least one chunk whose two copies overlap; memory must carry both.

    Examples
    --------
    >>> round(1e6 * float(staged_send_s(2**20, 1e-5, 26e9, 24e9, 131072)), 1)  # us
    58.7

    References
    ----------
    .. [1] NCCL 2.30.7, src/transport/shm.cc: SHM transport, chunks of 128 KiB over PCIe.
    """
    slow = maximum(1 / write_Bps, 1 / read_Bps)
    return base_s + chunk_bytes * (1 / write_Bps + 1 / read_Bps - slow) + message_bytes * slow


def expert_exchange_s(
    tokens: Any, copies: Any, copy_bytes: Any, away: Any, base_s: Any, inner_Bps: Any, uplink_Bps: Any
) -> Any:
    r"""Dispatch of tokens to the ranks of their experts, or their way back (combine).

    .. math:: t = t_0 + T\,k\,b\,\max\!\left(\frac{1-a}{B},\, \frac{a}{U}\right)

    Parameters
    ----------
    tokens : float or array
        Tokens :math:`T` of one rank. [token]
    copies : float or array
        Copies :math:`k` of a token that leave its rank: distinct ranks, at most the experts per token. [1/token]
    copy_bytes : float or array
        Bytes :math:`b` of a copy: FP8 with scales one way, BF16 the other. [B]
    away : float or array
        Share :math:`a` of the copies that go to another machine. [1]
    base_s : float or array
        Start-up :math:`t_0` of the kernel with its counts. [s]
    inner_Bps : float or array
        What a GPU sends inside its machine while all send, :math:`B`. [B/s]
    uplink_Bps : float or array
        What a GPU's NIC sends, :math:`U`. [B/s]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for even routing; the busiest rank takes its share more. A byte model of DeepEP-like kernels: with 34 us and
    0.95 and 0.9 of the links it meets DeepEP's table of EP 8 to 256 within 10 %. Kernels that forward inside a machine
    send one copy a machine over the network.

    Examples
    --------
    128 tokens of hidden size 7168 to 8 ranks of one machine in FP8, and over two machines:

    >>> [round(1e6 * float(expert_exchange_s(128, 7, 7392, a, 3e-5, 160e9, 45e9)), 1) for a in (0, 0.5)]  # us
    [71.4, 103.6]

    References
    ----------
    .. [1] DeepSeek-AI, DeepEP, docs/legacy.md, "Low-latency kernels": dispatch in FP8 with 128-wide scales, combine in
       BF16.
    """
    return base_s + tokens * copies * copy_bytes * maximum((1 - away) / inner_Bps, away / uplink_Bps)
