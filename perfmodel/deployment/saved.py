"""A deployment from what it said of itself: the same model, node, engine and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.deployment.deploy import KEYWORDS, Deployment, deploy
from perfmodel.errors import BadInput, shown


def from_dict(said: Mapping[str, Any], **files: Any) -> Deployment:
    """The deployment of a ``Deployment.to_dict()``; every option is then asked for, none is the engine's default.

    ``files`` may name ``model``, ``node`` or ``calibration`` where those were files and not names of the catalog.
    """
    if not isinstance(said, Mapping) or not isinstance(said.get("options"), Mapping):
        raise BadInput(f"from_dict takes what Deployment.to_dict() made, not {shown(said)}")
    missing = [name for name in ("model", "node", "engine") if name not in said]
    if missing:
        raise BadInput(f"a deployment needs {', '.join(missing)}")
    options: dict[str, Any] = dict(said["options"])
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    unknown = [name for name in options if name not in KEYWORDS]
    if unknown:
        raise BadInput(f"{shown(unknown[0])} is no option of a deployment")
    model, node = files.pop("model", said["model"]), files.pop("node", said["node"])
    return deploy(model, node=node, engine=said["engine"], **files, **options)
