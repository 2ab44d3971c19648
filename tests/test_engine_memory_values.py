"""Rows of memory of the engines: what logs print, what sources compute, and what holds for each of them."""

from dataclasses import replace
from typing import Any

import pytest
from test_engine_values import KINDS, MODULES, a_rank, dense, near
from test_engines import GIB, facts

from perfmodel import engines
from perfmodel.engines import activations as act
from perfmodel.engines import sglang_memory, vllm, vllm_memory
from perfmodel.engines.options import Facts, LayerGroup, Options, RuntimeRow
from perfmodel.engines.vllm_kv import Kind, Layout, layout, sequence_blocks


@pytest.mark.parametrize("engine", MODULES)
@pytest.mark.parametrize(
    ("keywords", "model"),
    [({"tp": 8}, facts()), ({"tp": 1}, dense()), ({"tp": 2, "pp": 2}, facts(full_nvlink=False)),
     ({"tp": 8, "dp_attention": 8, "ep": 8}, facts()), ({"tp": 2}, facts(weight_format="mxfp4-g32", vision=True))],
)  # fmt: skip
def test_every_row_of_memory_is_within_its_band_and_of_a_known_kind(
    engine: str, keywords: dict[str, Any], model: Facts
) -> None:
    module, _, _ = engines.get(engine)
    for version in module.VERSIONS:
        now, _ = module.resolve(Options(engine=engine, version=version, **keywords), model)
        rows = module.runtime_rows(now, model, a_rank())
        assert len({row.name for row in rows}) == len(rows)
        for row in rows:
            assert 0 < row.low <= row.bytes <= row.high, row
            assert row.when in ("baseline", "budget", "slack"), row
            assert row.kind in KINDS and row.source, row
        alone = module.runtime_rows(replace(now, tp=1, pp=1, dp_attention=1, ep=1), model, a_rank())
        assert not [row for row in alone if row.name.startswith("NCCL")]


def named(rows: tuple[RuntimeRow, ...], name: str) -> RuntimeRow:
    (row,) = [row for row in rows if row.name == name]
    return row


@pytest.mark.parametrize(
    ("engine", "keywords", "name", "gib", "digit"),
    [
        # vLLM 0.19 start-up logs on H100: 79.19 GiB in all, 78.68 at the start, 77.66 with communicators, 77.18 for MoE
        ("vllm==0.19.1", {"tp": 1}, "CUDA context", 79.19 - 78.68, 0.011),
        ("vllm==0.19.1", {"tp": 2}, "NCCL communicators", 78.68 - 77.66, 0.011),
        ("vllm==0.19.1", {"tp": 2}, "NCCL expert group", 77.66 - 77.18, 0.011),
        ("vllm==0.19.1", {"tp": 2}, "fused and symmetric all-reduce", 2.07 - 0.25, 0.06),
        # SGLang logs: 'Load weight begin' at 78.47 of 79.19 GiB, 23.09 and 22.76 of 23.56; 1.77 to 2.01 at TP8 on H200
        ("sglang==0.5.23", {"tp": 1}, "CUDA context", (0.72 + 0.47 + 0.80) / 3, 0.08),
        ("sglang==0.5.23", {"tp": 8}, "NCCL communicators and custom all-reduce", (1.77 + 2.01) / 2, 0.12),
    ],
)  # fmt: skip
def test_rows_that_logs_print(engine: str, keywords: dict[str, Any], name: str, gib: float, digit: float) -> None:
    module, version, _ = engines.get(engine)
    o, _ = module.resolve(Options(engine=engine.partition("==")[0], version=version, **keywords), facts())
    assert named(module.runtime_rows(o, facts(), a_rank()), name).bytes / GIB == pytest.approx(gib, rel=0, abs=digit)


def test_when_vllm_charges_what() -> None:
    """gpu_worker.py and mem_utils.py by version: communicators to the budget before 0.11.2, the context by 0.8, graphs
    since 0.20, block tables outside the budget from 0.9 to 0.26."""
    def when(version: str, name: str) -> str:
        o, _ = vllm.resolve(Options(version=version, tp=8), facts())
        return named(vllm.runtime_rows(o, facts(), a_rank()), name).when

    by_version = {
        "CUDA context": {"0.7.3": "baseline", "0.8.5": "budget", "0.9.2": "baseline", "0.33.0": "baseline"},
        "NCCL communicators": {"0.11.0": "budget", "0.11.2": "baseline", "0.33.0": "baseline"},
        "CUDA graphs": {"0.19.1": "slack", "0.20.0": "budget"},
        "block tables": {"0.8.5": "budget", "0.9.2": "slack", "0.26.0": "slack", "0.27.1": "budget"},
    }
    for name, expected in by_version.items():
        assert {version: when(version, name) for version in expected} == expected


