"""Several deployments side by side, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, shown
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.predict import predict
from perfmodel.step.memory import MemoryReport, memory


@dataclass(frozen=True, eq=False)
class Comparison:
    """Curves in the order of their throughput at the largest concurrency; those that do not fit come last."""

    curves: tuple[ServingCurve, ...]
    memories: tuple[MemoryReport, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """A list with deployment, launch command, rank and points."""
        return [
            {
                "rank": rank,
                "strategy": curve.deployment.name,
                "command": curve.deployment.command(),
                "fits": report.fits,
                "verdict": report.verdict,
                "kv_tokens": report.kv_tokens,
                **curve.to_dict(),
            }
            for rank, (curve, report) in enumerate(zip(self.curves, self.memories, strict=True), start=1)
        ]

    def __repr__(self) -> str:
        return f"<Comparison {', '.join(curve.deployment.name for curve in self.curves)}>"


def compare(
    deployments: Sequence[Deployment],
    *,
    concurrency: Any = (1, 8, 32, 128),
    input_tokens: Any = 1024,
    output_tokens: Any = 1024,
    arrival: str | None = None,
) -> Comparison:
    """Predict every deployment on the same workload and rank them."""
    if isinstance(deployments, Deployment):
        deployments = [deployments]
    if not isinstance(deployments, Sequence) or not deployments:
        raise BadInput(f"compare needs a list of at least one deployment, not {shown(deployments)}")
    curves = [
        predict(d, concurrency=concurrency, input_tokens=input_tokens, output_tokens=output_tokens, arrival=arrival)
        for d in deployments
    ]
    reports = [memory(d, hints=False) for d in deployments]
    order = np.lexsort([[-curve.output_tok_s[0][-1] for curve in curves], [not report.fits for report in reports]])
    return Comparison(tuple(curves[i] for i in order), tuple(reports[i] for i in order))
