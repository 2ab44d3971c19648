"""The formula that `explain` prints is the one that predicts, over any deployment: the two cannot drift apart."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from strategies import deployments

import perfmodel as pm
from perfmodel.deployment import Deployment
from perfmodel.errors import Unpriced
from perfmodel.insight.symbolic import prefill_formula, step_formula

ARRIVALS = st.sampled_from(["burst", "staggered", None])
FIND = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking asks SymPy for minutes; the message has the deployment


@settings(max_examples=60, deadline=None, phases=FIND)
@given(deployments(), st.integers(1, 600), st.integers(1, 60_000), ARRIVALS)
def test_a_step_in_symbols_is_the_step(d: Deployment, batch: int, context: int, arrival: str | None) -> None:
    try:
        cost = pm.step(d, batch=batch, context=context, arrival=arrival)
    except Unpriced:
        return
    formula = step_formula(d, batch, context, arrival)
    assert formula.seconds == pytest.approx(float(cost.seconds), abs=0, rel=1e-9)
    rows = {row.name: float(row.seconds) for row in cost.rows}
    for term in formula.terms:
        assert term.seconds == pytest.approx(rows.pop(term.name), abs=1e-14, rel=1e-8), term.name
    assert sum(map(abs, rows.values())) <= 1e-9 * float(cost.seconds), "rows without a term"


@settings(max_examples=40, deadline=None, phases=FIND)
@given(deployments(), st.integers(1, 100_000), st.integers(0, 60_000))
def test_a_prefill_in_symbols_is_the_prefill(d: Deployment, tokens: int, context: int) -> None:
    try:
        cost = pm.prefill(d, tokens=tokens, context=context)
    except Unpriced:
        return
    formula = prefill_formula(d, tokens, context)
    assert formula.seconds == pytest.approx(float(cost.seconds), abs=0, rel=1e-9)


@settings(max_examples=20, deadline=None, phases=FIND)
@given(deployments(), st.integers(1, 600), st.integers(1, 60_000))
def test_slopes_of_the_formula_have_their_sign_and_bound(d: Deployment, batch: int, context: int) -> None:
    """More of a start-up never makes a step faster and is never all of it; more of a rate never makes it slower."""
    try:
        formula = step_formula(d, batch, context)
    except Unpriced:
        return
    slopes = formula.elasticities()
    times = ("t0_", "alpha_")
    rates = ("B_", "P_", "C_")
    seconds = {"kernel_s", "eager_kernel_s", "step_fixed_s", "host_sequence_s", "sync_step_s", "micro_batch_s",
               "pipeline_hop_s"}  # fmt: skip
    up = sum(value for name, value in slopes.items() if name in seconds or name.startswith(times))
    down = sum(value for name, value in slopes.items() if name.startswith(rates))
    assert -1e-6 <= up <= 1 + 1e-6 and -1 - 1e-6 <= down <= 1e-6
