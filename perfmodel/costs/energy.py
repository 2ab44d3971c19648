"""Power of a GPU by what it does."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import minimum


def board_power(waiting: Any, memory_share: Any, memory: Any, compute_share: Any, compute: Any, limit: Any) -> Any:
    r"""Mean power of a board that streams from memory and computes for some share of the time, and waits for the rest.

    .. math:: P = \min\big(P_l,\ P_w + u_m\,(P_m - P_w) + u_c\,(P_c - P_w)\big)

    Parameters
    ----------
    waiting : float or array
        Power :math:`P_w` with a process open and nothing running. [W]
    memory_share : float or array
        Share :math:`u_m` of the time spent in products that wait for memory. [1]
    memory : float or array
        Power :math:`P_m` in them. [W]
    compute_share : float or array
        Share :math:`u_c` of the time spent in products that wait for arithmetic. [1]
    compute : float or array
        Power :math:`P_c` in them. [W]
    limit : float or array
        Power limit :math:`P_l` of the board. [W]

    Returns
    -------
    float or array
        Watts. [W]

    Notes
    -----
    Valid for shares over many steps. Linear in the share: an H200 that was held busy for all, half and a quarter of the
    time drew 697, 401 and 259 W, where 117 W waiting and 697 W busy give 407 and 262 W.

    Examples
    --------
    >>> float(board_power(117.0, 0.5, 697.0, 0.0, 692.0, 700.0))
    407.0

    References
    ----------
    .. [1] nvidia-smi, one H200 SXM under matrix products that read 11.3 GB of weights each, read for this project.
    """
    return minimum(limit, waiting + memory_share * (memory - waiting) + compute_share * (compute - waiting))
