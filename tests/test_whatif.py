"""`whatif`: a change is a modified node or launch asked again; laws that must hold, rankings, refusals, the face."""

import json
from typing import Any

import pytest
from command_line import NODE, WHAT, ask, both, width

import perfmodel as pm
from perfmodel.catalog import load_accelerator, load_node, names
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, PerfModelError, UnknownName
from perfmodel.insight.changes import KINDS, apply, read_change
from perfmodel.insight.node_changes import generation, machines, nvlink, p2p, pcie, without
from perfmodel.insight.whatif import WhatIf, usual, whatif
from perfmodel.placement.topology import Graph
from perfmodel.report.whatif_text import whatif_text

LOADS = (1, 32, 128)


@pytest.fixture(scope="module")
def tp8() -> Deployment:
    return pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.23", tp=8, context=32768, memory_fraction=0.92)


@pytest.fixture(scope="module")
def llama() -> Deployment:
    return pm.deploy("llama-3.1-8b", node="8x-h100-sxm", engine="vllm==0.33.0", tp=8)


@pytest.fixture(scope="module")
def answer(tp8: Deployment) -> WhatIf:
    return whatif(tp8, concurrency=LOADS)


def gains(d: Deployment, change: Any, **more: Any) -> list[float]:
    (outcome,) = whatif(d, [change], concurrency=LOADS, **more).outcomes
    return list(outcome.gain)


# ---------------------------------------------------------------- the answer is the model's


def test_the_base_is_what_predict_says(tp8: Deployment, answer: WhatIf) -> None:
    assert answer.base.tok_s is not None
    expected = [float(x) for x in pm.predict(tp8, concurrency=LOADS).output_tok_s[0]]
    assert list(answer.base.tok_s[0]) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("keywords", [{"tp": 4, "pp": 2}, {"kv_dtype": "fp8"}, {"cuda_graphs": False}])
def test_keywords_are_a_deployment_made_by_hand(tp8: Deployment, keywords: dict[str, Any]) -> None:
    (outcome,) = whatif(tp8, [keywords], concurrency=LOADS).outcomes
    base = {"tp": 8, "context": 32768, "memory_fraction": 0.92}
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.23", **{**base, **keywords})
    expected = [float(x) for x in pm.predict(d, concurrency=LOADS).output_tok_s[0]]
    assert outcome.tok_s is not None and list(outcome.tok_s[0]) == pytest.approx(expected, rel=1e-12, abs=0)


def test_another_gpu_on_its_own_board_is_its_catalog_node(llama: Deployment) -> None:
    (outcome,) = whatif(llama, ["gpu=h200-sxm"], concurrency=LOADS).outcomes
    d = pm.deploy("llama-3.1-8b", node="8x-h200-sxm", engine="vllm==0.33.0", tp=8)
    expected = [float(x) for x in pm.predict(d, concurrency=LOADS).output_tok_s[0]]
    assert outcome.tok_s is not None and list(outcome.tok_s[0]) == pytest.approx(expected, rel=1e-12, abs=0)


def test_a_card_in_the_same_slots_keeps_host_and_wiring(tp8: Deployment) -> None:
    d = apply(tp8, "gpu=rtx-pro-6000-max-q").variants[0].deployment
    assert d.accelerator.name == "rtx-pro-6000-max-q" and d.node.host == tp8.node.host
    assert d.node.topology.vertices == tp8.node.topology.vertices


# ---------------------------------------------------------------- laws


def test_wider_pcie_never_hurts_and_narrower_never_helps(tp8: Deployment) -> None:
    assert all(gain >= -1e-9 for gain in gains(tp8, "pcie=gen6"))
    assert all(gain <= 1e-9 for gain in gains(tp8, "pcie=gen4"))
    assert gains(tp8, "pcie=gen3")[-1] < gains(tp8, "pcie=gen4")[-1] < 0


