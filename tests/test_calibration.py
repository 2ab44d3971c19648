"""The fit engine finds what was planted; shipped calibrations are what their command makes; bands hold their word."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel.calibration import calibrate, files, own, shipped
from perfmodel.calibration.fit import changed, fit
from perfmodel.catalog import load_calibration
from perfmodel.errors import BadInput, UnknownName
from perfmodel.insight import interconnect, kernels, observed, parallel, served
from perfmodel.insight.validate import MARK, Validation, validate, write_into
from perfmodel.step.factors import Factors, factors_of, from_calibration

PRIORS = from_calibration(load_calibration(None))
NODE = "8x-rtx-pro-6000-server"
PLANTED = {"kernel_s": 4.1e-6, "routing_concentration_identical": 0.9, "collective_bandwidth_factor": 0.8}


def planted(truth: dict[str, float], batch: list[float]) -> Callable[[Factors], np.ndarray]:
    """Residuals against steps that the model itself makes with these factors."""
    d = pm.deploy("kimi-k2.6", node=NODE, tp=8, kv_dtype="fp8", prompts="identical")
    seconds = observed.decode_seconds(d, np.array(batch), np.full(len(batch), 600.0))
    measured = seconds(changed(PRIORS, truth).draws(0, uncertain=False))[0]
    return lambda factors: np.log(seconds(factors.draws(0, uncertain=False))[0] / measured)


def line(factors: Factors) -> np.ndarray:
    """Three rows that only the product of two factors enters."""
    value = dict(zip(factors.names, factors.values.tolist(), strict=True))
    return np.full(3, np.log(value["eager_kernel_s"] * value["host_speed"] / 40e-6))


@pytest.fixture(scope="module")
def everything() -> Validation:
    return validate()


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_fit_recovers_planted_factors_from_two_starts(factor: float) -> None:
    batch = [1, 2, 4, 8, 16, 32, 64, 128.0]
    flat = changed(PRIORS, {}, {name: 3.0 for name in PLANTED})       # priors too wide to matter
    free = {name: (value * factor, value / 100, value * 100) for name, value in PLANTED.items()}
    found = fit(planted(PLANTED, batch), free, flat, sweeps=[f"s{i}" for i in range(len(batch))])
    assert found.values == pytest.approx(tuple(PLANTED.values()), rel=0.03)
    assert found.residual_sd < 1e-3
    assert not found.at_bound


def test_three_points_are_enough_and_say_what_they_do_not_know() -> None:
    found = fit(planted({"kernel_s": 5e-6}, [1.0, 2.0, 4.0]),
                {"kernel_s": (3e-6, 1e-6, 2e-5), "gemm_efficiency": (0.70, 0.05, 1.0)}, PRIORS)
    assert found.values[0] > found.prior[0][0]
    assert found.unidentified == ("gemm_efficiency",)
    assert found.values[1] == pytest.approx(0.70, rel=0.05)
    assert "not told apart" in found.report()
    assert all(s <= 1.001 * p[1] for s, p in zip(found.sd, found.prior, strict=True)), "data never takes knowledge away"


def test_the_order_of_rows_does_not_matter() -> None:
    batch = [1.0, 8.0, 64.0]
    free = {"kernel_s": (3e-6, 1e-6, 2e-5)}
    one = fit(planted(PLANTED, batch), free, PRIORS).values
    assert fit(planted(PLANTED, batch[::-1]), free, PRIORS).values == pytest.approx(one, rel=1e-4)


def test_a_product_is_reported_as_correlated() -> None:
    wide = changed(PRIORS, {}, {"eager_kernel_s": 3.0, "host_speed": 3.0})
    found = fit(line, {"eager_kernel_s": (20e-6, 1e-6, 1e-3), "host_speed": (1.0, 0.01, 100.0)}, wide)
    assert found.correlations["eager_kernel_s|host_speed"] < -0.95
    assert any("correlated" in warning for warning in found.warnings)


def test_a_bound_is_reported() -> None:
    found = fit(line, {"eager_kernel_s": (20e-6, 10e-6, 25e-6)}, changed(PRIORS, {}, {"eager_kernel_s": 3.0}))
    assert found.at_bound == ("eager_kernel_s",)
    assert "at bound" in found.report()


def test_more_free_factors_than_rows_and_priors_are_refused() -> None:
    bare = changed(PRIORS, {}, {"eager_kernel_s": 0.0, "host_speed": 0.0})
    with pytest.raises(BadInput, match="2 free factors"):
        fit(lambda factors: line(factors)[:1], {"eager_kernel_s": (2e-5, 1e-6, 1e-3), "host_speed": (1, 0.1, 10)}, bare)
    with pytest.raises(UnknownName, match="kernel_s"):
        fit(line, {"kernels_s": (1.0, 0.1, 10.0)}, PRIORS)


def test_a_fit_is_drawn() -> None:
    assert fit(line, {"eager_kernel_s": (2e-5, 1e-6, 1e-3)}, PRIORS).plot().get_yscale() == "log"


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    found = fit(line, {"eager_kernel_s": (2e-5, 1e-6, 1e-3)}, PRIORS)
    found.save(path, name="mine", title='a "quoted" title', source={"title": "three rows"})
    read = load_calibration(None, None, path)
    assert read.parameters["eager_kernel_s"].value == pytest.approx(found.values[0], rel=1e-3)
    assert read.parameters["eager_kernel_s"].unit == "s"
    assert read.title == 'a "quoted" title'
    before = path.read_text()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(BadInput, match="mine.yaml"):
        found.save(path, name="mine", title="another", source={"title": "three rows"})
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------- the shipped calibrations

STEMS = ("rtx-pro-6000-server", "rtx-pro-6000-server+vllm", "rtx-pro-6000-server+sglang")


def test_shipped_files_are_what_their_command_makes(tmp_path: Path) -> None:
    written = shipped.save(shipped.run(), tmp_path)
    assert [path.stem for path in written] == list(STEMS)
    for path in written:
        new, old = load_calibration(None, None, path), load_calibration(None, None, path.stem)
        assert new.hashes == old.hashes, "observations changed: perfmodel calibrate --shipped"
        assert (new.fitted_on, new.checked_on) == (old.fitted_on, old.checked_on)
        assert new.residual_sd == pytest.approx(old.residual_sd, abs=0.005)
        for name, parameter in old.parameters.items():
            assert new.parameters[name].value == pytest.approx(parameter.value, rel=0.02), name
            assert new.parameters[name].sd == pytest.approx(parameter.sd, rel=0.1), name


def test_fitted_and_checked_rows_are_disjoint() -> None:
    layers = [load_calibration(None, None, stem) for stem in STEMS]
    fitted, checked = ({sweep for c in layers for sweep in getattr(c, part)} for part in ("fitted_on", "checked_on"))
    assert fitted and checked
    assert not fitted & checked
    rows = [row for s in observed.series(observed.read(observed.SWEEPS)) for row in s.rows]
    by_use = {use: {row.sweep for row in rows if row.use == use} for use in ("fit", "check")}
    assert not by_use["fit"] & checked
    assert not by_use["check"] & fitted


def test_later_stages_free_no_bandwidth() -> None:
    for free in (shipped.GRAPHS, shipped.EAGER):
        assert not [name for name in free if "dram" in name or "bandwidth" in name or name.endswith("_bytes")]


def test_no_row_in_cache_is_fitted() -> None:
    keep = shipped._cold("moe", "balanced")
    rows = [row for s in kernels.kernel_series() for row in s.rows if keep(row)]
    assert rows
    assert not any(row.hot for row in rows)


def off(predicted: list[float], measured: list[float]) -> float:
    return float(np.max(np.abs(np.array(predicted) / np.array(measured) - 1)))


def test_sweep_with_graphs_is_met() -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="vllm", tp=8, kv_dtype="fp8", prompts="identical")
    batch, measured = [1, 8, 32, 128], [91.4, 406.9, 962.8, 2310.2]        # k26-v3, no speculation
    seconds = pm.step(d, batch=batch, context=500).seconds
    assert off([b / s for b, s in zip(batch, seconds, strict=True)], measured) < 0.20


@pytest.mark.parametrize(
    ("strategy", "batch", "measured"),
    [({"tp": 8}, [1, 8, 16, 32], [26.45, 136.6, 311.3, 577.8]),
     ({"pp": 8, "max_sequences": 64}, [1, 4, 8], [24.55, 68.3, 95.6])],
)
def test_eager_case_is_met_and_the_host_binds_one_stream(
    strategy: dict[str, int], batch: list[int], measured: list[float]
) -> None:
    d = pm.deploy("kimi-k2.6", node=NODE, engine="sglang", cuda_graphs=False, **strategy)
    cost = pm.step(d, batch=batch, context=1650)
    assert off([b / s for b, s in zip(batch, cost.seconds, strict=True)], measured) < 0.25
    assert cost.bound_by[0] == "host"


# ---------------------------------------------------------------- validate

def test_bands_hold_what_they_say(everything: Validation) -> None:
    for name in ("decode", "kernels, from memory"):
        found = next(s for s in everything.scores if (s.name, s.use) == (name, "check"))
        assert found.rows > 200
        assert 0.72 <= found.coverage <= 0.88  # of 80 %, eight points either way
        assert found.half_width < 0.35, "a band that is wide enough covers everything"


def test_checked_errors_stay_small(everything: Validation) -> None:
    errors = {(s.name, s.use): s.median_error for s in everything.scores}
    assert errors["decode", "check"] < 0.12
    assert errors["decode, C = 1", "check"] < 0.08
    assert errors["interconnect", "check"] < 0.10
    assert errors["case", "check"] < 0.15


def test_validation_prints_and_serialises(everything: Validation) -> None:
    assert max(map(len, everything.text().splitlines())) <= 80
    told = json.loads(json.dumps(everything.to_dict(), allow_nan=False))
    assert len(told["rows"]) == sum(s["rows"] for s in told["sweeps"])
    assert {row["use"] for row in told["rows"]} == {"fit", "check"}
    assert told["excluded"]["speculation on"] > 100


def test_every_row_is_compared_or_counted(everything: Validation) -> None:
    stems = (observed.SWEEPS, observed.CASE, *kernels.FILES, *interconnect.TABLES, served.SERVED, served.STEPS,
             parallel.PARALLEL)
    shipped_rows = sum(len(observed.read(stem)) for stem in stems)
    shipped_rows += sum(int(row["rows"]) for row in observed.read(served.EXCLUDED))
    assert len(everything.rows) + sum(everything.excluded.values()) == shipped_rows


@pytest.mark.parametrize("what", ["decode", "prefill", "kernels", "interconnect", "case", "steps", "parallel", "e2e"])
def test_parts_add_up_to_the_whole(what: str, everything: Validation) -> None:
    assert len(validate(what).rows) == sum(row.kind.split()[0] == what for row in everything.rows)


def test_unknown_part_is_refused() -> None:
    with pytest.raises(UnknownName, match="decode"):
        validate("decoding")


def test_accuracy_page_is_current(everything: Validation, tmp_path: Path) -> None:
    page = Path(__file__).parents[1] / "docs" / "accuracy.md"
    if not page.is_file():
        pytest.skip("the wheel has no documents")
    copy = tmp_path / "accuracy.md"
    copy.write_text(page.read_text())
    write_into(copy, everything.text())
    assert copy.read_text() == page.read_text(), "perfmodel validate --write docs/accuracy.md"
    copy.write_text("no marks")
    with pytest.raises(BadInput, match=MARK):
        write_into(copy, "x")


# ---------------------------------------------------------------- a user's own benchmark

@pytest.fixture
def deployment() -> pm.deployment.Deployment:
    return pm.deploy("kimi-k2.6", node=NODE, engine="vllm", tp=8)


def test_own_benchmark_moves_predictions_towards_it(deployment: pm.deployment.Deployment, tmp_path: Path) -> None:
    flights = [1, 8, 32]
    asked = [{"concurrency": float(c), "input_tokens": 1024.0, "output_tokens": 1024.0} for c in flights]
    slower = own.rates(deployment, asked, changed(factors_of(deployment), {"kernel_s": 5e-6}))
    found = calibrate([{"concurrency": c, "output_tok_s": r} for c, r in zip(flights, slower, strict=True)],
                      deployment=deployment)
    assert off(found.before.tolist(), slower.tolist()) > 0.10
    assert off(found.after.tolist(), slower.tolist()) < 0.07
    assert found.assumptions == ("input_tokens 1024 in every row", "output_tokens 1024 in every row")
    assert max(map(len, found.report().splitlines())) <= 80
    found.save(tmp_path / "mine.yaml")
    d = pm.deploy("kimi-k2.6", node=NODE, engine="vllm", tp=8, calibration=str(tmp_path / "mine.yaml"))
    assert pm.predict(d, concurrency=flights).output_tok_s[0] == pytest.approx(found.after, rel=0.01)


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [("concurrency,tok_s\n1,80\n", UnknownName, "output_tok_s"),
     ("concurrency,output_tok_s\n1,fast\n", BadInput, "row 1: output_tok_s"),
     ("concurrency,output_tok_s\n1,-3\n", BadInput, "positive"),
     ("concurrency,output_tok_s\n", BadInput, "no rows")],
)
def test_bad_files_are_refused(
    text: str, error: type[Exception], match: str, deployment: pm.deployment.Deployment, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(error, match=match):
        calibrate(tmp_path / "own.csv", deployment=deployment)


def test_default_parameters_follow_the_strategy(deployment: pm.deployment.Deployment) -> None:
    assert "collective_latency_factor" in own.default_free(deployment)
    eager = pm.deploy("kimi-k2.6", node=NODE, engine="sglang", pp=8, cuda_graphs=False)
    assert {"eager_kernel_s", "pipeline_hop_s"} <= set(own.default_free(eager))
    alone = pm.deploy("llama-3.1-8b", node="1x-h100-sxm", engine="vllm")
    assert not {"collective_latency_factor", "pipeline_hop_s"} & set(own.default_free(alone))


# ---------------------------------------------------------------- command line

def test_calibrate_command(tmp_path: Path) -> None:
    from perfmodel.cli.calibrate import calibrate as command

    rows = "concurrency,output_tok_s,input_tokens,output_tokens\n1,70,200,500\n8,300,200,500\n"
    (tmp_path / "own.csv").write_text(rows)
    words = [str(tmp_path / "own.csv"), "--model", "kimi-k2.6", "--node", NODE, "--tp", "8", "--json"]
    run = CliRunner().invoke(command, [*words, "-o", str(tmp_path / "own.yaml")])
    assert run.exit_code == 0, run.output
    assert "own benchmark" in (tmp_path / "own.yaml").read_text()
    assert CliRunner().invoke(command, []).exit_code == 2
    check = CliRunner().invoke(command, ["--shipped", "--check"])
    assert check.exit_code == 0
    assert "eager_kernel_s" in check.output


def test_validate_command() -> None:
    from perfmodel.cli.validate import validate as command

    run = CliRunner().invoke(command, ["case"])
    assert run.exit_code == 0
    assert "case/case-pp8" in run.output
    assert json.loads(CliRunner().invoke(command, ["case", "--json"]).output)["level"] == 0.8
