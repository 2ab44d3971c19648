"""What a run says about the rest of itself: tokens behind a count of answers, and two estimates made one."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import sqrt


def finished_answers(made_tokens: Any, running: Any, mean: Any, spread: Any) -> Any:
    r"""Answers that are complete when a number of tokens is made, all slots having started together.

    .. math:: D = \frac n{\bar n} - B\,\frac{1 - v^2}{2}

    Parameters
    ----------
    made_tokens : float or array
        Tokens :math:`n`, those of incomplete answers included. [token]
    running : float or array
        Sequences :math:`B` that run at once; a finished one is replaced. [1]
    mean : float or array
        Mean answer :math:`\bar n`. [token]
    spread : float or array
        Coefficient of variation :math:`v` of the answers. [1]

    Returns
    -------
    float or array
        Complete answers. [1]

    Notes
    -----
    Valid after a few answers in each slot. The complete ones are shorter than the mean, since long ones are still being
    written: they hold :math:`D\bar n - B\bar n v^2` tokens.

    Examples
    --------
    >>> finished_answers(2e6, 64.0, 2000.0, 0.0), finished_answers(2e6, 64.0, 2000.0, 1.0)
    (968.0, 1000.0)

    References
    ----------
    .. [1] D. Cox, "Renewal Theory", 1962, section 4.2 (renewal function of an ordinary renewal process).
    """
    return made_tokens / mean - running * (1 - spread**2) / 2


def pooled(prior: Any, prior_sd: Any, measured: Any, measured_sd: Any) -> Any:
    r"""A positive quantity known twice: the mean of both logarithms, each weighted with its precision.

    .. math:: \ln x = \frac{\ln x_0 / s_0^2 + \ln x_1 / s_1^2}{1 / s_0^2 + 1 / s_1^2}

    Parameters
    ----------
    prior : float or array
        What was expected, :math:`x_0`. [1]
    prior_sd : float or array
        Its standard deviation :math:`s_0`, of the logarithm. [1]
    measured : float or array
        What was measured, :math:`x_1`. [1]
    measured_sd : float or array
        Its standard deviation :math:`s_1`, of the logarithm. [1]

    Returns
    -------
    float or array
        The quantity, in the unit of both. [1]

    Notes
    -----
    Exact for a lognormal prior and an independent lognormal error.

    Examples
    --------
    >>> round(float(pooled(100.0, 0.2, 80.0, 0.2)), 2)
    89.44

    References
    ----------
    .. [1] A. Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.5 (normal mean with known variance).
    """
    weight = 1 / (1 + (measured_sd / prior_sd) ** 2)
    return prior * (measured / prior) ** weight


def pooled_sd(prior_sd: Any, measured_sd: Any) -> Any:
    r"""Standard deviation of the logarithm after pooling: below both.

    .. math:: s = (1 / s_0^2 + 1 / s_1^2)^{-1/2}

    Parameters
    ----------
    prior_sd : float or array
        Standard deviation :math:`s_0` of the logarithm of what was expected. [1]
    measured_sd : float or array
        That of what was measured, :math:`s_1`. [1]

    Returns
    -------
    float or array
        Standard deviation of the logarithm. [1]

    Notes
    -----
    Exact for a lognormal prior and an independent lognormal error.

    Examples
    --------
    >>> round(float(pooled_sd(0.3, 0.4)), 2)
    0.24

    References
    ----------
    .. [1] A. Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.5 (normal mean with known variance).
    """
    return prior_sd * measured_sd / sqrt(prior_sd**2 + measured_sd**2)
