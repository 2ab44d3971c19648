"""The search answers what `predict` and `memory` answer, fits what they fit, and its commands read back."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.catalog import ModelArch
from perfmodel.deployment import Deployment, deploy, varied
from perfmodel.deployment.deploy import KEYWORDS
from perfmodel.insight.launch import read_launch
from perfmodel.planner.price import price
from perfmodel.planner.space import balanced, families
from perfmodel.serving.lengths import parse_lengths
from perfmodel.step.factors import factors_of
from tests.cases import CASE_NODE, toy

GRID = np.array([1.0, 8.0, 200.0])
LENGTH = parse_lengths(256)
MODELS: dict[str, ModelArch] = {
    "dense": toy(layers=6, kv_heads=4),
    "moe": toy(layers=6, experts=16, per_token=2),
    "latent": toy(layers=5, experts=8, mla=True),
}


def space(model: ModelArch | str, node: str, engine: str, **fixed: Any) -> tuple[list[Any], Deployment, Counter[str]]:
    base = deploy(model, node=node, engine=engine)
    refused: Counter[str] = Counter()
    return list(families(base, fixed, GRID[-1], 512, refused)), base, refused


@pytest.fixture(scope="module", params=["vllm", "sglang", "sglang==0.5.10", "tensorrt-llm", "vllm==0.11.0"])
def priced(request: pytest.FixtureRequest) -> list[tuple[Deployment, Any, int, np.ndarray]]:
    """Every deployment of three small models on four GPUs, as the search prices it."""
    rows = []
    for model in MODELS.values():
        found, base, _ = space(model, "4x-rtx-4090", request.param, context=4096)
        for family in found:
            table = price(family, GRID, LENGTH, LENGTH, factors_of(base).point(2))
            figures = np.stack([table.output_tok_s, table.ttft_s, table.tpot_s], axis=1)
            rows += list(zip(table.deployments, figures, table.kv_tokens.tolist(), strict=True))
    return rows


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_search_prices_what_predict_predicts(priced: Any, data: st.DataObject) -> None:
    d, figures, _ = data.draw(st.sampled_from(priced))
    own = pm.predict(again(d), concurrency=GRID, input_tokens=256, output_tokens=256)
    for ours, theirs in zip(figures, (own.output_tok_s, own.ttft_s, own.tpot_s), strict=True):
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_everything_in_the_search_fits(priced: Any, data: st.DataObject) -> None:
    d, _, tokens = data.draw(st.sampled_from(priced))
    report = pm.memory(again(d), hints=False)
    assert report.fits and report.kv_tokens_total == tokens


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_command_reads_back(priced: Any, data: st.DataObject) -> None:
    """Command -> Deployment -> command."""
    d = again(data.draw(st.sampled_from(priced))[0])
    launch = read_launch(d.command(), engine=f"{d.options.engine}=={d.options.version}", moe=d.facts.experts > 0)
    assert not launch.unknown and launch.engine == d.options.engine
    back = varied(d, **launch.keywords)
    assert back.command() == d.command()
    apart = {"dp"} if d.facts.experts or d.options.dp_attention > 1 or d.options.engine == "tensorrt-llm" else set()
    differing = {key for key in KEYWORDS if getattr(back.options, key) != getattr(d.options, key)}
    assert differing <= apart  # copies that no flag makes are separate launches


def again(d: Deployment) -> Deployment:
    """The deployment as `deploy` makes it from the same keywords."""
    keywords = {key: getattr(d.requested, key) for key in KEYWORDS}
    return deploy(d.model, node=d.node, engine=f"{d.options.engine}=={d.options.version}", **keywords)


def test_what_the_search_leaves_out_does_not_fit() -> None:
    """Kimi on its node: each strategy that vLLM runs is either priced or refused by memory in every setting."""
    found, base, refused = space("kimi-k2.6", CASE_NODE, "vllm", context=32768, memory_fraction=0.9, kv_dtype="fp8",
                                 prefill_chunk=8192, cuda_graphs=True, dcp=1)  # fmt: skip
    kept = [d for family in found for _, members in family.parts for d, _ in members]
    assert len({(d.name, d.options.layers_per_stage) for d in kept}) == len(kept)
    count = 0
    for tp, pp, dp in [(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1), (1, 7, 1), (4, 1, 2), (2, 2, 2), (2, 2, 1)]:
        d = varied(base, tp=tp, pp=pp, dp=dp, context=32768, memory_fraction=0.9, kv_dtype="fp8", prefill_chunk=8192)
        fits = pm.memory(d, hints=False).fits
        assert fits == any(k.name == d.name and k.options.layers_per_stage is None for k in kept)
        count += fits
    assert count >= 3 and refused["memory"] > 0


def test_even_weights_never_make_the_heaviest_stage_heavier() -> None:
    for pp in (2, 4, 8):
        d = deploy("kimi-k2.6", node=CASE_NODE, engine="vllm", pp=pp)
        own = pm.memory(d, hints=False).placement
        layers = balanced(own)
        assert sum(layers) == 61 and len(layers) == pp
        even = pm.memory(varied(d, pp=pp, layers_per_stage=layers), hints=False).placement
        assert even.weights_bytes.max() <= own.weights_bytes.max() * (1 + 1e-9)


@pytest.mark.parametrize(("engine", "words"), [
    ("vllm", ["vllm bench serve", "--ignore-eos"]), ("vllm==0.8.5", ["benchmark_serving.py"]),
    ("sglang", ["sglang.bench_serving", "--random-range-ratio 1"]), ("tensorrt-llm", ["benchmark_serving"]),
])  # fmt: skip
def test_each_plan_says_how_to_measure_it(engine: str, words: list[str]) -> None:
    found = pm.plan(MODELS["dense"], node="1x-l40s", engine=engine, context=4096, concurrency=16, input_tokens=100,
                    output_tokens=50, keep=1)  # fmt: skip
    row = found.to_dict()[0]
    flight = f"--max-concurrency {row['concurrency']:.0f}"
    for word in (*words, flight, "--random-input-len 100", "--random-output-len 50"):
        assert word in row["measure_command"]
