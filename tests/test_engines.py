"""Rules of the engines against values worked by hand from their sources, and properties that hold for any launch."""

import csv
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import engines
from perfmodel.engines import activations as act
from perfmodel.engines import sglang_memory, vllm
from perfmodel.engines.options import Facts, Options
from perfmodel.errors import IllegalDeployment

MIB, GIB = 2.0**20, 2.0**30
ENGINES = ("vllm", "sglang", "tensorrt-llm")
FUNCTIONS = (
    "resolve", "check", "pipeline_split", "capture_sizes", "slots", "slot_limit", "fill", "max_running", "runtime_rows",
    "kv_pool", "all_reduce_backend", "layer_collectives", "step_collectives", "launch_command", "parse_command",
    "overlaps_host", "mixes_prefill",
)  # fmt: skip


def facts(mib: float = 97887, vision: bool = False, gpu: str = "some-gpu", **changes: Any) -> Facts:
    """Kimi K2 in plain numbers; with ``vision`` as the class with a tower of 27 layers of 1152."""
    base = Facts(
        gpu_memory_bytes=mib * MIB, compute_capability=9.0, gpu_name=gpu, full_nvlink=True, p2p=True, layers=61,
        hidden=7168, vocab=163840, max_context=262144, attention="mla", heads=64, kv_heads=1,
        kv_values_per_token_layer=576, experts=384, per_token=8, moe_intermediate=2048, dense_intermediate=18432,
        weight_dtype="bf16", weight_format="int4-g32", multimodal=vision, vision_layers=27 if vision else 0,
        vision_hidden=1152 if vision else 0,
        architecture="KimiK25ForConditionalGeneration" if vision else "DeepseekV3ForCausalLM",
    )  # fmt: skip
    return replace(base, **changes)


def rows() -> list[dict[str, str]]:
    with (Path(__file__).parent / "tables" / "engine_rules.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def asked(row: dict[str, str]) -> tuple[Any, Options, Facts]:
    """Engine module, options and facts of a row such as ``97887 tp=8 vision``."""
    module, version, _ = engines.get(row["engine"])
    mib, *words = row["arguments"].split()
    pairs = {key: value for key, has, value in (word.partition("=") for word in words) if has}
    keywords: dict[str, Any] = {key: int(value) for key, value in pairs.items() if value.isdigit()}
    keywords |= {"speculative": pairs["speculative"]} if "speculative" in pairs else {}
    options = Options(engine=row["engine"].partition("==")[0], version=version, **keywords)
    return module, options, facts(float(mib), "vision" in words, pairs.get("gpu", "some-gpu"))


def worked(rule: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [row for row in rows() if row["rule"] == rule], ids=lambda row: row["id"])


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split())


# ---------------------------------------------------------------- worked values


@worked("split")
def test_pipeline_split(row: dict[str, str]) -> None:
    module, version, _ = engines.get(row["engine"])
    layers, stages = numbers(row["arguments"])
    assert module.pipeline_split(layers, stages, version) == numbers(row["printed"])


@worked("fraction")
def test_default_memory_fraction(row: dict[str, str]) -> None:
    module, options, machine = asked(row)
    fraction = module.resolve(options, machine)[0].memory_fraction
    assert fraction == pytest.approx(float(row["printed"]), rel=0, abs=0.5001 * 10.0 ** -int(row["digits"]))


@worked("graphs")
def test_captured_sizes(row: dict[str, str]) -> None:
    module, options, machine = asked(row)
    sizes, printed = module.capture_sizes(module.resolve(options, machine)[0], machine), numbers(row["printed"])
    assert (sizes[: len(printed)] if row["digits"] == "first" else sizes[-len(printed) :]) == printed


@worked("bucket")
def test_defaults_from_gpu_memory(row: dict[str, str]) -> None:
    module, options, machine = asked(row)
    now = module.resolve(options, machine)[0]
    assert (now.prefill_chunk, now.max_graph_batch) == numbers(row["printed"])


@worked("batch")
def test_batch_defaults(row: dict[str, str]) -> None:
    module, options, machine = asked(row)
    now = module.resolve(options, machine)[0]
    assert (now.prefill_chunk, now.max_sequences) == numbers(row["printed"])


