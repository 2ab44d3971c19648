"""Closed forms of serving: what a step and a prefill make of a request."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import exp, expm1, log1p, maximum, minimum


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


def burst_share(output_tokens: Any, prefill_steps: Any) -> Any:
    r"""Share of the prefills of a burst that its mean request meets while it decodes, beside chunked prefill.

    .. math:: s = \begin{cases} \tfrac12 & r \ge 1 \\ r\,(1-\tfrac{r}{2}) & r < 1 \end{cases},
              \qquad r = \frac{n-1}{m}

    Parameters
    ----------
    output_tokens : float or array
        Answer :math:`n`. [token]
    prefill_steps : float or array
        Steps :math:`m` that carry the prompts of the burst. [1]

    Returns
    -------
    float or array
        Share of the burst's whole prefill time, at most a half. [1]

    Notes
    -----
    All requests arrive at once and are admitted in the order of the queue, the i-th after i/N of the m steps; from
    then on every step is one token, and it is a slow one until the m-th. Answers longer than m steps wait for half of
    the prefills on average, shorter ones have left before the last prompt is in. Valid where every request may run.

    Examples
    --------
    >>> float(burst_share(1001, 100)), round(float(burst_share(11, 100)), 3)
    (0.5, 0.095)

    References
    ----------
    .. [1] Derived here; the order of prompts and decodes is that of vLLM v1/core/sched/scheduler.py.
    """
    share = minimum((output_tokens - 1) / prefill_steps, 1.0)
    return share * (1 - share / 2)


def benchmark_wait_s(
    together_s: Any, alone_s: Any, rounds: Any, streams: Any, at_once: Any, held: Any = 1.0
) -> Any:
    r"""What the mean TTFT of a closed-loop benchmark gains from its start, when all its streams begin at once.

    .. math:: \Delta = \frac{T_n - T_1}{n - 1}\left(\frac{a}{R} + \frac{R-1}{R}\min(k - 1,\ a)\right),\qquad
        a = (n - 1)\,\frac{1 + \min(m/n, 1)}{2}

    Parameters
    ----------
    together_s : float or array
        Prefill :math:`T_n` of all prompts that begin together. [s]
    alone_s : float or array
        Prefill :math:`T_1` of one prompt. [s]
    rounds : float or array
        Requests of each stream :math:`R`, at least 1. [1]
    streams : float or array
        Requests in flight :math:`n`. [1]
    at_once : float or array
        Answers :math:`k` that end until the prefill begins which follows on the first of them, at least one. [1]
    held : float or array
        Prompts :math:`m` that one forward takes. [1]

    Returns
    -------
    float or array
        Seconds of the mean over all requests. [s]

    Notes
    -----
    Valid where a stream sends its next request as soon as the last one ends. The prompts of the first round end evenly
    between the first and the last, those of one forward together. Later a prompt waits for those that came before it
    while the engine did not see it yet; prefills hold up the answers that would end meanwhile, so that no more come.
    Equal answers of an engine that prefills first all end in one step, and every round queues like the first one.

    Examples
    --------
    >>> [round(float(benchmark_wait_s(12.8, 0.2, 10, 64, k)), 2) for k in (64.0, 8.0, 1.0)]
    [6.4, 1.9, 0.64]

    References
    ----------
    .. [1] Derived here. Clients that start all streams at once: InferenceX (ten prompts a stream), vllm bench serve and
       sglang.bench_serving with --max-concurrency and an infinite request rate.
    """
    each = maximum(together_s - alone_s, 0.0) / maximum(streams - 1, 1.0)
    first = (streams - 1) * (1 + minimum(held / streams, 1.0)) / 2
    return each * (first / rounds + minimum(at_once - 1, first) * (1 - 1 / rounds))


def joint_prefills(during_prefill: Any, during_step: Any) -> Any:
    r"""Mean number of prompts that one forward prefills together, with Poisson arrivals.

    .. math:: N = a + e^{-a}\,\frac{s}{1-e^{-s}}

    Parameters
    ----------
    during_prefill : float or array
        Arrivals :math:`a` during a prefill. [1]
    during_step : float or array
        Arrivals :math:`s` during a decode step. [1]

    Returns
    -------
    float or array
        Prompts, at least one. [1]

    Notes
    -----
    A prefill takes whoever came during the one before. Where nobody did, decoding goes on until a step in which
    somebody comes, and takes those. Valid while a forward holds them all.

    Examples
    --------
    >>> round(float(joint_prefills(0.0, 1e-6)), 3), round(float(joint_prefills(3.0, 0.1)), 2)
    (1.0, 3.05)

    References
    ----------
    .. [1] Derived here; the mean of a Poisson count that is not zero is s / (1 - exp(-s)).
    """
    some = maximum(during_step, 1e-9)
    return during_prefill + exp(-during_prefill) * some / -expm1(-some)


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


def queue_wait_quantile_s(load: Any, mean_wait_s: Any, beyond: Any) -> Any:
    r"""Wait that only a share of the requests exceeds, with Poisson arrivals at one server.

    .. math:: t = \frac{W}{\rho}\,\ln\frac{\rho}{p}\quad\text{for } p < \rho,\ \text{else } 0

    Parameters
    ----------
    load : float or array
        Share :math:`\rho` of the time that the server is busy, below 1. [1]
    mean_wait_s : float or array
        Mean wait :math:`W` over all requests. [s]
    beyond : float or array
        Share :math:`p` of the requests that wait longer: 0.05 for the 95th percentile. [1]

    Returns
    -------
    float or array
        Seconds. [s]

    Notes
    -----
    Valid as an approximation: a share :math:`\rho` waits at all, and those wait exponentially. Exact for exponential
    services.

    Examples
    --------
    >>> round(float(queue_wait_quantile_s(0.5, 1.0, 0.05)), 3), float(queue_wait_quantile_s(0.04, 1.0, 0.05))
    (4.605, 0.0)

    References
    ----------
    .. [1] L. Kleinrock, "Queueing Systems", vol. 1, 1975, section 5.7.
    """
    return maximum(log1p(load / beyond - 1), 0.0) * mean_wait_s / maximum(load, 1e-12)
