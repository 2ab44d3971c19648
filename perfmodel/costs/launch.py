"""What the host costs: launching kernels one by one, and the fixed work around a step."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import maximum
from perfmodel.costs.moe import expected_maximum_of_normals


def eager_host_s(kernels: Any, launch_s: Any, ranks: int, spread: Any) -> Any:
    r"""Time that the slowest host thread needs to launch a step's kernels one by one.

    .. math:: t = n\,\tau_h\,(1 + c_R\,s)

    Parameters
    ----------
    kernels : float or array
        Kernels :math:`n` of the step on one rank. [1]
    launch_s : float or array
        Host time :math:`\tau_h` per kernel: Python, dispatcher and driver. [s]
    ranks : int
        Tensor-parallel ranks :math:`R` that meet at every collective. [1]
    spread : float or array
        Relative standard deviation :math:`s` of the host threads between two collectives. [1]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid with CUDA graphs off. Ranks wait for the slowest of them at every collective, so the expected largest of R
    threads counts. A kernel count and a cost per kernel cannot be told apart by timing steps: only their product is.

    Examples
    --------
    >>> round(1e3 * eager_host_s(1600, 22e-6, 1, 0.2), 1)  # ms
    35.2

    References
    ----------
    .. [1] NVIDIA, "Getting started with CUDA graphs", 2019: launch overhead; the largest of R: costs/moe.py.
    """
    return kernels * launch_s * (1 + expected_maximum_of_normals(ranks) * spread)


def exposed_s(host_s: Any, device_s: Any) -> Any:
    r"""Part of the host time that the device does not hide.

    .. math:: \max(t_h - t_d, 0)

    Parameters
    ----------
    host_s : float or array
        Host time of the step. [s]
    device_s : float or array
        Device time of the step. [s]

    Returns
    -------
    float or array
        Seconds to add to the device time. [s]

    Notes
    -----
    Valid for asynchronous launches: host and device overlap as a maximum, not a sum.

    Examples
    --------
    >>> float(exposed_s(5.0, 3.0)), float(exposed_s(2.0, 3.0))
    (2.0, 0.0)

    References
    ----------
    .. [1] NVIDIA, CUDA C++ Programming Guide, section "Asynchronous concurrent execution".
    """
    return maximum(host_s - device_s, 0)
