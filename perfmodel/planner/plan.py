"""The best strategy: everything that fits, priced on one workload, ranked by one target."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.catalog import ModelArch
from perfmodel.deployment import Deployment, varied
from perfmodel.deployment.deploy import KEYWORDS, checked
from perfmodel.errors import BadInput, Infeasible, UnknownName, is_number, shown, whole, word
from perfmodel.planner.job import Job, size_job
from perfmodel.planner.kinds import Kind, kinds
from perfmodel.planner.measure import measure_command
from perfmodel.planner.pools import pool_commands, split_prices
from perfmodel.planner.price import Prices, concurrencies, front, price, together
from perfmodel.planner.refusals import why_nothing
from perfmodel.planner.space import SMALL, Advance, kept_families
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.disaggregated import disaggregated
from perfmodel.serving.lengths import Lengths, parse_lengths
from perfmodel.step.factors import factors_of

TARGETS = ("throughput", "throughput_per_gpu", "latency", "cost", "time")
POINTS = 128  # concurrencies at which every candidate is priced; a quarter of them on large clusters
_MTOK = 1e6 / 3600.0  # hours that a million tokens take at one token a second


@dataclass(frozen=True, eq=False)
class Choice:
    """One deployment at its best concurrency under the limits."""

    deployment: Deployment
    curve: ServingCurve  # one point, with its band
    kv_tokens: int
    score: float
    price_per_gpu_hour: float | None = None
    job: Job | None = None
    pools: tuple[int, int] | None = None  # copies that prefill and that decode, where they are apart

    @property
    def gpus(self) -> int:
        """GPUs used, over all pools."""
        return self.deployment.gpus * sum(self.pools or (1,))

    @property
    def name(self) -> str:
        """Label of the strategy."""
        return named(self.deployment, self.pools)

    @property
    def output_tok_s_per_gpu(self) -> float:
        """Output tokens per second of one GPU. [1/s]"""
        return float(self.curve.output_tok_s[0][0]) / self.gpus

    @property
    def cost_per_mtok(self) -> float | None:
        """Money for a million output tokens; None without a price."""
        rate = self.output_tok_s_per_gpu
        return None if self.price_per_gpu_hour is None else self.price_per_gpu_hour * _MTOK / rate

    @property
    def commands(self) -> tuple[tuple[int, str, str], ...]:
        """What to launch: how many times, for what, and the command; the engines of several stand behind a router."""
        return self.deployment.launches() if self.pools is None else pool_commands(self.deployment, self.pools)

    @property
    def measure(self) -> str:
        """Command that measures the same point on the started server."""
        return measure_command(self.deployment, self.curve)

    def to_dict(self) -> dict[str, Any]:
        """Deployment, commands and the point."""
        return {
            **self.deployment.to_dict(),
            "strategy": self.name,
            "gpus": self.gpus,
            "disaggregation": self.pools and "{}:{}".format(*self.pools),
            "commands": [{"copies": count, "role": role or "all", "command": line}
                         for count, role, line in self.commands],
            "measure_command": self.measure,
            "kv_tokens": self.kv_tokens,
            **self.curve.points[0],
            "output_tok_s_per_gpu": self.output_tok_s_per_gpu,
            "price_per_gpu_hour": self.price_per_gpu_hour,
            "cost_per_mtok": self.cost_per_mtok,
            "job": self.job and {key: value for key, value in self.job.to_dict().items() if key != "deployment"},
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """Ranked choices, how many were looked at, and whether the first is really ahead of the second."""

    target: str
    choices: tuple[Choice, ...]
    deployments: int  # that fit
    priced: int  # deployments x concurrencies
    refused: dict[str, int]  # by memory and context: deployments; by the engine's rules: strategies and settings
    separated: bool  # the bands of the first two do not overlap
    pareto: tuple[dict[str, Any], ...]
    fleet: tuple[dict[str, Any], ...]  # the best of every node, and its share of the tokens, where there are several
    cloud: dict[str, np.ndarray]  # every point: tok_s_per_user, tok_s_per_gpu
    assumptions: tuple[str, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """A list with rank, deployment, commands and figures; what concerns the whole search stands in the first."""
        search = {"deployments": self.deployments, "points": self.priced, "refused": self.refused,
                  "pareto": list(self.pareto), "fleet": list(self.fleet)}
        return [
            {
                "rank": rank,
                "target": self.target,
                "ahead_of_next": self.separated if rank == 1 else None,
                **choice.to_dict(),
                "search": search if rank == 1 else None,
                "assumptions": list(self.assumptions),
            }
            for rank, choice in enumerate(self.choices, start=1)
        ]

    def __repr__(self) -> str:
        best = self.choices[0]
        left = sum(self.refused.values())
        return f"<Plan {self.target}: {best.name}, {self.priced:,} points priced, {left:,} refused>"


def plan(
    model: str | ModelArch,
    *,
    node: Any,
    engine: Any = "vllm",
    gpus: int | None = None,
    target: str = "throughput",
    concurrency: float | None = None,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    max_ttft_ms: float | None = None,
    max_tpot_ms: float | None = None,
    samples: int | None = None,
    price_per_gpu_hour: Any = None,
    variants: bool = False,
    disaggregate: bool = True,
    keep: int = 10,
    advance: Advance | None = None,
    **fixed: Any,
) -> Plan:
    """Search every strategy and setting of ``engine`` on ``node`` and rank those that fit.

    ``node`` and ``engine`` may be lists. With ``gpus`` at most so many are used, a node may be named by its accelerator
    alone, and more machines are joined where one is not enough. ``target``: most output tok/s over all GPUs, per GPU,
    least TPOT, least money per token, or least time for ``samples`` requests. ``concurrency`` is what the client keeps
    in flight at most (1024 if not said); each choice is shown at its best concurrency under the TTFT and TPOT limits.
    ``price_per_gpu_hour`` is a figure, or a table by node or accelerator. ``variants`` adds the checkpoints of the same
    model in other formats that the catalog has, ``disaggregate`` pools that prefill and decode apart, for the best
    copies where several fit. ``advance`` is told what is done of what there is, node by node. Any keyword of `deploy`
    may be fixed.

    Raises `Infeasible` if nothing fits or nothing meets the limits.
    """
    _check(target, samples, concurrency=concurrency, max_ttft_ms=max_ttft_ms, max_tpot_ms=max_tpot_ms, keep=keep)
    unknown = [key for key in fixed if key not in (*KEYWORDS, "calibration")]
    if unknown:
        raise UnknownName("deploy keyword", unknown[0], (*KEYWORDS, "calibration", "model", "node", "engine"))
    for name, value in (("variants", variants), ("disaggregate", disaggregate)):
        if not isinstance(value, bool):
            raise BadInput(f"{name} must be True or False, not {shown(value)}")
    kept_fixed = {key: checked(key, value) for key, value in fixed.items() if value is not None}
    inputs, outputs = parse_lengths(input_tokens), parse_lengths(output_tokens)
    most = float(concurrency or min(1024, samples or 1024))
    spans = kinds(model, node, engine, gpus, price_per_gpu_hour, variants, kept_fixed)
    if target == "cost" and len({kind.base.node.name for kind in spans}) > 1 and any(
            kind.price_per_gpu_hour is None for kind in spans):
        raise BadInput("target cost over several nodes needs a price for each", ["price_per_gpu_hour={node: price}"])
    refused: Counter[str] = Counter()
    grid = concurrencies(most, POINTS if max(kind.gpus for kind in spans) <= SMALL else POINTS // 4)
    tables = [(kind, _table(kind, kept_fixed, grid, inputs, outputs, refused, advance)) for kind in spans]
    found = [(kind, table) for kind, table in tables if table is not None]
    if disaggregate and target != "time" and "dp" not in kept_fixed:
        found += [(kind, pools) for kind, table in found
                  if (pools := split_prices(table, kind.gpus, inputs, outputs)) is not None]
    if not found:
        raise why_nothing(spans, kept_fixed, refused, most, inputs.mean + outputs.mean)
    ranked = _ranked(found, target, max_ttft_ms, max_tpot_ms)
    if not ranked:
        raise Infeasible("no deployment meets the limits", [_closest(found, max_ttft_ms, max_tpot_ms)])
    kept = _distinct(ranked, max(1, int(keep)))
    choices = [_choice(item, inputs, outputs) for item in kept]
    if target == "time":
        choices = _timed(choices, int(samples or 0), inputs, outputs, most)
    cloud = _cloud(found)
    points = sum(table.output_tok_s.size for _, table in found)
    return Plan(target, tuple(choices), sum(len(table.deployments) for _, table in found), points, dict(refused),
                _separated(choices, target), _pareto(found, cloud), _fleet(ranked, spans), cloud,
                (*choices[0].curve.assumptions, *_notes(spans)))


def _table(kind: Kind, fixed: dict[str, Any], grid: np.ndarray, inputs: Lengths, outputs: Lengths,
           refused: Counter[str], advance: Advance | None) -> Prices | None:
    """Prices of everything that fits on one kind of node."""
    own = {key: value for key, value in fixed.items() if key not in ("quantization", "calibration")}
    factors = factors_of(kind.base).point(2)
    found, left = kept_families(kind.base, own, float(grid[-1]), inputs.mean + outputs.mean, kind.gpus,
                                  advance)
    refused += left
    parts = []
    for done, family in enumerate(found, start=1):
        parts.append(price(family, grid, inputs, outputs, factors))
        if advance:
            advance(len(found) + done, 2 * len(found))
    return together(parts) if parts else None


_Item = tuple[float, Kind, Prices, int, int]  # score, kind, table, row, column


def _ranked(found: list[tuple[Kind, Prices]], target: str, ttft_ms: float | None, tpot_ms: float | None) -> list[_Item]:
    """Every deployment at its best concurrency under the limits, best first; an earlier one wins a tie."""
    items: list[_Item] = []
    for kind, table in found:
        scores = _scores(table, target, kind.price_per_gpu_hour)
        ok = (table.ttft_s * 1e3 <= (ttft_ms or np.inf)) & (table.tpot_s * 1e3 <= (tpot_ms or np.inf))
        scores = np.where(ok, scores, -np.inf)
        best = scores.max(axis=1)
        column = np.argmax(scores >= best[:, None] * (1 - 1e-3), axis=1)  # the fewest requests that do as well
        items += [(float(best[i]), kind, table, int(i), int(column[i])) for i in np.flatnonzero(best > -np.inf)]
    return sorted(items, key=lambda item: -item[0])


def _scores(table: Prices, target: str, price: float | None) -> np.ndarray:
    """What is to be large."""
    if target == "latency":
        return 1 / table.tpot_s
    if target in ("throughput", "time"):
        return table.output_tok_s
    per_gpu = table.output_tok_s / table.gpus[:, None]
    return per_gpu / (price or 1.0) if target == "cost" else per_gpu


def named(d: Deployment, pools: tuple[int, int] | None) -> str:
    """Label of a strategy, with the copies of its pools where they are apart: ``TP2 P1:D3``."""
    return d.name if pools is None else f"{d.name} P{pools[0]}:D{pools[1]}"


def _key(item: _Item) -> tuple[str, ...]:
    d, pools = item[2].deployments[item[3]], item[2].pools[item[3]]
    return d.model.name, d.node.name, d.options.engine, named(d, pools)


def _distinct(ranked: list[_Item], keep: int) -> list[_Item]:
    """The best of each strategy: other settings of it are not separate plans."""
    seen: dict[tuple[str, ...], _Item] = {}
    for item in ranked:
        seen.setdefault(_key(item), item)
        if len(seen) == keep:
            break
    return list(seen.values())


def _choice(item: _Item, inputs: Lengths, outputs: Lengths) -> Choice:
    score, kind, table, row, column = item
    asked = {name: value for name, value in _keywords(table.deployments[row]).items() if name != "quantization"}
    d = varied(kind.base, **asked)
    pools, flight = table.pools[row], table.concurrency[[column]]
    curve = (closed_loop(d, flight, inputs, outputs) if pools is None
             else disaggregated(d, flight, None, inputs, outputs, pools))
    return Choice(d, curve, int(table.kv_tokens[row]), score, kind.price_per_gpu_hour, pools=pools)


def _keywords(d: Deployment) -> dict[str, Any]:
    return {name: getattr(d.requested, name) for name in KEYWORDS}


def _timed(choices: list[Choice], samples: int, inputs: Lengths, outputs: Lengths, most: float) -> list[Choice]:
    """The choices with the job sized on each, shortest first."""
    done = []
    for choice in choices:
        job = size_job(choice.deployment, samples=samples, input_tokens=inputs, output_tokens=outputs,
                       concurrency=most if most < samples else None, price_per_gpu_hour=choice.price_per_gpu_hour)
        done.append(Choice(choice.deployment, choice.curve, choice.kv_tokens, 1 / job.makespan_s,
                           choice.price_per_gpu_hour, job))
    return sorted(done, key=lambda choice: -choice.score)


def _separated(choices: list[Choice], target: str) -> bool:
    """Whether even the worse end of the first's band is better than the better end of the second's."""
    if len(choices) < 2:
        return True
    first, second = choices[:2]
    if first.job and second.job:
        return first.job.makespan_s_high < second.job.makespan_s_low
    if target == "latency":
        return bool(first.curve.tpot_s[2][0] < second.curve.tpot_s[1][0])
    scale = [1.0, 1.0]
    if target in ("throughput_per_gpu", "cost"):
        money = target == "cost"
        scale = [1 / (c.gpus * ((c.price_per_gpu_hour or 1.0) if money else 1.0)) for c in (first, second)]
    return bool(scale[0] * first.curve.output_tok_s[1][0] > scale[1] * second.curve.output_tok_s[2][0])


def _cloud(found: list[tuple[Kind, Prices]]) -> dict[str, np.ndarray]:
    return {
        "tok_s_per_user": np.concatenate([(1 / table.tpot_s).ravel() for _, table in found]),
        "tok_s_per_gpu": np.concatenate([(table.output_tok_s / table.gpus[:, None]).ravel() for _, table in found]),
    }


def _pareto(found: list[tuple[Kind, Prices]], cloud: dict[str, np.ndarray]) -> tuple[dict[str, Any], ...]:
    """Points that no other beats in both tok/s per GPU and tok/s per user."""
    starts = np.cumsum([0, *(table.output_tok_s.size for _, table in found)])
    rows = []
    for index in front(cloud["tok_s_per_user"], cloud["tok_s_per_gpu"]).tolist():
        part = int(np.searchsorted(starts, index, side="right")) - 1
        table = found[part][1]
        row, column = divmod(index - int(starts[part]), len(table.concurrency))
        d = table.deployments[row]
        rows.append({name: float(values[index]) for name, values in cloud.items()} | {
            "strategy": named(d, table.pools[row]), "node": d.node.name, "engine": d.options.engine,
            "model": d.model.name, "concurrency": float(table.concurrency[column])})
    return tuple(rows)


def _fleet(ranked: list[_Item], spans: list[Kind]) -> tuple[dict[str, Any], ...]:
    """All nodes at work side by side: the best of each, and the share of the tokens that it makes."""
    names = list(dict.fromkeys(kind.base.node.name for kind in spans))
    if len(names) < 2:
        return ()
    best = [next((item for item in ranked if item[1].base.node.name == name), None) for name in names]
    rates = [float(item[2].output_tok_s[item[3], item[4]]) if item else 0.0 for item in best]
    return tuple(
        {"node": name, "strategy": _key(item)[3], "engine": _key(item)[2], "gpus": int(item[2].gpus[item[3]]),
         "concurrency": float(item[2].concurrency[item[4]]), "output_tok_s": rate, "share": rate / sum(rates)}
        for name, item, rate in zip(names, best, rates, strict=True) if item)


def _notes(spans: list[Kind]) -> list[str]:
    names = dict.fromkeys(kind.base.model.name for kind in spans)
    return [f"variants {', '.join(names)}: what their answers are worth is not judged"] if len(names) > 1 else []


def _closest(found: list[tuple[Kind, Prices]], ttft_ms: float | None, tpot_ms: float | None) -> str:
    ttft = min(float(table.ttft_s.min()) for _, table in found) * 1e3
    tpot = min(float(table.tpot_s.min()) for _, table in found) * 1e3
    return (
        f"the shortest TTFT found is {ttft:.0f} ms (limit {ttft_ms or 'none'}), "
        f"the shortest TPOT {tpot:.1f} ms (limit {tpot_ms or 'none'})"
    )


def _check(target: str, samples: Any, **numbers: Any) -> None:
    if word("target", target) not in TARGETS:
        raise UnknownName("target", target, TARGETS)
    if (target == "time") != (samples is not None):
        raise BadInput("samples goes with target time: how many requests the job has",
                       ["target='time', samples=100000"])
    if samples is not None:
        whole("samples", samples, 1)
    for name, value in numbers.items():
        if (value is not None or name == "keep") and (not is_number(value) or not 0 < value < 1e9):
            raise BadInput(f"{name} must lie above 0 and below 1e9, not {shown(value)}")
