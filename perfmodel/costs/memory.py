"""Bytes that must be resident: weights in their storage format, and the KV cache."""

from __future__ import annotations

from typing import Any


def bytes_per_weight(bits: float, group: float = 0, scale_bits: float = 0, zero_bits: float = 0) -> float:
    r"""Storage of one weight, with its share of the group's scale and zero point.

    .. math:: \frac{1}{8}\left(b + \frac{b_s + b_z}{g}\right)

    Parameters
    ----------
    bits : float
        Bits :math:`b` of one weight. [1]
    group : float
        Weights :math:`g` that share a scale; 0 where there is none. [1]
    scale_bits : float
        Bits :math:`b_s` of a scale. [1]
    zero_bits : float
        Bits :math:`b_z` of a zero point. [1]

    Returns
    -------
    float
        Bytes per weight. [B]

    Notes
    -----
    Valid for formats with one scale level; a scale for the whole tensor is negligible and left out.

    Examples
    --------
    INT4 with a BF16 scale per 32 weights:

    >>> bytes_per_weight(4, 32, 16)
    0.5625

    References
    ----------
    .. [1] compressed-tensors, "pack-quantized" format (vllm-project/compressed-tensors, README).
    """
    return (bits + ((scale_bits + zero_bits) / group if group else 0)) / 8


def mla_kv_values(kv_lora_rank: Any, qk_rope_head_dim: Any) -> Any:
    r"""Values that one token leaves in the cache of one layer with multi-head latent attention.

    .. math:: d_c + d_r

    Parameters
    ----------
    kv_lora_rank : int
        Width :math:`d_c` of the compressed key and value. [1]
    qk_rope_head_dim : int
        Width :math:`d_r` of the shared rotary key. [1]

    Returns
    -------
    int
        Values per token and layer, on every tensor-parallel rank: nothing in it belongs to one head. [1]

    Notes
    -----
    Valid for the absorbed form that engines store. Only context parallelism divides it.

    Examples
    --------
    >>> mla_kv_values(512, 64)
    576

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1.4, table 1.
    """
    return kv_lora_rank + qk_rope_head_dim


def gqa_kv_values(kv_heads: Any, head_dim: Any, v_head_dim: Any, ranks: Any) -> Any:
    r"""Values that one token leaves in the cache of one layer with grouped-query attention, on one rank.

    .. math:: \max(1, \lfloor h_{kv} / p \rfloor)\,(d_k + d_v)

    Parameters
    ----------
    kv_heads : int
        Key-value heads :math:`h_{kv}` of the layer. [1]
    head_dim : int
        Width :math:`d_k` of a key head. [1]
    v_head_dim : int
        Width :math:`d_v` of a value head. [1]
    ranks : int
        Ranks :math:`p` that share one attention. [1]

    Returns
    -------
    int
        Values per token and layer on one rank; heads are replicated once there are more ranks than heads. [1]

    Notes
    -----
    Valid for vLLM and SGLang, which replicate KV heads when ranks exceed them.

    Examples
    --------
    >>> gqa_kv_values(8, 128, 128, 1), gqa_kv_values(4, 128, 128, 8)
    (2048, 256)

    References
    ----------
    .. [1] J. Ainslie et al., "GQA", arXiv:2305.13245, section 2.2; vLLM v1/kv_cache_interface.py (0.33.0).
    """
    return max(1, kv_heads // ranks) * (head_dim + v_head_dim)
