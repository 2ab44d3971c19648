"""Memory to the engine's own log line: bytes a token, layouts of hybrids, load lines, scoreboard of the logs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.catalog import names
from perfmodel.catalog.observations import load_rows
from perfmodel.engines.logs import MAX_BYTES, parse_log, read_log
from perfmodel.engines.vllm_kv import layout, printed_tokens, sequence_bytes
from perfmodel.errors import BadInput
from perfmodel.insight.log_terms import Beside, culprit, terms
from perfmodel.insight.memory_logs import MemoryValidation, draft_word, kv_word, validate_memory
from perfmodel.placement import place
from perfmodel.placement.loaded import rounding_bytes

GIB, MIB = 2.0**30, 2.0**20
PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
needs_page = pytest.mark.skipif(not PAGE.is_file(), reason="the wheel has no documents")

# ---------------------------------------------------------------- bytes a token, as pools and tokens of logs give them

BYTES_A_TOKEN = [
    ("kimi-k2-thinking", 8, {}, 70272), ("kimi-k2-thinking", 8, {"dcp": 8}, 8784), ("deepseek-v2-lite", 1, {}, 31104),
    ("deepseek-v2-lite", 4, {}, 31104), ("kimi-vl-a3b", 2, {}, 31104), ("glm-5.1-nvfp4", 8, {"kv_dtype": "fp8"}, 61464),
    ("glm-5.1-nvfp4", 8, {"kv_dtype": "fp8", "speculative": "mtp:3"}, 62252), ("llama-3.1-8b", 1, {}, 131072),
    ("llama-3.1-70b", 4, {}, 81920), ("qwen2.5-72b", 4, {}, 81920), ("qwen2.5-7b", 1, {}, 57344),
    ("qwen3-8b", 1, {}, 147456), ("qwen3-14b", 1, {}, 163840), ("qwen3-32b", 1, {}, 262144),
    ("mistral-small-3.1-24b", 1, {}, 163840), ("mixtral-8x7b", 2, {}, 65536), ("phi-4", 1, {}, 204800),
    ("qwen3-30b-a3b", 1, {}, 98304), ("qwen3-30b-a3b", 4, {}, 24576), ("qwen3-235b-a22b", 4, {}, 48128),
    ("qwen3-235b-a22b", 8, {}, 48128), ("glm-4.7", 4, {"kv_dtype": "fp8"}, 47104),
    ("glm-4.5-air", 4, {"dp_attention": 2, "engine": "sglang"}, 94208), ("minimax-m2", 4, {}, 63488),
    ("gpt-oss-120b", 4, {}, 18432), ("qwen3-coder-480b-a35b", 8, {"dp_attention": 8, "ep": 8}, 253952),
    ("llama-4-scout", 8, {}, 24576),
]  # fmt: skip


@pytest.mark.parametrize(("model", "tp", "keywords", "printed"), BYTES_A_TOKEN, ids=lambda value: str(value))
def test_bytes_of_a_token_on_a_gpu(model: str, tp: int, keywords: dict[str, Any], printed: int) -> None:
    """Latents are whole on every rank, and so is a KV head once there are more ranks than heads."""
    keywords = {"engine": "vllm", **keywords}
    d = pm.deploy(model, node="8x-rtx-pro-6000-server", tp=tp, **keywords)
    assert place(d).kv_bytes_per_token.max() == printed


# ---------------------------------------------------------------- pools of hybrids: printed GiB -> printed tokens

POOLS = [
    ("gemma-3-27b", 1, "0.19.1", {"context": 8192}, 19.53, 36560),
    ("gemma-3-4b", 1, "0.19.1", {"context": 8192}, 62.51, 468144),
    ("gemma-2-27b", 1, "0.19.1", {"context": 8192}, 20.59, 58672),
    ("gpt-oss-20b", 1, "0.19.1", {"context": 8192}, 58.47, 1277184),
    ("llama-4-scout", 4, "0.19.1", {"context": 8192}, 16.75, 365968),
    ("qwen3.6-35b-a3b", 2, "0.25.1", {"context": 262144, "kv_dtype": "fp8"}, 16.58, 3292687),
    ("qwen3.6-27b", 1, "0.22.1", {"context": 262144, "kv_dtype": "fp8", "speculative": "mtp:2"}, 48.6, 1394129),
    ("kimi-k2.6", 8, "0.19.1", {"kv_dtype": "fp8"}, 14.309, 437264),
]  # fmt: skip


@pytest.mark.parametrize(("model", "tp", "version", "keywords", "gib", "tokens"), POOLS, ids=lambda value: str(value))
def test_tokens_of_a_printed_pool(
    model: str, tp: int, version: str, keywords: dict[str, Any], gib: float, tokens: int
) -> None:
    """The pool is printed to 0.01 GiB; the tokens must lie inside that, give or take a block of every group."""
    d = pm.deploy(model, node="8x-h100-sxm", engine=f"vllm=={version}", tp=tp, **keywords)
    rank = place(d).rank_facts()[0]
    lay = layout(d.options, d.facts, rank)
    sizes = (gib - 0.006, gib + 0.006)
    low, high = (printed_tokens(d.options, lay, int(size * GIB // lay.block_bytes)) for size in sizes)
    block = tokens / max(1, int(gib * GIB // lay.block_bytes)) * lay.groups
    assert low - block <= tokens <= high + block


def test_groups_of_a_hybrid() -> None:
    """Gemma 3 27B: 10 full and 52 sliding layers are one and six groups of ten."""
    d = pm.deploy("gemma-3-27b", node="1x-h100-sxm", engine="vllm==0.19.0", context=8192)
    lay = layout(d.options, d.facts, place(d).rank_facts()[0])
    assert sorted((kind.layers, kind.groups) for kind in lay.kinds) == [(10, 1), (52, 6)]
    assert lay.block_bytes == 10 * 16 * 8192


def test_the_block_of_a_recurrent_hybrid_holds_a_state() -> None:
    """vLLM 0.23, Qwen3.6-27B, two draft tokens, FP8 KV: blocks of 1,600 tokens, 17 and three times 17 layers."""
    d = pm.deploy("qwen3.6-27b", node="1x-h200-sxm", engine="vllm==0.22.1", kv_dtype="fp8", speculative="mtp:2")
    lay = layout(d.options, d.facts, place(d).rank_facts()[0])
    assert {kind.tokens for kind in lay.kinds} == {1600}
    assert lay.groups == 4
    assert lay.block_bytes == 17 * 1600 * 2048


def test_before_the_hybrid_manager_sliding_layers_cache_everything() -> None:
    versions = ("vllm==0.8.5", "vllm==0.19.0")
    found = [pm.deploy("gemma-2-9b", node="1x-h100-sxm", engine=version, context=8192) for version in versions]
    assert [layout(d.options, d.facts, place(d).rank_facts()[0]).groups for d in found] == [1, 2]


def test_capacity_is_not_the_printed_number() -> None:
    """Gemma 3 27B prints 36,560 tokens under 0.19 and holds more sequences of 8,192 than that divides into."""
    report = pm.memory(pm.deploy("gemma-3-27b", node="1x-h100-sxm", engine="vllm==0.19.0", memory_fraction=0.95,
                                 context=32768, max_sequences=1024))  # fmt: skip
    assert report.max_sequences_at_context > 1.5 * report.kv_tokens / 32768
    assert report.kv_tokens_total >= report.max_sequences_at_context * 32768


def test_scout_starts_with_less_than_one_request() -> None:
    """Chunks bound the check and not the pool: 5.24 M tokens of context start with 3.92 M in the log line."""
    report = pm.memory(pm.deploy("llama-4-scout", node="8x-h200-sxm", engine="vllm==0.12.0", tp=8, context=5242880))
    assert report.fits
    assert report.kv_tokens < 5242880
    d = report.deployment
    rank = place(d).rank_facts()[0]
    assert sequence_bytes(d.options, rank, layout(d.options, d.facts, rank)) < 5242880 * rank.kv_bytes_per_token


@pytest.mark.parametrize(("tokens", "chunk", "version", "gib"),
                         [(393216, 8192, "0.21.0", 6.75), (1048576, 16384, "0.28.0", 23.32)])  # fmt: skip
def test_one_sequence_of_deepseek_v4(tokens: int, chunk: int, version: str, gib: float) -> None:
    """The padding of its pages was derived from these two refusals of V4-Pro and one of V4-Flash."""
    d = pm.deploy("deepseek-v4-pro", node="8x-b300-sxm", engine=f"vllm=={version}", tp=8, context=tokens,
                  prefill_chunk=chunk, kv_dtype="fp8")  # fmt: skip
    rank = place(d).rank_facts()[0]
    needed = sequence_bytes(d.options, rank, layout(d.options, d.facts, rank)) / GIB
    assert needed == pytest.approx(gib, rel=0.05, abs=0)


# ---------------------------------------------------------------- verdicts

VERDICT_OF = [
    ("gpt-oss-20b", "1x-h100-sxm", "vllm==0.19.0", {"memory_fraction": 0.95, "context": 8192}, "oom_sampler"),
    ("gpt-oss-20b", "2x-h100-sxm", "vllm==0.19.0", {"tp": 2, "memory_fraction": 0.95, "context": 8192}, "oom_sampler"),
    ("gpt-oss-20b", "2x-h100-sxm", "vllm==0.19.0", {"tp": 2, "memory_fraction": 0.90, "context": 8192}, "fits"),
    ("llama-4-scout", "2x-h100-nvl", "vllm==0.8.5", {"tp": 2, "memory_fraction": 0.99, "context": 1000}, "oom_weights"),
    ("llama-4-scout", "8x-h200-sxm", "sglang==0.5.6", {"tp": 8, "memory_fraction": 0.65, "context": 10_000_000,
                                                     "cuda_graphs": False}, "oom_request_table"),
    ("qwen3-8b", "1x-rtx-3090", "vllm==0.11.0", {"context": 40960}, "kv_too_small"),
    ("qwen3-32b", "1x-rtx-3090", "vllm==0.19.0", {}, "oom_weights"),
    ("qwen3-next-80b-a3b", "2x-h200-sxm", "vllm==0.25.1", {"tp": 2, "max_sequences": 4096}, "state_slots"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "node", "engine", "keywords", "verdict"), VERDICT_OF, ids=lambda value: str(value))
def test_verdict_of_a_launch(model: str, node: str, engine: str, keywords: dict[str, Any], verdict: str) -> None:
    report = pm.memory(pm.deploy(model, node=node, engine=engine, **keywords), hints=False)
    assert report.verdict == verdict, report.pool.reason


def test_states_share_sglang_s_pool() -> None:
    """0.9 of what the KV cache gets goes to recurrent states, and windows keep 0.8 of the tokens."""
    d = pm.deploy("qwen3-next-80b-a3b", node="4x-h100-sxm", engine="sglang==0.5.9", tp=4)
    pool, rank = pm.memory(d).pool, place(d).rank_facts()[0]
    assert pool.tokens * rank.kv_bytes_per_token == pytest.approx(pool.pool_bytes[0] / 1.9, rel=0.01, abs=0)
    d = pm.deploy("gpt-oss-120b", node="4x-h100-sxm", engine="sglang==0.5.9", tp=4)
    pool, rank = pm.memory(d).pool, place(d).rank_facts()[0]
    assert pool.pool_bytes[0] / pool.tokens == pytest.approx(0.9 * rank.kv_bytes_per_token, rel=1e-4, abs=0)


# ---------------------------------------------------------------- load lines


def test_what_loading_adds() -> None:
    """Scout's rotary table of 10 M positions; 2 MiB a layer of Qwen2.5-7B; the padded experts of gpt-oss."""
    scout, qwen, oss = (
        place(pm.deploy(model, node="8x-h100-sxm", engine="vllm==0.19.0", tp=tp)).parts
        for model, tp in (("llama-4-scout", 8), ("qwen2.5-7b", 1), ("gpt-oss-20b", 1))
    )
    assert scout["rotary tables"][0] == 2.5 * GIB
    assert qwen["allocator rounding"][0] == 28 * 2 * MIB
    assert 0.08 < oss["padding of experts"][0] / oss["experts"][0] < 0.1


