"""A job under way: the forecast of the rest against a machine that is slower or faster than the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ask
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.engines.serving_logs import parse_metrics, parse_serving_log
from perfmodel.errors import BadInput, UnknownName
from perfmodel.planner import Progress, read_progress, size_job, update_job
from perfmodel.planner.job_phases import finished, over_time
from perfmodel.planner.job_progress_files import progress_of
from perfmodel.serving.lengths import parse_lengths, sample
from perfmodel.serving.simulate import simulate
from tests.cases import CASE_NODE, kimi

TP8 = kimi("sglang==0.5.23", tp=8, memory_fraction=0.92)
SHAPES = ("2000", "lognormal:2000:0.8", "uniform:500:3500")
SAMPLES = 5000
BASE = ["job", "--model", "kimi-k2.6", "--node", CASE_NODE, "--engine", "sglang", "--memory-fraction", "0.92", "--tp",
        "8", "--samples", str(SAMPLES), "--input-tokens", "200", "--output-tokens", "2000"]  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES)
def truth(request: Any) -> Any:
    """A job, and what another order of its samples really does: lengths, first and last token of each."""
    job = size_job(TP8, samples=SAMPLES, input_tokens=200, output_tokens=request.param)
    outputs = sample(parse_lengths(request.param), SAMPLES, 7)
    run = simulate(TP8, inputs=np.full(SAMPLES, 200), outputs=outputs)
    return job, outputs, run.first_s, run.finish_s


def seen(truth: Any, share: float, slower: float) -> tuple[float, float, float, float]:
    """At this share of the real time: seconds, samples done, tokens made, seconds to go."""
    _, outputs, first, finish = truth
    end = slower * float(finish.max())
    done, _, made = over_time(np.array([share * end]), slower * first, slower * finish, outputs)
    return share * end, float(done[0]), float(made[0]), (1 - share) * end


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.3])
@pytest.mark.parametrize("share", [0.03, 0.1, 0.3, 0.6, 0.9])
def test_the_rest_is_forecast_better_than_by_the_model_or_by_counting(truth: Any, share: float, slower: float) -> None:
    job = truth[0]
    seconds, done, made, rest = seen(truth, share, slower)
    forecasts = [update_job(job, Progress(seconds, done, tokens, serving=True)) for tokens in (None, made)]
    for forecast in forecasts:
        assert forecast.remaining_s == pytest.approx(rest, abs=0, rel=0.15)
        assert forecast.remaining_s_low * 0.93 < rest < forecast.remaining_s_high * 1.09
    if slower == 1.3 and share >= 0.1:
        assert abs(forecasts[0].remaining_s - rest) < abs(job.phases.work_s * (1 - share) - rest)
    if share <= 0.1:  # short answers first: a plain rule of three is wrong early, in either direction
        counted = seconds * (SAMPLES - done) / done
        assert abs(forecasts[0].remaining_s - rest) < max(abs(counted - rest), 0.12 * rest)


def test_the_band_shrinks_as_the_job_goes_on(truth: Any) -> None:
    job = truth[0]
    widths = [job.makespan_s_high - job.makespan_s_low]
    for share in (0.05, 0.2, 0.5, 0.8, 0.99):
        seconds, done, _, _ = seen(truth, share, 1.0)
        forecast = update_job(job, Progress(seconds, done, serving=True))
        widths.append(forecast.remaining_s_high - forecast.remaining_s_low)
    assert widths == sorted(widths, reverse=True)


def test_tokens_alone_are_enough(truth: Any) -> None:
    seconds, _, made, rest = seen(truth, 0.3, 1.3)
    assert update_job(truth[0], Progress(seconds, None, made, serving=True)).remaining_s == pytest.approx(
        rest, abs=0, rel=0.15)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_short_answers_finish_first(shape: str) -> None:
    """Closed form of the answers finished, against slots that are refilled."""
    lengths, running = parse_lengths(shape), 500.0
    draws = np.random.default_rng(5).permuted(sample(lengths, 500 * 60, 1)).reshape(500, 60)
    ends = np.cumsum(draws, axis=1)
    for each in (900.0, 2500.0, 9000.0, 40_000.0):
        counted = float(np.sum(ends <= each))
        got = float(finished(lengths, np.array([each * running]), running, 1e9)[0])
        assert got == pytest.approx(counted, abs=0.03 * running, rel=0.03)


@given(st.floats(1.0, 1e7), st.integers(0, 900_000))
def test_any_progress_has_a_forecast_within_reason(seconds: float, done: int) -> None:
    forecast = update_job(LARGE, Progress(seconds, done))
    assert 0 <= forecast.remaining_s_low <= forecast.remaining_s <= forecast.remaining_s_high
    assert np.isfinite(forecast.remaining_s_high)
    assert (forecast.remaining_s == 0) == (done == 900_000)
    json.dumps(forecast.to_dict(), allow_nan=False)


LARGE = size_job(TP8, samples=900_000, input_tokens=200, output_tokens=2000)


def test_a_job_that_goes_as_expected_stays_as_it_was() -> None:
    half = LARGE.serving_from_s + LARGE.phases.work_s / 2
    done = float(np.interp(LARGE.phases.work_s / 2, LARGE.phases.time_s, LARGE.phases.done_at))
    forecast = update_job(LARGE, Progress(half, done))
    assert forecast.makespan_s == pytest.approx(LARGE.makespan_s, abs=0, rel=1e-3)
    assert forecast.pace == pytest.approx(1, abs=0, rel=1e-3)


def test_silence_is_said_and_does_not_count_as_work() -> None:
    forecast = update_job(LARGE, Progress(50_000, 0))
    assert forecast.samples_done == 0
    assert forecast.remaining_s > 0.99 * LARGE.phases.work_s
    assert any("without an answer" in note for note in forecast.notes)


def test_hours_energy_and_money_grow_with_the_job_and_it_has_a_picture(tmp_path: Path) -> None:
    from perfmodel.report import save

    job = size_job(TP8, samples=900_000, input_tokens=200, output_tokens=2000, price_per_gpu_hour=1.0)
    late = update_job(job, Progress(job.makespan_s / 2, 300_000)).to_dict()
    assert late["gpu_hours"] == pytest.approx(8 * late["makespan_s"] / 3600, abs=0, rel=1e-9)
    assert late["cost"] == pytest.approx(late["gpu_hours"], abs=0, rel=1e-9)
    assert late["energy_kwh"] > job.energy_kwh
    drawn = save(update_job(job, Progress(job.makespan_s / 2, 300_000)), tmp_path / "f.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------ files


VLLM = [f"(APIServer pid=7) INFO 07-24 14:{m:02}:{s:02} [loggers.py:273] Engine {e:03}: Avg prompt throughput: 3539.1 "
        f"tokens/s, Avg generation throughput: {rate} tokens/s, Running: 126 reqs, Waiting: 0 reqs, GPU KV cache"
        for m in (10, 11) for s in (0, 10, 20, 30, 40, 50) for e, rate in ((0, 500.0), (1, 300.0))]  # fmt: skip
SGLANG = [f"[2026-05-15 08:40:{s:02} DP{dp} TP{tp} PP{pp}] Decode batch. #running-req: 64, #token: 9000, "
          f"token usage: 0.10, cuda graph: True, gen throughput (token/s): {100.0 * (dp + 1)}, #queue-req: 10"
          for s in (0, 8, 20, 40) for dp in (0, 1) for tp in (0,) for pp in (0, 1)]  # fmt: skip


def test_a_log_adds_up_engine_copies_and_counts_one_stage() -> None:
    vllm, sglang = parse_serving_log(VLLM), parse_serving_log(SGLANG)
    assert vllm is not None and sglang is not None
    assert (vllm.seconds, vllm.output_tokens) == (110, 110 * 800)
    assert (sglang.seconds, sglang.output_tokens) == (40, 40 * 300)
    assert parse_serving_log(VLLM[:1]) is None


METRICS = """# HELP vllm:request_success_total Count of successfully processed requests.
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 700.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 50.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
"""


def test_files_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"samples_done": 750, "seconds": 3000, "load_seconds": 300}')
    (tmp_path / "p.csv").write_text("seconds,samples_done\n100,1\n3000,750\n")
    (tmp_path / "m.txt").write_text(METRICS)
    (tmp_path / "e.log").write_text("\n".join(["noise", *VLLM]))
    assert read_progress(tmp_path / "p.json") == Progress(3000, 750, load_seconds=300, source="p.json")
    assert read_progress(tmp_path / "p.csv") == Progress(3000, 750, source="p.csv")
    assert read_progress(tmp_path / "m.txt", 3000.0) == Progress(3000, 750, 1.5e6, source="metrics page")
    assert read_progress(tmp_path / "e.log") == Progress(110, None, 88_000, serving=True, source="engine log")
    assert parse_metrics(["sglang:num_requests_total{x=\"y\"} 3"]) == (3.0, None)
    for name in ("p.json", "p.csv", "e.log"):
        answer = json.loads(ask(*BASE, "--json", "--progress", str(tmp_path / name)).stdout)
        assert 0 < answer["remaining_s_low"] < answer["remaining_s"] < answer["remaining_s_high"]
    text = ask(*BASE, "--progress", str(tmp_path / "m.txt"), "--elapsed", "50 min").stdout
    assert "to go" in text and all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(("text", "error", "words"), [
    ("", BadInput, "says nothing about the work done"), ("[]", BadInput, "says nothing"), ("{", BadInput, "not JSON"),
    ("{}", BadInput, "how long"), ('{"samples_done": 3}', BadInput, "how long"),
    ('{"sample_done": 3, "seconds": 1}', UnknownName, "samples_done"), ("seconds,samples_done\n", BadInput, "no rows"),
    ('{"samples_done": "x", "seconds": 1}', BadInput, "must be a number"),
    ('{"samples_done": true, "seconds": 1}', BadInput, "must be a number"),
    ('{"samples_done": 1e999, "seconds": 1}', BadInput, "must be a number"), (METRICS, BadInput, "metrics page"),
    ("\0" * 100, BadInput, "says nothing"), (VLLM[0].replace("07-24", "99-99"), BadInput, "time that is none"),
    ("{" * 10_000, BadInput, "not JSON"),
])  # fmt: skip
def test_what_says_nothing_is_refused(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        progress_of(text, "p")


@pytest.mark.parametrize(("change", "words"), [
    ({"samples_done": 900_001}, "900,001 samples done of 900,000"), ({"seconds": -1}, "at least 0"),
    ({"seconds": 0}, "no time has passed"), ({"samples_done": -1}, "at least 0"),
    ({"samples_done": float("nan")}, "at least 0"), ({"samples_done": None}, "neither samples_done nor output_tokens"),
    ({"load_seconds": 2000}, "load_seconds is part of seconds"),
])  # fmt: skip
def test_progress_that_cannot_be_is_said(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        update_job(LARGE, replace(Progress(1000, 10), **change))


def test_a_file_that_is_none_is_not_opened(tmp_path: Path) -> None:
    for path in ("/dev/zero", str(tmp_path), str(tmp_path / "none.json")):
        assert ask(*BASE, "--progress", path).exit_code == 2
