"""Every model of the zoo beside the size that its maker prints, beside its own configuration, and beside its names."""

import csv
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfmodel.catalog import ModelArch, load_model, names
from perfmodel.catalog.hf import raw_from_hf
from perfmodel.catalog.load import validate
from perfmodel.catalog.lookup import fold
from perfmodel.deployment.facts import heads_and_cache, main_attention
from perfmodel.placement.checkpoint import expected_bytes
from perfmodel.placement.inventory import parameter_count

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "tests" / "tables"
UNITS = {"M": 1e6, "B": 1e9, "T": 1e12, "GB": 1e9, "GiB": 2.0**30}


@cache
def configs() -> dict[str, dict[str, Any]]:
    lines = (TABLES / "hf_configs.jsonl").read_text().splitlines()
    return {entry["id"]: entry for entry in map(json.loads, lines)}


def rows(name: str) -> list[dict[str, str]]:
    with (TABLES / name).open(newline="") as file:
        return list(csv.DictReader(file))


def size_of(model: ModelArch, what: str) -> float:
    table = expected_bytes(model)
    return {
        "parameters": lambda: parameter_count(model),
        "parameters with MTP": lambda: parameter_count(model, mtp=True),
        "parameters of the text model": lambda: parameter_count(model, vision=False),
        "bytes": lambda: sum(table.values()) - table.get("mtp", 0.0),
        "bytes with MTP": lambda: sum(table.values()),
    }[what]()


@pytest.mark.parametrize("row", rows("model_sizes.csv"), ids=lambda row: f"{row['model']} {row['what']}")
def test_the_size_that_the_maker_prints(row: dict[str, str]) -> None:
    """To half a printed digit; where the maker counts otherwise, `gap` says by how much and `reason` why."""
    unit, printed = UNITS[row["unit"]], float(row["printed"])
    ours = size_of(load_model(row["model"]), row["what"]) / unit + float(row["gap"])
    assert bool(float(row["gap"])) == bool(row["reason"])
    assert ours == pytest.approx(printed, rel=0.5 * float(row["digit"]) / printed * 1.0001, abs=0), row["source"]


def test_there_are_enough_architectures_and_sizes() -> None:
    assert len(names("model")) >= 45
    assert len({row["model"] for row in rows("model_sizes.csv")}) >= 60


def make_models() -> ModuleType:
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        import make_models as script  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    return script


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="the script lies in the checkout alone")
@pytest.mark.parametrize("row", rows("model_files.csv"), ids=lambda row: row["name"])
def test_a_file_is_what_its_configuration_gives(row: dict[str, str]) -> None:
    text = make_models().text_of(row, configs()[row["config"]])
    assert (ROOT / "models" / f"{row['name']}.yaml").read_text() == text


@pytest.mark.parametrize("name", sorted(configs()))
def test_every_published_configuration_imports(name: str) -> None:
    entry = configs()[name]
    raw = raw_from_hf(entry["config"], hf_id=name, side=entry.get("quantization"))
    model = validate(ModelArch, "model", raw, name)
    assert parameter_count(model) > 1e8
    assert model.layers == sum(block.layers for block in model.blocks)


# transformers 5.24.0, every parameter of the model built on the meta device, tied weights once, buffers not counted;
# ours counts the FP32 score corrections of the routers, which are buffers there
EXACT = {
    "Qwen/Qwen3-235B-A22B": 235_093_634_560, "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
    "Qwen/Qwen3.5-397B-A17B": 396_802_360_816, "google/gemma-4-26B-A4B": 25_805_933_872,
    "openai/gpt-oss-120b": 116_829_156_672, "nvidia/Nemotron-H-56B-Base-8K": 56_324_350_464,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112, "meta-llama/Meta-Llama-3.1-405B": 405_853_388_800,
    "deepseek-ai/DeepSeek-V3.2": 671_877_929_216 + 14_848, "deepseek-ai/DeepSeek-V4-Pro": 1_572_997_179_491 + 22_272,
    "zai-org/GLM-5.2": 743_377_000_704 + 19_200, "MiniMaxAI/MiniMax-M2.5": 228_689_748_992 + 15_872,
    "moonshotai/Kimi-K2.5": 1_026_879_353_328 + 23_040, "XiaomiMiMo/MiMo-V2-Flash": 308_778_768_832 + 12_032,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_968_960 + 24_576,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(EXACT))
def test_parameters_to_the_last_one(name: str) -> None:
    raw = raw_from_hf(configs()[name]["config"], hf_id=name)
    assert parameter_count(validate(ModelArch, "model", raw, name)) == EXACT[name]


