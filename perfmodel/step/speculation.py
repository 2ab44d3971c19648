"""Speculative decoding on a decode step: more tokens to verify, and the rows of whatever makes the drafts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.costs.gemm import gemm_activation_bytes, gemm_flop
from perfmodel.deployment import Deployment, deploy
from perfmodel.engines.options import Options
from perfmodel.engines.speculation import ASSUMED_SD, Speculation, speculation
from perfmodel.placement import Placement, place
from perfmodel.step.attention_rows import attention_rows
from perfmodel.step.communication import collective_row
from perfmodel.step.factors import Factors
from perfmodel.step.operations import ACTIVATION, Bench, Load, Row, mapped, price

if TYPE_CHECKING:
    from perfmodel.step.forward import Forward, Stages
    from perfmodel.step.slots import Occupancy

# What no descriptor says of a head that drafts; assumed
HEAD_VOCAB = 32_000     # EAGLE-3 heads predict over a reduced vocabulary
HEAD_MLP = 3.0          # width of its MLP over the model's hidden width, where the model has no dense layer
BLOCK_LAYERS = 5        # of a head that drafts a block in one pass
DRAFT_SHARE = 0.05      # of the target's own step, for a draft model that nobody names
CHECK_KERNELS = 10.0    # to compare drafts with what was sampled, and to put the inputs of the next pass together


def queries(options: Options) -> int:
    """Tokens of a sequence that one step puts through the model. [1]"""
    spec = speculation(options.speculative)
    return 1 + spec.drafts if spec else 1


def gained(options: Options) -> float:
    """Tokens that a sequence gains in one step. [1]"""
    spec = speculation(options.speculative)
    return float(spec.tokens) if spec else 1.0


def per_token(forward: Forward, deployment: Deployment) -> Forward:
    """A decode step as the time of one output token: what a step yields divides all of it."""
    spec = speculation(deployment.options.speculative)
    if spec is None:
        return forward
    share = 1.0 / spec.tokens
    return replace(forward, seconds=share * forward.seconds, device_s=share * forward.device_s,
                   host_s=share * forward.host_s,
                   listed=lambda: tuple(mapped(row, lambda value: share * value) for row in forward.rows))


def widened(factors: Factors, deployment: Deployment) -> Factors:
    """Factors whose residual also holds an acceptance that is only assumed."""
    spec = speculation(deployment.options.speculative)
    if spec is None or spec.stated:
        return factors
    return replace(factors, residual_sd=float(np.hypot(factors.residual_sd, ASSUMED_SD)))


def with_drafts(staged: Stages, placement: Placement, bench: Bench, load: Load, batch: Any, slots: Occupancy) -> Stages:
    """Stages of a step whose last stage also drafts. ``load`` is one token a sequence."""
    spec = speculation(bench.options.speculative)
    if spec is None:
        return staged
    rows = [*_draft(spec, staged, placement, bench, load, batch, slots),
            price(bench, "verification of drafts", 0.0, load.sampled * (1 + spec.drafts) * bench.model.vocab * 4.0,
                  CHECK_KERNELS)]
    return replace(staged, edges=[*staged.edges[:-1], [*staged.edges[-1], *rows]])


def _draft(spec: Speculation, staged: Stages, placement: Placement, bench: Bench, load: Load, batch: Any,
           slots: Occupancy) -> list[Row]:
    if spec.family == "lookup":
        return []
    if spec.family == "draft":
        return _draft_model(spec, staged, placement, bench, load, batch, slots)
    if spec.family == "heads":
        return _times([_gemm(bench, load.tokens, bench.model.hidden, bench.model.hidden),
                       _gemm(bench, load.tokens, bench.model.vocab, bench.model.hidden)], spec.drafts, "draft heads")
    if spec.family == "block":
        wide = replace(load, tokens=load.tokens * spec.drafts, all_tokens=load.all_tokens * spec.drafts,
                       queries=float(spec.drafts))
        layers = BLOCK_LAYERS * [row for row in _head_layer(placement, bench, wide)]
        return _times([*layers, _gemm(bench, wide.tokens, bench.model.vocab, bench.model.hidden)], 1, "draft block")
    if spec.family == "mtp" and bench.model.mtp is not None:
        return _times(_own_layer(placement, bench, load), spec.drafts, "draft layer (MTP)")
    return _times([*_head_layer(placement, bench, load), _gemm(bench, load.tokens, 1, 2 * bench.model.hidden),
                   _gemm(bench, load.tokens, min(HEAD_VOCAB, bench.model.vocab), bench.model.hidden)],
                  spec.drafts, "draft head")


def _own_layer(placement: Placement, bench: Bench, load: Load) -> list[Row]:
    """The model's own layer for multi-token prediction: fusion of two inputs, the layer, the shared head."""
    from perfmodel.step.forward import layer_rows

    mtp = bench.model.mtp
    assert mtp is not None
    same = [i for i, kind in enumerate(placement.kinds) if kind == (mtp.attention, mtp.mlp)]
    alike = same or [i for i, kind in enumerate(placement.kinds) if kind[0] == mtp.attention] or [-1]
    kind = alike[-1] % len(placement.kinds)
    return [_gemm(bench, load.tokens, bench.model.hidden, 2 * bench.model.hidden, split=False),
            *layer_rows(placement, bench, kind, load),
            _gemm(bench, load.sampled, bench.model.vocab, bench.model.hidden)]


