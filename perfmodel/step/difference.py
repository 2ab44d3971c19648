"""The smooth difference between an own benchmark and the model, on top of a decode step: a row of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.costs.difference import smooth_difference
from perfmodel.deployment import Deployment, strategy_name
from perfmodel.step.operations import Row

if TYPE_CHECKING:
    from perfmodel.step.forward import Forward

ROW, LEARNT = "learnt difference", "learnt"
FREE = "own_difference"     # a calibration that is being fitted moves the curve by this


def applies(deployment: Deployment) -> bool:
    """Whether the calibration has a curve for this model and strategy."""
    found = deployment.calibration.difference
    return (found is not None and found.model == deployment.model.name
            and found.strategy == strategy_name(deployment.options))


def beside(forward: Forward, deployment: Deployment, batch: Any, factors: dict[str, Any]) -> Forward:
    """A decode step with the difference that its calibration holds, or that a fit tries."""
    if FREE in factors:
        log = factors[FREE]
        log = log[:, 0] if np.ndim(log) > 1 else log        # the axis of slots
    elif applies(deployment):
        found = deployment.calibration.difference
        assert found is not None
        log = smooth_difference(np.log(np.asarray(batch, float)), np.log(found.batches), found.weights, found.length)
    else:
        return forward
    more = forward.seconds * np.expm1(log)
    return replace(forward, seconds=forward.seconds + more,
                   listed=lambda: (*forward.rows, Row(ROW, more, bound=LEARNT)))
