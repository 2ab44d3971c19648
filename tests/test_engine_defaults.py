"""Defaults and refusals of the engines by hand, at the edges where an answer changes."""

from dataclasses import replace
from typing import Any

import pytest
from test_engine_values import dense, near
from test_engines import GIB, facts

from perfmodel import engines
from perfmodel.engines import sglang, sglang_memory, tensorrt_llm, vllm
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.speculation import speculation
from perfmodel.engines.versions import pick
from perfmodel.errors import BadInput, IllegalDeployment, UnknownName

ENGINES = ("vllm", "sglang", "tensorrt-llm")


def resolved(engine: str, machine: Facts | None = None, **keywords: Any) -> Options:
    module, version, _ = engines.get(engine)
    options = Options(engine=engine.partition("==")[0], version=version, **keywords)
    now: Options = module.resolve(options, machine or facts())[0]
    return now


# ---------------------------------------------------------------- defaults


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_said_stays_and_what_is_not_is_listed(engine: str) -> None:
    module, version, _ = engines.get(engine)
    said: dict[str, Any] = {
        "context": 4096, "memory_fraction": 0.5, "max_sequences": 48, "prefill_chunk": 1024, "page_size": 64,
        "cuda_graphs": False, "max_graph_batch": 24, "max_micro_batch": 48, "async_depth": 0,
        "attention_backend": "flashinfer", "moe_backend": "triton", "all_reduce": "nccl",
    }  # fmt: skip
    now, notes = module.resolve(Options(engine=engine, version=version, kv_dtype="fp8", **said), facts())
    assert {name: getattr(now, name) for name in said} == said
    assert now.kv_dtype == "fp8"
    assert not [note for note in notes if note.partition(":")[0] in (*said, "kv_dtype")]
    open_, listed = module.resolve(Options(engine=engine, version=version), facts())
    for note in listed:
        name, _, rest = note.partition(": ")
        if hasattr(open_, name):
            value = getattr(open_, name)
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            assert rest.startswith(f"{shown} ("), note
    filled = {note.partition(":")[0] for note in listed}
    decided = {name for name in (*said, "kv_dtype") if getattr(open_, name) is not None}
    assert decided - {"max_sequences", "max_micro_batch"} <= filled


def test_defaults_of_vllm() -> None:
    assert [resolved(f"vllm=={v}").memory_fraction for v in ("0.19.1", "0.20.0")] == [0.9, 0.92]
    kept = facts(kv_cache="fp8")
    assert [resolved(f"vllm=={v}", kept).kv_dtype for v in ("0.11.2", "0.12.0")] == ["bf16", "fp8"]
    now = resolved("vllm==0.33.0", max_sequences=16)
    assert (now.max_graph_batch, now.max_micro_batch, now.async_depth, now.all_reduce) == (32, 16, 0, "auto")
    assert now.context == 262144 and now.cuda_graphs is True
    assert resolved("vllm==0.33.0", max_sequences=16, speculative="eagle3:3").max_graph_batch == 128
    assert resolved("vllm==0.33.0", prefill_chunk=100).max_sequences == 100
    assert resolved("vllm==0.33.0", max_sequences=2, context=100).prefill_chunk == 200
    blackwell = facts(180 * 1024, compute_capability=10.0)
    assert [resolved(f"vllm=={v}", blackwell).max_graph_batch for v in ("0.27.1", "0.28.0")] == [512, 1024]
    for machine, backend, page in (
        (facts(), "flash_attn_mla", 16), (facts(compute_capability=10.3), "flashinfer_mla", 64),
        (facts(compute_capability=12.0), "triton_mla", 16), (dense(compute_capability=10.0), "flashinfer", 16),
        (dense(), "flash_attn", 16), (dense(compute_capability=12.0), "flash_attn", 16),
    ):  # fmt: skip
        now = resolved("vllm==0.33.0", machine)
        assert (now.attention_backend, now.page_size) == (backend, page)
    assert resolved("vllm==0.33.0", attention_backend="CUTLASS-MLA").page_size == 128
    for form, capability, kernel in (
        ("int4-g32", 9.0, "marlin"), ("awq-g128", 9.0, "marlin"), ("gptq", 9.0, "marlin"), ("int8", 9.0, "marlin"),
        ("nvfp4", 10.0, "flashinfer"), ("mxfp4", 12.0, "flashinfer"), ("mxfp4", 9.0, "marlin"), ("fp8", 9.0, "triton"),
        ("bf16", 9.0, "triton"),
    ):  # fmt: skip
        assert resolved("vllm", facts(weight_format=form, compute_capability=capability)).moe_backend == kernel
    assert resolved("vllm", dense()).moe_backend == "none"


