"""Engine rules at values worked out by hand from the sources that the rules name, and logs as engines print them."""

from dataclasses import replace
from typing import Any

import pytest
from test_engines import GIB, MIB, facts

from perfmodel import engines
from perfmodel.engines import sglang_network, tensorrt_llm, vllm, vllm_network
from perfmodel.engines.options import Facts, Options, RankFacts
from perfmodel.engines.rules import Collective
from perfmodel.engines.scheduling import Scheduling, scheduling
from perfmodel.engines.sharding import weight_divisors
from perfmodel.errors import BadInput, IllegalDeployment

MODULES = {"vllm": vllm, "sglang": engines.get("sglang")[0], "tensorrt-llm": tensorrt_llm}
KINDS = ("derived", "measured", "assumed")
HIDDEN, VOCAB = 7168 * 2.0, 163840 * 2.0        # bytes of one hidden state and of one row of logits in bf16


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-9, abs=0)


def a_rank(**changes: Any) -> RankFacts:
    base = RankFacts(0, 61, True, True, 70 * GIB, 70272.0, 8)
    return replace(base, **changes)


def dense(**changes: Any) -> Facts:
    """A GQA model without experts: 32 heads, 8 KV heads of 128."""
    return facts(attention="gqa", heads=32, kv_heads=8, kv_values_per_token_layer=2048, experts=0, per_token=0,
                 moe_intermediate=0, weight_format="bf16", **changes)  # fmt: skip


# ---------------------------------------------------------------- collectives of a layer and of a step


def test_collectives_under_tensor_parallelism() -> None:
    """Two all-reduces a layer, one behind the embedding, one gather of the logits, whatever the engine."""
    layer = tuple(Collective("all_reduce", "tp", 4, place, HIDDEN, "local", kind)
                  for kind in ("dense", "moe") for place in ("attention", "mlp"))  # fmt: skip
    step = (Collective("all_reduce", "tp", 4, "embedding", HIDDEN, "local", "step", "first"),
            Collective("all_gather", "tp", 4, "logits", VOCAB, "sampled", "step", "last"))  # fmt: skip
    for name, module in MODULES.items():
        for phase in ("decode", "prefill"):
            o = Options(engine=name, tp=4)
            assert module.layer_collectives(o, facts(), phase) == layer
            assert module.step_collectives(o, facts(), phase) == step
        assert {c.layer for c in module.layer_collectives(Options(engine=name, tp=4), dense())} == {"dense"}
        alone = Options(engine=name, tp=1, pp=4)
        assert module.layer_collectives(alone, facts()) == module.step_collectives(alone, facts()) == ()


def test_attention_groups_of_vllm() -> None:
    """allgather_reducescatter: hidden state with 8 experts' weights and ids (4 + 4 B each) out, hidden state back."""
    o = Options(tp=8, dp_attention=8)
    expected = (Collective("all_gather", "tp", 8, "mlp", HIDDEN + 64, "global", "moe"),
                Collective("reduce_scatter", "tp", 8, "mlp", HIDDEN, "global", "moe"))  # fmt: skip
    assert vllm_network.layer_collectives(o, facts()) == expected
    sync = Collective("all_reduce", "tp", 8, "sync", 0.0, "local", "step", bytes_fixed=128.0)
    assert vllm_network.step_collectives(o, facts()) == (sync,)
    # four groups of two: dense layers reduce inside the group, MoE layers scatter before and gather after
    pairs = vllm_network.layer_collectives(replace(o, dp_attention=4), facts())
    assert [(c.op, c.group, c.ranks, c.place, c.tokens, c.layer) for c in pairs] == [
        ("all_reduce", "attention", 2, "attention", "local", "dense"),
        ("all_reduce", "attention", 2, "mlp", "local", "dense"),
        ("reduce_scatter", "attention", 2, "attention", "local", "moe"),
        ("all_gather", "tp", 8, "mlp", "global", "moe"),
        ("reduce_scatter", "tp", 8, "mlp", "global", "moe"),
        ("all_gather", "attention", 2, "mlp", "local", "moe"),
    ]
    assert [c.bytes_per_token for c in pairs] == [HIDDEN] * 3 + [HIDDEN + 64] + [HIDDEN] * 2
    step = vllm_network.step_collectives(replace(o, dp_attention=4), facts())
    assert [(c.op, c.group, c.ranks, c.bytes_fixed) for c in step] == [
        ("all_reduce", "attention", 2, 0.0), ("all_gather", "attention", 2, 0.0), ("all_reduce", "tp", 4, 64.0)]


