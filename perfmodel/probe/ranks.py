"""Collectives over N GPUs, a process each, as nccl-tests measures them: out of place, mean over ranks. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.probe.nccl import Communicator
from perfmodel.probe.plan import MIB, Task
from perfmodel.probe.timing import captured, elapsed_s, summary

REPEATS = 7
WARM_CALLS = 2000           # of a small all-reduce, before the first number: clocks rise, connections are made


def join(rank: int, ranks: int, rendezvous: str) -> Communicator:
    """Enter the group, and check that its sums are right: an all-reduce that is fast and wrong is no measurement."""
    import torch

    torch.cuda.set_device(rank)
    group = Communicator(rank, ranks, rendezvous)
    x = torch.full((MIB,), rank + 1.0, dtype=torch.bfloat16, device="cuda")
    y = torch.empty_like(x)
    for _ in range(WARM_CALLS):
        group.all_reduce(x[:1024], y[:1024])
    group.all_reduce(x, y)
    wanted, low, high = ranks * (ranks + 1) / 2, float(y.min()), float(y.max())
    if not 0.98 * wanted < low <= high < 1.02 * wanted:         # BF16 rounds by 0.4 %
        raise RuntimeError(f"all-reduce of 1 to {ranks} gave {low:g} to {high:g}, not {wanted:g}")
    return group


def measure(task: Task, group: Communicator) -> dict[str, Any]:
    """The fields of a record; every rank calls this with the same tasks in the same order."""
    import torch

    elements = task.message_bytes // 2
    x, y = (torch.empty(elements, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    call = _call(task.table, group, x, y)
    calls = 100 if task.message_bytes <= MIB else 40 if task.message_bytes <= 16 * MIB else 20
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    run: Callable[[], Any] = captured(call, calls) if task.mode != "eager" else lambda: [call(i) for i in range(calls)]
    samples = []
    for repeat in range(REPEATS + 1):
        _mean(group, 0.0)                               # all ranks start together
        mean = _mean(group, elapsed_s(run) / calls)
        if repeat:                                      # the first one warms up
            samples.append(mean)
    return summary(samples, calls)


def _mean(group: Communicator, value: float) -> float:
    """Mean over ranks."""
    import torch

    mine = torch.tensor([value], dtype=torch.float64, device="cuda")
    total = torch.empty_like(mine)
    group.all_reduce(mine, total)
    return float(total) / group.ranks


def _call(op: str, group: Communicator, x: Any, y: Any) -> Callable[[int], Any]:
    part, sources, targets = slice(0, x.numel() // group.ranks), x.chunk(group.ranks), y.chunk(group.ranks)
    if op == "send":
        return (lambda i: group.send(x, 1)) if group.rank == 0 else (lambda i: group.receive(y, 0))
    return {
        "all_reduce": lambda i: group.all_reduce(x, y),
        "all_gather": lambda i: group.all_gather(x[part], y),
        "reduce_scatter": lambda i: group.reduce_scatter(x, y[part]),
        "all_to_all": lambda i: group.all_to_all(sources, targets),
        "send_recv": lambda i: group.ring(x, y),
    }[op]
