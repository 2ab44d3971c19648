"""Does it fit: every byte of a rank is somewhere, pools agree with start-up logs, and hints are true."""

import re
from typing import Any

import pytest
from cases import CASE_NODE, GIB, kimi, toy

import perfmodel as pm
from perfmodel.engines.memory import VERDICTS
from perfmodel.step import MemoryReport

CASES: dict[str, dict[str, Any]] = {
    "sglang pp8": {"pp": 8, "memory_fraction": 0.92},
    "sglang pp8 default": {"pp": 8},
    "sglang tp8": {"tp": 8},
    "sglang tp2 pp4": {"tp": 2, "pp": 4, "memory_fraction": 0.9},
    "sglang dpa8": {"tp": 8, "ep": 8, "dp_attention": 8, "memory_fraction": 0.94},
    "sglang tp1": {"tp": 1},
    "vllm tp8": {"engine": "vllm==0.33.0", "tp": 8, "kv_dtype": "fp8"},
    "vllm tp8 old": {"engine": "vllm==0.8.5", "tp": 8, "kv_dtype": "fp8"},
    "vllm pp8": {"engine": "vllm==0.19.1", "pp": 8},
    "vllm dcp8": {"engine": "vllm==0.33.0", "tp": 8, "dcp": 8},
    "vllm dpa8": {"engine": "vllm==0.33.0", "tp": 8, "dp_attention": 8, "ep": 8},
}
each = pytest.mark.parametrize("keywords", CASES.values(), ids=CASES)


# ---------------------------------------------------------------- the report


@each
def test_the_parts_of_every_rank_add_up_to_what_the_driver_reports(keywords: dict[str, Any]) -> None:
    d = kimi(**keywords)
    answer = pm.memory(d, hints=False).to_dict()
    assert len(answer["ranks"]) == d.options.world
    assert sum(rank["layers"] for rank in answer["ranks"]) == 61 * d.options.tp
    total = d.accelerator.memory.total.value
    for number, rank in enumerate(answer["ranks"]):
        assert rank["rank"] == number
        assert rank["stage"] == number // d.options.tp
        spent = rank["weights_bytes"] + rank["kv_pool_bytes"] + rank["runtime_bytes"]
        assert spent + rank["free_bytes"] == pytest.approx(total, rel=1e-9)
        assert sum(rank["parts"].values()) == pytest.approx(spent, rel=1e-9)
        assert min(rank["parts"].values()) >= 0


@each
def test_the_report_has_the_keys_of_the_contract(keywords: dict[str, Any]) -> None:
    answer = pm.memory(kimi(**keywords), hints=False).to_dict()
    assert {
        "fits", "verdict", "binding_rank", "ranks", "kv_tokens", "kv_tokens_low", "kv_tokens_high", "kv_tokens_total",
        "max_sequences_at_context", "hints", "assumptions",
    } <= set(answer)  # fmt: skip
    assert {"rank", "stage", "layers", "weights_bytes", "kv_pool_bytes", "runtime_bytes", "free_bytes", "parts"} == set(
        answer["ranks"][0]
    )
    assert answer["verdict"] in VERDICTS
    assert answer["fits"] == (answer["verdict"] == "fits")
    assert 0 <= answer["kv_tokens_low"] <= answer["kv_tokens"] <= answer["kv_tokens_high"]
    assert 0 <= answer["binding_rank"] < len(answer["ranks"])
    if answer["fits"]:
        assert all(rank["free_bytes"] >= 0 for rank in answer["ranks"])


@each
def test_the_pool_holds_the_tokens_that_are_printed(keywords: dict[str, Any]) -> None:
    d = kimi(**keywords)
    report = pm.memory(d, hints=False)
    page = (d.options.page_size or 1) * d.options.dcp
    for per_token, pool in zip(report.placement.kv_bytes_per_token, report.pool.pool_bytes, strict=True):
        assert report.kv_tokens * per_token <= pool <= (report.kv_tokens + 2 * page) * per_token


def test_the_rank_with_least_room_binds() -> None:
    report = pm.memory(kimi(pp=8, memory_fraction=0.92))
    assert report.binding_rank == 7  # eight layers and the head
    free = [rank["free_bytes"] for rank in report.to_dict()["ranks"]]
    assert free.index(min(free)) == 7
    assert pm.memory(kimi(tp=2, pp=4, memory_fraction=0.92)).binding_rank == 6  # first rank of the last stage


def test_more_memory_never_holds_less() -> None:
    tokens = [pm.memory(kimi(pp=8, memory_fraction=f), hints=False).kv_tokens for f in (0.5, 0.8, 0.85, 0.9, 0.92)]
    assert tokens == sorted(tokens)
    assert tokens[0] == 0 < tokens[-1]


def test_smaller_values_hold_more_tokens() -> None:
    wide, narrow = (pm.memory(kimi("vllm==0.19.1", tp=8, kv_dtype=dtype)).kv_tokens for dtype in ("bf16", "fp8"))
    assert narrow == pytest.approx(2 * wide, rel=0.001)


# ---------------------------------------------------------------- against logs and the references


