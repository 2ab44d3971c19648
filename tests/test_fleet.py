"""Served TPOT: rows by a written rule, a fit that finds what was planted, files that match their observations."""

from collections import Counter

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.calibration import fleet
from perfmodel.calibration.heldout import held_out_scores
from perfmodel.calibration.served import Served, fit_served, linear
from perfmodel.catalog import load_calibration, names
from perfmodel.errors import UnknownName
from perfmodel.insight import observed, served
from perfmodel.step.factors import from_calibration

PRIORS = from_calibration(load_calibration(None))
ADA = "rtx-4090"


@pytest.fixture(scope="module")
def ada() -> Served:
    """The smallest accelerator with several models, fitted from the plain priors."""
    mine = [s for s in served.series() if s.accelerator == ADA]
    return fit_served(ADA, mine, fleet.start(ADA, None, None))


def test_rows_are_used_by_the_written_rule() -> None:
    uses = Counter(served.use_of(row) for row in observed.read(served.SERVED))
    assert uses["fit"] > 1500 and uses["check"] > 200
    for row in observed.read(served.SERVED):
        short = float(row["isl"]) > served.PREFILL_RATIO * float(row["osl"])
        assert (served.use_of(row) == "check") == (short or served.prompt_tokens_a_step(row) > served.PREFILL_BOUND)
        assert row["model"] and row["gpu"] and float(row["tpot_ms"]) > 0 and int(row["n_gpus"]) == (
            int(row["tp"]) * int(row["pp"]) * int(row["dp"])), row["id"]


def test_excluded_rows_have_a_reason_and_a_count() -> None:
    for row in observed.read(served.EXCLUDED):
        assert row["reason"] and int(row["rows"]) > 0


def test_a_fit_lowers_the_error_and_leaves_the_priors_width(ada: Served) -> None:
    before, after = (np.median(np.abs(r)) for r in (ada.before, ada.residuals))
    assert after < 0.6 * before
    assert np.all(ada.sd <= ada.prior_sd * 1.001), "data never takes knowledge away"
    efficient = [x for name, x in zip(ada.names, ada.x, strict=True) if "efficiency" in name and "~" not in name]
    assert max(efficient) <= 1e-9


def test_the_jacobian_is_the_slope_of_the_residuals(ada: Served) -> None:
    step = 1e-4
    for i, name in enumerate(ada.names):
        moved = ada.x.copy()
        moved[i] += step
        slope = (linear(ada.series, ada.base, ada.names, moved)[0] - ada.residuals) / step
        same = np.isclose(ada.jacobian[:, i], slope, rtol=0.1, atol=0.02)
        assert np.mean(same) > 0.7, name        # a row may sit at a kink: a rounded batch, an efficiency of one


def test_planted_times_are_found() -> None:
    """Rows that the model itself makes with a slower start-up of kernels."""
    mine = [s for s in served.series() if s.accelerator == "mi300x"]
    truth = PRIORS.draws(0, uncertain=False) | {"kernel_s": 9e-6}
    planted = [observed.Series(tuple(observed.Observation(r.id, r.kind, r.sweep, "fit", float(t), "s")
                                     for r, t in zip(s.rows, s.seconds(truth)[0], strict=True)),
                               s.seconds, s.tokens, s.accelerator, s.engine, uses=s.uses) for s in mine]
    found = fit_served("mi300x", planted, PRIORS)
    assert np.exp(found.x[found.names.index("kernel_s@sglang")]) == pytest.approx(9e-6, rel=0.25)
    assert np.median(np.abs(found.residuals)) < 0.3 * np.median(np.abs(found.before))


def test_left_out_rows_are_predicted_worse_than_fitted_ones(ada: Served) -> None:
    found = fleet.Fleet({ADA: ada})
    by_source, by_gpu = (held_out_scores(found, by).scores[0] for by in ("source", "gpu"))
    assert np.median(np.abs(np.expm1(ada.residuals))) <= min(by_source.median_error, by_gpu.median_error)
    assert "left out: one source" in held_out_scores(found).text()
    assert ADA in found.report()
    with pytest.raises(UnknownName, match="source"):
        held_out_scores(found, "sources")


def test_shipped_files_belong_to_the_shipped_observations() -> None:
    for name in names("calibration"):
        own = load_calibration(None, None, name)
        for file, digest in own.hashes.items():
            assert observed.digest(file.removesuffix(".csv")) == digest, f"{name}: perfmodel calibrate --shipped"
        assert not set(own.fitted_on) & set(own.checked_on), name


def test_every_accelerator_of_the_chain_ships() -> None:
    shipped = {name.partition("+")[0] for name in names("calibration")}
    assert set(fleet.CHAIN) <= shipped


@pytest.mark.parametrize(
    ("model", "node", "engine", "tp", "batch", "measured"),
    [("llama-3.1-8b", "8x-h200-sxm", "vllm", 1, [1, 8, 32], [4.95e-3, 5.21e-3, 6.43e-3])],
)
def test_decode_steps_of_a_real_engine_are_met(
    model: str, node: str, engine: str, tp: int, batch: list[int], measured: list[float]
) -> None:
    d = pm.deploy(model, node=node, engine=engine, tp=tp)
    assert pm.step(d, batch=batch, context=1088).seconds == pytest.approx(measured, rel=0.2)
