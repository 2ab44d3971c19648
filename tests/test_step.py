"""One step, row by row: the rows add up, nothing gets faster with more work, and the bytes are those of the case."""

from typing import Any

import numpy as np
import pytest
from cases import CASE_NODE, kimi, named
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput
from perfmodel.step import StepCost
from perfmodel.step.slots import occupancy

EVEN = {"expert_skew": 1e8}
CASE = {"cuda_graphs": False, "max_sequences": 64, "memory_fraction": 0.92}  # the launch of the case: 64 running, PP
STRATEGIES: dict[str, dict[str, Any]] = {
    "sglang tp8": {"tp": 8},
    "sglang tp8 eager": {"tp": 8, "cuda_graphs": False},
    "sglang pp8 of the case": {"pp": 8, **CASE},
    "sglang tp2 pp4": {"tp": 2, "pp": 4, "memory_fraction": 0.92},
    "sglang ep8": {"tp": 8, "ep": 8},
    "sglang dpa8": {"tp": 8, "ep": 8, "dp_attention": 8, "memory_fraction": 0.94},
    "vllm tp8": {"engine": "vllm==0.19.1", "tp": 8, "kv_dtype": "fp8"},
    "vllm pp8": {"engine": "vllm==0.33.0", "pp": 8, "max_sequences": 256},
    "vllm dcp8": {"engine": "vllm==0.33.0", "tp": 8, "dcp": 8},
}
DEPLOYED = {name: kimi(**keywords) for name, keywords in STRATEGIES.items()}
each = pytest.mark.parametrize("name", DEPLOYED)


def reads(cost: StepCost) -> Any:
    return sum(row.bytes for row in cost.rows)


# ---------------------------------------------------------------- laws


@each
def test_rows_add_up_and_the_band_contains_the_point(name: str) -> None:
    d = DEPLOYED[name]
    for cost in (
        pm.step(d, batch=[1, 3, 8, 33, 64], context=[[0], [1000], [30000]]),
        pm.prefill(d, tokens=[1, 100, 8192, 20000], context=[[0], [4096]]),
    ):
        assert sum(row.seconds for row in cost.rows) == pytest.approx(cost.seconds, rel=1e-9)
        assert np.all(cost.seconds_low < cost.seconds)
        assert np.all(cost.seconds < cost.seconds_high)
        assert np.all(np.isfinite(cost.seconds_high))
        for row in cost.rows:
            if row.name != "stages that overlap":  # what a pipeline saves on a prompt is a row of its own, below zero
                assert np.all(row.seconds >= 0), row.name
            for field in ("flop", "bytes", "message_bytes", "kernels"):
                assert np.all(np.asarray(getattr(row, field)) >= 0), (row.name, field)


@each
def test_more_sequences_and_longer_contexts_never_take_less(name: str) -> None:
    grid = pm.step(DEPLOYED[name], batch=list(range(1, 65)), context=[[0], [1], [100], [1000], [8000], [64000]]).seconds
    assert np.all(np.diff(grid, axis=0) >= -1e-12), "context"
    assert np.all(np.diff(grid, axis=1) >= -1e-12), "batch"


@each
def test_longer_prompts_never_take_less(name: str) -> None:
    cost = pm.prefill(DEPLOYED[name], tokens=[1, 10, 100, 1000, 4000, 8192, 8193, 20000], context=[[0], [1000], [9000]])
    assert np.all(np.diff(cost.seconds, axis=0) >= -1e-12), "context"
    assert np.all(np.diff(cost.seconds, axis=1) >= -1e-12), "tokens"


@given(st.integers(0, len(DEPLOYED) - 1), st.integers(1, 300), st.integers(0, 100_000))
@settings(max_examples=40)
def test_an_array_gives_what_its_elements_give(which: int, batch: int, context: int) -> None:
    d = list(DEPLOYED.values())[which]
    together = pm.step(d, batch=[1, batch], context=[context, context])
    alone = pm.step(d, batch=batch, context=context)
    assert isinstance(alone.seconds, float)
    assert together.seconds[1] == pytest.approx(alone.seconds, rel=1e-12)
    assert together.seconds_low[1] == pytest.approx(alone.seconds_low, rel=1e-12)
    assert together.bound_by[1] == alone.bound_by
    for row in alone.rows:
        assert np.broadcast_to(named(together, row.name).seconds, (2,))[1] == pytest.approx(row.seconds, rel=1e-12)


