"""Pools, verdicts and rows of memory under each engine, by hand."""

from dataclasses import replace
from typing import Any

import pytest
from test_engine_values import a_rank, dense, near
from test_engines import GIB, MIB, facts

from perfmodel import engines
from perfmodel.engines import sglang_memory, tensorrt_llm_memory, vllm_memory
from perfmodel.engines.memory import band, smallest, total
from perfmodel.engines.options import Facts, Options, RankFacts, RuntimeRow

ENGINES = ("vllm", "sglang", "tensorrt-llm")


# ---------------------------------------------------------------- pools and verdicts


def test_sums_and_bands_of_rows() -> None:
    rows = [RuntimeRow("a", 10.0, 7.0, 14.0, "slack", "", ""), RuntimeRow("b", 20.0, 16.0, 23.0, "budget", "", "")]
    assert (total(rows), total(rows, "slack"), total(rows, "slack", "budget")) == (30, 10, 30)
    assert total(rows, "baseline") == 0
    assert (band(rows), band(rows, "budget"), band(rows, "baseline")) == ((5, 5), (4, 3), (0, 0))
    assert smallest([3.0, 1.0, 1.0]) == 1


def launch(engine: str, **keywords: Any) -> tuple[Any, Options]:
    module, version, _ = engines.get(engine)
    base: dict[str, Any] = {"tp": 8, "memory_fraction": 0.9, "context": 4096, "max_sequences": 64}
    now = module.resolve(Options(engine=engine.partition("==")[0], version=version, **(base | keywords)), facts())[0]
    return module, now


@pytest.mark.parametrize("engine", ENGINES)
def test_every_byte_of_a_rank_is_spent_once(engine: str) -> None:
    """total = weights + pool + rows + free on every rank; the rank with least room binds."""
    module, now = launch(engine)
    ranks = [a_rank(weights_bytes=w * GIB, stage=i, first=i == 0, last=i == 1) for i, w in enumerate((60.0, 64.0))]
    pool = module.kv_pool(now, facts(), ranks)
    for rank, kept, rows, free in zip(ranks, pool.pool_bytes, pool.rows, pool.free_bytes, strict=True):
        assert rank.weights_bytes + kept + total(rows) + free == near(facts().gpu_memory_bytes)
    assert pool.verdict == "fits" and pool.binding_rank == 1
    assert 0 < pool.tokens_low <= pool.tokens <= pool.tokens_high
    assert pool.tokens == pool.tokens_total
    groups = module.kv_pool(replace(now, dp_attention=8), facts(), ranks)
    assert groups.tokens_total == 8 * groups.tokens


