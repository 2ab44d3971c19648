"""Says before a launch what fits, how fast it runs, why, and how sure it is.

The public names. Each loads its room when it is first used, so that ``import perfmodel`` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # typing takes as long to load as all the rest here
if TYPE_CHECKING:  # for type checkers and editors
    from typing import Any

    from perfmodel.calibration import calibrate as calibrate
    from perfmodel.catalog import load_accelerator as load_accelerator
    from perfmodel.catalog import load_model as load_model
    from perfmodel.catalog import load_node as load_node
    from perfmodel.deployment.deploy import deploy as deploy
    from perfmodel.insight.doctor import doctor as doctor
    from perfmodel.insight.explain import explain as explain
    from perfmodel.insight.whatif import whatif as whatif
    from perfmodel.planner.job import size_job as size_job
    from perfmodel.planner.plan import plan as plan
    from perfmodel.serving.compare import compare as compare
    from perfmodel.serving.lengths import lognormal as lognormal
    from perfmodel.serving.lengths import uniform as uniform
    from perfmodel.serving.predict import predict as predict
    from perfmodel.serving.simulate import simulate as simulate
    from perfmodel.serving.sweep import sweep as sweep
    from perfmodel.serving.traces import read_trace as read_trace
    from perfmodel.step.collective import collective as collective
    from perfmodel.step.cost import prefill as prefill
    from perfmodel.step.cost import step as step
    from perfmodel.step.memory import memory as memory

__version__ = "0.1.0"

# public name -> where it lives, below perfmodel
_HOME = {
    "load_model": "catalog",
    "load_node": "catalog",
    "load_accelerator": "catalog",
    "deploy": "deployment",
    "memory": "step",
    "step": "step",
    "prefill": "step",
    "collective": "step",
    "predict": "serving",
    "simulate": "serving",
    "read_trace": "serving",
    "sweep": "serving",
    "compare": "serving",
    "lognormal": "serving",
    "uniform": "serving",
    "plan": "planner",
    "size_job": "planner",
    "doctor": "insight",
    "explain": "insight",
    "whatif": "insight",
    "calibrate": "calibration",
}
# nouns that get `.plot`, by the room that defines them: report draws nouns, so nouns cannot import report
_PLOTTED = {"step": ("MemoryReport", "StepCost", "CollectiveCost"),
            "serving": ("Comparison", "ServingCurve", "Simulation"),
            "planner": ("Plan", "Job", "InTime", "JobComparison", "Forecast"), "catalog": ("Node",)}  # fmt: skip
# nouns that are tables: `.to_rows`, `.to_pandas`, `.to_polars`, and what a notebook shows
_TABLES = {"deployment": ("Deployment",), "step": ("MemoryReport", "StepCost", "CollectiveCost"),
           "serving": ("Comparison", "ServingCurve", "Simulation"), "insight": ("WhatIf", "Explained", "Doctor"),
           "planner": ("Plan", "Job", "InTime", "JobComparison", "Forecast")}  # fmt: skip

__all__ = [
    "__version__",
    "calibrate",
    "collective",
    "compare",
    "deploy",
    "doctor",
    "explain",
    "load_accelerator",
    "load_model",
    "load_node",
    "lognormal",
    "memory",
    "plan",
    "predict",
    "prefill",
    "read_trace",
    "simulate",
    "size_job",
    "step",
    "sweep",
    "uniform",
    "whatif",
]


def _plot(noun: Any, ax: Any = None, kind: str | None = None, **keywords: Any) -> Any:
    """Draw this result on matplotlib axes (new ones without ``ax``) and return them; ``kind`` where it has several."""
    return import_module("perfmodel.report").plot(noun, ax=ax, kind=kind, **keywords)


def _to_rows(noun: Any) -> list[dict[str, Any]]:
    """This result as a list of plain dicts, units in the names."""
    rows: list[dict[str, Any]] = import_module("perfmodel.report.frames").rows(noun)
    return rows


def _to_pandas(noun: Any) -> Any:
    """This result as a pandas DataFrame, where pandas is installed."""
    return import_module("perfmodel.report.frames").to_pandas(noun)


def _to_polars(noun: Any) -> Any:
    """This result as a polars DataFrame, where polars is installed."""
    return import_module("perfmodel.report.frames").to_polars(noun)


def _html(noun: Any) -> str:
    """What a notebook shows."""
    return str(import_module("perfmodel.report.frames").html(noun))


class _CallableRoom(ModuleType):
    """A room that shares its name with its verb: ``pm.step(d)`` calls ``pm.step.step(d)``."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **keywords)


class _Package(ModuleType):
    """This package: the import system binds every room to it once, right after loading it, in whatever order."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            if name in _HOME:
                value.__class__ = _CallableRoom
            for noun in _PLOTTED.get(name, ()):
                if hasattr(value, noun):
                    getattr(value, noun).plot = _plot
            for noun in _TABLES.get(name, ()):
                if hasattr(value, noun):
                    kind = getattr(value, noun)
                    kind.to_rows, kind.to_pandas, kind.to_polars = _to_rows, _to_pandas, _to_polars
                    kind._repr_html_ = _html
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    room = import_module(f"perfmodel.{_HOME[name]}")
    if name == _HOME[name]:
        return room  # callable, see _CallableRoom
    value = getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
