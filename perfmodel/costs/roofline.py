"""Time of one operation on one device: the roofline, with what separates a real kernel from it."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import maximum, minimum


def compute_s(flop: Any, peak_FLOPps: Any, efficiency: Any) -> Any:
    r"""Time that the arithmetic alone needs.

    .. math:: t = \frac{F}{\eta P}

    Parameters
    ----------
    flop : float or array
        Operations, a multiply-add is two. [FLOP]
    peak_FLOPps : float or array
        Dense peak of the number format as the vendor prints it. [FLOP/s]
    efficiency : float or array
        Share of the peak that the kernel sustains, in (0, 1]. [1]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for kernels long enough that the clock settles; short kernels are bound by their launch instead.

    Examples
    --------
    >>> round(1e3 * compute_s(1e12, 500e12, 0.8), 3)  # ms
    2.5

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", CACM 52(4), 2009, section 3.
    """
    return flop / (peak_FLOPps * efficiency)


def memory_s(traffic_bytes: Any, bandwidth_Bps: Any, efficiency: Any) -> Any:
    r"""Time that moving the bytes through device memory needs.

    .. math:: t = \frac{N}{\eta B}

    Parameters
    ----------
    traffic_bytes : float or array
        Bytes read and written, each counted once. [B]
    bandwidth_Bps : float or array
        Memory bandwidth as the vendor prints it. [B/s]
    efficiency : float or array
        Share of it that a long stream reaches, in (0, 1]. [1]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for streams that do not fit the last-level cache. The start-up of a short stream is not in here: it is the
    per-kernel time of `operation_s`.

    Examples
    --------
    >>> round(1e3 * memory_s(6.0e9, 1.792e12, 0.87), 2)  # ms
    3.85

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, section 3.
    """
    return traffic_bytes / (bandwidth_Bps * efficiency)


def operation_s(compute: Any, memory: Any, kernels: Any, kernel_s: Any, overlap: Any) -> Any:
    r"""Time of an operation of several kernels: start-ups, then arithmetic and traffic that overlap in part.

    .. math:: t = n\,\tau + \max(t_c, t_m) + (1-\omega)\,\min(t_c, t_m)

    Parameters
    ----------
    compute : float or array
        Time of the arithmetic alone. [s]
    memory : float or array
        Time of the traffic alone. [s]
    kernels : float or array
        Kernels :math:`n` that the operation launches. [1]
    kernel_s : float or array
        Start-up, tail and gap :math:`\tau` of one kernel inside a CUDA graph. [s]
    overlap : float or array
        Share :math:`\omega` of the smaller part that hides under the larger, in [0, 1]. [1]

    Returns
    -------
    float or array
        Seconds; lies between the larger part and the sum of both, plus the start-ups. [s]

    Notes
    -----
    Valid for in-order streams. A saturating efficiency ``x / (x + x0)`` is this formula: its half-size ``x0`` is
    ``bandwidth * n * kernel_s``. More work never takes less time.

    Examples
    --------
    >>> round(1e6 * float(operation_s(10e-6, 30e-6, 2, 3e-6, 0.5)), 1)  # us
    41.0

    References
    ----------
    .. [1] J. Austin et al., "How to Scale Your Model", 2025, "All about rooflines": max <= t <= sum.
    """
    return kernels * kernel_s + maximum(compute, memory) + (1 - overlap) * minimum(compute, memory)
