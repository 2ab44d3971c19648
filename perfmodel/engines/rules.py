"""Rules that several engines share: sane sizes, filling of pipeline slots, and the words for collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.engines.options import Facts, Options
from perfmodel.errors import BadInput, IllegalDeployment, UnknownName, whole

KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp8_ds_mla": 1.0, "int8": 1.0,
            "nvfp4": 0.5625}  # FP4: half a byte and one scale byte per 16
_KV_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp4_e2m1": "nvfp4"}


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective call. Its message, as nccl-tests prints it, is ``bytes_per_token x tokens + bytes_fixed``.

    ``tokens``: "local" tokens of one attention group, "global" tokens of all attention groups of the stage,
    "sampled" rows that get logits in one group, "sampled_global" over all groups.
    ``layer``: "dense", "moe" (once in each such layer), or "step" (once a step); ``stage``: "every", "first", "last".
    """

    op: str                  # all_reduce, all_gather, reduce_scatter, all_to_all
    group: str               # tp, attention, dcp
    ranks: int
    place: str               # embedding, attention, mlp, logits, sync
    bytes_per_token: float
    tokens: str
    layer: str
    stage: str = "every"
    bytes_fixed: float = 0.0


def shown(value: object) -> str:
    """A default as it is listed: fractions to four digits.

    >>> shown(0.7769148242), shown(True), shown(8192)
    ('0.7769', 'True', '8192')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def positive(options: Options) -> None:
    """Refuse sizes that are not whole numbers above zero, and fractions outside (0, 1]."""
    for name in ("tp", "pp", "dp", "ep", "dp_attention", "dcp", "receive_interval"):
        whole(name, getattr(options, name), 1)
    for name in ("context", "max_sequences", "prefill_chunk", "page_size", "max_graph_batch", "max_micro_batch"):
        if getattr(options, name) is not None:
            whole(name, getattr(options, name), 1)
    for name in ("async_depth", "batch_wait_steps"):
        if getattr(options, name) is not None:
            whole(name, getattr(options, name), 0)
    fraction = options.memory_fraction
    if fraction is not None and not 0.0 < fraction <= 1.0:
        raise BadInput(f"memory_fraction must be above 0 and at most 1, got {fraction:g}",
                       ["it is a share of memory: write 0.9 for 90 %"])


def groups(options: Options, facts: Facts, engine: str) -> None:
    """What no engine can run: attention groups, heads, KV heads and experts that do not come out even."""
    if options.tp % options.dp_attention:
        raise IllegalDeployment(f"dp_attention={options.dp_attention} does not divide tp={options.tp}")
    if options.tp % options.ep:
        raise IllegalDeployment(f"ep={options.ep} does not divide tp={options.tp}")
    if options.ep > 1 and not facts.experts:
        raise IllegalDeployment(f"ep={options.ep} on a dense model: there are no experts to spread")
    ways = options.attention_tp
    if facts.heads % ways:
        legal = [str(n) for n in range(1, facts.heads + 1) if facts.heads % n == 0 and n <= 16]
        raise IllegalDeployment(
            f"{engine} does not pad attention heads: {facts.heads} heads over {ways} ranks (tp / dp_attention)",
            [f"tp={', '.join(legal[:-1])} or {legal[-1]}" if options.dp_attention == 1 and len(legal) > 1 else
             f"tp / dp_attention in {', '.join(legal)}"])
    if facts.attention != "mla" and max(facts.kv_heads, ways) % min(facts.kv_heads, ways):
        raise IllegalDeployment(f"{facts.kv_heads} KV heads over {ways} ranks come out uneven")
    if ways % options.dcp:
        raise IllegalDeployment(f"dcp={options.dcp} does not divide the attention group of {ways} ranks")
    if facts.experts:
        _expert_width(facts.moe_intermediate, options.expert_tp, facts.weight_format, engine)


def _expert_width(intermediate: int, ways: int, weight_format: str, engine: str) -> None:
    if intermediate % ways:
        raise IllegalDeployment(f"{engine} does not pad experts: width {intermediate} over {ways} ranks (tp / ep)")
    group = int(weight_format.rpartition("-g")[2]) if weight_format.rpartition("-g")[2].isdigit() else 1
    if "-g" in weight_format and ways > 1 and (intermediate // ways) % group:
        raise IllegalDeployment(
            f"an expert of width {intermediate} over {ways} ranks cuts a quantisation group of {group}")


def waits_for_no_batch(options: Options, engine: str) -> None:
    """Refuse the batch waiting that only TensorRT-LLM has."""
    if options.batch_wait_steps or options.batch_wait_ratio:
        raise IllegalDeployment(f"{engine} lets no prompt wait for others; batch_wait_steps and batch_wait_ratio are "
                                "TensorRT-LLM's batch_wait_timeout_iters and batch_wait_max_tokens_ratio")


def looks_each_step(options: Options, engine: str) -> None:
    """Refuse a receive interval for an engine that has none."""
    if options.receive_interval > 1:
        raise IllegalDeployment(f"{engine} looks for new requests at every step; receive_interval is SGLang's "
                                "--scheduler-recv-interval")


def stages(options: Options, facts: Facts) -> None:
    """Refuse pipelines deeper than the model and partitions that do not cover it."""
    if options.pp > facts.layers:
        raise IllegalDeployment(f"pp={options.pp} stages for {facts.layers} layers")
    if options.layers_per_stage is not None:
        partition(facts.layers, options.pp, options.layers_per_stage)


def partition(layers: int, count: int, given: Sequence[int]) -> tuple[int, ...]:
    """A partition given by the user, after the engine's own check: one entry a stage, all layers covered."""
    if len(given) != count or sum(given) != layers or min(given, default=0) < 1:
        raise IllegalDeployment(f"layers_per_stage={','.join(map(str, given))} must be {count} numbers of at least 1 "
                                f"with sum {layers}, got {len(given)} with sum {sum(given)}")
    return tuple(given)


