"""Mixture of experts: which experts a batch touches, and how uneven the ranks become."""

from __future__ import annotations

from math import log
from statistics import NormalDist
from typing import Any

from perfmodel.costs.dispatch import exp, log1p, maximum, minimum, sqrt


def distinct_experts(tokens: Any, experts: int, per_token: int, concentration: Any) -> Any:
    r"""Expected number of different experts that a batch of tokens is routed to in one layer.

    .. math:: D = E\left[1-\left(1-\tfrac{k}{E}\right)\left(1+\tfrac{c\,(B-1)}{a}\right)^{-a}\right],
              \qquad c = -\ln\left(1-\tfrac{k}{E}\right)

    Parameters
    ----------
    tokens : float or array
        Tokens :math:`B` in the batch, at least one. [1]
    experts : int
        Routed experts :math:`E` of the layer. [1]
    per_token : int
        Experts :math:`k` that each token picks. [1]
    concentration : float or array
        Shape :math:`a` of the gamma distribution of the experts' popularity within the batch; large is uniform
        routing, small is a few popular experts. [1]

    Returns
    -------
    float or array
        Experts whose weights must be read. [1]

    Notes
    -----
    Exact for one token (``k``), and for uniform routing in the limit of large ``a``, where it is
    ``E (1 - (1 - k/E)^B)``. In between, popularity is gamma distributed and arrivals beyond the first token are
    Poisson, which gives the negative binomial factor. Increases with tokens and with ``a``; never above ``E``.

    Examples
    --------
    One token of Kimi K2.6, 32 tokens routed evenly, and 32 that share a topic:

    >>> [round(float(distinct_experts(b, 384, 8, a)), 1) for b, a in ((1, 1.0), (32, 1e9), (32, 0.6))]
    [8.0, 188.2, 142.2]

    References
    ----------
    .. [1] Derived here; for the negative binomial as a gamma mixture of Poisson counts see N. Johnson, A. Kemp,
       S. Kotz, "Univariate Discrete Distributions", 3rd ed., section 5.3.
    """
    if experts <= per_token:
        return 1.0 * experts + 0 * tokens
    rate = -log(1 - per_token / experts)
    later = rate * maximum(tokens - 1, 0)
    unseen = (1 - per_token / experts) * exp(-concentration * log1p(later / concentration))
    return experts * (1 - unseen)


def expected_maximum_of_normals(ranks: int) -> float:
    r"""Expected largest of ``ranks`` standard normal draws (Blom's approximation).

    .. math:: c_R = \Phi^{-1}\!\left(\frac{R - 3/8}{R + 1/4}\right)

    Parameters
    ----------
    ranks : int
        Draws :math:`R`, at least one. [1]

    Returns
    -------
    float
        In standard deviations; zero for one rank. [1]

    Notes
    -----
    Valid within 2 % for 2 <= R <= 1000 (4 % at R = 2).

    Examples
    --------
    >>> round(expected_maximum_of_normals(8), 2)
    1.43

    References
    ----------
    .. [1] G. Blom, "Statistical Estimates and Transformed Beta-Variables", 1958, chapter 6.
    """
    return 0.0 if ranks <= 1 else NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def busiest_rank_experts(distinct: Any, experts: int, ranks: int) -> Any:
    r"""Expected number of touched experts on the busiest of the ranks that share the experts of a layer.

    .. math:: \frac{D}{R} + c_R\,\sigma + \frac{c_R^2-1}{6}\left(1-\tfrac{2}{R}\right)\left(1-\tfrac{D}{E}\right),
              \qquad \sigma^2 = \frac{D}{R}\,\frac{E-D}{E-1}

    Parameters
    ----------
    distinct : float or array
        Experts :math:`D` that the batch touches in the layer. [1]
    experts : int
        Routed experts :math:`E`. [1]
    ranks : int
        Ranks :math:`R` that hold :math:`E/R` experts each. [1]

    Returns
    -------
    float or array
        Touched experts on the busiest rank, at most ``E / R`` and at most ``D``. [1]

    Notes
    -----
    The number on one rank is hypergeometric; the numbers of all ranks add up to ``D``, which widens the spread of the
    largest by ``R / (R - 1)``; its third moment enters by Cornish-Fisher. Valid within 3 % of the exact
    value for R <= 16 and D >= R (10 % for R = 32). At one token over eight ranks it gives 2.55; exact is 2.57.

    Examples
    --------
    >>> [round(float(busiest_rank_experts(d, 384, 8)), 2) for d in (8, 142.2, 384)]
    [2.55, 22.66, 48.0]

    References
    ----------
    .. [1] R. Cornish, E. Fisher, "Moments and cumulants in the specification of distributions", 1938.
    """
    if ranks <= 1:
        return distinct
    c = expected_maximum_of_normals(ranks)
    spread = sqrt(maximum(distinct / ranks * (experts - distinct) / (experts - 1), 0))
    skew = maximum((c**2 - 1) / 6 * (1 - 2 / ranks) * (1 - distinct / experts), 0)
    most = maximum(distinct / ranks + c * spread + skew, minimum(distinct, 1.0))
    return minimum(minimum(most, distinct), experts / ranks)


