"""Several engine copies as one service: KV caches that travel, pools for prefill and decode, routers."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from perfmodel.costs.dispatch import maximum, minimum, sqrt


def kv_transfer_s(tokens: Any, bytes_per_token: Any, bandwidth: Any, latency_s: Any) -> Any:
    r"""Time to bring the KV cache of a prompt from another place: the prefill pool, host memory, a disk.

    .. math:: t = \alpha + \frac{n\,b}{B}

    Parameters
    ----------
    tokens : float or array
        Tokens :math:`n` that travel. [token]
    bytes_per_token : float or array
        KV cache :math:`b` of one token over all layers. [B/token]
    bandwidth : float or array
        Of the slowest link on the way :math:`B`. [B/s]
    latency_s : float or array
        Start :math:`\alpha` of a transfer. [s]

    Returns
    -------
    float or array
        Seconds until the last byte is there. [s]

    Notes
    -----
    Valid for one request that has the link to itself, sent when its prefill has ended; sending layer by layer hides
    all but the last layer's share.

    Examples
    --------
    >>> round(kv_transfer_s(8192, 70e3, 50e9, 1e-3), 5)
    0.01247

    References
    ----------
    .. [1] Y. Zhong et al., "DistServe", arXiv:2401.09670, section 4.3 (KV transmission over bandwidth).
    """
    return latency_s + tokens * bytes_per_token / bandwidth


def pools_req_s(prefill_copies: Any, prefill_s: Any, decode_copies: Any, decode_req_s: Any) -> Any:
    r"""Requests a second that a prefill pool and a decode pool can serve together.

    .. math:: \lambda = \min\Big(\frac{n_p}{t_p},\ n_d\,\mu_d\Big)

    Parameters
    ----------
    prefill_copies : float or array
        Engine copies :math:`n_p` that do nothing but prefill. [1]
    prefill_s : float or array
        Time :math:`t_p` of one prompt on one of them. [s]
    decode_copies : float or array
        Engine copies :math:`n_d` that do nothing but decode. [1]
    decode_req_s : float or array
        Answers per second :math:`\mu_d` of one of them. [1/s]

    Returns
    -------
    float or array
        Requests per second. [1/s]

    Notes
    -----
    Valid in steady state: the slower pool sets the pace, the other one idles for the rest.

    Examples
    --------
    >>> float(pools_req_s(2, 0.5, 3, 2.0))
    4.0

    References
    ----------
    .. [1] Y. Zhong et al., "DistServe", arXiv:2401.09670, section 4.1 (replicas of each phase by their goodput).
    """
    return minimum(prefill_copies / prefill_s, decode_copies * decode_req_s)


def router_imbalance(places: int, each: Any, spread: Any) -> Any:
    r"""Requests in the fullest of several places over their mean, when a router deals them out in turn.

    .. math:: f = 1 + z_k\,\sqrt{\frac{v}{2\,m}},\qquad z_k = \Phi^{-1}\Big(\frac{k - 0.375}{k + 0.25}\Big)

    Parameters
    ----------
    places : int
        Copies or attention groups :math:`k`. [1]
    each : float or array
        Mean requests :math:`m` in each. [1]
    spread : float or array
        Coefficient of variation :math:`v` of the answers; above 1 it counts as 1. [1]

    Returns
    -------
    float or array
        Factor of at least 1. [1]

    Notes
    -----
    Valid for many requests in each place. Dealt out in turn, each place sees almost regular arrivals; the number in it
    varies by :math:`m` times the Gini coefficient of the lengths (regular arrivals at infinitely many servers): zero
    for equal answers, a half for exponential ones, 0.56 to 0.58 :math:`v` for narrow ones, so that :math:`v/2` is at
    most 7 % low in the deviation. :math:`z_k` is the expected largest of k normal numbers.

    Examples
    --------
    >>> [round(float(router_imbalance(places, 16.0, v)), 3) for places, v in ((8, 1.0), (8, 0.0), (1, 1.0))]
    [1.254, 1.0, 1.0]

    References
    ----------
    .. [1] G. Blom, "Statistical Estimates and Transformed Beta-Variables", 1958 (expected largest of normal numbers);
       L. Takacs, "Introduction to the Theory of Queues", 1962, chapter 3 (infinitely many servers).
    """
    largest = NormalDist().inv_cdf((places - 0.375) / (places + 0.25)) if places > 1 else 0.0
    return 1 + largest * sqrt(minimum(spread, 1.0) / (2 * maximum(each, 1.0)))


def share_within(limit: Any, median: Any, high: Any) -> Any:
    r"""Share of requests within a limit, from the median and the 95th percentile of what is limited.

    .. math:: p = \Phi\Big(1.645\,\frac{\ln(L / q_{50})}{\ln(q_{95} / q_{50})}\Big)

    Parameters
    ----------
    limit : float or array
        Limit :math:`L`. [s]
    median : float or array
        :math:`q_{50}`. [s]
    high : float or array
        :math:`q_{95}`. [s]

    Returns
    -------
    float or array
        Share between 0 and 1. [1]

    Notes
    -----
    Valid for a lognormal quantity; where both percentiles are equal, all requests keep the limit or none does.

    Examples
    --------
    >>> float(share_within(0.2, 0.2, 0.4)), round(float(share_within(0.4, 0.2, 0.4)), 2)
    (0.5, 0.95)

    References
    ----------
    .. [1] N. Johnson, S. Kotz, "Continuous Univariate Distributions", vol. 1, 1994, chapter 14 (lognormal).
    """
    import numpy as np

    width = np.log(np.maximum(high / median, 1 + 1e-9)) / 1.6448536269515
    z = np.log(limit / median) / width
    return 0.5 * (1 + np.vectorize(_erf)(z / 2**0.5))


def _erf(x: float) -> float:
    from math import erf

    return erf(x)
