"""A user's own benchmark: what is planted is found, three points meet the rest, and the next point is the best one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ask, both, width

import perfmodel as pm
from perfmodel.calibration import calibrate, own
from perfmodel.calibration.fit import changed
from perfmodel.calibration.measured import Measurement, series_of
from perfmodel.calibration.next_point import next_points
from perfmodel.calibration.own_check import LEAST, _score, _served
from perfmodel.calibration.posterior import CURVE_SD, NOISE, Problem, solve
from perfmodel.costs.difference import smooth_difference
from perfmodel.deployment import Deployment
from perfmodel.insight.validate import factors_for
from perfmodel.step.difference import ROW
from perfmodel.step.factors import Factors, factors_of

LOADS = [1.0, 8.0, 64.0]


@pytest.fixture(scope="module")
def llama() -> Deployment:
    return pm.deploy("llama-3.1-8b", node="1x-h200-sxm")


def timed(d: Deployment, rows: list[Measurement], factors: Factors) -> list[Measurement]:
    """The rows with the times that the model gives them."""
    made = list(rows)
    for one, where in series_of(d, rows):
        seconds = one.seconds(factors.draws(2, uncertain=False))[0]
        for i, value in zip(where, seconds, strict=True):
            queued = rows[i].kind == "batch" and one.rows[0].kind == "rate"
            scale = rows[i].load * rows[i].output_tokens if queued else 1.0
            made[i] = replace(rows[i], seconds=float(value) * scale)
    return made


def asked(kind: str, loads: list[float], prompt: float = 512, answer: float = 256) -> list[Measurement]:
    return [Measurement(kind, 1.0, load, prompt, answer, prompt + answer / 2 if kind == "step" else 0.0)
            for load in loads]


def fitted(d: Deployment, rows: list[Measurement], free: tuple[str, ...] | None = None) -> own.Calibrated:
    return own.calibrate_found(own.Found(tuple(rows), (), {}), deployment=d, free=free)


@pytest.mark.parametrize("kind", ["tpot", "rate", "step", "prefill", "batch"])
def test_every_kind_of_measurement_pulls_towards_itself(kind: str, llama: Deployment) -> None:
    truth = changed(factors_of(llama), {"kernel_s": 6e-6, "gemm_efficiency": 0.5, "step_fixed_s": 2e-3})
    rows = timed(llama, asked(kind, LOADS), truth)
    found = fitted(llama, rows)
    before, after = (np.abs(np.log(x / found.measured)) for x in (found.before, found.after))
    assert np.max(before) > 0.1
    assert np.median(after) < NOISE
    assert np.max(after) < np.max(before) / 2


def test_planted_factor_is_found_and_the_others_stay(llama: Deployment) -> None:
    before = factors_of(llama)
    rows = timed(llama, asked("tpot", [1.0, 2.0, 4.0, 8.0]), changed(before, {"kernel_s": 4.5e-6}))
    found = fitted(llama, rows, ("kernel_s", "attention_prefill_efficiency"))
    fit = dict(zip(found.fit.names, found.fit.values, strict=True))
    start = float(before.values[before.names.index("kernel_s")])
    assert (fit["kernel_s"] > start) == (start < 4.5e-6)
    assert "attention_prefill_efficiency" in found.fit.unidentified
    assert fit["attention_prefill_efficiency"] == pytest.approx(
        float(before.values[before.names.index("attention_prefill_efficiency")]), rel=0.1)


def test_three_exact_points_change_nothing(llama: Deployment) -> None:
    found = fitted(llama, timed(llama, asked("tpot", LOADS), factors_of(llama)))
    assert found.after == pytest.approx(found.measured, rel=1e-3)
    assert np.max(np.abs(found.posterior.difference(np.array(LOADS)))) < 1e-3


def test_data_never_takes_knowledge_away(llama: Deployment) -> None:
    found = fitted(llama, timed(llama, asked("tpot", LOADS), factors_of(llama)))
    assert all(sd <= prior * (1 + 1e-9) for sd, (_, prior) in zip(found.fit.sd, found.fit.prior, strict=True))


def test_a_smooth_difference_is_learnt_where_no_factor_gives_it(llama: Deployment) -> None:
    loads = [1.0, 4.0, 16.0, 64.0, 256.0]
    rows = timed(llama, asked("tpot", loads), factors_of(llama))
    bent = [replace(row, seconds=row.seconds * (1.25 if 4 <= row.load <= 64 else 1.0)) for row in rows]
    found = fitted(llama, bent)
    assert np.max(np.abs(np.log(found.after / found.measured))) < 0.1


def test_what_is_saved_is_what_was_fitted(llama: Deployment, tmp_path: Path) -> None:
    truth = changed(factors_of(llama), {"kernel_s": 6e-6, "step_fixed_s": 2e-3})
    found = fitted(llama, timed(llama, asked("rate", LOADS), truth))
    found.save(tmp_path / "mine.yaml", "perfmodel calibrate a.json")
    d = pm.deploy("llama-3.1-8b", node="1x-h200-sxm", calibration=str(tmp_path / "mine.yaml"))
    curve = pm.predict(d, concurrency=LOADS, input_tokens=512, output_tokens=256)
    assert curve.output_tok_s[0] == pytest.approx(found.after, rel=0.01)
    assert d.calibration.command == "perfmodel calibrate a.json"
    plain = pm.predict(llama, concurrency=LOADS, input_tokens=512, output_tokens=256)
    assert np.all(curve.output_tok_s[2] / curve.output_tok_s[0] < plain.output_tok_s[2] / plain.output_tok_s[0])


def test_the_curve_holds_for_its_own_strategy_alone(llama: Deployment, tmp_path: Path) -> None:
    rows = timed(llama, asked("tpot", LOADS), factors_of(llama))
    fitted(llama, [replace(row, seconds=1.2 * row.seconds) for row in rows]).save(tmp_path / "mine.yaml")
    same = pm.deploy("llama-3.1-8b", node="2x-h200-sxm", calibration=str(tmp_path / "mine.yaml"))
    other = pm.deploy("llama-3.1-8b", node="2x-h200-sxm", tp=2, calibration=str(tmp_path / "mine.yaml"))
    assert ROW in {row.name for row in pm.step(same, batch=8).rows}
    assert ROW not in {row.name for row in pm.step(other, batch=8).rows}
    assert any("difference curve" in note for note in other.assumptions)
    total = sum(np.asarray(row.seconds) for row in pm.step(same, batch=[1, 8, 300]).rows)
    assert total == pytest.approx(np.asarray(pm.step(same, batch=[1, 8, 300]).seconds), rel=1e-9)


def test_far_from_its_points_the_curve_is_silent() -> None:
    assert abs(smooth_difference(np.log(1e6), np.log([1.0, 8.0]), [0.2, -0.1], 1.5)) < 1e-9


# ---------------------------------------------------------------- the next measurement

def test_the_next_point_is_where_the_planted_unknown_shows(llama: Deployment) -> None:
    """Nothing but the bandwidth of decode attention is unknown: it shows at long contexts of many sequences."""
    rows = timed(llama, asked("tpot", [1.0, 2.0]), factors_of(llama))
    unsure = changed(factors_of(llama), {}, {"attention_dram_efficiency": 1.0})
    posterior = solve(own.problem_of(llama, rows), ("attention_dram_efficiency",), unsure)
    found = next_points(posterior, llama, rows, most=1000)
    assert found[0].concurrency * found[0].input_tokens >= 64 * 512
    lone = next(c for c in found if (c.concurrency, c.input_tokens, c.strategy) == (1.0, 512.0, llama.name))
    assert found[0].after < 0.8 * lone.after


def test_the_next_point_of_an_eager_launch_is_where_the_host_binds() -> None:
    d = pm.deploy("llama-3.1-8b", node="1x-h200-sxm", cuda_graphs=False)
    rows = timed(d, asked("tpot", [512.0]), factors_of(d))
    unsure = changed(factors_of(d), {}, {"eager_kernel_s": 1.5})
    found = next_points(solve(own.problem_of(d, rows), ("eager_kernel_s",), unsure), d, rows, most=1000)
    assert not found[0].cuda_graphs, "with graphs the launch time of a kernel is not seen"
    assert found[0].concurrency < 128
    assert found[0].after < 0.7 * found[0].before


def test_what_was_measured_often_is_not_asked_for_again(llama: Deployment) -> None:
    many = [replace(row, load=load) for load in (1.0, 2.0) for row in asked("tpot", [load]) * 8]
    best = fitted(llama, timed(llama, many, factors_of(llama))).next[0]
    assert best.concurrency > 4


def test_the_gain_that_is_promised_is_the_gain_that_comes(llama: Deployment) -> None:
    rows = timed(llama, asked("tpot", LOADS), factors_of(llama))
    first = fitted(llama, rows)
    best = next(c for c in first.next if c.strategy == llama.name and c.cuda_graphs)
    more = timed(llama, [Measurement("tpot", 1.0, best.concurrency, best.input_tokens, best.output_tokens)],
                 factors_of(llama))
    second = fitted(llama, [*rows, *more])
    assert second.next[0].before == pytest.approx(best.after, rel=0.05)
    assert [c.after for c in first.next] == sorted(c.after for c in first.next)


# ---------------------------------------------------------------- three points of the sweeps that ship

def test_three_points_of_public_sweeps_meet_the_rest() -> None:
    """The prior here is the shipped calibration; `perfmodel validate own` leaves the source out of it."""
    sweeps = _served()[::4]
    scores = [_score(name, "served", one, factors_for(one), True) for name, one in sweeps]
    assert len(scores) > 10
    assert all(score.points >= LEAST and score.rest == score.points - 3 for score in scores)
    assert np.median([score.after for score in scores]) <= 0.05
    assert np.median([score.after for score in scores]) < np.median([score.before for score in scores])
    inside = sum(score.in_band for score in scores) / sum(score.rest for score in scores)
    assert inside > 0.6


def test_the_order_of_rows_does_not_matter(llama: Deployment) -> None:
    rows = timed(llama, asked("tpot", LOADS), changed(factors_of(llama), {"kernel_s": 6e-6}))
    assert fitted(llama, rows).fit.values == pytest.approx(fitted(llama, rows[::-1]).fit.values, rel=1e-6)


def test_one_wild_row_counts_less(llama: Deployment) -> None:
    loads = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    rows = timed(llama, asked("tpot", loads), factors_of(llama))
    rows[3] = replace(rows[3], seconds=3 * rows[3].seconds)
    found = fitted(llama, rows)
    good = [i for i in range(len(rows)) if i != 3]
    assert np.median(np.abs(np.log(found.after / found.measured)[good])) < 0.05


# ---------------------------------------------------------------- the command

def test_command_reads_results_draws_and_says_what_next(tmp_path: Path, llama: Deployment) -> None:
    curve = pm.predict(llama, concurrency=LOADS, input_tokens=1024, output_tokens=128)
    for load, tpot in zip(LOADS, curve.tpot_s[0], strict=True):
        (tmp_path / f"{load:g}.json").write_text(json.dumps({
            "model_id": "meta-llama/Llama-3.1-8B", "max_concurrency": load, "completed": 256, "output_throughput": 1.0,
            "total_input_tokens": 262144, "total_output_tokens": 32768, "median_tpot_ms": 1100 * tpot}))
    words = [str(path) for path in sorted(tmp_path.glob("*.json"))] + ["--node", "1x-h200-sxm"]
    run = ask("calibrate", *words, "-o", str(tmp_path / "mine.yaml"), "--plot", str(tmp_path / "mine.png"))
    assert run.exit_code == 0, both(run)
    assert "if measured next" in run.stdout
    assert width(run.stdout) <= 80
    assert (tmp_path / "mine.png").stat().st_size > 10_000
    told = json.loads(ask("calibrate", *words, "--json").stdout)
    assert told["next_measurements"][0]["half_width_then"] < told["next_measurements"][0]["half_width_now"]
    assert set(told["hashes"]) == {"1.json", "8.json", "64.json"}
    assert {"at_bound", "identified", "sd", "value"} <= set(told["parameters"][0])


def test_a_model_that_nobody_names_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("concurrency,output_tok_s\n1,80\n")
    run = ask("calibrate", str(tmp_path / "own.csv"), "--node", "1x-h200-sxm")
    assert run.exit_code == 2
    assert "--model" in both(run)


def test_unknown_names_are_refused(llama: Deployment) -> None:
    with pytest.raises(pm.errors.QuestionError, match="kernel_s"):
        calibrate([{"concurrency": 1, "output_tok_s": 80}], deployment=llama, free=["kernel"])
    with pytest.raises(pm.errors.QuestionError, match="input_tokens"):
        calibrate(["x.json"], deployment=llama, isl=3.0)


def test_no_curve_without_decode(llama: Deployment) -> None:
    problem: Problem = own.problem_of(llama, timed(llama, asked("prefill", LOADS), factors_of(llama)))
    assert np.all(np.isnan(problem.batch))
    found = solve(problem, ("gemm_efficiency",), factors_of(llama))
    assert found.residual_sd == pytest.approx(float(np.hypot(NOISE, CURVE_SD)), rel=1e-9)


def test_the_learnt_difference_is_booked_by_its_own_name(llama: Deployment, tmp_path: Path) -> None:
    rows = timed(llama, asked("tpot", LOADS), factors_of(llama))
    fitted(llama, [replace(row, seconds=1.2 * row.seconds) for row in rows]).save(tmp_path / "mine.yaml")
    d = pm.deploy("llama-3.1-8b", node="1x-h200-sxm", calibration=str(tmp_path / "mine.yaml"))
    row = next(row for row in pm.step(d, batch=8).to_dict()["rows"] if row["name"] == ROW)
    assert (row["name"], row["bound_by"], row["source"]) == ("learnt difference", "learnt", "costs/difference.py")
    curve = pm.predict(d, concurrency=8, input_tokens=512, output_tokens=256)
    bare = pm.deploy("llama-3.1-8b", node="1x-h200-sxm", calibration=str(tmp_path / "mine.yaml"))
    bare = replace(bare, calibration=bare.calibration.model_copy(update={"difference": None}))
    plain = pm.predict(bare, concurrency=8, input_tokens=512, output_tokens=256)
    assert curve.parts["learnt difference"] > 0 and "learnt difference" not in plain.parts
    assert curve.parts["host"] == pytest.approx(plain.parts["host"], rel=0.02, abs=0)
    assert sum(curve.parts.values()) == pytest.approx(curve.tpot_s[0], rel=1e-9, abs=0)


# ---------------------------------------------------------------- rows that cannot be what they say


SLIPS = [
    (lambda tok_s, load: 1000 * tok_s, "seconds written as milliseconds"),
    (lambda tok_s, load: tok_s / 1000, "milliseconds written as seconds"),
    (lambda tok_s, load: tok_s / 8, "tokens/s of one GPU in place of all 8"),
    (lambda tok_s, load: tok_s / load, "tokens/s of one request in place of all that are in flight"),
    (lambda tok_s, load: tok_s / 256, "requests/s in place of tokens/s"),
    (lambda tok_s, load: 9 * tok_s, "input tokens counted with the output tokens"),
]


@pytest.mark.parametrize(("slip", "words"), SLIPS, ids=[words for _, words in SLIPS])
def test_a_usual_mistake_is_named_and_nothing_is_written(slip: Any, words: str, tmp_path: Path) -> None:
    d = pm.deploy("llama-3.1-8b", node="8x-h200-sxm", tp=8)
    loads = [1.0, 8.0, 64.0, 256.0]
    curve = pm.predict(d, concurrency=loads, input_tokens=2048, output_tokens=256)
    noise = (1.1, 0.92, 1.05, 0.9)
    rows = [f"{c:g},{1.1 * e * slip(t, c):.10g},2048,256"
            for c, t, e in zip(loads, curve.output_tok_s[0], noise, strict=True)]
    file = tmp_path / "seen.csv"
    file.write_text("\n".join(["concurrency,output_tok_s,input_tokens,output_tokens", *rows]) + "\n")
    command = ["calibrate", str(file), "--model", "llama-3.1-8b", "--node", "8x-h200-sxm", "--tp", "8",
               "--output", str(tmp_path / "mine.yaml")]  # fmt: skip
    done = ask(*command)
    assert done.exit_code == 1 and not (tmp_path / "mine.yaml").exists()
    assert f"warning: that is about what {words} would give" in done.stderr
    assert "predicted ones at the median row" in done.stderr and "--force" in done.stderr
    forced = ask(*command, "--force", "--json")
    assert forced.exit_code == 0 and (tmp_path / "mine.yaml").exists()
    assert any(words in line for line in json.loads(forced.stdout)["doubts"])


def test_rows_near_the_model_raise_no_doubt(llama: Deployment) -> None:
    rows = timed(llama, asked("tpot", LOADS), factors_of(llama))
    assert fitted(llama, [replace(row, seconds=2.5 * row.seconds) for row in rows]).doubts == []
    assert fitted(llama, [replace(row, seconds=3.5 * row.seconds) for row in rows]).doubts != []
