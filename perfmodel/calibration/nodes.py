"""A node file with its own collectives in it: what `perfmodel calibrate nccl.log --node N` writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from perfmodel.calibration.interconnect import Fitted, compact
from perfmodel.catalog import Node
from perfmodel.catalog.lookup import find
from perfmodel.catalog.write import write_whole
from perfmodel.catalog.yaml import read_yaml
from perfmodel.errors import BadInput
from perfmodel.units import si

SOURCE = "own"


def node_text(node: Node, fitted: Fitted, name: str, title: str, hashes: dict[str, str]) -> str:
    """The node's file under another name, with the fitted collectives as its default."""
    path = find("node", node.name)
    raw: dict[str, Any] = read_yaml(path) if path else _described(node)
    digests = ", ".join(f"{file} {digest[:16]}" for file, digest in hashes.items())
    raw["name"] = name
    raw["sources"] = {**raw.get("sources", {}), SOURCE: {"title": f"nccl-tests, {title}; SHA-256 {digests}"}}
    own = yaml.safe_load(fitted.yaml(SOURCE))["collectives"]
    before = raw.get("collectives") or {}
    raw["collectives"] = {**own, "variants": {**before.get("variants", {}), **own["variants"]}}
    raw = {"schema": "node/1", **{key: value for key, value in raw.items() if key != "schema"}}
    return yaml.safe_dump(raw, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)


def save_node(path: str | os.PathLike[str], node: Node, fitted: Fitted, title: str, hashes: dict[str, str]) -> None:
    """Write the node file; use it as `--node FILE.yaml`."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml"):
        raise BadInput(f"a node is written to a .yaml file, not {file.name!r}")
    write_whole(file, node_text(node, fitted, file.stem, title, hashes))


def _described(node: Node) -> dict[str, Any]:
    """A node that no file describes, in the words of one."""
    raw: dict[str, Any] = _with_units(node.model_dump(exclude_none=True, exclude_defaults=True, mode="json"))
    raw.pop("assumptions", None)
    return raw


def _with_units(item: Any, key: str = "") -> Any:
    """Latencies in seconds; every other figure as collectives write theirs."""
    if isinstance(item, dict) and isinstance(item.get("value"), float):
        return {**item, "value": si(item["value"], "s", 4)} if key == "latency" else compact(item, key)
    return {name: _with_units(value, name) for name, value in item.items()} if isinstance(item, dict) else item