@worked("reduce")
def test_which_kernel_reduces(row: dict[str, str]) -> None:
    module, version, _ = engines.get(row["engine"])
    ranks, size = numbers(row["arguments"])
    options = Options(engine=row["engine"].partition("==")[0], version=version, tp=ranks)
    assert module.all_reduce_backend(options, facts(), ranks, size) == row["printed"]
    on_pcie = replace(facts(), full_nvlink=False)
    assert module.all_reduce_backend(options, on_pcie, ranks, size) == "nccl"


def test_vision_factor_of_kimi() -> None:
    assert sglang_memory.vision_factor(facts(vision=True)) == pytest.approx(0.90974, rel=0, abs=5e-6)


def test_table_of_requests_at_the_full_context_of_scout() -> None:
    """The failed allocations of sglang issue 5755 (80.04 GiB) and of a graph's block table at 2 M (4.00 GiB)."""
    assert act.request_table_bytes(2048, 10_485_760) == 2049 * 10_485_764 * 4
    assert round(act.request_table_bytes(2048, 10_485_760) / GIB, 2) == 80.04
    assert act.block_table_bytes(512, 2_097_152) == 4.0 * GIB


def test_sampler_copies_of_gpt_oss() -> None:
    """1024 sequences of 201,088 tokens in float32: the 786 MiB that vLLM asks for after the pool."""
    assert round(act.sampler_bytes(1024, 201_088) / MIB) == 786


@pytest.mark.parametrize(
    ("before", "after", "fraction", "pool"),
    [(22.76, 8.37, 0.88, 5.64), (14.70, 13.72, 0.15, 1.22)],
    ids=["DeepSeek-R1-Distill-Qwen-7B on RTX 3090", "Qwen2.5-0.5B on RTX 4070 Ti SUPER"],
)
def test_sglang_pool_identity(before: float, after: float, fraction: float, pool: float) -> None:
    """pool = after weights - (1 - fraction) x before weights, to the two printed digits of three terms."""
    assert sglang_memory.pool_budget(before, after, fraction) == pytest.approx(pool, rel=0, abs=0.011)


# ---------------------------------------------------------------- every engine


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_has_every_function(engine: str) -> None:
    module, _, _ = engines.get(engine)
    assert [name for name in FUNCTIONS if not callable(getattr(module, name, None))] == []


@pytest.mark.parametrize("engine", ENGINES)
@given(layers=st.integers(1, 200), stages=st.integers(1, 64), newest=st.booleans())
def test_a_split_covers_all_layers(engine: str, layers: int, stages: int, newest: bool) -> None:
    module, _, _ = engines.get(engine)
    split = module.pipeline_split(layers, stages, module.VERSIONS[-1 if newest else 0])
    assert len(split) == stages
    assert sum(split) == layers
    assert min(split) >= 0
    if newest:
        assert max(split) - min(split) <= 1


def test_a_partition_must_cover_the_model() -> None:
    for engine in ENGINES:
        module, version, _ = engines.get(engine)
        assert module.pipeline_split(61, 2, version, (40, 21)) == (40, 21)
        for wrong in ((40, 20), (61,), (61, 0), (30, 30, 1)):
            with pytest.raises(IllegalDeployment):
                module.pipeline_split(61, 2, version, wrong)


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_a_filling_holds_all_that_may_run(engine: str, data: st.DataObject) -> None:
    module, version, _ = engines.get(engine)
    pp, limit = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 512))
    depth = data.draw(st.integers(0, 4)) if engine == "sglang" else 0
    options = Options(engine=engine, version=version, pp=pp, async_depth=depth)
    concurrency = data.draw(st.integers(0, 1000))
    for arrival in ("burst", "staggered"):
        filling = module.fill(concurrency, options, limit, arrival)
        room = module.slots(options) * module.slot_limit(options, limit)
        assert len(filling) == module.slots(options)
        assert sum(filling) == min(concurrency, limit, room)
        assert max(filling) <= module.slot_limit(options, limit)


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_captured_sizes_ascend_to_the_largest(engine: str, data: st.DataObject) -> None:
    module, _, _ = engines.get(engine)
    version = data.draw(st.sampled_from(module.VERSIONS))
    drafts = data.draw(st.sampled_from([None, "eagle3:3"]))
    most, sequences = data.draw(st.integers(1, 600)), data.draw(st.integers(1, 2048))
    options = Options(engine=engine, version=version, tp=8, max_graph_batch=most, max_sequences=sequences,
                      speculative=drafts)  # fmt: skip
    sizes = module.capture_sizes(module.resolve(options, facts())[0], facts())
    assert list(sizes) == sorted(set(sizes))
    assert sizes and sizes[0] >= 1 and sizes[-1] <= most
    assert module.capture_sizes(replace(options, cuda_graphs=False), facts()) == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_flag_is_named(engine: str) -> None:
    module, _, _ = engines.get(engine)
    model = module.launch_command(Options(engine=engine, tp=2), "org/model")
    assert module.parse_command(f"{model} --no-such-flag 3")[2] == ("--no-such-flag",)


