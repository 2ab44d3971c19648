"""Tensors of one layer, and what a token and a sequence leave behind, worked out by hand."""

from typing import Any

from cases import CASE_NODE, toy

import perfmodel as pm
from perfmodel.catalog import Compressed, Dense, Gqa, Indexer, Linear, Mamba2, Mla, Moe
from perfmodel.catalog.architecture import Mtp, Norms
from perfmodel.placement import cache, loaded, place
from perfmodel.placement.checkpoint import _class, _differ
from perfmodel.placement.inventory import (
    Tensor,
    attention_tensors,
    edge_tensors,
    layer_tensors,
    mlp_tensors,
    mtp_tensors,
    parameter_count,
    stored_in,
)

SAYS: dict[str, Any] = {"source": "toy", "source_kind": "assumed"}
H = 7  # hidden width


def held(tensors: tuple[Tensor, ...]) -> dict[str, tuple[str, float]]:
    assert len({t.name for t in tensors}) == len(tensors)
    return {t.name: (t.role, t.parameters) for t in tensors}


def test_tensors_of_mla() -> None:
    sizes: dict[str, Any] = {"heads": 3, "kv_lora_rank": 11, "qk_nope_head_dim": 13, "qk_rope_head_dim": 2,
                             "v_head_dim": 17}  # fmt: skip
    plain = {
        "q_proj": ("attention", 7 * 3 * 15), "kv_a_proj": ("latent", 7 * 13), "kv_a_norm": ("norm", 11),
        "kv_b_proj": ("attention", 11 * 3 * 30), "o_proj": ("attention", 3 * 17 * 7),
    }  # fmt: skip
    assert held(attention_tensors(Mla(kind="mla", **sizes, **SAYS), H)) == plain
    low = Mla(kind="mla", q_lora_rank=5, bias=True, output_gate=True, **sizes, **SAYS)
    two_steps = {name: value for name, value in plain.items() if name != "q_proj"} | {
        "q_a_proj": ("latent", 7 * 5), "q_a_norm": ("norm", 5), "q_b_proj": ("attention", 5 * 3 * 15),
        "output_gate": ("attention", 7 * 3 * 17), "attention_bias": ("norm", 13 + 7 + 5),
    }  # fmt: skip
    assert held(attention_tensors(low, H)) == two_steps
    biased = held(attention_tensors(Mla(kind="mla", bias=True, **sizes, **SAYS), H))
    assert biased["attention_bias"] == ("norm", 13 + 7)


def test_tensors_of_an_indexer() -> None:
    def of(**changes: Any) -> dict[str, tuple[str, float]]:
        indexer = Indexer(**({"heads": 2, "head_dim": 5, "topk": 64} | changes))
        a = Gqa(kind="gqa", heads=4, kv_heads=2, head_dim=3, indexer=indexer, **SAYS)
        return {name: value for name, value in held(attention_tensors(a, H)).items() if "indexer" in name}

    # query from the hidden width, one key, a weight a head; scale and shift of the key's norm
    assert of() == {"indexer": ("indexer", 7 * 2 * 5 + 7 * 5 + 7 * 2), "indexer_norm": ("norm", 10)}
    assert of(query_rank=3)["indexer"] == ("indexer", 3 * 2 * 5 + 7 * 5 + 7 * 2)
    assert of(weights=False)["indexer"] == ("indexer", 7 * 2 * 5 + 7 * 5)
    assert of(shared=True) == {}


def test_tensors_of_gqa() -> None:
    def of(**changes: Any) -> dict[str, tuple[str, float]]:
        return held(attention_tensors(Gqa(kind="gqa", heads=4, kv_heads=2, head_dim=3, **changes, **SAYS), H))

    plain = {"q_proj": ("attention", 7 * 12), "kv_proj": ("kv_heads", 7 * 12), "o_proj": ("attention", 12 * 7)}
    assert of() == plain
    (kv,) = [t for t in attention_tensors(Gqa(kind="gqa", heads=4, kv_heads=2, head_dim=3, **SAYS), H) if t.units]
    assert (kv.name, kv.units) == ("kv_proj", 2)
    wide = of(v_head_dim=5)
    assert (wide["kv_proj"][1], wide["o_proj"][1]) == (7 * 2 * 8, 4 * 5 * 7)
    assert of(v_from_k=True)["kv_proj"] == ("kv_heads", 7 * 6)
    assert "kv_proj" not in of(shares_kv=True)
    assert of(output_gate=True)["output_gate"] == ("attention", 7 * 12)
    assert of(output_gate="head")["output_gate"] == ("attention", 7 * 4)
    assert of(qk_norm=True)["qk_norm"] == ("norm", 6)
    assert of(qk_norm="full")["qk_norm"] == ("norm", 12 + 6)
    assert of(qk_norm=True, shares_kv=True)["qk_norm"] == ("norm", 3)
    assert of(qk_norm="full", shares_kv=True)["qk_norm"] == ("norm", 12)
    assert of(bias=True)["attention_bias"] == ("norm", 12 + 12)
    assert of(output_bias=True)["attention_bias"] == ("norm", 7)
    assert of(bias=True, output_bias=True)["attention_bias"] == ("norm", 12 + 12 + 7)
    assert of(sinks=True)["sinks"] == ("norm", 4)


