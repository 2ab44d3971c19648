"""What ``--json`` of every command prints, as types: their JSON Schemas are docs/json.md and ``perfmodel schema NAME``.

Numbers are finite or null; a key that is not here does not come. tests/test_json_schemas.py runs every command.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from perfmodel.engines.options import Options as _Options

Maybe = float | None  # a number, or null where it has no finite value
Numbers = float | None | list[Maybe]  # one for a scalar question, a list for several points
Words = str | list[str]


class Answer(BaseModel):
    """Base: every key is known."""

    model_config = ConfigDict(extra="forbid")


def of(kind: type, name: str = "", drop: tuple[str, ...] = (), **more: Any) -> type[BaseModel]:
    """The type of ``asdict`` of a dataclass, so that the two cannot drift apart; ``more`` are keys beside its own."""
    hints = get_type_hints(kind)
    own = {f.name: Maybe if hints[f.name] is float else hints[f.name] for f in fields(kind) if f.name not in drop}
    keys: dict[str, Any] = {key: (value, ...) for key, value in {**own, **more}.items()}
    made: type[BaseModel] = create_model(name or kind.__name__, __base__=Answer, __doc__=kind.__doc__, **keys)
    return made


Options: Any = of(_Options, "Options", drop=("engine", "version"))
Verdict = Literal["fits", "oom_weights", "no_kv", "kv_too_small", "state_slots", "oom_request_table", "oom_graphs",
                  "oom_sampler", "oom_prefill"]  # fmt: skip
Bound = Literal["memory", "compute", "communication", "latency", "pipeline", "host"]


class Deployment(Answer):
    """A model on a node under an engine; ``options`` are the keywords of `pm.deploy` with every default filled in."""

    model: str
    node: str
    engine: str = Field(description="name==version")
    gpus: int
    strategy: str
    command: str = Field(description="launch command")
    options: Options
    calibration: list[str] = Field(description="the files it stands on, the most general first")


# ---------------------------------------------------------------- memory, step, collective


class Rank(Answer):
    """One GPU. Weights, KV pool, runtime and free add up to its memory; ``parts`` to all but the free part."""

    rank: int
    stage: int
    layers: int
    weights_bytes: float
    kv_pool_bytes: float
    runtime_bytes: float
    free_bytes: float
    parts: dict[str, float]


class LogTerm(Answer):
    name: str
    logged: Maybe
    predicted: Maybe
    unit: str


class Log(Answer):
    """What a start-up log states beside the prediction."""

    engine: str | None
    version: str | None
    errors: list[str]
    differs_most: str | None
    terms: list[LogTerm]


class Memory(Answer):
    """``perfmodel memory``."""

    fits: bool
    verdict: Verdict
    reason: str
    binding_rank: int
    ranks: list[Rank]
    kv_tokens: int = Field(description="of one attention group, as the engine logs it")
    kv_tokens_low: int
    kv_tokens_high: int
    kv_tokens_total: int = Field(description="of the whole deployment")
    max_sequences_at_context: int
    hints: list[str]
    warnings: list[str]
    deployment: Deployment
    assumptions: list[str]
    log: Log | None = Field(default=None, description="with --log")


class Operation(Answer):
    """One row of a step; the seconds of all rows add up to those of the step."""

    name: str
    seconds: Numbers
    flop: Numbers
    bytes: Numbers
    message_bytes: Numbers
    kernels: Numbers
    bound_by: Words
    source: str = Field(description="where the formula lives")


class Timed(Answer):
    seconds: Numbers
    seconds_low: Numbers
    seconds_high: Numbers
    bound_by: Words
    rows: list[Operation]
    assumptions: list[str]


class Step(Timed):
    """``perfmodel step``: from one decode step of a sequence to its next."""

    batch: Numbers
    context: Numbers


class Prefill(Timed):
    """``perfmodel prefill``."""

    tokens: Numbers
    context: Numbers


class Algorithm(Answer):
    algorithm: str
    name: str
    seconds: Numbers
    runs: list[bool]


class Collective(Answer):
    """``perfmodel collective``; lists follow ``message_bytes``."""

    op: str
    ranks: int
    message_bytes: Numbers
    seconds: Numbers
    seconds_low: Numbers
    seconds_high: Numbers
    algorithm: Words
    protocol: Words
    busbw_Bps: Numbers
    assumptions: list[str]
    algorithms: list[Algorithm] | None = Field(default=None, description="with --all")


# ---------------------------------------------------------------- serving


class Rates(Answer):
    """One load: TTFT and TPOT of a request, 80 % bands."""

    concurrency: Maybe = Field(default=None, description="of a closed loop")
    request_rate: Maybe = Field(default=None, description="of an open loop [1/s]")
    running: Maybe
    output_tok_s: Maybe
    output_tok_s_low: Maybe
    output_tok_s_high: Maybe
    ttft_ms: Maybe
    ttft_ms_low: Maybe
    ttft_ms_high: Maybe
    tpot_ms: Maybe
    tpot_ms_low: Maybe
    tpot_ms_high: Maybe
    ttft_p95_ms: Maybe = None
    ttft_p99_ms: Maybe = None
    tpot_p95_ms: Maybe = None
    tpot_p99_ms: Maybe = None
    goodput_req_s: Maybe = Field(default=None, description="where limits are given")
    good_share: Maybe = None
    bound_by: Bound
    parts: dict[str, Maybe] = Field(description="seconds of TPOT by what they go to")


class Predict(Answer):
    """``perfmodel predict``."""

    deployment: Deployment
    input_tokens: float
    output_tokens: float
    points: list[Rates]
    capacity_req_s: Maybe = Field(default=None, description="of an open loop")
    warnings: list[str]
    assumptions: list[str]


class Strategy(Answer):
    """One of ``perfmodel compare``."""

    rank: int
    strategy: str
    command: str
    fits: bool
    verdict: Verdict
    kv_tokens: int
    deployment: Deployment
    input_tokens: float
    output_tokens: float
    points: list[Rates]
    capacity_req_s: Maybe = None
    warnings: list[str]
    assumptions: list[str]


class SimulatedTimeline(Answer):
    seconds: list[Maybe]
    running: list[Maybe]
    tok_s: list[Maybe]


class _Simulated(Answer):
    deployment: Deployment
    requests: int
    makespan_s: float
    request_rate: Maybe
    output_tok_s: Maybe
    input_tok_s: Maybe
    preemptions: int
    prefix_hit_rate: Maybe
    goodput_req_s: Maybe = None
    good_share: Maybe = None
    timeline: SimulatedTimeline
    warnings: list[str]
    assumptions: list[str]


_COLUMNS = [f"{name}_{column}_ms" for name in ("ttft", "tpot", "e2e")
            for column in ("mean", "p50", "p90", "p95", "p99")]  # fmt: skip
_PERCENTILES: dict[str, Any] = {name: (Maybe, ...) for name in _COLUMNS}
Simulate: Any = create_model("Simulate", __base__=_Simulated, __doc__="``perfmodel simulate``.", **_PERCENTILES)


# ---------------------------------------------------------------- plan and job


class Timeline(Answer):
    seconds: list[float]
    running: list[float]
    output_tok_s: list[float]


class Effect(Answer):
    """What one factor does to the wall time."""

    factor: str
    move: str
    makespan_s: Maybe
    change_percent: Maybe
    reason: str


class JobPart(Answer):
    """The size of a job without its deployment, as a plan holds it."""

    samples: int
    nodes: int
    concurrency: float
    makespan_s: float
    makespan_s_low: float
    makespan_s_high: float
    output_tokens: float
    output_tok_s: float
    gpu_hours: float
    energy_kwh: float
    energy_kwh_low: float
    energy_kwh_high: float
    cost: Maybe
    failures: float
    method: str
    parts: dict[Literal["load_s", "warmup_s", "ramp_s", "steady_s", "tail_s", "restart_s"], float]
    timeline: Timeline
    assumptions: list[str]
    sensitivity: list[Effect] | None = Field(default=None, description="with --sensitivity")


class Job(JobPart):
    """``perfmodel job``; with a deadline also what sized it, of several strategies also the rank."""

    deployment: Deployment
    rank: int | None = None
    deadline_s: Maybe = None
    nodes_point: int | None = None


class Forecast(Answer):
    """``perfmodel job --progress``."""

    elapsed_s: float
    samples_done: float
    output_tokens: float
    pace: float
    tok_s: Maybe
    tok_s_low: Maybe
    tok_s_high: Maybe
    remaining_s: float
    remaining_s_low: float
    remaining_s_high: float
    makespan_s: float
    makespan_s_low: float
    makespan_s_high: float
    gpu_hours: float
    energy_kwh: float
    cost: Maybe
    notes: list[str]
    before: Job


class Pool(Answer):
    copies: int
    role: str
    command: str


class Front(Answer):
    """A point of the Pareto front."""

    tok_s_per_user: float
    tok_s_per_gpu: float
    strategy: str
    node: str
    engine: str
    model: str
    concurrency: float


class Search(Answer):
    deployments: int
    points: int
    refused: dict[str, int]
    pareto: list[Front]
    fleet: list[dict[str, Any]]


class Planned(Deployment, Rates):
    """One of ``perfmodel plan``; the first holds what concerns the whole search."""

    rank: int
    target: str
    ahead_of_next: bool | None
    disaggregation: str | None
    commands: list[Pool]
    measure_command: str
    kv_tokens: int
    output_tok_s_per_gpu: float
    price_per_gpu_hour: Maybe
    cost_per_mtok: Maybe
    job: JobPart | None
    search: Search | None
    assumptions: list[str]


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what a command prints."""
    from pydantic import TypeAdapter

    from perfmodel.cli.schemas_more import PRINTED
    from perfmodel.errors import UnknownName

    if name not in PRINTED:
        raise UnknownName("command that prints JSON", name, PRINTED)
    made = TypeAdapter(PRINTED[name]).json_schema(mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **made, "title": f"perfmodel {name} --json"}
