"""model x node x strategy x engine -> Deployment, or a refusal that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

from perfmodel import catalog, engines
from perfmodel.catalog import Accelerator, Calibration, Format, ModelArch, Node
from perfmodel.catalog.cluster import machine_size
from perfmodel.deployment.facts import facts_of
from perfmodel.deployment.quantization import storage_formats
from perfmodel.engines.backends import check_backends
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.speculation import ASSUMED, speculation
from perfmodel.errors import BadInput, IllegalDeployment, UnknownName, is_number, shown, whole, word


@dataclass(frozen=True, eq=False)
class Deployment:
    """One model on one node under one engine, with every option filled in and every default listed."""

    model: ModelArch
    node: Node
    accelerator: Accelerator
    engine: ModuleType
    options: Options
    requested: Options
    facts: Facts
    formats: dict[str, tuple[str, Format]]
    calibration: Calibration
    assumptions: tuple[str, ...]
    given: tuple[str, ...] = ()  # the assumptions that do not depend on the options

    @property
    def gpus(self) -> int:
        """GPUs used."""
        return self.options.dp * self.options.world

    @property
    def name(self) -> str:
        """Short label of the strategy, such as ``TP8+EP8`` or ``TP2xPP4``."""
        return strategy_name(self.options)

    def __getstate__(self) -> dict[str, Any]:
        """For other processes: a module does not pickle, its name does."""
        return {**self.__dict__, "engine": self.options.engine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, engine=engines.ENGINES[state["engine"]])

    def command(self, worker: bool = False) -> str:
        """The launch command of this engine and version; over several machines that of the first, or of a worker."""
        model_id = self.model.aliases[0] if self.model.aliases else self.model.name
        own = all(name == self.model.storage.get(role) for role, (name, _) in self.formats.items())
        asked = replace(self.requested, quantization=None) if own else self.requested
        storage = self.model.storage
        wide = self.model.formats[storage.get("experts") or storage.get("dense") or storage["default"]].bits >= 16
        return str(self.engine.launch_command(asked, model_id, moe=self.facts.experts > 0, online=wide,
                                              machine_gpus=machine_size(self.node), worker=worker))

    def launches(self) -> tuple[tuple[int, str, str], ...]:
        """All that is to be started: how many times, where (empty: anywhere), and the command."""
        from perfmodel.deployment.launches import launches

        return launches(self)

    def to_dict(self) -> dict[str, Any]:
        """The deployment in words and numbers."""
        o = self.options
        return {
            "model": self.model.name,
            "node": self.node.name,
            "engine": f"{o.engine}=={o.version}",
            "gpus": self.gpus,
            "strategy": self.name,
            "command": self.command(),
            "options": {f.name: _plain(getattr(o, f.name)) for f in fields(o) if f.name not in ("engine", "version")},
            "calibration": list(self.calibration.used),
        }

    @staticmethod
    def from_dict(said: Mapping[str, Any], **files: Any) -> Deployment:
        """The deployment that `to_dict` described, see `perfmodel.deployment.saved`."""
        from perfmodel.deployment.saved import from_dict

        return from_dict(said, **files)

    def __repr__(self) -> str:
        o = self.options
        return f"<Deployment {self.model.name} {self.name} on {self.gpus} of {self.node.name}, {o.engine}=={o.version}>"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def strategy_name(options: Options) -> str:
    """Label of a strategy.

    >>> strategy_name(Options(tp=8, ep=4)), strategy_name(Options(tp=2, pp=4))
    ('TP8+EP4', 'TP2xPP4')
    >>> strategy_name(Options(tp=8, ep=8, dp_attention=8)), strategy_name(Options(pp=8))
    ('DPA8+EP8', 'PP8')
    """
    o = options
    attention = f"DPA{o.dp_attention}" + (f"xTP{o.attention_tp}" if o.attention_tp > 1 else "")
    parts = [attention if o.dp_attention > 1 else f"TP{o.tp}"] if o.tp > 1 else []
    parts += [f"PP{o.pp}"] if o.pp > 1 else []
    label = "x".join(parts) or "TP1"
    label += f"+EP{o.ep}" if o.ep > 1 else ""
    label += f"+DCP{o.dcp}" if o.dcp > 1 else ""
    return label + (f" x{o.dp}" if o.dp > 1 else "")


KEYWORDS = tuple(f.name for f in fields(Options) if f.name not in ("engine", "version"))
_COUNTS = (
    "tp",
    "pp",
    "dp",
    "ep",
    "dp_attention",
    "dcp",
    "context",
    "max_sequences",
    "prefill_chunk",
    "page_size",
    "max_graph_batch",
    "max_micro_batch",
    "receive_interval",
)
_WORDS = (
    "quantization",
    "kv_dtype",
    "attention_backend",
    "moe_backend",
    "all_reduce",
    "nccl",
    "speculative",
    "prompts",
)
MOST_GRAPH_BATCH = 2**17  # engines list every size up to it


def deploy(
    model: str | ModelArch, *, node: str | Node, engine: str = "vllm", calibration: str | None = None, **keywords: Any
) -> Deployment:
    """Put a model on a node under an engine.

    ``keywords`` are those of the public contract (tp, pp, ep, dp_attention, kv_dtype, cuda_graphs, ...); every one
    left out takes the engine's own default and is listed in ``assumptions``.

    Raises `UnknownName`, `BadInput` or `IllegalDeployment`; what merely does not fit still deploys.
    """
    values = _values(keywords)
    arch = model if isinstance(model, ModelArch) else catalog.load_model(model)
    machine = node if isinstance(node, Node) else catalog.load_node(node)
    accelerator = catalog.load_accelerator(machine.accelerator)
    module, version, notes = engines.get(engine)
    engine_name = next(name for name, known in engines.ENGINES.items() if known is module)
    formats, format_notes = storage_formats(arch, values.get("quantization"))
    facts = facts_of(arch, machine, accelerator, formats)
    requested = Options(engine=engine_name, version=version, **values)
    factors = load_calibration(accelerator.name, engine_name, _path_text(calibration))
    given = (*machine.assumptions, *notes, *format_notes)
    bare = Deployment(arch, machine, accelerator, module, requested, requested, facts, formats, factors, (), given)
    return _settled(bare, requested)


def varied(d: Deployment, **keywords: Any) -> Deployment:
    """The same model, weights, node, engine and calibration under these keywords, others at their defaults.

    As `deploy`, but no file is looked up: for searches.
    """
    same = {"quantization": d.requested.quantization}
    requested = Options(engine=d.options.engine, version=d.options.version, **{**same, **_values(keywords)})
    return _settled(d, requested)


def _settled(d: Deployment, requested: Options) -> Deployment:
    """The engine's checks and defaults for what is requested."""
    if d.node.count < requested.dp * requested.world:
        raise IllegalDeployment(
            f"dp {requested.dp} x pp {requested.pp} x tp {requested.tp} needs {requested.dp * requested.world} GPUs; "
            f"{d.node.name} has {d.node.count}"
        )
    check_backends(requested)
    d.engine.check(requested, d.facts)
    options, defaults = d.engine.resolve(requested, d.facts)
    idle = d.node.count - requested.dp * requested.world
    assumptions = (
        *d.given,
        *((f"{idle} of {d.node.count} GPUs idle",) if idle else ()),
        *defaults,
        *_late_notes(requested, options, d.facts, d.node),
        f"calibration: {' under '.join(reversed(d.calibration.used))}",
        *_patch_notes(requested),
        *_draft_notes(d, options),
        *_difference_notes(d, options),
    )
    return replace(d, options=options, requested=requested, assumptions=assumptions)


