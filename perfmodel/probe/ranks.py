"""Collectives over N GPUs, one process each, as nccl-tests measures them: the mean over ranks. Needs torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from perfmodel.probe.plan import MIB, Task
from perfmodel.probe.timing import captured, elapsed_s, summary

SMALL = 2.0**-60        # of the data: sums of sums stay finite in BF16 while a graph adds them up
REPEATS = 5
_checked: set[int] = set()


def join(rank: int, ranks: int, rendezvous: str) -> None:
    """Enter the group. The file is on this machine, so no port is needed."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks, device_id=device,
                            timeout=timedelta(seconds=float(os.environ.get("PERFMODEL_PROBE_TIMEOUT", "120"))))


def leave() -> None:
    """Close the group."""
    import torch.distributed as dist

    dist.destroy_process_group()


def measure(task: Task) -> dict[str, Any]:
    """The fields of a record; every rank calls this with the same tasks in the same order."""
    import torch
    import torch.distributed as dist

    _check_sum()
    ranks = dist.get_world_size()
    elements = task.message_bytes // 2
    source = torch.empty(elements, dtype=torch.bfloat16, device="cuda").normal_() * SMALL
    x, y = source.clone(), torch.empty_like(source)
    part = torch.empty(elements // ranks, dtype=torch.bfloat16, device="cuda").normal_() * SMALL
    call = _call(task.table, x, y, part)
    calls = 100 if task.message_bytes <= MIB else 40 if task.message_bytes <= 16 * MIB else 20
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    run: Callable[[], Any] = captured(call, calls) if task.mode == "graph" else lambda: [call(i) for i in range(calls)]
    samples = []
    for repeat in range(REPEATS + 1):
        x.copy_(source)
        dist.barrier()
        mean = torch.tensor(elapsed_s(run) / calls, dtype=torch.float64, device="cuda")
        dist.all_reduce(mean)
        if repeat:                              # the first one warms up
            samples.append(float(mean) / ranks)
    return summary(samples, calls)


def _call(op: str, x: Any, y: Any, part: Any) -> Callable[[int], Any]:
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    if op == "send_recv":
        ring = [dist.P2POp(dist.isend, x, (rank + 1) % ranks), dist.P2POp(dist.irecv, y, (rank - 1) % ranks)]
        return lambda i: [work.wait() for work in dist.batch_isend_irecv(ring)]
    if op == "send":
        return (lambda i: dist.send(x, 1)) if rank == 0 else (lambda i: dist.recv(y, 0))
    return {
        "all_reduce": lambda i: dist.all_reduce(x),
        "all_gather": lambda i: dist.all_gather_into_tensor(y, part),
        "reduce_scatter": lambda i: dist.reduce_scatter_tensor(part, x),
        "all_to_all": lambda i: dist.all_to_all_single(y, x),
    }[op]


def _check_sum() -> None:
    """Once a group: an all-reduce that is fast and wrong is no measurement."""
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    if ranks in _checked:
        return
    x = torch.full((MIB,), dist.get_rank() + 1.0, device="cuda")
    dist.all_reduce(x)
    wanted = ranks * (ranks + 1) / 2
    if not bool((x == wanted).all()):
        raise RuntimeError(f"all-reduce of 1 to {ranks} gave {float(x[0])} to {float(x[-1])} where the sum is {wanted}")
    _checked.add(ranks)
