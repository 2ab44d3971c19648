"""What a rule of `findings` looks at, and what it proposes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from perfmodel.catalog import Node
from perfmodel.deployment import Deployment
from perfmodel.engines.options import Options
from perfmodel.step.memory import MemoryReport, running_limit


@dataclass(frozen=True)
class Candidate:
    """One change to ask about. ``changes`` are keywords of `deploy`; ``by_concurrency`` holds others for each load.

    The effect is the difference between ``before`` with the changes and ``before``. ``kind``: a repair is a change to
    make; a risk is what may happen, with its ``chance``; a safety is a change that avoids one. ``always``: shown even
    if it is worth nothing, since it is asked about by name.
    """

    name: str
    what: str
    source: str
    changes: dict[str, Any] = field(default_factory=dict)
    by_concurrency: dict[float, dict[str, Any]] = field(default_factory=dict)
    before: dict[float, dict[str, Any]] = field(default_factory=dict)
    node: Node | None = None
    version: str = ""
    flag: str = ""
    kind: str = "repair"    # repair, risk, safety
    always: bool = False
    memory: bool = False    # its point is KV capacity: tokens/s alone do not keep it
    chance: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A launch under examination: its deployment, what memory says, and the load it is asked about."""

    deployment: Deployment
    memory: MemoryReport
    concurrency: tuple[float, ...]
    tokens: float           # input and output of one request
    arrival: str

    @property
    def options(self) -> Options:
        """Options, defaults filled in."""
        return self.deployment.options

    @property
    def slots(self) -> tuple[int, int]:
        """Slots of the pipeline, and the sequences that one may hold."""
        d = self.deployment
        return d.engine.slots(d.options), d.engine.slot_limit(d.options, running_limit(self.memory.placement))


def share(concurrency: float, options: Options, slots: int) -> int:
    """Sequences of one attention group that a slot should hold at this load."""
    return max(1, math.ceil(concurrency / options.dp / slots / options.dp_attention))
