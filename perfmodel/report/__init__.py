"""Any noun -> text that fits 80 columns, or a picture. The only room that draws; matplotlib loads inside functions."""

from perfmodel.report.plots import plot, predicted_vs_measured, save

__all__ = ["plot", "predicted_vs_measured", "save"]
