"""Launch lines word by word: what is written for each option and version, and how the reader takes values."""

from typing import Any

import pytest

from perfmodel import engines
from perfmodel.engines.flag_versions import Life, flag_warnings
from perfmodel.engines.flags import Flag, checkpoint, environment_layers, environment_words, read, skip, split, write
from perfmodel.engines.flags import weights_remark as remark
from perfmodel.engines.options import Options
from perfmodel.errors import BadInput

SGLANG = "python -m sglang.launch_server --model-path org/m"


def line(engine: str, model: str = "org/m", **keywords: Any) -> str:
    module, version, _ = engines.get(engine)
    online, moe = keywords.pop("online", True), keywords.pop("moe", True)
    options = Options(engine=engine.partition("==")[0], version=version, **keywords)
    return str(module.launch_command(options, model, moe, online))


@pytest.mark.parametrize(
    ("engine", "keywords", "expected"),
    [
        ("sglang==0.5.18", {"max_graph_batch": 64}, f"{SGLANG} --tp-size 1 --cuda-graph-max-bs 64"),
        ("sglang==0.5.20", {"max_graph_batch": 64}, f"{SGLANG} --tp-size 1 --cuda-graph-max-bs-decode 64"),
        ("sglang==0.5.18", {"cuda_graphs": False}, f"{SGLANG} --tp-size 1 --disable-cuda-graph"),
        ("sglang==0.5.20", {"cuda_graphs": False}, f"{SGLANG} --tp-size 1 --cuda-graph-backend-decode disabled"),
        ("sglang==0.5.21", {"tp": 8, "dp_attention": 4}, f"{SGLANG} --tp-size 8 --dp-size 4 --enable-dp-attention"),
        ("sglang==0.5.22", {"tp": 8, "dp_attention": 4}, f"{SGLANG} --tp-size 8 --attn-dp-size 4"),
        ("sglang==0.5.22", {"tp": 8, "dp": 2}, f"{SGLANG} --tp-size 8 --dp-size 2"),
        ("sglang==0.5.22", {"all_reduce": "nccl"}, f"{SGLANG} --tp-size 1 --disable-custom-all-reduce"),
        ("sglang==0.5.22", {"all_reduce": "symm_mem"}, f"{SGLANG} --tp-size 1 --enable-torch-symm-mem"),
        ("sglang==0.5.22", {"all_reduce": "pcie_ipc"}, f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 {SGLANG} --tp-size 1"),
        ("sglang==0.5.22", {"pp": 2, "layers_per_stage": (30, 31)},
         f"SGLANG_PP_LAYER_PARTITION=30,31 {SGLANG} --tp-size 1 --pp-size 2"),
        ("sglang==0.5.22", {"quantization": "fp8"}, f"{SGLANG} --tp-size 1 --quantization fp8"),
        ("sglang==0.5.22", {"speculative": "eagle3:3"},
         f"{SGLANG} --tp-size 1 --speculative-algorithm EAGLE3 --speculative-num-draft-tokens 3"),
        ("sglang==0.5.22", {"nccl": "NCCL_ALGO=RING"}, f"NCCL_ALGO=RING {SGLANG} --tp-size 1"),
        ("vllm==0.11.2", {"max_graph_batch": 64}, "vllm serve org/m --tensor-parallel-size 1 --cuda-graph-sizes 64"),
        ("vllm==0.12.0", {"max_graph_batch": 64},
         "vllm serve org/m --tensor-parallel-size 1 --max-cudagraph-capture-size 64"),
        ("vllm==0.12.0", {"cuda_graphs": False}, "vllm serve org/m --tensor-parallel-size 1 --enforce-eager"),
        ("vllm==0.12.0", {"attention_backend": "flashmla"},
         "VLLM_ATTENTION_BACKEND=FLASHMLA vllm serve org/m --tensor-parallel-size 1"),
        ("vllm==0.13.0", {"attention_backend": "flashmla"},
         "vllm serve org/m --tensor-parallel-size 1 --attention-backend FLASHMLA"),
        ("vllm==0.33.0", {"all_reduce": "pcie_ipc"},
         "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve org/m --tensor-parallel-size 1"),
        ("vllm==0.33.0", {"all_reduce": "symm_mem"},
         "VLLM_ALLREDUCE_USE_SYMM_MEM=1 vllm serve org/m --tensor-parallel-size 1"),
        ("vllm==0.33.0", {"all_reduce": "nccl"},
         "vllm serve org/m --tensor-parallel-size 1 --disable-custom-all-reduce"),
        ("vllm==0.33.0", {"tp": 8, "dp_attention": 4, "ep": 8},
         "vllm serve org/m --tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel"),
        ("vllm==0.33.0", {"tp": 2, "dp": 4}, "vllm serve org/m --tensor-parallel-size 2"),
        ("vllm==0.33.0", {"tp": 2, "dp": 4, "moe": False},
         "vllm serve org/m --tensor-parallel-size 2 --data-parallel-size 4"),
        ("vllm==0.33.0", {"pp": 2, "layers_per_stage": (30, 31)},
         "VLLM_PP_LAYER_PARTITION=30,31 vllm serve org/m --tensor-parallel-size 1 --pipeline-parallel-size 2"),
        ("vllm==0.33.0", {"quantization": "fp8"}, "vllm serve org/m --tensor-parallel-size 1 --quantization fp8"),
        ("vllm==0.33.0", {"quantization": "fp8", "online": False},
         "vllm serve ./m-fp8 --tensor-parallel-size 1  # weights: org/m in fp8"),
        ("vllm==0.33.0", {"speculative": "mtp:2"}, "vllm serve org/m --tensor-parallel-size 1 --speculative-config "
         "'{\"method\": \"mtp\", \"num_speculative_tokens\": 2}'"),
        ("tensorrt-llm", {"tp": 8, "cuda_graphs": False, "page_size": 64, "max_sequences": 7},
         "trtllm-serve org/m --tp_size 8 --max_batch_size 7  # --config: cuda_graph_config=off "
         "kv_cache_config.tokens_per_block=64"),
    ],
)  # fmt: skip
def test_what_is_written(engine: str, keywords: dict[str, Any], expected: str) -> None:
    assert line(engine, **keywords) == expected


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_kimi_brings_its_own_code(engine: str) -> None:
    assert line(engine, "moonshotai/Kimi-K2.6").endswith(" --trust-remote-code")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cuda-graph-bs 1 2 16 8 --tp 2", {"max_graph_batch": 16, "tp": 2}), ("--tp-size=4", {"tp": 4}),
        ("--dp-size 4 --enable-dp-attention --tp 4", {"dp_attention": 4, "tp": 4}), ("--enable-dp-attention", {}),
        ("--attn-dp-size 2 --tp 4", {"dp_attention": 2, "tp": 4}), ("--dp-size 2", {"dp": 2}),
        ("--disable-cuda-graph", {"cuda_graphs": False}), ("--cuda-graph-backend-decode full", {}),
        ("--cuda-graph-backend-decode disabled", {"cuda_graphs": False}),
        ("--speculative-algorithm EAGLE3", {"speculative": "eagle3:1"}), ("--speculative-num-draft-tokens 3", {}),
        ("--speculative-algorithm EAGLE3 --speculative-num-draft-tokens 3", {"speculative": "eagle3:3"}),
        ("--disable-custom-all-reduce", {"all_reduce": "nccl"}),
        ("--enable-torch-symm-mem", {"all_reduce": "symm_mem"}),
        ("--tp 1 --pp-size 1 --dp-size 1 --ep 1", {}), ("--mem-fraction-static .9", {"memory_fraction": 0.9}),
    ],
)  # fmt: skip
def test_what_sglang_s_words_say(words: str, said: dict[str, Any]) -> None:
    assert engines.get("sglang")[0].parse_command(f"{SGLANG} {words}") == ("org/m", said, ())