def _values(keywords: dict[str, Any]) -> dict[str, Any]:
    unknown = [key for key in keywords if key not in KEYWORDS]
    if unknown:
        raise UnknownName("deploy keyword", unknown[0], (*KEYWORDS, "model", "node", "engine", "calibration"))
    return {key: checked(key, value) for key, value in keywords.items() if value is not None}


def _path_text(calibration: Any) -> str | None:
    return None if calibration is None else catalog.name_of("calibration", calibration)


@lru_cache(maxsize=64)
def load_calibration(accelerator: str, engine: str, name: str | None) -> Calibration:
    """Nearest shipped calibration, a named one on top; read once."""
    return catalog.load_calibration(accelerator, engine, name)


def _late_notes(requested: Options, options: Options, facts: Facts, node: Node) -> tuple[str, ...]:
    """Defaults that no rule of an engine fills in: what is decided at start, what the node file says."""
    notes = []
    if options.max_sequences is None:
        notes.append("max_sequences: the engine derives it from the KV pool at start")
    if options.max_micro_batch is None:
        notes.append("max_micro_batch: max_running_requests // pp, known once the KV pool is")
    if requested.nccl is None:
        variant = node.collectives.default if node.collectives else "NCCL's own tuning constants"
        notes.append(f"nccl: {variant} (default of the node file)")
    if requested.context and requested.context > facts.max_context:
        notes.append(
            f"context {requested.context} is beyond the model's own {facts.max_context}: needs an override there"
        )
    return tuple(notes)


