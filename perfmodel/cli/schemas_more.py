"""The rest of `schemas`: answers about answers, descriptors; and which command prints what."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from perfmodel.catalog import Accelerator, Calibration, ModelArch, Node
from perfmodel.cli import schemas
from perfmodel.cli import schemas_checks as checks
from perfmodel.cli.schemas import Answer, Deployment, Maybe, Rates, Verdict

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
    moved_percent: float


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
    "calibrate": checks.Calibrated | checks.FittedNode | dict[str, checks.Fit],
    "validate": (checks.Validation | checks.SpeedValidation | checks.MemoryValidation | checks.ServingValidation
                 | checks.SpeculationValidation | checks.OrderValidation | checks.OwnValidation),  # fmt: skip
    "explain": list[Explained],
    "whatif": list[Change | RefusedChange],
    "doctor": list[Doctor] | Texts,
    "probe": Probed | Files | Tasks,
    "catalog": Names,
    "catalog show": Accelerator | Node | ModelArch | Calibration | Engine,
    "import": Imported,
    "report": Report,
}