@pytest.mark.parametrize(("mib", "added"), [(259, 1.0), (129.5, 0.5), (24.5, 0.0), (9.0, 0.0), (16.0, 0.0)])
def test_the_allocator_rounds_up_to_2_mib(mib: float, added: float) -> None:
    assert rounding_bytes(mib * MIB) == added * MIB


# ---------------------------------------------------------------- reading logs

VLLM_NEW = """
INFO [core.py] Initializing a V1 LLM engine (v0.19.0) with config: model='org/model'
(EngineCore pid=1) INFO Model loading took 14.99 GiB memory and 8.123 seconds
INFO Available KV cache memory: 58.11 GiB
INFO GPU KV cache size: 476,016 tokens
INFO Maximum concurrency for 8,192 tokens per request: 58.11x
INFO Graph capturing finished in 9 secs, took 0.91 GiB
INFO Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory utilization is (0.95, 75.23 GiB). \
Actual usage is 14.99 GiB for weight, 1.89 GiB for peak activation, 0.25 GiB for non-torch memory, and 0.91 \
GiB for CUDAGraph memory.
"""
VLLM_ONE_LINE = "INFO GPU KV cache size: 1,048,576 tokens, Maximum concurrency for 262,144 tokens per request: 4.00x\n"
VLLM_V0 = """
INFO Loading model weights took 14.9888 GB
INFO the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.90) = 21.22GiB
INFO model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes 2.07GiB; \
the rest of the memory reserved for KV Cache is 3.81GiB.
INFO # cuda blocks: 1952, # CPU blocks: 2048
ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache \
(23648).
"""
VLLM_REFUSES = """
ValueError: To serve at least one request with the model's max seq len (40960), (5.62 GiB KV cache is needed, which is \
larger than the available KV cache memory (4.50 GiB). Based on the available memory, the estimated \
maximum model length is 32768.
"""
SGLANG_OLD = """
[2025-02-04 10:00:00 TP0] Init torch distributed ends. mem usage=0.10 GB
[2025-02-04 10:00:01 TP0] Load weight begin. avail mem=22.76 GB
[2025-02-04 10:01:01 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, \
avail mem=8.37 GB, mem usage=14.39 GB.
[2025-02-04 10:01:02 TP0] KV Cache is allocated. #tokens: 105531, K size: 2.82 GB, V size: 2.82 GB
[2025-02-04 10:01:02 TP0] Memory pool end. avail mem=1.68 GB
[2025-02-04 10:01:20 TP0] max_total_num_tokens=105531, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=2049, context_len=131072, available_gpu_mem=1.10 GB
"""
SGLANG_NEW = """
[2026-05-01 10:00:01] Load weight end. elapsed=33.1 s, type=Qwen3ForCausalLM, quant=fp8, fmt=auto, \
avail mem=46.10 GB, mem usage=31.2 GB.
[2026-05-01 10:00:02] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 187069, KV size: 12.50 GB
[2026-05-01 10:00:30] Capture target decode CUDA graph end. bs=[1, 2], elapsed=9.1 s, mem usage=0.70 GB, \
avail mem=20.1 GB.
[2026-05-01 10:00:31] Capture target prefill CUDA graph end. elapsed=9.1 s, mem usage=0.30 GB, avail mem=19.8 GB.
"""
TRTLLM = """
Memory used after loading model weights (inside torch) in memory usage profiling: 14.96 GiB
Peak memory during memory usage profiling (torch + non-torch): 20 GiB, available KV cache memory when calculating max \
tokens: 17.83 GiB, fraction is set 0.9, kv size per token is 131072. device total memory 31.84 GiB, etc
[MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (131456).
"""
READ = [
    (VLLM_NEW, "vllm", {"version": "0.19.0", "weights_gib": 14.99, "kv_available_gib": 58.11, "kv_tokens": 476016,
                        "concurrency": 58.11, "context": 8192, "graph_gib": 0.91, "total_gib": 79.19, "fraction": 0.95,
                        "before_weights_gib": 78.68, "activation_gib": 1.89, "non_torch_gib": 0.25}),
    (VLLM_ONE_LINE, "vllm", {"kv_tokens": 1048576, "context": 262144, "concurrency": 4.0}),
    (VLLM_V0, "vllm", {"weights_gib": 14.99, "total_gib": 23.58, "fraction": 0.9, "non_torch_gib": 0.35,
                       "activation_gib": 2.07, "kv_available_gib": 3.81, "kv_blocks": 1952, "kv_tokens": 23648}),
    (VLLM_REFUSES, "vllm", {"needed_gib": 5.62, "kv_available_gib": 4.5, "longest_context": 32768, "context": 40960}),
    (SGLANG_OLD, "sglang", {"before_weights_gib": 22.76, "after_weights_gib": 8.37, "weights_gib": 14.39,
                            "kv_available_gib": 5.64, "kv_tokens": 105531, "after_pool_gib": 1.68, "max_running": 2049,
                            "context": 131072, "free_gib": 1.1}),
    (SGLANG_NEW, "sglang", {"weights_gib": 31.2, "kv_tokens": 187069, "kv_available_gib": 12.5, "graph_gib": 1.0}),
    (TRTLLM, "tensorrt-llm", {"weights_gib": 14.96, "fraction": 0.9, "total_gib": 31.84, "kv_available_gib": 16.05,
                              "kv_tokens": 131456}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "engine", "figures"), READ, ids=["v1", "0.28", "v0", "refusal", "old", "new", "trt"])