def test_defaults_of_sglang() -> None:
    for machine, backend, page in (
        (facts(), "fa3", 1), (facts(compute_capability=10.0), "trtllm_mla", 64),
        (dense(compute_capability=10.3), "trtllm_mha", 64), (facts(compute_capability=12.0), "triton", 1),
        (dense(compute_capability=8.0), "flashinfer", 1),
    ):  # fmt: skip
        now = resolved("sglang==0.5.23", machine)
        assert (now.attention_backend, now.page_size) == (backend, page)
    for form, kernel in (("int4-g32", "marlin"), ("awq", "marlin"), ("gptq", "marlin"), ("nvfp4", "flashinfer_cutlass"),
                         ("fp8", "triton")):  # fmt: skip
        assert resolved("sglang", facts(weight_format=form)).moe_backend == kernel
    assert resolved("sglang", dense()).moe_backend == "none"
    # max_running_requests // groups // stages, at least one; 48 requests where drafts are made and nothing is said
    assert resolved("sglang", tp=4, dp_attention=4, pp=2, max_sequences=64).max_micro_batch == 8
    assert resolved("sglang", pp=2, max_sequences=1).max_micro_batch == 1
    assert resolved("sglang", speculative="eagle3:3").max_sequences == 48
    assert resolved("sglang").max_sequences is None
    assert [resolved(f"sglang=={v}", max_sequences=64).max_graph_batch for v in ("0.5.22", "0.5.23")] == [256, 64]
    assert resolved("sglang", facts(driver_memory_bytes=30 * GIB)).prefill_chunk == 4096  # by what the driver prints


@pytest.mark.parametrize(
    ("version", "gib", "tp", "expected"),
    [
        ("0.5.23", 19.9, 1, (2048, 8)), ("0.5.23", 20, 1, (4096, 48)), ("0.5.23", 20, 4, (4096, 160)),
        ("0.5.18", 20, 3, (2048, 24)), ("0.5.18", 20, 4, (2048, 80)), ("0.5.23", 35, 1, (4096, 32)),
        ("0.5.23", 59.9, 4, (4096, 160)), ("0.5.23", 60, 1, (8192, 256)), ("0.5.23", 90, 4, (8192, 512)),
        ("0.5.23", 159.9, 1, (8192, 256)), ("0.5.23", 160, 1, (16384, 512)), ("0.5.23", 34.9, 1, (4096, 48)),
    ],
)  # fmt: skip
def test_sglang_s_defaults_by_memory(version: str, gib: float, tp: int, expected: tuple[int, int]) -> None:
    """memory_hook.py handle_gpu_memory_settings."""
    assert sglang_memory.bucket(version, gib * GIB, tp) == expected


def test_defaults_of_tensorrt_llm() -> None:
    now = resolved("tensorrt-llm")
    assert (now.memory_fraction, now.max_sequences, now.prefill_chunk, now.page_size) == (0.9, 2048, 8192, 32)
    assert (now.max_graph_batch, now.max_micro_batch, now.moe_backend, now.all_reduce) == (128, 2048, "cutlass", "auto")
    assert (now.cuda_graphs, now.async_depth, now.attention_backend, now.context) == (True, 0, "trtllm", 262144)
    few = resolved("tensorrt-llm", dense(), max_sequences=12)
    assert (few.max_graph_batch, few.max_micro_batch, few.moe_backend) == (12, 12, "none")
    assert tensorrt_llm.capture_sizes(few, dense()) == (1, 2, 4, 8, 12)
    wide = replace(few, max_graph_batch=1024)
    assert tensorrt_llm.capture_sizes(wide, dense())[-4:] == (128, 256, 512, 1024)
    assert tensorrt_llm.max_running(Options(dp_attention=4, tp=4, max_sequences=8), facts(), 10**6) == 32
    assert tensorrt_llm.max_running(Options(), facts(), 10**6) == 2048