# bytes of KV cache a token and GPU, BF16, at TP1: public start-up logs
@pytest.mark.parametrize(("name", "per_token"), [
    ("kimi-k2-thinking", 70_272), ("deepseek-v2-lite", 31_104), ("kimi-vl-a3b", 31_104), ("llama-3.1-8b", 131_072),
    ("qwen2.5-7b", 57_344), ("qwen3-8b", 147_456), ("qwen3-14b", 163_840), ("qwen3-32b", 262_144),
    ("mistral-small-3.1-24b", 163_840), ("phi-4", 204_800), ("qwen3-30b-a3b", 98_304), ("qwen2.5-72b", 4 * 81_920),
    ("mixtral-8x7b", 2 * 65_536), ("minimax-m2", 4 * 63_488), ("gpt-oss-120b", 4 * 18_432),
    ("qwen3-coder-480b-a35b", 253_952), ("llama-4-scout", 8 * 24_576), ("glm-4.7", 4 * 2 * 47_104),
    ("qwen3.6-27b", 65_536),
])  # fmt: skip
def test_cache_of_a_token(name: str, per_token: int) -> None:
    from perfmodel.placement import kv_bytes_per_token_layer

    model = load_model(name)
    ours = sum(b.layers * kv_bytes_per_token_layer(model.attention.get(b.attention), "bf16", 1) for b in model.blocks)
    assert ours == per_token


def test_cache_of_sparse_attention() -> None:
    """GLM-5.1: (656 + 132) x 78 with the packed FP8 latents; with the MTP layer one more (public start-up logs)."""
    from perfmodel.placement import kv_bytes_per_token_layer

    model = load_model("glm-5.1")
    per_layer = kv_bytes_per_token_layer(model.attention["mla"], "fp8_ds_mla", 8)
    assert (per_layer * model.layers, per_layer * (model.layers + 1)) == (61_464, 62_252)


def test_state_of_a_sequence() -> None:
    """Qwen3.5 27B: 48 heads of 128 x 128, and three columns of a convolution 10,240 wide; Nemotron 3 Nano by hand."""
    from perfmodel.placement import state_bytes_per_sequence_layer as state

    gdn, mamba = load_model("qwen3.5-27b").attention["gdn"], load_model("nemotron-3-nano-30b-a3b").attention["mamba"]
    assert state(gdn, 1) == 4 * 48 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 48 * 128)
    assert state(gdn, 4, draft_tokens=2) == (4 * 48 * 128 * 128 + 2 * 5 * (2 * 16 * 128 + 48 * 128)) / 4
    assert state(mamba, 2) == (4 * 64 * 64 * 128 + 2 * 3 * (64 * 64 + 2 * 8 * 128)) / 2
    assert state(load_model("llama-3.1-8b").attention["gqa"], 1) == state(None, 1) == 0


def test_windows() -> None:
    from perfmodel.placement import window_of

    gemma, scout = load_model("gemma-3-27b"), load_model("llama-4-scout")
    assert [window_of(gemma.attention[kind]) for kind in ("sliding", "gqa")] == [1024, None]
    assert window_of(scout.attention["chunked"]) == 8192
    assert sum(b.layers for b in gemma.blocks if b.attention == "gqa") == 10


@pytest.mark.parametrize("name", names("model"))
def test_facts_can_be_read_off_every_model(name: str) -> None:
    kind, heads, kv_heads, values = heads_and_cache(main_attention(load_model(name)))
    assert kind in ("mla", "gqa")
    assert heads >= kv_heads >= 1 and values > 0


@pytest.mark.parametrize(("words", "name"), [
    ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking"), ("nvidia/Kimi-K2.6-NVFP4", "kimi-k2.6-nvfp4"),
    ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"), ("qwen3_30b_a3b", "qwen3-30b-a3b"), ("DeepSeek-R1-0528", "deepseek-r1"),
    ("openai/gpt-oss-120b", "gpt-oss-120b"), ("GPT OSS 120B", "gpt-oss-120b"), ("zai-org/GLM-5.2-FP8", "glm-5.2-fp8"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "llama-3.3-nemotron-super-49b"),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"), ("google/gemma-3-27b-it", "gemma-3-27b"),
])  # fmt: skip
def test_names_as_people_type_them(words: str, name: str) -> None:
    assert load_model(words).name == name


def test_no_two_models_answer_to_one_name() -> None:
    seen: dict[str, str] = {}
    for name in names("model"):
        for word in {fold(name), *map(fold, load_model(name).aliases)}:
            assert seen.setdefault(word, name) == name, word
