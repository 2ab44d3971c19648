"""One change in words (``pcie=gen6``, ``power=450 W``, ``lost=1``, ``tp=4,pp=2``) -> the deployments it leads to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.catalog import Accelerator, Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.deployment.deploy import KEYWORDS
from perfmodel.errors import BadInput, PerfModelError, UnknownName, shown
from perfmodel.insight import node_changes
from perfmodel.insight.node_changes import Changed
from perfmodel.insight.sensitivity import scaled_accelerator
from perfmodel.insight.variants import changed
from perfmodel.placement import links_of
from perfmodel.step import memory
from perfmodel.step.machine import _POWER_EXPONENT as POWER_EXPONENT
from perfmodel.units import parse

# What other cards did under a cap, against the law of step/machine.py (compute as the 0.45th power of the cap): prefill
# of six RTX 3090 fell with a power of 0.38 at 300, 0.47 at 250, 0.91 at 200 and 1.6 at 150 of 350 W, decode with one of
# 0.17 at most (llmgarage.ai, power-limit sweep, 2026-02); decode on H200 draws 137 to 300 of 700 W and no cap binds
# (arXiv:2605.11999). Ratios of exponents: kind derived.
SLOWER, FASTER, DECODE_EXPONENT = {0.57: 2.0, 0.4: 3.5}, 0.8, 0.17
KINDS = ("gpu", "power", "host-memory", "nccl", "pcie", "nvlink", "p2p", "nodes", "lost")


@dataclass(frozen=True, eq=False)
class Variant:
    """One deployment that a change leads to; ``also`` are others whose answers the band must hold."""

    label: str
    deployment: Deployment
    also: tuple[Deployment, ...] = ()


@dataclass(frozen=True, eq=False)
class Change:
    """A change, the ways to use it, what was assumed, and why some ways were refused."""

    text: str
    variants: tuple[Variant, ...]
    assumptions: tuple[str, ...]
    refused: tuple[str, ...] = ()
    host_memory: float | None = None


def read_change(given: Any) -> tuple[str, Any]:
    """Kind and value of a change; a dict holds keywords of `deploy`.

    >>> read_change("pcie=gen6"), read_change({"tp": 4})
    (('pcie', 'gen6'), ('keywords', {'tp': 4}))
    """
    if isinstance(given, dict) and given and all(isinstance(key, str) for key in given):
        if "engine" in given:
            raise BadInput("a change keeps the engine", ['compare engines: compare --strategy "engine=sglang"'])
        for key in given:
            if key not in KEYWORDS:
                raise UnknownName("keyword of a change", key[:80], KEYWORDS)
        return "keywords", given
    if not isinstance(given, str) or "=" not in given[:4_000]:
        raise BadInput(f"a change is text such as 'pcie=gen6', or keywords of deploy, not {shown(given)}",
                       [f"known: {', '.join(KINDS)}"])
    kind, _, value = given.partition("=")
    kind = kind.strip().lower().replace("_", "-")
    if kind not in KINDS:
        raise UnknownName("kind of change", kind, KINDS)
    if not value.strip() or len(given) > 400:
        raise BadInput(f"{kind} needs a value, in at most 400 characters")
    return kind, value.strip()


def as_text(keywords: dict[str, Any]) -> str:
    """Keywords as one text, as --strategy has them."""
    return ",".join(f"{key}={value if isinstance(value, str) else shown(value)}" for key, value in keywords.items())


def apply(d: Deployment, given: Any) -> Change:
    """The deployments that a change leads to. Refuses what it cannot be asked of."""
    kind, value = read_change(given)
    text = given if isinstance(given, str) else as_text(value)
    if kind == "keywords":
        return Change(text, (Variant("", changed(d, value)),), ())
    if kind == "power":
        return _power(d, text, value)
    if kind == "host-memory":
        return _host_memory(d, text, value)
    if kind == "nccl":
        return Change(text, (Variant("", changed(d, {"nccl": None if value in ("none", "default") else value})),), ())
    if kind == "p2p":
        return _p2p(d, text, _switch(kind, value))
    if kind == "nodes":
        return _nodes(d, text, node_changes.machines(d.node, d.accelerator, value))
    if kind == "lost":
        return _lost(d, text, value)
    make: Callable[[Node, Accelerator, str], Changed] = {
        "gpu": node_changes.another, "pcie": node_changes.pcie, "nvlink": node_changes.nvlink}[kind]
    new = make(d.node, d.accelerator, value)
    made, note = _fraction_that_fits(d, on(d, new)) if kind == "gpu" else (Variant("", on(d, new)), ())
    return Change(text, (made,), (*new.assumptions, *note))


def _fraction_that_fits(d: Deployment, made: Deployment) -> tuple[Variant, tuple[str, ...]]:
    """A memory fraction that was asked for on one card may leave no room on another: then the engine's default there,
    or the nearest fraction that fits."""
    asked, report = d.requested.memory_fraction, memory(made, hints=False)
    if report.fits:
        return Variant("", made), ()
    if asked is None:
        return Variant("", made), _would_fit(made)
    other = _first_that_fits(made, [None, *_nearest(asked)])
    if other is None:
        return Variant("", made), (f"no memory_fraction from 0.5 to 0.98 fits there: {report.pool.reason}",)
    taken = other.options.memory_fraction
    whose = " (the engine's default there)" if other.requested.memory_fraction is None else ""
    return Variant(f"memory_fraction={taken:.4g}", other), (
        f"memory_fraction={asked:g} of the launch does not fit there: {report.pool.reason}; {taken:.4g}{whose} "
        "does, and is taken",)


def _would_fit(made: Deployment) -> tuple[str, ...]:
    """The nearest memory fraction that fits where the engine's default does not."""
    default = made.options.memory_fraction or 0.9
    other = _first_that_fits(made, _nearest(default))
    if other is None:
        return ()
    taken = other.options.memory_fraction
    return (f"the engine's default memory fraction there, {default:.4g}, does not fit; {taken:g} does",)


