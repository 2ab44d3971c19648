"""Job sizing: phases that add up, nodes, deadlines, energy; the case's figures by hand."""

import json
import re
import resource
from typing import Any

import numpy as np
import pytest
from command_line import ask, command_line

import perfmodel as pm
from perfmodel.catalog import load_accelerator
from perfmodel.costs.energy import board_power
from perfmodel.errors import BadInput, Infeasible
from perfmodel.insight.job_factors import job_effects
from perfmodel.planner import compare_jobs, nodes_for, size_job
from perfmodel.planner.job_power import draw_of
from perfmodel.planner.job_start import LOAD_BPS, start_of
from perfmodel.report.job_plot import course
from perfmodel.report.job_text import job_text
from tests.cases import CASE_NODE, kimi

TP8 = kimi("sglang==0.5.23", tp=8, memory_fraction=0.92)
AS_RUN = kimi("sglang==0.5.23", pp=8, memory_fraction=0.92, cuda_graphs=False, max_sequences=64)
CASE: dict[str, Any] = {"samples": 900_000, "input_tokens": 200, "output_tokens": 2000}
WORKLOADS = [CASE, {**CASE, "samples": 700}, {**CASE, "samples": 1}, {**CASE, "samples": 30_000, "nodes": 3},
             {**CASE, "samples": 5000, "output_tokens": "lognormal:2000:0.8", "failure_rate": 0.01},
             {**CASE, "samples": 900, "request_rate": 0.2}]  # fmt: skip


@pytest.mark.parametrize("workload", WORKLOADS, ids=range(len(WORKLOADS)))
@pytest.mark.parametrize("deployment", [TP8, AS_RUN], ids=["tp8", "as run"])
def test_phases_add_up_and_the_course_makes_all_tokens(deployment: Any, workload: dict[str, Any]) -> None:
    job = size_job(deployment, **workload)
    assert all(seconds >= 0 for seconds in job.parts.values())
    assert sum(job.parts.values()) == pytest.approx(job.makespan_s, abs=0, rel=1e-9)
    assert job.makespan_s_low < job.makespan_s < job.makespan_s_high
    assert job.energy_kwh_low < job.energy_kwh < job.energy_kwh_high
    phases = job.phases
    assert np.all(np.diff(phases.made_at) >= -1e-6 * job.output_tokens)
    assert np.all(np.diff(phases.done_at) >= -1e-6 * job.samples)
    assert phases.made_at[-1] == pytest.approx(job.output_tokens, abs=0, rel=1e-6)
    assert phases.done_at[-1] == pytest.approx(job.samples, abs=0, rel=1e-6)
    time, running, speed = course(job)
    assert np.trapezoid(speed, time) == pytest.approx(job.output_tokens, abs=0, rel=0.06)
    assert running[0] == running[-1] == 0
    json.dumps(job.to_dict(), allow_nan=False)


def test_the_case_by_hand() -> None:
    """900,000 answers of 2,000 tokens: 1.8e9 tokens at the steady speed, after reading 594 GB."""
    job = size_job(TP8, **CASE)
    speed = pm.predict(TP8, concurrency=900_000, input_tokens=200, output_tokens=2000).output_tok_s[0][0]
    assert job.makespan_s == pytest.approx(1.8e9 / speed + 594.2e9 / 1.65e9 + 28, abs=0, rel=1e-3)
    assert job.parts["load_s"] == pytest.approx(360, abs=0, rel=0.01)  # "loads for 6 minutes"
    assert size_job(AS_RUN, **CASE).parts["load_s"] == pytest.approx(360 / 8, abs=0, rel=0.01)
    assert job.gpu_hours == pytest.approx(8 * job.makespan_s / 3600, abs=0, rel=1e-9)


