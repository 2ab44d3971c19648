"""`doctor`: reads a launch, predicts it, and lists what it costs not to change it, each cost asked of the model."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel import catalog, engines
from perfmodel.catalog import ModelArch, Moe, Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.engines.backends import MOE_BACKENDS
from perfmodel.errors import BadInput, shown
from perfmodel.insight.asking import Asker, Finding, examine
from perfmodel.insight.launch import Launch
from perfmodel.insight.launch_files import launch_of
from perfmodel.insight.reality import Difference, differences
from perfmodel.serving import ServingCurve, predict
from perfmodel.serving.lengths import parse_lengths
from perfmodel.step import MemoryReport, memory

CONCURRENCY = (1, 8, 32, 128)


@dataclass(frozen=True, eq=False)
class Doctor:
    """The examination of one launch. ``curve`` and ``memory`` are of the launch as it is."""

    launch: Launch
    where: str
    deployment: Deployment
    memory: MemoryReport
    curve: ServingCurve
    concurrency: tuple[float, ...]
    findings: tuple[Finding, ...]
    not_asked: tuple[str, ...]          # proposals that the engine refuses or that do not fit
    differences: tuple[Difference, ...]
    assumptions: tuple[str, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """One entry: the launch as it was read, what is predicted, findings, and what a run showed."""
        launch = self.launch
        return [{
            **self.deployment.to_dict(), "launch": launch.line, "where": self.where,
            "unknown_flags": list(launch.unknown), "flag_warnings": list(launch.warnings),
            "not_modelled": list(launch.notes),
            "fits": self.memory.fits, "verdict": self.memory.verdict, "kv_tokens": self.memory.kv_tokens,
            "kv_tokens_total": self.memory.kv_tokens_total, "points": self.curve.points,
            "findings": [{"rank": rank, **finding.to_dict(self.concurrency)}
                         for rank, finding in enumerate(self.findings, start=1)],
            "not_asked": list(self.not_asked), "differences": [d.to_dict() for d in self.differences],
            "warnings": list(self.curve.warnings), "assumptions": list(self.assumptions),
        }]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Doctor {self.deployment.name}: {', '.join(f.name for f in self.findings) or 'nothing found'}>"


def doctor(
    command: str | os.PathLike[str],
    log: str | os.PathLike[str] | None = None,
    *,
    node: str | Node,
    engine: str | None = None,
    model: str | ModelArch | None = None,
    metrics: str | os.PathLike[str] | None = None,
    benchmark: Any = None,
    concurrency: Any = CONCURRENCY,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
    calibration: str | None = None,
    **keywords: Any,
) -> Doctor:
    """Examine a launch: ``command`` is its text, or the path of a unit, compose file, manifest or script with it.

    ``engine`` states the version (``sglang==0.5.10``), ``model`` the catalog's name where the command has another;
    ``keywords`` of `deploy` say what no flag does (``prompts``, ``patches``). ``log`` and ``metrics``
    (Prometheus text) are paths of what a run left, ``benchmark`` its rows: mappings with concurrency, output_tok_s,
    input_tokens and output_tokens, or what the readers of result files give. Raises `NotACommand` where the text starts
    no server.
    """
    for name, path in (("log", log), ("metrics", metrics), ("model", model)):
        if not isinstance(path, str | os.PathLike | ModelArch | None):
            raise BadInput(f"{name} must be text, not {shown(path)}")
    inputs, outputs = parse_lengths(input_tokens), parse_lengths(output_tokens)
    loads = _loads(concurrency)
    launch, where = launch_of(command, engine)
    arch = _model(launch, model)
    if not any(isinstance(mlp, Moe) for mlp in arch.mlp.values()):
        launch, where = launch_of(command, engine, moe=False)
    machine = node if isinstance(node, Node) else catalog.load_node(node)
    asked, notes = _keywords(launch, arch)
    version = launch.engine + (f"=={launch.version}" if launch.version else "")
    d = deploy(arch, node=machine, engine=version, calibration=calibration, **{**asked, **keywords})
    ask = Asker(d, loads, inputs, outputs, arrival, calibration)
    found, refused, assumed = examine(ask, d)
    asked_of = ask.variant(found[0].changes) if ask.too_long and found else d
    curve = predict(asked_of, concurrency=loads, input_tokens=input_tokens, output_tokens=output_tokens,
                    arrival=arrival)
    report = memory(d, hints=False)
    if launch.gpus is not None and launch.gpus < d.options.world:
        launch = replace(launch, warnings=(*launch.warnings, f"GPUs: the launch needs {d.options.world}, its settings "
                                           f"leave it {launch.gpus}: it does not start"))
    found = (*_refusals(launch, ask, d, found), *found)
    seen = differences(d, report, log=log, metrics=metrics, benchmark=benchmark, arrival=arrival)
    return Doctor(replace(launch, notes=(*launch.notes, *notes)), where, d, report, curve, loads, found, refused, seen,
                  (*assumed, *curve.assumptions))


def _refusals(launch: Launch, ask: Asker, d: Deployment, found: tuple[Finding, ...]) -> list[Finding]:
    """Flags at which the engine's parser stops: nothing runs with them, all of the answer without."""
    first = found[0] if found and found[0].kind == "start" else None
    rates = first.tok_s if first is not None else ask.tok_s(d)
    tokens = first.kv_tokens if first is not None else ask.report(d).kv_tokens_total
    engine = f"{d.options.engine} {d.options.version}"
    made = []
    for item in launch.refused:
        change = f"write {item.meant} in place of {item.flag}" if item.meant else f"remove {item.flag}"
        made.append(Finding(
            f"the server will not start: {item.flag}", f"{item.why}; the parser of {engine} stops with an error",
            "start", change, {}, f"flags that {engine} knows", (0.0,) * len(rates), rates,
            ask.loads[int(np.argmax(rates))], 0, tokens, d.command(),
            ("all else here is asked as it was meant",) if item.meant and item.unknown else ()))  # fmt: skip
    return made


