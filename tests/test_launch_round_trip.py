"""command -> Deployment -> command -> Deployment: the two deployments are one, for every engine."""

from dataclasses import replace
from typing import Any

import pytest
from command_line import NODE
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import engines
from perfmodel.deployment import Deployment
from perfmodel.engines.options import Options
from perfmodel.errors import PerfModelError
from perfmodel.insight.launch import read_launch

MODELS = {"kimi-k2.6": ("moonshotai/Kimi-K2.6", True), "llama-3.1-8b": ("meta-llama/Llama-3.1-8B", False)}
FORMATS = ["bf16", "fp8", "int8", "int4", "gptq", "awq", "nvfp4", "mxfp4"]


def deployed(command: str, moe: bool, version: str) -> Deployment:
    launch = read_launch(command, f"{read_launch(command).engine}=={version}", moe)
    assert launch.unknown == () and not any("unknown to" in said for said in launch.warnings)
    engine = f"{launch.engine}=={launch.version}"
    return pm.deploy(launch.model, node=NODE, engine=engine, **launch.keywords)  # type: ignore[no-any-return]


def a_command(engine: str, draw: Any) -> tuple[str, str, bool, str]:
    """The launch line of some options, whatever they are."""
    module, _, _ = engines.get(engine)
    name = draw(st.sampled_from(sorted(MODELS)))
    model_id, moe = MODELS[name]
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    layers = 61 if moe else 32
    maybe: dict[str, Any] = {
        "context": st.integers(1024, 32768), "memory_fraction": st.integers(50, 99).map(lambda n: n / 100),
        "max_sequences": st.integers(1, 4096), "prefill_chunk": st.integers(128, 32768),
        "kv_dtype": st.sampled_from(module.KV_DTYPES[:3]), "cuda_graphs": st.just(False),
        "max_graph_batch": st.integers(1, 512), "page_size": st.sampled_from([16, 64]),
        "attention_backend": st.sampled_from(sorted(module.ATTENTION_PAGE)), "moe_backend": st.just("triton"),
        "all_reduce": st.just("nccl"), "speculative": st.sampled_from(["eagle3:3", "ngram:5"]),
        "quantization": st.sampled_from(FORMATS), "nccl": st.sampled_from(["NCCL_P2P_DISABLE=1", "NCCL_PROTO=LL"]),
        "layers_per_stage": st.just((layers - 7 * (pp - 1), *[7] * (pp - 1))),
    }  # fmt: skip
    maybe |= {
        "vllm": {"prefill_graphs": st.just(False)},
        "sglang": {"prefill_graphs": st.just(False), "receive_interval": st.integers(2, 50)},
        "tensorrt-llm": {"prefill_graphs": st.just(True), "batch_wait_steps": st.integers(1, 40),
                         "batch_wait_ratio": st.integers(1, 100).map(lambda n: n / 100)},
    }[engine]  # fmt: skip
    chosen = {key: draw(values) for key, values in maybe.items() if draw(st.booleans())}
    if chosen.get("cuda_graphs") is False:
        chosen.pop("max_graph_batch", None)
        chosen.pop("prefill_graphs", None)
    if moe:
        chosen |= {"ep": draw(st.sampled_from([1, tp])), "dp_attention": draw(st.sampled_from([1, tp]))}
    else:
        chosen |= {"dp": draw(st.sampled_from([1, 2])) if engine != "tensorrt-llm" else 1}
    version = draw(st.sampled_from(module.VERSIONS))
    options = Options(engine=engine, version=version, tp=tp, pp=pp, **chosen)
    return module.launch_command(options, model_id, moe=moe), name, moe, version


@pytest.mark.parametrize("engine", engines.ENGINES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_command_comes_back_as_the_same_deployment(engine: str, data: st.DataObject) -> None:
    command, name, moe, version = a_command(engine, data.draw)
    try:
        first = deployed(command, moe, version)
    except PerfModelError:
        assume(False)
        raise
    second = deployed(first.command(), moe, version)
    assert second.formats == first.formats
    if second.requested.quantization is None:  # the model's own format is not written
        assert all(first.model.storage.get(role) == name for role, (name, _) in first.formats.items())
        first = replace(first, requested=replace(first.requested, quantization=None),
                        options=replace(first.options, quantization=None))  # fmt: skip
    assert (second.requested, second.options) == (first.requested, first.options)
    assert first.model.name == second.model.name == name
    assert second.command() == first.command()


@pytest.mark.parametrize("engine", engines.ENGINES)
@pytest.mark.parametrize("word", ["awq", "int4", "gptq", "nvfp4", "mxfp4", "int8"])
def test_weights_that_no_engine_makes_while_loading_are_named_as_a_checkpoint(engine: str, word: str) -> None:
    d = pm.deploy("llama-3.1-8b", node=NODE, engine=engine, tp=2, quantization=word)
    line = d.command()
    assert f"./Llama-3.1-8B-{word}" in line and "--quantization" not in line
    assert line.endswith(f"# weights: {d.model.aliases[0]} in {word}")


def test_fp8_is_made_while_loading_and_the_models_own_format_is_not_written() -> None:
    fp8 = pm.deploy("llama-3.1-8b", node=NODE, engine="vllm", quantization="fp8").command()
    assert "--quantization fp8" in fp8 and "# weights" not in fp8
    narrow = pm.deploy("kimi-k2.6", node=NODE, engine="sglang", tp=8, quantization="fp8").command()
    assert narrow.endswith("# weights: moonshotai/Kimi-K2.6 in fp8") and "--quantization" not in narrow
    own = pm.deploy("kimi-k2.6", node=NODE, engine="vllm", tp=8, quantization="int4").command()
    assert "int4" not in own and own == pm.deploy("kimi-k2.6", node=NODE, engine="vllm", tp=8).command()


def test_settings_of_nccl_stand_before_the_command() -> None:
    line = pm.deploy("llama-3.1-8b", node=NODE, engine="sglang", tp=2, nccl="stock NCCL_PROTO=LL").command()
    assert line.startswith("NCCL_PROTO=LL python -m sglang.launch_server")
