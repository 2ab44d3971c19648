"""StepCost -> ServingCurve: closed and open loop in closed form, and a simulator of the scheduler."""

from perfmodel.serving.compare import Comparison, compare
from perfmodel.serving.curve import ServingCurve
from perfmodel.serving.lengths import lognormal, uniform
from perfmodel.serving.predict import predict
from perfmodel.serving.simulate import Simulation, simulate
from perfmodel.serving.sweep import sweep
from perfmodel.serving.traces import Trace, read_trace

__all__ = [
    "Comparison",
    "ServingCurve",
    "Simulation",
    "Trace",
    "compare",
    "lognormal",
    "predict",
    "read_trace",
    "simulate",
    "sweep",
    "uniform",
]
