"""StepCost -> ServingCurve: closed loop so far."""

from perfmodel.serving.compare import Comparison, compare
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.lengths import lognormal, uniform
from perfmodel.serving.predict import predict

__all__ = ["Comparison", "ServingCurve", "compare", "lognormal", "predict", "uniform"]
