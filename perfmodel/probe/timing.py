"""How a measurement is timed: device events around many calls, in a CUDA graph or launched one by one. Needs torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

TARGET_S = 0.01         # of one repeat: long beside the resolution of events, short beside a heating GPU
MOST_CALLS = 200        # in one graph
REPEATS = 7

Call = Callable[[int], Any]     # the argument counts calls, so that data can rotate


def time_call(call: Call, graph: bool, least: int = 2, most: int = MOST_CALLS) -> dict[str, Any]:
    """Median, least and greatest of `REPEATS` averages over as many calls as fill `TARGET_S`."""
    import torch

    for i in range(3):                          # loads kernels, chooses algorithms
        call(i)
    once = elapsed_s(lambda: [call(i) for i in range(3)]) / 3
    calls = max(least, min(most, int(TARGET_S / max(once, 1e-9))))
    run = captured(call, calls) if graph else lambda: [call(i) for i in range(calls)]
    run()
    torch.cuda.synchronize()
    return summary([elapsed_s(run) / calls for _ in range(REPEATS)], calls)


def captured(call: Call, calls: int) -> Callable[[], Any]:
    """A CUDA graph of so many calls."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for i in range(calls):
            call(i)
    return graph.replay


def elapsed_s(run: Callable[[], Any]) -> float:
    """Seconds on the device between the events around a run."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def summary(samples_s: list[float], calls: int) -> dict[str, Any]:
    """The fields of a record.

    >>> summary([2e-6, 1e-6, 4e-6], 10)
    {'us': 2.0, 'us_min': 1.0, 'us_max': 4.0, 'iterations': 10, 'repeats': 3}
    """
    us = [1e6 * sample for sample in samples_s]
    middle, least, most = (float(f"{value:.5g}") for value in (statistics.median(us), min(us), max(us)))
    return {"us": middle, "us_min": least, "us_max": most, "iterations": calls, "repeats": len(us)}
