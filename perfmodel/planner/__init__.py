"""Job sizing, and the search for the best strategy."""

from perfmodel.planner.job import Job, size_job
from perfmodel.planner.job_compare import InTime, JobComparison, compare_jobs, nodes_for
from perfmodel.planner.job_progress import Forecast, Progress, update_job
from perfmodel.planner.job_progress_files import read_progress
from perfmodel.planner.plan import Choice, Plan, plan

__all__ = [
    "Choice",
    "Forecast",
    "InTime",
    "Job",
    "JobComparison",
    "Plan",
    "Progress",
    "compare_jobs",
    "nodes_for",
    "plan",
    "read_progress",
    "size_job",
    "update_job",
]