def busiest_rank_tokens(tokens: Any, per_token: int, experts: int, ranks: int, concentration: Any) -> Any:
    r"""Expected token-expert pairs on the busiest rank.

    .. math:: \frac{Bk}{R}\left(1 + c_R\sqrt{\frac{R}{Bk} + \frac{1}{a}\frac{R}{E}}\right)

    Parameters
    ----------
    tokens : float or array
        Tokens :math:`B` in the batch over all ranks. [1]
    per_token : int
        Experts :math:`k` of a token. [1]
    experts : int
        Routed experts :math:`E`. [1]
    ranks : int
        Ranks :math:`R` that share the experts. [1]
    concentration : float or array
        Shape :math:`a` of the experts' popularity, as in `distinct_experts`. [1]

    Returns
    -------
    float or array
        Pairs whose products the busiest rank computes, at most all. [1]

    Notes
    -----
    Two independent spreads: multinomial sampling, and popularity averaged over the ``E / R`` experts of a rank.
    Valid for balanced placement without replicas; an expert balancer lowers the second term.

    Examples
    --------
    >>> round(float(busiest_rank_tokens(4096, 8, 384, 8, 1e9) / 4096), 3)
    1.022

    References
    ----------
    .. [1] Derived here from the variance of a gamma-mixed multinomial.
    """
    if ranks <= 1:
        return 1.0 * tokens * per_token
    pairs = 1.0 * tokens * per_token
    relative = sqrt(ranks / pairs + ranks / experts / concentration)
    return minimum(pairs / ranks * (1 + expected_maximum_of_normals(ranks) * relative), pairs)


def padded_pairs(pairs: Any, touched: Any, tile: Any) -> Any:
    r"""Token-expert pairs that a grouped product works on once the rows of every expert are padded to a tile.

    .. math:: P + D\,\frac{t-1}{2}\left(1 + e^{-(P/D-1)/t}\right)

    Parameters
    ----------
    pairs : float or array
        Token-expert pairs :math:`P` on the rank. [1]
    touched : float or array
        Experts :math:`D` among which they fall. [1]
    tile : float or array
        Rows :math:`t` of the smallest tile. [1]

    Returns
    -------
    float or array
        Rows that are multiplied, from ``t`` an expert with one row to half a tile more than there are. [1]

    Notes
    -----
    Smooth and increasing in both. Valid for rows that fall on experts at random; with equal rows the true number is
    a staircase around it.

    Examples
    --------
    >>> [round(float(padded_pairs(p, 384, 16)) / 384, 1) for p in (384, 8 * 384, 64 * 384)]
    [16.0, 20.3, 71.6]

    References
    ----------
    .. [1] Derived here; the staircase is that of Marlin's INT4 experts in the tables of aiconfigurator-core 0.12.0.
    """
    share = pairs / maximum(touched, 1e-9)
    return pairs + touched * (tile - 1) / 2 * (1 + exp(-maximum(share - 1, 0) / tile))
