"""What deploy refuses and with which rule, what it fills in and says so, and the launch command there and back."""

from dataclasses import fields
from typing import Any

import pytest
from cases import CASE_NODE, kimi, toy

import perfmodel as pm
from perfmodel.engines.options import Options
from perfmodel.errors import BadInput, IllegalDeployment, PerfModelError, QuestionError, UnknownName

SGLANG, VLLM = "sglang==0.5.23", "vllm==0.33.0"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("keyword", "nearest"),
    [("kv_dtyp", "kv_dtype"), ("memory_fracton", "memory_fraction"), ("max_num_sequences", "max_sequences"),
     ("cuda_graph", "cuda_graphs"), ("ttp", "tp"), ("dp_atention", "dp_attention"), ("kv-dtype", "kv_dtype")],
)  # fmt: skip
def test_unknown_keywords_are_refused_with_the_nearest(keyword: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match="unknown deploy keyword") as refusal:
        kimi(**{keyword: 1})
    assert nearest in refusal.value.message.partition("nearest: ")[2].split(", ")


@pytest.mark.parametrize(
    ("question", "nearest"),
    [({"model": "kimi-k26"}, None), ({"model": "kimi-k2.66"}, "kimi-k2.6"), ({"node": "8x-rtx-pro-6000-serve"}, "rtx"),
     ({"engine": "sglan"}, "sglang"), ({"engine": "vlm"}, "vllm"), ({"quantization": "fp9"}, "fp8"),
     ({"kv_dtype": "fp7"}, "fp8"), ({"prompts": "randm"}, "random"), ({"attention_backend": "tritn"}, "triton"),
     ({"calibration": "rtx-pro-6000-serve"}, "rtx-pro-6000-server")],
)  # fmt: skip
def test_unknown_names_are_refused_with_the_nearest(question: dict[str, Any], nearest: str | None) -> None:
    asked = {"model": "kimi-k2.6", "node": CASE_NODE, "engine": SGLANG, "tp": 8, **question}
    model = asked.pop("model")
    if nearest is None:  # an alias
        assert pm.deploy(model, **asked).model.name == "kimi-k2.6"
        return
    with pytest.raises(UnknownName) as refusal:
        pm.deploy(model, **asked)
    assert nearest in refusal.value.message


@pytest.mark.parametrize(
    "keywords",
    [{"tp": 0}, {"tp": -8}, {"tp": 1.5}, {"tp": "eight"}, {"tp": True}, {"pp": 0}, {"memory_fraction": 0},
     {"memory_fraction": 1.01}, {"memory_fraction": float("nan")}, {"memory_fraction": 92}, {"context": 0},
     {"max_sequences": 0}, {"prefix_hit_rate": 1.0}, {"prefix_hit_rate": -0.1}, {"expert_skew": 0},
     {"expert_skew": float("inf")}, {"power_limit": -1}, {"layers_per_stage": "7,7"}, {"async_depth": -1}],
)  # fmt: skip
def test_values_out_of_range_are_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refusal:
        kimi(SGLANG, **{"tp": 8, **keywords})
    assert next(iter(keywords)) in refusal.value.message


@pytest.mark.parametrize(
    ("engine", "keywords", "rule"),
    [
        (SGLANG, {"tp": 16}, "needs 16 GPUs; 8x-rtx-pro-6000-server has 8"),
        (SGLANG, {"tp": 4, "pp": 4}, "needs 16 GPUs"),
        (SGLANG, {"tp": 8, "ep": 3}, "ep=3 does not divide tp=8"),
        (SGLANG, {"tp": 8, "dp_attention": 3}, "dp_attention=3 does not divide tp=8"),
        (SGLANG, {"tp": 6}, "64 heads over 6 ranks"),
        (SGLANG, {"tp": 8, "dcp": 3}, "dcp=3 does not divide"),
        (SGLANG, {"pp": 8, "layers_per_stage": [8] * 8}, "with sum 61, got 8 with sum 64"),
        (SGLANG, {"pp": 8, "layers_per_stage": [31, 30]}, "8 numbers"),
        ("sglang==0.5.9", {"pp": 8}, "asserts that KimiK25ForConditionalGeneration"),
        ("sglang==0.5.6", {"pp": 8, "async_depth": 1, "patches": ["pp"]}, "no --pp-async-batch-depth"),
        ("sglang==0.5.10", {"tp": 8, "dcp": 2}, "no decode context parallelism"),
        (VLLM, {"tp": 8, "ep": 4}, "over all ranks or none"),
        (VLLM, {"pp": 8, "async_depth": 2}, "SGLang's --pp-async-batch-depth"),
        (VLLM, {"pp": 8, "max_micro_batch": 1}, "no limit for one micro-batch"),
        ("vllm==0.9.2", {"tp": 8, "dcp": 8}, "no decode context parallelism"),
    ],
)
def test_what_an_engine_cannot_run_is_refused_with_its_rule(engine: str, keywords: dict[str, Any], rule: str) -> None:
    with pytest.raises(IllegalDeployment) as refusal:
        kimi(engine, **keywords)
    assert rule in refusal.value.message
    assert "\n" not in refusal.value.message
    assert not refusal.value.message.endswith(".")
    assert isinstance(refusal.value, QuestionError) and refusal.value.exit_code == 2


