"""The inputs of a report: figures of machine, model and calibration with their kinds and sources, and the versions."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from perfmodel.report.descriptor import figures
from perfmodel.report.page_blocks import Block, Items, Links, Picture, Section, Table, Text

if TYPE_CHECKING:
    from perfmodel.deployment import Deployment

HEAD = ("figure", "value", "kind", "source")


def sections(d: Deployment) -> list[Section]:
    """Options, then one section a descriptor."""
    options = [[name, "-" if value is None else str(value)] for name, value in d.to_dict()["options"].items()]
    node: list[Block] = [Picture("topology", d.node, f"Topology of {d.node.name}: GPUs, switches, sockets and links.")]
    return [
        Section("Inputs: options of the engine", [Table(("option", "value"), options)], folded=True),
        _descriptor("Inputs: accelerator", d.accelerator, []),
        _descriptor("Inputs: node", d.node, node),
        _descriptor("Inputs: model", d.model, []),
        _descriptor("Inputs: calibration", d.calibration, [Text("files: " + ", ".join(d.calibration.used))]),
    ]


def _descriptor(title: str, noun: Any, before: list[Block]) -> Section:
    from perfmodel.catalog import sourced

    rows = [[path, value, kind or "-", source or "-"] for path, value, kind, source in figures(noun)]
    notes = [f"{path}: {item.note}" for path, item in sourced(noun) if item.note]
    links = [(key, source.title, source.url or "") for key, source in noun.sources.items()]
    found: list[Block] = [Text(f"{noun.name}: {noun.title}" if noun.title else noun.name), *before, Table(HEAD, rows)]
    found += [Items(tuple(notes), "Notes")] if notes else []
    found += [Links(tuple(links))] if links else []
    return Section(title, found, folded=True)


def versions(d: Deployment) -> str:
    """What made the page."""
    import numpy

    from perfmodel import __version__

    o = d.options
    return (f"perfmodel {__version__}, Python {platform.python_version()}, NumPy {numpy.__version__}; rules of "
            f"{o.engine} {o.version}; calibration {' under '.join(reversed(d.calibration.used))}.")  # fmt: skip
