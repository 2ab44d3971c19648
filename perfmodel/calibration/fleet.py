"""The fits behind the shipped calibrations of all accelerators but the case's: kernel tables, then served TPOT.

Accelerators are fitted one after the other; each starts from a relative that was fitted before it, with wider priors.
Made again by `perfmodel calibrate --shipped`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.calibration.files import entry, versions, write
from perfmodel.calibration.fit import Free, changed, fit
from perfmodel.calibration.served import (
    DEVIATION_SD,
    DISCREPANCY,
    ENGINE,
    Served,
    discrepancy,
    fit_served,
    left_out,
    selection,
)
from perfmodel.calibration.shipped import COMMAND, problem
from perfmodel.catalog import load_calibration
from perfmodel.catalog.lookup import roots
from perfmodel.insight import first_token, kernels, observed, parallel, served
from perfmodel.insight.observed import Observation
from perfmodel.step.factors import Z80, Factors, from_calibration

# Accelerator -> whose physics it starts from (a sibling), and whose engines' times. Siblings differ by SIBLING_SD.
CHAIN: dict[str, tuple[str | None, str | None]] = {
    "b200-sxm": (None, None), "h200-sxm": (None, "b200-sxm"), "h100-sxm": ("h200-sxm", "h200-sxm"),
    "b300-sxm": ("b200-sxm", "b200-sxm"), "a100-sxm-80gb": (None, "h100-sxm"), "rtx-4090": (None, "h200-sxm"),
    "rtx-5090": ("rtx-4090", "h200-sxm"), "l40s": (None, "h200-sxm"), "mi300x": (None, None),
    "mi325x": ("mi300x", "mi300x"),
}
SIBLING_SD, COUSIN_SD, ENGINE_SD, TIME_SD = 0.10, 0.20, 0.10, 0.20
SAME_KERNEL_SD = 0.07   # of an engine's deviation between relatives, for which it ships the same kernels
WORKLOAD_SD = 0.10      # of what belongs to the prompts and not to the accelerator
WORKLOAD = ("routing_concentration_random",)
# What a cousin (another generation) inherits: shares that depend on the kernels' design more than on the silicon
COUSINS = {"h200-sxm": "b200-sxm"}
KINDRED = ("moe_dram_efficiency_bf16", "moe_dram_efficiency_fp8", "moe_compute_efficiency_fp8",
           "moe_compute_efficiency_bf16", "attention_dram_efficiency", "attention_half_blocks_per_sm",
           "attention_pad_tokens", "attention_prefill_efficiency",
           "routing_concentration_random")
# Consumer cards add up in FP32 at half rate, which the peak holds; tiles and dequantisation do not slow down with it
HALF_RATE = ("rtx-4090", "rtx-5090")
EXPERTS: Free = {"moe_dram_efficiency": (0.70, 0.2, 1.0), "moe_expert_overhead_bytes": (0.3e6, 1e3, 1e7),
                 "moe_compute_efficiency": (0.30, 0.03, 1.0)}
OVERLAP: Free = {"roofline_overlap": (0.6, 0.01, 1.0)}
# Kernel stages: words that a sweep must hold, and what is freed; ``kernel_s`` of single calls is not that of a graph
TABLES: dict[str, tuple[tuple[str, Free], ...]] = {
    "b200-sxm": (("moe balanced int4_wo", EXPERTS | OVERLAP),),
    "l40s": (("moe balanced int4_wo", EXPERTS | OVERLAP),),
    "h200-sxm": (
        ("gemm torch bfloat16", {"dram_efficiency": (0.87, 0.5, 1.0), "gemm_efficiency": (0.70, 0.2, 1.0),
                                 "kernel_s": (3e-6, 0.5e-6, 10e-6), **OVERLAP}),
        ("gemm fp8", {"gemm_efficiency_fp8": (0.60, 0.1, 1.0)}),
        ("moe balanced int4_wo", EXPERTS),
        ("mla_generation_module", {
            "attention_dram_efficiency": (0.75, 0.2, 1.0), "attention_half_blocks_per_sm": (0.4, 0.01, 4.0),
            "attention_pad_tokens": (256.0, 10.0, 4000.0), "attention_decode_compute_efficiency": (0.30, 0.02, 1.0)}),
    ),
}
TOLD = 0.9              # of its prior's deviation: above, a posterior says that the data did not tell
OF_NODE = ("collective_latency_factor",)
OTHER_STACKS = ("mi300x", "mi325x")     # ROCm: start-up and launches are another runtime's
MANY = 20               # held-out rows from which an engine has a residual spread of its own
FEW_SD = 0.25           # residual spread where fewer than 5 rows were held out
SOURCES = {
    "kernels": {"title": "aiconfigurator-core 0.12.0 kernel tables (Apache-2.0), and GEMMs timed on one H200",
                "url": "https://github.com/ai-dynamo/aiconfigurator"},
    "served": {"title": "served TPOT and TTFT of public benchmarks, hardware/observations/e2e-tpot.csv and "
                        "e2e-serving.csv; steps of our own"},
}


@dataclass(frozen=True, eq=False)
class Fleet:
    """The fit of every accelerator, in order."""

    fits: dict[str, Served]

    def report(self) -> str:
        """A line an accelerator."""
        lines = [f"{'accelerator':18}{'rows':>6}{'fitted':>8}{'before':>8}{'after':>8}{'held out':>10}"]
        for name, f in self.fits.items():
            kept = np.array([row.use == "fit" and row.kind != first_token.KIND for row in f.rows])
            out = held_out(f, sources_of(f))
            errors = [float(np.median(np.abs(np.expm1(r[kept])))) for r in (f.before, f.residuals, out.residuals)]
            lines.append(f"{name:18}{len(kept):6}{int(kept.sum()):8}"
                         + "".join(f"{100 * e:{w}.0f}%" for e, w in zip(errors, (7, 7, 9), strict=True)))
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Every row as a fit without its group predicts it: log(predicted / measured) and the deviation of parameters."""

    residuals: np.ndarray
    parameter_sd: np.ndarray