def test_prefill_graphs_of_sglang() -> None:
    def on(version: str, machine: Facts, **keywords: Any) -> bool:
        options = Options(engine="sglang", version=version, **({"cuda_graphs": True} | keywords))
        return sglang_memory.prefill_graph(options, machine)

    assert [on(v, facts()) for v in ("0.5.9", "0.5.10", "0.5.23")] == [False, True, True]
    assert [on(v, facts(vision=True)) for v in ("0.5.22", "0.5.23")] == [False, True]
    assert not on("0.5.23", facts(multimodal=True))
    for keywords in ({"pp": 2}, {"tp": 2, "dp_attention": 2}, {"cuda_graphs": False}):
        assert not on("0.5.23", facts(), **keywords)
    chunked = Options(engine="sglang", prefill_chunk=8192)
    longest = [sglang.prefill_graph_tokens(replace(chunked, version=v, prefill_graphs=asked),
                                           replace(facts(), compute_capability=capability))
               for v, asked, capability in (("0.5.13", None, 9.0), ("0.5.15", None, 9.0), ("0.5.13", None, 10.0),
                                            ("0.5.15", None, 10.0), ("0.5.15", True, 10.0))]
    assert longest == [2048, 8192, 2048, 0, 8192]  # pull request 28053
    # 4 to 32 by 4, to 256 by 16, to 512 by 32, to 1024 by 64, to 4096 by 256, then by 512
    counts = [sglang_memory.prefill_graph_sizes(n) for n in (3, 4, 32, 256, 512, 1024, 4096, 4608, 8192)]
    assert counts == [0, 1, 8, 22, 30, 38, 50, 51, 58]


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"pp": 1}, 40), ({"pp": 4}, 10), ({"pp": 4, "max_micro_batch": 7}, 7),
        ({"pp": 4, "tp": 2, "dp_attention": 2}, 10), ({"pp": 4, "tp": 2, "dp_attention": 2, "max_micro_batch": 7}, 14),
        ({"pp": 64}, 1),
    ],
)  # fmt: skip
def test_what_a_slot_of_sglang_holds(keywords: dict[str, int], expected: int) -> None:
    assert sglang.slot_limit(Options(engine="sglang", **keywords), 40) == expected  # type: ignore[arg-type]


def test_slots_and_overlap_by_version() -> None:
    assert [sglang.slots(Options(pp=pp, async_depth=depth)) for pp, depth in ((1, 2), (4, 0), (4, 2))] == [1, 4, 6]
    assert [vllm.slots(Options(version=v, pp=4)) for v in ("0.8.5", "0.9.2")] == [1, 4]
    assert [vllm.overlaps_host(Options(version=v)) for v in ("0.13.0", "0.14.1")] == [False, True]
    assert [vllm.overlaps_host(Options(version=v, pp=2)) for v in ("0.21.0", "0.22.1")] == [False, True]
    for module in (sglang, tensorrt_llm):
        assert [module.overlaps_host(Options(pp=pp)) for pp in (1, 2)] == [True, False]
    assert [m.mixes_prefill(Options()) for m in (vllm, sglang, tensorrt_llm)] == [True, False, True]
    assert sglang.admission_reserve(Options()) == near((0.7, 0.098, 0.602 / 600))
    assert tensorrt_llm.admission_reserve(Options()) == (1.0, 1.0, 0.0)
    assert vllm.max_running(Options(max_sequences=8, tp=4, dp_attention=4), facts(), 0) == 32