def test_attention_groups_of_sglang() -> None:
    """Gather and scatter around every MLP in decode, sums of zero-filled buffers in prefill."""
    o = Options(engine="sglang", tp=8, dp_attention=4)
    decode = sglang_network.layer_collectives(o, facts())
    assert [(c.op, c.group, c.ranks, c.place, c.tokens) for c in decode if c.layer == "moe"] == [
        ("reduce_scatter", "attention", 2, "attention", "local"), ("all_gather", "tp", 8, "mlp", "global"),
        ("reduce_scatter", "tp", 8, "mlp", "global"), ("all_gather", "attention", 2, "mlp", "local")]  # fmt: skip
    assert [replace(c, layer="moe") for c in decode if c.layer == "dense"] == [c for c in decode if c.layer == "moe"]
    assert {c.bytes_per_token for c in decode} == {HIDDEN}
    prefill = sglang_network.layer_collectives(replace(o, dp_attention=8), facts(), "prefill")
    assert [(c.op, c.group, c.ranks, c.place, c.tokens, c.layer) for c in prefill] == [
        ("all_reduce", "tp", 8, "mlp", "global", kind) for kind in ("dense", "dense", "moe", "moe")]
    embedding, hidden, logits, sync = sglang_network.step_collectives(o, facts())
    assert embedding == Collective("all_reduce", "attention", 2, "embedding", HIDDEN, "local", "step", "first")
    assert hidden == Collective("all_gather", "tp", 8, "logits", HIDDEN, "sampled_global", "step", "last")
    assert logits == Collective("all_gather", "tp", 8, "logits", VOCAB, "sampled_global", "step", "last")
    assert sync == Collective("all_gather", "tp", 4, "sync", 0.0, "local", "step", bytes_fixed=32.0)


def test_decode_context_parallelism_gathers_queries_and_scatters_outputs() -> None:
    """MLA over dcp 4 of tp 8: 64 / 8 heads of four ranks, 576 wide in bf16; every rank's sums of them, 4 B each."""
    o = Options(tp=8, dcp=4)
    for module in (vllm_network, sglang_network):
        for kind in ("dense", "moe"):
            gather, sums, scatter = (
                c for c in module.layer_collectives(o, facts()) if c.group == "dcp" and c.layer == kind)  # fmt: skip
            assert gather == Collective("all_gather", "dcp", 4, "attention", 8 * 4 * 576 * 2.0, "local", kind)
            assert sums == Collective("all_gather", "dcp", 4, "attention", 4 * 8 * 4 * 4.0, "local", kind)
            assert scatter == Collective("reduce_scatter", "dcp", 4, "attention", 8 * 4 * 576 * 2.0, "local", kind)
        assert not [c for c in module.layer_collectives(o, facts(), "prefill") if c.group == "dcp"]
        assert not [c for c in module.layer_collectives(replace(o, dcp=1), facts()) if c.group == "dcp"]
        wide, *_ = module.layer_collectives(Options(tp=8, dcp=2), dense())
        assert wide.bytes_per_token == 32 / 8 * 2 * 128 * 2.0  # GQA: heads are 128 wide


# ---------------------------------------------------------------- which kernel reduces