def test_figures_of_a_log(text: str, engine: str, figures: dict[str, Any]) -> None:
    log = parse_log(text.splitlines())
    assert log.engine == engine
    assert {name: pytest.approx(getattr(log, name)) if isinstance(value, float) else getattr(log, name)
            for name, value in figures.items()} == figures  # fmt: skip


@pytest.mark.parametrize("text", [VLLM_NEW, SGLANG_OLD, TRTLLM])
def test_half_a_log_is_no_error(text: str) -> None:
    for cut in range(0, len(text), 7):
        whole, part = parse_log(text.splitlines()).known, parse_log(text[:cut].splitlines()).known
        assert part.keys() <= whole.keys()


def test_errors_of_a_log_are_kept_once() -> None:
    log = parse_log(VLLM_REFUSES.splitlines() * 3)
    assert len(log.errors) == 1
    assert "5.62 GiB KV cache is needed" in log.errors[0]
    assert parse_log(["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB"]).errors


def test_hostile_logs(tmp_path: Path) -> None:
    assert parse_log(["KV cache size: " + "9," * 10**6 + " tokens", "\0" * 1000, "took " * 10**5]).known == {}

    def endless() -> Iterator[str]:
        while True:
            yield "x" * 2**20

    with pytest.raises(BadInput, match="longer than"):
        parse_log(endless())
    large = tmp_path / "large.log"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(BadInput, match="large.log"):
        read_log(large)
    with pytest.raises(BadInput, match="cannot be read"):
        read_log(tmp_path / "none.log")
    (tmp_path / "bytes.log").write_bytes(b"\xff\xfe\x00" + VLLM_NEW.encode())
    assert read_log(tmp_path / "bytes.log").kv_tokens == 476016


