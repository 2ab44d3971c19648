"""The types of `schemas` for calibration and validation."""

from __future__ import annotations

from typing import Any

from perfmodel.calibration import own_check
from perfmodel.cli.schemas import Answer, Deployment, Maybe, of
from perfmodel.insight import crossovers, memory_logs, order, serving, speculation, validate


class Parameter(Answer):
    name: str
    value: Maybe
    sd: Maybe
    prior_value: Maybe
    prior_sd: Maybe
    at_bound: bool
    identified: bool


class Fit(Answer):
    """A fit; of ``perfmodel calibrate --shipped`` one by stage."""

    parameters: list[Parameter]
    correlations: dict[str, Maybe]
    n: int
    residual_sd: Maybe
    median_error_before: Maybe
    median_error_after: Maybe
    fitted_on: list[str]
    warnings: list[str]


class Weights(Answer):
    batches: list[float]
    weights: list[float]
    length: float


class NextMeasurement(Answer):
    concurrency: float
    input_tokens: float
    output_tokens: float
    strategy: str
    cuda_graphs: bool
    half_width_now: Maybe
    half_width_then: Maybe


class FittedRow(Answer):
    kind: str
    load: float
    input_tokens: float
    output_tokens: float
    context: float
    source: str
    measured_tok_s: float
    before_tok_s: float
    after_tok_s: float


class Calibrated(Fit):
    """``perfmodel calibrate FILE...``."""

    deployment: Deployment
    assumptions: list[str]
    difference: Weights
    band_residual_sd: Maybe
    hashes: dict[str, str]
    doubts: list[str]
    next_measurements: list[NextMeasurement]
    rows: list[FittedRow]


class FittedNode(Answer):
    """``perfmodel calibrate`` of nccl-tests output; ``figures`` as a node file holds them."""

    node: str
    median_error: Maybe
    error_p90: Maybe
    tables: dict[str, Maybe]
    figures: dict[str, Any]


Row: Any = of(validate.Compared, "ValidatedRow", ratio=Maybe, in_band=bool)
Score: Any = of(validate.Score)
Crossover: Any = of(crossovers.Crossover)


class Validation(Answer):
    """``perfmodel validate``: predicted beside measured, fitted and checked rows apart."""

    level: float
    calibrations: list[str]
    scores: list[Score]
    sweeps: list[Score]
    excluded: dict[str, int]
    rows: list[Row]
    crossovers: list[Crossover]


class SpeedValidation(Answer):
    """``perfmodel validate speed``."""

    level: float
    scores: dict[str, list[Score]]
    sweeps: dict[str, Score]
    rows: dict[str, list[Row]]


MemoryRow: Any = of(memory_logs.Compared, "MemoryRow", hit=bool)
MemoryShare: Any = of(memory_logs.Share, "MemoryShare")
ReplayedRow: Any = of(serving.Replayed, "ReplayedRow", ratio=Maybe)
ReplayedGroup: Any = of(serving.Group, "ReplayedGroup")
SpeculationRow: Any = of(speculation.Compared, "SpeculationRow")
Pair: Any = of(order.Pair, right=bool)
OwnSweep: Any = of(own_check.Sweep, "OwnSweep")
OwnGroup: Any = of(own_check.Group, "OwnGroup")


class MemoryValidation(Answer):
    """``perfmodel validate memory``."""

    shares: list[MemoryShare]
    excluded: dict[str, int]
    rows: list[MemoryRow]


class ServingValidation(Answer):
    """``perfmodel validate serving``."""

    scores: list[ReplayedGroup]
    excluded: dict[str, int]
    rows: list[ReplayedRow]


class SpeculationValidation(Answer):
    """``perfmodel validate speculation``."""

    rows: list[SpeculationRow]
    excluded: dict[str, int]


class OrderScore(Answer):
    differs: str
    pairs: int
    right: int
    share: Maybe
    always_tp: Maybe


class OrderValidation(Answer):
    """``perfmodel validate order``."""

    least_ratio: float
    scores: list[OrderScore]
    pairs: list[Pair]


class OwnValidation(Answer):
    """``perfmodel validate own``."""

    target: float
    groups: list[OwnGroup]
    sweeps: list[OwnSweep]
