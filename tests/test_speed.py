"""Steps over two GPUs, versions that do not hide their host, bursts, engines on accelerators nobody measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.calibration import fleet
from perfmodel.calibration.served import fit_served
from perfmodel.calibration.speed import band, speed
from perfmodel.catalog import load_calibration
from perfmodel.costs.serving import burst_share
from perfmodel.insight import observed, parallel, served
from perfmodel.insight.validate import compare, factors_for

H200 = {"node": "8x-h200-sxm", "tp": 1}


def test_an_older_engine_shows_its_host_in_every_step() -> None:
    """vLLM schedules ahead of the device since 0.14; before, sequences add to the host's share as well."""
    old, new = (pm.deploy("llama-3.1-8b", engine=f"vllm=={v}", **H200) for v in ("0.13.0", "0.14.1"))
    more = [pm.step(old, batch=b).seconds - pm.step(new, batch=b).seconds for b in (1, 64)]
    assert 0 < more[0] < more[1] < 5e-3


def test_a_pipeline_with_a_host_that_works_ahead_hides_the_message_of_a_hop() -> None:
    """Measured: two stages take as long as one (h200-vllm-parallel-2026-11)."""
    counts = {"node": "2x-h200-sxm", "engine": "vllm==0.22.1", "expert_skew": 1e9}
    one, two = (pm.deploy("qwen3-30b-a3b", pp=pp, tp=1, **counts) for pp in (1, 2))
    single = pm.step(one, batch=[1, 8, 32], context=1104).seconds
    double = pm.step(two, batch=[1, 8, 32], context=1104, arrival="burst").seconds
    assert double == pytest.approx(single, rel=0.05)


def test_every_configuration_over_two_gpus_is_fitted_or_checked_as_a_whole() -> None:
    uses: dict[str, set[str]] = {}
    for s in parallel.series():
        for row in s.rows:
            uses.setdefault(row.sweep, set()).add(row.use)
    assert len(uses) == 10 and all(len(found) == 1 for found in uses.values())
    assert sum(found == {"check"} for found in uses.values()) == 5


def test_unseen_configurations_over_two_gpus_are_met() -> None:
    rows = [row for s in parallel.series() for row in compare(s, factors_for(s)) if row.use == "check"]
    assert len(rows) == 40
    assert np.median([abs(row.ratio - 1) for row in rows]) < 0.08
    assert np.mean([row.in_band for row in rows]) > 0.8


@given(st.floats(2, 5000), st.floats(1, 5000))
def test_a_burst_meets_half_of_its_prefills_at_most(answer: float, steps: float) -> None:
    share = float(burst_share(answer, steps))
    assert 0 < share <= 0.5
    assert share <= float(burst_share(answer + 1, steps)) + 1e-12
    assert share * steps <= answer - 1 + 1e-9, "no more slow steps than it has steps"


def test_versions_of_rows() -> None:
    row = {"engine": "vllm", "engine_version": "v0.17.0", "date": ""}
    assert served.engine_of(row) == "vllm==0.17.0"
    assert served.engine_of({**row, "engine_version": "", "date": "2025-10-29"}) == "vllm==0.13.0"
    assert served.engine_of({**row, "engine_version": "nightly 2026-02", "date": "2026-02-05"}) == "vllm"
    assert served.engine_of({**row, "engine": "tensorrt-llm", "engine_version": "1.0.0rc3"}) == "tensorrt-llm==1.0.0rc3"


def test_what_was_served_has_room_for_a_cache() -> None:
    """gpt-oss-120b on one H100 leaves none at the default of vLLM 0.10.2, and was served all the same."""
    row = next(r for r in observed.read(served.SERVED)
               if r["model"] == "gpt-oss-120b" and r["gpu"] == "h100-sxm" and r["engine_version"] == "0.10.2")
    assert pm.memory(served.deployment_of(row)).kv_tokens > 0


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_an_engine_keeps_its_times_where_nothing_was_measured(engine: str) -> None:
    found, priors = load_calibration("l4", engine), load_calibration("l4")
    assert found.used == ("priors", f"priors+{engine}")
    assert found.residual_sd == priors.residual_sd
    assert found.parameters["kernel_s"].value != priors.parameters["kernel_s"].value
    assert load_calibration("h200-sxm", "vllm").used == ("priors", "h200-sxm", "h200-sxm+vllm")


def test_bands_are_wider_where_nothing_was_measured() -> None:
    """A10 and H200 are alike in all that a band needs but the calibration."""
    def width(node: str) -> float:
        step = pm.step(pm.deploy("llama-3.1-8b", node=node, engine="vllm", tp=1), batch=8)
        return float(step.seconds_high / step.seconds)

    widest = max(width(f"8x-{name}") for name in ("h200-sxm", "h100-sxm", "b200-sxm", "b300-sxm"))
    assert min(width(f"8x-{name}") for name in ("a10", "l4", "h20", "gb200")) > widest


def test_speed_scores_fitted_and_unseen_sources_by_every_axis() -> None:
    mine = [s for s in served.series() if s.accelerator == "rtx-4090"]
    found = speed(fleet.Fleet({"rtx-4090": fit_served("rtx-4090", mine, fleet.start("rtx-4090", None, None))}))
    assert set(found.scores) == {"kind", "model", "GPU", "engine", "strategy", "concurrency"}
    assert {one.use for one in found.scores["kind"]} == {"fitted", "unseen"}
    for scores in found.scores.values():
        assert sum(one.rows for one in scores if one.use == "fitted") == len(found.fitted)
    assert "median of sweeps' medians" in found.text() and max(map(len, found.text().splitlines())) <= 102
    assert found.to_dict()["rows"]["unseen"][0]["in_band"] in (True, False)
    assert [band(c) for c in (1, 3, 16, 300)] == ["C = 1", "C = 2 to 4", "C = 5 to 16", "C >= 257"]