def test_pool_of_tensorrt_llm_by_hand() -> None:
    """A share of what weights and a dummy run leave, in whole blocks, on the rank that holds fewest tokens."""
    _, now = launch("tensorrt-llm")
    wide = a_rank(weights_bytes=60 * GIB, kv_bytes_per_token=2 * 70272.0)
    ranks = [a_rank(weights_bytes=64 * GIB), wide]
    rows = [tensorrt_llm_memory.runtime_rows(now, facts(), rank) for rank in ranks]
    spare = [facts().gpu_memory_bytes - r.weights_bytes - total(own, "baseline", "budget")
             for r, own in zip(ranks, rows, strict=True)]  # fmt: skip
    blocks = min(int(0.9 * left // (r.kv_bytes_per_token * 32)) for r, left in zip(ranks, spare, strict=True))
    pool = tensorrt_llm_memory.kv_pool(now, facts(), ranks)
    assert pool.tokens == blocks * 32
    assert pool.pool_bytes == (pool.tokens * 70272.0, pool.tokens * 2 * 70272.0)
    assert pool.available_bytes == near(tuple(0.9 * left for left in spare))
    assert pool.requested_bytes == near(0.9 * max(spare))
    assert pool.slack_bytes == near(0.1 * min(spare))
    assert pool.pre_bytes == near(facts().gpu_memory_bytes - max(total(own, "baseline") for own in rows))
    below, above = zip(*(band(own, "baseline", "budget") for own in rows), strict=True)

    def tokens(change: Any) -> int:
        return 32 * min(int(0.9 * (left + more) // (r.kv_bytes_per_token * 32))
                        for r, left, more in zip(ranks, spare, change, strict=True))  # fmt: skip

    assert (pool.tokens_low, pool.tokens_high) == (tokens([-a for a in above]), tokens(below))


@pytest.mark.parametrize(
    ("weights", "keywords", "verdict"),
    [(60, {}, "fits"), (93, {}, "oom_weights"), (85.95, {"context": 262144}, "kv_too_small"),
     (60, {"memory_fraction": 1.0}, "oom_graphs")],
)  # fmt: skip
def test_verdicts_of_tensorrt_llm(weights: float, keywords: dict[str, Any], verdict: str) -> None:
    module, now = launch("tensorrt-llm", **keywords)
    pool = module.kv_pool(now, facts(), [a_rank(weights_bytes=10 * GIB), a_rank(weights_bytes=weights * GIB)])
    assert (pool.verdict, pool.binding_rank) == (verdict, 1)


def test_one_block_is_a_pool_and_none_is_not() -> None:
    """A rank with room for exactly one block of 32 tokens, and one with a byte less."""
    module, now = launch("tensorrt-llm", context=32, cuda_graphs=False)
    empty = a_rank(weights_bytes=0.0)
    left = facts().gpu_memory_bytes - total(tensorrt_llm_memory.runtime_rows(now, facts(), empty), "baseline", "budget")
    for kept, tokens, verdict in ((70272 * 32 / 0.9 + 8, 32, "fits"), (70272 * 32 / 0.9 - 8, 0, "no_kv"),
                                  (0.0, 0, "oom_weights")):  # fmt: skip
        pool = module.kv_pool(now, facts(), [replace(empty, weights_bytes=left - kept)])
        assert (pool.tokens, pool.verdict) == (tokens, verdict)


def test_pool_of_vllm_by_hand() -> None:
    """requested = total x fraction; blocks of 16 tokens of what weights and the budget's rows leave."""
    module, now = launch("vllm==0.19.1", page_size=16)
    ranks = [a_rank(weights_bytes=60 * GIB), a_rank(weights_bytes=64 * GIB)]
    rows = [vllm_memory.runtime_rows(now, facts(), rank) for rank in ranks]
    offers = [facts().gpu_memory_bytes * 0.9 - r.weights_bytes - total(own, "budget")
              for r, own in zip(ranks, rows, strict=True)]  # fmt: skip
    pool = module.kv_pool(now, facts(), ranks)
    assert pool.available_bytes == pytest.approx(tuple(offers), rel=0, abs=1.0)  # rounded up to a byte
    assert pool.tokens == 16 * int(offers[1] // (16 * 70272))
    assert pool.requested_bytes == pytest.approx(0.9 * facts().gpu_memory_bytes, rel=0, abs=1.0)
    assert pool.slack_bytes == near(facts().gpu_memory_bytes - pool.requested_bytes)
    assert pool.pre_bytes == near(facts().gpu_memory_bytes - total(rows[0], "baseline"))
    below, above = band(rows[1], "budget")
    assert pool.tokens_low == 16 * int((offers[1] - above) // (16 * 70272))
    assert pool.tokens_high == 16 * int((offers[1] + below) // (16 * 70272))
    assert (pool.verdict, pool.binding_rank) == ("fits", 1)


@pytest.mark.parametrize(
    ("engine", "weights", "keywords", "verdict"),
    [
        ("vllm==0.33.0", 95.5, {}, "oom_weights"), ("vllm==0.33.0", 86, {}, "no_kv"),
        ("vllm==0.33.0", 60, {"memory_fraction": 0.9999}, "no_kv"),  # less is free at start than it asks for
        ("vllm==0.8.5", 60, {"memory_fraction": 0.9999}, "oom_graphs"),
        ("vllm==0.33.0", 70, {"context": 262144, "max_sequences": 4}, "kv_too_small"),
        ("sglang==0.5.23", 95.5, {}, "oom_weights"), ("sglang==0.5.23", 86, {}, "no_kv"),
        ("sglang==0.5.23", 60, {"memory_fraction": 0.9999}, "oom_graphs"),
    ],
)  # fmt: skip
def test_verdicts_in_the_order_in_which_engines_find_out(
    engine: str, weights: float, keywords: dict[str, Any], verdict: str
) -> None:
    module, now = launch(engine, **keywords)
    pool = module.kv_pool(now, facts(), [a_rank(weights_bytes=10 * GIB), a_rank(weights_bytes=weights * GIB)])
    assert pool.verdict == verdict and pool.reason
    assert pool.binding_rank == (0 if keywords.get("memory_fraction") == 0.9999 and verdict == "no_kv" else 1)


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(0.0, None), (-1.0, "oom_sampler"), (-30.0, "oom_sampler"), (-31.0, "oom_graphs"), (-50.0, "oom_graphs"),
     (-51.0, "oom_request_table")],
)  # fmt: skip
def test_what_fails_late_under_vllm(free: float, verdict: str | None) -> None:
    """Tables of 10, graphs of 20, a sampler of 30 that is there only while a batch runs, and a pool beside them."""
    sizes = (("block tables", 10.0, "slack"), ("CUDA graphs", 20.0, "slack"), ("sampler peak", 30.0, "budget"),
             ("kernels", 5.0, "budget"))  # fmt: skip
    rows = [RuntimeRow(name, size, 0.0, 0.0, when, "", "") for name, size, when in sizes]
    late = vllm_memory._late(Options(max_sequences=8), rows, free, 3)
    assert (late and (late[0], late[2])) == (verdict and (verdict, 3))


def test_pool_of_sglang_by_hand() -> None:
    """pool = after weights - before weights x (1 - f), over the largest token, in whole pages."""
    module, now = launch("sglang==0.5.23", page_size=64)
    ranks = [a_rank(weights_bytes=60 * GIB, kv_bytes_per_token=80000.0), a_rank(weights_bytes=64 * GIB)]
    before = facts().gpu_memory_bytes - total(sglang_memory.runtime_rows(now, facts(), ranks[0]), "baseline")
    rest = before - 64 * GIB - before * 0.1
    pool = module.kv_pool(now, facts(), ranks)
    assert pool.tokens == int(rest) // 80000 // 64 * 64
    assert pool.pool_bytes == near(((pool.tokens + 64) * 80000.0, (pool.tokens + 64) * 70272.0))  # one page more
    assert (pool.pre_bytes, pool.requested_bytes, pool.slack_bytes) == near((before, 0.9 * before, 0.1 * before))
    assert pool.available_bytes == near((rest + 4 * GIB, rest))
    seeing = facts(vision=True)
    fewer = module.kv_pool(now, seeing, ranks)
    assert fewer.available_bytes[1] == near(rest - 100 * MIB)
    assert module.kv_pool(replace(now, version="0.5.18"), seeing, ranks).available_bytes[1] == near(rest)


# ---------------------------------------------------------------- rows


def rows_of(
    engine: str, rank: RankFacts | None = None, machine: Facts | None = None, **keywords: Any
) -> dict[str, float]:
    module, version, _ = engines.get(engine)
    machine = machine or facts()
    now = module.resolve(Options(engine=engine.partition("==")[0], version=version, **keywords), machine)[0]
    return {row.name: row.bytes for row in module.runtime_rows(now, machine, rank or a_rank())}


def test_tables_and_graphs_of_sglang_by_hand() -> None:
    keywords: dict[str, Any] = {"tp": 8, "context": 1000, "max_sequences": 100, "max_graph_batch": 64}
    triton = rows_of("sglang==0.5.23", attention_backend="triton", **keywords)
    assert triton["request table"] == 101 * 1004 * 4
    # 8 B an entry and token, and 8 splits of 8 heads of 512 values in FP32
    assert triton["graph index tables"] == 64 * 1000 * 8 + 64 * 8 * 8 * 512 * 4
    assert triton["graph static buffers"] == 64 * 7168 * 2 + 64 * 163840 * 4
    assert triton["CUDA graphs"] == near((0.2 + 0.012 * 61) * GIB)
    assert "attention workspace" not in triton
    wide = rows_of("sglang==0.5.23", attention_backend="triton", machine=dense(), **keywords)
    assert wide["graph index tables"] == 64 * 1000 * 8 + 64 * 8 * 8 * 128 * 4
    paged = rows_of("sglang==0.5.23", attention_backend="flashmla", **keywords)
    assert paged["graph index tables"] == 64 * 16 * 4  # pages of 64 tokens
    infer = rows_of("sglang==0.5.23", attention_backend="flashinfer", page_size=64, **keywords)
    assert (infer["graph index tables"], infer["attention workspace"]) == (64 * 1000 * 4, 384 * MIB)
    middle = rows_of("sglang==0.5.23", a_rank(last=False), attention_backend="triton", **(keywords | {"pp": 2}))
    assert middle["graph static buffers"] == 3 * 64 * 7168 * 2
    assert "sampler" not in middle
    eager = rows_of("sglang==0.5.23", cuda_graphs=False, **keywords)
    assert not [name for name in eager if "graph" in name.lower()]
    assert triton["sampler"] == 64 * 163840 * 4 * 2


def test_communicators_by_hand() -> None:
    apart = facts(full_nvlink=False)
    assert [rows_of("sglang==0.5.23", machine=apart, **k)["NCCL communicators"] / GIB
            for k in ({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2})] == near([0.4, 0.4, 0.6])  # fmt: skip
    assert [rows_of("vllm==0.33.0", machine=apart, **k)["NCCL communicators"] / GIB
            for k in ({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2})] == near([0.2, 0.2, 0.3])  # fmt: skip
    assert rows_of("vllm==0.33.0", machine=dense(full_nvlink=False), tp=2)["NCCL communicators"] == near(0.1 * GIB)
    assert "NCCL expert group" not in rows_of("vllm==0.33.0", pp=2)
    assert "NCCL expert group" not in rows_of("vllm==0.33.0", machine=dense(), tp=2)
    two = rows_of("vllm==0.33.0", machine=apart, tp=2)
    assert two["custom all-reduce"] == 32 * MIB
    assert "custom all-reduce" not in rows_of("vllm==0.33.0", machine=apart, tp=4)
    assert "custom all-reduce" not in rows_of("vllm==0.33.0", machine=replace(apart, p2p=False), tp=2)


def test_persistent_rows_of_vllm_by_hand() -> None:
    base: dict[str, Any] = {"tp": 8, "context": 1000, "max_sequences": 100, "page_size": 16, "prefill_chunk": 4096}
    rows = rows_of("vllm==0.33.0", **base)
    assert rows["block tables"] == 100 * 63 * 4
    # max(8 x context, 4 x sequences x page), at most 65,536 tokens of 576 values in bf16
    assert rows["MLA chunked-context workspace"] == 8000 * 576 * 2
    assert rows_of("vllm==0.33.0", **(base | {"max_sequences": 200}))["MLA chunked-context workspace"] == 12800 * 1152
    assert rows_of("vllm==0.33.0", **(base | {"context": 10**5}))["MLA chunked-context workspace"] == 65536 * 1152
    assert "MLA chunked-context workspace" not in rows_of("vllm==0.33.0", machine=dense(), **base)
    packed = facts(weight_format="nvfp4")
    for version, there in (("0.8.5", False), ("0.9.2", True), ("0.19.1", True), ("0.20.0", False)):
        rows = rows_of(f"vllm=={version}", machine=packed, **base)
        assert ("allocator holes after repacking" in rows) == there
    assert rows_of("vllm==0.19.1", machine=packed, **base)["allocator holes after repacking"] == near(0.16 * 70 * GIB)
    assert "allocator holes after repacking" not in rows_of("vllm==0.19.1", **base)


def test_activations_of_vllm_by_hand() -> None:
    base: dict[str, Any] = {"tp": 8, "context": 1000, "max_sequences": 16, "page_size": 16, "prefill_chunk": 4096}
    hidden = 2 * 4096 * 7168
    rows = rows_of("vllm==0.33.0", **base)
    expanded = 8000 * 8 * 256 * 2  # the chunked context of 8 heads, keys and values of 128
    layer = 3 * hidden + max(2 * 4096 * (2112 + 8 * 768), 2 * 4096 * 3 * 18432 / 8, expanded)
    assert rows["activation peak of a chunk"] == near(layer + 0.12 * GIB)
    assert rows["MoE workspace"] == 2 * 4096 * 8 * (7168 + 256)
    assert "encoder outputs" not in rows
    piped = rows_of("vllm==0.33.0", **(base | {"pp": 2}))
    assert piped["activation peak of a chunk"] == near(layer + 2 * hidden + 0.12 * GIB)
    many = rows_of("vllm==0.33.0", **(base | {"max_sequences": 1024, "context": 100}))
    assert many["sampler peak"] == near(2.0 * 1024 * 163840 * 4 + hidden + 0.12 * GIB)
    drafts = {"max_sequences": 512, "context": 100, "speculative": "eagle3:1"}
    drafting = rows_of("vllm==0.33.0", **(base | drafts))
    assert drafting["sampler peak"] == many["sampler peak"]  # two rows a sequence
    assert "sampler peak" not in rows_of("vllm==0.33.0", a_rank(last=False), **(base | {"max_sequences": 1024}))
    seeing = rows_of("vllm==0.33.0", machine=facts(vision=True), **base)
    assert seeing["encoder outputs"] == hidden
    large = facts(vision=True, architecture="Qwen3VLMoeForConditionalGeneration")
    assert rows_of("vllm==0.33.0", machine=large, **base)["encoder outputs"] == near(hidden + 0.5 * GIB)
    assert "encoder outputs" not in rows_of("vllm==0.33.0", a_rank(first=False), facts(vision=True), **base)


def test_rows_of_tensorrt_llm_by_hand() -> None:
    rows = rows_of("tensorrt-llm", tp=8, max_sequences=64, prefill_chunk=4096)
    moe = 2 * 4096 * 8 * (7168 + 256)
    assert rows["activation peak of a chunk"] == 3 * 2 * 4096 * 7168 + 2 * 4096 * (2112 + 8 * 768) + moe
    assert rows["logits and sampler"] == 64 * 163840 * 4 * 2
    assert rows_of("tensorrt-llm", max_sequences=64, prefill_chunk=16)["logits and sampler"] == 16 * 163840 * 4 * 2
    assert "logits and sampler" not in rows_of("tensorrt-llm", a_rank(last=False))
    assert "CUDA graphs" not in rows_of("tensorrt-llm", cuda_graphs=False)
    deep, flat = (rows_of("tensorrt-llm", a_rank(layers=n))["CUDA graphs"] for n in (62, 61))
    assert 0 < deep - flat < 0.1 * GIB