@pytest.mark.parametrize(
    ("engine", "ranks", "size", "keywords", "machine", "kernel"),
    [
        ("vllm==0.33.0", 8, 256 * 1024 - 1, {}, {}, "custom_one_shot"),
        ("vllm==0.33.0", 8, 256 * 1024, {}, {}, "symm_mem"),  # the custom kernel ends at 0.25 MiB on Hopper
        ("vllm==0.33.0", 8, 64 * MIB, {}, {}, "symm_mem"),
        ("vllm==0.33.0", 8, 64 * MIB + 1, {}, {}, "nccl"),
        ("vllm==0.33.0", 8, 1024, {"all_reduce": "symm-mem"}, {}, "symm_mem"),
        ("vllm==0.33.0", 8, 1 * MIB, {"all_reduce": "custom"}, {}, "nccl"),
        ("vllm==0.33.0", 8, 1024, {"all_reduce": "NCCL"}, {}, "nccl"),
        ("vllm==0.33.0", 4, 512 * 1024, {}, {}, "custom_two_shot"),
        ("vllm==0.33.0", 4, 512 * 1024 - 1, {}, {}, "custom_one_shot"),
        ("vllm==0.33.0", 2, 8 * MIB - 1, {}, {}, "custom_one_shot"),
        ("vllm==0.33.0", 2, 8 * MIB, {}, {}, "symm_mem"),
        ("vllm==0.33.0", 3, 1024, {}, {}, "nccl"),
        ("vllm==0.33.0", 8, 1 * MIB - 1, {}, {"compute_capability": 10.0}, "custom_two_shot"),
        ("vllm==0.33.0", 8, 1 * MIB, {}, {"compute_capability": 10.0}, "symm_mem"),
        ("vllm==0.33.0", 8, 4 * MIB - 1, {}, {"compute_capability": 10.3}, "custom_two_shot"),
        ("vllm==0.33.0", 8, 8 * MIB - 1, {}, {"compute_capability": 8.0}, "custom_two_shot"),
        ("vllm==0.33.0", 8, 8 * MIB, {}, {"compute_capability": 8.0}, "nccl"),
        ("vllm==0.10.2", 8, 8 * MIB - 1, {}, {}, "custom_two_shot"),
        ("vllm==0.10.2", 8, 8 * MIB, {}, {}, "nccl"),
        ("vllm==0.33.0", 2, 1024, {}, {"full_nvlink": False}, "custom_one_shot"),
        ("vllm==0.33.0", 2, 1024, {}, {"full_nvlink": False, "p2p": False}, "nccl"),
        ("vllm==0.33.0", 8, 1024, {"all_reduce": "pcie_ipc"}, {}, "pcie_ipc"),
        ("vllm==0.33.0", 6, 1024, {"all_reduce": "pcie_ipc"}, {}, "nccl"),
        ("vllm==0.33.0", 1, 1024, {"all_reduce": "pcie_ipc"}, {}, "nccl"),
        ("sglang==0.5.23", 8, 128 * 1024, {}, {}, "custom_one_shot"),
        ("sglang==0.5.23", 8, 128 * 1024 + 1, {}, {}, "custom_two_shot"),
        ("sglang==0.5.23", 8, 16 * MIB, {}, {}, "custom_two_shot"),
        ("sglang==0.5.23", 8, 16 * MIB + 1, {}, {}, "nccl"),
        ("sglang==0.5.23", 4, 384 * 1024, {}, {}, "custom_one_shot"),
        ("sglang==0.5.23", 4, 384 * 1024 + 1, {}, {}, "custom_two_shot"),
        ("sglang==0.5.23", 8, 256 * 1024, {}, {"compute_capability": 10.0}, "custom_one_shot"),
        ("sglang==0.5.23", 8, 8 * MIB + 1, {}, {"compute_capability": 10.0}, "nccl"),
        ("sglang==0.5.23", 6, 256 * 1024 - 1, {}, {}, "custom_one_shot"),
        ("sglang==0.5.23", 6, 256 * 1024, {}, {}, "custom_two_shot"),
        ("sglang==0.5.10", 4, 512 * 1024 - 1, {}, {}, "custom_one_shot"),
        ("sglang==0.5.10", 4, 512 * 1024, {}, {}, "custom_two_shot"),
        ("sglang==0.5.10", 8, 8 * MIB, {}, {}, "custom_two_shot"),
        ("sglang==0.5.10", 8, 8 * MIB + 1, {}, {}, "nccl"),
        ("sglang==0.5.10", 2, 8 * MIB, {}, {}, "custom_one_shot"),
        ("sglang==0.5.10", 2, 8 * MIB + 1, {}, {}, "nccl"),
        ("sglang==0.5.10", 5, 1024, {}, {}, "nccl"),
        ("sglang==0.5.23", 8, 128 * MIB - 1, {"all_reduce": "symm_mem"}, {}, "symm_mem"),
        ("sglang==0.5.23", 8, 128 * MIB, {"all_reduce": "symm_mem"}, {}, "nccl"),
        ("sglang==0.5.23", 4, 64 * MIB, {"all_reduce": "symm_mem"}, {}, "nccl"),
        ("sglang==0.5.23", 4, 64 * MIB - 1, {"all_reduce": "symm_mem"}, {}, "symm_mem"),
        ("sglang==0.5.23", 2, 1024, {}, {"full_nvlink": False}, "custom_one_shot"),
        ("sglang==0.5.23", 4, 1024, {}, {"full_nvlink": False}, "nccl"),
        ("sglang==0.5.23", 2, 1024, {"dp_attention": 4}, {}, "custom_one_shot"),
        ("sglang==0.5.10", 2, 1024, {"dp_attention": 4}, {}, "nccl"),  # groups inside tp: since 0.5.20
        ("sglang==0.5.10", 8, 1024, {"dp_attention": 4}, {}, "custom_one_shot"),
        ("sglang==0.5.23", 4, 1024, {"all_reduce": "pcie_ipc"}, {}, "pcie_ipc"),
        ("sglang==0.5.23", 6, 1024, {"all_reduce": "pcie_ipc"}, {}, "nccl"),
        ("tensorrt-llm", 8, 256 * 1024 - 1, {}, {}, "custom_one_shot"),
        ("tensorrt-llm", 8, 256 * 1024, {}, {}, "custom_two_shot"),
        ("tensorrt-llm", 8, 8 * MIB, {}, {}, "nccl"),
        ("tensorrt-llm", 4, 512 * 1024 - 1, {}, {}, "custom_one_shot"),
        ("tensorrt-llm", 4, 512 * 1024, {}, {}, "custom_two_shot"),
        ("tensorrt-llm", 2, 8 * MIB - 1, {}, {}, "custom_one_shot"),
        ("tensorrt-llm", 8, 1024, {"all_reduce": "nccl"}, {}, "nccl"),
        ("tensorrt-llm", 8, 1024, {}, {"full_nvlink": False}, "nccl"),
        ("tensorrt-llm", 3, 1024, {}, {}, "nccl"),
    ],
)  # fmt: skip
def test_which_kernel_reduces_at_its_limits(
    engine: str, ranks: int, size: float, keywords: dict[str, Any], machine: dict[str, Any], kernel: str
) -> None:
    module, version, _ = engines.get(engine)
    o = Options(engine=engine.partition("==")[0], version=version, tp=8, **keywords)
    assert module.all_reduce_backend(o, facts(**machine), ranks, size) == kernel


