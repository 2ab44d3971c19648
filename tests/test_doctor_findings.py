"""Every finding: a launch that has it, and one that has not. What it is worth is the model's own difference."""

from functools import lru_cache
from typing import Any

import pytest
from command_line import NODE, ask

import perfmodel as pm
from perfmodel.errors import BadInput, Infeasible, PerfModelError
from perfmodel.insight.asking import Finding
from perfmodel.insight.doctor import Doctor

PP8 = (
    "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.6 --pp-size 8 --max-running-requests 64 "
    "--mem-fraction-static 0.92 --context-length 32768"
)
TP8 = PP8.replace("--pp-size 8 --max-running-requests 64", "--tp-size 8")
VLLM = "vllm serve moonshotai/Kimi-K2.6 -tp 8 --gpu-memory-utilization 0.94 --max-model-len 32768"
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
DEEPSEEK = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --context-length 32768"
H100, H200 = "8x-h100-sxm", "8x-h200-sxm"
OLD = "sglang==0.5.10"
Launch = tuple[str, str, str | None]

# finding, a launch that has it, a launch that has not: (command, node, engine)
RULES: list[tuple[str, Launch, Launch]] = [
    ("CUDA graphs off", (f"{PP8} --disable-cuda-graph", NODE, OLD), (PP8, NODE, OLD)),
    ("batches above the largest graph", (f"{LLAMA} -tp 8 --max-cudagraph-capture-size 8", H100, None),
     (f"{LLAMA} -tp 8", H100, None)),
    ("one crowded pipeline slot", (PP8, NODE, OLD), (f"{PP8} --pp-max-micro-batch-size 1", NODE, OLD)),
    ("pipeline without async depth", (PP8, NODE, OLD), (f"{PP8} --pp-async-batch-depth 2", NODE, OLD)),
    ("uneven stages", (PP8, NODE, OLD), (f"SGLANG_PP_LAYER_PARTITION=8,7,7,8,8,8,8,7 {PP8}", NODE, OLD)),
    ("partition of layers by hand",
     (f"SGLANG_PP_LAYER_PARTITION=3,8,8,8,8,8,9,9 {PP8} --kv-cache-dtype fp8", NODE, OLD), (PP8, NODE, OLD)),
    ("experts cut 8 ways", (DEEPSEEK, H200, None), (f"{DEEPSEEK} --ep-size 8", H200, None)),
    ("EP that still pays all-reduces", (f"{DEEPSEEK} --ep-size 8", H200, None), (DEEPSEEK, H200, None)),
    ("KV replicated (DCP would share it)", (VLLM, NODE, None), (f"{VLLM} -dcp 8", NODE, None)),
    ("KV replicated (DP attention would share it)", (DEEPSEEK, H200, None),
     (f"{DEEPSEEK} --ep-size 8 --attn-dp-size 8", H200, None)),
    ("memory fraction leaves GPUs idle", (VLLM.replace("0.94", "0.86"), NODE, None),
     (VLLM.replace("0.94", "0.97"), NODE, None)),
    ("close to out of memory", (PP8.replace("0.92", "0.96"), NODE, OLD), (PP8.replace("0.92", "0.9"), NODE, OLD)),
    ("sequence limit below the load", (f"{VLLM} --max-num-seqs 4", NODE, None),
     (f"{VLLM} --max-num-seqs 64", NODE, None)),
    ("sequence limit above the load", (f"{VLLM} --max-num-seqs 1024", NODE, None),
     (f"{VLLM} --max-num-seqs 64", NODE, None)),
    ("context longer than the load needs", (f"{LLAMA} --max-model-len 32768", "8x-rtx-4090", "vllm==0.7.3"),
     (f"{LLAMA} --max-model-len 8192", "8x-rtx-4090", "vllm==0.7.3")),
    ("context shorter than the load", (VLLM.replace("32768", "1024"), NODE, None), (VLLM, NODE, None)),
    ("KV cache in 16 bits", (VLLM, NODE, None), (f"{VLLM} --kv-cache-dtype fp8", NODE, None)),
    ("prefill chunk small", (f"{VLLM} --max-num-batched-tokens 256", NODE, None),
     (f"{VLLM} --max-num-batched-tokens 16384", NODE, None)),
    ("GPUs idle", (f"{LLAMA} -tp 2", H100, None), (f"{LLAMA} -tp 2 -dp 4", H100, None)),
    ("custom all-reduce switched off", (f"{LLAMA} -tp 8 --disable-custom-all-reduce", H100, None),
     (f"{LLAMA} -tp 8", H100, None)),
    ("custom all-reduce unavailable on PCIe", (VLLM, NODE, None), (f"{LLAMA} -tp 8", H100, None)),
    ("NCCL variable NCCL_PROTO=Simple", (f"NCCL_PROTO=Simple {LLAMA} -tp 8", NODE, None),
     (f"{LLAMA} -tp 8", NODE, None)),
    ("NCCL picks a slow protocol at these sizes", (f"NCCL_P2P_LEVEL=LOC {LLAMA} -tp 8", NODE, None),
     (f"{LLAMA} -tp 8", NODE, None)),
    ("NCCL does not use P2P across root ports", (f"{LLAMA} -tp 8", "8x-l40s", None),
     (f"NCCL_P2P_LEVEL=SYS {LLAMA} -tp 8", "8x-l40s", None)),
    ("P2P between GPUs switched off", (f"NCCL_P2P_DISABLE=1 {VLLM}", NODE, None), (VLLM, NODE, None)),
    ("no P2P between GPUs on this node", (f"{LLAMA} -tp 8 --max-model-len 8192", "8x-rtx-5090", None),
     (f"{LLAMA} -tp 4 --max-model-len 8192", "4x-rtx-4090-p2p", None)),
    ("the answer takes NCCL as tuned", (VLLM, NODE, None), (PP8, NODE, OLD)),
    ("does not start", (PP8.replace(" --mem-fraction-static 0.92", ""), NODE, OLD), (PP8, NODE, OLD)),
]  # fmt: skip