def test_tensors_of_compressed_attention() -> None:
    sizes: dict[str, Any] = {"heads": 3, "head_dim": 5, "rope_head_dim": 2, "q_lora_rank": 11, "o_lora_rank": 13,
                             "o_groups": 2, "window": 64}  # fmt: skip
    window = {
        "q_a_proj": ("latent", 7 * 11), "q_b_proj": ("attention", 11 * 3 * 5), "kv_proj": ("latent", 7 * 5),
        "o_a_proj": ("attention", 3 * 5 * 13), "o_b_proj": ("attention", 2 * 13 * 7),
        "attention_norms": ("norm", 11 + 5 + 3),
    }  # fmt: skip
    assert held(attention_tensors(Compressed(kind="compressed", **sizes, **SAYS), H)) == window
    indexer = Indexer(heads=17, head_dim=19, topk=64)
    by_four = Compressed(kind="compressed", ratio=4, overlap=True, indexer=indexer, **sizes, **SAYS)
    assert held(attention_tensors(by_four, H)) == window | {
        "compressor": ("compressor", 2 * 7 * 10), "compressor_norm": ("norm", 4 * 10 + 5),
        "indexer": ("indexer", 11 * 17 * 19), "indexer_compressor": ("compressor", 7 * (17 + 76)),
        "indexer_norm": ("norm", 2 * 4 * 19 + 19),
    }  # fmt: skip
    apart = Compressed(kind="compressed", ratio=4, **sizes, **SAYS)
    assert held(attention_tensors(apart, H))["compressor"] == ("compressor", 2 * 7 * 5)


def test_tensors_of_linear_attention() -> None:
    def of(rule: str, **changes: Any) -> dict[str, tuple[str, float]]:
        sizes: dict[str, Any] = {"key_heads": 2, "value_heads": 3, "key_dim": 5, "value_dim": 11, "conv": 4}
        return held(attention_tensors(Linear(kind="linear", rule=rule, **sizes, **changes, **SAYS), H))  # type: ignore[arg-type]

    # keys 10, values 33 wide
    shared = {"in_proj_qkv": ("linear", 7 * 53), "in_proj_gate": ("linear", 7 * 33), "conv1d": ("conv", 53 * 4),
              "out_proj": ("linear", 33 * 7)}  # fmt: skip
    assert of("gdn") == shared | {"in_proj_ba": ("linear", 7 * 2 * 3), "decay": ("state", 6),
                                  "state_norm": ("norm", 11)}  # fmt: skip
    assert of("lightning") == shared | {"state_norm": ("norm", 33)}
    assert of("kda") == shared | {"forget_gate": ("linear", 7 * 5 + 5 * 10), "in_proj_b": ("linear", 7 * 3),
                                  "decay": ("state", 10 + 3), "state_norm": ("norm", 11)}  # fmt: skip
    assert of("gdn", gate_rank=13)["in_proj_gate"] == ("linear", 7 * 13 + 13 * 33)


def test_tensors_of_mamba() -> None:
    sizes: dict[str, Any] = {"heads": 3, "head_dim": 5, "state": 11, "groups": 2, "conv": 4}
    plain = Mamba2(kind="mamba2", conv_bias=False, **sizes, **SAYS)
    # 15 inside, 15 + 2 x 2 x 11 = 59 mixed, 77 in all with a step a head
    assert held(attention_tensors(plain, H)) == {
        "in_proj": ("linear", 7 * 77), "out_proj": ("linear", 15 * 7), "conv1d": ("conv", 59 * 4),
        "decay": ("state", 9), "state_norm": ("norm", 15)}  # fmt: skip
    biased = held(attention_tensors(Mamba2(kind="mamba2", bias=True, **sizes, **SAYS), H))
    assert (biased["conv1d"], biased["mixer_bias"]) == (("conv", 59 * 5), ("norm", 77 + 7))


