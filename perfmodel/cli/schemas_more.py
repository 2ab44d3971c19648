"""The rest of `schemas`: answers about answers, calibration, validation, descriptors; and which command prints what."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from perfmodel.calibration import own_check
from perfmodel.catalog import Accelerator, Calibration, ModelArch, Node
from perfmodel.cli import schemas
from perfmodel.cli.schemas import Answer, Deployment, Maybe, Rates, Verdict, of
from perfmodel.insight import crossovers, memory_logs, order, serving, speculation, validate

# ---------------------------------------------------------------- explain, whatif, doctor


class Part(Answer):
    name: str
    formula: str
    value: Maybe
    share: Maybe


class Elasticity(Answer):
    name: str
    kind: str
    elasticity: Maybe
    plus_10_percent: Maybe


class BreakEven(Answer):
    axis: str
    low: float
    high: float
    crossings: list[float]
    ahead_at_low: str
    ahead_at_high: str
    ratio_min: Maybe
    ratio_max: Maybe
    proven: bool
    proof: str


class Explained(Deployment):
    """One of ``perfmodel explain``, SI units; ``values`` are the symbols of ``formula`` and of the parts."""

    figure: str
    unit: str
    concurrency: float
    input_tokens: float
    output_tokens: float
    arrival: str | None = None
    value: Maybe
    value_low: Maybe
    value_high: Maybe
    formula: str
    values: dict[str, Maybe]
    derivatives: dict[str, Maybe]
    limits: dict[str, Maybe]
    parts: list[Part]
    elasticities: list[Elasticity]
    break_even: BreakEven | None
    against: Deployment | None
    assumptions: list[str]


class ChangedRates(Answer):
    concurrency: float
    output_tok_s: Maybe
    output_tok_s_low: Maybe
    output_tok_s_high: Maybe
    output_tok_s_now: Maybe
    gain_tok_s: Maybe
    gain_percent: Maybe
    ttft_ms: Maybe
    tpot_ms: Maybe


class _Change(Answer):
    rank: int = Field(description="0 is the launch as it is")
    change: str | None
    way: str
    fits: bool | None
    verdict: Verdict | None
    kv_tokens_total: int | None
    load_s: Maybe
    load_s_high: Maybe
    points: list[ChangedRates]
    price: Maybe
    gain_tok_s_per_1000: Maybe
    other_ways: list[str]
    refused: str = Field(description="why there is no answer, or empty")
    assumptions: list[str]


class Change(Deployment, _Change):
    """One of ``perfmodel whatif``."""


class RefusedChange(_Change):
    """One that has no answer."""


class FindingRates(Answer):
    concurrency: float
    output_tok_s: Maybe
    output_tok_s_now: Maybe


class Finding(Answer):
    rank: int
    name: str
    what: str
    kind: str
    flag: str
    changes: dict[str, Any]
    source: str
    at_concurrency: float
    cost_tok_s: Maybe
    cost_percent: Maybe
    effect_tok_s: Maybe
    effect_percent: Maybe
    chance: Maybe
    effect_kv_tokens: int
    cost_kv_tokens: int
    points: list[FindingRates]
    kv_tokens: int
    kv_tokens_now: int
    command: str
    notes: list[str]


class Explanation(Answer):
    name: str
    factor: Maybe
    deviations: Maybe
    error_before: Maybe
    error_after: Maybe


class Difference(Answer):
    """A figure of a run beside the predicted one."""

    what: str
    measured: Maybe
    predicted: Maybe
    unit: str
    ratio: Maybe
    source: str
    explanation: str
    alternatives: list[Explanation]


class Doctor(Deployment):
    """One of ``perfmodel doctor``."""

    launch: str
    where: str
    unknown_flags: list[str]
    flag_warnings: list[str]
    not_modelled: list[str]
    fits: bool
    verdict: Verdict
    kv_tokens: int
    kv_tokens_total: int
    points: list[Rates]
    findings: list[Finding]
    not_asked: list[str]
    differences: list[Difference]
    warnings: list[str]
    assumptions: list[str]


class NotUnderstood(Answer):
    text: str
    unknown: list[str]


class Refusal(Answer):
    text: str
    why: str


class Texts(Answer):
    """``perfmodel doctor --texts``; a count for each engine that was seen."""

    texts: int
    parse: int
    not_a_command: int
    refused: int
    vllm: int | None = None
    sglang: int | None = None
    tensorrt_llm: int | None = Field(default=None, alias="tensorrt-llm")
    not_understood: list[NotUnderstood]
    not_commands: list[str]
    refusals: list[Refusal]
    flag_warnings: dict[str, int]


# ---------------------------------------------------------------- calibrate, validate


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


# ---------------------------------------------------------------- catalog, import, probe, report


class Names(Answer):
    """``perfmodel catalog``."""

    models: list[str] | None = None
    nodes: list[str] | None = None
    accelerators: list[str] | None = None
    engines: list[str] | None = None
    calibrations: list[str] | None = None


class Engine(Answer):
    """``perfmodel catalog show`` of an engine."""

    name: str
    versions: list[str]
    newest: str


class Imported(Answer):
    """``perfmodel import``; ``model`` is the descriptor as its file holds it."""

    name: str
    architecture: str
    model_type: str
    layers: int
    parameters: int
    parameters_vision: int
    parameters_mtp: int
    bytes: float
    bytes_by_class: dict[str, float]
    disagreements: list[Any]
    notes: list[str]
    model: dict[str, Any]


class Failed(Answer):
    task: str
    why: str


class Probed(Answer):
    """``perfmodel probe``."""

    node: str
    accelerator: str
    measured: int
    skipped: int
    missing: int
    failed: list[Failed]
    files: list[str]
    figures: dict[str, Maybe]
    assumptions: list[str]


class Files(Answer):
    """``perfmodel probe`` of a file."""

    files: list[str]


class Tasks(Answer):
    """``perfmodel probe --dry-run``."""

    tasks: list[dict[str, Any]]


class Measured(Answer):
    concurrency: float
    output_tok_s: float


class Other(schemas.Predict):
    fits: bool


class Report(Answer):
    """``perfmodel report``."""

    perfmodel: str = Field(description="version")
    command: str
    memory: schemas.Memory
    predict: schemas.Predict
    step: schemas.Step
    others: list[Other]
    whatif: list[Change | RefusedChange] | None
    explain: list[Explained] | None
    job: schemas.Job | None
    measured: list[Measured]


PRINTED: dict[str, Any] = {
    "memory": schemas.Memory,
    "predict": schemas.Predict,
    "simulate": schemas.Simulate,
    "compare": list[schemas.Strategy],
    "step": schemas.Step,
    "prefill": schemas.Prefill,
    "collective": schemas.Collective,
    "plan": list[schemas.Planned],
    "job": schemas.Job | schemas.Forecast | list[schemas.Job],
    "calibrate": Calibrated | FittedNode | dict[str, Fit],
    "validate": (Validation | SpeedValidation | MemoryValidation | ServingValidation | SpeculationValidation
                 | OrderValidation | OwnValidation),  # fmt: skip
    "explain": list[Explained],
    "whatif": list[Change | RefusedChange],
    "doctor": list[Doctor] | Texts,
    "probe": Probed | Files | Tasks,
    "catalog": Names,
    "catalog show": Accelerator | Node | ModelArch | Calibration | Engine,
    "import": Imported,
    "report": Report,
}
