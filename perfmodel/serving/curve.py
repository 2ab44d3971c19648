"""ServingCurve: throughput, TTFT and TPOT over concurrency, with bands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.step.cost import plain

Band = tuple[Any, Any, Any]  # point, low, high


@dataclass(frozen=True, eq=False)
class ServingCurve:
    """One point a concurrency or request rate. Arrays of one length; bands are 80 %."""

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
    request_rate: np.ndarray | None = None  # open loop: arrivals per second; concurrency is then what is in flight
    percentiles: dict[str, np.ndarray] = field(default_factory=dict)  # ttft_p95, ttft_p99, tpot_p95, tpot_p99 [s]
    limit: float = float("inf")  # sequences that can run at once
    goodput_req_s: np.ndarray | None = None  # requests a second within the limits that were given
    good_share: np.ndarray | None = None
    capacity_req_s: float | None = None  # open loop: requests a second that the service can take

    @property
    def points(self) -> list[dict[str, Any]]:
        """The points as the JSON contract names them."""
        rows = []
        for i, c in enumerate(self.concurrency):
            asked = ("concurrency", c) if self.request_rate is None else ("request_rate", self.request_rate[i])
            row: dict[str, Any] = {asked[0]: plain(asked[1]), "running": plain(self.running[i])}
            for name, band, scale in (
                ("output_tok_s", self.output_tok_s, 1.0),
                ("ttft_ms", self.ttft_s, 1e3),
                ("tpot_ms", self.tpot_s, 1e3),
            ):
                for suffix, values in zip(("", "_low", "_high"), band, strict=True):
                    row[name + suffix] = plain(values[i] * scale)
            row |= {f"{name}_ms": plain(values[i] * 1e3) for name, values in self.percentiles.items()}
            if self.goodput_req_s is not None and self.good_share is not None:
                row |= {"goodput_req_s": plain(self.goodput_req_s[i]), "good_share": plain(self.good_share[i])}
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
            **({} if self.capacity_req_s is None else {"capacity_req_s": plain(self.capacity_req_s)}),
            "warnings": list(self.warnings),
            "assumptions": list(self.assumptions),
        }

    def __repr__(self) -> str:
        asked, sign = (self.concurrency, "C") if self.request_rate is None else (self.request_rate, "rate")
        points = list(zip(asked, self.output_tok_s[0], strict=True))[:8]
        pairs = ", ".join(f"{sign}={c:g}: {t:.0f}" for c, t in points)
        return f"<ServingCurve {self.deployment.name}, tok/s at {pairs}>"