def test_tensors_of_an_mlp() -> None:
    def dense(**changes: Any) -> dict[str, tuple[str, float]]:
        return held(mlp_tensors(Dense(kind="dense", intermediate=11, **changes, **SAYS), H))

    assert dense() == {"mlp": ("dense", 3 * 7 * 11)}
    assert dense(gated=False) == {"mlp": ("dense", 2 * 7 * 11)}
    assert dense(bias=True)["mlp_bias"] == ("norm", 2 * 11 + 7)
    assert dense(bias=True, gated=False)["mlp_bias"] == ("norm", 11 + 7)


def test_tensors_of_experts() -> None:
    def moe(**changes: Any) -> dict[str, tuple[str, float]]:
        return held(mlp_tensors(Moe(kind="moe", experts=5, per_token=2, intermediate=11, **changes, **SAYS), H))

    plain = {"experts": ("experts", 5 * 3 * 7 * 11), "router": ("router", 7 * 5)}
    assert moe() == plain
    assert moe(shared_experts=2)["shared_experts"] == ("shared", 3 * 7 * 22)
    assert moe(shared_experts=2, shared_intermediate=13)["shared_experts"] == ("shared", 3 * 7 * 13)
    assert moe(shared_gate=True)["shared_gate"] == ("router", 7)
    assert moe(bias=True) == plain | {"expert_bias": ("expert_bias", 5 * 29), "router": ("router", 35 + 5)}
    assert moe(bias=True, gated=False)["expert_bias"] == ("expert_bias", 5 * 18)
    assert moe(router_bias=True)["router_bias"] == ("router_bias", 5)
    assert moe(router_scale=True)["router"] == ("router", 35 + 7 + 5)
    assert moe(latent=3, latent_norm=True) == {
        "experts": ("experts", 5 * 3 * 3 * 11), "router": ("router", 35), "latent_proj": ("latent_moe", 2 * 7 * 3),
        "latent_norm": ("norm", 3)}  # fmt: skip
    beside = moe(residual_intermediate=13)
    assert (beside["mlp"], beside["branch_norms"]) == (("dense", 3 * 7 * 13), ("norm", 21))


def test_tensors_of_a_layer_and_of_both_ends() -> None:
    model = toy(hidden=512, heads=8, kv_heads=8, head_dim=64, vocab=1000, intermediate=1024)
    assert held(layer_tensors(model, "a", "m"))["norms"] == ("norm", 2 * 512)
    assert held(layer_tensors(model, "a", "none")) == {
        "norms": ("norm", 512), "q_proj": ("attention", 512**2), "kv_proj": ("kv_heads", 2 * 512**2),
        "o_proj": ("attention", 512**2)}  # fmt: skip
    assert held(layer_tensors(model, "none", "m")) == {"norms": ("norm", 512), "mlp": ("dense", 3 * 512 * 1024)}
    assert {t.part for t in layer_tensors(model, "a", "m")} == {"", "a", "m"}
    cases = ((2, False, False, 4), (1, True, False, 1), (1, False, True, 4), (2, True, True, 4))
    for each, shared, bias, times in cases:
        norms = Norms(each=each, shared=shared, bias=bias)  # type: ignore[arg-type]
        normed = model.model_copy(update={"norms": norms})
        assert held(layer_tensors(normed, "a", "m"))["norms"] == ("norm", times * 512)
        assert held(edge_tensors(normed, False, True))["final_norm"] == ("norm", 512 * (2 if bias else 1))
    streams = model.model_copy(update={"hyper_connections": 4})
    # 4 x (2 + 4) = 24 mixes of 4 x 512 values and a shift, and three scales, before each half
    assert held(layer_tensors(streams, "a", "m"))["hyper_connections"] == ("hyper", 2 * (24 * 2049 + 3))
    table = 1000 * 512
    assert held(edge_tensors(model, True, False)) == {"embed_tokens": ("embedding", table)}
    assert held(edge_tensors(model, False, True)) == {"final_norm": ("norm", 512), "lm_head": ("head", table)}
    assert held(edge_tensors(streams, False, True))["hyper_head"] == ("hyper", 4 * 2049 + 1)
    assert edge_tensors(model, False, False) == ()
    tied = model.model_copy(update={"tied_embeddings": True})
    assert "lm_head" not in held(edge_tensors(tied, True, True))
    assert "lm_head" in held(edge_tensors(tied, False, True))
    learned = model.model_copy(update={"position_embeddings": 64})
    assert held(edge_tensors(learned, True, False))["embed_positions"] == ("norm", 64 * 512)
    assert "embed_positions" not in held(edge_tensors(learned, False, True))


