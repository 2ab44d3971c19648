"""Kernels that engines take, sizes that they capture, and how vLLM lays layers out in blocks, by hand."""

from dataclasses import replace
from typing import Any

import pytest
from test_engine_values import a_rank, dense, near
from test_engines import facts

from perfmodel.engines import backends, sglang, tensorrt_llm, versions, vllm, vllm_memory
from perfmodel.engines.memory import total
from perfmodel.engines.options import LayerGroup, Options
from perfmodel.engines.vllm_flags import parse_command
from perfmodel.engines.vllm_kv import (
    Kind,
    Layout,
    in_flight,
    layout,
    printed_tokens,
    sequence_blocks,
    sequence_bytes,
)
from perfmodel.errors import UnknownName

# ---------------------------------------------------------------- kernels by GPU and format


@pytest.mark.parametrize(("form", "capability", "by_vllm", "by_sglang"), [
    ("int4-g32", 9.0, "marlin", "marlin"), ("awq-int4-g128", 8.0, "marlin", "marlin"),
    ("gptq", 12.0, "marlin", "marlin"),
    ("int8", 9.0, "marlin", "triton"), ("nvfp4", 9.0, "marlin", "flashinfer_cutlass"),
    ("nvfp4", 10.3, "flashinfer", "flashinfer_cutlass"), ("nvfp4-g16", 12.0, "flashinfer", "flashinfer_cutlass"),
    ("mxfp4", 9.0, "marlin", "triton"), ("mxfp4", 12.0, "flashinfer", "triton"),
    ("mxfp4", 10.0, "flashinfer", "triton"),
    ("fp8", 10.0, "triton", "triton"), ("bf16", 9.0, "triton", "triton"), ("fp8-b128", 9.0, "triton", "triton"),
])  # fmt: skip
def test_kernels_of_experts(form: str, capability: float, by_vllm: str, by_sglang: str) -> None:
    given = facts(weight_format=form, compute_capability=capability)
    assert vllm.resolve(Options(engine="vllm", version="0.33.0", tp=8), given)[0].moe_backend == by_vllm
    assert sglang.resolve(Options(engine="sglang", version="0.5.23", tp=8), given)[0].moe_backend == by_sglang
    none = dense(compute_capability=capability)
    assert vllm.resolve(Options(engine="vllm", version="0.33.0"), none)[0].moe_backend == "none"


@pytest.mark.parametrize(("capability", "latent", "heads"), [
    (8.0, ("triton_mla", "triton"), ("flash_attn", "flashinfer")),
    (9.0, ("flash_attn_mla", "fa3"), ("flash_attn", "fa3")),
    (10.0, ("flashinfer_mla", "trtllm_mla"), ("flashinfer", "trtllm_mha")),
    (10.3, ("flashinfer_mla", "trtllm_mla"), ("flashinfer", "trtllm_mha")),
    (12.0, ("triton_mla", "triton"), ("flash_attn", "flashinfer")),
])  # fmt: skip
def test_kernels_of_attention(capability: float, latent: tuple[str, str], heads: tuple[str, str]) -> None:
    for make, expected in ((facts, latent), (dense, heads)):
        given = make(compute_capability=capability)
        found = [module.resolve(Options(engine=name, version=version, tp=8), given)[0]
                 for module, name, version in ((vllm, "vllm", "0.33.0"), (sglang, "sglang", "0.5.23"))]
        assert tuple(now.attention_backend for now in found) == expected
        tables = (vllm.ATTENTION_PAGE, sglang.ATTENTION_PAGE)
        pages = [table[word] for table, word in zip(tables, expected, strict=True)]
        assert [now.page_size for now in found] == pages


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_words_of_kernels_are_those_of_the_engine(engine: str) -> None:
    for name, table in (("moe_backend", backends.MOE_BACKENDS), ("all_reduce", backends.ALL_REDUCE)):
        for word in table[engine]:
            backends.check_backends(Options(engine=engine, **{name: word.upper().replace("_", "-")}))  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match=f"{name} of {engine}"):
            backends.check_backends(Options(engine=engine, **{name: "marlinn"}))  # type: ignore[arg-type]


