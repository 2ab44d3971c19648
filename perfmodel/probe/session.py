"""Starts the measuring processes, listens to them, and ends them: on a hang, on an error, on Ctrl-C. Needs no torch."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from perfmodel.errors import PerfModelError, QuestionError
from perfmodel.probe.journal import Journal, Record, checked
from perfmodel.probe.plan import Task
from perfmodel.probe.worker import MARK

START_S = 180.0             # longest that importing torch and joining a group may take
MAX_LINE = 2**16
GIVE_UP_AFTER = 3           # failures of one kind of task in a row
WORKER = (sys.executable, "-m", "perfmodel.probe.worker")
TORCH_HINT = "pip install 'perfmodel[probe]'"

Progress = Callable[[str], None]        # told what is being measured


def need_torch() -> None:
    """Refuse early, with the remedy, where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise QuestionError("`perfmodel probe` measures with PyTorch, which is not installed", hints=[TORCH_HINT])


def read_facts() -> dict[str, Any]:
    """What torch says about this machine; refused where it sees no GPU."""
    need_torch()
    with launched(1, {"facts": True}, {}) as group:
        for message in group.messages(START_S):
            if "facts" in message:
                facts = dict(message["facts"])
                break
        else:
            raise PerfModelError(f"torch does not start: {group.last_words()}", hints=["python -c 'import torch'"])
    if not facts["devices"]:
        build = f"torch {facts['torch']}" + ("" if facts["cuda"] or facts["hip"] else ", a build without GPU support")
        raise QuestionError(f"no GPU is visible ({build})", hints=["see `nvidia-smi` and CUDA_VISIBLE_DEVICES"])
    return facts


class Group:
    """Processes of one job. ``messages`` yields what rank 0 says and ends when all are done, or raises TimeoutError."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], log: IO[bytes]):
        self.processes, self.log = processes, log
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        stdout = self.processes[0].stdout
        while stdout and (line := stdout.readline(MAX_LINE)):
            self.lines.put(line)
        self.lines.put(None)

    def messages(self, patience_s: float) -> Iterator[dict[str, Any]]:
        """What rank 0 says, until it closes; no word for ``patience_s`` is a hang, a dead rank an end."""
        said, patience = time.monotonic(), START_S
        while True:
            try:
                line = self.lines.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() - said > patience:
                    raise TimeoutError from None
                if any(process.poll() not in (None, 0) for process in self.processes[1:]):
                    return
                continue
            if line is None:
                return
            if line.startswith(MARK.encode()):
                said, patience = time.monotonic(), patience_s
                with contextlib.suppress(ValueError):
                    yield json.loads(line[len(MARK):])

    def last_words(self) -> str:
        """The end of what the processes wrote to stderr, on one line."""
        begin = time.monotonic()
        while time.monotonic() - begin < 2 and all(process.poll() is None for process in self.processes):
            time.sleep(0.02)                            # the one that broke is about to go
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 4000))
        lines = [line.strip() for line in self.log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        telling = [line for line in lines if "Error" in line or "error" in line] or lines
        codes = ", ".join(str(process.poll()) for process in self.processes)
        return (telling[-1] if telling else f"exit status {codes}")[:300]

    def end(self) -> None:
        """No process of the group is left behind, nor a pipe to one."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self.processes:
                    process.wait(timeout=5)
                break
        self.listener.join(timeout=5)
        for process in self.processes:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close() if pipe else None