def test_activations_by_hand() -> None:
    """bf16: 2 B a value. MLA of DeepSeek: 2112 down, 64 heads x 192 of query, 448 + 128 or 1088 of what is expanded."""
    assert act.moe_workspace_bytes(10, 8, 256, 7168) == 2 * 10 * 8 * (7168 + 256)
    assert act.moe_workspace_bytes(10, 8, 4096, 7168) == 2 * 10 * 8 * (8192 + 4096)
    assert act.mlp_bytes(10, 100, 64) == 2 * 10 * 3 * 100
    assert act.hidden_bytes(10, 64) == 2 * 10 * 64 * 3
    assert act.attention_bytes(10, facts(), 8, False) == 2 * 10 * (2112 + 8 * (192 + 576))
    assert act.attention_bytes(10, facts(), 8, True) == 2 * 10 * (2112 + 8 * (192 + 1088))
    # GQA, 8 of 32 heads with 2 of 8 KV heads: query and output, key and value, 128 wide
    assert act.attention_bytes(10, dense(), 8, False) == 2 * 10 * 128 * 2 * (8 + 2)
    assert act.attention_bytes(10, dense(), 2, False) == 2 * 10 * 128 * 2 * (2 + 1)  # one KV head at least
    wide = act.layer_peak_bytes(10, Options(tp=8), facts(), a_rank(), False)
    assert wide == 2 * 10 * 7168 * 3 + 2 * 10 * (2112 + 8 * 768)
    flat = act.layer_peak_bytes(10, Options(tp=1), facts(), a_rank(), False)
    assert flat == 2 * 10 * 7168 * 3 + 2 * 10 * 3 * 18432
    o = Options(tp=8, ep=8, dp_attention=4)
    assert act.moe_bytes(10, o, facts()) == 2 * 40 * 8 * (7168 + 2048)
    assert act.moe_bytes(10, Options(tp=8), facts()) == 2 * 10 * 8 * (7168 + 256)
    assert act.moe_bytes(10, o, dense()) == 0.0
    assert act.request_table_bytes(10, 1000, 3) == 11 * 1007 * 4
    assert act.block_table_bytes(10, 1001, 4.0, 16) == 10 * 63 * 4
    assert act.sampler_bytes(10, 1000, 3.0) == 120_000
    assert [act.kv_element_bytes(word) for word in ("auto", "fp8", "nvfp4")] == [2.0, 1.0, 0.5625]


def test_sglang_s_default_fraction_by_hand() -> None:
    """memory_hook.py in MiB of 81,920: 512 + 1.5 x chunk + 1024 x GPUs / 8 + 2 x batch, and at least 10,240."""
    def fraction(version: str, machine: Facts, **keywords: Any) -> float:
        o = Options(engine="sglang", version=version, prefill_chunk=8192, max_graph_batch=256, **keywords)
        return sglang_memory.default_fraction(replace(o, cuda_graphs=keywords.get("cuda_graphs", True)), machine)

    small, large = facts(24 * 1024), facts(80 * 1024)
    reserved = 512 + 1.5 * 8192 + 1024 / 8 + 2 * 256
    assert fraction("0.5.9", small) == round((24576 - reserved) / 24576, 3)
    assert fraction("0.5.23", small, pp=2) == round((24576 - reserved - 128) / 24576, 3)
    assert fraction("0.5.23", small) == round((24576 - reserved - 1536) / 24576, 3)  # MLA: prefill graphs
    assert fraction("0.5.23", dense(mib=24 * 1024)) == round((24576 - reserved - 8 * 58) / 24576, 3)
    assert fraction("0.5.23", small, cuda_graphs=False) == round((24576 - reserved + 512) / 24576, 3)
    assert fraction("0.5.10", small, pp=2, cuda_graphs=False) == round((24576 - reserved - 128) / 24576, 3)
    assert fraction("0.5.9", small, speculative="eagle3:3") == round((24576 - reserved - 2048) / 24576, 3)
    assert fraction("0.5.10", small, pp=2, speculative="EAGLE:3") == round((24576 - reserved - 128 - 4096) / 24576, 3)
    assert fraction("0.5.9", small, speculative="standalone:3") == round((24576 - reserved - 6144) / 24576, 3)
    assert fraction("0.5.9", small, speculative="ngram:3") == fraction("0.5.9", small)
    assert fraction("0.5.15", small, pp=2, speculative="eagle3:3") == fraction("0.5.15", small, pp=2)
    groups = reserved + 7 * 128 + 3.0 * 256 * 8
    assert fraction("0.5.9", facts(48 * 1024), tp=8, dp_attention=8) == round((49152 - groups) / 49152, 3)
    assert fraction("0.5.9", large, pp=2) == round((81920 - max(10240, reserved + 128)) / 81920, 3)
    many = Options(engine="sglang", version="0.5.9", prefill_chunk=1024, max_graph_batch=301, cuda_graphs=True, tp=8,
                   dp_attention=8)  # fmt: skip
    assert sglang_memory.default_fraction(many, facts(48 * 1024)) == round(
        (49152 - 512 - 1.5 * 2048 - 1024 - 602 - 4.5 * 301 * 8) / 49152, 3)


