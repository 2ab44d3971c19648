"""The same job on several deployments, and how many nodes finish it in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, Infeasible, is_number, shown
from perfmodel.planner.job import Job, size_job
from perfmodel.planner.job_phases import MOST_NODES, work_of


@dataclass(frozen=True, eq=False)
class InTime:
    """The fewest nodes whose 80 % band ends before the deadline, and their job; ``nodes_point`` for the point alone."""

    deadline_s: float
    nodes_point: int
    job: Job

    def to_dict(self) -> dict[str, Any]:
        """JSON: the job, and the deadline that sized it."""
        return {"deadline_s": self.deadline_s, "nodes_point": self.nodes_point, **self.job.to_dict()}

    def __repr__(self) -> str:
        return f"<InTime {self.job.deployment.name}: {self.job.nodes} nodes within {self.deadline_s / 3600:.1f} h>"


@dataclass(frozen=True, eq=False)
class JobComparison:
    """Jobs of the same samples, the shortest first; ``refused`` says which deployments have no answer, and why."""

    jobs: tuple[Job, ...]
    deadlines: tuple[InTime, ...]  # one a job, or none
    refused: tuple[str, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """JSON: a list of jobs with their rank."""
        answers: Sequence[Any] = self.deadlines or self.jobs
        return [{"rank": rank, **answer.to_dict()} for rank, answer in enumerate(answers, start=1)]

    def __repr__(self) -> str:
        pairs = ", ".join(f"{job.deployment.name}: {job.makespan_s / 3600:.1f} h" for job in self.jobs)
        return f"<JobComparison of {self.jobs[0].samples:,} samples, {pairs}>"


def compare_jobs(
    deployments: Sequence[Deployment],
    *,
    deadline: float | None = None,
    asked: Callable[[], None] = lambda: None,
    **workload: Any,
) -> JobComparison:
    """The same work on every deployment; ``workload`` as in `size_job`. ``asked`` is called after each."""
    if not deployments:
        raise BadInput("compare_jobs needs at least one deployment")
    found: list[tuple[Job, InTime | None]] = []
    refused = []
    hints: list[str] = []
    for deployment in deployments:
        try:
            answer = None if deadline is None else nodes_for(deployment, deadline, **workload)
            found.append((answer.job if answer else size_job(deployment, **workload), answer))
        except Infeasible as error:
            refused.append(error.message)
            hints += error.hints
        asked()
    if not found:
        raise Infeasible("; ".join(refused), dict.fromkeys(hints))
    found.sort(key=lambda pair: (pair[0].nodes * pair[0].deployment.gpus, pair[0].makespan_s))
    return JobComparison(tuple(job for job, _ in found), tuple(a for _, a in found if a is not None), tuple(refused))


def nodes_for(
    deployment: Deployment, deadline: float, asked: Callable[[], None] = lambda: None, **workload: Any
) -> InTime:
    """How many nodes finish the job within ``deadline`` seconds; `Infeasible` where no number does.

    ``asked`` is called after each number of nodes that was tried: about twice the logarithm to base 2 of the samples.
    """
    if not is_number(deadline) or not 0 < deadline <= 1e10:
        raise BadInput(f"deadline must lie above 0 and at most 1e10 seconds, not {shown(deadline)}")
    if workload.get("request_rate") is not None or "nodes" in workload:
        raise BadInput("a deadline sizes the nodes of samples that wait in a queue; leave nodes and request_rate out")
    inputs, outputs = (workload.get(name, 1024) for name in ("input_tokens", "output_tokens"))
    work = work_of(workload.get("samples"), inputs, outputs, workload.get("requests"))
    jobs: dict[int, Job] = {}

    def job(nodes: int) -> Job:
        if nodes not in jobs:
            jobs[nodes] = size_job(deployment, nodes=nodes, **workload)
            asked()
        return jobs[nodes]

    most = min(work.count, MOST_NODES)
    last = job(most)
    if last.makespan_s_high > deadline:
        raise _too_short(last, deadline)
    nodes = _fewest(lambda n: job(n).makespan_s_high <= deadline, most)
    return InTime(float(deadline), _fewest(lambda n: job(n).makespan_s <= deadline, nodes), job(nodes))


def _too_short(job: Job, deadline: float) -> Infeasible:
    """With a node for each sample what is left is the start and the longest answer."""
    longest = job.phases.work_s
    return Infeasible(
        f"{job.deployment.name}: no number of nodes surely finishes within {deadline:,.0f} s: with {job.nodes:,} of "
        f"them the start takes {job.serving_from_s:,.0f} s and the longest answer {longest:,.0f} s, in all up to "
        f"{job.makespan_s_high:,.0f} s (80 % band)",
        [
            f"a deadline of {job.makespan_s_high:,.0f} s is the shortest that can be kept",
            "load_rate, storage_bandwidth and warmup, where known, narrow the band",
        ],
    )


def _fewest(enough: Callable[[int], bool], most: int) -> int:
    """The least whole number up to ``most``, which is enough, from which on all are."""
    low, high = 0, 1
    while high < most and not enough(high):
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
