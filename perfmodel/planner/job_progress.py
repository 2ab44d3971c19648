"""A job under way: what has been measured so far, and the forecast of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.costs.forecast import pooled, pooled_sd
from perfmodel.errors import BadInput, is_number, shown
from perfmodel.planner.job import Job
from perfmodel.step.factors import Z80

HOLDS_SD = 0.05  # how well the speed so far holds for the rest (deviation of the logarithm). Kind: assumed
TAIL_SD = 0.2  # the same of the tail: how long the longest answers are. Kind: assumed


@dataclass(frozen=True)
class Progress:
    """Measured so far. ``seconds`` from the start of the job, or from the first request where ``serving``.

    ``output_tokens`` are those of finished and running answers.
    """

    seconds: float
    samples_done: float | None = None
    output_tokens: float | None = None
    load_seconds: float | None = None
    serving: bool = False
    source: str = "given"


@dataclass(frozen=True, eq=False)
class Forecast:
    """A job with what was measured so far; bands are 80 %. ``pace``: real over expected time for the same work."""

    job: Job
    progress: Progress
    elapsed_s: float
    samples_done: float
    output_tokens: float
    pace: float
    tok_s: float
    tok_s_low: float
    tok_s_high: float
    remaining_s: float
    remaining_s_low: float
    remaining_s_high: float
    expected_at_s: float  # where in the expected course the job stands, from its first request
    notes: tuple[str, ...]

    @property
    def makespan_s(self) -> float:
        """From the start of the job to its last token. [s]"""
        return self.elapsed_s + self.remaining_s

    @property
    def longer(self) -> float:
        """The whole job against what was expected before: GPU-hours, energy and cost grow with it."""
        return self.makespan_s / self.job.makespan_s

    def to_dict(self) -> dict[str, Any]:
        """JSON: the rest of the job, and the forecast from before it."""
        names = ("elapsed_s", "samples_done", "output_tokens", "pace", "tok_s", "tok_s_low", "tok_s_high",
                 "remaining_s", "remaining_s_low", "remaining_s_high", "makespan_s")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "makespan_s_low": self.elapsed_s + self.remaining_s_low,
            "makespan_s_high": self.elapsed_s + self.remaining_s_high,
            "gpu_hours": self.job.gpu_hours * self.longer,
            "energy_kwh": self.job.energy_kwh * self.longer,
            "cost": None if self.job.cost is None else self.job.cost * self.longer,
            "notes": list(self.notes),
            "before": self.job.to_dict(),
        }

    def __repr__(self) -> str:
        done = f"{self.samples_done:,.0f} of {self.job.samples:,}"
        return f"<Forecast {done} done, {self.remaining_s / 3600:.1f} h to go>"


def update_job(job: Job, progress: Progress) -> Forecast:
    """The forecast of the rest: pace expected and pace measured, each weighted with how well it is known.

    The work done so far is looked up in the expected course of the job, where short answers finish first and the first
    ones run on an empty cache; how long it took against how long it should have taken is the pace.
    """
    _check(job, progress)
    notes: list[str] = []
    started = _started_s(job, progress, notes)
    elapsed = progress.seconds + (job.serving_from_s if progress.serving else 0.0)
    serving = progress.seconds - (0.0 if progress.serving else started)
    at, noise = _expected_at(job, progress)
    prior = max(job.phases.sd, 1e-3)
    pace, sd = 1.0, prior
    if at is not None and at > 0:
        measured_sd = float(np.hypot(HOLDS_SD, noise))
        pace, sd = float(pooled(1.0, prior, serving / at, measured_sd)), float(pooled_sd(prior, measured_sd))
        notes.append(f"{serving / at:.2f} of the expected time for the same work, known to {measured_sd:.0%}; with "
                     f"what was expected before ({prior:.0%}) the rest takes {pace:.2f}")  # fmt: skip
    else:
        at = _silent_until(job, serving, notes)
    return _forecast(job, progress, elapsed, at, pace, sd, notes)


def _forecast(
    job: Job, progress: Progress, elapsed: float, at: float, pace: float, sd: float, notes: list[str]
) -> Forecast:
    """The rest of the expected course at this pace."""
    p = job.phases
    done, made = (float(np.interp(at, p.time_s, values)) for values in (p.done_at, p.made_at))
    done = done if progress.samples_done is None else float(progress.samples_done)
    to_go = 0.0 if done >= job.samples else max(p.work_s - at, 0.0)
    lost = job.parts["restart_s"] * to_go / p.work_s
    rest = to_go * pace + lost
    left = max(job.samples - done, 1.0)
    errors = (sd * rest, TAIL_SD * min(p.tail_s, to_go) * pace, job.work.outputs.spread * rest / np.sqrt(left))
    spread = float(np.exp(Z80 * np.linalg.norm(errors) / rest)) if rest > 0 else 1.0
    factor = float(np.exp(Z80 * sd))
    speed = p.tok_s / pace
    tokens = made if progress.output_tokens is None else float(progress.output_tokens)
    return Forecast(job, progress, elapsed, done, tokens, pace, speed, speed / factor, speed * factor, rest,
                    rest / spread, rest * spread, at, tuple(notes))  # fmt: skip


def _check(job: Job, progress: Progress) -> None:
    for name in ("seconds", "samples_done", "output_tokens", "load_seconds"):
        value = getattr(progress, name)
        if value is None and name != "seconds":
            continue
        if not is_number(value) or not 0 <= value <= 1e15:
            raise BadInput(f"progress: {name} must be a number of at least 0, not {shown(value)}")
    if progress.seconds == 0:
        raise BadInput("progress: no time has passed; the forecast is that of the job before it starts")
    if progress.samples_done is None and progress.output_tokens is None:
        raise BadInput("progress says neither samples_done nor output_tokens", ["keys: samples_done, seconds"])
    if progress.samples_done is not None and progress.samples_done > job.samples:
        raise BadInput(f"progress: {progress.samples_done:,.0f} samples done of {job.samples:,}",
                       ["--samples is the whole job, what is done included"])  # fmt: skip
    if progress.load_seconds is not None and progress.load_seconds >= progress.seconds:
        raise BadInput("progress: load_seconds is part of seconds, and less than it")


def _started_s(job: Job, progress: Progress, notes: list[str]) -> float:
    """From the start of the job to its first request: as said, else as expected but at most half of the time. [s]"""
    if progress.load_seconds is not None:
        return float(progress.load_seconds)
    expected = min(job.serving_from_s, progress.seconds / 2)
    if not progress.serving:
        notes.append(f"{expected:,.0f} s count as load and start-up (expected; load_seconds says more)")
    return expected


def _expected_at(job: Job, progress: Progress) -> tuple[float | None, float]:
    """When as much was expected to be done, in seconds from the first request, and the noise of that (log scale).

    Finished answers count more than tokens, since what is left is counted in answers; before each slot has finished
    one, tokens say more.
    """
    p, outputs, done = job.phases, job.work.outputs, progress.samples_done
    if progress.output_tokens is not None and (done is None or done < p.running):
        return float(np.interp(progress.output_tokens, p.made_at, p.time_s)), 0.0
    if not done:
        return None, 0.0
    noise = max(outputs.spread, 0.3) / np.sqrt(done)
    return float(np.interp(done, p.done_at, p.time_s)), float(noise)


def _silent_until(job: Job, serving: float, notes: list[str]) -> float:
    """Nothing is finished: at most as much is done as was expected by the time of the first answer. [s]"""
    first = float(job.phases.time_s[np.argmax(job.phases.done_at >= 1)])
    notes.append("nothing is finished yet: the pace stays as it was expected")
    if serving > 2 * first:
        notes.append(f"{serving:,.0f} s without an answer, where the first was expected after {first:,.0f} s: look at "
                     "the log of the engine")  # fmt: skip
    return min(serving, first)