@lru_cache(maxsize=64)
def examined(command: str, node: str, engine: str | None) -> Doctor:
    loads = (1, 8, 512) if node == H200 else (1, 8, 64)
    return pm.doctor(command, node=node, engine=engine, concurrency=loads)  # type: ignore[no-any-return]


def named(answer: Doctor, words: str) -> list[Finding]:
    return [finding for finding in answer.findings if finding.name.startswith(words)]


@pytest.mark.parametrize(("words", "has", "has_not"), RULES, ids=[words for words, _, _ in RULES])
def test_a_rule_fires_where_it_should_and_only_there(words: str, has: Launch, has_not: Launch) -> None:
    assert named(examined(*has), words), [f.name for f in examined(*has).findings]
    assert not named(examined(*has_not), words)


@pytest.mark.parametrize(("words", "has"), [rule[:2] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_the_sign_of_an_effect_is_that_of_the_change(words: str, has: Launch) -> None:
    answer = examined(*has)
    for finding in named(answer, words):
        shown, i = finding.to_dict(answer.concurrency), answer.concurrency.index(finding.at)
        effect = finding.tok_s[i] - finding.tok_s_now[i]
        assert shown["effect_tok_s"] == pytest.approx(effect, rel=1e-12, abs=0)
        assert shown["effect_kv_tokens"] == finding.kv_tokens - finding.kv_tokens_now
        assert effect >= 0 or finding.kind in ("risk", "safety") or finding.kv_tokens > finding.kv_tokens_now
        assert (effect < 0) if finding.kind == "risk" else True
        assert (finding.chance is not None) == (finding.kind == "safety")


@pytest.mark.parametrize("words", ["EP that still pays", "KV replicated (DCP", "memory fraction leaves", "GPUs idle"])
def test_an_effect_is_what_the_model_says_of_the_changed_launch(words: str) -> None:
    command, node, engine = next(has for name, has, _ in RULES if name.startswith(words))
    answer = examined(command, node, engine)
    (finding,) = named(answer, words)
    d = answer.deployment
    asked = {key: getattr(d.requested, key) for key in ("tp", "pp", "ep", "dp", "dcp", "context", "memory_fraction")}
    version = f"{d.options.engine}=={d.options.version}"
    other = pm.deploy(d.model, node=node, engine=version, **{**asked, **finding.changes})
    rate = pm.predict(other, concurrency=[finding.at]).output_tok_s[0][0]
    assert finding.tok_s[answer.concurrency.index(finding.at)] == pytest.approx(float(rate), rel=1e-9, abs=0)
    assert finding.kv_tokens == pm.memory(other).kv_tokens_total


def test_a_chance_falls_with_what_is_spare() -> None:
    chances = []
    for fraction in ("0.95", "0.96"):
        (finding,) = named(examined(PP8.replace("0.92", fraction), NODE, OLD), "close")
        assert finding.chance is not None
        chances.append(finding.chance)
    assert 0 < chances[0] < chances[1] <= 0.5


def test_depth_hides_the_loop_of_the_host() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang", pp=8, memory_fraction=0.92, max_micro_batch=8)
    deep = pm.deploy("kimi-k2.6", node=NODE, engine="sglang", pp=8, memory_fraction=0.92, max_micro_batch=8,
                     async_depth=2)  # fmt: skip
    host = d.calibration.parameters["micro_batch_s"].value * d.calibration.parameters["host_speed"].value
    waits, hidden = (pm.step(x, batch=8, arrival="burst").seconds for x in (d, deep))
    assert waits - hidden == pytest.approx(8 * host, rel=1e-6, abs=0)  # once for each stage of the trip


def test_a_launch_that_sees_too_few_gpus_is_told() -> None:
    answer = pm.doctor(f"CUDA_VISIBLE_DEVICES=0,1 {VLLM}", node=NODE, concurrency=[8])
    assert any("the launch needs 8, its settings leave it 2" in said for said in answer.launch.warnings)
    assert not any("GPUs:" in said for said in examined(VLLM, NODE, None).launch.warnings)


def test_the_printed_table_gives_signed_effects() -> None:
    text = ask("doctor", VLLM, "--node", NODE, "--concurrency", "8").stdout
    assert "What each change brings; a risk, what it would take away:" in text
    (row,) = [line for line in text.splitlines() if "risk: the answer takes NCCL as tuned" in line and "%" in line]
    assert " -" in row and "+" not in row


@pytest.mark.parametrize(
    ("name", "value"),
    [("concurrency", "x"), ("concurrency", None), ("concurrency", [[1]]), ("concurrency", float("nan")), ("log", 5),
     ("metrics", 1.5), ("benchmark", 5), ("model", 7), ("engine", 5), ("input_tokens", "many"), ("node", 5),
     ("arrival", "slow"), ("prompts", 5), ("no_such_keyword", 1), ("calibration", 5)],
)  # fmt: skip
def test_wrong_types_are_plain_errors(name: str, value: Any) -> None:
    with pytest.raises(PerfModelError):
        pm.doctor(VLLM, **{"node": NODE, "concurrency": [8], name: value})


@pytest.mark.parametrize("command", [5, None, b"vllm serve m", ["vllm", "serve"]])
def test_a_command_is_text(command: Any) -> None:
    with pytest.raises(BadInput, match="must be text"):
        pm.doctor(command, node=NODE)


def test_kernels_that_are_not_known_here_are_left_out_and_said() -> None:
    answer = pm.doctor(f"{VLLM} --moe-backend hyperspeed --attention-backend warp", node=NODE, concurrency=[8])
    notes = " ".join(answer.launch.notes)
    assert "expert kernels hyperspeed: not known here" in notes and "--attention-backend warp: not known here" in notes


def test_requests_that_no_context_can_hold_are_an_answer_of_no() -> None:
    with pytest.raises(Infeasible, match="a request has 2,048 tokens, the launch allows 1,000"):
        pm.doctor("vllm serve meta-llama/Llama-3.1-70B --max-model-len 1000", node="1x-rtx-4090", concurrency=[8])