@contextlib.contextmanager
def launched(ranks: int, job: dict[str, Any], environment: dict[str, str]) -> Iterator[Group]:
    """Start one process a rank on a job; however the block is left, they are gone after it."""
    with tempfile.TemporaryDirectory(prefix="perfmodel-probe-") as folder, tempfile.TemporaryFile() as log:
        text = json.dumps(job | {"rendezvous": str(Path(folder) / "rendezvous")}).encode()
        processes: list[subprocess.Popen[bytes]] = []
        group: Group | None = None
        try:
            for rank in range(ranks):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                root = str(Path(__file__).resolve().parents[2])
                path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
                process = subprocess.Popen(
                    WORKER, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, stderr=log, start_new_session=True,
                    env={**os.environ, "PYTHONPATH": path, **place, **environment})
                processes.append(process)
            group = Group(processes, log)
            for process in processes:
                with contextlib.suppress(BrokenPipeError):
                    assert process.stdin is not None
                    process.stdin.write(text)
                    process.stdin.close()
            yield group
        finally:
            (group or Group(processes, log)).end() if processes else None


def jobs(tasks: list[Task]) -> list[list[Task]]:
    """Runs of tasks that one group of processes measures: equal ranks and environment.

    >>> [len(job) for job in jobs([Task("copy"), Task("gemm"), Task("all_reduce", gpus=2), Task("send", gpus=2)])]
    [2, 2]
    """
    found: list[list[Task]] = []
    for task in tasks:
        if found and (found[-1][0].ranks, found[-1][0].environment) == (task.ranks, task.environment):
            found[-1].append(task)
        else:
            found.append([task])
    return found


def measure(tasks: list[Task], journal: Journal, timeout_s: float, progress: Progress) -> None:
    """Measure every task that the journal does not hold yet; each is on disk before the next begins."""
    for job in jobs([task for task in tasks if task.key not in journal.records]):
        left, failed = list(job), dict[tuple[str, ...], int]()
        while left:
            left = _round(left, journal, timeout_s, progress, failed)


def _round(tasks: list[Task], journal: Journal, timeout_s: float, progress: Progress,
           failed: dict[tuple[str, ...], int]) -> list[Task]:
    """One group of processes on these tasks, up to the first that breaks it; returns what is still to do."""
    job = {"tasks": [task.to_dict() for task in tasks]}
    at, finished, why = -1, 0, ""
    with launched(tasks[0].ranks, job, tasks[0].environment) as group:
        try:
            for message in group.messages(timeout_s):
                if "begin" in message:
                    at = int(message["begin"])
                    progress(tasks[at].key)
                elif "error" in message:
                    why = str(message["error"])
                    journal.fail(tasks[at], why)
                    _count(tasks[at], failed)
                    finished = at + 1
                else:
                    journal.add(_record(tasks[int(message["done"])], message["result"]))
                    finished = at + 1
                    _forget(tasks[at], failed)
        except TimeoutError:
            why = f"no answer for {timeout_s:g} s"
        why = why or ("" if finished == len(tasks) else group.last_words())
    if at < 0:                                              # it never began: another try would not either
        for task in tasks:
            journal.fail(task, f"the processes did not start: {why}")
        return []
    if finished == at:                                      # it died, or hung, inside this task
        journal.fail(tasks[at], why)
        _count(tasks[at], failed)
        finished = at + 1
    return _worth_trying(tasks[finished:], journal, failed)


def _record(task: Task, result: dict[str, Any]) -> Record:
    return checked(Record(task, **result, date=datetime.now(UTC).date().isoformat()))


def _kind(task: Task) -> tuple[str, ...]:
    return task.table, task.kernel, task.dtype, task.mode


def _count(task: Task, failed: dict[tuple[str, ...], int]) -> None:
    failed[_kind(task)] = failed.get(_kind(task), 0) + 1


def _forget(task: Task, failed: dict[tuple[str, ...], int]) -> None:
    failed.pop(_kind(task), None)


def _worth_trying(tasks: list[Task], journal: Journal, failed: dict[tuple[str, ...], int]) -> list[Task]:
    """Without the kinds that failed several times in a row: each try costs a start of all processes."""
    for task in tasks:
        if failed.get(_kind(task), 0) >= GIVE_UP_AFTER:
            journal.fail(task, f"not tried: {GIVE_UP_AFTER} of its kind failed before")
    return [task for task in tasks if failed.get(_kind(task), 0) < GIVE_UP_AFTER]