def test_a_kernel_that_a_version_does_not_have() -> None:
    for engine in ("vllm==0.28.0", "sglang==0.5.20"):
        module, version, _ = engines.get(engine)
        o = Options(engine=engine.partition("==")[0], version=version, tp=8, all_reduce="pcie_ipc")
        with pytest.raises(IllegalDeployment, match="since 0"):
            module.all_reduce_backend(o, facts(), 8, 1024)


# ---------------------------------------------------------------- scheduling, sharding, slots


def test_what_a_scheduler_does_by_engine_and_version() -> None:
    def rule(engine: str, **keywords: Any) -> Scheduling:
        module, version, _ = engines.get(engine)
        return scheduling(module, Options(engine=engine.partition("==")[0], version=version, **keywords))

    def said(rule: Scheduling) -> tuple[object, ...]:
        return (rule.mixes, rule.splits, rule.budget, rule.own, rule.own_most, rule.reserve, rule.raises,
                rule.watermark, rule.keeps)  # fmt: skip

    none = (0.0, 0.0, 0.0)
    assert said(rule("vllm==0.33.0", prefill_chunk=8192)) == (True, True, 8192, 0.0, 0, none, 0.0, 0.0, True)
    assert rule("vllm==0.33.0").budget == 2**20
    # V0: whole prompts up to this context
    whole = rule("vllm==0.7.3", prefill_chunk=4096, context=32768)
    assert said(whole) == (False, False, 4096, 0.0, 0, none, 0.0, 0.01, False)
    longer = rule("vllm==0.7.3", prefill_chunk=4096, context=32769)
    assert longer == replace(whole, mixes=True, splits=True)
    first = rule("sglang==0.5.23", prefill_chunk=8192, tp=4, dp_attention=4)
    assert (first.mixes, first.splits, first.budget, first.own, first.own_most) == (False, True, 2048, 1.0, 4096)
    assert (first.raises, first.watermark, first.keeps) == (0.1, 0.0, False)
    piped = rule("sglang==0.5.23", prefill_chunk=8192, pp=4)
    assert piped.reserve == (first.reserve[0] / 4, first.reserve[1] / 4, first.reserve[2])
    trt = rule("tensorrt-llm", prefill_chunk=8192)
    assert (trt.mixes, trt.splits, trt.budget, trt.own, trt.own_most) == (True, False, 8192, 1.0, 2**62)
    assert (trt.raises, trt.watermark, trt.keeps) == (0.0, 0.0, False)