def test_layers_for_multi_token_prediction() -> None:
    model = toy(hidden=512, vocab=1000)
    drafting = model.model_copy(update={"mtp": Mtp(layers=2, attention="a", mlp="m", copies=True, **SAYS)})
    rows = {t.name: (count, t.role, t.parameters) for count, t in mtp_tensors(drafting)}
    assert rows["mtp_projection"] == (2, "mtp", 2 * 512**2)
    assert rows["mtp_norms"] == (2, "norm", 3 * 512)
    assert rows["embed_tokens"] == (2, "embedding", 512_000)
    assert rows["lm_head"] == (2, "head", 512_000)
    assert rows["mlp"] == (2, "dense", 3 * 512 * 1024)
    bare = Mtp(layers=1, attention="a", mlp="m", projection=False, **SAYS)
    names = {t.name for _, t in mtp_tensors(model.model_copy(update={"mtp": bare}))}
    assert not names & {"mtp_projection", "embed_tokens", "lm_head"}
    assert mtp_tensors(model) == ()
    # a layer of 4 x 512^2 + 3 x 512 x 1024 + 2 norms, twice, with projection, norms, embedding and head
    extra = 2 * (4 * 512**2 + 3 * 512 * 1024 + 2 * 512 + 2 * 512**2 + 3 * 512 + 2 * 512_000)
    assert parameter_count(drafting, mtp=True) - parameter_count(drafting) == extra
    assert parameter_count(drafting) == 4 * (4 * 512**2 + 3 * 512 * 1024 + 2 * 512) + 2 * 512_000 + 512


def test_a_tensor_is_stored_by_its_name_its_role_or_its_section() -> None:
    tensor = Tensor("kv_proj", "kv_heads", 1.0, "a")
    formats: dict[str, Any] = {"default": 0, "attention": 1, "kv_heads": 2, "kv_proj": 3, "a.attention": 4,
                               "a.kv_heads": 5, "a.kv_proj": 6}  # fmt: skip
    for key in reversed(formats):  # the narrowest key that is there
        table = {name: value for name, value in formats.items() if value <= formats[key]}
        assert stored_in(table, tensor) == formats[key]


# ---------------------------------------------------------------- what a token and a sequence leave behind


