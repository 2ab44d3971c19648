"""Observations + step and serving -> fitted factors -> a calibration file. A side loop: it returns by file."""

from perfmodel.calibration.fit import Fit, fit
from perfmodel.calibration.own import Calibrated, calibrate

__all__ = ["Calibrated", "Fit", "calibrate", "fit"]