def test_what_divides_a_weight() -> None:
    """tp 8 in four groups of two; 10 experts over ep 4: the fullest rank has three, each in two halves."""
    o = Options(engine="sglang", tp=8, dp_attention=4, ep=4)
    assert weight_divisors(o, 10) == {"attention": 2, "dense": 8, "shared": 8, "embedding": 2, "head": 8,
                                      "experts": 10 / 1.5, "vision": 2}  # fmt: skip
    for engine in ("vllm", "tensorrt-llm"):
        inside = weight_divisors(replace(o, engine=engine), 10)
        assert (inside["dense"], inside["shared"], inside["head"]) == (2, 2, 2)
    assert weight_divisors(o, 0)["experts"] == 1


@pytest.mark.parametrize("engine", MODULES)
def test_a_burst_fills_one_slot_and_a_stream_spreads(engine: str) -> None:
    module, version, _ = engines.get(engine)
    o = Options(engine=engine, version=version, pp=4)
    burst, stream = (module.fill(8, o, 64, arrival) for arrival in ("burst", "staggered"))
    assert stream == (2, 2, 2, 2)
    assert burst == tuple(min(8 - taken, module.slot_limit(o, 64)) for taken in (0, *_sums(burst)[:-1]))
    with pytest.raises(BadInput, match="burst"):
        module.fill(8, o, 64, "all at once")


def _sums(values: tuple[int, ...]) -> list[int]:
    return [sum(values[: i + 1]) for i in range(len(values))]


@pytest.mark.parametrize(
    ("version", "mib", "gpu", "context", "expected"),
    [
        ("0.33.0", 160 * 1024, "B200", 131072, (16384, 1024)), ("0.33.0", 160 * 1024 - 1, "H200", 131072, (8192, 1024)),
        ("0.27.1", 180 * 1024, "B200", 131072, (8192, 1024)), ("0.33.0", 70 * 1024, "H100", 131072, (8192, 1024)),
        ("0.33.0", 70 * 1024 - 1, "L40S", 131072, (2048, 256)), ("0.33.0", 80 * 1024, "A100", 131072, (2048, 256)),
        ("0.8.5", 80 * 1024, "A100", 131072, (8192, 1024)), ("0.33.0", 119 * 1024, "GB10", 131072, (2048, 256)),
        ("0.7.3", 80 * 1024, "H100", 32768, (32768, 256)), ("0.7.3", 80 * 1024, "H100", 1024, (2048, 256)),
        ("0.7.3", 80 * 1024, "H100", 32769, (2048, 256)), ("0.6.6.post1", 80 * 1024, "H100", 131072, (512, 256)),
    ],
)  # fmt: skip
def test_batch_defaults_of_vllm(version: str, mib: float, gpu: str, context: int, expected: tuple[int, int]) -> None:
    """engine/arg_utils.py get_batch_defaults: by memory and name of the GPU, and by version."""
    now, _ = vllm.resolve(Options(version=version, context=context), facts(mib, gpu=gpu))
    assert (now.prefill_chunk, now.max_sequences) == expected
