"""``perfmodel import``: a checkpoint becomes a model description, and its bytes are compared with the arithmetic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from perfmodel.cli.options import JSON, Question, examples, flag

EXAMPLES = examples(
    "perfmodel import ./DeepSeek-V3.2",
    "perfmodel import config.json --name my-model -o models/my-model.yaml",
    "perfmodel import model-Q4_K_M.gguf --json",
    "perfmodel import Qwen/Qwen3-8B            # needs perfmodel[hub] and the network",
)


@click.command(name="import", cls=Question, epilog=EXAMPLES)
@click.argument("path", metavar="PATH")
@flag("--output", "-o", metavar="FILE", section="What", help="write the description there, as a file of models/")
@flag("--name", metavar="NAME", section="What", help="name of the model; else that of the folder")
@JSON
def import_command(path: str, output: str | None, name: str | None, as_json: bool) -> None:
    """Turn a checkpoint into a model description.

    PATH is the folder of a checkpoint, its config.json, a GGUF file or a Hugging Face id. Where the weights (or their
    index) lie beside the config, their bytes are compared, class by class; what differs by more than 0.5 % is said.
    """
    from perfmodel.catalog.load import validate
    from perfmodel.catalog.write import to_yaml

    raw, folder = describe(path, name)
    model = validate(_arch(), "model", raw, raw["name"])
    if output and Path(output).suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"-o {output}: a file that ends in .yaml is needed")
    answer = summary(model, folder)
    if output:
        write(output, to_yaml(raw))
    show(answer | ({"written": output} if output else {}), raw, as_json)


import_ = import_command


def _arch() -> Any:
    from perfmodel.catalog import ModelArch

    return ModelArch


def describe(path: str, name: str | None) -> tuple[dict[str, Any], Path | None]:
    """The raw description, and the folder that may hold weights."""
    from perfmodel.catalog.gguf import raw_from_gguf
    from perfmodel.catalog.hf import raw_from_hf, slug
    from perfmodel.errors import DescriptorError

    place = Path(path)
    if place.suffix.lower() == ".gguf":
        raw = raw_from_gguf(place)
        return raw | ({"name": slug(name)} if name else {}), None
    folder = os.path.isdir(path)  # unlike Path.is_dir, false for a name that cannot be one
    if folder or place.suffix.lower() == ".json":
        return raw_from_hf(place, name), place if folder else place.parent
    if path.count("/") == 1 and not os.path.exists(path):
        from perfmodel.catalog.hub import HINT, fetch

        fetched = fetch(path)
        if fetched is None:
            raise DescriptorError(f"{path}: no such file, and huggingface_hub is not installed to fetch it", HINT)
        return raw_from_hf(fetched, name, hf_id=path), fetched
    raise DescriptorError(f"{path}: a folder, a config.json or a .gguf file is needed")


def summary(model: Any, folder: Path | None) -> dict[str, Any]:
    """What the command prints."""
    from perfmodel.placement.checkpoint import disagreements, expected_bytes
    from perfmodel.placement.inventory import mtp_tensors, parameter_count, vision_tensors

    table = expected_bytes(model)
    return {
        "name": model.name, "architecture": model.architecture, "model_type": model.model_type, "layers": model.layers,
        "parameters": parameter_count(model), "parameters_vision": int(sum(t.parameters
                                                                           for t in vision_tensors(model))),
        "parameters_mtp": int(sum(count * t.parameters for count, t in mtp_tensors(model))),
        "bytes": sum(table.values()), "bytes_by_class": table,
        "disagreements": list(disagreements(model, folder)) if folder else [],
        "notes": [model.note] if model.note else [],
    }  # fmt: skip


def write(output: str, text: str) -> None:
    """The file, never over one that is there."""
    from perfmodel.catalog.write import write_whole
    from perfmodel.errors import BadInput

    if os.path.lexists(output):
        raise BadInput(f"{output} is there already; remove it first")
    write_whole(output, text)


def show(answer: dict[str, Any], raw: dict[str, Any], as_json: bool) -> None:
    """Print the answer."""
    from perfmodel.cli.output import print_json, warn

    if as_json:
        print_json(answer | {"model": raw})
        return
    from perfmodel.catalog.write import to_yaml
    from perfmodel.units import gb_gib

    extra = [f"{answer[key] / 1e9:.3f} B {word}" for key, word in
             (("parameters_vision", "in the vision tower"), ("parameters_mtp", "more in MTP layers")) if answer[key]]
    click.echo(f"{answer['name']}: {answer['architecture']}, {answer['layers']} layers")
    click.echo(f"parameters  {answer['parameters']:,}" + (f" ({', '.join(extra)})" if extra else ""))
    click.echo(f"weights     {gb_gib(answer['bytes'])}")
    for name, size in sorted(answer["bytes_by_class"].items(), key=lambda item: -item[1]):
        click.echo(f"  {name:<15} {gb_gib(size, 2)}")
    warn(answer["disagreements"], "disagrees")
    warn(answer["notes"], "note")
    if "written" in answer:
        click.echo(f"written to {answer['written']}")
    else:
        click.echo("\n" + to_yaml(raw), nl=False)