def test_a_log_beside_the_prediction() -> None:
    """Llama 3.1 8B on an H100, one of the logs that rows were fitted on: every term within 0.05 GiB."""
    d = pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="vllm==0.19.0", memory_fraction=0.95, context=8192)
    report = pm.memory(d)
    log = parse_log(VLLM_NEW.splitlines())
    found = terms(report, log)
    assert len(found) >= 9
    assert all(abs(term.difference) < 0.05 for term in found if term.unit == "GiB")
    assert culprit(found) is None
    heavier = parse_log(VLLM_NEW.replace("14.99", "17.50").splitlines())
    worst = culprit(terms(report, heavier))
    assert worst is not None and worst.name == "weights"
    text = Beside(report, heavier).text()
    assert "most of the difference: weights, -2.51 GiB" in text
    assert max(map(len, text.splitlines())) <= 80
    assert Beside(report, heavier).to_dict()["log"]["differs_most"] == "weights"


# ---------------------------------------------------------------- the scoreboard


@pytest.fixture(scope="module")
def scores() -> MemoryValidation:
    return validate_memory()


def share(scores: MemoryValidation, quantity: str, use: str) -> Any:
    return next(s for s in scores.shares if (s.quantity, s.use) == (quantity, use))


def test_rows_say_why_they_are_left_out() -> None:
    rows = load_rows("memory-logs")
    assert len({row["id"] for row in rows}) == len(rows) > 250
    for row in rows:
        assert row["source"] and row["use"] in ("usable", "excluded"), row["id"]
        assert bool(row["judged"]) == (row["use"] == "usable"), row["id"]
        assert row["reason"] or row["use"] == "usable", row["id"]
        assert row["use"] == "excluded" or row["catalog"] in names("model"), row["id"]


