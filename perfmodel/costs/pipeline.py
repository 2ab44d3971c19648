"""Pipeline parallelism: the time of a round of micro-batches through stages of unequal speed."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import maximum


def round_s(occupied_slots_s: Any, traverse_s: Any) -> Any:
    r"""Time until every occupied slot has produced one token: the slowest stage's queue, or one trip around.

    .. math:: t = \max\Big(\sum_{j \in \mathrm{slots}} \max_s t_s(b_j),\ \ \sum_s t_s(b) + n_h t_h\Big)

    Parameters
    ----------
    occupied_slots_s : float or array
        Sum over the occupied slots of the slowest stage's time at that slot's batch. [s]
    traverse_s : float or array
        One trip of the fullest slot: all stages, hops between them, and the token's return. [s]

    Returns
    -------
    float or array
        Seconds from a token of a sequence to its next. [s]

    Notes
    -----
    Valid for steady decode. With one occupied slot nothing overlaps and the trip counts; with as many full slots as
    stages the slowest stage never waits.

    Examples
    --------
    >>> float(round_s(8 * 5e-3, 32e-3)), float(round_s(5e-3, 32e-3))
    (0.04, 0.032)

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965, section 2.3, for the bubble; decode form derived here.
    """
    return maximum(occupied_slots_s, traverse_s)


def chunked_prefill_s(chunks: Any, slowest_stage_s: Any, stages_s: Any) -> Any:
    r"""Time of a prompt that runs through the pipeline in equal chunks.

    .. math:: t = (n - 1) \max_s t_s + \sum_s t_s

    Parameters
    ----------
    chunks : float or array
        Chunks :math:`n` of the prompt. [1]
    slowest_stage_s : float or array
        Time of one chunk on the slowest stage. [s]
    stages_s : float or array
        Time of one chunk through all stages with hops. [s]

    Returns
    -------
    float or array
        Seconds until the last chunk leaves the last stage. [s]

    Notes
    -----
    Valid where chunks follow each other without a gap; one chunk gives the plain sum.

    Examples
    --------
    >>> chunked_prefill_s(1, 2.0, 10.0), chunked_prefill_s(5, 2.0, 10.0)
    (10.0, 18.0)

    References
    ----------
    .. [1] Y. Huang et al., "GPipe", arXiv:1811.06965, section 2.3.
    """
    return (chunks - 1) * slowest_stage_s + stages_s


def hop_bytes(tokens: Any, hidden: Any, width: Any) -> Any:
    r"""Activations that cross one stage boundary: hidden state and residual.

    .. math:: N = 2\,T\,H\,b

    Parameters
    ----------
    tokens : float or array
        Tokens :math:`T` in the micro-batch. [1]
    hidden : float or array
        Width :math:`H` of the model. [1]
    width : float or array
        Bytes :math:`b` of an activation. [B]

    Returns
    -------
    float or array
        Bytes. [B]

    Notes
    -----
    Valid for vLLM and SGLang, which send both tensors.

    Examples
    --------
    >>> hop_bytes(1, 7168, 2)
    28672

    References
    ----------
    .. [1] vLLM 0.33.0, distributed/parallel_state.py, isend_tensor_dict; SGLang 0.5.23, send_tensor_dict.
    """
    return 2 * tokens * hidden * width
