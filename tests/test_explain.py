"""`explain`: the formula is the one that predicts, its derivatives are the model's, and break-evens are complete."""

import json
import math
from typing import Any

import numpy as np
import pytest
from command_line import NODE, WHAT, ask, both, width

import perfmodel as pm
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, PerfModelError, UnknownName
from perfmodel.insight.calls import largest_call
from perfmodel.insight.explain import FIGURES, Explained, explain
from perfmodel.insight.sensitivity import break_even, scaled_accelerator, scaled_factor
from perfmodel.insight.symbolic import prefill_formula, step_formula
from perfmodel.insight.variants import with_factors

QUESTIONS: list[tuple[str, str, str, dict[str, Any], float, float]] = [
    ("kimi-k2.6", NODE, "sglang==0.5.10", {"tp": 8}, 8, 1024),
    ("kimi-k2.6", NODE, "sglang==0.5.10", {"pp": 8, "cuda_graphs": False, "max_sequences": 64}, 8, 1024),
    ("kimi-k2.6", NODE, "sglang==0.5.10", {"pp": 8, "max_sequences": 64, "max_micro_batch": 1}, 13, 4000),
    ("kimi-k2.6", NODE, "vllm==0.33.0", {"tp": 8, "dp_attention": 8, "ep": 8}, 64, 4096),
    ("kimi-k2.6", NODE, "vllm==0.33.0", {"tp": 4, "pp": 2, "dcp": 4, "cuda_graphs": False}, 5, 1024),
    ("kimi-k2.6", NODE, "sglang==0.5.23", {"tp": 8, "all_reduce": "pcie_ipc"}, 4, 512),
    ("llama-3.1-8b", "8x-h100-sxm", "vllm==0.33.0", {"tp": 2}, 32, 2000),
    ("llama-3.1-8b", "8x-h100-sxm", "vllm==0.11.0", {"tp": 2, "cuda_graphs": False}, 16, 1000),
]


@pytest.fixture(scope="module")
def tp8() -> Deployment:
    return pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", tp=8, context=32768, memory_fraction=0.92)


@pytest.fixture(scope="module")
def pp8() -> Deployment:
    return pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.10", pp=8, context=32768, memory_fraction=0.92,
                     max_sequences=4096)  # fmt: skip


@pytest.mark.parametrize(("model", "node", "engine", "keywords", "batch", "context"), QUESTIONS)
def test_the_formula_is_the_one_that_predicts(
    model: str, node: str, engine: str, keywords: dict[str, Any], batch: float, context: float
) -> None:
    d = pm.deploy(model, node=node, engine=engine, **keywords)
    formula, cost = step_formula(d, batch, context), pm.step(d, batch=batch, context=context)
    assert formula.seconds == pytest.approx(cost.seconds, rel=1e-12, abs=1e-15)
    rows = {row.name: float(row.seconds) for row in cost.rows}
    for term in formula.terms:
        assert term.seconds == pytest.approx(rows[term.name], rel=1e-9, abs=1e-12), term.name


@pytest.mark.parametrize(("model", "node", "engine", "keywords", "batch", "context"), QUESTIONS)
def test_the_formula_of_a_prefill_is_the_one_that_predicts(
    model: str, node: str, engine: str, keywords: dict[str, Any], batch: float, context: float
) -> None:
    d = pm.deploy(model, node=node, engine=engine, **keywords)
    for tokens in (64, 1000, 20_000):
        formula, cost = prefill_formula(d, tokens, context), pm.prefill(d, tokens=tokens, context=context)
        assert formula.seconds == pytest.approx(cost.seconds, rel=1e-11, abs=0)
        rows = {row.name: float(row.seconds) for row in cost.rows}
        for term in formula.terms:
            assert term.seconds == pytest.approx(rows[term.name], rel=1e-8, abs=1e-12), term.name