def test_fit_and_check_have_no_source_in_common() -> None:
    """A source is one document about one model."""
    split: dict[tuple[str, str], set[str]] = {}
    for row in load_rows("memory-logs"):
        if row["use"] == "usable":
            split.setdefault((row["source"], row["catalog"]), set()).add(row["split"])
    assert all(len(uses) == 1 for uses in split.values())
    assert {use for uses in split.values() for use in uses} == {"fit", "check"}


@pytest.mark.parametrize(("use", "weights"), [("check", 0.90), ("all", 0.90), ("others", 0.75)])
def test_logs_are_met(scores: MemoryValidation, use: str, weights: float) -> None:
    """KV tokens within 4 % in the median and 12 % in 90 %, the verdict in 95 %, weights within 1 % in 90 %.

    Without the document that most rows come from, weights are not met as often as that: this keeps what is reached.
    """
    assert share(scores, "weights", use).hits >= weights
    kv = share(scores, "kv", use)
    assert kv.median_error <= 0.04
    assert kv.hits >= 0.90
    assert share(scores, "verdict", use).hits >= 0.95


@needs_page
def test_every_miss_is_explained(scores: MemoryValidation) -> None:
    text = PAGE.read_text()
    for row in scores.rows:
        assert row.hit or f"`{row.id}`" in text, f"docs/memory.md does not say why {row.id} is missed"


@needs_page
def test_the_page_is_current(scores: MemoryValidation) -> None:
    assert scores.text() in PAGE.read_text(), "perfmodel validate memory --write docs/memory.md"


@pytest.mark.parametrize(("text", "word"), [("", "auto"), ("auto (bf16)", "auto"), ("fp8 (47,104 B a token)", "fp8")])
def test_kv_words(text: str, word: str) -> None:
    assert kv_word(text) == word


@pytest.mark.parametrize(("text", "word"), [("", None), ("off", None), ("mtp, 3 tokens", "mtp:3"), ("MTP", "mtp:1")])
def test_draft_words(text: str, word: str | None) -> None:
    assert draft_word(text) == word
