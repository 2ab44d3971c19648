"""Whether an own benchmark can be what it says: how far it lies from the model, and which usual mistake does that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from perfmodel.calibration.measured import Measurement
    from perfmodel.deployment import Deployment

# Times the prediction, at the median row, beyond which a benchmark is not fitted in silence: beyond what
# held-out sources are off by (docs/accuracy.md). Kind: assumed.
FAR = 3.0
_LIKE = math.log(1.6)   # a mistake explains the rows where it leaves less than this at the median. Kind: assumed


def off_by(measured: np.ndarray, before: np.ndarray) -> float:
    """Measured over predicted tokens per second, at the median row."""
    return float(np.exp(np.median(np.log(measured / before))))


def doubts(measured: np.ndarray, before: np.ndarray, rows: Sequence[Measurement], deployment: Deployment) -> list[str]:
    """What is said of a benchmark that lies more than ``FAR`` from the model: by how much, and what may have happened.

    Nothing where the model and the benchmark agree that far.
    """
    logs = np.log(measured / before)
    ratio = off_by(measured, before)
    if 1 / FAR <= ratio <= FAR:
        return []
    says = f"{ratio:,.3g} times" if ratio > 1 else f"1/{1 / ratio:,.3g} of"
    lines = [f"measured tokens/s are {says} the predicted ones at the median row: no calibration explains that"]
    found = sorted((float(np.median(np.abs(logs - step))), words) for words, step in _mistakes(rows, deployment))
    near = [words for left, words in found if left < _LIKE]
    return [*lines, *(f"that is about what {words} would give" for words in near[:2])] if near else [
        *lines, "check units, tokens counted, model, node, strategy and engine of these rows"]


def _mistakes(rows: Sequence[Measurement], d: Deployment) -> list[tuple[str, np.ndarray]]:
    """Usual mistakes, and the logarithm of the factor that each puts on the tokens per second of every row."""
    one = np.zeros(len(rows))
    loads = np.log([max(row.load, 1.0) for row in rows])
    answers = np.log([max(row.output_tokens, 1.0) for row in rows])
    all_tokens = np.log([1.0 + row.input_tokens / max(row.output_tokens, 1.0) for row in rows])
    found = [("seconds written as milliseconds", one + math.log(1e3)),
             ("milliseconds written as seconds", one - math.log(1e3)),
             ("tokens a minute in place of tokens/s", one + math.log(60)),
             ("tokens/s of one request in place of all that are in flight", -loads),
             ("tokens/s of all requests in place of one", loads),
             ("requests/s in place of tokens/s", -answers),
             ("input tokens counted with the output tokens", all_tokens)]
    if d.gpus > 1:
        found += [(f"tokens/s of one GPU in place of all {d.gpus}", one - math.log(d.gpus)),
                  (f"tokens/s of {d.gpus} times as many GPUs", one + math.log(d.gpus))]
    return [(words, step) for words, step in found if np.median(np.abs(step)) > _LIKE]
