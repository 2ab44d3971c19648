"""Job sizing, and the search for the best strategy."""

from perfmodel.planner.job import Job, size_job
from perfmodel.planner.plan import Choice, Plan, plan

__all__ = ["Choice", "Job", "Plan", "plan", "size_job"]
