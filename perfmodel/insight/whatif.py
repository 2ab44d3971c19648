"""`whatif`: the same question asked of a changed machine or launch, and changes ranked by what they bring, or by what
they bring for their price. Nothing here knows a formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, PerfModelError, is_number, shown
from perfmodel.insight.changes import Change, Variant, apply, as_text, read_change
from perfmodel.planner.job_start import LOAD_BPS, start_of
from perfmodel.serving import ServingCurve, predict
from perfmodel.serving.curve import Band
from perfmodel.step import MemoryReport, memory
from perfmodel.step.cost import plain

CONCURRENCY = (1, 8, 32, 128)
MOST_CHANGES = 64


@dataclass(frozen=True, eq=False)
class Outcome:
    """One change and its best use. Rates follow `WhatIf.concurrency`; ``refused`` says why there is none."""

    change: str
    way: str
    deployment: Deployment | None
    memory: MemoryReport | None
    tok_s: Band | None              # point, low, high
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    load_s: tuple[float, float] | None     # as storage that feeds every rank reads it, and as one rank's rate for all
    gain: tuple[float, ...]         # change of tok/s, at each concurrency
    price: float | None
    others: tuple[str, ...]
    assumptions: tuple[str, ...]
    refused: str = ""

    @property
    def per_money(self) -> float | None:
        """Gain at the heaviest load for each thousand of the price."""
        if self.price is None or not self.gain:
            return None
        return 1e3 * self.gain[-1] / self.price if self.price else None


@dataclass(frozen=True, eq=False)
class WhatIf:
    """The launch as it is, and every change, best first."""

    deployment: Deployment
    concurrency: tuple[float, ...]
    base: Outcome
    outcomes: tuple[Outcome, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """The launch as it is, then the changes by rank."""
        return [self._entry(self.base, 0), *(self._entry(o, rank) for rank, o in enumerate(self.outcomes, start=1))]

    def _entry(self, o: Outcome, rank: int) -> dict[str, Any]:
        now = self.base.tok_s
        points: list[dict[str, Any]] = []
        if o.tok_s is not None and now is not None:
            for i, c in enumerate(self.concurrency):
                value, low, high = (plain(band[i]) for band in o.tok_s)
                points.append({
                    "concurrency": plain(c),
                    "output_tok_s": value, "output_tok_s_low": low, "output_tok_s_high": high,
                    "output_tok_s_now": plain(now[0][i]), "gain_tok_s": o.gain[i],
                    "gain_percent": 100 * o.gain[i] / plain(now[0][i]),
                    "ttft_ms": o.ttft_ms[i], "tpot_ms": o.tpot_ms[i],
                })  # fmt: skip
        return {
            **(o.deployment.to_dict() if o.deployment else {}), "rank": rank, "change": o.change or None, "way": o.way,
            "fits": o.memory.fits if o.memory else None, "verdict": o.memory.verdict if o.memory else None,
            "kv_tokens_total": o.memory.kv_tokens_total if o.memory else None,
            "load_s": o.load_s[0] if o.load_s else None,
            "load_s_high": o.load_s[1] if o.load_s else None, "points": points,
            "price": o.price, "gain_tok_s_per_1000": o.per_money, "other_ways": list(o.others), "refused": o.refused,
            "assumptions": list(o.assumptions),
        }  # fmt: skip

    def __repr__(self) -> str:
        best = self.outcomes[0].change if self.outcomes else "nothing asked"
        return f"<WhatIf {self.deployment.name}: {len(self.outcomes)} changes, first {best}>"


def whatif(
    deployment: Deployment,
    changes: Iterable[Any] | None = None,
    *,
    prices: Mapping[str, float] | None = None,
    concurrency: Any = CONCURRENCY,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
) -> WhatIf:
    """Ask a deployment again with each of ``changes``: ``gpu=NAME``, ``power=450 W``, ``host-memory=512 GiB``,
    ``nccl=WORDS``, ``pcie=gen6``, ``nvlink=450 GB/s``, ``p2p=on``, ``nodes=2``, ``lost=1``, or a dict of keywords.

    Without ``changes``, those that this node can be asked about. ``prices`` are by the text of a change; priced changes
    are ranked by tok/s at the heaviest load for their price, then the others by tok/s.
    """
    if changes is not None and not isinstance(changes, Iterable):
        raise BadInput(f"changes must be a list of texts or of keywords, not {shown(changes)}")
    asked = list(changes) if changes is not None and not isinstance(changes, str | dict) else (
        usual(deployment) if changes is None else [changes])
    if len(asked) > MOST_CHANGES:
        raise BadInput(f"at most {MOST_CHANGES} changes at once, not {len(asked)}")
    cost = _prices(prices, asked)

    def ask(d: Deployment) -> ServingCurve:
        return predict(d, concurrency=concurrency, input_tokens=input_tokens, output_tokens=output_tokens,
                       arrival=arrival)

    curve = ask(deployment)
    loads = tuple(float(c) for c in curve.concurrency)
    base = _outcome(Change("", (Variant("", deployment),), curve.assumptions), ask, None, None)
    base = replace(base, gain=(0.0,) * len(loads))
    found = []
    for given in asked:
        text = _text(given)
        try:
            found.append(_outcome(apply(deployment, given), ask, curve, cost.get(text)))
        except PerfModelError as problem:
            if len(asked) == 1:
                raise
            found.append(_none(text, problem.message, cost.get(text)))
    found.sort(key=_rank)
    return WhatIf(deployment, loads, base, tuple(found))


def _text(given: Any) -> str:
    kind, value = read_change(given)
    return str(given) if kind != "keywords" else as_text(value)


def _prices(prices: Mapping[str, float] | None, asked: list[Any]) -> dict[str, float]:
    texts = [_text(given) for given in asked]
    if not isinstance(prices, Mapping | None):
        raise BadInput(f"prices must be a table by the text of a change, not {shown(prices)}")
    for text, price in (prices or {}).items():
        if text not in texts:
            raise BadInput(f"a price is given for {shown(text)}, which is not asked about", texts[:8])
        if not is_number(price) or not 0 < price <= 1e12:
            raise BadInput(f"the price of {text} must be above 0, not {shown(price)}")
    return {text: float(price) for text, price in (prices or {}).items()}


def _rank(o: Outcome) -> tuple[float, float, float]:
    """Priced ones first, by gain for money; then by gain; then what does not fit; refused ones last."""
    gain = o.gain[-1] if o.gain else -np.inf
    if o.refused:
        return (3, 0, 0)
    if o.memory is not None and not o.memory.fits:
        return (2, -gain, 0)
    return (0, -o.per_money, -gain) if o.per_money is not None else (1, -gain, 0)


def usual(d: Deployment) -> list[str]:
    """What may be asked about this node: the other way round of whatever it is."""
    from perfmodel.insight.node_changes import generation
    from perfmodel.placement.topology import OUTSIDE

    gpu, node = d.accelerator, d.node
    found = [f"gpu={name}" for name in ("h200-sxm", "b200-sxm") if name != gpu.name]
    if gpu.power.limit.value:
        found.append(f"power={0.75 * gpu.power.limit.value:g} W")
    if node.topology.kind == "pcie":
        now = generation(float(gpu.link.host))
        found += [f"pcie=gen{g}" for g in (now - 1, now + 1) if 3 <= g <= 7]
        found.append(f"p2p={'off' if node.p2p else 'on'}")
        found += ["nvlink=450 GB/s"] if d.options.tp > 1 else []
    elif not set(node.topology.vertices.values()) & set(OUTSIDE):
        found += ["nvlink=off", "p2p=off"]
    if node.collectives and not d.requested.nccl:
        found += [f"nccl={name}" for name in node.collectives.variants if name != node.collectives.default]
    if not set(node.topology.vertices.values()) & set(OUTSIDE):
        found.append("nodes=2")
    return [*found, *(["lost=1"] if node.count > 1 else []), "host-memory=256 GiB"]


def _outcome(change: Change, ask: Any, now: ServingCurve | None, price: float | None) -> Outcome:
    """The best of the ways that a change allows, at the heaviest load."""
    if not change.variants:
        return _none(change.text, "; ".join(change.refused) or "no way to use it", price)
    answers = [(variant, ask(variant.deployment)) for variant in change.variants]
    answers.sort(key=lambda item: -float(item[1].output_tok_s[0][-1]))
    variant, curve = answers[0]
    d, report = variant.deployment, memory(variant.deployment, hints=False)
    point, low, high = (np.asarray(band, float) for band in curve.output_tok_s)
    for other in variant.also:
        _, below, above = ask(other).output_tok_s
        low, high = np.minimum(low, below), np.maximum(high, above)
    gain = () if now is None else tuple(float(x) for x in point - np.asarray(now.output_tok_s[0]))
    others = [f"{v.label}: {float(c.output_tok_s[0][-1]):,.0f} tok/s" for v, c in answers[1:6]]
    start = start_of(d, host_memory=change.host_memory)
    slow = start_of(d, host_memory=change.host_memory, storage_bandwidth=LOAD_BPS)
    notes = start.notes if change.host_memory is not None else ()
    fresh = [line for line in (*d.node.assumptions, *d.assumptions) if now is not None
             and line not in now.deployment.assumptions]
    return Outcome(
        change.text, variant.label, d, report, (point, low, high),
        tuple(float(x) * 1e3 for x in curve.ttft_s[0]), tuple(float(x) * 1e3 for x in curve.tpot_s[0]),
        (start.load_s, max(start.load_s, slow.load_s)), gain, price,
        (*others, *(f"refused: {r}" for r in change.refused)),
        tuple(dict.fromkeys((*change.assumptions, *notes, *fresh))) or ("all else as it is",),
    )  # fmt: skip


def _none(text: str, why: str, price: float | None) -> Outcome:
    return Outcome(text, "", None, None, None, (), (), None, (), price, (), (), why)
