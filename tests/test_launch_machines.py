"""Launches over several machines: who finds whom, and command -> Deployment -> command."""

import shlex
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import catalog, engines
from perfmodel.catalog.cluster import machine_size
from perfmodel.engines.flag_versions import flag_warnings
from perfmodel.engines.machines import spread
from perfmodel.engines.options import Options
from perfmodel.errors import PerfModelError
from perfmodel.insight.launch import read_launch

PAIR = "2x-dgx-h100"


def lines(engine: str, node: str = PAIR, model: str = "deepseek-v3.1", **keywords: int) -> list[tuple[int, str, str]]:
    return list(pm.deploy(model, node=node, engine=engine, **keywords).launches())


@pytest.mark.parametrize(("node", "gpus"), [
    (PAIR, 8), ("4x-dgx-h100", 8), ("2x-4x-h100-sxm-roce", 4), ("2x-8x-rtx-pro-6000-server-tcp", 8), ("8x-h200-sxm", 8),
    ("3x-8x-l40s-ib", 8), ("72x-gb200", 4), ("2x-72x-gb200", 4), ("2x-8x-mi355x", 8)])  # fmt: skip
def test_gpus_of_one_machine(node: str, gpus: int) -> None:
    assert machine_size(catalog.load_node(node)) == gpus


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]))
def test_launches_hold_all_copies_and_every_machine_as_many_gpus(tp: int, pp: int, dp: int, size: int) -> None:
    count, one, machines = spread(Options(tp=tp, pp=pp, dp=dp), size)
    assert count * one.dp == dp and (one.tp, one.pp) == (tp, pp)
    assert one.world % machines == 0 and one.world // machines <= size
    assert machines == 1 or one.dp == 1
    assert one.dp * one.world <= max(size, one.world)


def test_sglang_names_machines_rank_and_the_first_address() -> None:
    first, other = lines("sglang", tp=16, dp_attention=16, ep=16)
    assert first[:2] == (1, "first of 2 machines") and other[:2] == (1, "each other of 2 machines")
    assert first[2].endswith("--nnodes 2 --node-rank 0 --dist-init-addr $HEAD_ADDR:5000")
    assert other[2] == first[2].replace("--node-rank 0", "--node-rank $NODE_RANK")


def test_vllm_joins_processes_since_0_11_2_and_needs_ray_before() -> None:
    first, other = lines("vllm==0.11.2", tp=8, pp=2)
    assert first[2].endswith("--nnodes 2 --node-rank 0 --master-addr $HEAD_ADDR")
    assert other[2].endswith("--nnodes 2 --node-rank $NODE_RANK --master-addr $HEAD_ADDR --headless")
    before = lines("vllm==0.10.2", tp=8, pp=2)
    assert [line.split()[0] for _, _, line in before] == ["ray", "ray", "vllm"]
    assert before[2][2].endswith("--distributed-executor-backend ray")


def test_data_parallel_ranks_of_vllm_are_dealt_to_the_machines() -> None:
    first, other = lines("vllm", tp=16, dp_attention=8, ep=16)
    assert "--data-parallel-size 8" in first[2] and "--data-parallel-size-local 4" in first[2]
    assert "--headless" not in first[2] and "--data-parallel-start-rank $((4*NODE_RANK))" in other[2]
    wide = lines("vllm", node="4x-dgx-h100", tp=32, dp_attention=2)  # a rank of sixteen GPUs, two machines each
    assert wide[2][2].startswith("VLLM_RAY_DP_PACK_STRATEGY=span ") and "--data-parallel-backend ray" in wide[2][2]
    assert wide[1][:2] == (3, "each other of 4 machines")


def test_tensorrt_llm_starts_a_process_a_gpu_and_exports_settings() -> None:
    (_, place, line), = lines("tensorrt-llm", tp=16)
    assert place == "" and line.startswith("mpirun -n 16 --hostfile hosts trtllm-llmapi-launch trtllm-serve ")
    d = pm.deploy("deepseek-v3.1", node=PAIR, engine="tensorrt-llm", tp=16, nccl="NCCL_PROTO=LL")
    assert d.command().startswith("NCCL_PROTO=LL mpirun -n 16 --hostfile hosts -x NCCL_PROTO ")


def test_copies_stay_on_their_machines() -> None:
    assert lines("sglang", tp=4, dp=4) == [(2, "", pm.deploy(
        "deepseek-v3.1", node="8x-h100-sxm", engine="sglang", tp=4, dp=2).command())]
    assert [count for count, *_ in lines("vllm", tp=4, dp=4)] == [4]  # an MoE's copies are launched one by one
    assert [count for count, *_ in lines("vllm", model="llama-3.1-70b", tp=4, dp=4)] == [2]


def test_one_machine_needs_no_words() -> None:
    for engine in engines.ENGINES:
        (count, place, line), = lines(engine, tp=8)
        assert (count, place) == (1, "") and not any(word in line for word in ("nnodes", "HEAD", "mpirun", "ray"))


@pytest.mark.parametrize("engine", engines.ENGINES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_command_over_machines_comes_back(engine: str, data: Any) -> None:
    module, _, _ = engines.get(engine)
    version, tp = data.draw(st.sampled_from(module.VERSIONS)), data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    groups = data.draw(st.sampled_from([n for n in (1, 2, 4, 8, 16) if n <= tp]))
    keywords = {"tp": tp, "pp": data.draw(st.sampled_from([n for n in (1, 2, 4, 8, 16) if n * tp <= 16])),
                "dp_attention": groups, "ep": data.draw(st.sampled_from([1, tp])),
                "dp": data.draw(st.sampled_from([1, 2]))}  # fmt: skip
    try:
        first = pm.deploy("kimi-k2.6", node=PAIR, engine=f"{engine}=={version}", **keywords)
    except PerfModelError:
        assume(False)
        raise
    for _, _, line in first.launches():
        if line.startswith("ray "):
            continue
        launch = read_launch(line, f"{engine}=={version}", moe=True)
        assert launch.unknown == () and launch.model == first.model.aliases[0]
        flags = [word for word in shlex.split(line.partition("  #")[0]) if word.startswith("--")]
        own = [word for word in flags if word not in ("--hostfile",)]
        assert not [said for said in flag_warnings(engine, version, own) if "not in" in said or "unknown" in said]
        second = pm.deploy(launch.model, node=PAIR, engine=f"{engine}=={version}", **launch.keywords)
        assert (second.options.tp, second.options.pp, second.options.ep) == (tp, keywords["pp"], keywords["ep"])
        assert second.command() == first.command()