def test_the_rules_of_which_version_apply() -> None:
    known = ("0.5.9", "0.5.11", "0.6.0")
    assert versions.pick("x", None, known)[0] == versions.pick("x", "", known)[0] == "0.6.0"
    for asked, rules, said in (("0.5.11", "0.5.11", ""), ("0.6", "0.6.0", ""), ("0.5.10", "0.5.9", "not one of"),
                               ("0.7.1", "0.6.0", "not one of"), ("0.5.8", "0.5.9", "older than all"),
                               ("0.5.12", "0.5.11", "not one of")):
        found, notes = versions.pick("x", asked, known)
        assert found == rules and len(notes) == (1 if said else 0)
        assert all(said in note and f"rules of {rules} apply" in note for note in notes)


def test_weights_that_a_remark_names() -> None:
    model, found, _ = parse_command("vllm serve ./model-awq -tp 2  # weights: org/model in awq")
    assert (model, found) == ("org/model", {"tp": 2, "quantization": "awq"})


# ---------------------------------------------------------------- captured batches


@pytest.mark.parametrize(("changes", "capability", "version", "cap"), [
    ({"max_sequences": 100}, 9.0, "0.33.0", 200), ({"max_sequences": 256}, 9.0, "0.33.0", 512),
    ({"max_sequences": 300}, 9.0, "0.33.0", 512), ({"max_sequences": 600}, 10.0, "0.33.0", 1024),
    ({"max_sequences": 300}, 10.3, "0.33.0", 600), ({"max_sequences": 300}, 10.0, "0.27.1", 512),
    ({"max_sequences": 300}, 12.0, "0.33.0", 512),
    ({"max_sequences": 20, "speculative": "mtp:3:0.7"}, 9.0, "0.33.0", 160),
    ({"max_sequences": 100, "prefill_chunk": 128}, 9.0, "0.33.0", 128),
])  # fmt: skip
def test_largest_batch_that_vllm_captures(changes: dict[str, Any], capability: float, version: str, cap: int) -> None:
    given = facts(compute_capability=capability)
    now, _ = vllm.resolve(Options(engine="vllm", version=version, tp=8, **changes), given)
    assert now.max_graph_batch == cap
    sizes = vllm.capture_sizes(now, given)
    assert sizes[:3] == (1, 2, 4) and max(sizes) <= cap < max(sizes) + 16
    assert vllm.prefill_graph_tokens(now, facts()) == max(sizes)
    assert vllm.prefill_graph_tokens(replace(now, prefill_graphs=False), facts()) == 0
    assert vllm.capture_sizes(replace(now, cuda_graphs=False), facts()) == ()


def test_batches_of_tensorrt_llm_and_sglang_end_at_their_limit() -> None:
    for module, name, version in ((sglang, "sglang", "0.5.23"), (tensorrt_llm, "tensorrt-llm", None)):
        now, _ = module.resolve(Options(engine=name, version=version or tensorrt_llm.VERSIONS[-1], tp=8,
                                        max_graph_batch=100), facts())
        sizes = module.capture_sizes(now, facts())
        assert max(sizes) <= 100 and list(sizes) == sorted(set(sizes)) and sizes[0] == 1


# ---------------------------------------------------------------- blocks of vLLM


def options(**changes: Any) -> Options:
    base: dict[str, Any] = {"version": "0.33.0", "context": 1000, "page_size": 16, "prefill_chunk": 256,
                            "max_sequences": 8, "memory_fraction": 0.9}
    return Options(**base | changes)


def grouped(*groups: LayerGroup, **changes: Any) -> Any:
    per_token = max(1.0, sum(g.layers * g.kv_bytes_per_token for g in groups))
    return a_rank(layers=sum(g.layers for g in groups), kv_bytes_per_token=per_token, groups=groups, **changes)


FULL, SLIDING, STATE = LayerGroup(8, 100.0, None), LayerGroup(24, 100.0, 100), LayerGroup(24, 0.0, None, 30_000.0)