def run(only: tuple[str, ...] | None = None) -> Fleet:
    """Fit all accelerators, or the first few of the chain."""
    fits: dict[str, Served] = {}
    everything = (*served.series(), *first_token.series(), *served.step_series(), *parallel.series())
    for name, (sibling, engines) in CHAIN.items():
        mine = [s for s in everything if s.accelerator == name]
        if only is None or name in only:
            fits[name] = fit_served(name, mine, start(name, fits.get(sibling or ""), fits.get(COUSINS.get(name, ""))),
                                    priors=engine_priors(fits.get(engines or "")))
    return Fleet(fits)


def start(name: str, sibling: Served | None, cousin: Served | None) -> Factors:
    """Where a fit starts: the priors, what relatives say, and the accelerator's own kernel tables."""
    prior = from_calibration(load_calibration(None))
    if sibling is not None:
        return inherited(prior, sibling, SIBLING_SD, None)
    factors = inherited(prior, cousin, COUSIN_SD, KINDRED) if cousin is not None else prior
    if name in HALF_RATE:
        i = prior.names.index("moe_compute_efficiency")
        factors = changed(factors, {"moe_compute_efficiency": 2 * float(prior.values[i])})
    kernel_s, sd = factors.values[factors.names.index("kernel_s")], factors.sd[factors.names.index("kernel_s")]
    for words, free in TABLES.get(name, ()):
        residuals, labels = problem(kernels.kernel_series(), _cold(name, *words.split()))
        factors = fit(residuals, free, factors, sweeps=labels).factors
    return changed(factors, {"kernel_s": float(kernel_s)}, {"kernel_s": float(sd)})


def _cold(accelerator: str, table: str, *words: str) -> Callable[[Observation], bool]:
    def keep(row: Observation) -> bool:
        parts = row.sweep.split()
        return (row.use == "fit" and not row.hot and parts[0] == table and parts[-1] == accelerator
                and all(word in parts for word in words))

    return keep