def test_dense_models_have_no_experts_to_spread() -> None:
    for keywords in ({"tp": 8, "ep": 8}, {"tp": 8, "dp_attention": 8}):
        with pytest.raises(IllegalDeployment):
            pm.deploy("llama-3.1-8b", node=CASE_NODE, engine=VLLM, **keywords)


def test_heads_that_come_out_uneven_are_refused() -> None:
    for sizes in ({"heads": 40, "kv_heads": 8}, {"heads": 12, "kv_heads": 12}):
        with pytest.raises(IllegalDeployment, match="heads"):
            pm.deploy(toy(**sizes), node="16x-rtx-pro-6000-server", engine=VLLM, tp=16)


def test_a_quantisation_group_is_not_cut() -> None:
    """Groups of 32 along an expert of 2048: up to 64 ranks."""
    assert kimi("sglang==0.5.10", node="64x-rtx-pro-6000-server", tp=64).options.tp == 64
    with pytest.raises(IllegalDeployment):
        kimi("sglang==0.5.10", node="128x-rtx-pro-6000-server", tp=128)


def test_a_context_beyond_the_model_s_is_refused_or_listed() -> None:
    try:
        d = kimi(VLLM, tp=8, context=10**7)
    except PerfModelError as refusal:
        assert "context" in str(refusal)
    else:
        assert any(line.startswith("context") for line in d.assumptions)


def test_what_does_not_fit_still_deploys() -> None:
    d = pm.deploy("kimi-k2.6", node="1x-rtx-pro-6000-server")
    assert not pm.memory(d, hints=False).fits
    assert pm.step(d, batch=1).seconds > 0


# ---------------------------------------------------------------- defaults and versions

# what an engine decides where nobody says; the rest means "off", "as in the model file" or "as calibrated"
DECIDED = (
    "kv_dtype", "context", "memory_fraction", "max_sequences", "prefill_chunk", "page_size", "cuda_graphs",
    "max_graph_batch", "attention_backend", "moe_backend", "all_reduce",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["sglang==0.5.10", SGLANG, "vllm==0.6.6.post1", VLLM])
@pytest.mark.parametrize(
    ("split", "keyword"),
    [*((("tp", 8), keyword) for keyword in (*DECIDED, "nccl")),
     *((("pp", 8), keyword) for keyword in (*DECIDED, "max_micro_batch", "async_depth"))],
)  # fmt: skip
def test_every_default_is_listed(engine: str, split: tuple[str, int], keyword: str) -> None:
    d = kimi(engine, **dict([split]))
    assert [line for line in d.assumptions if line.startswith(f"{keyword}:")], d.assumptions


@pytest.mark.parametrize("engine", ["sglang==0.5.10", VLLM])
def test_what_was_asked_for_is_no_assumption(engine: str) -> None:
    asked: dict[str, Any] = {"context": 32768, "memory_fraction": 0.9, "max_sequences": 64, "prefill_chunk": 4096}
    asked |= {"kv_dtype": "fp8", "cuda_graphs": False}
    d = kimi(engine, tp=8, **asked)
    assert all(getattr(d.options, key) == value for key, value in asked.items())
    assert not [line for line in d.assumptions for key in asked if line.startswith(f"{key}:")]


@pytest.mark.parametrize(
    ("engine", "version", "assumed"),
    [
        ("vllm", "0.33.0", "no version given"),
        ("vllm==0.24.0", "0.22.1", "0.24.0 is not one of the versions read; the rules of 0.22.1 apply"),
        ("vllm==0.2.0", "0.6.6.post1", "older than all versions read"),
        ("vllm==9.9", "0.33.0", "not one of the versions read"),
        ("sglang==0.5.12", "0.5.11", "the rules of 0.5.11 apply"),
        ("SGLang==0.5.10", "0.5.10", None),
    ],
)
def test_versions_take_the_newest_rules_that_are_not_newer(engine: str, version: str, assumed: str | None) -> None:
    d = kimi(engine, tp=8)
    assert d.options.version == version
    about = [line for line in d.assumptions if line.startswith("engine:")]
    assert [assumed in line for line in about] == ([True] if assumed else [])


def test_idle_gpus_and_patches_and_calibrations_are_listed() -> None:
    lines = kimi("sglang==0.5.9", tp=2, pp=2, patches=["pp"]).assumptions
    for part in ("4 of 8 GPUs idle", "patch", "calibration: "):
        assert any(part in line for line in lines), part


@pytest.mark.parametrize("word", ["bf16", "bfloat16", "BFloat16"])
def test_words_of_one_kv_dtype_are_one(word: str) -> None:
    assert kimi(VLLM, tp=8, kv_dtype=word).options.kv_dtype == "bf16"