@pytest.mark.parametrize(("figure", "concurrency"), [("tok_s", 1), ("tok_s", 64), ("ttft", 1)])
def test_derivatives_of_the_loop_are_what_moving_a_parameter_gives(
    figure: str, concurrency: int, tp8: Deployment
) -> None:
    """SymPy's chain rule against numeric differences, which know of the formula nothing. How many prefills run
    together also moves with the load, which the chain rule leaves out: below 1 %, or 0.3 % of the figure."""
    x = explain(figure, tp8, concurrency=concurrency)
    asked = {e.name: e.elasticity for e in x.elasticities}
    for name, other in (("B_memory", "memory bandwidth"), ("kernel_s", "kernel_s"), ("step_fixed_s", "step_fixed_s"),
                        ("moe_dram_efficiency", "moe_dram_efficiency"), ("gemm_efficiency", "gemm_efficiency")):
        assert x.derivatives[name] == pytest.approx(asked.get(other, 0.0), rel=1e-2, abs=3e-3), name
    links = sum(value for name, value in x.derivatives.items() if name == "collective_bandwidth_factor")
    # beside others, collectives of a prefill weigh as in one prompt of all that are prefilled together
    assert links == pytest.approx(asked["link bandwidth"], rel=0.15 if concurrency > 1 else 1e-2, abs=1e-3)


def test_what_the_formula_has_not_is_a_term_of_its_own() -> None:
    d = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", engine="vllm==0.33.0", tp=2, speculative="eagle3:3")
    x = explain("step", d, concurrency=8)
    assert x.value == pytest.approx(pm.step(d, batch=8, context=1024 + 512).seconds, rel=1e-12, abs=0)
    assert sum(part.share for part in x.parts) == pytest.approx(1.0, rel=1e-9, abs=0)
    assert any(part.name == "priced beside the formula" for part in x.parts)