TABLE = (Flag(("--size", "-s"), "context", "size"), Flag(("--count",), "tp", "int"), Flag(("--part",), "pp", "ints"),
         Flag(("--on",), "cuda_graphs", "true"), Flag(("--off",), "cuda_graphs", "false"),
         Flag(("--share",), "memory_fraction", "float"), Flag(("--word",), "kv_dtype", "str"), skip("--other"),
         Flag(("--all",), None, "many"), Flag(("--some",), None, "maybe"),
         Flag(("--quiet",), None, "switch"))  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found", "free", "unknown"),
    [
        ("--size 32k", {"context": 32000}, [], ()), ("-s=32K", {"context": 32768}, [], ()),
        ("--size 1.5m", {"context": 1_500_000}, [], ()), ("--size 7", {"context": 7}, [], ()),
        ("--size 1M --size 1g", {"context": 10**9}, [], ()), ("--part 3,4", {"pp": (3, 4)}, [], ()),
        ("--on a", {"cuda_graphs": True}, ["a"], ()), ("--off a", {"cuda_graphs": False}, ["a"], ()),
        ("--share .5 --word x y", {"memory_fraction": 0.5, "kv_dtype": "x"}, ["y"], ()),
        ("--other x y", {}, ["y"], ()), ("--other=x y", {}, ["y"], ()), ("--all a b --count 2 c", {"tp": 2}, ["c"], ()),
        ("--some a b", {}, ["b"], ()), ("--some=a b", {}, ["b"], ()), ("--some --count 2", {"tp": 2}, [], ()),
        ("--quiet a", {}, ["a"], ()), ("--no-such a b", {}, ["b"], ("--no-such",)),
        ("--no-such=a b", {}, ["b"], ("--no-such",)), ("--no-such --count 2", {"tp": 2}, [], ("--no-such",)),
        ("--cou 2", {"tp": 2}, [], ()), ("--s 2", {}, [], ("--s",)), ("--o", {}, [], ("--o",)),
        ("--share -1.5", {"memory_fraction": -1.5}, [], ()), ("-1 --count -2", {"tp": -2}, ["-1"], ()),
        ("--no_such", {}, [], ("--no_such",)), ("a --count 2 b", {"tp": 2}, ["a", "b"], ()),
    ],
)  # fmt: skip
def test_how_words_are_read(words: str, found: dict[str, Any], free: list[str], unknown: tuple[str, ...]) -> None:
    assert read(words.split(), TABLE) == (found, free, unknown)


