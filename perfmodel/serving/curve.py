"""ServingCurve: throughput, TTFT and TPOT over concurrency, with bands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.step.cost import plain

Band = tuple[Any, Any, Any]  # point, low, high


@dataclass(frozen=True, eq=False)
class ServingCurve:
    """One point a concurrency. Arrays of one length; bands are 80 %."""

    deployment: Deployment
    concurrency: np.ndarray
    running: np.ndarray
    output_tok_s: Band
    ttft_s: Band
    tpot_s: Band
    bound_by: np.ndarray
    parts: dict[str, np.ndarray]  # seconds per output token of a sequence, adding up to TPOT
    input_tokens: float
    output_tokens: float
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    scalar: bool = False

    @property
    def points(self) -> list[dict[str, Any]]:
        """The points as the JSON contract names them."""
        rows = []
        for i, c in enumerate(self.concurrency):
            row: dict[str, Any] = {"concurrency": plain(c), "running": plain(self.running[i])}
            for name, band, scale in (
                ("output_tok_s", self.output_tok_s, 1.0),
                ("ttft_ms", self.ttft_s, 1e3),
                ("tpot_ms", self.tpot_s, 1e3),
            ):
                for suffix, values in zip(("", "_low", "_high"), band, strict=True):
                    row[name + suffix] = plain(values[i] * scale)
            row["bound_by"] = plain(self.bound_by[i])
            row["parts"] = {name: plain(values[i]) for name, values in self.parts.items()}
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """JSON of the public contract."""
        return {
            "deployment": self.deployment.to_dict(),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "points": self.points,
            "warnings": list(self.warnings),
            "assumptions": list(self.assumptions),
        }

    def __repr__(self) -> str:
        points = list(zip(self.concurrency, self.output_tok_s[0], strict=True))[:8]
        pairs = ", ".join(f"C={c:g}: {t:.0f}" for c, t in points)
        return f"<ServingCurve {self.deployment.name}, tok/s at {pairs}>"