def _nearest(fraction: float) -> list[float]:
    """Memory fractions from 0.5 to 0.98, the nearest first."""
    return sorted((k / 100 for k in range(50, 99)), key=lambda value: abs(value - fraction))


def _first_that_fits(made: Deployment, fractions: Sequence[float | None]) -> Deployment | None:
    """The deployment with the first of these memory fractions (None: the engine's default) that fits."""
    for fraction in fractions:
        other = changed(made, {"memory_fraction": fraction})
        if memory(other, hints=False).fits:
            return other
    return None


def on(d: Deployment, new: Changed, keywords: dict[str, Any] | None = None) -> Deployment:
    """The same request on a changed machine; another GPU takes its own calibration.

    Where the node's own collectives do not hold any more, names of its variants say nothing, and NCCL is told to use
    the P2P that the node has, as it was when they were measured.
    """
    keywords = dict(keywords or {})
    words = (d.requested.nccl or "").split()
    if new.node.collectives is None and words:
        words = [word for word in words if "=" in word or word[:1].isdigit()]
        keywords["nccl"] = " ".join(words) or None
    made = _made(d, new, keywords)
    if (new.node.collectives is None and new.node.p2p is True and new.node.topology.kind == "pcie"
            and "NCCL_P2P" not in " ".join(words) and made.options.world > 1
            and links_of(made).transport(made.options.world) == "host"):
        made = _made(d, new, {**keywords, "nccl": " ".join([*words, "NCCL_P2P_LEVEL=SYS"])})
    return made


def _made(d: Deployment, new: Changed, keywords: dict[str, Any]) -> Deployment:
    if new.node.accelerator != d.node.accelerator:
        asked = {key: value for key in KEYWORDS if (value := getattr(d.requested, key)) not in (None, ())}
        engine = f"{d.options.engine}=={d.options.version}"
        return deploy(d.model, node=new.node, engine=engine, **{**asked, **keywords})
    made = changed(d, keywords, new.node)
    return made if new.accelerator is None else replace(made, accelerator=new.accelerator)


def _switch(kind: str, value: str) -> bool:
    words = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
    if value.lower() not in words:
        raise BadInput(f"{kind} must be on or off, not {value[:40]!r}")
    return words[value.lower()]


def _power(d: Deployment, text: str, value: str) -> Change:
    """A power cap by the law that step/machine.py holds, and what other cards did as the ends of the band."""
    full = d.accelerator.power.limit.value
    if full is None:
        raise BadInput(f"{d.accelerator.name}: the catalog has no power limit to compare with")
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(%|W|)", value)
    if match is None:
        raise BadInput(f"power must be watts or a share, such as '450 W' or '75 %', not {value[:40]!r}")
    cap = float(match[1]) * (full / 100 if match[2] == "%" else 1.0)
    share = cap / full
    if not min(SLOWER) <= share <= 1:
        raise BadInput(f"power must lie between {min(SLOWER) * full:g} and {full:g} W for {d.accelerator.name}, not "
                       f"{cap:g}: further down memory slows down too, and no measurement says how much")
    ratio = next(r for least, r in SLOWER.items() if share >= least)
    slow = scaled_accelerator(changed(d, {"power_limit": full * share**ratio}), "bandwidth", share**DECODE_EXPONENT)
    fast = changed(d, {"power_limit": full * share**FASTER})
    own = d.accelerator.name.startswith("rtx-pro-6000")
    kind = "measured on this card between 300 and 500 W" if own else "assumed: measured on RTX PRO 6000 only"
    return Change(text, (Variant("", changed(d, {"power_limit": cap}), (slow, fast)),), (
        f"{cap:g} of {full:g} W: arithmetic as the power {POWER_EXPONENT:g} of the cap ({kind}), memory "
        f"at full speed; the band also holds {ratio:g} and {FASTER:g} times that power, and memory that slows with a "
        f"power of {DECODE_EXPONENT:g}, as RTX 3090 did",))