def test_one_table_of_the_case_within_three_seconds() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["job", "--model", "kimi-k2.6", "--node", CASE_NODE, "--engine", "sglang", "--memory-fraction", "0.92",
             "--samples", "900000", "--input-tokens", "200", "--output-tokens", "2000"]  # fmt: skip
    for text in ("tp=8", "tp=8,ep=8", "pp=8,cuda_graphs=off,max_sequences=64", "pp=8", "pp=8,async_depth=8"):
        words += ["--strategy", text]
    rows = json.loads(command_line(*words, "--json").stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    spans = [row["makespan_s"] for row in rows]
    assert spans == sorted(spans)
    assert {row["deployment"]["strategy"] for row in rows} == {"TP8", "TP8+EP8", "PP8"}
    text = ask(*words, "--price-per-gpu-hour", "1.5").stdout
    assert all(len(line) <= 80 for line in text.splitlines())


# ------------------------------------------------------------------ nodes and deadlines


def test_nodes_share_the_samples_and_each_loads() -> None:
    one, four = (size_job(TP8, **CASE, nodes=n) for n in (1, 4))
    assert four.parts["load_s"] == one.parts["load_s"]
    assert four.phases.work_s == pytest.approx(one.phases.work_s / 4, abs=0, rel=0.01)
    assert four.gpu_hours > one.gpu_hours
    assert four.energy_kwh > one.energy_kwh


def test_more_nodes_wait_longer_for_the_longest_answer() -> None:
    workload = {**CASE, "samples": 1_000_000, "output_tokens": "lognormal:2000:0.8"}
    tails = [size_job(TP8, **workload, nodes=n).parts["tail_s"] for n in (1, 4, 16)]
    assert tails == sorted(tails) and tails[2] > 1.05 * tails[0]


def test_a_node_without_a_sample_is_said() -> None:
    job = size_job(TP8, **{**CASE, "samples": 2}, nodes=5)
    assert any("3 of 5 nodes get no sample" in note for note in job.assumptions)


@pytest.mark.parametrize("days", [2, 7, 30])
def test_a_deadline_takes_the_fewest_nodes_that_keep_it(days: int) -> None:
    answer = nodes_for(TP8, days * 86400, **CASE)
    assert answer.job.makespan_s_high <= days * 86400
    assert answer.nodes_point <= answer.job.nodes
    if answer.job.nodes > 1:
        assert size_job(TP8, **CASE, nodes=answer.job.nodes - 1).makespan_s_high > days * 86400
    if answer.nodes_point > 1:
        assert size_job(TP8, **CASE, nodes=answer.nodes_point - 1).makespan_s > days * 86400


def test_a_deadline_below_the_load_and_the_longest_answer_has_no_nodes() -> None:
    with pytest.raises(Infeasible, match="no number of nodes surely finishes") as refusal:
        nodes_for(TP8, 300, **CASE)
    assert refusal.value.hints


# ------------------------------------------------------------------ start


def test_a_rank_reads_its_stage_and_the_storage_feeds_all() -> None:
    size = LOAD_BPS * start_of(TP8).load_s
    assert start_of(TP8, storage_bandwidth=1e9).load_s == pytest.approx(size / 1e9, abs=0, rel=1e-9)
    assert start_of(AS_RUN, storage_bandwidth=1e9).load_s == pytest.approx(size / 1e9, abs=0, rel=1e-9)
    assert start_of(TP8, storage_bandwidth=1e12).load_s == start_of(TP8).load_s
    small = start_of(TP8, storage_bandwidth=1e9, host_memory=64e9)
    assert small.load_s == pytest.approx(8 * size / 1e9, abs=0, rel=1e-9)
    large = start_of(TP8, storage_bandwidth=1e9, host_memory=1e12)
    assert large.reload_s == pytest.approx(size / LOAD_BPS, abs=0, rel=1e-9)
    assert small.reload_s == small.load_s


def test_what_is_known_narrows_the_band() -> None:
    short = {**CASE, "samples": 50}
    loose, known = size_job(TP8, **short), size_job(TP8, **short, load_rate=1.65e9, warmup=28.0)
    assert known.makespan_s == pytest.approx(loose.makespan_s, abs=0, rel=1e-9)
    assert known.makespan_s_high < loose.makespan_s_high


# ------------------------------------------------------------------ energy


def test_power_is_linear_in_the_share_as_measured() -> None:
    """One H200 held busy for half and for a quarter of the time drew 401 and 259 W."""
    gpu = load_accelerator("h200-sxm").power
    for share, watts in ((0.5, 401), (0.25, 259)):
        assert board_power(float(gpu.waiting), share, 697.0, 0.0, 692.0, 700.0) == pytest.approx(watts, abs=0, rel=0.02)


def test_the_case_drew_what_its_band_holds() -> None:
    """The pipeline as run drew 150 to 200 W a GPU in a few streams, where the board allows 600."""
    curve = pm.predict(AS_RUN, concurrency=8, input_tokens=200, output_tokens=2000)
    draw = draw_of(AS_RUN, curve, "burst")
    spread = np.exp(1.2816 * draw.sd)
    assert draw.serving_W / spread < 150 < draw.serving_W * spread * 1.1
    assert draw.serving_W < 0.3 * 600


@pytest.mark.parametrize(("batch", "watts"), [(1, 477), (32, 635), (128, 693)])
def test_decode_draws_what_an_h200_drew(batch: int, watts: float) -> None:
    """Decode of the shape of Llama-3.1-8B in a CUDA graph, random BF16 weights, 1,024 tokens cached: nvidia-smi, mean
    of 6 s, read for this project and fitted to nothing."""
    d = pm.deploy("llama-3.1-8b", node="1x-h200-sxm")
    curve = pm.predict(d, concurrency=batch, input_tokens=512, output_tokens=1024)
    assert draw_of(d, curve, "staggered").serving_W == pytest.approx(watts, abs=0, rel=0.20)


def test_a_board_that_nobody_measured_has_a_wider_band() -> None:
    known = size_job(pm.deploy("llama-3.1-8b", node="1x-h200-sxm"), samples=10_000)
    guess = size_job(pm.deploy("llama-3.1-8b", node="1x-h100-sxm"), samples=10_000)
    assert guess.energy_kwh_high / guess.energy_kwh > known.energy_kwh_high / known.energy_kwh
    assert any("assumed as shares of the limit" in note for note in guess.assumptions)
    given = size_job(pm.deploy("llama-3.1-8b", node="1x-h100-sxm"), samples=10_000, gpu_power=500.0)
    assert given.energy_kwh_high / given.energy_kwh < guess.energy_kwh_high / guess.energy_kwh


def test_a_power_limit_is_never_passed() -> None:
    d = pm.deploy("llama-3.1-8b", node="1x-h200-sxm", power_limit=300)
    job = size_job(d, samples=10_000)
    assert job.energy_kwh <= 0.3 * job.gpu_hours * (1 + 1e-9)


def test_money_is_hours_and_energy() -> None:
    job = size_job(TP8, **CASE, price_per_gpu_hour=2.0, price_per_kwh=0.3)
    assert job.cost == pytest.approx(2 * job.gpu_hours + 0.3 * job.energy_kwh, abs=0, rel=1e-9)
    assert size_job(TP8, **CASE).cost is None


# ------------------------------------------------------------------ what each factor changes


def test_effects_are_asked_of_the_model() -> None:
    job = size_job(TP8, **CASE)
    effects = {effect.factor: effect for effect in job_effects(TP8, job, **CASE)}
    assert effects["nodes"].makespan_s == pytest.approx(size_job(TP8, **CASE, nodes=2).makespan_s, abs=0, rel=1e-9)
    longer = size_job(TP8, **{**CASE, "output_tokens": 2200}).makespan_s
    assert effects["mean answer"].makespan_s == pytest.approx(longer, abs=0, rel=1e-9)
    assert effects["memory bandwidth of the GPU"].change < 0 < effects["bandwidth of the links"].change
    assert effects["failures a node hour"].change > 0
    assert abs(effects["samples"].change - 0.1) < 0.01
    order = [abs(effect.change) for effect in job_effects(TP8, job, **CASE)]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("shape", ["uniform:500:1500", "lognormal:900:0.7", "falling:800", "file"])
def test_longer_answers_keep_their_shape(shape: str, tmp_path: Any) -> None:
    from perfmodel.insight.job_factors import _longer
    from perfmodel.serving.lengths import parse_lengths

    if shape == "file":
        (tmp_path / "x.csv").write_text("output_tokens\n10\n200\n3000\n")
        shape = f"file:{tmp_path / 'x.csv'}"
    before, after = parse_lengths(shape), parse_lengths(_longer(shape, 2.0))
    assert after.mean == pytest.approx(2 * before.mean, abs=0, rel=1e-6)
    assert after.spread == pytest.approx(before.spread, abs=0, rel=1e-6)


# ------------------------------------------------------------------ answers in words


@pytest.mark.parametrize(("more", "code", "words"), [
    (["--samples", "0"], 2, "samples must be a whole number from 1"),
    ([], 2, "give either samples or requests"),
    (["--samples", "9", "--output-tokens", "0"], 2, "length must lie between 1 and 1e9"),
    (["--samples", "9", "--output-tokens", "uniform:10:5"], 2, "bounds the wrong way round"),
    (["--samples", "9", "--output-tokens", "lognormal:1e12:1"], 2, "mean must lie between"),
    (["--samples", "9", "--output-tokens", "1e6"], 2, "the context is"),
    (["--samples", "500", "--request-rate", "50"], 1, "above the capacity"),
    (["--samples", "900000", "--deadline", "5min"], 1, "no number of nodes surely finishes"),
    (["--samples", "9", "--deadline", "soon"], 2, "must be a time such as"),
    (["--samples", "9", "--deadline", "2h", "--nodes", "2"], 2, "either --nodes or --deadline"),
    (["--samples", "9", "--failure-rate", "500", "--checkpoint-interval", "30d"], 1, "never ends"),
    (["--samples", "9", "--mtbf", "0"], 2, "mtbf must be above 0"),
    (["--samples", "9", "--load-rate", "2"], 2, "load_rate must lie between"),
    (["--samples", "9", "--gpu-power", "0"], 2, "gpu_power must lie above 0"),
    (["--samples", "9", "--nodes", "0"], 2, "nodes must be a whole number from 1"),
    (["--samples", "9", "--elapsed", "3h"], 2, "goes with --progress"),
    (["--samples", "9", "--strategy", "tp=8", "--strategy", "pp=8", "--sensitivity"], 2, "about one strategy"),
])  # fmt: skip
def test_what_has_no_answer_is_said_in_words(more: list[str], code: int, words: str) -> None:
    base = ["job", "--model", "kimi-k2.6", "--node", CASE_NODE, "--engine", "sglang", "--memory-fraction", "0.92"]
    tp = [] if "--strategy" in more else ["--tp", "8"]
    done = ask(*base, *tp, *more)
    assert done.exit_code == code
    assert words in done.stderr and "Traceback" not in done.stderr


def test_one_sample_is_a_job() -> None:
    job = size_job(TP8, **{**CASE, "samples": 1})
    alone = pm.predict(TP8, concurrency=1, input_tokens=200, output_tokens=2000)
    assert job.phases.work_s == pytest.approx(2000 / alone.output_tok_s[0][0], abs=0, rel=0.03)


def test_strategies_that_do_not_start_are_listed_and_all_of_them_are_a_no() -> None:
    small = kimi("sglang==0.5.23", tp=8, memory_fraction=0.5)
    both = compare_jobs([small, TP8], **CASE)
    assert len(both.jobs) == 1 and "does not start" in both.refused[0]
    with pytest.raises(Infeasible, match="does not start"):
        compare_jobs([small], **CASE)
    with pytest.raises(BadInput):
        compare_jobs([], **CASE)


# ------------------------------------------------------------------ pictures


@pytest.mark.parametrize("kind", ["job", "in time", "comparison"])
def test_every_answer_has_a_picture(kind: str, tmp_path: Any) -> None:
    from perfmodel.report import save

    noun: Any = {
        "job": lambda: size_job(TP8, **{**CASE, "samples": 700}),
        "in time": lambda: nodes_for(TP8, 7 * 86400, **CASE),
        "comparison": lambda: compare_jobs([TP8, AS_RUN], **CASE),
    }[kind]()
    assert noun.plot is not None
    path = save(noun, tmp_path / "job.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_picture_holds_the_course_of_the_job() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    job = size_job(TP8, **{**CASE, "samples": 700})
    ax = job.plot()  # type: ignore[attr-defined]
    time, _, speed = course(job)
    drawn = ax.get_lines()[0]
    assert np.allclose(drawn.get_ydata(), speed)
    assert drawn.get_xdata()[-1] / time[-1] == pytest.approx(1 / 60, abs=0, rel=1e-9)  # minutes
    assert "[min]" in ax.get_xlabel() and "[tokens/s]" in ax.get_ylabel()


def test_no_more_run_than_the_client_keeps_in_flight() -> None:
    for samples, concurrency, nodes in ((5000, 100, 439), (5000, 300, 200), (9_000_000, 300, 200), (5000, 30, 4)):
        job = size_job(TP8, samples=samples, output_tokens=200, concurrency=concurrency, nodes=nodes)
        assert job.concurrency <= concurrency
        assert job.concurrency >= concurrency / 2
    idle = size_job(TP8, samples=5000, output_tokens=200, concurrency=100, nodes=439)
    assert any("339 of 439 nodes get no sample: the client keeps 100 in flight" in note for note in idle.assumptions)


def test_many_nodes_are_counted_with_marks_and_warned_of_one_by_one() -> None:
    job = size_job(TP8, samples=90_000_000, output_tokens=2000, nodes=439)
    (cap,) = [note for note in job.assumptions if "sequences run at once" in note]
    assert cap.startswith("on each of 439 nodes at most ")
    text = job_text(job)
    assert f"{job.concurrency:,.0f} running at once, {job.concurrency / 439:.4g} a node" in " ".join(text.split())
    assert re.findall(r"(?<![\d,.])\d{5,}", text.split("launch:")[0]) == []


@pytest.mark.parametrize("text", ["30000", "30_000", "30,000", "3e4", "30k", "0.03M"])
def test_samples_are_written_as_people_write_them(text: str) -> None:
    words = ["job", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--output-tokens", "100", "--json"]
    done = ask(*words, "--samples", text)
    assert json.loads(done.stdout)["samples"] == 30_000
    assert "max_graph_batch" not in done.stderr


@pytest.mark.parametrize("text", ["many", "1.5", "-3", "1e99", "nan", "1.2.3"])
def test_what_is_no_count_is_refused(text: str) -> None:
    done = ask("job", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm", "--samples", text)
    assert done.exit_code == 2 and "is not a count such as 900000, 9e5 or 900k" in done.stderr
