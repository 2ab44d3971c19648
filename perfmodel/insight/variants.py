"""The same deployment with one thing changed: a keyword, a calibrated factor, a figure of the hardware."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from perfmodel.catalog import Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import UnknownName


def changed(d: Deployment, changes: dict[str, Any], node: Node | None = None, version: str = "",
            calibration: str | None = None) -> Deployment:
    """The same request with some keywords changed; None puts a keyword back to the engine's default."""
    kept = {f.name: getattr(d.requested, f.name) for f in fields(d.requested) if f.name not in ("engine", "version")}
    engine = f"{d.options.engine}=={version or d.options.version}"
    new = deploy(d.model, node=node or d.node, engine=engine, calibration=calibration, **{**kept, **changes})
    return new if calibration else replace(new, calibration=d.calibration)


def with_factors(d: Deployment, values: dict[str, float]) -> Deployment:
    """The same deployment, some calibrated factors set to other values."""
    known = d.calibration.parameters
    for name in values:
        if name not in known:
            raise UnknownName("calibrated factor", name, known)
    moved = {name: known[name].model_copy(update={"value": value}) for name, value in values.items()}
    return replace(d, calibration=d.calibration.model_copy(update={"parameters": {**known, **moved}}))
