"""What a search spans: models of one family, kinds of node, engines, and what a GPU of each costs an hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perfmodel import catalog
from perfmodel.catalog import ModelArch, Node
from perfmodel.catalog.lookup import find
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import BadInput, IllegalDeployment, UnknownName, is_number, shown, whole, word
from perfmodel.planner.space import STRATEGY

# Endings by which the catalog names a checkpoint of the same model in other formats.
VARIANTS = ("fp8", "fp8-dynamic", "nvfp4", "mxfp4", "int4", "awq", "gptq")
GPUS_A_MACHINE = 8  # of a node that is named by its accelerator alone


@dataclass(frozen=True, eq=False)
class Kind:
    """One model on one kind of node under one engine, at one GPU; what its GPUs cost, and how many may be used."""

    base: Deployment
    price_per_gpu_hour: float | None
    gpus: int


def kinds(model: str | ModelArch, node: Any, engine: Any, gpus: int | None, price: Any, variants: bool,
          fixed: Mapping[str, Any]) -> list[Kind]:
    """Every combination asked for; a name that is not known is refused before anything is searched."""
    gpus = None if gpus is None else whole("gpus", gpus, 1, 4096)
    arch = model if isinstance(model, ModelArch) else catalog.load_model(model)
    models = [arch, *(siblings(arch) if variants and "quantization" not in fixed else ())]
    names, engines = _several("node", node), [word("engine", one) for one in _several("engine", engine)]
    machines = [(machine(one, gpus), one) for one in names]
    prices = _prices(price, machines)
    loose = {key: value for key, value in fixed.items() if key not in STRATEGY}
    own = {key: loose[key] for key in ("quantization", "calibration") if key in loose}
    found = []
    for (place, _), cost in zip(machines, prices, strict=True):
        for name in engines:
            for one in models:
                with suppress(IllegalDeployment):  # nonsense is refused here; what one strategy cannot run, later
                    deploy(one, node=place, engine=name, **loose)
                base = deploy(one, node=place, engine=name, **own)
                found.append(Kind(base, cost, min(gpus or place.count, place.count)))
    return found


def _several(name: str, value: Any) -> list[Any]:
    many = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not 1 <= len(many) <= 32:
        raise BadInput(f"{name} must be one or up to 32 of them, not {shown(value)}")
    return many


def machine(node: Any, gpus: int | None) -> Node:
    """A node by name; with ``gpus`` also an accelerator by name, and as many machines as they need.

    >>> machine("h200-sxm", 4).name, machine("8x-h200-sxm", 4).name, machine("rtx-pro-6000-server", 32).name
    ('4x-h200-sxm', '8x-h200-sxm', '4x-8x-rtx-pro-6000-server')
    """
    if isinstance(node, Node):
        return node
    name = catalog.name_of("node", node)
    if gpus is not None and find("node", name) is None and find("accelerator", name) is not None:
        accelerator = catalog.load_accelerator(name).name
        if gpus <= GPUS_A_MACHINE:
            return catalog.load_node(f"{gpus}x-{accelerator}")
        name = f"{GPUS_A_MACHINE}x-{accelerator}"
    found = catalog.load_node(name)
    if gpus is None or gpus <= found.count:
        return found
    return catalog.load_node(f"{-(-gpus // found.count)}x-{found.name}")


def siblings(model: ModelArch) -> Iterator[ModelArch]:
    """Checkpoints of the same model in other formats: the catalog names them by the model's name and an ending."""
    known = set(catalog.names("model"))
    stem = next((model.name.removesuffix(f"-{ending}") for ending in VARIANTS if model.name.endswith(f"-{ending}")),
                model.name)
    for name in (stem, *(f"{stem}-{ending}" for ending in VARIANTS)):
        if name in known and name != model.name:
            yield catalog.load_model(name)


def _prices(price: Any, machines: list[tuple[Node, Any]]) -> list[float | None]:
    """Money an hour of one GPU of each node: one figure for all, or a table by node or accelerator."""
    if price is None:
        return [None] * len(machines)
    if not isinstance(price, Mapping):
        return [_money("price_per_gpu_hour", price)] * len(machines)
    table = {str(name).lower(): _money(f"price of {str(name)[:80]}", value) for name, value in price.items()}
    known = {str(key).lower(): at for at, (node, asked) in enumerate(machines)
             for key in (node.name, node.accelerator, asked if isinstance(asked, str) else node.name)}
    for name in table:
        if name not in known:
            raise UnknownName("node with a price", name, known)
    return [next((table[key] for key in (str(asked).lower(), node.name.lower(), node.accelerator.lower())
                  if key in table), None) for node, asked in machines]


def _money(name: str, value: Any) -> float:
    if not is_number(value) or not 0 < value < 1e9:
        raise BadInput(f"{name} must lie above 0 and below 1e9, not {shown(value)}")
    return float(value)