def test_sglang_s_request_table() -> None:
    """clamp(tokens / context x 512, 2048, 4096), or what is given; at most half the tokens since 0.5.11."""
    old, new = (Options(engine="sglang", version=v, context=1000) for v in ("0.5.10", "0.5.23"))
    assert [sglang_memory.request_rows(old, t) for t in (None, 1000, 6000, 9000)] == [2048, 2048, 3072, 4096]
    assert sglang_memory.request_rows(new, 1000) == 500
    assert sglang_memory.request_rows(new, 1) == 1
    groups = Options(engine="sglang", version="0.5.23", context=1000, max_sequences=100, tp=4, dp_attention=4)
    assert sglang_memory.request_rows(groups, None) == 25
    assert sglang_memory.request_rows(replace(groups, version="0.5.10"), None) == 100
    assert sglang_memory.request_rows(groups, 30) == 15


def test_vision_towers_lower_the_fraction_within_limits() -> None:
    def factor(layers: int, hidden: int) -> float:
        return sglang_memory.vision_factor(facts(vision_layers=layers, vision_hidden=hidden))

    assert factor(24, 1024) == near(0.95)
    assert factor(48, 1024) == near(0.95 * 0.9)
    assert factor(240, 1024) == near(0.95 * 0.8)  # no lower
    assert factor(6, 1024) == near(0.95 * 1.05)  # no higher


def test_what_sglang_s_token_costs_with_a_sliding_pool() -> None:
    groups = (LayerGroup(10, 100.0, None), LayerGroup(20, 100.0, 1024))
    rank = a_rank(kv_bytes_per_token=3000.0, groups=groups)
    llama4 = facts(architecture="Llama4ForConditionalGeneration")
    o = Options(engine="sglang", version="0.5.23")
    assert sglang_memory.cell_bytes(o, llama4, rank) == near(1000 + 0.8 * 2000)
    assert sglang_memory.cell_bytes(replace(o, version="0.5.2"), llama4, rank) == 3000.0
    assert sglang_memory.cell_bytes(o, facts(), rank) == 3000.0
    assert sglang_memory.cell_bytes(o, llama4, replace(rank, groups=groups[1:])) == 3000.0
    assert sglang_memory.state_share([rank]) == 0.0
    state = replace(rank, groups=(*groups, LayerGroup(5, 0.0, None, 1e6)))
    assert sglang_memory.state_share([rank, state]) == near(0.9 / 1.9)


def test_vllm_s_sampler_and_graphs_get_smaller_with_versions() -> None:
    copies = [vllm_memory._sampler_copies(v)[0] for v in ("0.7.3", "0.8.5", "0.16.0", "0.17.0", "0.26.0", "0.27.1")]
    assert copies == [1.0, 9.4, 9.4, 3.5, 3.5, 2.0]
    # Qwen3-14B, 1,024 sequences of 151,936 tokens: 5.64 GiB up to 0.16, 2.23 since 0.17, hidden states of the chunk too
    hidden = act.hidden_bytes(8192, 5120, 1.0)
    for version, gib in (("0.16.0", 5.64), ("0.17.0", 2.23)):
        peak = act.sampler_bytes(1024, 151_936, vllm_memory._sampler_copies(version)[0]) + hidden + 0.12 * GIB
        assert peak / GIB == pytest.approx(gib, abs=0, rel=0.05)


def test_blocks_of_a_sequence() -> None:
    """Two groups: full attention, 1,000 tokens in blocks of 16; a window of 100 behind a chunk of 256."""
    groups = (LayerGroup(8, 100.0, None), LayerGroup(8, 100.0, 100))
    rank = a_rank(layers=16, kv_bytes_per_token=1600.0, groups=groups)
    o = Options(version="0.25.1", context=1000, page_size=16, prefill_chunk=256)
    lay = layout(o, facts(), rank)
    assert lay == Layout((Kind(8, 1, 16), Kind(8, 1, 16, 100)), 8 * 16 * 100.0, 1600.0)
    assert sequence_blocks(o, lay) == 63 + (-(-(99 + 256) // 16) + 1)
    assert sequence_blocks(replace(o, version="0.26.0"), lay) == 63 + (-(-(99 + 512) // 16) + 1)
    alike = layout(o, facts(), replace(rank, groups=groups[:1]))
    assert alike == Layout((Kind(16, 1, 16),), 16 * 1600.0, 1600.0)
    assert layout(replace(o, dcp=2), facts(), rank).block_bytes == 16 * 2 * 1600.0
    assert layout(replace(o, version="0.8.5"), facts(), rank).groups == 1
