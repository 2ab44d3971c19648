"""Closed forms of serving: what a step and a prefill make of a request."""

from __future__ import annotations

from typing import Any


def closed_loop_tpot_s(step_s: Any, prefill_s: Any, running: Any, output_tokens: Any, interference: Any) -> Any:
    r"""Time per output token when every finished request is replaced by a new one, whose prefill stalls the others.

    .. math:: t = t_d + \kappa\,\frac{B-1}{n}\,t_p

    Parameters
    ----------
    step_s : float or array
        One decode step :math:`t_d` of the running set. [s]
    prefill_s : float or array
        Prefill :math:`t_p` of one request. [s]
    running : float or array
        Sequences :math:`B` that run at once. [1]
    output_tokens : float or array
        Mean answer :math:`n`; each of the other sequences is replaced once per so many steps. [token]
    interference : float or array
        Decode time :math:`\kappa` lost per second of prefill. [1]

    Returns
    -------
    float or array
        Mean seconds between two tokens of a request. [s]

    Notes
    -----
    Valid in steady state with prefill before decode; mixing chunks into decode batches lowers ``interference``.

    Examples
    --------
    >>> round(closed_loop_tpot_s(0.030, 0.2, 33, 1000, 1.0), 4)
    0.0364

    References
    ----------
    .. [1] A. Agrawal et al., "Sarathi-Serve", arXiv:2403.02310, section 3 (prefill stalls); balance derived here.
    """
    return step_s + interference * (running - 1) / output_tokens * prefill_s


def request_s(ttft_s: Any, tpot_s: Any, output_tokens: Any) -> Any:
    r"""Time of one request from admission to its last token.

    .. math:: t = t_1 + (n - 1)\,t_{tok}

    Parameters
    ----------
    ttft_s : float or array
        Time to first token :math:`t_1` after admission. [s]
    tpot_s : float or array
        Time per output token :math:`t_{tok}`. [s]
    output_tokens : float or array
        Answer :math:`n`. [token]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid for one answer per request; exact by the definition of TPOT in vLLM's and SGLang's benchmarks.

    Examples
    --------
    >>> request_s(1.0, 0.05, 21)
    2.0

    References
    ----------
    .. [1] vLLM 0.33.0, benchmarks/serve.py: TPOT = (latency - TTFT) / (output_len - 1).
    """
    return ttft_s + (output_tokens - 1) * tpot_s


def lived_tokens(mean: Any, spread: Any) -> Any:
    r"""Mean number of tokens that a running request has already made; as many are still to come.

    .. math:: \frac{E[n^2]}{2\,E[n]} = \frac{\bar n}{2}\,(1 + v^2)

    Parameters
    ----------
    mean : float or array
        Mean answer :math:`\bar n`. [token]
    spread : float or array
        Coefficient of variation :math:`v` of the answers. [1]

    Returns
    -------
    float or array
        Tokens. [token]

    Notes
    -----
    Valid in steady state: who looks at a random time finds long answers more often than short ones.

    Examples
    --------
    >>> lived_tokens(1000.0, 0.0), lived_tokens(1000.0, 1.0)
    (500.0, 1000.0)

    References
    ----------
    .. [1] D. Cox, "Renewal Theory", 1962, section 5.4 (length-biased sampling).
    """
    return mean / 2 * (1 + spread**2)


def queue_wait_s(load: Any, service_s: Any, second_moment: Any) -> Any:
    r"""Mean wait before service with Poisson arrivals at one server.

    .. math:: W = \frac{\rho}{1-\rho}\,\frac{E[s^2]}{2\,E[s]}

    Parameters
    ----------
    load : float or array
        Share :math:`\rho` of the time that the server is busy, below 1. [1]
    service_s : float or array
        Mean service time :math:`E[s]`. [s]
    second_moment : float or array
        :math:`E[s^2] / E[s]^2`: 1 for equal services, 2 for exponential ones. [1]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid in steady state (Pollaczek-Khinchine); grows without bound as the load goes to 1.

    Examples
    --------
    >>> queue_wait_s(0.5, 2.0, 2.0)
    2.0

    References
    ----------
    .. [1] L. Kleinrock, "Queueing Systems", vol. 1, 1975, section 5.6.
    """
    return load / (1 - load) * service_s * second_moment / 2