def _loads(concurrency: Any) -> tuple[float, ...]:
    try:
        values = np.atleast_1d(np.asarray(concurrency, float))
    except (TypeError, ValueError):
        raise BadInput(f"concurrency must be numbers of at least 1, not {shown(concurrency)}") from None
    if values.ndim != 1 or not values.size or not np.all(np.isfinite(values)) or np.any(values < 1) or values.size > 64:
        raise BadInput(f"concurrency must be numbers of at least 1, not {shown(concurrency)}")
    return tuple(dict.fromkeys(float(c) for c in values))


def _model(launch: Launch, model: str | ModelArch | None) -> ModelArch:
    if isinstance(model, ModelArch):
        return model
    if not (model or launch.model):
        raise BadInput("the command names no model that can be looked up", ["say it with --model NAME"])
    return catalog.load_model(model or launch.model)


def _keywords(launch: Launch, arch: ModelArch) -> tuple[dict[str, Any], list[str]]:
    """Keywords of `deploy`; words that name what the checkpoint is anyway, or kernels not listed here, are dropped."""
    asked, notes = dict(launch.keywords), []
    word = str(asked.get("quantization") or "").lower()
    if word:
        name = arch.storage.get("experts") or arch.storage.get("dense") or arch.storage["default"]
        online = {"fp8": "fp8", "w8a8_int8": "int8", "mxfp4": "mxfp4", "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4"}
        if arch.formats[name].bits >= 16 and word in online:
            asked["quantization"] = online[word]
        else:
            del asked["quantization"]
            notes.append(f"--quantization {word[:40]}: the format of the model file ({name}) is taken")
    backend, known = asked.get("attention_backend"), getattr(engines.get(launch.engine)[0], "ATTENTION_PAGE", {})
    if backend is not None and known and str(backend).replace("-", "_") not in known:
        del asked["attention_backend"]
        notes.append(f"--attention-backend {str(backend)[:40]}: not known here; the engine's default is taken")
    kernel, kernels = str(asked.get("moe_backend") or ""), MOE_BACKENDS.get(launch.engine, ())
    if kernel and kernel.lower().replace("-", "_") not in kernels:
        del asked["moe_backend"]
        notes.append(f"expert kernels {kernel[:40]}: not known here; the engine's default is taken")
    return asked, notes
