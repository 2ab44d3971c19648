"""Laws that hold for every model, node, strategy and engine, whatever the figures are."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import deployments, models, nodes, toys, workloads

import perfmodel as pm
from perfmodel import units
from perfmodel.calibration.fit import changed, fit
from perfmodel.deployment import Deployment
from perfmodel.errors import Infeasible
from perfmodel.insight.launch import read_launch
from perfmodel.insight.sensitivity import scaled_accelerator
from perfmodel.insight.variants import with_factors
from perfmodel.placement import place
from perfmodel.serving.lengths import parse_lengths
from perfmodel.serving.simulate import simulate
from perfmodel.serving.validity import WITHIN, WITHIN_GROUPS, outside
from perfmodel.step.factors import factors_of

TIMES = int(os.environ.get("LAWS", "1"))        # LAWS=20: twenty times as many examples


def examples(count: int) -> Any:
    """So many examples of a law, without a limit on the time of one."""
    return settings(max_examples=count * TIMES, deadline=None)


LEAST = 1e-9    # of a figure: what rounding may take from a law
# Held by every stage, or rounded up on each: their sum grows with the stages.
ON_EVERY_STAGE = {"rotary tables", "vision tower", "allocator rounding"}


def totals(d: Deployment) -> dict[str, float]:
    """Bytes by part over the ranks of one copy, without what every stage holds for itself."""
    return {name: float(np.sum(sizes)) * d.options.tp for name, sizes in place(d).parts.items()
            if name not in ON_EVERY_STAGE}


def tokens_of(load: dict[str, Any]) -> float:
    """Tokens of a prompt and its answer."""
    return sum(parse_lengths(load[name]).mean for name in ("input_tokens", "output_tokens"))


# ------------------------------------------------------------------ memory

@examples(60)
@given(deployments())
def test_the_parts_of_every_rank_add_up_to_its_memory(d: Deployment) -> None:
    for rank in pm.memory(d, hints=False).to_dict()["ranks"]:
        whole = rank["weights_bytes"] + rank["kv_pool_bytes"] + rank["runtime_bytes"] + rank["free_bytes"]
        assert whole == pytest.approx(d.facts.gpu_memory_bytes, rel=LEAST, abs=0)
        assert sum(rank["parts"].values()) == pytest.approx(whole - rank["free_bytes"], rel=LEAST, abs=0)


@examples(60)
@given(deployments(dp=1))
def test_splitting_a_model_over_ranks_loses_no_weights(d: Deployment) -> None:
    alone = totals(pm.deploy(d.model, node=d.node, engine=f"{d.options.engine}=={d.options.version}",
                             quantization=d.options.quantization, kv_dtype=d.options.kv_dtype))
    split = totals(d)
    for name, size in alone.items():
        assert split[name] >= size * (1 - LEAST), name                         # every weight is somewhere
        assert split[name] <= size * d.options.tp * 1.5, name                 # and nowhere twice, but for padding


@examples(60)
@given(deployments(tp=1, dp=1, ep=1, dp_attention=1))
def test_stages_hold_the_layers_once(d: Deployment) -> None:
    alone = pm.deploy(d.model, node=d.node, engine=f"{d.options.engine}=={d.options.version}",
                      quantization=d.options.quantization, kv_dtype=d.options.kv_dtype)
    one, split = totals(alone), totals(d)
    for name in {"attention", "dense MLP", "experts", "shared experts"} & set(one):
        assert split[name] == pytest.approx(one[name], rel=LEAST, abs=0), name
    assert place(d).kv_bytes_per_token.sum() == pytest.approx(place(alone).kv_bytes_per_token.sum(), rel=LEAST, abs=0)


@examples(60)
@given(models(), nodes(), st.sampled_from(["vllm", "sglang", "tensorrt-llm"]), st.integers(2, 8))
def test_more_stages_never_fill_the_fullest_one_more(model: Any, node: str, engine: str, stages: int) -> None:
    assume(stages <= pm.load_node(node).count)
    arch = pm.load_model(model) if isinstance(model, str) else model
    assume(stages <= arch.layers)
    fewer, more = (place(pm.deploy(arch, node=node, engine=engine, pp=n)).weights_bytes.max()
                   for n in (stages - 1, stages))
    assert more <= fewer * (1 + LEAST)


@examples(60)
@given(deployments())
def test_ranks_of_a_stage_are_equal(d: Deployment) -> None:
    by_stage: dict[int, list[dict[str, Any]]] = {}
    for rank in pm.memory(d, hints=False).to_dict()["ranks"]:
        by_stage.setdefault(rank.pop("stage"), []).append({k: v for k, v in rank.items() if k != "rank"})
    assert len(by_stage) == d.options.pp
    assert all(rank == ranks[0] for ranks in by_stage.values() for rank in ranks)
    assert sum(len(ranks) for ranks in by_stage.values()) == d.gpus


@examples(60)
@given(deployments(), st.floats(1.01, 4.0))
def test_more_memory_never_holds_less(d: Deployment, times: float) -> None:
    facts = replace(d.facts, gpu_memory_bytes=d.facts.gpu_memory_bytes * times,
                    driver_memory_bytes=d.facts.driver_memory_bytes * times)
    small, large = (pm.memory(one, hints=False) for one in (d, replace(d, facts=facts)))
    assert large.kv_tokens >= small.kv_tokens
    assert large.fits >= small.fits


@examples(60)
@given(deployments())
def test_the_band_of_the_pool_contains_the_point(d: Deployment) -> None:
    report = pm.memory(d, hints=False)
    assert 0 <= report.kv_tokens_low <= report.kv_tokens <= report.kv_tokens_high
    assert report.fits == (report.verdict == "fits")


# ------------------------------------------------------------------ time

@examples(60)
@given(deployments(), st.integers(1, 400), st.integers(0, 60_000))
def test_more_sequences_and_longer_contexts_never_take_less(d: Deployment, batch: int, context: int) -> None:
    grid = pm.step(d, batch=[batch, batch + 1, 2 * batch], context=[[context], [context + 1], [2 * context + 64]])
    assert np.all(np.diff(grid.seconds, axis=0) >= -1e-12), "context"
    assert np.all(np.diff(grid.seconds, axis=1) >= -1e-12), "batch"


@examples(60)
@given(deployments(), st.integers(1, 400), st.sampled_from(["bandwidth", "peak"]), st.floats(1.01, 3.0))
def test_a_faster_card_never_takes_longer(d: Deployment, batch: int, figure: str, times: float) -> None:
    fast = scaled_accelerator(d, figure, times)
    for ask in (lambda one: pm.step(one, batch=batch, context=1000), lambda one: pm.prefill(one, tokens=8 * batch)):
        assert ask(fast).seconds <= ask(d).seconds * (1 + LEAST)


@examples(60)
@given(deployments(), st.lists(st.integers(1, 300), min_size=2, max_size=4), st.integers(0, 30_000))
def test_vectors_are_their_scalars(d: Deployment, batch: list[int], context: int) -> None:
    whole = pm.step(d, batch=batch, context=context)
    for i, one in enumerate(batch):
        alone = pm.step(d, batch=one, context=context)
        for field in ("seconds", "seconds_low", "seconds_high"):
            assert getattr(whole, field)[i] == pytest.approx(getattr(alone, field), rel=LEAST, abs=0)
    prompts = pm.prefill(d, tokens=batch)
    singly = [pm.prefill(d, tokens=one).seconds for one in batch]
    assert singly == pytest.approx(list(prompts.seconds), rel=LEAST, abs=0)


@examples(60)
@given(deployments(), workloads())
def test_bands_contain_the_point_and_figures_are_finite(d: Deployment, load: dict[str, Any]) -> None:
    assume(tokens_of(load) <= d.options.context)
    cost = pm.step(d, batch=load["concurrency"])
    assert cost.seconds_low <= cost.seconds <= cost.seconds_high < np.inf
    for point in pm.predict(d, **load).to_dict()["points"]:
        for name in ("output_tok_s", "ttft_ms", "tpot_ms"):
            low, at, high = (point[f"{name}{end}"] for end in ("_low", "", "_high"))
            assert at is None or 0 <= low <= at <= high < np.inf, name


@examples(25)
@given(deployments(), workloads(), st.integers(2, 50))
def test_many_loads_at_once_are_each_by_itself(d: Deployment, load: dict[str, Any], times: int) -> None:
    assume(tokens_of(load) <= d.options.context)
    several = [load["concurrency"], load["concurrency"] * times]
    curve = pm.predict(d, **load | {"concurrency": several})
    for i, one in enumerate(several):
        alone = pm.predict(d, **load | {"concurrency": one})
        for field in ("output_tok_s", "ttft_s", "tpot_s"):
            np.testing.assert_allclose(getattr(curve, field)[0][i], getattr(alone, field)[0][0], rtol=1e-6, atol=0)


@examples(60)
@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), nodes(),
       st.integers(1, 2**28), st.floats(1.0, 8.0))
def test_larger_messages_never_take_less(op: str, node: str, size: int, times: float) -> None:
    assume(pm.load_node(node).count > 1)
    cost = pm.collective(op, node=node, message_bytes=[size, size * times])
    assert cost.seconds[1] >= cost.seconds[0] * (1 - LEAST)
    assert np.all(cost.seconds_low <= cost.seconds) and np.all(cost.seconds <= cost.seconds_high)
    assert pm.collective(op, node=node, message_bytes=size).seconds == pytest.approx(cost.seconds[0], rel=LEAST, abs=0)


# ------------------------------------------------------------------ units

@examples(60)
@given(st.floats(1e-3, 999), st.sampled_from(["B/s", "B", "FLOP/s", "W", "Hz"]))
def test_units_scale(number: float, base: str) -> None:
    spelled = [units.parse(f"{number * 1000 ** i!r} {prefix}{base}", base) for i, prefix in enumerate("TGMk")]
    assert spelled == pytest.approx([number * 1e12] * 4, rel=LEAST, abs=0)
    binary = [units.parse(f"{number * 1024 ** i!r} {prefix}iB", "B") for i, prefix in enumerate("TGMK")]
    assert binary == pytest.approx([number * 2.0**40] * 4, rel=LEAST, abs=0)


# ------------------------------------------------------------------ between the rooms

@examples(12)
@given(toys() | st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "kimi-k2.6"]),
       st.sampled_from(["1x-l40s", "2x-rtx-4090", "4x-a100-sxm-80gb"]), st.sampled_from(["vllm", "sglang"]),
       st.integers(1, 16_000), st.integers(1, 4000))
def test_plan_returns_nothing_that_memory_refuses(model: Any, node: str, engine: str, new: int, out: int) -> None:
    try:
        found = pm.plan(model, node=node, engine=engine, input_tokens=new, output_tokens=out, disaggregate=False)
    except Infeasible:
        return
    for choice in found.choices:
        report = pm.memory(choice.deployment)
        assert report.fits, choice.deployment.command()
        assert choice.deployment.gpus <= choice.deployment.node.count


@examples(60)
@given(deployments(model=st.sampled_from(["llama-3.1-8b", "kimi-k2.6", "qwen3-30b-a3b", "gpt-oss-20b"])))
def test_a_launch_line_reads_back_as_what_wrote_it(d: Deployment) -> None:
    line = d.command()
    assert "\n" not in line
    launch = read_launch(line, f"{d.options.engine}=={d.options.version}", d.facts.experts > 0)
    assert not launch.unknown
    again = pm.deploy(d.model, node=d.node, engine=f"{d.options.engine}=={launch.version}", **launch.keywords)
    assert again.command() == line


@examples(10)
@given(deployments(model=st.just("llama-3.1-8b"), dp=1, ep=1, dp_attention=1, pp=1),
       st.sampled_from([1, 8, 64]), st.sampled_from([(200, 500), (1024, 1024), (2000, 100)]))
def test_the_closed_form_keeps_its_claim_to_the_simulator(d: Deployment, many: int, tokens: tuple[int, int]) -> None:
    new, out = tokens
    assume(pm.memory(d, hints=False).fits and d.options.prefix_hit_rate == 0 and d.options.context >= new + 2 * out)
    assume(not outside(d, np.array([many]), parse_lengths(new), parse_lengths(out)))
    count = 60 * many           # long enough that begin and end hardly count: the claim is about the steady state
    outputs = np.random.default_rng(0).integers(int(0.8 * out), int(1.2 * out), count)
    run = simulate(d, inputs=np.full(count, new), outputs=outputs, concurrency=many)
    form = pm.predict(d, concurrency=many, input_tokens=new, requests=count,
                      output_tokens=f"uniform:{int(0.8 * out)}:{int(1.2 * out)}")  # fmt: skip
    within = WITHIN if d.options.dp_attention == 1 else WITHIN_GROUPS
    assert form.output_tok_s[0][0] == pytest.approx(outputs.sum() / run.makespan_s, rel=within, abs=0)
    assert form.tpot_s[0][0] == pytest.approx(np.nanmedian(run.tpot_s), rel=within, abs=0)


@examples(8)
@given(deployments(model=st.sampled_from(["llama-3.1-8b", "qwen3-4b-fp8"]) | toys(), cuda_graphs=True),
       st.floats(0.5, 2.0), st.floats(0.4, 0.8) | st.floats(1.25, 2.5))
def test_a_fit_finds_the_planted_factor_from_two_starts(d: Deployment, times: float, start: float) -> None:
    base = changed(factors_of(d), {}, {"kernel_s": 3.0})                 # a prior too wide to matter
    truth = d.calibration.parameters["kernel_s"].value * times
    batch = [1.0, 2.0, 4.0, 16.0, 64.0]
    measured = pm.step(with_factors(d, {"kernel_s": truth}), batch=batch).seconds
    assume(pm.step(with_factors(d, {"kernel_s": 1.5 * truth}), batch=1).seconds > 1.05 * measured[0])

    def residuals(factors: Any) -> np.ndarray:
        value = float(factors.values[factors.names.index("kernel_s")])
        return np.log(pm.step(with_factors(d, {"kernel_s": value}), batch=batch).seconds / measured)

    for begin in (start, 1 / start):
        found = fit(residuals, {"kernel_s": (truth * begin, truth / 100, truth * 100)}, base)
        assert found.values[0] == pytest.approx(truth, rel=0.02, abs=0)