@pytest.mark.parametrize(
    ("quantization", "bytes_a_weight"),
    [("fp8", 1 + 4 / 16384), ("nvfp4", 0.5625), ("mxfp4", 0.53125), ("awq", 0.51953125), ("bf16", 2.0)],
)
def test_quantization_changes_the_experts(quantization: str, bytes_a_weight: float) -> None:
    from perfmodel.placement import place

    d = kimi(VLLM, tp=8, quantization=quantization)
    assert place(d).parts["experts"][0] == pytest.approx(60 * 384 * 3 * 7168 * 2048 * bytes_a_weight / 8)
    assert any("quantization" in line for line in d.assumptions)


# ---------------------------------------------------------------- the launch command

LAUNCHES: list[tuple[str, dict[str, Any]]] = [
    ("sglang==0.5.10", {"pp": 8, "cuda_graphs": False, "max_sequences": 64, "memory_fraction": 0.92}),
    ("sglang==0.5.10", {"pp": 8, "max_micro_batch": 1, "async_depth": 2}),
    ("sglang==0.5.10", {"tp": 8, "dp_attention": 8, "ep": 8}),
    ("sglang==0.5.10", {"pp": 8, "layers_per_stage": [8, 8, 8, 8, 8, 7, 7, 7]}),
    (SGLANG, {"tp": 8, "dp_attention": 4, "ep": 2, "kv_dtype": "fp8", "context": 65536}),
    (SGLANG, {"tp": 8, "attention_backend": "flashinfer_mla", "prefill_chunk": 4096, "max_graph_batch": 64}),
    (VLLM, {"tp": 8, "kv_dtype": "fp8", "memory_fraction": 0.94, "context": 131072}),
    (VLLM, {"tp": 8, "ep": 8}),
    (VLLM, {"tp": 8, "dp_attention": 8, "ep": 8}),
    (VLLM, {"tp": 8, "dp_attention": 2}),
    (VLLM, {"tp": 4, "pp": 2, "cuda_graphs": False, "prefill_chunk": 4096, "max_sequences": 128}),
    (VLLM, {"pp": 8, "layers_per_stage": [8, 8, 8, 8, 8, 7, 7, 7]}),
    (VLLM, {"tp": 8, "dcp": 8, "speculative": "eagle3:3"}),
]


@pytest.mark.parametrize(("engine", "keywords"), LAUNCHES, ids=lambda value: str(value).replace(" ", ""))
def test_the_command_says_all_that_was_asked_for(engine: str, keywords: dict[str, Any]) -> None:
    d = kimi(engine, **keywords)
    model, said, _ = d.engine.parse_command(d.command())
    assert model == "moonshotai/Kimi-K2.6"
    again = pm.deploy(model, node=CASE_NODE, engine=engine, **said)
    named = {f.name: (getattr(again.options, f.name), getattr(d.options, f.name)) for f in fields(Options)}
    assert {name: pair for name, pair in named.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("engine", ["sglang==0.5.10", SGLANG, VLLM])
def test_the_reader_of_commands_knows_every_flag_that_is_written(engine: str) -> None:
    _, _, unknown = kimi(engine, tp=8, memory_fraction=0.9).engine.parse_command(kimi(engine, tp=8).command())
    assert unknown == ()


@pytest.mark.parametrize("engine", [SGLANG, VLLM])
def test_the_command_starts_all_copies_of_a_dense_model(engine: str) -> None:
    """`--dp-size` of SGLang and `--data-parallel-size` of vLLM are copies there, as `dp` is."""
    d = pm.deploy("llama-3.1-8b", node=CASE_NODE, engine=engine, tp=2, dp=4)
    model, said, _ = d.engine.parse_command(d.command(), moe=False)
    assert pm.deploy(model, node=CASE_NODE, engine=engine, **said).gpus == d.gpus == 8


def test_commands_are_those_of_the_version() -> None:
    groups = {"tp": 8, "dp_attention": 8, "ep": 8}
    assert "--dp-size 8" in kimi("sglang==0.5.10", **groups).command()
    assert "--enable-dp-attention" in kimi("sglang==0.5.10", **groups).command()
    assert "--attn-dp-size 8" in kimi(SGLANG, **groups).command()
    assert "--tensor-parallel-size 1 --data-parallel-size 8 --enable-expert-parallel" in kimi(VLLM, **groups).command()
    assert "--disable-cuda-graph" in kimi("sglang==0.5.10", tp=8, cuda_graphs=False).command()
    assert "--cuda-graph-backend-decode disabled" in kimi(SGLANG, tp=8, cuda_graphs=False).command()
    assert "--enforce-eager" in kimi(VLLM, tp=8, cuda_graphs=False).command()


def test_the_deployment_in_words() -> None:
    answer = kimi("sglang==0.5.10", tp=8, ep=4).to_dict()
    assert answer["strategy"] == "TP8+EP4"
    assert (answer["model"], answer["node"], answer["engine"], answer["gpus"]) == (
        "kimi-k2.6", CASE_NODE, "sglang==0.5.10", 8,
    )  # fmt: skip
    assert answer["options"]["ep"] == 4