def a_launch(engine: str, draw: Any) -> Options:
    """A legal launch of Kimi K2 under this engine."""
    module, _, _ = engines.get(engine)
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.sampled_from([1, tp]))
    maybe: dict[str, Any] = {
        "context": st.integers(1, 262144), "memory_fraction": st.integers(1, 100).map(lambda n: n / 100),
        "max_sequences": st.integers(1, 4096), "prefill_chunk": st.integers(1, 32768),
        "kv_dtype": st.sampled_from(module.KV_DTYPES[:3]), "cuda_graphs": st.just(False),
        "max_graph_batch": st.integers(1, 512), "page_size": st.sampled_from([1, 16, 64]),
        "attention_backend": st.sampled_from(sorted(module.ATTENTION_PAGE)), "moe_backend": st.just("marlin"),
        "all_reduce": st.just("nccl"), "speculative": st.sampled_from(["eagle3:3", "ngram:5"]),
        "quantization": st.just("fp8"),
    }  # fmt: skip
    if engine == "tensorrt-llm":
        maybe.pop("quantization")
    chosen = {key: draw(values) for key, values in maybe.items() if draw(st.booleans())}
    if chosen.get("cuda_graphs") is False:
        chosen.pop("max_graph_batch", None)
    layers = draw(st.sampled_from([None, (61 - 7 * (pp - 1), *[7] * (pp - 1))]))
    ep, version = draw(st.sampled_from([1, tp])), draw(st.sampled_from(module.VERSIONS))
    return Options(engine=engine, version=version, tp=tp, pp=pp, ep=ep, dp_attention=groups, layers_per_stage=layers,
                   **chosen)  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_a_command_reads_back_as_what_was_asked(engine: str, data: st.DataObject) -> None:
    module, _, _ = engines.get(engine)
    options = a_launch(engine, data.draw)
    model, said, unknown = module.parse_command(module.launch_command(options, "org/model"))
    assert (model, unknown) == ("org/model", ())
    if engine == "sglang" and options.kv_dtype == "fp8_e4m3":  # its flag's word for fp8
        options = replace(options, kv_dtype="fp8")
    again = Options(engine=engine, version=options.version, **said)
    different = {f.name: (getattr(again, f.name), getattr(options, f.name)) for f in fields(Options)}
    assert {name: pair for name, pair in different.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_a_legal_launch_resolves_to_no_open_default(engine: str, data: st.DataObject) -> None:
    module, _, _ = engines.get(engine)
    options, notes = module.resolve(a_launch(engine, data.draw), facts())
    decided = ("context", "memory_fraction", "prefill_chunk", "page_size", "cuda_graphs", "max_graph_batch",
               "attention_backend", "moe_backend", "all_reduce")  # fmt: skip
    assert [name for name in decided if getattr(options, name) is None] == []
    assert all(": " in note for note in notes)


def test_copies_of_a_dense_model_are_data_parallel_under_vllm() -> None:
    line = vllm.launch_command(Options(version="0.33.0", tp=2, dp=4), "org/dense", moe=False)
    assert "--tensor-parallel-size 2 --data-parallel-size 4" in line
    assert vllm.parse_command(line, moe=False)[1] == {"tp": 2, "dp": 4}
    assert vllm.parse_command(line)[1] == {"tp": 8, "dp_attention": 4}


@pytest.mark.parametrize(
    ("keywords", "rule"),
    [({"tp": 8, "dp_attention": 4}, "own attention group or none"), ({"tp": 8, "dcp": 2}, "not modelled"),
     ({"pp": 2, "async_depth": 1}, "no async_depth"), ({"tp": 8, "kv_dtype": "nvfp4"}, "compute capability 10"),
     ({"tp": 8, "max_micro_batch": 4}, "one micro-batch is not modelled")],
)  # fmt: skip
def test_what_tensorrt_llm_refuses(keywords: dict[str, Any], rule: str) -> None:
    module, version, _ = engines.get("tensorrt-llm")
    with pytest.raises(IllegalDeployment, match=rule):
        module.check(Options(engine="tensorrt-llm", version=version, **keywords), facts())
