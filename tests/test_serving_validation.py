"""Public serving runs and what the simulator says about them: the rows, their conditions, the figures."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from perfmodel.insight.serving import METRICS, ServingValidation, replay, replay_all, rows_of, simulated

ROWS = rows_of()


def test_every_row_states_what_it_takes_to_run_it_again() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS) > 2000
    for row in ROWS:
        assert row["load"] in ("closed", "burst", "rate", "steady")
        assert bool(row["request_rate"]) == (row["load"] == "rate")
        assert row["statistic"] in ("mean", "median", "") and row["use"] in ("fit", "check")
        assert float(row["isl"]) >= 1 and float(row["osl"]) >= 1 and float(row["ttft_ms"]) > 0


def test_no_source_is_both_fitted_and_checked() -> None:
    uses: dict[str, set[str]] = {}
    for row in ROWS:
        uses.setdefault(row["author"], set()).add(row["use"])
    assert all(len(found) == 1 for found in uses.values())


def test_a_run_is_the_one_that_its_row_describes() -> None:
    for load in ("closed", "burst", "rate", "steady"):
        row = next(row for row in ROWS if row["load"] == load)
        run = simulated(row)
        for lengths, name in ((run.inputs, "isl"), (run.outputs, "osl")):
            assert abs(lengths.mean() / float(row[name]) - 1) < 0.02
        assert run.deployment.options.tp == int(row["tp"]) and run.deployment.options.engine == row["engine"]
        if row["prompts"]:
            assert len(run.outputs) == int(row["prompts"])
        if load == "burst":
            assert np.all(run.arrival_s == 0)
        if load == "rate":
            assert len(run.outputs) / run.arrival_s[-1] / float(row["request_rate"]) - 1 < 0.3


def test_ttft_is_left_out_where_nobody_says_what_it_is() -> None:
    row = next(row for row in ROWS if not row["statistic"])
    assert "ttft_ms" not in {found.metric for found in replay(row)}


def test_the_sources_that_were_never_fitted_on() -> None:
    """Rates of the runs at a request rate, and TTFT of those that state what it is."""
    rows = [row for row in ROWS if row["author"] in ("iog", "trt014on", "depl")][::4]
    with ThreadPoolExecutor(1) as threads:
        found = replay_all(rows, threads)
    assert found == replay_all(rows)
    errors = {name: np.median([abs(row.ratio - 1) for row in found if row.metric == name and row.load == "rate"])
              for name in METRICS}  # fmt: skip
    assert errors["output_tok_s"] < 0.15
    assert np.median([abs(row.ratio - 1) for row in found if row.metric == "ttft_ms"]) < 0.40
    table = ServingValidation(tuple(found), {"left out": 3}).text()
    assert all(len(line) <= 80 for line in table.splitlines()) and "left out" in table