@pytest.mark.parametrize("tokens", [437_264, 491_344])
def test_vllm_pool_of_kimi_on_the_node_of_the_case(tokens: int) -> None:
    """TP8, FP8 cache, 0.94, no draft: images of 2026-04 and 2026-05 (github sjug/rtx6kpro@738985bb, models/kimi-k26.md
    and kimi-k26-v8.md). Their version and max_num_seqs are not printed: some usual choice must explain each log."""
    reports = [
        pm.memory(kimi(f"vllm=={version}", tp=8, kv_dtype="fp8", memory_fraction=0.94, max_sequences=sequences))
        for version in ("0.19.1", "0.22.1", "0.33.0")
        for sequences in (None, 128)
    ]
    assert all(report.fits for report in reports)
    assert any(report.kv_tokens_low <= tokens <= report.kv_tokens_high for report in reports)


def test_what_is_neither_weights_nor_pool_under_vllm() -> None:
    """By the 437,264 tokens of the log: 0.94 of 95.6 GiB, less 71.7 of weights and 14.3 of pool."""
    report = pm.memory(kimi("vllm==0.19.1", tp=8, kv_dtype="fp8", memory_fraction=0.94))
    beside = sum(row.bytes for row in report.pool.rows[0] if row.when == "budget") / GIB
    assert beside == pytest.approx(0.94 * 95.593 - report.placement.weights_bytes[0] / GIB - 14.309, rel=0.1)


@pytest.mark.parametrize(
    ("keywords", "tokens", "digit"),
    [
        ({"pp": 8, "memory_fraction": 0.92}, 1.21e6, 0.005e6),
        ({"tp": 8, "memory_fraction": 0.92}, 229e3, 0.5e3),
        ({"tp": 8}, 15e3, 0.5e3),
    ],
)
def test_sglang_pool_by_hand(keywords: dict[str, Any], tokens: float, digit: float) -> None:
    """10.4 GiB of 9,216 B a token under PP8; 15 and 1 GiB of 70,272 B under TP8, from 94.2 GiB free at start."""
    report = pm.memory(kimi(**keywords))
    assert report.kv_tokens_low - digit <= tokens <= report.kv_tokens_high + digit


def test_sglang_default_fraction_leaves_no_pool_for_pp8() -> None:
    report = pm.memory(kimi(pp=8))
    assert (report.verdict, report.kv_tokens, report.kv_tokens_total) == ("no_kv", 0, 0)
    assert report.deployment.options.memory_fraction == pytest.approx(0.7769, abs=5e-5)
    least = float(re.search(r"must exceed (0\.\d+)", report.to_dict()["reason"])[1])  # type: ignore[index]
    assert pm.memory(kimi(pp=8, memory_fraction=least + 0.001), hints=False).kv_tokens > 0
    assert pm.memory(kimi(pp=8, memory_fraction=least - 0.001), hints=False).kv_tokens == 0


@pytest.mark.parametrize(
    ("engine", "keywords", "fraction"),
    [
        ("sglang==0.5.9", {"tp": 8}, 0.7715),
        ("sglang==0.5.23", {"tp": 8}, 0.7578),
        ("sglang==0.5.23", {"pp": 8}, 0.7769),
    ],
)
def test_sglang_default_fractions_for_a_vision_model(engine: str, keywords: dict[str, int], fraction: float) -> None:
    assert kimi(engine, **keywords).options.memory_fraction == pytest.approx(fraction, abs=6e-5)


@pytest.mark.parametrize("fraction", [None, 0.9, 0.95, 0.99, 1.0])
def test_six_cards_do_not_hold_the_model_at_any_fraction(fraction: float | None) -> None:
    report = pm.memory(kimi(node="6x-rtx-pro-6000-server", pp=6, memory_fraction=fraction), hints=False)
    assert (report.fits, report.verdict) == (False, "oom_weights")
    assert report.placement.weights_bytes.max() > report.deployment.accelerator.memory.total.value


def test_h200_pool_of_kimi_by_hand() -> None:
    """137.3 GiB free at start and 0.816 of it leave about 40 GiB: 616,000 tokens."""
    report = pm.memory(kimi("sglang==0.5.9", node="8x-h200-sxm", tp=8))
    assert report.pool.pre_bytes / GIB == pytest.approx(137.3, abs=1.0)
    assert report.kv_tokens == pytest.approx(616e3, rel=0.05)


def test_latent_cache_is_not_pooled_over_tensor_parallel_ranks() -> None:
    """Kimi K2 Thinking on 8 x H200: 46.80 GiB a GPU are 715,072 tokens for the whole node, not 5.7 million."""
    report = pm.memory(kimi("vllm==0.11.0", node="8x-h200-sxm", tp=8))
    assert report.kv_tokens == report.kv_tokens_total
    assert report.pool.pool_bytes[0] / report.kv_tokens == pytest.approx(70_272)