def inherited(prior: Factors, relative: Served, more_sd: float, only: tuple[str, ...] | None) -> Factors:
    """Priors with a relative's physics in place, wider by ``more_sd`` but never wider than the prior."""
    values, sd = prior.values.copy(), prior.sd.copy()
    for name, x, own in zip(relative.names, relative.x, relative.sd, strict=True):
        if name in prior.names and (only is None or name in only):
            i = prior.names.index(name)
            values[i], sd[i] = np.exp(x), min(sd[i], float(np.hypot(own, WORKLOAD_SD if name in WORKLOAD else more_sd)))
    return replace(prior, values=values, sd=sd)


def engine_priors(relative: Served | None) -> dict[str, tuple[float, float]]:
    """Times of the engines on a relative, as priors: logarithm and deviation."""
    if relative is None:
        return {}
    close = ("kernel_s", "prefill", "collective")
    wide = {name: ENGINE_SD if name.startswith(close) else TIME_SD for name in relative.names}
    found = {name: (float(x), float(np.hypot(sd, wide[name])))
             for name, x, sd in zip(relative.names, relative.x, relative.sd, strict=True) if "@" in name}
    return found | {name: (float(x), min(DEVIATION_SD, float(np.hypot(sd, SAME_KERNEL_SD))))
                    for name, x, sd in zip(relative.names, relative.x, relative.sd, strict=True) if "~" in name}


def held_out(f: Served, labels: list[str]) -> HeldOut:
    """Predict every row from a fit without the rows of its label."""
    residuals, spread = np.zeros(len(f.rows)), np.zeros(len(f.rows))
    for _, mask, x, covariance in left_out(f, labels):
        slope = f.jacobian[mask]
        residuals[mask] = f.residuals[mask] + slope @ (x - f.x)
        spread[mask] = np.sqrt(np.einsum("ri,ij,rj->r", slope, covariance + discrepancy(f.names), slope))
    return HeldOut(residuals, spread)


def sources_of(f: Served) -> list[str]:
    """The source of every row: a document's TTFT is left out with its TPOT."""
    return [row.sweep.removeprefix(f"{first_token.KIND}/") for row in f.rows]


def spread_for(residuals: np.ndarray, parameter_sd: np.ndarray, level: float = 0.8) -> float:
    """Residual deviation with which the bands hold ``level`` of the rows, from bisection."""
    if len(residuals) < 5:
        return FEW_SD
    low, high = 0.03, 1.0
    while high - low > 0.002:
        middle = (low + high) / 2
        inside = np.mean(np.abs(residuals) <= Z80 * np.hypot(parameter_sd, middle))
        low, high = (low, middle) if inside >= level else (middle, high)
    return high


def save(found: Fleet, folder: Path | None = None) -> list[Path]:
    """Write one file an accelerator, one for every engine on it, and one for every engine elsewhere."""
    where, paths = folder or roots()[-1] / "hardware" / "calibrations", []
    for name, f in found.fits.items():
        engines = sorted({s.engine or "" for s in f.series})
        out = held_out(f, sources_of(f))
        fitted = np.array([row.use == "fit" and row.kind != first_token.KIND for row in f.rows])
        whose = np.array([s.engine for s in f.series for _ in s.rows])
        common = spread_for(out.residuals[fitted], out.parameter_sd[fitted])
        for engine in (None, *engines):
            mine = fitted & (whose == engine)
            own = spread_for(out.residuals[mine], out.parameter_sd[mine]) if mine.sum() >= MANY else common
            stem = f"{name}+{engine}" if engine else name
            paths.append(where / f"{stem}.yaml")
            _write(paths[-1], stem, f, engine, own if engine else common, whose)
    return [*paths, *save_engines(found, where)]