@pytest.mark.parametrize("words", ["--count", "--count x", "--part 1,x", "--size 1..2k", "--size x", "--share x"])
def test_values_that_are_none(words: str) -> None:
    with pytest.raises(BadInput, match=words.split()[0]):
        read(words.split(), TABLE)


def test_what_stands_before_and_behind_the_program() -> None:
    assert split("A=1 B_2='x y' run --c=3 # no") == ({"A": "1", "B_2": "x y"}, ["run", "--c=3"])
    assert split("run \\\n A=1") == ({}, ["run", "A=1"])
    with pytest.raises(BadInput, match="shell line"):
        split("run 'open")
    assert environment_words(Options(nccl="2.28.3,NCCL_ALGO=RING NCCL_PROTO=LL"), {"X": "1"}) == [
        "X=1", "NCCL_ALGO=RING", "NCCL_PROTO=LL"]  # fmt: skip
    assert environment_words(Options()) == []
    assert environment_layers({"L": "3,4"}, "L") == {"layers_per_stage": (3, 4)}
    assert environment_layers({}, "L") == {}
    for options in (Options(), Options(quantization="fp8")):
        assert checkpoint(options, "org/m", ["fp8"]) == ("org/m", "")
    assert remark("run # weights: org/m in awq  ") == ("org/m", "awq")
    assert remark("run # weights: org/m in awq and more") is None


def test_what_is_left_out_is_not_written() -> None:
    options = Options(tp=2, context=100, cuda_graphs=True, memory_fraction=0.123456789)
    assert write(options, TABLE) == ["--size", "100", "--count", "2", "--on", "--share", "0.123457"]
    assert write(options, TABLE, ("tp", "cuda_graphs")) == ["--size", "100", "--share", "0.123457"]
    assert write(Options(), TABLE) == []


def test_what_a_version_says_to_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"--new": Life(since="0.30", instead="--old"), "--gone": Life(until="0.20", instead="nothing: it is on"),
             "--late": Life(deprecated="0.30"), "--fine": Life(since="0.10", until="0.40")}  # fmt: skip
    monkeypatch.setattr("perfmodel.engines.flag_versions.TABLES", {"vllm": table})

    def said(version: str, *words: str) -> tuple[str, ...]:
        return flag_warnings("vllm", version, words)

    assert said("0.29", "--new") == ("--new: not in vllm 0.29, since 0.30; write --old",)
    assert said("0.30", "--new", "--late") == ("--late: deprecated since vllm 0.30",)
    assert said("0.20", "--gone=1") == ("--gone: removed in vllm 0.20; it is on",)
    assert said("0.19", "--gone", "--late", "--fine", "word", "-O3", "-x", "--a.b=1") == ()
    assert said("0.40", "--fine", "--fine") == ("--fine: removed in vllm 0.40",)