def _draft_notes(d: Deployment, options: Options) -> tuple[str, ...]:
    """What is not known of the drafts."""
    spec = speculation(options.speculative)
    if spec is None:
        return ()
    notes = []
    if not spec.stated:
        notes.append(f"speculative: each draft accepted with a chance of {ASSUMED:g}, {spec.tokens:.2f} tokens a step; "
                     f"state yours as {spec.method}:{spec.drafts}:CHANCE")
    if spec.family == "draft" and spec.model is None:
        notes.append("speculative: the draft model is not named; a step of it is taken as 5 % of the target's")
    if spec.family in ("eagle", "block") or spec.family == "mtp" and d.model.mtp is None:
        notes.append(f"speculative: no descriptor of the {spec.method} head; priced as a dense layer of this model, "
                     "its weights and cache not counted")
    if spec.family == "draft":
        notes.append("speculative: weights and cache of the draft model are not counted")
    return tuple(notes)


def _difference_notes(d: Deployment, options: Options) -> tuple[str, ...]:
    """An own benchmark's curve holds for its own model and strategy alone."""
    found = d.calibration.difference
    if found is None or (found.model, found.strategy) == (d.model.name, strategy_name(options)):
        return ()
    return (f"calibration: its difference curve is of {found.model} {found.strategy} and is not used here",)


def _patch_notes(options: Options) -> tuple[str, ...]:
    return tuple(f"patch {name!r}: runs where the stock version refuses" for name in options.patches)


def checked(key: str, value: Any) -> Any:
    """Refuse what no engine could take; turn sequences into tuples."""
    if key == "max_graph_batch":
        return whole(key, value, 1, MOST_GRAPH_BATCH)
    if key in _COUNTS:
        return whole(key, value, 1)
    if key in ("async_depth", "batch_wait_steps"):
        return whole(key, value, 0)
    if key in _RANGES:
        low, high, words = _RANGES[key]
        if not is_number(value) or not low <= value <= high:
            raise BadInput(f"{key} must {words}, not {shown(value)}")
        return value if isinstance(value, int) else float(value)
    if key in ("cuda_graphs", "prefill_graphs") and not isinstance(value, bool):
        raise BadInput(f"{key} must be True or False, not {shown(value)}")
    if key in _WORDS:
        word(key, value)
    if key == "speculative":
        speculation(value)
    if key == "prompts" and value not in ("random", "identical"):
        raise UnknownName("prompts", value, ("random", "identical"))
    if key in ("layers_per_stage", "patches"):
        value = (value,) if key == "patches" and isinstance(value, str) else value
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise BadInput(f"{key} must be a list, not {shown(value)}")
        return tuple(whole(key, v, 1) if key == "layers_per_stage" else word(key, v) for v in value)
    return value


_RANGES = {
    "memory_fraction": (1e-6, 1.0, "lie above 0 and at most 1"),
    "batch_wait_ratio": (0.0, 1.0, "lie in [0, 1]"),
    "prefix_hit_rate": (0.0, 0.999999, "lie in [0, 1)"),
    "expert_skew": (1e-3, 1e12, "be positive and finite"),
    "power_limit": (1.0, 1e5, "be in watts, from 1 to 100,000"),
    "kv_offload": (0.0, 1e16, "be bytes, 0 or more"),
}
