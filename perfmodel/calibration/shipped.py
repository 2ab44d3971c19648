"""The staged fit behind the shipped calibrations of RTX PRO 6000: kernels, collectives, sweeps with graphs, eager rows.

Each stage starts from the posterior of the one before and frees only what its data can speak about; stages 3 and 4
never touch a bandwidth. Made again by `perfmodel calibrate --shipped`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.calibration.files import entry, versions, write
from perfmodel.calibration.fit import Fit, Free, changed, fit
from perfmodel.catalog import load_calibration
from perfmodel.catalog.lookup import roots
from perfmodel.insight import kernels, observed
from perfmodel.insight.observed import Observation, Series
from perfmodel.insight.validate import LEVEL, compare
from perfmodel.step.factors import Factors, from_calibration

COMMAND = "perfmodel calibrate --shipped"
ACCELERATOR = kernels.ACCELERATOR
# Host time of a sequence before the fit, assumed. SGLang's scheduler, sampling and output share the process and thread
# that launch the kernels, where vLLM V1 keeps them in others: dearer than the 0.03 ms of the priors.
SGLANG_SEQUENCE_S = 0.1e-3
CASE_NOISE = 0.20       # of a step time of the case; assumed: C = 8 took longer than C = 16, by 0.13 in logarithm
RANDOM_SD = 0.40        # least sd of the routing of random prompts: the table's power law is synthetic
BORROWED_SD = 0.25      # of vLLM's time per kernel when it is lent to SGLang
VARIANT_SD = 0.15       # least sd of the collective factors on another node of this kind; see `collective_spread`

IDENTICAL = "routing_concentration_identical"

Keep = Callable[[Observation], bool]

KERNEL_STAGES: dict[str, tuple[str, Free]] = {
    "gemm": ("gemm bfloat16", {"gemm_efficiency": (0.70, 0.2, 1.0), "roofline_overlap": (0.5, 0.01, 1.0)}),
    "experts": ("moe balanced int4_wo", {
        "moe_dram_efficiency": (0.70, 0.2, 1.0), "moe_expert_overhead_bytes": (0.3e6, 1e3, 1e7),
        "moe_compute_efficiency": (0.45, 0.05, 1.0), "roofline_overlap": (0.5, 0.01, 1.0)}),
    "narrow gemm": ("gemm fp8", {"gemm_efficiency_fp8": (0.60, 0.1, 1.0)}),
    "narrowest gemm": ("gemm nvfp4", {"gemm_efficiency_fp4": (0.50, 0.1, 1.0)}),
    "FP8 experts": ("moe balanced fp8_block", {
        "moe_dram_efficiency_fp8": (0.70, 0.2, 1.0), "moe_compute_efficiency_fp8": (0.40, 0.03, 1.0)}),
    "NVFP4 experts": ("moe balanced nvfp4", {
        "moe_dram_efficiency_fp4": (0.70, 0.2, 1.0), "moe_compute_efficiency_fp4": (0.40, 0.03, 1.0)}),
    "routing": ("moe pl1.01 int4_wo", {"routing_concentration_random": (2.5, 0.05, 100.0)}),
    "decode attention": ("generation_mla", {
        "attention_dram_efficiency": (0.75, 0.2, 1.0), "attention_half_blocks_per_sm": (0.4, 0.01, 4.0),
        "attention_pad_tokens": (256.0, 10.0, 4000.0), "attention_decode_compute_efficiency": (0.30, 0.02, 1.0)}),
}
PREFILL: Free = {"attention_prefill_efficiency": (0.40, 0.01, 1.0)}
GRAPHS: Free = {
    "step_fixed_s": (0.5e-3, 0.02e-3, 10e-3), "kernel_s": (3e-6, 0.5e-6, 15e-6),
    "routing_concentration_identical": (0.6, 0.05, 100.0), "collective_latency_factor": (1.0, 0.3, 3.0)}
EAGER: Free = {"eager_kernel_s": (20e-6, 4e-6, 200e-6), "eager_rank_spread": (0.15, 0.01, 1.0),
               "host_sequence_s": (0.1e-3, 1e-6, 5e-3)}


@dataclass(frozen=True, eq=False)
class Shipped:
    """All stages and the factors that come out, for the accelerator and for each engine on it."""

    stages: dict[str, Fit]
    accelerator: Factors
    vllm: Factors
    sglang: Factors
    collective_spread: float        # sd of log(predicted / measured) of the all-reduce curves behind the node file

    def report(self) -> str:
        """All stages as text."""
        parts = [f"== {name}\n{found.report()}" for name, found in self.stages.items()]
        parts.append(f"== 2 collectives\nall-reduce curves behind the node file: sd {self.collective_spread:.2f}")
        return "\n\n".join(parts)


def problem(series: Iterable[Series], keep: Keep) -> tuple[Callable[[Factors], np.ndarray], list[str]]:
    """Residuals over the rows that are kept, and the sweep of each row."""
    chosen = [(s, mask) for s in series if np.any(mask := np.array([keep(row) for row in s.rows]))]
    labels = [row.sweep for s, mask in chosen for row, kept in zip(s.rows, mask, strict=True) if kept]

    def residuals(factors: Factors) -> np.ndarray:
        table = factors.draws(0, uncertain=False)
        return np.concatenate([s.log_ratio(table)[0][mask] for s, mask in chosen])

    return residuals, labels


def run() -> Shipped:
    """All stages, in order."""
    stages: dict[str, Fit] = {}

    def stage(name: str, series: Iterable[Series], keep: Keep, free: Free, current: Factors, **more: float) -> Factors:
        residuals, labels = problem(series, keep)
        stages[name] = fit(residuals, free, current, sweeps=labels, **more)
        return stages[name].factors

    accelerator, curves = from_calibration(load_calibration(None)), kernels.kernel_series()
    for name, (words, free) in KERNEL_STAGES.items():
        accelerator = stage(f"1 {name}", curves, _cold(*words.split()), free, accelerator)
    spread = collective_spread(accelerator)
    least = {"routing_concentration_random": RANDOM_SD, "collective_latency_factor": max(VARIANT_SD, spread),
             "collective_bandwidth_factor": max(VARIANT_SD, spread)}
    accelerator = _widened(accelerator, least)

    vllm = stage("1 prefill attention, vllm", curves, _cold("mla_context_module"), PREFILL, accelerator)
    vllm = stage("3 sweeps with graphs", observed.series(observed.read(observed.SWEEPS)), lambda row: row.use == "fit",
                 GRAPHS, vllm)
    borrowed = {name: _value(vllm, name) for name in ("kernel_s", IDENTICAL)}
    sglang = changed(stage("1 prefill attention, sglang", curves, _cold("context_mla"), PREFILL, accelerator), borrowed,
                     {"kernel_s": BORROWED_SD, IDENTICAL: _sd(vllm, IDENTICAL)})
    sglang = changed(sglang, {"host_sequence_s": SGLANG_SEQUENCE_S}, {"host_sequence_s": 0.7})
    sglang = stage("4 eager rows", observed.series(observed.read(observed.CASE)), lambda row: row.use == "fit",
                   EAGER, sglang, least_noise=CASE_NOISE)
    return Shipped(stages, accelerator, vllm, sglang, spread)


def _cold(table: str, *words: str) -> Keep:
    """Fitted rows of a table whose bytes come from memory, not from the last-level cache."""
    return lambda row: (row.use == "fit" and not row.hot and row.sweep.split()[0] == table
                        and all(word in row.sweep.split() for word in (ACCELERATOR, *words)))


def collective_spread(factors: Factors) -> float:
    """Stage 2: the node file has its own all-reduce figures, so the factors stay at 1; how well do the figures hold?"""
    residuals, _ = problem(kernels.interconnect_series(), lambda row: row.use == "fit")
    return float(np.sqrt(np.mean(residuals(factors) ** 2)))


def _value(factors: Factors, name: str) -> float:
    return float(factors.values[factors.names.index(name)])


def _sd(factors: Factors, name: str) -> float:
    return float(factors.sd[factors.names.index(name)])


def _widened(factors: Factors, least: dict[str, float]) -> Factors:
    sd = factors.sd.copy()
    for name, value in least.items():
        i = factors.names.index(name)
        sd[i] = value if name.startswith("collective") else max(sd[i], value)
    return replace(factors, sd=sd)


def residual_sd(series: Iterable[Series], factors: Factors, keep: Keep) -> float:
    """Residual spread with which the 80 % bands hold 80 % of the rows that are kept, from bisection."""
    chosen = [s for s in series if any(keep(row) for row in s.rows)]

    def coverage(spread: float) -> float:
        tried = replace(factors, residual_sd=spread)
        rows = [pair for s in chosen for pair in zip(s.rows, compare(s, tried), strict=True)]
        return float(np.mean([compared.in_band for row, compared in rows if keep(row)]))

    low, high = 0.02, 1.0
    if coverage(low) >= LEVEL:
        return low
    while high - low > 0.002:
        middle = (low + high) / 2
        low, high = (low, middle) if coverage(middle) >= LEVEL else (middle, high)
    return high


SOURCES = {
    "kernels": {"title": "aiconfigurator-core 0.12.0 kernel tables, RTX PRO 6000 Server, vLLM 0.24.0 and SGLang 0.5.14 "
                         "(Apache-2.0)", "url": "https://github.com/ai-dynamo/aiconfigurator"},
    "sweep": {"title": "github sjug/rtx6kpro@738985bb models/kimi-k26-v3.md, sweeps k26-v3/dcp1 without speculation",
              "url": "https://github.com/sjug/rtx6kpro/blob/738985bb/models/kimi-k26-v3.md"},
    "case": {"title": "deployment articles on Kimi K2.6, 8 x RTX PRO 6000, SGLang, 2026, TP8 rows"},
}


def save(found: Shipped, folder: Path | None = None) -> list[Path]:
    """Write the three files; the folder is the catalog's own unless another is given."""
    where = folder or roots()[-1] / "hardware" / "calibrations"
    curves, sweeps = kernels.kernel_series(), observed.series(observed.read(observed.SWEEPS))
    case = observed.series(observed.read(observed.CASE))
    tables = [s for s in curves if s.engine is None and s.accelerator == ACCELERATOR]
    kernel_sd = residual_sd(tables, found.accelerator, lambda row: row.use == "check" and not row.hot)
    decode = [s for s in sweeps if s.rows[0].kind == "decode"]
    vllm_sd = residual_sd(decode, found.vllm, lambda row: row.use == "check")
    case_sd = max(vllm_sd, residual_sd(case, found.sglang, lambda row: True))
    paths = []
    for stem, title, stages, extra, spread, series in (
        (ACCELERATOR, "RTX PRO 6000 Blackwell Server: what its kernels reach", KERNEL_STAGES, _accelerator_extra(found),
         kernel_sd, tables),
        (f"{ACCELERATOR}+vllm", "vLLM on RTX PRO 6000 Server", ("prefill attention, vllm", "sweeps with graphs"), {},
         vllm_sd, decode),
        (f"{ACCELERATOR}+sglang", "SGLang on RTX PRO 6000 Server", ("prefill attention, sglang", "eager rows"),
         _sglang_extra(found), case_sd, case),
    ):
        fits = {name: one for name, one in found.stages.items() if name.partition(" ")[2] in stages}
        paths.append(where / f"{stem}.yaml")
        _write(paths[-1], stem, title, fits, extra, spread, series)
    return paths