@pytest.mark.parametrize("index", [0, 1, 2, 4])
def test_derivatives_are_those_of_the_model(index: int) -> None:
    """SymPy's against the model asked with one parameter moved a little."""
    model, node, engine, keywords, batch, context = QUESTIONS[index]
    d = pm.deploy(model, node=node, engine=engine, **keywords)
    found = step_formula(d, batch, context).elasticities()
    whole, move = pm.step(d, batch=batch, context=context).seconds, 1e-6
    asked = {"B_memory": scaled_accelerator(d, "bandwidth", 1 + move)}
    for name in ("kernel_s", "moe_dram_efficiency", "eager_kernel_s", "step_fixed_s", "roofline_overlap"):
        asked[name] = with_factors(d, {name: d.calibration.parameters[name].value * (1 + move)})
    for name, moved in asked.items():
        slope = (pm.step(moved, batch=batch, context=context).seconds / whole - 1) / move
        assert found.get(name, 0.0) == pytest.approx(slope, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_the_answer_of_its_verb_and_its_parts_add_up(figure: str, tp8: Deployment) -> None:
    x = explain(figure, tp8)
    curve, report = pm.predict(tp8, concurrency=8), pm.memory(tp8)
    answers = {
        "step": pm.step(tp8, batch=8, context=1024 + 512).seconds,
        "tok_s": float(curve.output_tok_s[0][0]),
        "ttft": float(curve.ttft_s[0][0]),
        "tpot": float(curve.tpot_s[0][0]),
        "memory": report.placement.weights_bytes[0] + report.pool.pool_bytes[0] + report.runtime_bytes(0),
        "kv_tokens": report.kv_tokens,
        "weights": 8 * float(np.sum(report.placement.weights_bytes)),
        "collective": float(pm.collective("all_reduce", node=NODE, engine="sglang==0.5.10",
                                          message_bytes=8 * 14336).seconds),
    }
    assert x.value == pytest.approx(answers[figure], rel=1e-9, abs=1e-9)
    assert sum(part.share for part in x.parts) == pytest.approx(1.0, rel=1e-9, abs=1e-9)
    assert x.formula and x.values
    assert [abs(part.share) for part in x.parts] == sorted([abs(p.share) for p in x.parts], reverse=True)


@pytest.mark.parametrize("figure", ["tok_s", "ttft", "tpot", "memory", "kv_tokens", "weights"])
def test_a_formula_evaluates_to_its_value(figure: str, tp8: Deployment) -> None:
    import sympy

    x = explain(figure, tp8)
    value = float(sympy.sympify(x.formula, locals={n: sympy.Symbol(n) for n in x.values}).subs(x.values))
    within = 1.0 if figure == "kv_tokens" else 1e-5 * x.value
    assert value == pytest.approx(x.value, rel=0, abs=within)


def test_elasticities_have_the_right_sign_and_ten_percent_is_asked(tp8: Deployment) -> None:
    x = explain("tok_s", tp8)
    found = {e.name: e for e in x.elasticities}
    assert found["memory bandwidth"].elasticity > 0 > found["link latency"].elasticity
    assert found["kernel_s"].elasticity < 0
    more = pm.predict(scaled_accelerator(tp8, "bandwidth", 1.1), concurrency=8).output_tok_s[0][0] / x.value - 1
    assert found["memory bandwidth"].plus_ten_percent == pytest.approx(float(more), rel=1e-9, abs=1e-9)
    strengths = [abs(e.elasticity) for e in x.elasticities]
    assert strengths == sorted(strengths, reverse=True)


def test_limits_bound_the_figure(tp8: Deployment) -> None:
    x, t = explain("tok_s", tp8), explain("step", tp8)
    assert all(value >= x.value * (1 - 1e-9) for value in x.limits.values())
    assert all(value <= t.value * (1 + 1e-9) for value in t.limits.values())
    assert t.limits["perfect overlap"] > 0.25 * t.value


def test_no_break_even_is_proven_by_asking_every_concurrency(tp8: Deployment, pp8: Deployment) -> None:
    found = explain("weights", tp8, against=pp8, arrival="staggered", high=2048).break_even
    assert found is not None and found.proven and "2,048 whole" in found.proof
    ratio = [
        pm.predict(tp8, concurrency=[c], arrival="staggered").output_tok_s[0][0]
        / pm.predict(pp8, concurrency=[c], arrival="staggered").output_tok_s[0][0]
        for c in (1, 300, 2048)
    ]
    assert found.ratio_min <= min(ratio) and max(ratio) <= found.ratio_max * (1 + 1e-12)
    assert (not found.crossings) == (found.ratio_min > 1 or found.ratio_max < 1)


def test_a_crossing_along_context_is_one(tp8: Deployment, pp8: Deployment) -> None:
    found = explain("weights", tp8, against=pp8, over="context", concurrency=64, arrival="staggered").break_even
    assert found is not None and len(found.crossings) == 1 and found.ahead_at_low != found.ahead_at_high
    (place,) = found.crossings
    seconds = [
        [float(pm.step(d, batch=64, context=place * k, arrival="staggered").seconds) for k in (0.99, 1.01)]
        for d in (tp8, pp8)
    ]
    assert (seconds[0][0] - seconds[1][0]) * (seconds[0][1] - seconds[1][1]) < 0


@pytest.mark.parametrize(("over", "scaled"), [("bandwidth", "memory"), ("links", "links")])
def test_break_even_along_a_bandwidth(over: str, scaled: str, tp8: Deployment, pp8: Deployment) -> None:
    """A crossing has the other side ahead on each side of it; none is proven by the monotone rates."""
    found = explain("weights", tp8, against=pp8, over=over, concurrency=512, arrival="staggered").break_even
    assert found is not None and found.proven
    assert found.ahead_at_low == "PP8" or over == "bandwidth"  # slow links hurt tensor parallelism

    def ratio(times: float) -> float:
        pair = [scaled_accelerator(d, "bandwidth", times) if scaled == "memory" else
                scaled_factor(d, "collective_bandwidth_factor", times) for d in (tp8, pp8)]  # fmt: skip
        first, second = (pm.predict(d, concurrency=512, arrival="staggered").output_tok_s[0][0] for d in pair)
        return float(first / second)

    assert (ratio(found.low) < 1) == (found.ahead_at_low == "PP8")
    assert (ratio(found.high) < 1) == (found.ahead_at_high == "PP8")
    for place in found.crossings:
        assert (ratio(0.97 * place) - 1) * (ratio(1.03 * place) - 1) < 0


@pytest.mark.parametrize(
    ("figure", "more"),
    [("step", {"concurrency": "8"}), ("step", {"concurrency": True}), ("step", {"concurrency": None}), (5, {}),
     ("step", {"against": "pp=8"}), ("tok_s", {"low": "x", "over": "links"}), ("tok_s", {"input_tokens": "many"})],
)  # fmt: skip
def test_wrong_types_are_plain_errors(figure: Any, more: dict[str, Any], tp8: Deployment, pp8: Deployment) -> None:
    asked = {"against": pp8, **more} if "low" in more else more
    with pytest.raises(PerfModelError):
        explain(figure, tp8, **asked)
    with pytest.raises(PerfModelError):
        explain("step", "kimi-k2.6")  # type: ignore[arg-type]


def test_break_even_of_known_curves() -> None:
    def rates(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 100 / grid, 10 + 0 * grid

    found = break_even(rates, "context", 1, 1000, ("a", "b"))
    assert found.crossings == pytest.approx((10.0,), rel=1e-6, abs=1e-6) and found.proven
    assert (found.ahead_at_low, found.ahead_at_high) == ("a", "b")
    close = break_even(lambda g: (1 / g, 1 / g * (1 + 1e-7)), "context", 1, 1000, ("a", "b"))
    assert not close.proven and not close.crossings


@pytest.mark.parametrize(("low", "high", "axis"), [(0, 1, "context"), (5, 5, "context"), (1, math.inf, "context")])
def test_a_bad_range_is_refused(low: float, high: float, axis: str) -> None:
    with pytest.raises(BadInput):
        break_even(lambda g: (g, g), axis, low, high, ("a", "b"))


def test_refusals(tp8: Deployment) -> None:
    with pytest.raises(UnknownName, match="figure"):
        explain("speed", tp8)
    with pytest.raises(BadInput):
        explain("step", tp8, concurrency=math.nan)
    with pytest.raises(UnknownName, match="axis"):
        explain("step", tp8, against=tp8, over="time")


def test_json_is_finite(tp8: Deployment, pp8: Deployment) -> None:
    x: Explained = explain("tok_s", tp8, against=pp8, arrival="staggered", high=64)
    (answer,) = x.to_dict()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["unit"] == "tok/s" and answer["break_even"]["axis"] == "concurrency"
    assert repr(x).startswith("<Explained tok_s of TP8")


@pytest.mark.parametrize("figure", FIGURES)
def test_the_command_prints_80_columns(figure: str) -> None:
    result = ask("explain", figure, *WHAT, "--tp", "8", "--context", "32768", "--memory-fraction", "0.94")
    assert result.exit_code == 0, both(result)
    assert width(result.stdout) <= 80
    assert "terms, largest first" in result.stdout


def test_the_command_says_where_another_strategy_leads() -> None:
    result = ask("explain", "tok_s", *WHAT, "--tp", "8", "--context", "32768", "--against", "pp=8", "--to", "64")
    assert "break-even: " in result.stdout and "proof: all 64 whole concurrencies" in result.stdout
    assert ask("explain", "speed", *WHAT, "--tp", "8").exit_code == 2


CALLS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("kimi-k2.6", NODE, "sglang==0.5.10", {"tp": 8}, "NCCL LL"),
    ("kimi-k2.6", NODE, "vllm==0.33.0", {"tp": 8, "dp_attention": 8, "ep": 8}, "NCCL"),
    ("kimi-k2.6", NODE, "sglang==0.5.23", {"tp": 8, "all_reduce": "pcie_ipc"}, "the kernel pcie_ipc"),
    ("llama-3.1-8b", "8x-h100-sxm", "vllm==0.33.0", {"tp": 8}, "the kernel custom_one_shot"),
    ("deepseek-v3.1", "2x-dgx-h100", "sglang==0.5.23", {"tp": 16}, "NCCL Tree LL"),
]


@pytest.mark.parametrize(("model", "node", "engine", "keywords", "by"), CALLS)
@pytest.mark.parametrize("concurrency", [1, 64, 1000])
def test_the_formula_of_a_collective_is_the_one_that_prices_it(
    model: str, node: str, engine: str, keywords: dict[str, Any], by: str, concurrency: int
) -> None:
    """The step has as many of them as it says, and their rows hold their seconds."""
    d = pm.deploy(model, node=node, engine=engine, context=8192, **keywords)
    call = largest_call(d, concurrency, 1000)
    op = call.name.partition(" (")[0]
    priced = pm.collective(op.replace("-", "_"), node=node, engine=engine, message_bytes=call.message_bytes,
                           ranks=call.ranks)  # fmt: skip
    plain = not ({"all_reduce", "dp_attention"} & keywords.keys())  # pm.collective knows of no other engine setting
    if plain:
        assert call.formula.seconds == pytest.approx(float(priced.seconds), abs=0, rel=1e-9)
    rows = {row.name: float(row.seconds) for row in pm.step(d, batch=concurrency, context=1000).rows}
    places = call.name.partition(" (")[2].rstrip(")").split(", ")
    assert call.count * call.formula.seconds == pytest.approx(sum(rows[f"{op} ({place})"] for place in places),
                                                              abs=0, rel=0.35)  # a place also has calls of other sizes
    assert call.formula.seconds == pytest.approx(sum(term.seconds for term in call.formula.terms), abs=0, rel=1e-9)
    if concurrency == 1:
        assert call.what.startswith(by)


def test_the_collective_is_told_in_words_and_numbers(tp8: Deployment) -> None:
    x = explain("collective", tp8, concurrency=8)
    assert {part.name for part in x.parts} == {"steps between ranks", "bytes over bandwidth", "start"}
    assert "14*alpha_" in x.formula and "1.75*M/" in x.formula  # 2 (8 - 1) steps, 2 (8 - 1) / 8 of the message
    assert x.values["M"] == 8 * 7168 * 2 and "all-reduce" in x.notes[0] and "over 8 ranks" in x.notes[0]
    priced = pm.collective("all_reduce", node=NODE, engine="sglang==0.5.10", message_bytes=x.values["M"])
    assert x.low == pytest.approx(float(priced.seconds_low), abs=0, rel=0.02)
    assert x.high == pytest.approx(float(priced.seconds_high), abs=0, rel=0.02)
    assert x.limits["infinite link bandwidth"] == pytest.approx(
        x.value * (1 - next(part.share for part in x.parts if "bytes" in part.name)), abs=0, rel=1e-6)
    found = {e.name: e.elasticity for e in x.elasticities}
    assert x.derivatives["collective_bandwidth_factor"] == pytest.approx(found["link bandwidth"], abs=0, rel=1e-3)


def test_a_pipeline_has_hops_and_one_gpu_has_nothing() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="vllm", pp=8)
    call = largest_call(d, 8, 1000)
    assert call.name == "pipeline hop" and call.message_bytes == 8 * 7168 * 2 * 2  # hidden states and residual
    with pytest.raises(BadInput, match="no collective"):
        explain("collective", pm.deploy("llama-3.1-8b", node=NODE, engine="vllm", tp=1))