def test_less_power_is_slower_and_the_band_widens(tp8: Deployment) -> None:
    by_cap = [gains(tp8, f"power={watts} W")[-1] for watts in (300, 450, 600)]
    assert by_cap[0] < by_cap[1] < by_cap[2] == pytest.approx(0, rel=0, abs=1e-6)
    found = whatif(tp8, ["power=300 W"], concurrency=LOADS)
    assert found.base.tok_s is not None and found.outcomes[0].tok_s is not None
    wide = [high[-1] / low[-1] for _, low, high in (found.base.tok_s, found.outcomes[0].tok_s)]
    assert wide[1] > wide[0]
    assert any("measured on this card" in note for note in found.outcomes[0].assumptions)


def test_a_law_from_another_card_is_said_to_be_assumed(llama: Deployment) -> None:
    (outcome,) = whatif(llama, ["power=75%"], concurrency=LOADS).outcomes
    assert any("525 of 700 W" in note and "assumed" in note for note in outcome.assumptions)


def test_p2p_off_and_stock_nccl_are_slower(tp8: Deployment) -> None:
    assert max(gains(tp8, "p2p=off")) < 0 and max(gains(tp8, "nccl=stock")) < 0


def test_p2p_on_where_it_is_off_is_faster() -> None:
    d = pm.deploy("llama-3.1-8b", node="8x-rtx-4090", engine="vllm", tp=8, context=8192)
    assert min(gains(d, "p2p=on")) > 0
    assert "NCCL_P2P_LEVEL=SYS" in str(apply(d, "p2p=on").variants[0].deployment.requested.nccl)


def test_nvlink_helps_tensor_parallelism_and_its_loss_hurts(tp8: Deployment, llama: Deployment) -> None:
    slow, fast = (gains(tp8, f"nvlink={rate} GB/s") for rate in (150, 450))
    assert 0 < slow[-1] < fast[-1]
    assert max(gains(llama, "nvlink=off")) < 0


def test_two_nodes_as_copies_serve_twice_the_load(tp8: Deployment) -> None:
    found = whatif(tp8, ["nodes=2"], concurrency=LOADS).outcomes[0]
    assert found.way == "2 copies" and found.tok_s is not None
    half = pm.predict(tp8, concurrency=[c / 2 for c in LOADS[1:]]).output_tok_s[0]
    assert list(found.tok_s[0][1:]) == pytest.approx([2 * float(x) for x in half], rel=1e-9, abs=0)


def test_a_wider_network_helps_what_crosses_it(llama: Deployment) -> None:
    def wide(rate: str) -> float:
        ways = {v.label: v.deployment for v in apply(llama, f"nodes=2@{rate}").variants}
        return float(pm.predict(ways["tp x2"], concurrency=[128]).output_tok_s[0][0])

    assert wide("1 GB/s") < wide("12.5 GB/s") < wide("400 GB/s")


def test_a_lost_gpu_leaves_what_still_fits(tp8: Deployment, llama: Deployment) -> None:
    for d in (tp8, llama):
        (outcome,) = whatif(d, ["lost=1"], concurrency=LOADS).outcomes
        assert outcome.deployment is not None and outcome.deployment.gpus <= 7
        assert outcome.memory is not None and outcome.memory.fits and outcome.gain[-1] < 0
    half = pm.deploy("llama-3.1-8b", node="8x-h100-sxm", engine="vllm==0.33.0", tp=4)
    assert gains(half, "lost=3") == pytest.approx([0, 0, 0], rel=0, abs=1e-6)  # it did not use them


def test_host_memory_moves_the_load_alone(tp8: Deployment) -> None:
    found = whatif(tp8, ["host-memory=256 GiB", "host-memory=2 TiB"], concurrency=LOADS)
    small, large = (next(o for o in found.outcomes if o.change.endswith(size)) for size in ("256 GiB", "2 TiB"))
    assert small.gain == large.gain == (0.0, 0.0, 0.0)
    assert small.load_s is not None and large.load_s is not None and small.load_s[1] > 4 * large.load_s[1]