def kv_dtype(word: str, known: Sequence[str], engine: str) -> str:
    """The short word for a KV dtype, or a refusal with what this engine offers."""
    short = _KV_ALIASES.get(word.lower(), word.lower())
    if short == "auto":
        return short
    if short not in KV_BYTES:
        raise UnknownName("kv_dtype", word, ["auto", *known])
    if short not in known:
        raise IllegalDeployment(f"{engine} has no {short} KV cache", [f"kv_dtype in auto, {', '.join(known)}"])
    return short


def kv_default(facts: Facts, known: Sequence[str], declared: bool) -> tuple[str, str]:
    """What ``auto`` means, and why: the format that the checkpoint declares where the version heeds it, else the
    model's own dtype."""
    if declared and facts.kv_cache is not None and facts.kv_cache in known:
        return facts.kv_cache, "declared by the checkpoint"
    return facts.weight_dtype, "the dtype of the model"


def greedy(concurrency: int, count: int, limit: int) -> tuple[int, ...]:
    """Sequences per slot when each slot takes all that it may before the next gets any.

    >>> greedy(10, 3, 8)
    (8, 2, 0)
    """
    left, held = concurrency, []
    for _ in range(count):
        held.append(min(left, limit))
        left -= held[-1]
    return tuple(held)


def spread(concurrency: int, count: int, limit: int) -> tuple[int, ...]:
    """Sequences per slot when they arrive one by one and land evenly.

    >>> spread(10, 3, 8)
    (4, 3, 3)
    """
    inside = min(concurrency, count * limit)
    return tuple(inside // count + (index < inside % count) for index in range(count))


def arrivals(arrival: str) -> None:
    """Refuse words other than burst and staggered."""
    if arrival not in ("burst", "staggered"):
        raise BadInput(f"arrival must be 'burst' or 'staggered', got {arrival!r}")


def draft_tokens(speculative: str | None) -> int:
    """Draft tokens a step of ``method:n`` (``mtp:3``, ``eagle3:2``); a method without a number drafts one (assumed).

    >>> draft_tokens("eagle3:3"), draft_tokens("mtp"), draft_tokens(None)
    (3, 1, 0)
    """
    from perfmodel.engines.speculation import speculation

    found = speculation(speculative)
    return found.drafts if found else 0


def draft_method(speculative: str | None) -> str:
    """The method of ``method:n``, in small letters; empty where nothing is drafted.

    >>> draft_method("MTP:3"), draft_method("off")
    ('mtp', '')
    """
    method = (speculative or "").partition(":")[0].lower()
    return "" if method in ("off", "none") else method
