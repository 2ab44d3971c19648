"""How vLLM lays layers out in KV blocks: one group, or several groups of equal size that share one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from perfmodel.engines.options import Facts, LayerGroup, Options, RankFacts
from perfmodel.engines.rules import draft_tokens
from perfmodel.engines.versions import at_least

KERNEL_TOKENS = 16      # attention kernels take blocks of so many tokens


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers of one kind of cache: ``tokens`` in a block, ``bound`` tokens that a sequence keeps (None: all)."""

    layers: int
    groups: int
    tokens: int
    bound: int | None = None
    chunked: bool = False
    state: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of one rank: their bytes, and which kinds of layers take them from one pool."""

    kinds: tuple[Kind, ...]
    block_bytes: float          # of all layers of one group [B]
    page_bytes: float           # of one layer [B]
    in_flight_bytes: float = 0.0    # of all layers, of a token in flight or in the window (DeepSeek V4) [B]
    window: int = 0                 # of those layers [token]

    @property
    def groups(self) -> int:
        """Groups that share the pool."""
        return sum(kind.groups for kind in self.kinds)

    @property
    def states(self) -> bool:
        """Whether some layers keep a recurrent state."""
        return any(kind.state for kind in self.kinds)


def layout(options: Options, facts: Facts, rank: RankFacts) -> Layout:
    """Groups of the layers of one rank.

    All layers alike, or all looking back on everything: one group. Else pages are made equal, a group has as many
    layers as the smallest kind (as the largest where it is below 1.5 times that), and every kind is cut into groups.
    Source: vLLM 0.33.0 v1/core/kv_cache_utils.py, v1/core/kv_cache_planning.py get_kv_cache_groups. Llama 4's chunks
    count as full attention unless an environment variable says otherwise (0.12 to 0.33).
    """
    assert options.page_size
    page = options.page_size
    full = [g for g in rank.groups if g.kv_bytes_per_token and (g.window is None or g.chunked or not _hybrid(options))]
    local = [g for g in rank.groups if g.kv_bytes_per_token and g not in full]
    states = [g for g in rank.groups if g.state_bytes and not g.kv_bytes_per_token and g.window is None]
    moving = [g for g in rank.groups if g.in_flight_bytes]
    if moving:
        each = page * options.dcp * rank.kv_bytes_per_token
        spent = sum(g.layers * g.in_flight_bytes for g in moving)
        window = max((g.window or 0 for g in moving), default=0)
        return Layout((Kind(rank.layers, 1, page),), each, each / max(1, rank.layers), spent, window)
    if not local and not states or not full:
        each = page * options.dcp * rank.kv_bytes_per_token
        only = local[0] if local and len({(g.window, g.kv_bytes_per_token) for g in local}) == 1 and not full else None
        bound = only.window if only and not states else None
        return Layout((Kind(rank.layers, 1, page, bound),), each, each / max(1, rank.layers))
    widest = max(g.kv_bytes_per_token for g in (*full, *local))
    if states:
        state = max(g.state_bytes for g in states)
        page = max(page, ceil(state / widest / KERNEL_TOKENS) * KERNEL_TOKENS)
    kinds = [_kind(page, widest, group) for group in (*_merged(full), *_merged(local))]
    kinds += [Kind(group.layers, 1, page, state=True) for group in _merged(states)]
    fewest, most = min(kind.layers for kind in kinds), max(kind.layers for kind in kinds)
    size = most if most < 1.5 * fewest else fewest
    cut = tuple(Kind(k.layers, ceil(k.layers / size), k.tokens, k.bound, k.chunked, k.state) for k in kinds)
    return Layout(cut, size * page * widest, page * widest)


def _hybrid(options: Options) -> bool:
    """Whether sliding layers give blocks back: the hybrid KV cache manager, seen in 0.9.2, not in 0.8.5 (assumed); not
    with decode context parallelism."""
    return at_least(options.version, "0.9.2") and options.dcp == 1


def _kind(page: int, widest: float, group: LayerGroup) -> Kind:
    """A narrower layer takes more tokens a block where that divides, and is padded where it does not."""
    times = widest / group.kv_bytes_per_token
    return Kind(group.layers, 1, page * (int(times) if times == int(times) else 1), group.window, group.chunked)


def _merged(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Groups that differ only in their number of layers, put together."""
    table: dict[tuple[float, int | None, float, bool, float], int] = {}
    for g in groups:
        key = (g.kv_bytes_per_token, g.window, g.state_bytes, g.chunked, g.in_flight_bytes)
        table[key] = table.get(key, 0) + g.layers
    return [LayerGroup(count, *key) for key, count in table.items()]


def in_flight(options: Options) -> int:
    """Tokens of one sequence that may be scheduled and not yet done: of two batches since 0.26. [token]"""
    assert options.prefill_chunk
    return options.prefill_chunk * (2 if at_least(options.version, "0.26") else 1)


def sequence_blocks(options: Options, lay: Layout) -> float:
    """Blocks that one sequence of full length takes, over all groups.

    Recurrent state: one block and one a draft token; one more since 0.20 (mamba_cache_mode align, the default with
    prefix caching; Qwen3.6 logs of 0.23 and 0.25 show 2 and 4).
    """
    assert options.context
    drafts = draft_tokens(options.speculative)
    blocks = lay.in_flight_bytes * min(lay.window + in_flight(options), options.context) / lay.block_bytes
    for kind in lay.kinds:
        if kind.state:
            each = (2 if at_least(options.version, "0.20") else 1) + drafts
        elif kind.bound is None or kind.chunked:
            each = ceil(ceil(options.context / options.dcp) / kind.tokens)
        else:
            each = ceil(min(kind.bound - 1 + in_flight(options), options.context) / kind.tokens) + 1
        blocks += each * kind.groups
    return blocks


def sequence_bytes(options: Options, rank: RankFacts, lay: Layout) -> float:
    """What vLLM checks the pool against: one sequence of full length in every layer by its own bound. [B]

    Source: vLLM v1/core/kv_cache_utils.py _check_enough_kv_cache_memory; chunks are bounded here even where blocks are
    laid out for full attention (Llama 4 Scout starts with 0.75 of one request).
    """
    assert options.context
    chunks = [g for g in rank.groups if g.chunked and g.window]
    if not chunks or lay.groups > 1:
        return sequence_blocks(options, lay) * lay.block_bytes
    needed = 0.0
    for g in rank.groups:
        tokens = min(g.window + in_flight(options), options.context) if g.chunked and g.window else options.context
        needed += g.layers * g.kv_bytes_per_token * tokens
    return needed


def printed_tokens(options: Options, lay: Layout, blocks: int) -> int:
    """The number in the log line: sequences of full length times that length since 0.20.2, blocks x tokens before."""
    assert options.context
    if at_least(options.version, "0.20.2"):
        return int(blocks / sequence_blocks(options, lay) * options.context)
    return blocks // lay.groups * min(kind.tokens for kind in lay.kinds) * options.dcp