def test_how_many_requests_sglang_runs() -> None:
    """Half the tokens at most, 2,048 to 4,096 rows by tokens over context; what is given is shared by the groups."""
    new = Options(engine="sglang", version="0.5.23", context=1000)
    assert [sglang.max_running(new, facts(), tokens) for tokens in (0, 100, 6000, 10**6)] == [1, 50, 3000, 4096]
    groups = replace(new, tp=4, dp_attention=4, max_sequences=100)
    assert sglang.max_running(groups, facts(), 10**6) == 100
    old = replace(groups, version="0.5.10")
    assert sglang.max_running(old, facts(), 10**6) == 100
    assert sglang.max_running(replace(old, max_sequences=None), facts(), 100) == 200
    assert sglang.max_running(replace(new, context=None), facts(), 10**6) == 2048  # the model's 262,144


def test_captured_sizes_of_sglang() -> None:
    def sizes(**keywords: Any) -> tuple[int, ...]:
        base: dict[str, Any] = {"version": "0.5.23", "max_graph_batch": 600, "cuda_graphs": True, "context": 4096}
        return sglang.capture_sizes(Options(engine="sglang", **(base | keywords)), facts())

    plain = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), 512, 544, 576)
    assert sizes() == (*plain, 600)
    assert sizes(version="0.5.18") == plain
    drafting = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 601, 16))
    assert sizes(version="0.5.18", speculative="eagle3:3") == drafting
    assert sizes(max_sequences=20) == (1, 2, 4, 8, 12, 16, 20)
    assert sizes(tp=8, dp_attention=2, max_graph_batch=16) == (4, 8, 12, 16)  # whole groups of four ranks
    assert sizes(cuda_graphs=False) == ()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("engine", "keywords", "machine", "rule"),
    [
        ("vllm==0.33.0", {"tp": 8, "ep": 2}, facts(), "all ranks or none"),
        ("vllm==0.33.0", {"tp": 2, "dp_attention": 2}, dense(), "no data-parallel attention for a dense model"),
        ("vllm==0.33.0", {"pp": 2, "async_depth": 1}, facts(), "no async_depth"),
        ("vllm==0.33.0", {"max_sequences": 8, "max_micro_batch": 4}, facts(), "no limit for one micro-batch"),
        ("vllm==0.9.2", {"tp": 8, "dcp": 2}, facts(), "no decode context parallelism"),
        ("vllm==0.33.0", {"tp": 16, "dcp": 4}, dense(), "only over ranks that hold the same KV head, 2 here"),
        ("sglang==0.5.23", {"tp": 8, "ep": 8}, facts(experts=4), "same number of experts"),
        ("sglang==0.5.9", {"pp": 2}, facts(vision=True), "without pipeline parallelism"),
        ("sglang==0.5.6", {"pp": 2, "async_depth": 1}, facts(), "pp-async-batch-depth"),
        ("sglang==0.5.18", {"tp": 8, "dcp": 2}, facts(), "no decode context parallelism"),
        ("sglang==0.5.20", {"pp": 2, "speculative": "eagle3:3"}, facts(), "rejects speculative decoding"),
        ("sglang==0.5.23", {"kv_dtype": "nvfp4"}, facts(), "compute capability 10"),
        ("tensorrt-llm", {"tp": 8, "dp_attention": 2}, facts(), "own attention group or none"),
        ("tensorrt-llm", {"max_micro_batch": 4}, facts(), "one micro-batch is not modelled"),
    ],
)  # fmt: skip
def test_what_an_engine_refuses(engine: str, keywords: dict[str, Any], machine: Facts, rule: str) -> None:
    module, version, _ = engines.get(engine)
    with pytest.raises(IllegalDeployment, match=rule):
        module.check(Options(engine=engine.partition("==")[0], version=version, **keywords), machine)


