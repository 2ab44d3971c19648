"""Speculative decoding: how many tokens a step yields when drafts are verified together."""

from __future__ import annotations

from typing import Any


def tokens_per_step(acceptance: Any, drafts: int) -> Any:
    r"""Expected tokens of one step when each draft is accepted with the same chance, up to the first that is not.

    .. math:: E = \frac{1-\alpha^{n+1}}{1-\alpha} = \sum_{i=0}^{n} \alpha^i

    Parameters
    ----------
    acceptance : float or array
        Chance :math:`\alpha` that a draft is accepted, given that those before it were. [1]
    drafts : int
        Drafts :math:`n` of a step; one token more comes from the verifying forward itself. [1]

    Returns
    -------
    float or array
        Tokens that a sequence gains in a step. [1]

    Notes
    -----
    Valid for 0 <= acceptance <= 1 and acceptances that do not depend on each other. Between 1 and ``drafts + 1``, and
    increasing in both.

    Examples
    --------
    >>> [round(tokens_per_step(a, 3), 3) for a in (0.0, 0.65, 1.0)]
    [1.0, 2.347, 4.0]

    References
    ----------
    .. [1] Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023,
       arXiv:2211.17192, section 2.3, equation 1.
    """
    return sum(acceptance**i for i in range(drafts + 1))


def chance_of_length(length: float, drafts: int) -> float:
    r"""Chance of acceptance at which a step yields this many tokens: the inverse of `tokens_per_step`.

    .. math:: \alpha : \quad \sum_{i=0}^{n} \alpha^i = E

    Parameters
    ----------
    length : float
        Mean tokens :math:`E` of a step, as engines log it (accept length). [1]
    drafts : int
        Drafts :math:`n` of a step. [1]

    Returns
    -------
    float
        Chance :math:`\alpha` of each draft. [1]

    Raises
    ------
    ValueError
        If no chance gives that length.

    Notes
    -----
    Valid for 1 <= length <= drafts + 1; by bisection, within 1e-12.

    Examples
    --------
    >>> round(chance_of_length(tokens_per_step(0.65, 3), 3), 6)
    0.65

    References
    ----------
    .. [1] Leviathan et al., arXiv:2211.17192, section 2.3, equation 1, solved for the acceptance.
    """
    if not 1 <= length <= drafts + 1:
        raise ValueError(f"{drafts} drafts yield between 1 and {drafts + 1} tokens a step, not {length:g}")
    low, high = 0.0, 1.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, drafts) < length else (low, middle)
    return (low + high) / 2


def tokens_by_position(accepted: Any) -> Any:
    r"""Expected tokens of one step from the share of steps in which each position's draft is accepted.

    .. math:: E = 1 + \sum_{i=1}^{n} p_i

    Parameters
    ----------
    accepted : sequence of float
        Share :math:`p_i` of steps in which draft :math:`i` and all before it are accepted; not increasing. [1]

    Returns
    -------
    float or array
        Tokens that a sequence gains in a step. [1]

    Notes
    -----
    Valid for any dependence between positions; with :math:`p_i = \alpha^i` it is `tokens_per_step`.

    Examples
    --------
    >>> round(tokens_by_position([0.65, 0.40, 0.25]), 2)
    2.3

    References
    ----------
    .. [1] Leviathan et al., arXiv:2211.17192, section 2.3: the expectation of the accepted run, position by position.
    """
    return 1 + sum(accepted)
