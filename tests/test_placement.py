"""What every rank holds: nothing is lost, nothing is counted twice, and what is replicated is replicated on purpose."""

from typing import Any

import numpy as np
import pytest
from cases import CASE_NODE, GIB, kimi, toy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.catalog import ModelArch
from perfmodel.deployment import Deployment
from perfmodel.errors import IllegalDeployment
from perfmodel.placement import Placement, place, text_bytes, weight_width
from perfmodel.placement.inventory import text_tensors, vision_tensors

MODELS = {
    "kimi-k2.6": pm.load_model("kimi-k2.6"),
    "llama-3.1-8b": pm.load_model("llama-3.1-8b"),
    "toy-moe": toy(layers=6, heads=16, kv_heads=4, experts=16, per_token=2),
}


@st.composite
def strategies(draw: st.DrawFn) -> dict[str, Any]:
    """Ways to spread a model over up to eight GPUs."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    divisors = st.sampled_from([n for n in (1, 2, 4, 8) if n <= tp])
    return {
        "model": draw(st.sampled_from(sorted(MODELS))),
        "engine": draw(st.sampled_from(["sglang==0.5.10", "vllm==0.33.0"])),
        "tp": tp,
        "pp": draw(st.integers(1, 8 // tp)),
        "ep": draw(divisors),
        "dp_attention": draw(divisors),
    }


def legal(model: str, engine: str, **split: Any) -> Deployment:
    """The deployment, if the engine can run it."""
    try:
        return pm.deploy(MODELS[model], node=CASE_NODE, engine=engine, **split)
    except IllegalDeployment:
        assume(False)
        raise


def copies(d: Deployment, role: str) -> float:
    """How often one engine copy stores a tensor of this role, over all its ranks.

    Nothing of the latent, the norms and the router is divided by tensor parallelism. Attention is whole in every
    attention group. SGLang divides shared experts, dense layers and head over all of tp, vLLM inside the group.
    """
    o, facts = d.options, d.facts
    outside = 1 if o.engine == "sglang" else o.dp_attention
    kv_heads = o.tp * max(1, facts.kv_heads // o.attention_tp) / facts.kv_heads
    return {
        "experts": 1, "latent": o.tp, "norm": o.tp, "router": o.tp, "router_bias": o.tp, "attention": o.dp_attention,
        "kv_heads": kv_heads, "shared": outside, "dense": outside, "embedding": o.dp_attention, "head": outside,
    }[role]  # fmt: skip


def text_of(placement: Placement) -> float:
    """Bytes of the text model over all ranks of an engine copy, engine copies of tensors left out."""
    beside = ("vision tower", "absorbed MLA copies", "rotary tables", "allocator rounding", "padding of experts")
    parts = [values.sum() for name, values in placement.parts.items() if name not in beside]
    return float(placement.deployment.options.tp * sum(parts))


@given(strategies())
@settings(max_examples=150)
def test_all_ranks_together_hold_the_inventory_and_its_replicas(strategy: dict[str, Any]) -> None:
    d = legal(**strategy)
    expected = sum(
        count * tensor.parameters * weight_width(d.formats, tensor.role) * copies(d, tensor.role)
        for count, tensor in text_tensors(d.model)
    )
    assert text_of(place(d)) == pytest.approx(expected, rel=1e-9)
    assert expected >= text_bytes(d) * (1 - 1e-12)


@given(strategies())
@settings(max_examples=100)
def test_every_stage_has_the_vision_tower_once_an_attention_group(strategy: dict[str, Any]) -> None:
    """SGLang 0.5.10 layers/attention/vision.py divides the tower's attention by the attention group, and builds the
    tower on every pipeline stage; its MLPs and the projector are whole on every rank."""
    d = legal(**strategy)
    o = d.options
    times = {"vision": o.dp_attention * o.pp, "vision_replicated": o.tp * o.pp}
    expected = sum(2.0 * tensor.parameters * times[tensor.role] for tensor in vision_tensors(d.model))
    held = place(d).parts.get("vision tower", np.zeros(o.pp)).sum() * o.tp
    assert held == pytest.approx(expected, rel=1e-9)


@given(strategies())
@settings(max_examples=60)
def test_layers_and_parts_add_up(strategy: dict[str, Any]) -> None:
    d = legal(**strategy)
    placement = place(d)
    assert placement.layers.sum() == d.model.layers
    assert placement.layers.min() >= 1
    assert np.all(placement.counts.sum(axis=0) == [_of_kind(d.model, kind) for kind in placement.kinds])
    assert placement.weights_bytes == pytest.approx(np.sum(list(placement.parts.values()), axis=0))
    assert all(np.all(values >= 0) for values in placement.parts.values())


def _of_kind(model: ModelArch, kind: tuple[str, str]) -> int:
    return sum(block.layers for block in model.blocks if (block.attention, block.mlp) == kind)


@pytest.mark.parametrize("engine", ["sglang==0.5.10", "sglang==0.5.3", "vllm==0.33.0", "vllm==0.6.6.post1"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite"])
def test_more_stages_never_give_the_fullest_more_layers(engine: str, model: str) -> None:
    layers, weights = [], []
    for pp in range(1, 9):
        placement = place(pm.deploy(model, node=CASE_NODE, engine=engine, pp=pp))
        layers.append(int(placement.layers.max()))
        weights.append(float(placement.weights_bytes.max()))
        assert layers[-1] >= -(-placement.deployment.model.layers // pp)
    even = not engine.endswith(("0.5.3", "post1"))  # those put the whole remainder on the last stage
    if even:
        assert layers == sorted(layers, reverse=True)
    assert weights[-1] < weights[0]


@pytest.mark.parametrize(
    ("engine", "pp", "split"),
    [
        ("sglang==0.5.10", 8, [7, 7, 7, 8, 8, 8, 8, 8]),
        ("sglang==0.5.10", 4, [15, 15, 15, 16]),
        ("sglang==0.5.10", 2, [30, 31]),
        ("sglang==0.5.10", 3, [20, 20, 21]),
        ("vllm==0.33.0", 8, [7, 7, 8, 8, 8, 8, 8, 7]),
        ("vllm==0.33.0", 4, [15, 15, 16, 15]),
    ],
)
def test_engines_deal_out_61_layers_each_in_its_own_way(engine: str, pp: int, split: list[int]) -> None:
    assert place(kimi(engine, pp=pp)).layers.tolist() == split


def test_old_sglang_puts_the_remainder_on_the_last_stage() -> None:
    assert place(kimi("sglang==0.5.3", pp=8, patches=["pp"])).layers.tolist() == [7] * 7 + [12]


def test_layers_per_stage_move_weights_and_cache_with_them() -> None:
    lean_end = place(kimi(pp=8, layers_per_stage=[8, 8, 8, 8, 8, 7, 7, 7]))
    default = place(kimi(pp=8))
    assert lean_end.layers.tolist() == [8, 8, 8, 8, 8, 7, 7, 7]
    assert lean_end.kv_bytes_per_token.tolist() == [1152 * n for n in (8, 8, 8, 8, 8, 7, 7, 7)]
    assert text_of(lean_end) == pytest.approx(text_of(default), rel=1e-12)
    # the head is 2.19 GiB, less than a layer: fewer layers on the last stage lower the peak
    assert lean_end.weights_bytes.max() < default.weights_bytes.max()


def test_the_dense_layer_the_embedding_and_the_head_sit_at_their_ends() -> None:
    parts = place(kimi(pp=8)).parts
    for name, stage in (("dense MLP", 0), ("embedding", 0), ("lm head", 7)):
        assert np.flatnonzero(parts[name]).tolist() == [stage]
    table = 163840 * 7168 * 2
    assert (parts["embedding"][0], parts["lm head"][7]) == (table, table)
    assert parts["dense MLP"][0] == 3 * 7168 * 18432 * 2
    assert parts["experts"][0] == 6 * 384 * 3 * 7168 * 2048 * 0.5625  # six of its seven layers have experts


def test_tied_embeddings_are_stored_once_a_stage() -> None:
    tied = toy(vocab=32000).model_copy(update={"tied_embeddings": True})
    free = toy(vocab=32000)
    table = 32000 * 512 * 2
    held = {
        (model.tied_embeddings, pp): float(place(pm.deploy(model, node=CASE_NODE, pp=pp)).weights_bytes.sum())
        for model in (tied, free)
        for pp in (1, 2)
    }
    assert held[False, 1] - held[True, 1] == table
    assert held[False, 2] == held[True, 2]  # first and last stage need it each


def test_attention_groups_multiply_attention_and_nothing_else() -> None:
    plain, groups = place(kimi(tp=8)).parts, place(kimi(tp=8, dp_attention=8)).parts
    replicated = 61 * (7168 * 2112 + 1536 + 512) * 2  # q_a, kv_a and their norms, on every rank either way
    norms = 61 * 2048 * 2
    divided = 61 * (1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168) * 2
    assert plain["attention"][0] == pytest.approx(replicated - norms + divided / 8, rel=1e-9)
    assert groups["attention"][0] == pytest.approx(replicated - norms + divided, rel=1e-9)
    assert groups["embedding"][0] == 8 * plain["embedding"][0]
    assert groups["absorbed MLA copies"][0] == pytest.approx(8 * plain["absorbed MLA copies"][0])
    for same in ("experts", "shared experts", "dense MLP", "lm head", "norms and router"):
        assert groups[same][0] == plain[same][0], same


def test_vllm_replicates_dense_layers_shared_experts_and_head_in_every_attention_group() -> None:
    """Tensor parallelism ends at the group there: `-tp 1 -dp 8`."""
    groups = place(kimi("vllm==0.33.0", tp=8, dp_attention=8, ep=8)).parts
    assert groups["shared experts"][0] == 60 * 3 * 7168 * 2048 * 2
    assert groups["dense MLP"][0] == 3 * 7168 * 18432 * 2
    assert groups["lm head"][0] == 163840 * 7168 * 2
    assert groups["experts"][0] == 60 * 48 * 3 * 7168 * 2048 * 0.5625


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_expert_parallelism_moves_experts_and_keeps_their_bytes(ep: int) -> None:
    assert place(kimi(tp=8, ep=ep)).weights_bytes[0] == pytest.approx(place(kimi(tp=8)).weights_bytes[0], rel=1e-12)


def test_absorbed_copies_are_a_gibibyte_in_all() -> None:
    """SGLang keeps kv_b_proj and its two halves: 64 heads x 256 x 512 x 2 B in each of 61 layers, 1.02 GB."""
    assert place(kimi(tp=1, pp=1)).parts["absorbed MLA copies"].sum() == 61 * 64 * 256 * 512 * 2


def test_cache_by_stage_and_by_type() -> None:
    assert place(kimi(pp=8)).kv_bytes_per_token.tolist() == [8064.0] * 3 + [9216.0] * 5
    assert place(kimi(pp=8, kv_dtype="fp8")).kv_bytes_per_token.tolist() == [4032.0] * 3 + [4608.0] * 5
    assert place(kimi(tp=8, ep=8)).kv_bytes_per_token.tolist() == [70272.0]  # on every rank: nothing belongs to a head


def test_decode_context_parallelism_divides_the_cache_of_a_token() -> None:
    """Kimi K2 on 8 x H200: 46.80 GiB hold 715,072 tokens, and 5,721,088 with dcp 8."""
    plain, spread = (place(kimi("vllm==0.33.0", tp=8, dcp=dcp)).kv_bytes_per_token[0] for dcp in (1, 8))
    assert spread == plain / 8


def test_a_kv_head_is_replicated_when_there_are_more_ranks() -> None:
    model = toy(heads=16, kv_heads=4, head_dim=64)
    held = [place(pm.deploy(model, node=CASE_NODE, tp=tp)) for tp in (1, 2, 4, 8)]
    assert [p.kv_bytes_per_token[0] / held[0].kv_bytes_per_token[0] for p in held] == [1, 0.5, 0.25, 0.25]
    kv_weights = 4 * 2 * 4 * 64 * 512 * 2  # four layers
    attention = [p.parts["attention"][0] for p in held]
    assert attention[2] - kv_weights / 4 == pytest.approx(2 * (attention[3] - kv_weights / 4))


def test_published_spread_of_the_stages() -> None:
    """18.6 GB between the lightest and the heaviest stage of PP8, against 68 to 86 seen."""
    weights = place(kimi(pp=8)).weights_bytes
    assert (weights.max() - weights.min()) / 1e9 == pytest.approx(18.6, abs=0.05)
    assert weights.max() / GIB == pytest.approx(76.3, abs=0.05)