# ---------------------------------------------------------------- nodes


@pytest.mark.parametrize(("rate", "gen"), [(12.0e9, 3), (25e9, 4), (55.5e9, 5), (64e9, 5), (110e9, 6)])
def test_generations(rate: float, gen: int) -> None:
    assert generation(rate) == gen


def test_a_generation_scales_pcie_links_and_nothing_else() -> None:
    node, gpu = load_node(NODE), load_accelerator("rtx-pro-6000-server")
    new = pcie(node, gpu, "gen6")
    for name, kind in node.topology.link_kinds.items():
        times = 1.0 if name == "xgmi" else 2.0
        after = new.node.topology.link_kinds[name]
        assert float(after.bandwidth) == pytest.approx(times * float(kind.bandwidth), rel=1e-12, abs=0)
        assert float(after.latency) == float(kind.latency)
    assert any("narrowest link is not PCIe" in note for note in new.assumptions)


@pytest.mark.parametrize("name", names("node"))
def test_every_node_of_the_catalog_can_be_changed_or_says_why_not(name: str) -> None:
    node = load_node(name)
    gpu = load_accelerator(node.accelerator)
    for change in (lambda: without(node, 1), lambda: machines(node, gpu, "2"), lambda: pcie(node, gpu, "gen4"),
                   lambda: nvlink(node, gpu, "100 GB/s"), lambda: p2p(node, not node.p2p)):  # fmt: skip
        try:
            new = change()
        except PerfModelError:
            continue
        assert len(Graph(new.node).gpus) == new.node.count and new.assumptions


# ---------------------------------------------------------------- ranks and the face


def test_every_usual_change_is_answered_and_ranked_by_gain(tp8: Deployment, answer: WhatIf) -> None:
    assert {o.change.partition("=")[0] for o in answer.outcomes} == set(KINDS)
    assert [o.change for o in answer.outcomes if o.refused] == []
    last = [o.gain[-1] for o in answer.outcomes]
    assert last == sorted(last, reverse=True)
    assert len(usual(tp8)) == len(answer.outcomes)


def test_prices_rank_by_effect_for_money(tp8: Deployment) -> None:
    prices = {"gpu=h200-sxm": 300_000, "nvlink=450 GB/s": 10_000}
    found = whatif(tp8, ["pcie=gen6", *prices], prices=prices, concurrency=LOADS)
    assert [o.change for o in found.outcomes] == ["nvlink=450 GB/s", "gpu=h200-sxm", "pcie=gen6"]
    first = found.outcomes[0]
    assert first.per_money == pytest.approx(first.gain[-1] / 10, rel=1e-12, abs=0)


def test_json_is_finite_and_complete(answer: WhatIf) -> None:
    entries = answer.to_dict()
    assert json.loads(json.dumps(entries, allow_nan=False)) == entries
    assert [entry["rank"] for entry in entries] == list(range(len(entries)))
    assert entries[0]["change"] is None and all(entry["assumptions"] for entry in entries)
    assert all(point["output_tok_s_low"] <= point["output_tok_s"] <= point["output_tok_s_high"]
               for entry in entries for point in entry["points"])  # fmt: skip
    assert "11 changes" in repr(answer) or "changes, first" in repr(answer)


@pytest.mark.parametrize(
    "change",
    ["pcie", "pcie=", "pcie=gen9", "pcie=gen5", "gpu=none-such", "power=50 W", "power=900 W", "power=much",
     "host-memory=5", "host-memory=1 B", "p2p=maybe", "p2p=on", "nvlink=on", "nvlink=1 B", "nvlink=off", "nodes=1",
     "nodes=2@fast", "lost=8", "lost=x", "lost=0", "nccl=unheard", "colour=red", 5, None, [], {}, {"tp": 3}, {1: 2},
     {"no_such": 1}],
)  # fmt: skip
def test_a_wrong_change_is_refused_plainly(tp8: Deployment, change: Any) -> None:
    with pytest.raises(PerfModelError):
        whatif(tp8, [change], concurrency=[8])