def test_layers_are_cut_into_groups_of_the_smallest_kind() -> None:
    lay = layout(options(), facts(), grouped(FULL, SLIDING))
    assert lay == Layout((Kind(8, 1, 16), Kind(24, 3, 16, 100)), 8 * 16 * 100.0, 1600.0)
    assert (lay.groups, lay.states) == (4, False)
    near_one = layout(options(), facts(), grouped(FULL, LayerGroup(11, 100.0, 100)))  # below 1.5 times
    assert near_one == Layout((Kind(8, 1, 16), Kind(11, 1, 16, 100)), 11 * 16 * 100.0, 1600.0)
    at_it = layout(options(), facts(), grouped(FULL, LayerGroup(12, 100.0, 100)))
    assert at_it == Layout((Kind(8, 1, 16), Kind(12, 2, 16, 100)), 8 * 16 * 100.0, 1600.0)


def test_narrower_layers_take_more_tokens_a_block() -> None:
    half = layout(options(), facts(), grouped(FULL, LayerGroup(8, 50.0, 100)))
    assert [kind.tokens for kind in half.kinds] == [16, 32] and half.page_bytes == 1600
    odd = layout(options(), facts(), grouped(FULL, LayerGroup(8, 60.0, 100)))
    assert [kind.tokens for kind in odd.kinds] == [16, 16]
    twice = layout(options(), facts(), grouped(FULL, FULL, LayerGroup(16, 100.0, 100)))  # alike ones are put together
    assert twice.kinds == (Kind(16, 1, 16), Kind(16, 1, 16, 100))


