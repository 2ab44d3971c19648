"""Attention: work and traffic of decode and prefill, and how much of the device a decode can occupy."""

from __future__ import annotations

from typing import Any

from perfmodel.costs.dispatch import maximum


def attention_flop(query_tokens: Any, context: Any, heads: Any, key_dim: Any, value_dim: Any) -> Any:
    r"""Operations of scores and weighted values.

    .. math:: F = 2\,T\,S\,h\,(d_k + d_v)

    Parameters
    ----------
    query_tokens : float or array
        New tokens :math:`T`. [1]
    context : float or array
        Mean number :math:`S` of cached tokens that a new token attends to. [1]
    heads : float or array
        Query heads :math:`h` on the rank. [1]
    key_dim : float or array
        Width :math:`d_k` that a score is taken over (576 for absorbed MLA, 192 expanded). [1]
    value_dim : float or array
        Width :math:`d_v` of what is summed (512 absorbed, 128 expanded). [1]

    Returns
    -------
    float or array
        Operations; the softmax is not counted. [FLOP]

    Notes
    -----
    Valid for any causal pattern once ``context`` is the mean over the new tokens: a prompt of ``T`` tokens after
    ``S0`` cached ones has ``S = S0 + (T + 1) / 2``.

    Examples
    --------
    >>> attention_flop(1, 1000, 8, 576, 512) / 1e6  # MFLOP
    17.408

    References
    ----------
    .. [1] T. Dao et al., "FlashAttention", arXiv:2205.14135, section 3; DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    return 2.0 * query_tokens * context * heads * (key_dim + value_dim)


def decode_kv_bytes(sequences: Any, context: Any, bytes_per_token: Any, pad_tokens: Any) -> Any:
    r"""Cache that one layer reads to decode one token for every sequence.

    .. math:: N = B\,(S + S_0)\,b

    Parameters
    ----------
    sequences : float or array
        Sequences :math:`B` on the rank. [1]
    context : float or array
        Cached tokens :math:`S` of each. [1]
    bytes_per_token : float or array
        Cache of one token in this layer on this rank, :math:`b`. [B]
    pad_tokens : float or array
        What tiles, split bookkeeping and the merge cost a sequence, as tokens :math:`S_0`. [1]

    Returns
    -------
    float or array
        Bytes. [B]

    Notes
    -----
    Valid while sequences do not share cached pages; shared prefixes may be served from the last-level cache.

    Examples
    --------
    >>> decode_kv_bytes(8, 1000, 576, 0)
    4608000

    References
    ----------
    .. [1] W. Kwon et al., "PagedAttention", arXiv:2309.06180, section 4; padding term: derived here from kernel tables.
    """
    return sequences * (context + pad_tokens) * bytes_per_token


def decode_parallel_efficiency(sequences: Any, blocks_per_sequence: Any, half_blocks: Any, ceiling: Any) -> Any:
    r"""Share of the memory bandwidth that a decode attention reaches with the thread blocks it has.

    .. math:: \eta = \eta_\infty\,\frac{B\,n}{B\,n + n_{1/2}}

    Parameters
    ----------
    sequences : float or array
        Sequences :math:`B` on the rank. [1]
    blocks_per_sequence : float or array
        Thread blocks :math:`n` of one sequence: head blocks times splits of the context. [1]
    half_blocks : float or array
        Blocks :math:`n_{1/2}` at which half of the ceiling is reached. [1]
    ceiling : float or array
        Efficiency :math:`\eta_\infty` with the device full. [1]

    Returns
    -------
    float or array
        Efficiency in (0, ceiling). [1]

    Notes
    -----
    Valid for split-KV kernels with a bounded number of splits. One sequence through a Triton MLA kernel with 32
    splits on 188 SMs reaches a third of the ceiling.

    Examples
    --------
    >>> [round(float(decode_parallel_efficiency(b, 32, 70, 0.75)), 2) for b in (1, 8, 64)]
    [0.24, 0.59, 0.73]

    References
    ----------
    .. [1] T. Dao et al., "Flash-Decoding for long-context inference", 2023; the form is derived here.
    """
    blocks = maximum(sequences, 1) * blocks_per_sequence
    return ceiling * blocks / (blocks + half_blocks)


def recurrence_flop(sequences: Any, heads: Any, key_dim: Any, value_dim: Any) -> Any:
    r"""Operations that advance a recurrent state by one token and read it.

    .. math:: F = 6\,B\,h\,d_k\,d_v

    Parameters
    ----------
    sequences : float or array
        Sequences :math:`B`. [1]
    heads : float or array
        Heads :math:`h` of the state on the rank. [1]
    key_dim : float or array
        Rows :math:`d_k` of one head's state (the state width of Mamba-2). [1]
    value_dim : float or array
        Columns :math:`d_v` of one head's state. [1]

    Returns
    -------
    float or array
        Operations: decay, rank-one update and product with the query, a multiply-add each. [FLOP]

    Notes
    -----
    Valid for Mamba-2, lightning attention and, but for one more product, delta rules. Memory binds it always.

    Examples
    --------
    >>> recurrence_flop(1, 32, 128, 128)
    3145728.0

    References
    ----------
    .. [1] T. Dao, A. Gu, "Transformers are SSMs", arXiv:2405.21060, section 6.
    """
    return 6.0 * sequences * heads * key_dim * value_dim


def linear_attention_flop(tokens: Any, heads: Any, key_dim: Any, value_dim: Any, chunk: Any) -> Any:
    r"""Operations of the chunked form of linear attention over a prompt.

    .. math:: F = 2\,T\,h\,\left[C\,(d_k + d_v) + 2\,d_k d_v\right]

    Parameters
    ----------
    tokens : float or array
        New tokens :math:`T`. [1]
    heads : float or array
        Heads :math:`h` on the rank. [1]
    key_dim : float or array
        Rows :math:`d_k` of one head's state. [1]
    value_dim : float or array
        Columns :math:`d_v` of one head's state. [1]
    chunk : float or array
        Tokens :math:`C` of a chunk. [1]

    Returns
    -------
    float or array
        Operations: attention within the chunk, the product with the state and its update. [FLOP]

    Notes
    -----
    Valid for chunks no longer than the prompt; the triangular solve of delta rules is not counted.

    Examples
    --------
    >>> linear_attention_flop(64, 32, 128, 128, 64) / 1e6  # MFLOP
    201.326592

    References
    ----------
    .. [1] S. Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3; arXiv:2405.21060, section 6.
    """
    return 2.0 * tokens * heads * (chunk * (key_dim + value_dim) + 2.0 * key_dim * value_dim)