def test_shapes_broadcast_and_scalars_stay_scalars() -> None:
    d = DEPLOYED["vllm tp8"]
    assert pm.step(d, batch=[1, 2, 4], context=[[10], [20]]).seconds.shape == (2, 3)
    answer = pm.step(d, batch=1, context=10).to_dict()
    assert {"seconds", "seconds_low", "seconds_high", "bound_by", "rows"} <= set(answer)
    fields = {"name", "seconds", "flop", "bytes", "message_bytes", "kernels", "bound_by", "source"}
    assert all(set(row) == fields for row in answer["rows"])
    assert isinstance(answer["seconds"], float)
    assert isinstance(pm.step(d, batch=[1, 2]).to_dict()["seconds"], list)


@pytest.mark.parametrize("split", [{"tp": 8}, {"tp": 4, "pp": 2}, {"pp": 8}, {"tp": 8, "ep": 8}])
@pytest.mark.parametrize("engine", ["sglang==0.5.10", "vllm==0.33.0"])
def test_graphs_are_never_slower_at_captured_sizes(engine: str, split: dict[str, int]) -> None:
    common = {"engine": engine, "memory_fraction": 0.92, "max_sequences": 64, **split}
    on, off = (kimi(cuda_graphs=graphs, **common) for graphs in (True, False))
    batch, context = [1, 2, 4, 8, 16, 32, 64], [[100], [10000]]  # what a slot gets is captured, nothing is padded
    fast, slow = (pm.step(d, batch=batch, context=context).seconds for d in (on, off))
    assert np.all(fast <= slow * (1 + 1e-12))


def test_memory_fraction_does_not_change_the_speed() -> None:
    """`step` always answers: not even an empty KV pool may change how the slots of a pipeline are filled."""
    empty, roomy = (kimi(pp=8, cuda_graphs=False, memory_fraction=fraction) for fraction in (0.5, 0.92))
    batch = [1, 4, 8, 16]
    assert pm.step(empty, batch=batch).seconds == pytest.approx(pm.step(roomy, batch=batch).seconds)