def test_cache_of_a_token_in_every_kind_of_attention() -> None:
    mla = Mla(kind="mla", heads=8, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, **SAYS)
    of = cache.kv_bytes_per_token_layer
    assert [of(mla, word, 8) for word in ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")] == [1152, 576, 656, 352]
    gqa = Gqa(kind="gqa", heads=8, kv_heads=4, head_dim=64, v_head_dim=32, **SAYS)
    assert [of(gqa, "bf16", ranks) for ranks in (1, 2, 8)] == [4 * 96 * 2, 2 * 96 * 2, 96 * 2]
    assert of(gqa.model_copy(update={"shares_kv": True}), "bf16", 1) == of(None, "bf16", 1) == 0
    indexer = Indexer(heads=4, head_dim=130, topk=64)  # two scales of 4 B for 130 values
    assert cache.index_bytes(indexer) == 130 + 8
    assert of(gqa.model_copy(update={"indexer": indexer}), "fp8", 1) == 4 * 96 + 138
    assert cache.index_bytes(indexer.model_copy(update={"shared": True})) == cache.index_bytes(None) == 0
    sizes: dict[str, Any] = {"heads": 3, "head_dim": 512, "rope_head_dim": 64, "q_lora_rank": 11, "o_lora_rank": 13,
                             "o_groups": 2, "window": 100}  # fmt: skip
    v4 = Compressed(kind="compressed", ratio=4, overlap=True, indexer=indexer, **sizes, **SAYS)
    assert of(v4, "fp8", 8) == (584 + 138) / 4
    assert of(v4, "bf16", 8) == (1024 + 138) / 4
    alone = Compressed(kind="compressed", **sizes, **SAYS)
    assert of(alone, "fp8", 8) == 0
    assert cache.window_bytes_per_sequence_layer(v4, "fp8") == 100 * 584
    assert cache.window_bytes_per_sequence_layer(gqa, "fp8") == 0
    assert [cache.window_of(a) for a in (alone, v4, gqa, mla, None)] == [100, None, None, None, None]
    # entry, key and score of the compressor in FP32 (two blocks overlap), and the indexer's; a quarter of padding
    assert cache.in_flight_bytes_per_token_layer(v4, "fp8") == 1.25 * (584 + 2 * 2 * 512 * 4 + 2 * 2 * 130 * 4)
    assert cache.in_flight_bytes_per_token_layer(alone, "fp8") == 1.25 * 584
    assert cache.in_flight_bytes_per_token_layer(gqa, "fp8") == 0
    apart = v4.model_copy(update={"overlap": False, "indexer": None})
    assert cache.in_flight_bytes_per_token_layer(apart, "fp8") == 1.25 * (584 + 2 * 512 * 4)


def test_states_of_a_sequence() -> None:
    of = cache.state_bytes_per_sequence_layer
    mamba = Mamba2(kind="mamba2", heads=8, head_dim=5, state=11, groups=2, conv=4, state_bits=16, **SAYS)
    assert of(mamba, 1) == (40 + 2 * 2 * 11) * 3 * 2 + 40 * 11 * 2
    assert of(mamba, 4) == (40 + 2 * 4 * 11) / 4 * 3 * 2 + 40 * 11 / 4 * 2  # a group a rank at least
    assert of(mamba, 1, state_bytes=4.0, conv_bytes=1.0, draft_tokens=2) == 84 * 5 + 440 * 4
    linear = Linear(kind="linear", rule="lightning", key_heads=2, value_heads=4, key_dim=5, value_dim=11, **SAYS)
    assert of(linear, 2, draft_tokens=2) == 44 / 2 * 5 * 4  # no convolution, nothing to draft for; FP32


def test_latents_are_packed_where_attention_is_sparse() -> None:
    sizes: dict[str, Any] = {"heads": 8, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                             "v_head_dim": 128}  # fmt: skip
    full, sparse = (Mla(kind="mla", indexer=indexer, **sizes, **SAYS)
                    for indexer in (None, Indexer(heads=64, head_dim=128, topk=2048)))  # fmt: skip
    assert cache.cached_as(sparse, "fp8_e4m3", "vllm", 9.0) == "fp8_ds_mla"
    assert cache.cached_as(sparse, "fp8", "sglang", 12.0) == "fp8_ds_mla"
    for attention, word, engine, capability in (
        (full, "fp8", "vllm", 9.0), (sparse, "bf16", "vllm", 9.0), (sparse, "fp8", "tensorrt-llm", 9.0),
        (sparse, "fp8", "vllm", 10.3), (None, "fp8", "vllm", 9.0),
    ):  # fmt: skip
        assert cache.cached_as(attention, word, engine, capability) == word


def test_a_checkpoint_that_differs_is_named_by_class() -> None:
    for name, role, expected in (("qk_norm", "norm", "attention"), ("norms", "norm", "norms"),
                                 ("experts", "experts", "experts"), ("router_bias", "router_bias", "router")):
        assert _class(Tensor(name, role, 1.0)) == expected
    assert _differ("head", 1000.0, 1005.0, 1e4) == ()  # within 0.5 % of the class
    assert _differ("head", 1000.0, 1006.0, 1e5) == ()  # within 0.01 % of the whole
    assert _differ("head", 1e9, 1.1e9, 1e10) == (
        "head: the checkpoint has 1.000 GB, the architecture gives 1.100 GB (+10.0 %)",)
    assert _differ("mtp", 0.0, 2e9, 1e10) == ("mtp: not in the checkpoint, the architecture gives 2.000 GB",)


# ---------------------------------------------------------------- what loading adds


def test_rounding_of_the_allocator_by_engine() -> None:
    """Gate and up of 2 x 512 x 5376 values are 10.5 MiB: 1.5 to the next step of 2, which is split off and serves
    others under vLLM's count, and is gone under SGLang's; 5.25 MiB of the down projection are not rounded."""
    model = toy(hidden=512, intermediate=5376)
    sglang, vllm = (loaded.layer_rounding_bytes(pm.deploy(model, node=CASE_NODE, engine=engine), "a", "m")
                    for engine in ("sglang==0.5.10", "vllm==0.33.0"))  # fmt: skip
    assert (sglang, vllm) == (1.5 * 2**20, 0.0)
    for gated, times in ((True, 3), (False, 2)):
        assert loaded._pair(lambda role, part, size: size, "dense", "m", 7.0, gated) == times * 7


def test_drafting_layers_count_where_the_launch_asks_for_them() -> None:
    drafts = [place(pm.deploy("deepseek-v3", node="8x-h200-sxm", engine="vllm==0.33.0", tp=8, speculative=word)).drafts
              for word in (None, "ngram:2", "mtp:1")]  # fmt: skip
    assert [sum(layers) for layers in drafts] == [0, 0, 1]
