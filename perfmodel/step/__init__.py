"""Placement -> memory budget; placement x (batch, context) -> step cost. Here formulas meet descriptors."""

from perfmodel.step.collective import CollectiveCost, collective
from perfmodel.step.cost import StepCost, prefill, step
from perfmodel.step.memory import MemoryReport, memory

__all__ = ["CollectiveCost", "MemoryReport", "StepCost", "collective", "memory", "prefill", "step"]