def test_one_wrong_change_among_others_is_listed(tp8: Deployment) -> None:
    found = whatif(tp8, ["pcie=gen6", "gpu=none-such"], concurrency=[8])
    assert found.outcomes[-1].change == "gpu=none-such" and "unknown accelerator" in found.outcomes[-1].refused


@pytest.mark.parametrize("prices", [{"pcie=gen4": 5}, {"pcie=gen6": -1}, {"pcie=gen6": "much"}, {"pcie=gen6": True}])
def test_wrong_prices_are_refused(tp8: Deployment, prices: Any) -> None:
    with pytest.raises(BadInput):
        whatif(tp8, ["pcie=gen6"], prices=prices, concurrency=[8])


def test_kinds_are_named_when_one_is_misspelt() -> None:
    with pytest.raises(UnknownName, match="nearest: power"):
        read_change("powr=5")


def test_the_command_prints_80_columns() -> None:
    words = [*WHAT, "--engine", "sglang", "--tp", "8", "--memory-fraction", "0.92", "--context", "32768"]
    result = ask("whatif", *words, "--concurrency", "1,32", "--change", "pcie=gen4", "--change", "tp=4,pp=2",
                 "--change", "gpu=h200-sxm", "--price", "gpu=h200-sxm:250000", "--change", "gpu=none")  # fmt: skip
    assert result.exit_code == 0, both(result)
    assert width(result.stdout) <= 80 and "per 1,000" in result.stdout and "not answered" in result.stdout
    assert "warning: gpu=none: unknown accelerator" in result.stderr
    assert ask("whatif", *words, "--price", "x").exit_code == 2


# ---------------------------------------------------------------- what does not fit


def test_a_fraction_of_another_card_gives_way_to_one_that_fits() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang==0.5.23", pp=8, memory_fraction=0.92)
    asked = pm.deploy("kimi-k2.6", node="8x-h200-sxm", engine="sglang==0.5.23", pp=8, memory_fraction=0.92)
    default = pm.deploy("kimi-k2.6", node="8x-h200-sxm", engine="sglang==0.5.23", pp=8)
    assert not pm.memory(asked).fits and pm.memory(default).fits
    (outcome,) = whatif(d, ["gpu=h200-sxm"], concurrency=LOADS).outcomes
    assert outcome.memory is not None and outcome.memory.fits and outcome.deployment is not None
    assert outcome.deployment.options.memory_fraction == default.options.memory_fraction
    assert outcome.way == f"memory_fraction={default.options.memory_fraction:.4g}"
    assert any("0.92 of the launch does not fit there: a prefill chunk" in note for note in outcome.assumptions)


def test_a_card_that_never_fits_says_so_and_keeps_the_fraction() -> None:
    d = pm.deploy("llama-3.1-405b", node="8x-h200-sxm", engine="vllm==0.33.0", tp=8, memory_fraction=0.92, context=8192)
    assert pm.memory(d).fits
    (outcome,) = whatif(d, ["gpu=h100-sxm"], concurrency=LOADS).outcomes
    assert outcome.memory is not None and outcome.memory.verdict == "oom_weights"
    assert any("no memory_fraction from 0.5 to 0.98 fits there" in note for note in outcome.assumptions)


def test_what_does_not_fit_comes_after_what_does_and_has_no_rate_in_text() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="vllm==0.33.0", tp=8, kv_dtype="fp8")
    answer = whatif(d, ["lost=1", "pcie=gen4"], concurrency=LOADS)
    assert [o.change for o in answer.outcomes] == ["pcie=gen4", "lost=1"]
    text = " ".join(whatif_text(answer).split())
    assert ": does not fit: weights (weights of" in text and "oom_weights" not in text
    assert "as if it did" not in text