def _head_layer(placement: Placement, bench: Bench, load: Load) -> list[Row]:
    """One layer of a draft head: the model's own attention, and a dense MLP in BF16 (assumed)."""
    model, facts = bench.model, placement.deployment.facts
    kind = next((kind for kind, _ in placement.kinds if kind in model.attention), None)
    width = facts.dense_intermediate or HEAD_MLP * model.hidden
    d = placement.deployment
    calls = d.engine.layer_collectives(d.options, facts, load.phase)
    sums = [call for call in calls if call.layer == calls[0].layer and call.op == "all_reduce"]
    return [*(attention_rows(bench, kind, load) if kind else []),
            _gemm(bench, load.tokens, 2 * width, model.hidden), _gemm(bench, load.tokens, model.hidden, width),
            *(collective_row(call, load, d, bench) for call in sums)]


def _draft_model(spec: Speculation, staged: Stages, placement: Placement, bench: Bench, load: Load, batch: Any,
                 slots: Occupancy) -> list[Row]:
    """Decode steps of a model of its own on the same ranks, one a draft."""
    from perfmodel.step import forward

    if spec.model is None:
        target = sum(staged.sums())
        return [Row("draft model", spec.drafts * DRAFT_SHARE * target, memory_s=spec.drafts * DRAFT_SHARE * target)]
    draft = place(draft_deployment(placement.deployment, spec.model))
    found = forward.decode(draft, batch, load.context - 1.0, bench.factors, slots)
    seconds = np.asarray(found.seconds)[:, None] if np.ndim(found.seconds) else found.seconds
    return [Row("draft model", spec.drafts * seconds, memory_s=spec.drafts * seconds)]


@lru_cache(maxsize=16)
def draft_deployment(deployment: Deployment, model: str) -> Deployment:
    """The draft model on the ranks of the target's attention, with the target's calibration."""
    o = deployment.options
    made = deploy(model, node=deployment.node, engine=f"{o.engine}=={o.version}", tp=o.attention_tp,
                  kv_dtype=o.kv_dtype, cuda_graphs=o.cuda_graphs)
    return replace(made, calibration=deployment.calibration.model_copy(update={"difference": None}))


def _gemm(bench: Bench, m: Any, n: float, k: float, split: bool = True) -> Row:
    """A dense BF16 product of a draft head, its columns over the ranks of the attention."""
    n = n / bench.options.attention_tp if split else n
    traffic = n * k * ACTIVATION + gemm_activation_bytes(m, n, k, ACTIVATION)
    return price(bench, "draft", gemm_flop(m, n, k), traffic, 1)


def _times(rows: list[Row], passes: int, name: str) -> list[Row]:
    """Rows of one pass as one row of all passes."""
    names = ("seconds", "flop", "bytes", "kernels", "compute_s", "memory_s", "latency_s")
    return [Row(name, **{key: passes * sum(getattr(row, key) for row in rows) for key in names},
                message_bytes=max((row.message_bytes for row in rows), key=np.max))]
