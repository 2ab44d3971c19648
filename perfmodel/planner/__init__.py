"""Job sizing so far; search, Pareto and break-even come here."""

from perfmodel.planner.job import Job, size_job

__all__ = ["Job", "size_job"]