def _host_memory(d: Deployment, text: str, value: str) -> Change:
    try:
        size = parse(value, "B")
    except ValueError as problem:
        raise BadInput(f"host-memory: {problem}", ["such as 'host-memory=512 GiB'"]) from None
    if not 2**30 <= size <= 2**50:
        raise BadInput(f"host-memory must lie between 1 GiB and 1 PiB, not {value[:40]!r}")
    notes = [f"{size / 2**30:g} GiB of host memory: it moves the load of the model, not its speed"]
    if d.options.kv_offload and d.options.kv_offload > size:
        notes.append("kv_offload asks for more than that: the engine does not start")
    return Change(text, (Variant("", d),), tuple(notes), host_memory=size)


def _p2p(d: Deployment, text: str, wanted: bool) -> Change:
    if d.node.topology.kind == "nvlink":
        if wanted:
            raise BadInput(f"P2P is on over the NVLink of {d.node.name} already")
        words = " ".join(filter(None, (d.requested.nccl, "NCCL_P2P_DISABLE=1")))
        return Change(text, (Variant("", changed(d, {"nccl": words})),),
                      ("NCCL_P2P_DISABLE=1 on NVLink: messages go through host memory",))
    new = node_changes.p2p(d.node, wanted)
    return Change(text, (Variant("", on(d, new)),), new.assumptions)


def _nodes(d: Deployment, text: str, new: Changed) -> Change:
    """The ways to use more machines: copies, longer pipelines, wider tensor parallelism."""
    o, times = d.requested, new.node.count // d.node.count
    wide = {"tp": o.tp * times, **({"ep": o.ep * times} if o.ep > 1 else {}),
            **({"dp_attention": o.dp_attention * times} if o.dp_attention > 1 else {})}
    ways = ((f"{times} copies", {"dp": o.dp * times}), (f"pp x{times}", {"pp": o.pp * times, "layers_per_stage": None}),
            (f"tp x{times}", wide))
    inside = new._replace(node=node_changes.with_collectives(new.node, d.node))
    found = _tried(d, text, new, ways[1:])
    copies = _tried(d, text, inside, ways[:1])
    fits = [v for v in (*copies.variants, *found.variants) if memory(v.deployment, hints=False).fits]
    return Change(text, tuple(fits) or (*copies.variants, *found.variants), new.assumptions,
                  (*copies.refused, *found.refused))


def _lost(d: Deployment, text: str, value: str) -> Change:
    if not value.isdecimal() or len(value) > 6:
        raise BadInput(f"lost must be a whole number of GPUs, not {value[:40]!r}")
    new = node_changes.without(d.node, int(value))
    if d.gpus <= new.node.count:
        return Change(text, (Variant("", on(d, new)),), new.assumptions)
    found = _tried(d, text, new, tuple(_strategies(d, new.node.count)))
    count = len(found.refused)
    return replace(found, refused=(f"{count} strategies that the engine does not run",) if count else ())


def _strategies(d: Deployment, gpus: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Strategies that use at most so many GPUs, none of which another could take as well."""
    moe, layers = d.facts.experts > 0, d.facts.layers
    for tp, pp in itertools.product((1, 2, 3, 4, 5, 6, 7, 8, 16, 32), range(1, min(gpus, layers) + 1)):
        dp = gpus // (tp * pp)
        if dp < 1 or (pp > 1 and gpus - tp * pp * dp >= tp):
            continue
        for spread in ({}, {"ep": tp}, {"ep": tp, "dp_attention": tp}):
            if not spread or (moe and tp > 1):
                words = {"tp": tp, "pp": pp, "dp": dp, "ep": 1, "dp_attention": 1, "dcp": 1, "layers_per_stage": None}
                yield "", {**words, **spread}


def _tried(d: Deployment, text: str, new: Changed, ways: tuple[tuple[str, dict[str, Any]], ...]) -> Change:
    """Those ways that the engine can run; where any fits, those that fit."""
    found, refused = [], []
    for label, keywords in ways:
        try:
            made = on(d, new, keywords)
        except PerfModelError as problem:
            refused.append(f"{label or ','.join(f'{k}={v}' for k, v in keywords.items() if v not in (1, None))}: "
                           f"{problem.message}")
            continue
        found.append(Variant(label or made.name, made))
    fitting = [v for v in found if memory(v.deployment, hints=False).fits]
    return Change(text, tuple(fitting or found), new.assumptions, tuple(refused))