def save_engines(found: Fleet, where: Path) -> list[Path]:
    """Write what an engine takes on accelerators that have many rows of it, for those that have none: one file each."""
    paths = []
    for engine in sorted({s.engine or "" for f in found.fits.values() for s in f.series}):
        fits = [f for f in found.fits.values() if f.accelerator not in OTHER_STACKS and sum(
            row.use == "fit" for s in f.series if s.engine == engine for row in s.rows) >= MANY]
        parameters = {}
        for key in ENGINE if fits else ():
            at = [(f, f.names.index(f"{key}@{engine}")) for f in fits]
            logs, sd = np.array([f.x[i] for f, i in at]), np.array([f.sd[i] for f, i in at])
            if not any(f.sd[i] < TOLD * f.prior_sd[i] for f, i in at) or key in OF_NODE:
                continue                        # as in the priors, or a matter of links
            spread = float(np.sqrt(np.mean(sd**2) + np.var(logs) + DISCREPANCY.get(key, 0.0) ** 2))
            parameters[key] = entry(float(np.exp(np.mean(logs))), spread, "measured", "served",
                                    f"mean over {', '.join(f.accelerator for f in fits)}")
        if parameters:
            stem = f"priors+{engine}"
            paths.append(where / f"{stem}.yaml")
            write(paths[-1], name=stem, title=f"{engine} on accelerators that nothing was measured on with it",
                  comment=f"Made by `{COMMAND}`; do not edit by hand. sd is the standard deviation of the logarithm.",
                  accelerator="", engine=engine, command=COMMAND, versions=versions(),
                  hashes={f"{served.SERVED}.csv": observed.digest(served.SERVED)}, residual_sd=None, fitted_on=(),
                  checked_on=(), sources={"served": SOURCES["served"]}, parameters=parameters)
    return paths


def _write(path: Path, stem: str, f: Served, engine: str | None, spread: float, whose: np.ndarray) -> None:
    factors, picked = f.factors(engine or ""), selection(f.names, engine)
    keys = [key for key in picked if engine is None or any(f.names[i] not in f.base.names for i in picked[key])]
    here = [key for key in _table_keys(f.accelerator) if key not in picked] if engine is None else []
    parameters = {}
    for key in (*keys, *here):
        i = factors.names.index(key)
        own = [j for j in picked.get(key, ()) if f.sd[j] < TOLD * f.prior_sd[j]]
        note = "" if own or key in here else "the data does not tell it apart from its prior"
        parameters[key] = entry(float(factors.values[i]), float(factors.sd[i]), "measured",
                                "served" if key in picked else "kernels", note)
    rows = [row for row, e in zip(f.rows, whose, strict=True) if engine in (None, e)]
    fitted = tuple(dict.fromkeys(row.sweep for row in rows if row.use == "fit"))
    checked = tuple(dict.fromkeys(row.sweep for row in rows if row.use == "check" and row.sweep not in fitted))
    used = {value["source"] for value in parameters.values()}
    kinds = {row.kind for row in rows}
    first = (first_token.ROWS,) if first_token.KIND in kinds else ()
    own_rows = (served.STEPS, parallel.PARALLEL) if kinds - {"e2e", first_token.KIND} else ()
    files = {"served": (served.SERVED, *first, *own_rows), "kernels": kernels.TABLE_FILES.get(f.accelerator, ())}
    write(path, name=stem, title=f"{engine or 'What its kernels reach'}, {f.accelerator}",
          comment=f"Made by `{COMMAND}`; do not edit by hand. sd is the standard deviation of the logarithm.",
          accelerator=f.accelerator, engine=engine, command=COMMAND, versions=versions(),
          hashes={f"{file}.csv": observed.digest(file) for key in sorted(used) for file in files[key]},
          residual_sd=float(f"{spread:.3g}"), fitted_on=fitted, checked_on=checked,
          sources={key: SOURCES[key] for key in SOURCES if key in used}, parameters=parameters)


def _table_keys(accelerator: str) -> list[str]:
    """What the kernel tables of an accelerator fix, but for the start-up of single calls."""
    found: dict[str, Any] = {}
    for _, free in TABLES.get(accelerator, ()):
        found |= free
    return [key for key in found if key != "kernel_s"]