@pytest.mark.parametrize(
    "question", [{"batch": 0}, {"batch": -1}, {"batch": float("nan")}, {"batch": []}, {"batch": "a"},
                 {"batch": 1, "context": -1}, {"batch": 1, "context": float("inf")}],
)  # fmt: skip
def test_sizes_that_make_no_sense_are_refused(question: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must be"):
        pm.step(DEPLOYED["vllm tp8"], **question)
    with pytest.raises(BadInput, match="tokens must be"):
        pm.prefill(DEPLOYED["vllm tp8"], tokens=0)


# ---------------------------------------------------------------- bytes of the case


def test_bytes_of_one_sequence() -> None:
    """6.0 GB a GPU under TP8, since the latent projections and the router are replicated; 33.0 GB under PP8."""
    assert reads(pm.step(kimi(tp=8, **EVEN), batch=1, context=0)) == pytest.approx(6.0e9, rel=0.05)
    assert reads(pm.step(kimi(pp=8, **CASE, **EVEN), batch=1, context=0)) == pytest.approx(33.0e9, rel=0.05)


def test_bytes_of_a_burst_in_one_slot() -> None:
    """C = 1, 4, 8 in one slot of the pipeline with even routing: 33.0, 67.2, 109.6 GB."""
    cost = pm.step(kimi(pp=8, **CASE, **EVEN), batch=[1, 4, 8], context=0)
    assert reads(cost) == pytest.approx([33.0e9, 67.2e9, 109.6e9], rel=0.10)


@pytest.mark.parametrize("tp", [1, 8])
def test_the_experts_of_one_token_read_eight_experts(tp: int) -> None:
    """Bytes are bytes: 8 of 24.8 MB in each of 60 layers and the activations; a lost efficiency belongs to seconds."""
    row = named(pm.step(kimi(tp=tp, pp=8 // tp, **CASE), batch=1, context=0), "routed experts")
    weights = 60 * 8 * 3 * 7168 * 2048 * 0.5625 / tp
    activations = 60 * 8 * (2 * 7168 + 4 * 2048 / tp) * 2
    assert row.flop == 60 * 8 * 2 * 3 * 7168 * 2048 / tp
    assert row.bytes == pytest.approx(weights + activations, rel=0.01)


@pytest.mark.parametrize("context", [1000, 10_000])
def test_decode_attention_reads_the_latent_of_every_token(context: int) -> None:
    """The slope is exact: 61 layers x 576 values; the new token's own entry counts too."""
    d = kimi("vllm==0.33.0", tp=8, kv_dtype="fp8")
    cost = pm.step(d, batch=16, context=[context, 2 * context])
    row = named(cost, "decode attention")
    assert row.bytes[1] - row.bytes[0] == pytest.approx(16 * 61 * 576 * context)


def test_dense_rows_read_their_weights_once_whatever_the_batch() -> None:
    cost = pm.step(DEPLOYED["vllm tp8"], batch=[1, 64], context=0)
    o_proj, q_a = named(cost, "output projection"), named(cost, "q_a, kv_a projections")
    assert o_proj.bytes[0] == pytest.approx(61 * 64 * 128 * 7168 * 2 / 8, rel=0.01)
    assert q_a.bytes[0] == pytest.approx(61 * 7168 * 2112 * 2, rel=0.01)  # replicated on all eight ranks
    assert o_proj.bytes[1] < 1.2 * o_proj.bytes[0]
    assert o_proj.flop[1] == 64 * o_proj.flop[0]


def test_the_head_runs_over_the_sampled_rows_only() -> None:
    row = named(pm.prefill(DEPLOYED["vllm tp8"], tokens=8192), "lm head")
    assert row.flop == 2 * 163840 / 8 * 7168


def test_a_dense_model_reads_all_but_its_embedding() -> None:
    """Llama 3.1 8B: 8.03 billion parameters, 0.525 of them in the table of which one row is read."""
    d = pm.deploy("llama-3.1-8b", node=CASE_NODE, engine="vllm==0.33.0")
    assert reads(pm.step(d, batch=1, context=0)) == pytest.approx((8.030e9 - 0.5253e9) * 2, rel=0.01)


# ---------------------------------------------------------------- collectives of a step


@pytest.mark.parametrize("engine", ["sglang==0.5.10", "vllm==0.33.0"])
def test_tensor_parallel_step_has_two_all_reduces_a_layer_and_one_for_the_embedding(engine: str) -> None:
    cost = pm.step(kimi(engine, tp=8), batch=4, context=100)
    layers = [named(cost, f"all-reduce ({place})") for place in ("attention", "mlp", "embedding")]
    assert [row.kernels for row in layers] == [61, 61, 1]
    assert [row.message_bytes for row in layers] == [4 * 14336] * 3
    gather = named(cost, "all-gather (logits)")
    assert (gather.kernels, gather.message_bytes) == (1, 4 * 327680)


def test_pipelines_have_hops_and_no_all_reduce() -> None:
    cost = pm.step(kimi(pp=8, **CASE), batch=1, context=100)
    assert not [row.name for row in cost.rows if "all-" in row.name]
    hops = named(cost, "pipeline hops")
    assert (hops.kernels, hops.message_bytes) == (8, 28672)  # seven between stages, one back


def test_attention_groups_gather_and_scatter_around_every_mlp() -> None:
    cost = pm.step(kimi(tp=8, ep=8, dp_attention=8), batch=16, context=100)
    gather, scatter = named(cost, "all-gather (mlp)"), named(cost, "reduce-scatter (mlp)")
    assert [gather.kernels, scatter.kernels] == [61, 61]
    assert gather.message_bytes == scatter.message_bytes == 16 * 14336
    assert not [row.name for row in cost.rows if row.name.startswith("all-reduce")]


@pytest.mark.parametrize("keywords", [{"tp": 1, "pp": 1}, {"pp": 8}])
def test_one_rank_a_stage_talks_to_nobody(keywords: dict[str, int]) -> None:
    cost = pm.step(kimi(**keywords), batch=8, context=100)
    assert not [row.name for row in cost.rows if row.message_bytes and row.name != "pipeline hops"]


# ---------------------------------------------------------------- pipeline


def slots(d: Deployment, batch: int, arrival: str | None = None) -> list[tuple[float, float]]:
    """(sequences, slots that hold so many), the occupied ones."""
    dealt = occupancy(d, [batch], 64, arrival)
    pairs = zip(dealt.batch[0, :, 0].tolist(), dealt.count[0, :, 0].tolist(), strict=True)
    return [(size, count) for size, count in pairs if count]


def test_a_burst_fills_one_slot_up_to_the_limit() -> None:
    d = kimi(pp=8, **CASE)  # 64 running // 8 stages
    assert [slots(d, n) for n in (1, 8, 9, 16, 64)] == [
        [(1, 1)], [(8, 1)], [(8, 1), (1, 1)], [(8, 2)], [(8, 8)],
    ]  # fmt: skip


def test_staggered_arrivals_spread_over_the_slots() -> None:
    d = kimi(pp=8, **CASE)
    assert [slots(d, n, "staggered") for n in (1, 8, 9, 16, 20)] == [
        [(1, 1)], [(1, 8)], [(2, 1), (1, 7)], [(2, 8)], [(3, 4), (2, 4)],
    ]  # fmt: skip


@pytest.mark.parametrize("arrival", ["burst", "staggered"])
@pytest.mark.parametrize("d", [kimi(pp=8, **CASE), kimi(tp=2, pp=4, **CASE), kimi("vllm==0.33.0", pp=8)])
def test_slots_are_filled_by_the_rule_of_the_engine(d: Deployment, arrival: str) -> None:
    for batch in range(1, 65):
        dealt = [size for size, count in slots(d, batch, arrival) for _ in range(int(count))]
        expected = [size for size in d.engine.fill(batch, d.options, 64, arrival) if size]
        assert sorted(dealt) == sorted(expected), batch


@pytest.mark.parametrize("arrival", ["burst", "staggered"])
@pytest.mark.parametrize("limit", [1, 8, None])
def test_no_sequence_is_lost_on_its_way_into_the_slots(arrival: str, limit: int | None) -> None:
    d = kimi(pp=8, **CASE, max_micro_batch=limit)
    for batch in (1, 5, 8) if limit == 1 else (1, 5, 8, 9, 30, 64):
        assert sum(size * count for size, count in slots(d, batch, arrival)) == batch


def test_one_slot_takes_the_sum_of_the_stages_and_the_hops() -> None:
    cost = pm.step(kimi(pp=8, **CASE), batch=1, context=100)
    assert not [row for row in cost.rows if row.name == "wait for the slowest stage"]
    one_gpu = pm.step(kimi(tp=1, cuda_graphs=False), batch=1, context=100)
    shared = {row.name: row.seconds for row in one_gpu.rows if row.bound not in ("host", "pipeline")}
    for name, seconds in shared.items():  # the same layers, wherever they sit
        assert named(cost, name).seconds == pytest.approx(seconds, rel=1e-9), name
    assert cost.seconds > sum(shared.values()) + named(cost, "pipeline hops").seconds


def test_one_sequence_a_slot_repairs_the_stall() -> None:
    """--pp-max-micro-batch-size 1: eight slots at the bytes of one sequence, instead of one slot at those of eight."""
    stalled = pm.step(kimi(pp=8, **CASE), batch=8, context=1024)
    repaired = pm.step(kimi(pp=8, **CASE, max_micro_batch=1), batch=8, context=1024)
    one = pm.step(kimi(pp=8, **CASE), batch=1, context=1024)
    assert repaired.seconds < 1.3 * one.seconds  # one trip, or the queue of the slowest stage
    assert stalled.seconds > 1.6 * repaired.seconds
    assert 8 / stalled.seconds == pytest.approx(95.6, rel=0.35)
    assert "pipeline slots filled by the rule 'burst'" in stalled.assumptions


def test_extra_slots_of_async_depth_never_shorten_a_full_round() -> None:
    """Each depth adds a micro-batch to the round: more in flight, and a longer way to the next token."""
    shallow, deep = (kimi(pp=8, **CASE, max_micro_batch=1, async_depth=depth) for depth in (0, 2))
    assert pm.step(shallow, batch=8).seconds <= pm.step(deep, batch=10).seconds


# ---------------------------------------------------------------- prefill


def test_an_8k_prompt_is_half_communication_on_pcie() -> None:
    """1.11 s for 8k tokens under vLLM TP8, 0.56 to 0.62 s of it in 122 all-reduces of 117 MB."""
    cost = pm.prefill(kimi("vllm==0.19.1", tp=8, kv_dtype="fp8"), tokens=8192)
    reduces = [named(cost, f"all-reduce ({place})") for place in ("attention", "mlp")]
    assert [row.message_bytes for row in reduces] == [8192 * 14336] * 2
    assert 0.5 < sum(row.seconds for row in reduces) < 0.65
    assert cost.seconds_low < 1.11 < cost.seconds_high


def test_one_prompt_runs_in_one_attention_group() -> None:
    """Data-parallel attention serves more prompts, not one prompt faster: all 64 heads on one rank."""
    groups = kimi(tp=8, ep=8, dp_attention=8, memory_fraction=0.94)
    attention = named(pm.prefill(groups, tokens=4096), "prefill attention")
    alone = named(pm.prefill(kimi(tp=1), tokens=4096), "prefill attention")
    assert attention.flop == pytest.approx(alone.flop, rel=0.01)


def test_chunks_of_a_prompt_attend_to_the_ones_before() -> None:
    whole, halves = (kimi("vllm==0.33.0", tp=8, prefill_chunk=chunk) for chunk in (16384, 8192))
    flop = [named(pm.prefill(d, tokens=16384), "prefill attention").flop for d in (whole, halves)]
    assert flop[0] == pytest.approx(flop[1], rel=0.001)
    exact = 61 * 2 * (16384 * 16385 / 2) * 8 * (192 + 128)
    assert flop[0] == pytest.approx(exact, rel=0.001)


def test_collective_alone_agrees_with_the_row_of_the_step() -> None:
    d = kimi("vllm==0.33.0", tp=8)
    row = named(pm.step(d, batch=1, context=100), "all-reduce (mlp)")
    alone = pm.collective("all_reduce", node=CASE_NODE, message_bytes=14336, engine="vllm==0.33.0")
    assert row.seconds / 61 == pytest.approx(alone.seconds, rel=0.05)