def test_context_parallelism_multiplies_the_tokens() -> None:
    """FP8 0.93 without a draft: 449,600 tokens at dcp 1, 3,621,504 at dcp 8 (models/kimi-k25.md)."""
    plain, spread = (
        pm.memory(kimi("vllm==0.19.1", tp=8, kv_dtype="fp8", memory_fraction=0.93, dcp=dcp)) for dcp in (1, 8)
    )
    assert spread.kv_tokens / plain.kv_tokens == pytest.approx(3_621_504 / 449_600, rel=0.03)
    assert plain.kv_tokens == pytest.approx(449_600, rel=0.12)


# ---------------------------------------------------------------- data-parallel attention, copies, limits


@pytest.mark.parametrize("engine", ["sglang==0.5.10", "vllm==0.33.0"])
def test_attention_groups_have_a_pool_each(engine: str) -> None:
    one, eight = (
        pm.memory(pm.deploy("deepseek-v2-lite", node=CASE_NODE, engine=engine, tp=8, ep=8, dp_attention=groups))
        for groups in (1, 8)
    )
    assert one.kv_tokens == one.kv_tokens_total
    assert eight.kv_tokens_total == 8 * eight.kv_tokens
    assert 0.5 * one.kv_tokens < eight.kv_tokens < one.kv_tokens  # replicated weights take room in each group


def test_attention_groups_of_a_large_model_leave_no_pool_under_vllm() -> None:
    """All but the experts is replicated: 22 GB beside 71 GB of experts on each rank."""
    report = pm.memory(kimi("vllm==0.33.0", tp=8, dp_attention=8, ep=8, memory_fraction=0.94), hints=False)
    assert (report.verdict, report.kv_tokens_total) == ("no_kv", 0)


def test_copies_multiply_the_total() -> None:
    one, four = (pm.memory(pm.deploy("llama-3.1-8b", node=CASE_NODE, tp=2, dp=dp)) for dp in (1, 4))
    assert four.kv_tokens == one.kv_tokens
    assert four.kv_tokens_total == 4 * one.kv_tokens_total
    assert four.max_sequences_at_context == 4 * one.max_sequences_at_context
    assert len(four.to_dict()["ranks"]) == 8


@pytest.mark.parametrize("engine", ["sglang==0.5.23", "vllm==0.33.0"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_sequences_at_context_keep_the_engine_s_limit(engine: str, groups: int) -> None:
    """SGLang's max_running_requests is shared by the groups, vLLM's max_num_seqs holds in each."""
    model = toy(experts=8, per_token=2, heads=8, kv_heads=8)
    d = pm.deploy(model, node=CASE_NODE, engine=engine, tp=4, dp_attention=groups, max_sequences=16, context=1024)
    report = pm.memory(d)
    assert report.kv_tokens > 100 * 1024
    assert report.max_sequences_at_context == (16 if engine.startswith("sglang") else 16 * groups)


def test_vllm_needs_room_for_one_sequence_of_full_length() -> None:
    d = kimi("vllm==0.33.0", tp=8, memory_fraction=0.8)
    report = pm.memory(d)
    assert report.verdict == "kv_too_small"
    longest = report.kv_tokens // 16 * 16
    assert pm.memory(kimi("vllm==0.33.0", tp=8, memory_fraction=0.8, context=longest // 2)).fits


# ---------------------------------------------------------------- hints

_SETTING = re.compile(r"\b([a-z_]+)=([^\s,]+)")


def asked_again(keywords: dict[str, Any], hint: str) -> MemoryReport:
    """The same launch with the settings that a hint names, and nothing else."""
    changed = {key: _value(text) for key, text in _SETTING.findall(hint)}
    node = re.search(r" on (\S+) fits", hint)
    return pm.memory(kimi(**{**keywords, **changed, **({"node": node[1]} if node else {})}), hints=False)


def _value(text: str) -> Any:
    return float(text) if "." in text else int(text) if text.isdigit() else text


NO: dict[str, dict[str, Any]] = {
    "pp8 default": {"pp": 8},
    "pp8 too much": {"pp": 8, "memory_fraction": 0.97},
    "pp6 on six": {"pp": 6, "node": "6x-rtx-pro-6000-server"},
    "dpa8": {"tp": 8, "ep": 8, "dp_attention": 8, "memory_fraction": 0.94},
    "tp1": {"tp": 1},
    "vllm short of one sequence": {"engine": "vllm==0.33.0", "tp": 8, "memory_fraction": 0.8},
    "vllm pp8 at 0.8": {"engine": "vllm==0.33.0", "pp": 8, "memory_fraction": 0.8},
}


@pytest.mark.parametrize("keywords", NO.values(), ids=NO)
def test_hints_are_true_when_they_are_asked_again(keywords: dict[str, Any]) -> None:
    report = pm.memory(kimi(**keywords))
    assert not report.fits
    assert report.hints
    for hint in report.hints:
        if "fits" not in hint.split(";")[0] or hint.startswith("no change"):
            continue
        again = asked_again(keywords, hint)
        assert again.fits, hint
        tokens = re.search(r"with ([\d,]+) KV tokens", hint)
        assert tokens and int(tokens[1].replace(",", "")) == again.kv_tokens, hint


def test_what_fits_needs_no_hints() -> None:
    assert pm.memory(kimi(pp=8, memory_fraction=0.92)).hints == ()
