"""The best strategy: everything that fits, priced on one workload, ranked by one target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel import catalog
from perfmodel.catalog import ModelArch, Node
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Infeasible, UnknownName, is_number, shown, word
from perfmodel.planner.space import candidates
from perfmodel.serving.closed_loop import closed_loop
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.lengths import parse_lengths
from perfmodel.step.memory import memory

TARGETS = ("throughput", "throughput_per_gpu", "latency", "cost")
_POINTS = 40  # concurrencies at which every candidate is priced


@dataclass(frozen=True, eq=False)
class Choice:
    """One deployment at its best concurrency under the limits."""

    deployment: Deployment
    curve: ServingCurve  # one point, with its band
    kv_tokens: int
    score: float

    def to_dict(self) -> dict[str, Any]:
        """Deployment, command and the point."""
        return {
            **self.deployment.to_dict(),
            "kv_tokens": self.kv_tokens,
            **self.curve.points[0],
            "output_tok_s_per_gpu": float(self.curve.output_tok_s[0][0]) / self.deployment.gpus,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """Ranked choices, how many were looked at, and whether the first is really ahead of the second."""

    target: str
    choices: tuple[Choice, ...]
    priced: int  # deployments x concurrencies
    refused: int  # deployments that do not fit
    separated: bool  # the bands of the first two do not overlap
    pareto: tuple[dict[str, Any], ...]
    assumptions: tuple[str, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """A list with rank, deployment, launch command and figures."""
        return [
            {
                "rank": rank,
                "target": self.target,
                "ahead_of_next": self.separated if rank == 1 else None,
                **choice.to_dict(),
                "assumptions": list(self.assumptions),
            }
            for rank, choice in enumerate(self.choices, start=1)
        ]

    def __repr__(self) -> str:
        best = self.choices[0]
        return f"<Plan {self.target}: {best.deployment.name}, {self.priced:,} points priced, {self.refused} do not fit>"


def plan(
    model: str | ModelArch,
    *,
    node: str | Node,
    engine: str = "vllm",
    target: str = "throughput",
    concurrency: float | None = None,
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    max_ttft_ms: float | None = None,
    max_tpot_ms: float | None = None,
    price_per_gpu_hour: float | None = None,
    keep: int = 10,
    **fixed: Any,
) -> Plan:
    """Search strategies of ``engine`` on ``node`` and rank those that fit.

    ``target``: most output tok/s over all GPUs, per GPU, least TPOT, or least money per token. ``concurrency`` is what
    the client keeps in flight at most (1024 if not said); each choice is shown at its best concurrency under the TTFT
    and TPOT limits. Any keyword of `deploy` may be fixed.

    Raises `Infeasible` if nothing fits or nothing meets the limits.
    """
    word("engine", engine)
    _check(target, concurrency, max_ttft_ms, max_tpot_ms, price_per_gpu_hour, keep)
    arch = model if isinstance(model, ModelArch) else catalog.load_model(model)
    machine = node if isinstance(node, Node) else catalog.load_node(node)
    inputs, outputs = parse_lengths(input_tokens), parse_lengths(output_tokens)
    most = float(concurrency or 1024)
    grid = concurrencies(most)
    found, points, refused = [], [], 0
    for d in candidates(arch, machine, engine, fixed, most):
        report = memory(d, hints=False)
        if not report.fits or inputs.mean + outputs.mean > (d.options.context or d.facts.max_context):
            refused += 1
            continue
        curve = closed_loop(d, grid, inputs, outputs, None, uncertain=False)
        points.append((d, curve))
        best = _best(curve, target, max_ttft_ms, max_tpot_ms)
        if best is not None:
            found.append((best[0], best[1], d, report.kv_tokens_total))
    if not points:
        raise Infeasible(
            f"nothing fits: {refused} deployments of {arch.name} on {machine.name} looked at",
            ["more GPUs, a smaller weight format, or a shorter context is needed"],
        )
    if not found:
        raise Infeasible("no deployment meets the limits", [_closest(points, max_ttft_ms, max_tpot_ms)])
    found.sort(key=lambda item: -item[0])
    kept = _distinct(found)[: max(1, int(keep))]
    choices = tuple(Choice(d, closed_loop(d, np.array([c]), inputs, outputs), kv, score) for score, c, d, kv in kept)
    notes = choices[0].curve.assumptions
    return Plan(target, choices, len(points) * len(grid), refused, _separated(choices, target), _pareto(points), notes)


def concurrencies(most: float) -> np.ndarray:
    """What every candidate is priced at: multiples of eight, which no CUDA graph pads, and the largest asked for.

    >>> concurrencies(20).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 20.0]
    """
    eights = 8 * np.round(np.geomspace(8, max(most, 8), _POINTS) / 8)
    wanted = np.concatenate([[1.0, 2.0, 4.0, most], eights])
    return np.unique(wanted[wanted <= most])


def _best(curve: ServingCurve, target: str, ttft_ms: float | None, tpot_ms: float | None) -> tuple[float, float] | None:
    """Score and concurrency of the best point under the limits; None if no point meets them."""
    tok_s, ttft, tpot = (band[0] for band in (curve.output_tok_s, curve.ttft_s, curve.tpot_s))
    ok = (ttft * 1e3 <= (ttft_ms or np.inf)) & (tpot * 1e3 <= (tpot_ms or np.inf))
    if not np.any(ok):
        return None
    score = {"latency": 1 / tpot, "throughput": tok_s}.get(target, tok_s / curve.deployment.gpus)
    index = int(np.argmax(np.where(ok, score, -np.inf)))
    return float(score[index]), float(curve.concurrency[index])


def _distinct(found: list[tuple[float, float, Deployment, int]]) -> list[tuple[float, float, Deployment, int]]:
    """The best of each strategy: other KV formats and fractions of it are not separate plans."""
    seen: dict[str, tuple[float, float, Deployment, int]] = {}
    for item in found:
        seen.setdefault(item[2].name, item)
    return list(seen.values())


def _separated(choices: tuple[Choice, ...], target: str) -> bool:
    if len(choices) < 2:
        return True
    first, second = (choice.curve for choice in choices[:2])
    if target == "latency":
        return bool(first.tpot_s[2][0] < second.tpot_s[1][0])
    return bool(first.output_tok_s[1][0] > second.output_tok_s[2][0])


def _pareto(points: list[tuple[Deployment, ServingCurve]]) -> tuple[dict[str, Any], ...]:
    """Points that no other beats in both tok/s per GPU and tok/s per user."""
    rows = [
        (float(1 / t), float(s / d.gpus), d.name, float(c))
        for d, curve in points
        for c, s, t in zip(curve.concurrency, curve.output_tok_s[0], curve.tpot_s[0], strict=True)
    ]
    front, best = [], -1.0
    for user, gpu, name, c in sorted(rows, key=lambda row: (-row[0], -row[1])):
        if gpu > best:
            best = gpu
            front.append({"tok_s_per_user": user, "tok_s_per_gpu": gpu, "strategy": name, "concurrency": c})
    return tuple(front)


def _closest(points: list[tuple[Deployment, ServingCurve]], ttft_ms: float | None, tpot_ms: float | None) -> str:
    ttft = min(float(curve.ttft_s[0].min()) for _, curve in points) * 1e3
    tpot = min(float(curve.tpot_s[0].min()) for _, curve in points) * 1e3
    return (
        f"the shortest TTFT found is {ttft:.0f} ms (limit {ttft_ms or 'none'}), "
        f"the shortest TPOT {tpot:.1f} ms (limit {tpot_ms or 'none'})"
    )


def _check(target: str, *numbers: Any) -> None:
    if word("target", target) not in TARGETS:
        raise UnknownName("target", target, TARGETS)
    names = ("concurrency", "max_ttft_ms", "max_tpot_ms", "price_per_gpu_hour", "keep")
    for name, value in zip(names, numbers, strict=True):
        if (value is not None or name == "keep") and (not is_number(value) or not 0 < value < 1e9):
            raise BadInput(f"{name} must be a positive number, not {shown(value)}")
