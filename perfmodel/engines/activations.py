"""Peak of the activations while one chunk of a prompt is computed on one rank, by parts, and the tables beside it."""

from __future__ import annotations

from perfmodel.engines.options import Facts, Options, RankFacts
from perfmodel.engines.rules import KV_BYTES

BYTES = 2.0  # activations are bf16 or fp16 [B]


def moe_workspace_bytes(tokens: float, per_token: int, width: float, hidden: int) -> float:
    """Scratch of a fused MoE layer: one buffer for the wider of gate-up and output, one for the product [B].

    Parameters: ``tokens`` that meet these experts [1], ``per_token`` experts each [1], ``width`` of one expert on this
    rank [1], ``hidden`` [1]. Valid for the Triton and Marlin kernels; the first buffer does not shrink with tensor
    parallelism once 2 x width < hidden. Source: vLLM and SGLang fused_marlin_moe.

    >>> round(moe_workspace_bytes(8192, 8, 256, 7168) / 1e9, 3)
    0.973
    """
    return BYTES * tokens * per_token * (max(2.0 * width, hidden) + width)


def mlp_bytes(tokens: float, width: float, hidden: int) -> float:
    """Gate, up and their product in a dense MLP of this width on this rank [B].

    >>> mlp_bytes(1, 100, 64)
    600.0
    """
    return BYTES * tokens * 3.0 * width


def hidden_bytes(tokens: float, hidden: int, copies: float = 3.0) -> float:
    """Hidden states that live at once: residual, input and output of a block [B].

    >>> hidden_bytes(8192, 4096) / 2**30
    0.1875
    """
    return BYTES * tokens * hidden * copies


def attention_bytes(tokens: float, facts: Facts, heads: float, absorbed: bool) -> float:
    """Projections around one attention layer on this rank [B].

    MLA, with the sizes of DeepSeek (latent 512 + 64, nope 128, v 128): down-projection 2112 a token (replicated), query
    192 a head, then either the expanded keys and values (256 + 192 + 128 a head) or, ``absorbed``, query and output
    in the latent (576 + 512 a head). Source: SGLang models/deepseek_v2.py, derived from its tensors.
    GQA: query and output, keys and values.
    """
    if facts.attention == "mla":
        inside = 1088.0 if absorbed else 576.0
        return BYTES * tokens * (2112.0 + heads * (192.0 + inside))
    head_dim = facts.kv_values_per_token_layer / (2.0 * facts.kv_heads)
    share = max(1.0, facts.kv_heads * heads / facts.heads)
    return BYTES * tokens * head_dim * 2.0 * (heads + share)


def layer_peak_bytes(tokens: float, options: Options, facts: Facts, rank: RankFacts, absorbed: bool) -> float:
    """Activations of the widest block on this rank, without MoE scratch [B]; blocks run one after another."""
    heads = float(rank.heads_local)
    dense = mlp_bytes(tokens, facts.dense_intermediate / options.attention_tp, facts.hidden)
    return hidden_bytes(tokens, facts.hidden) + max(attention_bytes(tokens, facts, heads, absorbed), dense)


def moe_bytes(tokens: float, options: Options, facts: Facts) -> float:
    """MoE scratch on this rank for ``tokens`` an attention group [B]; DP attention brings all groups' tokens here."""
    if not facts.experts:
        return 0.0
    width = facts.moe_intermediate / options.expert_tp
    return moe_workspace_bytes(tokens * options.dp_attention, facts.per_token, width, facts.hidden)


def request_table_bytes(rows: int, context: int, drafts: int = 0) -> float:
    """SGLang's table of token slots: one int32 for each position that a request may hold, and four more [B].

    Source: SGLang mem_cache/memory_pool.py ReqToTokenPool; the failed allocation of sglang issue 5755:

    >>> round(request_table_bytes(2048, 10 * 2**20) / 2**30, 2)
    80.04
    """
    return (rows + 1) * (context + 4 + drafts) * 4.0


def block_table_bytes(batch: int, context: int, entry_bytes: float = 4.0, page_size: int = 1) -> float:
    """Table of KV indices beside a captured graph: one entry a page of each sequence [B].

    >>> block_table_bytes(512, 2**21) / 2**30
    4.0
    """
    return batch * float(-(-context // page_size)) * entry_bytes


def sampler_bytes(sequences: int, vocab: int, copies: float = 1.0) -> float:
    """Logits in float32 while ``sequences`` rows are sampled, in ``copies`` [B].

    >>> round(sampler_bytes(1024, 201088) / 2**20, 1)
    785.5
    """
    return sequences * vocab * 4.0 * copies


def kv_element_bytes(kv_dtype: str) -> float:
    """Bytes of one KV value [B]; auto counts as two."""
    return KV_BYTES.get(kv_dtype, 2.0)
