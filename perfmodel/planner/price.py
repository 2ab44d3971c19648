"""Every member of a family at every concurrency, priced as one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.planner.space import Family
from perfmodel.serving.lengths import Lengths
from perfmodel.serving.loop import loop_of, stacked
from perfmodel.serving.loop_times import decode_of, loop_times, rate_of, together_s, tpot_of, ttft_of
from perfmodel.step.forward import Forward


@dataclass(frozen=True, eq=False)
class Prices:
    """Deployments and their figures at the calibrated factors; arrays are [deployments, concurrencies]."""

    deployments: tuple[Deployment, ...]
    kv_tokens: np.ndarray
    concurrency: np.ndarray
    output_tok_s: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    pools: tuple[tuple[int, int] | None, ...]  # copies that prefill and that decode, where they are apart

    @cached_property
    def gpus(self) -> np.ndarray:
        """GPUs of each deployment, over all its pools."""
        return np.array([d.gpus * sum(pools or (1,)) for d, pools in zip(self.deployments, self.pools, strict=True)],
                        float)  # fmt: skip


def price(family: Family, grid: np.ndarray, inputs: Lengths, outputs: Lengths, factors: dict[str, Any]) -> Prices:
    """The closed loop of every member: one call for all, since they differ in nothing that a formula branches on.

    Decode is priced by KV format; a prefill reads no cache, so that one call serves all formats.
    """
    loops = [
        stacked([loop_of(d, grid, inputs, outputs, None, (replace(placement, deployment=d), pool))
                 for d, pool in members])
        for placement, members in family.parts
    ]  # fmt: skip
    loop, decode = stacked(loops), side_by_side([decode_of(one, factors) for one in loops])
    times = loop_times(loop, factors, decode)
    together = together_s(loop, factors)
    rate, ttft, tpot = rate_of(loop, times), ttft_of(loop, times, together), tpot_of(loop, times, together)
    members = [pair for _, part in family.parts for pair in part]
    shape = (len(members), len(grid))
    rate, ttft, tpot = (np.broadcast_to(value, (1, loop.running.size))[0].reshape(shape)
                        for value in (rate, ttft, tpot))  # fmt: skip
    tokens = np.array([pool.tokens_total * d.options.dp for d, pool in members])
    return Prices(tuple(d for d, _ in members), tokens, grid, rate, ttft, tpot, (None,) * len(members))


def side_by_side(forwards: Sequence[Forward]) -> Forward:
    """Forwards of several batches as one; it has no rows."""
    if len(forwards) == 1:
        return forwards[0]
    seconds, device, host = (np.concatenate([getattr(one, name) for one in forwards], axis=-1)
                             for name in ("seconds", "device_s", "host_s"))  # fmt: skip
    return Forward(seconds, device, host, forwards[0].rule, tuple)


def together(parts: Sequence[Prices]) -> Prices:
    """The prices of several families as one table."""
    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    return Prices(
        tuple(d for part in parts for d in part.deployments),
        joined("kv_tokens"), parts[0].concurrency, joined("output_tok_s"), joined("ttft_s"), joined("tpot_s"),
        tuple(pools for part in parts for pools in part.pools),
    )  # fmt: skip


def concurrencies(most: float, points: int) -> np.ndarray:
    """What every candidate is priced at: multiples of eight, which no CUDA graph pads, and the largest asked for.

    >>> concurrencies(20, 40).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 20.0]
    """
    eights = 8 * np.round(np.geomspace(8, max(most, 8), points) / 8)
    wanted = np.concatenate([[1.0, 2.0, 4.0, most], eights])
    return np.unique(wanted[wanted <= most])


def front(user: np.ndarray, gpu: np.ndarray) -> np.ndarray:
    """Indices of the points that no other beats in both, the fastest for a user first.

    >>> front(np.array([3.0, 2.0, 1.0, 1.0]), np.array([1.0, 0.5, 4.0, 2.0])).tolist()
    [0, 2]
    """
    order = np.lexsort([-gpu, -user])
    best = np.maximum.accumulate(gpu[order])
    ahead = np.concatenate([[True], gpu[order][1:] > best[:-1]])
    return order[ahead]