@pytest.mark.parametrize(
    ("engine", "keywords", "machine"),
    [
        ("vllm==0.33.0", {"tp": 8, "ep": 8, "dp_attention": 8}, facts()),
        ("vllm==0.33.0", {"max_sequences": 8, "max_micro_batch": 8, "async_depth": 0}, facts()),
        ("vllm==0.10.2", {"tp": 8, "dcp": 8}, facts()), ("vllm==0.33.0", {"tp": 16, "dcp": 2}, dense()),
        ("vllm==0.33.0", {"tp": 4}, dense()),
        ("sglang==0.5.23", {"tp": 8, "ep": 4}, facts()), ("sglang==0.5.10", {"pp": 2}, facts(vision=True)),
        ("sglang==0.5.9", {"pp": 2, "patches": ("pp",)}, facts(vision=True)),
        ("sglang==0.5.9", {"pp": 2, "async_depth": 1}, facts()), ("sglang==0.5.9", {"tp": 2}, facts(vision=True)),
        ("sglang==0.5.20", {"tp": 8, "dcp": 2}, facts()), ("sglang==0.5.20", {"speculative": "eagle3:3"}, facts()),
        ("sglang==0.5.21", {"pp": 2, "speculative": "eagle3:3"}, facts()),
        ("sglang==0.5.23", {"kv_dtype": "nvfp4"}, facts(compute_capability=10.0)),
        ("tensorrt-llm", {"tp": 8, "dp_attention": 8}, facts()), ("tensorrt-llm", {"max_micro_batch": 2048}, facts()),
        ("tensorrt-llm", {"kv_dtype": "nvfp4"}, facts(compute_capability=10.0)),
    ],
)  # fmt: skip
def test_what_an_engine_runs(engine: str, keywords: dict[str, Any], machine: Facts) -> None:
    module, version, _ = engines.get(engine)
    module.check(Options(engine=engine.partition("==")[0], version=version, **keywords), machine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_kernel_is_refused(engine: str) -> None:
    module, version, _ = engines.get(engine)
    options = Options(engine=engine, version=version, attention_backend="no_such")
    with pytest.raises(UnknownName, match="attention_backend"):
        module.check(options, facts()) if engine == "tensorrt-llm" else module.resolve(options, facts())
    with pytest.raises(UnknownName, match="all_reduce"):
        module.all_reduce_backend(replace(options, all_reduce="no_such"), facts(), 8, 1024)


def test_the_rules_of_which_version() -> None:
    known = ("0.5.11", "0.5.13", "0.5.15")
    assert [pick("sglang", v, known)[0] for v in (None, "0.5.13", "0.5.14", "0.6", "0.5.10")] == [
        "0.5.15", "0.5.13", "0.5.13", "0.5.15", "0.5.11"]  # fmt: skip
    assert pick("sglang", "v0.5.13.post1", known) == ("0.5.13", ())
    assert all("sglang" in pick("sglang", v, known)[1][0] for v in (None, "0.5.14", "0.5.10"))


# ---------------------------------------------------------------- drafts


@pytest.mark.parametrize(
    ("text", "accepted"),
    [("mtp", (0.65,)), ("mtp:2", (0.65, 0.65**2)), ("mtp:2:0.5", (0.5, 0.25)), ("mtp:2:1", (1.0, 1.0)),
     ("mtp:2:0", (0.0, 0.0)), ("mtp:2:1.75", (0.5, 0.25)), ("mtp:2:3", (1.0, 1.0)), ("mtp:2:0.6/0.4", (0.6, 0.4)),
     ("mtp:2:1/1", (1.0, 1.0)), ("mtp:64:1", (1.0,) * 64)],
)  # fmt: skip
def test_how_often_drafts_are_accepted(text: str, accepted: tuple[float, ...]) -> None:
    found = speculation(text)
    assert found is not None and found.accepted == pytest.approx(accepted, rel=1e-9, abs=1e-12)
    assert found.stated == (text.count(":") == 2)


@pytest.mark.parametrize("text", ["mtp:2:3.01", "mtp:2:0.4/0.6", "mtp:3:0.6/0.4", "mtp:2:1.1/0.4", "mtp:2:-0.1",
                                  "mtp:2:nan", "mtp:2:x", "mtp:0", "mtp:65", "mtp:1:0.5:m:x"])  # fmt: skip
def test_acceptances_that_cannot_be(text: str) -> None:
    with pytest.raises(BadInput):
        speculation(text)
