"""``python -m perfmodel.probe.worker``: one process of a probe. Tasks come as JSON on stdin, results go to stdout.

The probe starts it; it is a process of its own so that a crash, a hang or Ctrl-C never takes finished results along.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from perfmodel.probe.plan import COLLECTIVES, Task

MARK = "perfmodel-probe "       # NCCL and torch print to stdout too


def say(message: dict[str, Any]) -> None:
    """One line to the probe; only rank 0 speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(MARK + json.dumps(message), flush=True)


def run(job: dict[str, Any]) -> None:
    """Measure the tasks of a job in order."""
    from perfmodel.probe import kernels, ranks

    if job.get("facts"):
        say({"facts": kernels.facts()})
        return
    tasks = [Task(**task) for task in job["tasks"]]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    together = tasks[0].table in COLLECTIVES
    group = ranks.join(rank, world, job["rendezvous"]) if together else None
    for index, task in enumerate(tasks):
        say({"begin": index})
        try:
            say({"done": index, "result": ranks.measure(task, group) if group else kernels.measure(task)})
        except Exception as error:
            say({"done": index, "error": f"{type(error).__name__}: {str(error)[:400]}"})
            if group or "CUDA error" in str(error):      # the ranks, or the device, may be out of step now
                raise
    if group:
        group.close()


def die_with_parent() -> None:
    """On Linux: the kernel ends this process when the probe is gone, however it went."""
    import ctypes
    import signal

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)          # PR_SET_PDEATHSIG


if __name__ == "__main__":
    die_with_parent()
    run(json.load(sys.stdin))
