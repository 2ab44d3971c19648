"""Any noun -> text that fits 80 columns, or a picture. The only room that draws; matplotlib loads inside functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.report.plots import plot as plot
    from perfmodel.report.plots import predicted_vs_measured as predicted_vs_measured
    from perfmodel.report.plots import save as save

__all__ = ["plot", "predicted_vs_measured", "save"]


def __getattr__(name: str) -> Any:
    """Pictures load when one is drawn: a text answer does not wait for them."""
    if name not in __all__:
        raise AttributeError(f"module 'perfmodel.report' has no attribute {name!r}")
    from perfmodel.report import plots

    return getattr(plots, name)
