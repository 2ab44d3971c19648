"""What loading adds to the weights of a rank, and what a sequence leaves behind, worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from cases import CASE_NODE, toy

import perfmodel as pm
from perfmodel.catalog import Format, Gqa, Linear, Mla, Moe
from perfmodel.deployment import Deployment
from perfmodel.placement import cache, loaded, place
from perfmodel.placement.inventory import Tensor, edge_tensors, layer_tensors, parameter_count, vision_tensors
from perfmodel.placement.place import rank_bytes, tensor_width, text_bytes, weight_width

MIB = 2.0**20
H100 = "8x-h100-sxm"
SAYS: dict[str, Any] = {"source": "toy", "source_kind": "assumed"}


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


def on(model: Any, engine: str = "vllm==0.33.0", node: str = H100, **options: Any) -> Deployment:
    return pm.deploy(model, node=node, engine=engine, **options)


# ---------------------------------------------------------------- rotary tables


@pytest.mark.parametrize(("model", "vllm", "sglang"), [
    ("llama-3.1-8b", 131072 * 128 * 2, 131072 * 128 * 4),
    ("deepseek-v3", 163840 * 64 * 2 * 2, 163840 * 64 * 4),  # kept in FP32 by vLLM's class for YaRN
    ("deepseek-v3.2", 163840 * 64 * 2, 163840 * 64 * 4),
    ("gemma-3-27b", (8 + 1) * 131072 * 128 * 2, (8 + 1) * 131072 * 128 * 4),  # global layers are scaled by 8
    ("qwen3-next-80b-a3b", 262144 * 64 * 2, 262144 * 64 * 4),  # a quarter of 256; the linear layers have none
    ("glm-4.5", 131072 * 64 * 2, 131072 * 64 * 4), ("phi-2", 2048 * 32 * 2, 2048 * 32 * 4),
    ("qwen2.5-vl-7b", 4 * 128000 * 128 * 2, 4 * 128000 * 128 * 4), ("opt-125m", 0, 0),
    ("deepseek-v4-flash", 1048576 * 64 * 2, 1048576 * 64 * 4), ("mistral-7b-v0.1", 32768 * 128 * 2, 32768 * 128 * 4),
])  # fmt: skip
def test_tables_of_cosines_and_sines(model: str, vllm: float, sglang: float) -> None:
    arch = pm.load_model(model)
    for engine, size in (("vllm==0.33.0", vllm), ("sglang==0.5.23", sglang)):
        assert loaded.rotary_bytes(on(arch, engine, node="8x-b300-sxm", tp=1)) == size


# ---------------------------------------------------------------- the allocator's rounding


def rounded(engine: str, *sizes_mib: float) -> float:
    """MiB that the allocator adds to tensors of these sizes, one by one."""
    most = 2.0 if engine.startswith("sglang") else 1.0
    added = [-size % 2.0 for size in sizes_mib if size >= 10]
    return sum(rest for rest in added if rest <= most) * MIB


ENGINES = ["vllm==0.33.0", "sglang==0.5.23"]


def padded(model: Any, engine: str, **options: Any) -> float:
    return loaded.layer_rounding_bytes(on(model, engine, node=CASE_NODE, **options), "a", "m")


@pytest.mark.parametrize("engine", ENGINES)
def test_rounding_of_a_dense_layer(engine: str) -> None:
    # 2560 wide, 40 heads and 8 pairs of keys and values of 128: 56 x 128 x 2560 and 40 x 128 x 2560 values of 2 B
    model = toy(hidden=2560, heads=40, kv_heads=8, head_dim=128, intermediate=4000)
    mlp = 2560 * 4000 * 2 / MIB
    assert padded(model, engine, tp=1) == near(rounded(engine, 35.0, 25.0, 2 * mlp, mlp))
    assert padded(model, engine, tp=2) == near(rounded(engine, 17.5, 12.5, mlp, mlp / 2))
    # on 8 ranks a pair each; on 16 it is repeated: 40 / 8 + 2 heads
    assert padded(model, engine, tp=8) == near(rounded(engine, 7 * 128 * 2560 * 2 / MIB, 25 / 8, mlp / 4, mlp / 8))
    one = toy(hidden=6144, heads=32, kv_heads=2, head_dim=128, intermediate=1024)
    queries = (32 / 8 + 2) * 128 * 6144 * 2 / MIB
    assert padded(one, engine, tp=8) == near(rounded(engine, queries, 4 * 128 * 6144 * 2 / MIB, 3, 1.5))


@pytest.mark.parametrize("engine", ENGINES)
def test_rounding_of_odd_attention(engine: str) -> None:
    sizes: dict[str, Any] = {"kind": "gqa", "heads": 24, "kv_heads": 4, "head_dim": 96}
    base = toy(hidden=2880, intermediate=256)

    def of(**changes: Any) -> float:
        return padded(base.model_copy(update={"attention": {"a": Gqa(**sizes, **changes, **SAYS)}}), engine, tp=1)

    unit = 2880 * 96 * 2 / MIB  # one head
    assert of() == near(rounded(engine, 32 * unit, 24 * unit))
    assert of(output_gate=True) == near(rounded(engine, 56 * unit, 24 * unit))
    assert of(output_gate="head") == near(rounded(engine, 32 * unit, 24 * unit))
    assert of(shares_kv=True) == near(rounded(engine, 24 * unit, 24 * unit))
    assert of(v_head_dim=112) == near(rounded(engine, 32 * unit, 24 * unit * 112 / 96))


@pytest.mark.parametrize("engine", ENGINES)
def test_rounding_of_latent_attention(engine: str) -> None:
    sizes: dict[str, Any] = {"kind": "mla", "heads": 48, "kv_lora_rank": 512, "qk_nope_head_dim": 112,
                             "qk_rope_head_dim": 64, "v_head_dim": 120}  # fmt: skip
    base = toy(hidden=6000, intermediate=256)

    def of(tp: int, **changes: Any) -> float:
        model = base.model_copy(update={"attention": {"a": Mla(**sizes, **changes, **SAYS)}})
        return padded(model, engine, tp=tp)

    def mib(rows: float, columns: float) -> float:
        return rows * columns * 2 / MIB

    small = (mib(6000, 512), mib(6000, 256))  # the MLP
    assert of(1) == near(rounded(engine, mib(6000, 576), mib(6000, 48 * 176), mib(6000, 48 * 120), *small))
    low = rounded(engine, mib(6000, 1400 + 576), mib(1400, 24 * 176), mib(6000, 24 * 120), small[1])
    assert of(2, q_lora_rank=1400) == near(low)


@pytest.mark.parametrize("engine", ENGINES)
def test_rounding_of_experts(engine: str) -> None:
    sizes: dict[str, Any] = {"kind": "moe", "experts": 24, "per_token": 2, "intermediate": 816}
    base = toy(hidden=1600, heads=8, kv_heads=8, head_dim=64)
    unit = 1600 * 816 * 2 / MIB  # one matrix of one expert

    def of(options: dict[str, Any] | None = None, **changes: Any) -> float:
        model = base.model_copy(update={"mlp": {"m": Moe(**sizes | changes, **SAYS)}})
        return padded(model, engine, **(options or {"tp": 1}))

    assert of() == near(rounded(engine, 48 * unit, 24 * unit))
    assert of(gated=False) == near(rounded(engine, 24 * unit, 24 * unit))
    assert of({"tp": 2}) == near(rounded(engine, 24 * unit, 12 * unit))
    assert of({"tp": 4, "ep": 4}) == near(rounded(engine, 12 * unit, 6 * unit))
    assert of(latent=1000) == near(rounded(engine, 48 * unit * 1000 / 1600, 24 * unit * 1000 / 1600))
    beside = 1600 * 5200 * 2 / MIB
    assert of(shared_experts=1, shared_intermediate=5200) == near(
        rounded(engine, 48 * unit, 24 * unit, 2 * beside, beside))  # fmt: skip
    assert of({"tp": 2}, shared_experts=1, shared_intermediate=5200) == near(
        rounded(engine, 24 * unit, 12 * unit, beside, beside / 2))  # fmt: skip


def test_engines_divide_the_mlp_beside_parallel_attention_by_their_own_width() -> None:
    model = toy(hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=10000)
    matrix = 4096 * 10000 * 2 / MIB
    whole = (4096 * 48 * 128 * 2 / MIB, 4096 * 32 * 128 * 2 / MIB)  # every group has all heads
    sglang = padded(model, "sglang==0.5.23", tp=4, dp_attention=4)
    assert sglang == near(rounded("sglang", *whole, 2 * matrix / 4, matrix / 4))


# ---------------------------------------------------------------- padding of MXFP4 experts, of gpt-oss only


@pytest.mark.parametrize(("tp", "ep", "wide", "steps"), [(1, 1, 2880, 3072), (2, 1, 1472, 1536), (4, 1, 768, 768),
                                                         (4, 4, 2880, 3072), (8, 1, 384, 512)])
def test_padding_of_experts_by_hand(tp: int, ep: int, wide: int, steps: int) -> None:
    # gpt-oss-20b: 2880 x 2880, 32 experts; values in steps of 256 (2880 to 3072), scales of 32 in steps of 64
    width = 2880 / (tp / ep)
    values = 2 * wide * 3072 + steps * 2880 - 3 * width * 2880
    scales = 2 * wide * 128 + 64 * math.ceil(wide / 32 / 64) * 2880 - 3 * width * 90
    for version, kept in (("0.16.0", scales), ("0.33.0", scales), ("0.15.1", 0.0)):
        d = on("gpt-oss-20b", f"vllm=={version}", tp=tp, ep=ep)
        assert loaded.padded_expert_bytes(d, "moe") == near(32 / ep * (values / 2 + kept))


def test_padding_is_of_one_kernel() -> None:
    none = [on("gpt-oss-20b", "sglang==0.5.23"), on("gpt-oss-20b", node="8x-b200-sxm"), on("mixtral-8x7b"),
            on("gpt-oss-20b", "vllm==0.33.0", quantization="bf16")]  # fmt: skip
    assert [loaded.padded_expert_bytes(d, "moe") for d in none] == [0.0] * 4
    assert loaded.padded_expert_bytes(on("gpt-oss-20b"), "dense") == 0.0


# ---------------------------------------------------------------- states


def test_states_of_published_models() -> None:
    gdn = pm.load_model("qwen3-next-80b-a3b").attention["gdn"]
    assert isinstance(gdn, Linear)
    # 2 x 16 x 128 keys and 32 x 128 values go through the convolution of 4; 32 states of 128 x 128
    convolution, states = 8192 * 3 * 2, 32 * 128 * 128
    width = (gdn.state_bits or 32) / 8
    for ranks in (1, 2, 8):
        assert cache.state_bytes_per_sequence_layer(gdn, ranks) == near((convolution + states * width) / ranks)
    drafting = cache.state_bytes_per_sequence_layer(gdn, 1, state_bytes=2.0, draft_tokens=3)
    assert drafting == near(8192 * 6 * 2 + states * 2)
    for other in (None, pm.load_model("llama-3.1-8b").attention["gqa"], pm.load_model("deepseek-v3").attention["mla"]):
        assert cache.state_bytes_per_sequence_layer(other, 8) == 0.0


def test_drafting_layers_count_with_the_first_of_their_kind() -> None:
    for name in ("glm-4.5", "deepseek-v3", "qwen3.5-35b-a3b"):
        found = place(on(name, node="8x-h200-sxm", tp=8, speculative="mtp:1:0.7"))
        attentions = [attention for attention, _ in found.kinds]
        mtp = pm.load_model(name).mtp
        assert mtp is not None and found.drafts.index(1) == attentions.index(mtp.attention)
        assert sum(found.drafts) == 1 and found.cached.sum() == found.layers.sum() + 1
        assert (found.cached - found.counts)[-1].tolist() == list(found.drafts)
        assert place(on(name, node="8x-h200-sxm", tp=8)).drafts == (0,) * len(attentions)


# ---------------------------------------------------------------- what a rank is told


def test_facts_of_the_ranks_of_a_pipeline() -> None:
    found = place(on("gpt-oss-20b", node=H100, tp=2, pp=2))
    first, last = found.rank_facts()
    assert [(r.stage, r.layers, r.first, r.last) for r in (first, last)] == [(0, 12, True, False), (1, 12, False, True)]
    # 8 pairs of 64 values in BF16, half of them on a rank; 6 sliding and 6 full layers a stage
    each = 4 * 2 * 64 * 2
    assert first.heads_local == 64 // 2 and first.kv_bytes_per_token == 12 * each
    assert [(g.layers, g.kv_bytes_per_token, g.window, g.state_bytes, g.chunked, g.in_flight_bytes)
            for g in first.groups] == [(6, each, 128, 0, False, 0), (6, each, None, 0, False, 0)]  # fmt: skip
    assert first.weights_bytes == near(sum(float(part[0]) for part in found.parts.values()))
    # embedding and head lie at the ends, on the ranks' shares; the final norm with the head
    table = 201088 * 2880 * 2 / 2
    assert found.parts["embedding"].tolist() == near([table, 0.0])
    assert found.parts["lm head"].tolist() == near([0.0, table])
    assert float(np.diff(found.parts["norms and router"])[0]) == near(2880 * 2)
    assert found.weights_bytes.tolist() == near([first.weights_bytes, last.weights_bytes])


def test_context_parallel_ranks_hold_a_share_of_the_tokens() -> None:
    whole, shared = (place(on("deepseek-v3", node="8x-h200-sxm", tp=8, dcp=n)) for n in (1, 4))
    assert shared.kv_bytes_per_token.tolist() == near((whole.kv_bytes_per_token / 4).tolist())
    assert whole.kv_bytes_per_token.tolist() == near([61 * 576 * 2])
    assert shared.kv_bytes_per_token_layer == whole.kv_bytes_per_token_layer == near((1152.0, 1152.0))


def test_copies_for_absorbed_decode() -> None:
    # 128 heads over 8 ranks, (128 + 128) x 512 values each in BF16
    found = place(on("deepseek-v3", node="8x-h200-sxm", tp=8))
    assert float(found.parts["absorbed MLA copies"][0]) == near(61 * 16 * 256 * 512 * 2)
    assert "absorbed MLA copies" not in place(on("llama-3.1-8b")).parts


def test_chunks_and_states_are_told_apart() -> None:
    scout = place(on("llama-4-scout", node="8x-h200-sxm", tp=8)).rank_facts()[0]
    assert [(g.layers, g.window, g.chunked) for g in scout.groups] == [(36, 8192, True), (12, None, False)]
    next_one = place(on("qwen3-next-80b-a3b", node=H100, tp=4))
    states = [g for g in next_one.rank_facts()[0].groups if g.state_bytes]
    assert [(g.layers, g.kv_bytes_per_token, g.window) for g in states] == [(36, 0.0, None)]
    assert states[0].state_bytes == near(next_one.state_bytes_per_sequence_layer[
        [attention for attention, _ in next_one.kinds].index("gdn")])  # fmt: skip


def test_inputs_of_every_layer_beside_the_embedding() -> None:
    model = pm.load_model("gemma-4-e2b")  # 35 layers of 256 values for each of 262,144 words
    edge = {t.name + t.role: t.parameters for t in edge_tensors(model, True, False)}
    wide = 35 * 256
    assert edge["embed_per_layerembedding"] == 262144 * wide
    assert (edge["per_layer_projectionper_layer"], edge["per_layer_normnorm"]) == (1536 * wide, 256)
    layer = {t.name: (t.role, t.parameters) for t in layer_tensors(model, "gqa", "dense")}
    assert layer["per_layer_gate"] == ("per_layer", 2 * 1536 * 256) and layer["per_layer_norm"] == ("norm", 1536)
    assert {t.name for t in edge_tensors(model, False, True)} == {"final_norm", "lm_head"}
    plain = pm.load_model("gemma-3-4b")
    assert not [t for t in (*edge_tensors(plain, True, True), *layer_tensors(plain, "gqa", "dense"))
                if "per_layer" in t.name]  # fmt: skip


def test_vision_towers_and_what_vllm_divides_otherwise() -> None:
    tower = pm.load_model("qwen2.5-vl-7b")
    assert tower.vision is not None
    assert [(t.role, t.parameters) for t in vision_tensors(tower)] == [
        ("vision", tower.vision.parameters_sharded), ("vision_replicated", tower.vision.parameters_replicated)]
    assert vision_tensors(pm.load_model("llama-3.1-8b")) == ()
    for name, engine, options, expected in (
        ("mistral-small-3.1-24b", "vllm==0.33.0", {}, 1.0), ("mistral-small-3.1-24b", "sglang==0.5.23", {}, 7.0),
        ("mistral-small-3.1-24b-w8a8", "vllm==0.33.0", {}, 7.0),
        ("mistral-small-3.1-24b", "vllm==0.33.0", {"quantization": "fp8"}, 7.0),
        ("kimi-vl-a3b", "vllm==0.33.0", {}, 2.0), ("kimi-vl-a3b", "sglang==0.5.23", {}, 7.0),
        ("qwen2.5-vl-7b", "vllm==0.33.0", {}, 7.0),
    ):  # fmt: skip
        d = on(name, engine, tp=2, **options)
        assert loaded.vision_divisor(d, "vision", 7.0) == expected


def test_widths_of_tensors_and_the_whole_text_model() -> None:
    d = on("deepseek-v3", node="8x-h200-sxm", tp=8)  # FP8 in blocks of 128 x 128 with an FP32 scale each
    assert tensor_width(d.formats, Tensor("x", "router_bias", 1.0)) == 4.0
    assert tensor_width(d.formats, Tensor("x", "hyper", 1.0)) == 4.0
    assert weight_width(d.formats, "norm") == 2.0
    assert weight_width(d.formats, "experts") == near(1 + 4 / (128 * 128))
    assert rank_bytes(d, Tensor("x", "norm", 80.0)) == 160
    assert rank_bytes(d, Tensor("x", "embedding", 80.0)) == 20
    pairs = on("llama-3.1-8b", tp=4)
    assert [rank_bytes(pairs, Tensor("kv", "kv_heads", 800.0, units=units)) for units in (8, 4, 2)] == [400, 400, 800]
    assert text_bytes(pairs) == near(2.0 * parameter_count(pairs.model))


def test_rounding_goes_by_the_format_of_each_part() -> None:
    base = toy(hidden=4000, heads=48, kv_heads=8, head_dim=128, intermediate=9100)
    queries, out, up, down = (4000 * 64 * 128, 4000 * 48 * 128, 2 * 4000 * 9100, 4000 * 9100)

    def of(**storage: str) -> float:
        formats = {name: Format(bits=bits, **SAYS) for name, bits in (("bf16", 16), ("fp8", 8), ("wide", 12))}
        return padded(base.model_copy(update={"formats": formats, "storage": {"default": "bf16"} | storage}),
                      "sglang==0.5.23", tp=1)  # fmt: skip

    def bytes_of(attention: int, dense: int) -> float:
        sizes = (queries * attention, out * attention, up * dense, down * dense)
        return rounded("sglang", *(size / 8 / MIB for size in sizes))

    assert of() == near(bytes_of(16, 16))
    assert of(attention="wide") == of(**{"a.attention": "wide"}) == near(bytes_of(12, 16))
    assert of(dense="wide") == of(**{"m.dense": "wide"}) == near(bytes_of(16, 12))
    assert of(attention="fp8", dense="wide") == near(bytes_of(8, 12))
    assert len({bytes_of(a, d) for a in (8, 12, 16) for d in (12, 16)}) == 6


def test_rounding_of_latents_that_are_stored_apart() -> None:
    sizes: dict[str, Any] = {"kind": "mla", "heads": 48, "q_lora_rank": 1400, "kv_lora_rank": 512,
                             "qk_nope_head_dim": 112, "qk_rope_head_dim": 64, "v_head_dim": 120}  # fmt: skip
    formats = {name: Format(bits=bits, **SAYS) for name, bits in (("bf16", 16), ("wide", 12))}
    base = toy(hidden=6000, intermediate=256).model_copy(update={"attention": {"a": Mla(**sizes, **SAYS)},
                                                                 "formats": formats})  # fmt: skip
    for latent, heads in ((16, 16), (12, 16), (16, 12)):
        storage = {"default": "bf16", "latent": "wide" if latent == 12 else "bf16",
                   "attention": "wide" if heads == 12 else "bf16"}  # fmt: skip
        expected = rounded("sglang", 6000 * 1976 * latent / 8 / MIB, 1400 * 48 * 176 * heads / 8 / MIB,
                           6000 * 48 * 120 * heads / 8 / MIB)  # fmt: skip
        assert padded(base.model_copy(update={"storage": storage}), "sglang==0.5.23", tp=1) == near(expected)


def test_drafts_lengthen_the_convolution_under_vllm_only() -> None:
    for engine, drafts in (("vllm==0.33.0", 2), ("sglang==0.5.23", 0)):
        d = on("qwen3-next-80b-a3b", engine, tp=2, speculative="ngram:2")
        found = place(d)
        kind = [attention for attention, _ in found.kinds].index("gdn")
        attention = d.model.attention["gdn"]
        assert found.state_bytes_per_sequence_layer[kind] == near(
            cache.state_bytes_per_sequence_layer(attention, 2, draft_tokens=drafts))  # fmt: skip
