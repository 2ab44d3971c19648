"""The calibrated factors of a deployment, with a leading axis of draws: the values, then one parameter moved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.catalog import Calibration
from perfmodel.deployment import Deployment
from perfmodel.errors import DescriptorError
from perfmodel.step.machine import arithmetic

Z80 = 1.2815515594457  # half-width of an 80 % interval, in standard deviations of a normal

# Every factor that the step and serving rooms use. A calibration must supply each of them.
NAMES = (
    "dram_efficiency",
    "moe_dram_efficiency",
    "moe_dram_efficiency_fp8",
    "moe_dram_efficiency_fp4",
    "moe_dram_efficiency_bf16",
    "moe_expert_overhead_bytes",
    "gemm_efficiency",
    "gemm_efficiency_fp8",
    "gemm_efficiency_fp4",
    "moe_compute_efficiency",
    "moe_compute_efficiency_fp8",
    "moe_compute_efficiency_fp4",
    "moe_compute_efficiency_bf16",
    "roofline_overlap",
    "kernel_s",
    "attention_dram_efficiency",
    "attention_half_blocks_per_sm",
    "attention_pad_tokens",
    "attention_decode_compute_efficiency",
    "attention_prefill_efficiency",
    "eager_kernel_s",
    "eager_rank_spread",
    "host_sequence_s",
    "step_fixed_s",
    "sync_step_s",
    "pipeline_hop_s",
    "micro_batch_s",
    "prefill_interference",
    "host_speed",
    "collective_latency_factor",
    "collective_bandwidth_factor",
    "routing_concentration_random",
    "routing_concentration_identical",
)
_FRACTIONS = ("roofline_overlap",)  # moved within [0, 1]


@dataclass(frozen=True, eq=False)
class Factors:
    """Values of all parameters; ``sd`` are standard deviations of their logarithms."""

    names: tuple[str, ...]
    values: np.ndarray
    sd: np.ndarray
    correlation: np.ndarray
    residual_sd: float
    sources: dict[str, str]

    def draws(self, ndim: int, uncertain: bool = True) -> dict[str, Any]:
        """Arrays of shape (1 + parameters, 1, ...): row 0 the values, row i parameter i moved up by one ``sd``.

        With ``uncertain`` false: the plain values.
        """
        if not uncertain:
            return dict(zip(self.names, self.values.tolist(), strict=True))
        moved = [i for i, sd in enumerate(self.sd) if sd > 0]
        table = np.tile(self.values, (1 + len(moved), 1))
        for row, i in enumerate(moved, start=1):
            table[row, i] *= np.exp(self.sd[i])
            if self.names[i] in _FRACTIONS:
                table[row, i] = min(1.0, table[row, i])
        shape = (1 + len(moved),) + (1,) * ndim
        return {name: table[:, i].reshape(shape) for i, name in enumerate(self.names)}

    def point(self, ndim: int) -> dict[str, Any]:
        """The values alone, in the shape that `draws` gives them: one draw."""
        shape = (1,) + (1,) * ndim
        return {name: self.values[i].reshape(shape) for i, name in enumerate(self.names)}

    def log_sd(self, values: np.ndarray) -> np.ndarray:
        """Deviation of the logarithm of a result, from its values over the draws and the residual of the fit."""
        if len(values) == 1:
            return np.full(values.shape[1:], self.residual_sd)
        safe = np.maximum(values, 1e-300)
        delta = np.log(safe[1:] / safe[0])
        moved = [i for i, sd in enumerate(self.sd) if sd > 0]
        cov = self.correlation[np.ix_(moved, moved)]
        variance = np.einsum("i...,ij,j...->...", delta, cov, delta)
        return np.sqrt(np.maximum(variance, 0) + self.residual_sd**2)

    def band(self, values: np.ndarray, more_sd: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Point, and the ends of its 80 % band (lognormal); ``more_sd``: what enters beside the factors."""
        spread = np.exp(Z80 * np.hypot(self.log_sd(values), more_sd))
        return values[0], values[0] / spread, values[0] * spread


def factors_of(deployment: Deployment, changes: dict[str, float] | None = None) -> Factors:
    """Factors from the deployment's calibration; those that it cannot use are held, which costs no draw."""
    factors = from_calibration(deployment.calibration, changes)
    idle = idle_factors(deployment)
    return replace(factors, sd=np.where([name in idle for name in factors.names], 0.0, factors.sd))


def idle_factors(deployment: Deployment) -> frozenset[str]:
    """Factors that no operation of this deployment is priced with."""
    options, peaks = deployment.options, [n for n, figure in deployment.accelerator.peak.items() if figure.value]
    narrow = {role: arithmetic(name, peaks) for role, (name, _) in deployment.formats.items()}
    idle = {f"routing_concentration_{word}" for word in ("random", "identical") if word != options.prompts}
    used = {ENDINGS.get(form, "") for form in narrow.values()}
    idle |= {f"gemm_efficiency{ending}" for ending in ("_fp8", "_fp4") if ending not in used}
    experts = None
    if deployment.facts.experts:
        form = deployment.formats.get("experts", deployment.formats["default"])
        experts = expert_ending(arithmetic(form[0], peaks), form[1].bits)
    else:
        idle |= {"moe_expert_overhead_bytes", "routing_concentration_random", "routing_concentration_identical"}
    for ending in ("", "_fp8", "_fp4", "_bf16"):
        if ending != experts:
            idle |= {f"moe_dram_efficiency{ending}", f"moe_compute_efficiency{ending}"}
    if options.pp == 1:
        idle |= {"pipeline_hop_s", "micro_batch_s"}
    if options.pp > 1 or deployment.engine.overlaps_host(options):
        idle.add("sync_step_s")
    if options.tp == 1 and options.pp == 1:
        idle |= {"collective_latency_factor", "collective_bandwidth_factor", "eager_rank_spread"}
    return frozenset(idle)


ENDINGS = {"fp8": "_fp8", "int8": "_fp8", "fp4": "_fp4"}    # factors by the number format of the arithmetic


def expert_ending(narrow: str, bits: float) -> str:
    """Ending of the factors that price experts: by the arithmetic, or by the width of weights that are widened."""
    return ENDINGS.get(narrow, "_bf16" if bits >= 16 else "")


def from_calibration(calibration: Calibration, changes: dict[str, float] | None = None) -> Factors:
    """Factors from a merged calibration, some values replaced."""
    missing = [name for name in NAMES if name not in calibration.parameters]
    if missing:
        raise DescriptorError(f"calibration {calibration.name}: parameter {missing[0]!r} is missing")
    unknown = [name for name in (changes or {}) if name not in NAMES]
    if unknown:
        raise DescriptorError(f"unknown calibration parameter {unknown[0]!r}")
    parameters = [calibration.parameters[name] for name in NAMES]
    values = np.array([(changes or {}).get(name, p.value) for name, p in zip(NAMES, parameters, strict=True)], float)
    correlation = np.eye(len(NAMES))
    for pair, rho in calibration.correlations.items():
        a, _, b = pair.partition("|")
        if a in NAMES and b in NAMES:
            i, j = NAMES.index(a), NAMES.index(b)
            correlation[i, j] = correlation[j, i] = rho
    sources = {name: f"{p.kind}: {p.source or p.note}" for name, p in zip(NAMES, parameters, strict=True)}
    return Factors(
        NAMES, values, np.array([p.sd for p in parameters]), correlation, calibration.residual_sd or 0.0, sources
    )
