"""Launch lines inside a systemd unit, a docker-compose file, a Kubernetes manifest or a shell script.

Files are read as text or by the catalog's YAML reader, which knows no tags and no anchors; nothing in them is run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfmodel.catalog.yaml import parse_yaml, read_text
from perfmodel.errors import BadInput, PerfModelError, shown
from perfmodel.insight.launch import Launch, NotACommand, read_launch

MOST_BYTES, MOST_DOCUMENTS = 2**18, 64


@dataclass(frozen=True)
class Found:
    """One command in a file, with the settings and the image around it."""

    text: str
    where: str
    environment: dict[str, str] = field(default_factory=dict)
    image: str = ""
    gpus: int | None = None
    notes: tuple[str, ...] = ()


def launch_of(command: str | os.PathLike[str], engine: str | None = None, moe: bool = True) -> tuple[Launch, str]:
    """The launch in a text, or in the file that the text names; and where it was found."""
    if not isinstance(command, str):
        if not isinstance(command, os.PathLike) or not isinstance(os.fspath(command), str):
            raise BadInput(f"the command must be text or the path of a file, not {shown(command)}")
        command = str(os.fspath(command))
        if not Path(command).is_file():
            raise BadInput(f"{command}: no such file")
    if not _names_a_file(command):
        return read_launch(command, engine, moe), "the command"
    path = Path(command.strip())
    found = list(commands(read_text(path, MOST_BYTES), path.name))
    launches: list[tuple[Launch, str]] = []
    for item in found:
        try:
            launch = read_launch(item.text, engine, moe, item.environment, item.image, item.gpus)
            launches.append((replace(launch, notes=(*launch.notes, *item.notes)), item.where))
        except NotACommand:
            continue
    if not launches:
        raise NotACommand(f"{path.name}: {len(found)} commands, none starts a server that is known here")
    if len(launches) > 1:
        launch, where = launches[0]
        others = ", ".join(place for _, place in launches[1:6])
        return launch, f"{where} (the first of {len(launches)}; not read: {others})"
    return launches[0]


def _names_a_file(text: str) -> bool:
    text = text.strip()
    if not text or len(text) > 1_000 or "\n" in text or re.match(r"(vllm|sglang|python3?|trtllm-serve)\s", text):
        return False
    try:
        there = Path(text).is_file()
    except OSError:
        return False
    if not there and re.fullmatch(r"\S+\.(service|ya?ml|sh|conf|container)", text):
        raise BadInput(f"{text}: no such file")
    return there


def commands(text: str, name: str) -> Iterator[Found]:
    """Every command of a file, by its kind."""
    if name.endswith((".yaml", ".yml")):
        for document in _documents(text, name):
            yield from _kubernetes(document, name)
            yield from _compose(document, name)
    elif re.search(r"^\s*Exec(Start)?\s*=", text, re.MULTILINE):
        yield from _systemd(text, name)
    else:
        yield Found(text, name)


def _documents(text: str, name: str) -> Iterator[dict[str, Any]]:
    parts = [part for part in re.split(r"^---.*$", text, flags=re.MULTILINE) if part.strip()]
    if len(parts) > MOST_DOCUMENTS:
        raise BadInput(f"{name}: more than {MOST_DOCUMENTS} documents")
    refused: list[PerfModelError] = []
    read = 0
    for part in parts:
        if not any(line.strip() and not line.lstrip().startswith("#") for line in part.splitlines()):
            continue
        try:
            yield parse_yaml(part, name, aliases=True)
            read += 1
        except PerfModelError as problem:
            refused.append(problem)
    if not read and refused:
        raise refused[0]


def _systemd(text: str, name: str) -> Iterator[Found]:
    """Commands of a unit, or of a Podman quadlet (``Exec=`` behind ``Image=``)."""
    environment: dict[str, str] = {}
    notes: list[str] = []
    image = ""
    lines = [line.strip() for line in re.sub(r"\\\r?\n", " ", text).splitlines()
             if line.strip() and not line.lstrip().startswith(("#", ";"))]
    pairs = [(key.strip(), value.strip()) for key, equals, value in (line.partition("=") for line in lines) if equals]
    for key, value in pairs:
        if key == "Environment":
            environment |= _settings(_unit_words(value, name))
        elif key == "EnvironmentFile":
            notes.append(f"EnvironmentFile={value[:80]} is not read: its settings are not known here")
        elif key == "Image":
            image = value
    for key, value in pairs:
        if key in ("ExecStart", "Exec") and value:
            text = value.lstrip("-@:+!").replace("$$", "$")
            yield Found(text, f"{name} {key}", environment, image, None, tuple(notes))


def _unit_words(value: str, name: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as problem:
        raise BadInput(f"{name}: Environment={value[:80]} does not read: {problem}") from None


def _compose(document: dict[str, Any], name: str) -> Iterator[Found]:
    services = document.get("services")
    for service, body in services.items() if isinstance(services, dict) else ():
        if isinstance(body, dict):
            text = " ".join(filter(None, (_joined(body.get("entrypoint")), _joined(body.get("command")))))
            notes = ("env_file is not read: its settings are not known here",) if body.get("env_file") else ()
            if text:
                yield Found(text.replace("$$", "$"), f"{name} services.{service}", _settings(body.get("environment")),
                            str(body.get("image") or ""), _devices(body), notes)


def _devices(body: dict[str, Any]) -> int | None:
    """GPUs that a service of a compose file reserves."""
    found: Any = body
    for key in ("deploy", "resources", "reservations", "devices"):
        found = found.get(key) if isinstance(found, dict) else None
    for device in found if isinstance(found, list) else ():
        if isinstance(device, dict) and isinstance(ids := device.get("device_ids"), list):
            return len(ids)
        if isinstance(device, dict) and type(count := device.get("count")) is int and count > 0:
            return count
    return None


def _limit(body: dict[str, Any]) -> int | None:
    """GPUs that a container of a manifest is given."""
    resources = body.get("resources")
    for part in ("limits", "requests"):
        given = resources.get(part) if isinstance(resources, dict) else None
        for key in ("nvidia.com/gpu", "amd.com/gpu"):
            if isinstance(given, dict) and str(given.get(key, "")).isdecimal():
                return int(str(given[key])[:6])
    return None


def _kubernetes(document: Any, name: str) -> Iterator[Found]:
    """Containers at any depth (Pod, Deployment, StatefulSet, LeaderWorkerSet, ...), and scripts of a ConfigMap."""
    if isinstance(document, list):
        for item in document:
            yield from _kubernetes(item, name)
    elif isinstance(document, dict):
        data = document.get("data") if document.get("kind") == "ConfigMap" else None
        for key, text in data.items() if isinstance(data, dict) else ():
            if isinstance(text, str) and re.search("vllm|sglang|trtllm", text):
                yield Found(text, f"{name} data.{key}")
        for key, value in document.items():
            if key in ("containers", "template_containers") and isinstance(value, list):
                for body in value:
                    if isinstance(body, dict) and (body.get("command") or body.get("args")):
                        text = " ".join(filter(None, (_joined(body.get("command")), _joined(body.get("args")))))
                        yield Found(text, f"{name} container {body.get('name', '?')}", _settings(body.get("env")),
                                    str(body.get("image") or ""), _limit(body))
            elif key != "services" and isinstance(value, dict | list):
                yield from _kubernetes(value, name)


def _joined(words: Any) -> str:
    """A command as a shell line; a list keeps its words."""
    if isinstance(words, list):
        return shlex.join(_text(word) for word in words)
    return str(words).strip() if isinstance(words, str) else ""


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(given: Any) -> dict[str, str]:
    """Environment as a mapping, as ``NAME=value`` texts, or as Kubernetes' name and value."""
    if isinstance(given, dict):
        return {str(k): _text(v) for k, v in given.items() if v is not None}
    found: dict[str, str] = {}
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str) and item.get("value") is not None:
            found[item["name"]] = _text(item["value"])
        elif isinstance(item, str) and "=" in item:
            name, _, value = item.partition("=")
            found[name] = value
    return found
