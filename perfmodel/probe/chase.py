"""Latency of a read from another GPU's memory: one thread that waits for every load. Needs torch and Triton."""

from __future__ import annotations

from typing import Any

from perfmodel.probe.plan import Task
from perfmodel.probe.timing import elapsed_s, summary

READS = 2000
REPEATS = 7

try:                                    # Triton compiles functions of a module, so this one has to be imported here
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _chase(base, out, reads):  # type: ignore[no-untyped-def]
        at = tl.load(base, volatile=True)
        for _ in range(reads):
            at = tl.load(base + at, volatile=True)      # the address needs the value before
        tl.store(out, at)


def measure(task: Task) -> dict[str, Any]:
    """Time of one read by GPU ``src`` of 8 B that lie in GPU ``dst``'s L2 cache; its own where both are one."""
    import torch

    if triton is None:
        raise RuntimeError("Triton is not installed, so no read latency")
    if task.src != task.dst and not torch.cuda.can_device_access_peer(task.src, task.dst):
        raise RuntimeError(f"GPU {task.src} cannot read the memory of GPU {task.dst}")
    with torch.cuda.device(task.src):
        far = torch.zeros(1024, dtype=torch.int64, device=f"cuda:{task.dst}")
        out = torch.empty(1024, dtype=torch.int64, device=f"cuda:{task.src}")
        far.copy_(out.zero_())                          # torch opens P2P for its sender at the first copy
        for device in (task.src, task.dst):
            torch.cuda.synchronize(device)

        def seconds(reads: int) -> float:
            return elapsed_s(lambda: _chase[(1,)](far, out, reads, num_warps=1))

        seconds(READS)
        times = [seconds(2 * READS) - seconds(READS) for _ in range(REPEATS)]       # without the launch
        return summary([time / READS for time in times], READS)