def test_pages_grow_until_they_hold_a_state() -> None:
    lay = layout(options(), facts(), grouped(FULL, STATE))
    page = 304  # 30,000 B are 300 tokens of 100 B: 19 times 16
    assert lay == Layout((Kind(8, 1, page), Kind(24, 3, page, state=True)), 8 * page * 100.0, page * 100.0)
    assert lay.states
    assert sequence_blocks(options(), lay) == -(-1000 // page) + 3 * 2
    assert sequence_blocks(options(version="0.19.1"), lay) == -(-1000 // page) + 3
    assert sequence_blocks(options(speculative="mtp:2:0.7"), lay) == -(-1000 // page) + 3 * 4
    small = layout(options(page_size=512), facts(), grouped(FULL, STATE))
    assert small.kinds[0].tokens == 512


def test_one_kind_is_one_group() -> None:
    window = layout(options(), facts(), grouped(SLIDING))
    assert window == Layout((Kind(24, 1, 16, 100),), 16 * 2400.0, 16 * 100.0)
    assert sequence_blocks(options(), window) == -(-(99 + 512) // 16) + 1
    two = layout(options(), facts(), grouped(SLIDING, LayerGroup(8, 100.0, 200)))  # not one bound
    assert two.kinds == (Kind(32, 1, 16),)
    assert layout(options(), facts(), grouped(SLIDING, STATE)).kinds == (Kind(48, 1, 16),)
    shared = layout(options(dcp=2), facts(), grouped(FULL, SLIDING))  # no blocks are given back
    assert shared == Layout((Kind(32, 1, 16),), 16 * 2 * 3200.0, 16 * 2 * 100.0)
    assert sequence_blocks(options(dcp=2), shared) == -(-500 // 16)
    assert layout(options(version="0.9.1"), facts(), grouped(FULL, SLIDING)).groups == 1
    assert layout(options(version="0.9.2"), facts(), grouped(FULL, SLIDING)).groups == 4


def test_chunks_count_as_full_attention_and_are_bounded_in_the_check() -> None:
    chunked = LayerGroup(24, 100.0, 128, chunked=True)
    rank = grouped(FULL, chunked)
    lay = layout(options(), facts(), rank)
    assert lay.kinds == (Kind(32, 1, 16),) and sequence_blocks(options(), lay) == 63
    assert sequence_bytes(options(), rank, lay) == 8 * 100 * 1000 + 24 * 100 * (128 + 512)
    assert sequence_bytes(options(context=500), rank, lay) == 32 * 100 * 500
    plain = layout(options(), facts(), grouped(FULL))
    assert sequence_bytes(options(), grouped(FULL), plain) == 63 * 16 * 800


def test_tokens_in_flight_of_deepseek_v4() -> None:
    moving = LayerGroup(10, 100.0, 64, in_flight_bytes=500.0)
    lay = layout(options(), facts(), grouped(moving))
    assert (lay.in_flight_bytes, lay.window, lay.block_bytes) == (5000.0, 64, 16 * 1000.0)
    assert sequence_blocks(options(), lay) == 5000 * (64 + 512) / 16_000 + 63
    assert sequence_blocks(options(context=300), lay) == 5000 * 300 / 16_000 + 19


def test_chunks_in_flight_by_version() -> None:
    assert [in_flight(options(version=v)) for v in ("0.25.1", "0.26.0", "0.33.0")] == [256, 512, 512]


def test_the_number_in_the_log_line() -> None:
    lay = layout(options(), facts(), grouped(FULL, SLIDING))  # 63 and 3 x 40 blocks a sequence
    each = 63 + 3 * (-(-(99 + 512) // 16) + 1)
    assert printed_tokens(options(), lay, 1000) == int(1000 / each * 1000)
    assert printed_tokens(options(version="0.20.0"), lay, 1001) == 250 * 16
    one = layout(options(dcp=2), facts(), grouped(FULL))
    assert printed_tokens(options(version="0.20.0", dcp=2), one, 100) == 100 * 16 * 2
    assert printed_tokens(options(version="0.20.2", dcp=2), one, 64) == 64 * 1000 // 32


def test_a_pool_of_several_groups_holds_whole_sequences() -> None:
    rank = grouped(FULL, SLIDING, weights_bytes=60 * 2.0**30)
    now = vllm.resolve(options(engine="vllm", tp=8), facts())[0]
    pool = vllm_memory.kv_pool(now, facts(), [rank])
    lay = layout(now, facts(), rank)
    offer = -(-facts().gpu_memory_bytes * 9 // 10) - rank.weights_bytes - total(pool.rows[0], "budget")
    blocks = int(offer // lay.block_bytes)
    assert pool.verdict == "fits" and pool.pool_bytes == near((blocks * lay.block_bytes,))
    held = blocks / sequence_blocks(now, lay)
    assert pool.sequences == near(held) and pool.tokens == int(held * 1000) == pool.tokens_total
    alone = vllm_memory.kv_pool(now, facts(), [grouped(FULL, weights_bytes=60 * 2.0**30)])
    assert alone.sequences is None and alone.tokens == alone.tokens_total


# ---------------------------------------------------------------- graphs and launch lines


@pytest.mark.parametrize(("form", "attention", "experts", "each"), [
    ("mxfp4", "gqa", 32, 0.018 + (0.058 - 0.018) / 4), ("fp8", "mla", 32, 0.018 + (0.042 - 0.018) / 4),
    ("fp8", "gqa", 32, 0.018 + (0.021 - 0.018) / 4), ("bf16", "mla", 0, 0.0145),
])  # fmt: skip
def test_graphs_of_older_versions_by_the_experts(form: str, attention: str, experts: int, each: float) -> None:
    given = facts(weight_format=form, attention=attention, experts=experts)
    now = Options(engine="vllm", version="0.19.1", tp=4, cuda_graphs=True)
    made = vllm_memory._graphs(now, given, a_rank(layers=40))
    assert (made.bytes, made.when) == (near((0.45 + 40 * each) * 2**30), "slack")
    later = vllm_memory._graphs(replace(now, version="0.20.0"), given, a_rank(layers=40))
    assert (later.bytes, later.when) == (near((0.2 + 40 * (0.015 if experts else 0.006)) * 2**30), "budget")
    assert vllm_memory._graphs(replace(now, cuda_graphs=False), given, a_rank()).bytes == 0


def test_a_rank_of_an_expert_group_follows_from_the_line() -> None:
    for text, ranks in (("vllm serve m -tp 4 --enable-expert-parallel", 4), ("vllm serve m -tp 2 -dp 2 -ep", 4)):
        assert parse_command(text)[1]["ep"] == ranks
    assert parse_command("vllm serve m -tp 4 --disable-custom-all-reduce")[1]["all_reduce"] == "nccl"
