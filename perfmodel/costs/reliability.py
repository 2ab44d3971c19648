"""Work that fails and starts again: wall time with checkpoints, and how often to write one."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import exp, expm1, sqrt


def checkpointed_wall_s(work_s: Any, interval_s: Any, dump_s: Any, restart_s: Any, mtbf_s: Any) -> Any:
    r"""Expected wall time of work that fails at random and goes on from its last checkpoint.

    .. math:: T = M\,e^{R/M}\left(e^{(\tau+\delta)/M} - 1\right)\frac{T_s}{\tau}

    Parameters
    ----------
    work_s : float or array
        Time :math:`T_s` that the work takes without failures and checkpoints. [s]
    interval_s : float or array
        Work :math:`\tau` between two checkpoints, above zero. [s]
    dump_s : float or array
        Time :math:`\delta` to write a checkpoint. [s]
    restart_s : float or array
        Time :math:`R` from a failure until work goes on where the last checkpoint stood. [s]
    mtbf_s : float or array
        Mean time :math:`M` between failures. [s]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Exact for failures that are Poisson and strike work, checkpoints and restarts alike, where :math:`T_s` is a whole
    number of intervals. Linear in the work, so a part of an interval is off by less than one.

    Examples
    --------
    >>> round(checkpointed_wall_s(500 * 3600, 6600, 300, 600, 24 * 3600) / 3600)
    548

    References
    ----------
    .. [1] J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
       Generation Computer Systems 22 (2006) 303, section 3.
    """
    return mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + dump_s) / mtbf_s) * work_s / interval_s


def checkpointed_wall_first_order_s(work_s: Any, interval_s: Any, dump_s: Any, restart_s: Any, mtbf_s: Any) -> Any:
    r"""The same to first order: a failure costs the restart and half an interval.

    .. math:: T = T_s\left(1 + \frac\delta\tau\right)\left(1 + \frac RM + \frac{\tau+\delta}{2M}\right)

    Parameters
    ----------
    work_s : float or array
        Time :math:`T_s` that the work takes without failures and checkpoints. [s]
    interval_s : float or array
        Work :math:`\tau` between two checkpoints, above zero. [s]
    dump_s : float or array
        Time :math:`\delta` to write a checkpoint. [s]
    restart_s : float or array
        Time :math:`R` from a failure until work goes on. [s]
    mtbf_s : float or array
        Mean time :math:`M` between failures. [s]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid where restart and interval are short against the time between failures; what is left out is of second order.

    Examples
    --------
    >>> round(checkpointed_wall_first_order_s(500 * 3600, 6600, 300, 600, 24 * 3600) / 3600)
    547

    References
    ----------
    .. [1] J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17
       (1974) 530.
    """
    return work_s * (1 + dump_s / interval_s) * (1 + restart_s / mtbf_s + (interval_s + dump_s) / (2 * mtbf_s))


def young_interval_s(dump_s: Any, mtbf_s: Any) -> Any:
    r"""Work between two checkpoints that loses the least time.

    .. math:: \tau = \sqrt{2\,\delta\,M}

    Parameters
    ----------
    dump_s : float or array
        Time :math:`\delta` to write a checkpoint. [s]
    mtbf_s : float or array
        Mean time :math:`M` between failures. [s]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid where a checkpoint takes little of the time between failures.

    Examples
    --------
    >>> round(float(young_interval_s(300, 24 * 3600)) / 60)
    120

    References
    ----------
    .. [1] J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17
       (1974) 530.
    """
    return sqrt(2 * dump_s * mtbf_s)
