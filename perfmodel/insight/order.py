"""Does the model put strategies in the right order? Pairs measured side by side, differing in the strategy alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import strategy_name
from perfmodel.engines.options import Options
from perfmodel.insight import observed, parallel, served
from perfmodel.insight.validate import Compared, validate

STRATEGY = ("tp", "pp", "ep", "dp", "dp_attention", "dcp")
# What must be equal for two rows to stand side by side. A version that is not stated counts as equal on one date.
SAME = ("author", "source", "model", "weights", "quantization", "kv_dtype", "gpu", "topology", "engine",
        "engine_version", "cuda_graphs", "attention_backend", "spec", "prompts", "prompts_at_once", "lengths", "isl",
        "osl", "concurrency", "metric")  # fmt: skip
LEAST_RATIO = 1.10  # pairs nearer than this are noise of the measurement as much as of the model
FILES = {observed.SWEEPS: "decode", observed.CASE: "case", parallel.PARALLEL: "parallel", served.SERVED: "e2e"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two strategies on one model, node and engine under one load; the first was measured to be better."""

    differs: str  # keywords of the strategy that are not the same
    better: str
    worse: str
    where: str
    gpus_equal: bool
    measured_ratio: float  # how much better, above 1
    predicted_ratio: float  # the same of the predictions; right where above 1
    more_tp: bool  # whether "always TP" picks the better one

    @property
    def right(self) -> bool:
        """Whether the model has them in the measured order."""
        return self.predicted_ratio > 1.0


@dataclass(frozen=True, eq=False)
class Order:
    """All pairs that differ by over 10 %."""

    pairs: tuple[Pair, ...]

    def scores(self) -> list[dict[str, Any]]:
        """Pairs, share in the right order and what "always TP" scores: by what differs, then over all."""
        labels = list(dict.fromkeys(pair.differs for pair in sorted(self.pairs, key=lambda pair: pair.differs)))
        groups = [(label, [pair for pair in self.pairs if pair.differs == label]) for label in labels]
        equal = [pair for pair in self.pairs if pair.gpus_equal]
        return [_score(name, pairs) for name, pairs in [*groups, ("all on as many GPUs", equal), ("all", self.pairs)]
                if pairs]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"least_ratio": LEAST_RATIO, "scores": self.scores(),
                "pairs": [{**asdict(pair), "right": pair.right} for pair in self.pairs]}

    def text(self) -> str:
        """A table of at most 80 columns, and the pairs in the wrong order that are farthest apart."""
        out = [f"{'differs in':32}{'pairs':>7}{'right':>7}{'share':>8}{'always TP':>11}"]
        out += [f"{s['differs']:32}{s['pairs']:7}{s['right']:7}{s['share']:8.0%}{s['always_tp']:11.0%}"
                for s in self.scores()]
        wrong = sorted((pair for pair in self.pairs if not pair.right), key=lambda pair: -pair.measured_ratio)
        if wrong:
            out += ["", "in the wrong order, farthest apart first:"]
            out += [f"  {pair.better} {pair.measured_ratio:.2f} x {pair.worse}, predicted {pair.predicted_ratio:.2f}: "
                    f"{pair.where}"[:80] for pair in wrong[:10]]
        return "\n".join(out)

    def __repr__(self) -> str:
        return f"<Order of {len(self.pairs)} pairs, {np.mean([pair.right for pair in self.pairs]):.0%} right>"


def _score(name: str, pairs: Iterable[Pair]) -> dict[str, Any]:
    found = list(pairs)
    right = sum(pair.right for pair in found)
    return {"differs": name, "pairs": len(found), "right": right, "share": right / len(found),
            "always_tp": sum(pair.more_tp for pair in found) / len(found)}


def order() -> Order:
    """Every pair in the observations that differs in its strategy alone and by over 10 %."""
    pairs: list[Pair] = []
    for stem, kind in FILES.items():
        raw = {row["id"]: row for row in observed.read(stem)}
        groups: dict[tuple[str, ...], dict[tuple[int, ...], list[Compared]]] = {}
        for row in validate(kind).rows:
            if row.id in raw:
                same = _conditions(raw[row.id])
                groups.setdefault(same, {}).setdefault(_strategy(raw[row.id]), []).append(row)
        for same, found in groups.items():
            pairs += [pair for a, b in itertools.combinations(found, 2)
                      if (pair := _pair(same, a, found[a], b, found[b])) is not None]
    return Order(tuple(pairs))


def _conditions(row: dict[str, str]) -> tuple[str, ...]:
    undated = not row.get("engine_version")
    return tuple(row.get(key, "") or "" for key in SAME) + ((row["date"],) if undated else ())


def _strategy(row: dict[str, str]) -> tuple[int, ...]:
    return tuple(int(row.get(key) or 1) for key in STRATEGY)


def _pair(same: tuple[str, ...], a: tuple[int, ...], rows_a: list[Compared], b: tuple[int, ...],
          rows_b: list[Compared]) -> Pair | None:
    """The pair with the better one first; None where they are nearer than 10 %. Repeated runs count once."""
    sign = 1.0 if rows_a[0].unit == "tok/s" else -1.0  # seconds: less is better
    measured, predicted = (sign * (_mean(rows_a, name) - _mean(rows_b, name)) for name in ("measured", "predicted"))
    if abs(measured) <= np.log(LEAST_RATIO):
        return None
    better, worse = (a, b) if measured > 0 else (b, a)
    labels = [key for key, x, y in zip(STRATEGY, a, b, strict=True) if x != y]
    conditions = dict(zip(SAME, same, strict=False))
    where = ", ".join(filter(None, (conditions["model"], conditions["gpu"], conditions["engine"],
                                    f"C={conditions['concurrency']}", conditions["metric"])))
    return Pair("+".join(labels), _name(better), _name(worse), where, _gpus(a) == _gpus(b),
                float(np.exp(abs(measured))), float(np.exp(np.sign(measured) * predicted)),
                _tensor_parallel(better) > _tensor_parallel(worse))


def _mean(rows: list[Compared], name: str) -> float:
    return float(np.mean(np.log([getattr(row, name) for row in rows])))


def _gpus(strategy: tuple[int, ...]) -> int:
    return strategy[0] * strategy[1] * strategy[3]


def _tensor_parallel(strategy: tuple[int, ...]) -> tuple[int, ...]:
    """The order of "always TP": most ranks a layer, then as little else as there can be."""
    tp, pp, ep, dp, groups, dcp = strategy
    return tp // groups, -pp, -ep, -dp, -dcp


def _name(strategy: tuple[int, ...]) -> str:
    tp, pp, ep, dp, groups, dcp = strategy
    return strategy_name(Options(tp=tp, pp=pp, ep=ep, dp=dp, dp_attention=groups, dcp=dcp))
