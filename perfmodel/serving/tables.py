"""What a simulator needs of a deployment, as plain numbers: step time by batch and context, prefill time by tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.placement import place
from perfmodel.step import forward
from perfmodel.step.factors import factors_of
from perfmodel.step.memory import kv_pool, running_limit
from perfmodel.step.slots import occupancy

_GRID = 48  # batches at which the step is priced; between them it is interpolated


@dataclass(frozen=True, eq=False)
class ServerTables:
    """One engine copy. A decode step of ``b`` sequences with mean context ``s`` takes ``base[b] + slope[b] * s`` s.

    ``prefill_tokens`` and ``prefill_seconds`` are the points between which a prefill is interpolated.
    """

    base: list[float]
    slope: list[float]
    prefill_tokens: np.ndarray
    prefill_seconds: np.ndarray  # of one prompt, in one attention group
    side_seconds: np.ndarray  # the same tokens spread over all attention groups
    groups: int
    chunk: int
    kv_tokens: int
    limit: int
    mixes: bool
    reserve: tuple[float, float, float]  # share of unmade tokens that admission keeps free: first, least, loss a step

    def prefill_s(self, tokens: float, prompts: int) -> float:
        """Seconds of a prefill of so many new tokens of so many prompts; attention groups work side by side."""
        seconds = self.prefill_seconds if prompts == 1 else self.side_seconds
        if 1 < prompts < self.groups:
            tokens = tokens * self.groups / prompts  # as many tokens a group as with all of them at work
        return float(np.interp(tokens, self.prefill_tokens, seconds))


def server_tables(
    deployment: Deployment, largest_batch: int, context: float, arrival: str = "staggered"
) -> ServerTables:
    """Price the steps once: all batches up to ``largest_batch``, contexts around ``context``.

    Pipeline slots count as evenly filled unless told otherwise: finished and replaced requests lead there.
    """
    options, placement = deployment.options, place(deployment)
    pool = kv_pool(placement)
    limit = running_limit(placement, pool)
    if options.pp > 1:
        limit = min(limit, deployment.engine.slots(options) * deployment.engine.slot_limit(options, limit))
    largest = max(1, min(largest_batch, limit))
    batches = np.unique(np.round(np.geomspace(1, largest, _GRID)))
    factors = factors_of(deployment).draws(2, uncertain=False)
    low, high = 0.5 * context, 1.5 * context
    grid = np.repeat(batches, 2)
    slots = occupancy(deployment, grid, running_limit(placement, pool), arrival)
    seconds = forward.decode(placement, grid, np.tile([low, high], len(batches)), factors, slots).seconds
    seconds = np.broadcast_to(seconds, (1, len(grid)))[0].reshape(-1, 2)
    slope = np.maximum((seconds[:, 1] - seconds[:, 0]) / (high - low), 0.0)
    every = np.arange(largest + 1, dtype=float)
    tokens = np.unique(np.round(np.geomspace(1, max(4 * (options.prefill_chunk or 8192), 4 * context), 64)))
    groups = options.dp_attention
    alone, side = (
        np.concatenate(
            [[0.0], np.broadcast_to(forward.prefill(placement, tokens, 0.0, factors, n).seconds[0], tokens.shape)]
        )
        for n in (1, np.minimum(groups, tokens))
    )
    return ServerTables(
        np.interp(every, batches, seconds[:, 0] - slope * low).tolist(),
        np.interp(every, batches, slope).tolist(),
        np.concatenate([[0.0], tokens]),
        alone,
        side,
        groups,
        int(options.prefill_chunk or 2**30),
        int(pool.tokens_total) if pool.tokens > 0 else 2**62,
        largest,
        deployment.engine.mixes_prefill(options),
        deployment.engine.admission_reserve(options),
    )
