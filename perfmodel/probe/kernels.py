"""Copies, GEMMs, launches and pairs of GPUs, measured in one process. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from perfmodel.probe import chase
from perfmodel.probe.plan import GIB, Task
from perfmodel.probe.timing import MOST_CALLS, captured, summary, time_call

COLD = 4                # times the L2 cache that a rotation runs through before it comes back
MOST_BUFFERS = MOST_CALLS
_weights: dict[tuple[Any, ...], list[Any]] = {}         # of one GEMM shape; the next shape throws them away


def measure(task: Task) -> dict[str, Any]:
    """The fields of a record for a copy, launch, gemm or p2p task."""
    return {"copy": _copy, "launch": _launch, "gemm": _gemm, "p2p": _pair}[task.table](task)


def _l2_bytes() -> int:
    import torch

    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 * 2**20)


def _copy(task: Task) -> dict[str, Any]:
    """Copies between slices of two pools, so that no slice is in the L2 cache when its turn comes again."""
    import torch

    size = task.message_bytes
    slices = max(1, min(MOST_BUFFERS, -(-COLD * _l2_bytes() // size)))
    pools = []
    for side in ("source", "target"):
        on_host = task.kernel == ("host_to_device" if side == "source" else "device_to_host")
        pool = torch.empty(slices * size, dtype=torch.uint8, device="cpu" if on_host else "cuda", pin_memory=on_host)
        pools.append((pool.fill_(165) if on_host else pool.random_(0, 256)).view(slices, size))
    source, target = pools
    found = time_call(lambda i: target[i % slices].copy_(source[i % slices], non_blocking=True),
                      task.mode == "graph", least=slices)
    warm = task.kernel == "device_to_device" and 2 * slices * size < 2 * _l2_bytes()
    return found | {"l2": "warm" if warm else "cold"}


def _launch(task: Task) -> dict[str, Any]:
    """A kernel of one element: device time in a graph, host time when launched one by one."""
    import torch

    x = torch.zeros(1, device="cuda")
    if task.kernel == "graph_of_1":
        replay = captured(lambda i: x.add_(1), 1)
        return time_call(lambda i: replay(), False, least=1000, most=1000)
    return time_call(lambda i: x.add_(1), task.mode == "graph", least=1000, most=1000)


def _gemm(task: Task) -> dict[str, Any]:
    """``x[m, k] W[n, k]^T`` with enough weights in turn that each comes from memory, as in a model."""
    import torch

    key = (task.dtype, task.n, task.k)
    if key not in _weights:
        _weights.clear()
        torch.cuda.empty_cache()
        width = 2 if task.dtype in ("bf16", "fp16") else 1
        copies = max(2, min(MOST_BUFFERS, -(-COLD * _l2_bytes() // (task.n * task.k * width))))
        _weights[key] = [_random(task.n, task.k, task.dtype) for _ in range(copies)]
    weights = _weights[key]
    multiply = _multiply(_random(task.m, task.k, task.dtype), task.dtype)
    found = time_call(lambda i: multiply(weights[i % len(weights)]), task.mode == "graph", least=len(weights))
    return found | {"l2": "cold"}


def _random(rows: int, columns: int, dtype: str) -> Any:
    """Random numbers: a GPU multiplies zeros with less power, and so faster."""
    import torch

    if dtype == "int8":
        return torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device="cuda")
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}[dtype]
    full = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").normal_()
    return full.to(wanted)


def _multiply(x: Any, dtype: str) -> Callable[[Any], Any]:
    """The library call for a dtype; FP8 with one scale a tensor and fast accumulation, BF16 out."""
    import torch

    if dtype == "int8":
        return lambda w: torch._int_mm(x, w.t())
    if dtype == "fp8":
        one = torch.ones((), device="cuda")
        return lambda w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                                          use_fast_accum=True)
    return lambda w: torch.nn.functional.linear(x, w)


def _pair(task: Task) -> dict[str, Any]:
    """Copies from one GPU to another. Without P2P the driver takes them through host memory by itself."""
    import torch

    if task.kernel == "read":
        return chase.measure(task)
    a, b, size = task.src, task.dst, task.message_bytes
    sides = {a: [torch.empty(size, dtype=torch.uint8, device=f"cuda:{a}").random_(0, 256) for _ in range(2)],
             b: [torch.empty(size, dtype=torch.uint8, device=f"cuda:{b}").random_(0, 256) for _ in range(2)]}
    streams = [(torch.cuda.Stream(a), torch.cuda.Stream(b)) for _ in range(2)]

    def copy(way: tuple[int, int, int]) -> None:
        source, target, pair = way
        with torch.cuda.stream(streams[pair][0]), torch.cuda.stream(streams[pair][1]):
            sides[target][pair].copy_(sides[source][pair], non_blocking=True)

    if task.mode == "graph":
        return _in_graph(lambda: copy((a, b, 0)), *streams[0])
    directions = [(a, b, 0), (b, a, 1)][: 2 if task.kernel == "both_ways" else 1]

    def all_directions() -> None:
        for way in directions:
            copy(way)

    return _by_host_clock(all_directions, (a, b))


def _in_graph(copy: Callable[[], None], origin: Any, other: Any, calls: int = 200) -> dict[str, Any]:
    """A chain of copies in one graph that spans the streams of both GPUs; no host work between two copies."""
    import torch

    with torch.cuda.device(origin.device):
        copy()
        _synchronize((origin.device, other.device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=origin, capture_error_mode="thread_local"):
            other.wait_stream(origin)
            for _ in range(calls):
                copy()
            origin.wait_stream(other)
        return _by_host_clock(graph.replay, (origin.device, other.device), per=calls, calls=1)


def _by_host_clock(run: Callable[[], Any], devices: tuple[Any, Any], per: int = 1, calls: int = 20) -> dict[str, Any]:
    """Seconds of a run on two GPUs, until both are done. Long runs only: a host clock also sees the last wait."""
    samples = []
    for repeat in range(8):
        _synchronize(devices)
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        _synchronize(devices)
        if repeat:                              # the first one warms up
            samples.append((time.perf_counter() - begin) / calls / per)
    return summary(samples, calls * per)


def _synchronize(devices: tuple[Any, Any]) -> None:
    import torch

    for device in devices:
        torch.cuda.synchronize(device)


def facts() -> dict[str, Any]:
    """What torch says about the machine: GPUs, versions, who reads whose memory."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda or "",
                             "hip": getattr(torch.version, "hip", None) or "", "devices": count}
    if not count:
        return found
    properties = torch.cuda.get_device_properties(0)
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    return found | {
        "gpus": [torch.cuda.get_device_name(i) for i in range(count)],
        "capability": float(f"{properties.major}.{properties.minor}"), "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory, "l2_bytes": _l2_bytes(),
        "memory_clock_kHz": getattr(properties, "memory_clock_rate", None),
        "memory_bus_bits": getattr(properties, "memory_bus_width", None),
        "nccl": ".".join(map(str, nccl)), "free_bytes": min(torch.cuda.mem_get_info(i)[0] for i in range(count)),
        "peer_access": [[a == b or torch.cuda.can_device_access_peer(a, b) for b in range(count)]
                        for a in range(count)],
        "occupied": [i for i in range(count) if torch.cuda.mem_get_info(i)[0] < properties.total_memory - 4 * GIB],
    }
