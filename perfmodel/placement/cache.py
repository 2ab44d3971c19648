"""What a token, and what a sequence, leaves behind in one layer on one rank, for every kind of attention."""

from __future__ import annotations

from perfmodel.catalog import Compressed, Gqa, Indexer, Linear, Mamba2, Mla
from perfmodel.costs.memory import gqa_kv_values, mla_kv_values
from perfmodel.engines.rules import KV_BYTES

Attention = Mla | Gqa | Compressed | Linear | Mamba2

# Packed latents of sparse attention: FP8 values, FP32 scales and a BF16 rotary key (vLLM v1/kv_cache_interface.py,
# 0.33.0: 512 + 16 + 128 B); DeepSeek V4's entry: 448 FP8 + 64 BF16 values and scales
FP8_DS_MLA_BYTES = 656.0
NVFP4_DS_MLA_BYTES = 352.0
COMPRESSED_ENTRY_BYTES = 584.0
V4_PADDING = 1.25       # of its pages, derived; see `in_flight_bytes_per_token_layer`
INDEX_GROUP = 128       # FP8 index keys that share one FP32 scale


def kv_bytes_per_token_layer(attention: Attention | None, kv_dtype: str, ranks: int) -> float:
    """Cache of one token in one layer on one rank, before context parallelism spreads the tokens. [B]

    ``attention`` None, linear attention and Mamba leave nothing per token. A sliding layer keeps it for the last
    `window_of` tokens only. A layer of DeepSeek V4 keeps one entry for every ``ratio`` tokens; its window comes on
    top, see `window_bytes_per_sequence_layer`.
    """
    if isinstance(attention, Mla):
        values = mla_kv_values(attention.kv_lora_rank, attention.qk_rope_head_dim)
        packed = {"fp8_ds_mla": FP8_DS_MLA_BYTES, "nvfp4_ds_mla": NVFP4_DS_MLA_BYTES}
        return packed.get(kv_dtype, values * KV_BYTES.get(kv_dtype, 2.0)) + index_bytes(attention.indexer)
    if isinstance(attention, Gqa):
        if attention.shares_kv:
            return 0.0
        value = attention.v_head_dim or attention.head_dim
        cached = gqa_kv_values(attention.kv_heads, attention.head_dim, value, ranks) * KV_BYTES[kv_dtype]
        return float(cached + index_bytes(attention.indexer))
    if isinstance(attention, Compressed) and attention.ratio:
        return (_entry_bytes(attention, kv_dtype) + index_bytes(attention.indexer)) / attention.ratio
    return 0.0


def cached_as(attention: Attention | None, kv_dtype: str, engine: str, compute_capability: float) -> str:
    """The layout of the latent where attention is sparse: FP8 becomes the packed 656 B of FlashMLA's sparse kernels.

    Blackwell's B200 and B300 take FlashInfer's kernels, which keep 576 values. Source: vLLM 0.33.0
    v1/attention/backends/mla, SGLang 0.5.23 (DSA, not trtllm); GLM-5 logs on RTX PRO 6000 show 656 + 132 B a layer.
    """
    sparse = isinstance(attention, Mla) and attention.indexer is not None
    packs = sparse and kv_dtype.startswith("fp8") and engine in ("vllm", "sglang") and int(compute_capability) != 10
    return "fp8_ds_mla" if packs else kv_dtype


def _entry_bytes(attention: Compressed, kv_dtype: str) -> float:
    return COMPRESSED_ENTRY_BYTES if KV_BYTES.get(kv_dtype, 1.0) < 2 else attention.head_dim * 2.0


def index_bytes(indexer: Indexer | None) -> float:
    """Key of the indexer of one token: FP8 and an FP32 scale per 128 values; a shared choice stores none. [B]

    >>> index_bytes(Indexer(heads=64, head_dim=128, topk=2048))
    132.0
    """
    if indexer is None or indexer.shared:
        return 0.0
    return float(indexer.head_dim + 4 * -(-indexer.head_dim // INDEX_GROUP))


def window_of(attention: Attention | None) -> int | None:
    """Tokens that a layer looks back at most; None where it sees the whole context (or has no cache at all). [token]"""
    if isinstance(attention, Gqa):
        return attention.window or attention.chunk
    return attention.window if isinstance(attention, Compressed) and not attention.ratio else None


def window_bytes_per_sequence_layer(attention: Attention | None, kv_dtype: str) -> float:
    """The uncompressed window that a layer of DeepSeek V4 keeps beside its compressed entries. [B]"""
    if not isinstance(attention, Compressed):
        return 0.0
    return attention.window * _entry_bytes(attention, kv_dtype)


def in_flight_bytes_per_token_layer(attention: Attention | None, kv_dtype: str) -> float:
    """What DeepSeek V4 keeps for every token of the window and of the batch in flight: its entry and the compressor's
    states in FP32, of key and of score, twice as wide where blocks overlap, and the indexer's. [B]

    Pages of unlike layers are padded to one size: a quarter more, derived from vLLM's refusals of V4-Pro (6.75 GiB for
    393,216 tokens with 8,192 in flight; 23.32 for 1,048,576 with 32,768) and V4-Flash (6.66 for 30,000).
    """
    if not isinstance(attention, Compressed):
        return 0.0
    wide = 2 if attention.overlap else 1
    states = 2 * wide * attention.head_dim * 4.0 if attention.ratio else 0.0
    index = 2 * wide * attention.indexer.head_dim * 4.0 if attention.indexer and not attention.indexer.shared else 0.0
    return V4_PADDING * (_entry_bytes(attention, kv_dtype) + states + index)


def state_bytes_per_sequence_layer(attention: Attention | None, ranks: int, state_bytes: float | None = None,
                                   conv_bytes: float = 2.0, draft_tokens: int = 0) -> float:
    """Recurrent state of one sequence in one layer on one rank: of the convolution, and of the recurrence. [B]

    ``state_bytes`` and ``conv_bytes`` are bytes of a value; None takes what the model's configuration says, else 4
    (the checkpoints of today keep it in FP32; vLLM's default is the model's own type). ``draft_tokens`` lengthen the
    convolution's state, as vLLM does for speculative decoding. Source: vLLM mamba/mamba_utils.py (0.33.0).
    """
    if not isinstance(attention, Linear | Mamba2):
        return 0.0
    width = state_bytes or (attention.state_bits or 32) / 8
    if isinstance(attention, Linear):
        key, value = attention.key_heads * attention.key_dim, attention.value_heads * attention.value_dim
        mixed, state = (2 * key + value) / ranks, value / ranks * attention.key_dim
    else:
        groups = attention.groups if attention.groups % ranks == 0 else -(-attention.groups // ranks) * ranks
        inner = attention.heads * attention.head_dim
        mixed = (inner + 2 * groups * attention.state) / ranks
        state = attention.heads / ranks * attention.head_dim * attention.state
    history = max(0, attention.conv - 1) + (draft_tokens if attention.conv else 0)
    return float(mixed * history * conv_bytes + state * width)
