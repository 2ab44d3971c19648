"""Order of strategies measured side by side, where a pipeline passes tensor parallelism, and how a plan is printed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.cli.plan import plan as command
from perfmodel.insight.order import LEAST_RATIO, Order, order
from perfmodel.planner import Plan
from perfmodel.report.plan_text import plan_text
from tests.cases import CASE_NODE

LEAST_SHARE = 0.85


@pytest.fixture(scope="module")
def pairs() -> Order:
    return order()


def test_strategies_measured_side_by_side_are_in_order(pairs: Order) -> None:
    scores = {score["differs"]: score for score in pairs.scores()}
    assert scores["all"]["pairs"] >= 1000
    assert scores["all"]["share"] >= LEAST_SHARE
    assert scores["all on as many GPUs"]["pairs"] >= 200
    assert scores["all on as many GPUs"]["share"] >= LEAST_SHARE


def test_only_pairs_that_differ_count(pairs: Order) -> None:
    assert all(pair.measured_ratio > LEAST_RATIO and pair.differs for pair in pairs.pairs)
    assert sum(s["pairs"] for s in pairs.scores() if not s["differs"].startswith("all")) == len(pairs.pairs)
    assert all(pair.right == (pair.predicted_ratio > 1) for pair in pairs.pairs)


def both(**keywords: Any) -> tuple[Any, Any]:
    """TP8 and PP8 of Kimi on the node of the case, random routing."""
    same = {"node": CASE_NODE, "engine": "vllm==0.33.0", "kv_dtype": "fp8", "memory_fraction": 0.92, **keywords}
    return (pm.deploy("kimi-k2.6", tp=8, **same), pm.deploy("kimi-k2.6", pp=8, **same))


@pytest.mark.parametrize("context", [256, 1024, 4096])
def test_a_pipeline_passes_in_decode_only_at_thousands_of_sequences(context: int) -> None:
    tp8, pp8 = both(context=32768, max_sequences=16384)
    batch = np.array([1, 8, 64, 512, 1000, 10_000])
    slow, fast = (pm.step(d, batch=batch, context=context, arrival="staggered").seconds for d in (tp8, pp8))
    ahead = slow > fast
    assert ahead.tolist() == [False] * 5 + [True]


def test_a_pipeline_passes_earlier_where_prefill_dominates() -> None:
    """A chunk of a long prompt is as many rows as thousands of sequences: one request in flight is enough."""
    tp8, pp8 = both(context=200_000)
    tokens = np.array([8192, 65_536, 131_072])
    prefill = pm.prefill(tp8, tokens=tokens).seconds / pm.prefill(pp8, tokens=tokens).seconds
    assert prefill[0] < 1 < prefill[1] < prefill[2]
    load: dict[str, Any] = {"concurrency": [1, 4, 16], "input_tokens": 65_536, "output_tokens": 16}
    first, second = (pm.predict(d, arrival="staggered", **load).output_tok_s[0] for d in (tp8, pp8))
    assert np.all(second > first)


@pytest.fixture(scope="module")
def small() -> Plan:
    found: Plan = pm.plan("qwen3-8b", node=["2x-l40s", "1x-h100-sxm"], context=4096, concurrency=64, keep=4,
                          price_per_gpu_hour={"l40s": 1, "h100-sxm": 3})  # fmt: skip
    return found


def test_a_plan_fits_the_page_and_says_what_is_certain(small: Plan) -> None:
    text = plan_text(small)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("points priced", "Pareto front", "launch:", "measure:", "per Mtok", "All nodes together"):
        assert word in text
    assert ("do not overlap" in text) == small.separated


def test_a_plan_draws_its_front(small: Plan, tmp_path: Path) -> None:
    from perfmodel.report import save

    assert save(small, tmp_path / "front.png").stat().st_size > 10_000


def test_the_command_takes_several_nodes_and_prices() -> None:
    words = ["--model", "qwen3-8b", "--node", "1x-l40s", "--node", "1x-a10", "--price", "1x-l40s=1",
             "--price", "a10=0.5", "--target", "cost", "--context", "2048", "--concurrency", "16",
             "--keep", "2", "--json"]  # fmt: skip
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    import json

    rows = json.loads(done.stdout)
    assert [row["rank"] for row in rows] == [1, 2] and rows[0]["search"]["points"] > 100
    assert rows[0]["cost_per_mtok"] <= rows[1]["cost_per_mtok"]


@pytest.mark.parametrize("price", ["l40s", "=3", "l40s=", "l40s=cheap"])
def test_a_price_that_does_not_read_is_refused(price: str) -> None:
    from perfmodel.errors import QuestionError

    with pytest.raises(QuestionError):
        CliRunner().invoke(command, ["--model", "qwen3-8b", "--node", "1x-l40s", "--price", price],
                           catch_exceptions=False)  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_context_parallel_decode_pays_three_collectives_and_the_kernels_around_them(engine: str) -> None:
    """Queries and softmax sums are gathered, outputs scattered: cp_lse_ag_out_rs of both engines. 64 heads, DCP8:
    a token's queries and outputs are 64 x 576 values, its sums 64 of four bytes from each of eight ranks."""
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", engine=engine, tp=8, dcp=8)
    calls = [call for call in d.engine.layer_collectives(d.options, d.facts) if call.group == "dcp"
             and call.layer == "moe"]  # fmt: skip
    assert [(call.op, call.bytes_per_token) for call in calls] == [
        ("all_gather", 64 * 576 * 2.0), ("all_gather", 8 * 64 * 4.0), ("reduce_scatter", 64 * 576 * 2.0)]
    rows = {row.name: row for row in pm.step(d, batch=1, context=100).rows}
    assert rows["context-parallel merge"].kernels == 5 * 61
    assert "context-parallel merge" not in {row.name for row in pm.prefill(d, tokens=100).rows}


def test_context_parallel_costs_what_was_measured_beside_tensor_parallel() -> None:
    """Short context, one stream: TP8 over DCP2, DCP4 and DCP8 on the same host and image, 1.13, 1.18 and 1.19
    (github sjug/rtx6kpro, vLLM 2f5db31f)."""
    same: dict[str, Any] = {"node": "8x-rtx-pro-6000-server", "engine": "vllm", "tp": 8, "kv_dtype": "fp8",
                            "attention_backend": "triton_mla"}  # fmt: skip
    seconds = [pm.step(pm.deploy("kimi-k2.6", dcp=n, **same), batch=1, context=100).seconds for n in (1, 2, 4, 8)]
    ratios = [later / seconds[0] for later in seconds[1:]]
    assert ratios == pytest.approx([1.13, 1.18, 1.19], abs=0, rel=0.1)
