"""Descriptors by name or path -> frozen nouns. The same file is read once."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from perfmodel.catalog import synthesis
from perfmodel.catalog.architecture import ModelArch
from perfmodel.catalog.base import Descriptor
from perfmodel.catalog.cluster import cluster, split_cluster
from perfmodel.catalog.lookup import FOLDERS, files, find, fold, is_path, name_of, unknown
from perfmodel.catalog.schema import Accelerator, Calibration, Fabric, Node
from perfmodel.catalog.yaml import read_yaml
from perfmodel.errors import DescriptorError, PerfModelError, UnknownName

Noun = TypeVar("Noun", bound=Descriptor)
SCHEMAS = {"model": "model/1", "node": "node/1", "accelerator": "accelerator/1", "calibration": "calibration/1",
           "fabric": "fabric/1"}


def load_model(name_or_path: str | os.PathLike[str]) -> ModelArch:
    """A model architecture by catalog name, Hugging Face id, YAML, config.json, folder of a checkpoint or GGUF file.

    A Hugging Face id that the catalog does not know is fetched where `huggingface_hub` is installed and answers.
    """
    name = name_of("model", name_or_path)
    if not is_path(name) and find("model", name) is None and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        from perfmodel.catalog.hub import fetch

        folder = fetch(name)
        if folder is None:
            raise unknown("model", name)
        return _imported(folder, name)
    if is_path(name) and not name.lower().endswith((".yaml", ".yml")):
        return _imported(Path(name), None)
    return _load("model", ModelArch, name)


def _imported(path: Path, hf_id: str | None) -> ModelArch:
    """A model from a folder, config.json or GGUF file, made afresh each time."""
    if path.suffix.lower() == ".gguf":
        from perfmodel.catalog.gguf import raw_from_gguf

        raw = raw_from_gguf(path)
    elif path.suffix.lower() == ".json" or path.is_dir():
        from perfmodel.catalog.hf import raw_from_hf

        raw = raw_from_hf(path, hf_id=hf_id)
    else:
        raise DescriptorError(f"{path.name}: a model is read from YAML, config.json, a checkpoint's folder or GGUF")
    return validate(ModelArch, "model", raw, path.name or str(path))


def load_accelerator(name_or_path: str | os.PathLike[str]) -> Accelerator:
    """An accelerator by name or path."""
    return _load("accelerator", Accelerator, name_or_path)


class NotANode(UnknownName):
    """An accelerator where a node is asked for."""

    def __init__(self, name: str, accelerator: str):
        PerfModelError.__init__(self, f"{name[:80]!r} is an accelerator; a node says how many of them", [
            f"8x-{accelerator}, or any other number: 1x-{accelerator}, 4x-{accelerator}"])


def load_node(name_or_path: str | os.PathLike[str]) -> Node:
    """A node by name or path; ``Nx-<accelerator>`` without a file is put together, with its assumptions listed."""
    name = name_of("node", name_or_path)
    if not is_path(name) and find("node", name) is None:
        wanted = synthesis.split_name(name)
        if wanted and find("accelerator", wanted[1]):
            accelerator = load_accelerator(wanted[1])
            like = find("node", f"8x-{accelerator.name}")
            return synthesis.node(wanted[0], accelerator, _load("node", Node, like) if like else None)
        joined = split_cluster(name)
        if joined and (find("node", joined[1]) or _synthesised(joined[1])):
            one = load_node(joined[1])
            port = load_accelerator(one.accelerator).link.host
            return cluster(joined[0], one, joined[2], None if port is None or port.value is None else float(port))
        if gpu := find("accelerator", name):
            raise NotANode(name, gpu.stem)
    return _load("node", Node, name)


def _synthesised(name: str) -> bool:
    wanted = synthesis.split_name(name)
    return wanted is not None and find("accelerator", wanted[1]) is not None


def load_fabric(name_or_path: str | os.PathLike[str]) -> Fabric:
    """A class of links by name or path."""
    return _load("fabric", Fabric, name_or_path)


def load_calibration(accelerator: str | None, engine: str | None = None,
                     name_or_path: str | os.PathLike[str] | None = None) -> Calibration:
    """Factors for an accelerator under an engine: priors, then the accelerator's file, then accelerator+engine's.

    Where that pair has no file, what the engine takes on other accelerators stands above the priors. Later files win,
    one parameter at a time; a named file goes on top. `.used` lists the files.
    """
    known, wanted, name = files("calibration"), ["priors"], (engine or "").partition("==")[0]
    if accelerator:
        pair = f"{accelerator}+{name}" if name else ""
        wanted += [*([f"priors+{name}"] if fold(pair) not in known else []), accelerator, pair]
    layers = [_load("calibration", Calibration, known[fold(stem)]) for stem in wanted if fold(stem) in known]
    if name_or_path is not None:
        layers.append(_fitting(_load("calibration", Calibration, name_or_path), layers))
    if not layers:
        raise DescriptorError(f"no calibration found: {FOLDERS['calibration']}/priors.yaml is missing")
    return merge(layers)


def _fitting(given: Calibration, layers: list[Calibration]) -> Calibration:
    """A named calibration, if it speaks of parameters that the shipped ones know, in their units."""
    known = {name: parameter.unit for layer in layers for name, parameter in layer.parameters.items()}
    for name, parameter in given.parameters.items():
        if known and name not in known:
            raise UnknownName(f"parameter of calibration {given.name}", name, known)
        if known and parameter.unit != known[name]:
            raise DescriptorError(f"calibration {given.name}: {name} is in {parameter.unit}, not in {known[name]}")
    return given


def merge(layers: list[Calibration]) -> Calibration:
    """Calibrations on top of each other, the last one wins per parameter.

    A correlation is dropped when a later file replaces one of its two parameters. Source keys are prefixed by
    their file, so that two files may use one key.
    """
    merged: dict[str, Any] = {name: getattr(layers[-1], name) for name in Calibration.model_fields}
    parameters: dict[str, Any] = {}
    correlations: dict[str, float] = {}
    sources: dict[str, Any] = {}
    for layer in layers:
        correlations = {pair: rho for pair, rho in correlations.items()
                        if not set(pair.split("|")) & set(layer.parameters)} | layer.correlations
        sources |= {f"{layer.name}:{key}": source for key, source in layer.sources.items()}
        for name, parameter in layer.parameters.items():
            key = f"{layer.name}:{parameter.source}" if parameter.source else None
            parameters[name] = parameter.model_copy(update={"source": key})
    residuals = [layer.residual_sd for layer in layers if layer.residual_sd is not None]
    return layers[-1].model_copy(update=merged | {
        "parameters": parameters, "correlations": correlations, "sources": sources,
        "used": tuple(layer.name for layer in layers), "residual_sd": residuals[-1] if residuals else None,
        "fitted_on": tuple(dict.fromkeys(row for layer in layers for row in layer.fitted_on)),
        "checked_on": tuple(dict.fromkeys(row for layer in layers for row in layer.checked_on)),
    })


def validate(noun: type[Noun], kind: str, raw: dict[str, Any], file: str) -> Noun:
    """A mapping as it stands in a file -> the noun; what is wrong is said in one line, with its place."""
    raw = dict(raw)
    schema = raw.pop("schema", None)
    if schema != SCHEMAS[kind]:
        raise DescriptorError(f"{file}: schema - {schema!r} where {SCHEMAS[kind]!r} is needed")
    try:
        return noun.model_validate(raw)
    except ValidationError as error:
        raise DescriptorError(describe(error, file)) from None


def describe(error: ValidationError, file: str) -> str:
    """The first thing that is wrong: `file.yaml: path.to.key - what is wrong`.

    >>> from perfmodel.catalog.base import Source
    >>> try:
    ...     Source.model_validate({"titel": "A"})
    ... except ValidationError as error:
    ...     print(describe(error, "a.yaml"))
    a.yaml: unknown key 'titel'; did you mean 'title'
    """
    first, *more = error.errors(include_url=False)
    path = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    what = "this key is missing" if first["type"] == "missing" else what[:1].lower() + what[1:]
    rest = f" (and {len(more)} more)" if more else ""
    return f"{file}: {path} - {what}{rest}" if path else f"{file}: {what}{rest}"


def _load(kind: str, noun: type[Noun], name_or_path: str | os.PathLike[str]) -> Noun:
    name = name_of(kind, name_or_path)
    if not is_path(name):
        path = find(kind, name)
        if path is None:
            raise unknown(kind, name)
    else:
        path = Path(name)
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise DescriptorError(f"{path.name}: a {kind} is read from a YAML file")
    try:
        stamp = path.stat().st_mtime_ns
    except (OSError, UnicodeEncodeError) as error:
        why = (getattr(error, "strerror", None) or "no such file").lower()
        raise DescriptorError(f"{path}: cannot be read, {why}") from None
    return _read(kind, noun, path, stamp)


@lru_cache(maxsize=256)
def _read(kind: str, noun: type[Noun], path: Path, stamp: int) -> Noun:
    return validate(noun, kind, read_yaml(path), path.name)