def _write(path: Path, stem: str, title: str, fits: dict[str, Fit], extra: dict[str, dict[str, Any]], spread: float,
           series: list[Series]) -> None:
    parameters: dict[str, dict[str, Any]] = {}
    correlations: dict[str, float] = {}
    fitted: dict[str, None] = {}
    for name, one in fits.items():
        source = "case" if name.startswith("4") else "sweep" if name.startswith("3") else "kernels"
        note = f"stage {name}: {one.n} rows of {len(one.fitted_on)} sweep{'s' if len(one.fitted_on) > 1 else ''}"
        for parameter, value, sd in zip(one.names, one.values, one.sd, strict=True):
            told = "; the data does not tell it apart from its prior" if parameter in one.unidentified else ""
            sd = max(sd, RANDOM_SD) if parameter == "routing_concentration_random" else sd
            parameters[parameter] = entry(value, sd, "measured", source, note + told)
        correlations = {pair: rho for pair, rho in correlations.items() if not set(pair.split("|")) & set(one.names)}
        correlations |= one.correlations
        fitted |= dict.fromkeys(one.fitted_on)
    parameters |= extra
    accelerator, _, engine = stem.partition("+")
    checked = dict.fromkeys(row.sweep for s in series for row in s.rows if row.use == "check")
    stems = {"kernels": kernels.KERNELS, "sweep": observed.SWEEPS, "case": observed.CASE}
    used = [key for key in SOURCES if any(value["source"] == key for value in parameters.values())]
    comment = f"Made by `{COMMAND}`; do not edit by hand. sd is the standard deviation of the logarithm of a parameter."
    write(path, name=stem, title=title, comment=comment, accelerator=accelerator, engine=engine, command=COMMAND,
          versions=versions(),
          hashes={f"{stems[key]}.csv": observed.digest(stems[key]) for key in used}, residual_sd=float(f"{spread:.3g}"),
          fitted_on=tuple(fitted), checked_on=tuple(checked), sources={key: SOURCES[key] for key in used},
          parameters=parameters, correlations=correlations)


def _accelerator_extra(found: Shipped) -> dict[str, dict[str, Any]]:
    """What stages 2 and 3 say about every engine."""
    vllm = found.vllm
    note = f"the node file's own figures; curves scatter by {found.collective_spread:.2f}, nodes of one kind by more"
    extra = {name: entry(1.0, _sd(found.accelerator, name), "measured", "kernels", note)
             for name in ("collective_latency_factor", "collective_bandwidth_factor")}
    extra[IDENTICAL] = entry(_value(vllm, IDENTICAL), _sd(vllm, IDENTICAL), "measured", "sweep",
                             "stage 3: the sweeps send one prompt on all streams")
    return extra


def _sglang_extra(found: Shipped) -> dict[str, dict[str, Any]]:
    return {"kernel_s": entry(_value(found.sglang, "kernel_s"), BORROWED_SD, "assumed", None,
                              "vLLM's, from the sweeps with graphs on; SGLang launches much the same kernels")}
