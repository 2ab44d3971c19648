"""Speculative decoding: the formulas and their limits, what the words mean, what a step and a curve make of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.costs.speculative import chance_of_length, tokens_by_position, tokens_per_step
from perfmodel.deployment import Deployment
from perfmodel.engines.speculation import ASSUMED, METHODS, speculation
from perfmodel.errors import BadInput, QuestionError, UnknownName
from perfmodel.insight.speculation import check

NODE = "8x-rtx-pro-6000-server"
CHANCES, DRAFTS = st.floats(0, 1), st.integers(1, 16)


def deployed(word: str | None, model: str = "kimi-k2.6", **keywords: object) -> Deployment:
    return pm.deploy(model, node=NODE, engine="vllm", tp=8, prompts="identical", speculative=word, **keywords)


# Leviathan et al. 2023, table 1: expected tokens a step is (1 - a^(g+1)) / (1 - a)
@pytest.mark.parametrize(("chance", "drafts", "tokens"), [
    (0.6, 2, (1 - 0.6**3) / 0.4), (0.8, 5, (1 - 0.8**6) / 0.2), (0.9, 10, (1 - 0.9**11) / 0.1)])
def test_the_formula_of_the_paper(chance: float, drafts: int, tokens: float) -> None:
    assert tokens_per_step(chance, drafts) == pytest.approx(tokens, rel=1e-12)


@given(CHANCES, DRAFTS)
def test_tokens_lie_between_one_and_all(chance: float, drafts: int) -> None:
    tokens = tokens_per_step(chance, drafts)
    assert 1 <= tokens <= drafts + 1 + 1e-9
    assert tokens <= tokens_per_step(chance, drafts + 1)
    assert tokens == pytest.approx(tokens_by_position([chance ** (i + 1) for i in range(drafts)]), rel=1e-9)


@given(CHANCES, DRAFTS)
def test_a_length_gives_its_chance_back(chance: float, drafts: int) -> None:
    length = tokens_per_step(chance, drafts)
    assert tokens_per_step(chance_of_length(min(length, drafts + 1), drafts), drafts) == pytest.approx(length, rel=1e-9)


@pytest.mark.parametrize("length", [0.5, 4.5])
def test_a_length_that_no_chance_gives_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match="between 1 and 4"):
        chance_of_length(length, 3)


@pytest.mark.parametrize(("word", "drafts", "tokens", "family"), [
    ("eagle3:3:0.65/0.40/0.25", 3, 2.30, "eagle"), ("mtp:1:0.9", 1, 1.9, "mtp"), ("deepseek_mtp:2:2.5", 2, 2.5, "mtp"),
    ("NEXTN:3:0.0", 3, 1.0, "mtp"), ("ngram:4:1.0", 4, 5.0, "lookup"), ("draft-model:2:0.5:llama-3.2-1b", 2, 1.75,
                                                                          "draft")])
def test_words_and_their_acceptance(word: str, drafts: int, tokens: float, family: str) -> None:
    spec = speculation(word)
    assert spec is not None
    assert (spec.drafts, spec.family, spec.stated) == (drafts, family, True)
    assert spec.tokens == pytest.approx(tokens, rel=1e-9)


@pytest.mark.parametrize("word", [None, "", "off", "none"])
def test_nothing_drafts_nothing(word: str | None) -> None:
    assert speculation(word) is None


@pytest.mark.parametrize(("word", "error"), [
    ("eagel3:3", UnknownName), ("mtp:0", BadInput), ("mtp:999", BadInput), ("mtp:2:9", BadInput),
    ("mtp:2:0.5", None), ("mtp:2:0.4/0.6", BadInput), ("mtp:2:0.5/0.4/0.3", BadInput), ("mtp:2:often", BadInput),
    ("mtp:2:nan", BadInput), ("mtp:2:-1", BadInput), ("mtp:1:0.5:m:x", BadInput), ("yes", UnknownName)])
def test_deploy_refuses_what_is_no_speculation(word: str, error: type[Exception] | None) -> None:
    if error is None:
        deployed(word)
        return
    with pytest.raises(error):
        deployed(word)


@pytest.mark.parametrize(("key", "good", "bad"), [("moe_backend", "marlin", "marlinn"), ("all_reduce", "nccl", "ncl")])
def test_words_of_kernels_that_no_engine_knows_are_refused(key: str, good: str, bad: str) -> None:
    pm.deploy("kimi-k2.6", node=NODE, tp=8, **{key: good})
    with pytest.raises(UnknownName, match=f"nearest: {good}"):
        pm.deploy("kimi-k2.6", node=NODE, tp=8, **{key: bad})


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_is_priced(method: str) -> None:
    cost = pm.step(deployed(f"{method}:2:0.5"), batch=[1, 16], context=500)
    plain = pm.step(deployed(None), batch=[1, 16], context=500)
    assert np.all(np.asarray(cost.seconds) > np.asarray(plain.seconds))
    total = sum(np.asarray(row.seconds) for row in cost.rows)
    assert total == pytest.approx(np.asarray(cost.seconds), rel=1e-9)


def test_a_step_verifies_drafts_as_so_many_tokens() -> None:
    """Experts are read for all tokens: four tokens of one sequence touch what four sequences touch."""
    drafted = {row.name: row for row in pm.step(deployed("ngram:3:0.5"), batch=8, context=500).rows}
    plain = {row.name: row for row in pm.step(deployed(None), batch=32, context=500).rows}
    assert drafted["routed experts"].bytes == pytest.approx(plain["routed experts"].bytes, rel=1e-9)
    one = {row.name: row for row in pm.step(deployed(None), batch=8, context=500).rows}
    assert drafted["decode attention"].bytes == pytest.approx(one["decode attention"].bytes, rel=1e-9)
    assert drafted["decode attention"].flop == pytest.approx(4 * one["decode attention"].flop, rel=1e-9)


@pytest.mark.parametrize("load", [1, 8, 64])
def test_more_acceptance_never_makes_it_slower(load: int) -> None:
    rates = [pm.predict(deployed(f"eagle3:3:{chance}"), concurrency=load).output_tok_s[0][0]
             for chance in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert rates == sorted(rates)


def test_the_gain_shrinks_as_the_batch_grows() -> None:
    """Verification is nearly free where a step waits for weights, and is not where every expert is read anyway."""
    with_drafts, without = (pm.predict(deployed(word), concurrency=[1, 128]).output_tok_s[0]
                            for word in ("eagle3:3:0.65", None))
    gain = with_drafts / without
    assert gain[0] > 1.2
    assert gain[1] < gain[0]


def test_rejected_drafts_cost_time() -> None:
    worse, plain = (pm.predict(deployed(word), concurrency=[1, 64]).output_tok_s[0] for word in ("mtp:3:0.0", None))
    assert np.all(worse < plain)


def test_an_unstated_acceptance_is_assumed_said_and_widens_the_band() -> None:
    unstated, stated = deployed("mtp:3"), deployed(f"mtp:3:{ASSUMED}")
    assert any("accepted with a chance of 0.65" in note for note in unstated.assumptions)
    assert not any("accepted with a chance" in note for note in stated.assumptions)
    a, b = (pm.predict(d, concurrency=[1, 32]).output_tok_s for d in (unstated, stated))
    assert a[0] == pytest.approx(b[0], rel=1e-12)
    assert np.all(a[2] / a[0] > 1.1 * b[2] / b[0])


def test_a_draft_model_takes_its_own_steps() -> None:
    small, large = (pm.step(deployed(f"draft_model:3:0.6:{name}"), batch=1, context=500).seconds
                    for name in ("llama-3.1-8b", "llama-3.1-70b"))
    assert small < large
    with pytest.raises(QuestionError, match="no-such-model"):
        pm.step(deployed("draft_model:3:0.6:no-such-model"), batch=1)


def test_own_layers_of_a_model_draft_and_take_memory() -> None:
    word = "mtp:1:0.85"
    d, plain = (pm.deploy("deepseek-v3.1-nvfp4", node="8x-b200-sxm", tp=8, speculative=w) for w in (word, None))
    rows = {row.name for row in pm.step(d, batch=8).rows}
    assert "draft layer (MTP)" in rows
    assert pm.memory(d).kv_tokens < pm.memory(plain).kv_tokens


def test_the_simulator_sees_the_same_gain() -> None:
    from perfmodel.serving.simulate import simulate

    d, plain = (deployed(word, context=8192) for word in ("eagle3:3:0.7", None))
    tokens = np.full(32, 128)
    fast, slow = (simulate(x, inputs=tokens, outputs=tokens, concurrency=8).output_tok_s for x in (d, plain))
    closed = [pm.predict(x, concurrency=8, input_tokens=128, output_tokens=128).output_tok_s[0][0] for x in (d, plain)]
    assert fast / slow == pytest.approx(closed[0] / closed[1], rel=0.1)


# ---------------------------------------------------------------- measurements

def test_rows_that_state_their_own_acceptance_are_met() -> None:
    found = check()
    own = [row for row in found.rows if row.own and row.sweep.startswith("k26")]
    assert len(own) > 15
    assert np.median([row.error for row in own]) < 0.12
    assert np.mean([row.low <= row.measured <= row.high for row in own]) > 0.65
    assert len(found.text().splitlines()) > 5
    assert max(map(len, found.text().splitlines())) <= 80
    assert sum(found.excluded.values()) > 0


def test_a_prompt_waits_for_whole_steps_however_many_tokens_they_yield() -> None:
    """A drafted step is as long whether its drafts are accepted or not; only 1.5 steps of the TTFT are steps."""
    def asked(spec: str) -> tuple[float, float]:
        d = pm.deploy("llama-3.1-70b", node="8x-h100-sxm", engine="sglang", tp=8, speculative=spec)
        curve = pm.predict(d, concurrency=8, input_tokens=256, output_tokens="uniform:10000:30000", requests=1e9)
        return float(curve.ttft_s[0][0]), float(curve.tpot_s[0][0])

    (none, slow), (all_of_them, fast) = asked("eagle3:3:0.0"), asked("eagle3:3:1.0")
    assert slow == pytest.approx(4 * fast, abs=0, rel=0.05)
    assert none == pytest.approx(all_of_them, abs=0, rel=0.05)
