"""What a simulator needs of a deployment, as plain numbers: seconds of a forward by decode batch and prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.engines.scheduling import Scheduling, scheduling
from perfmodel.placement import Placement, place
from perfmodel.step import forward
from perfmodel.step.factors import factors_of
from perfmodel.step.memory import kv_pool, running_limit
from perfmodel.step.slots import occupancy
from perfmodel.step.speculation import per_token

_GRID = 48  # batches, and prompt tokens, at which a forward is priced; between them it is interpolated
_MOST_TOKENS = 2**17  # of one forward


@dataclass(frozen=True, eq=False)
class ServerTables:
    """One engine copy. Lists by batch or by tokens, so that the simulator's loop only looks up.

    A decode step of ``b`` sequences with mean context ``s`` takes ``base[b] + slope[b] * s`` seconds, of which the
    device works all but ``idle[b]``. ``prompts[n]`` prices forwards of prompt tokens in ``n`` attention groups.
    """

    base: list[float]
    slope: list[float]
    idle: list[float]
    prompts: list[Prompts]
    groups: int
    kv_tokens: int
    limit: int
    rules: Scheduling
    interference: float  # seconds lost by running requests for a second of prefill

    def prompt_s(self, tokens: float, seen: float, prompts: int) -> float:
        """Seconds of a forward of prompt tokens alone; each sees ``seen`` tokens on average.

        A prompt longer than the budget, which some engines do not cut, takes as long as forwards of the whole budget.
        """
        work = min(prompts, self.groups)
        price = self.prompts[work]
        wide = -(-int(tokens) // work)
        at = min(wide, price.most)
        return (price.seconds[at] + price.attend[at] * seen) * wide / at

    def mixed_s(self, tokens: float, seen: float, prompts: int, size: int, step_s: float) -> float:
        """What prompt tokens add to a decode step of ``size`` sequences that takes ``step_s``: their device time, or
        the launches of a forward that no graph holds. [s]"""
        work, beside = min(prompts, self.groups), -(-size // self.groups)
        price, alone = self.prompts[work], self.prompts[self.groups]
        new = -(-int(tokens) // work)
        at = min(new + beside, price.most)
        times = (new + beside) / at
        more = times * price.device[at] + price.attend[at] * seen * new / at - alone.device[min(beside, alone.most)]
        return max(more, times * price.launch[at] - (step_s - self.idle[size]), 0.0)


@dataclass(frozen=True, eq=False)
class Prompts:
    """Forwards of prompt tokens, by tokens of one attention group.

    ``seconds[t]`` and ``attend[t]`` for each token that a new token sees on average; ``device[t]`` of ``seconds[t]`` is
    device time, and the host needs ``launch[t]``.
    """

    seconds: list[float]
    device: list[float]
    launch: list[float]
    attend: list[float]
    most: int


def server_tables(
    deployment: Deployment, largest_batch: int, context: float, arrival: str = "staggered", prompt: float | None = None
) -> ServerTables:
    """Price the forwards once: all batches up to ``largest_batch``, contexts around ``context``, prompts around
    ``prompt`` tokens.

    Pipeline slots count as evenly filled unless told otherwise: finished and replaced requests lead there.
    """
    options, placement = deployment.options, place(deployment)
    pool = kv_pool(placement)
    limit = running_limit(placement, pool)
    if options.pp > 1:
        limit = min(limit, deployment.engine.slots(options) * deployment.engine.slot_limit(options, limit))
    largest = max(1, min(largest_batch, limit))
    batches = np.unique(np.round(np.geomspace(1, largest, _GRID)))
    factors = factors_of(deployment)
    table = factors.draws(2, uncertain=False)
    low, high = 0.5 * context, 1.5 * context
    grid = np.repeat(batches, 2)
    slots = occupancy(deployment, grid, running_limit(placement, pool), arrival)
    whole = forward.decode(placement, grid, np.tile([low, high], len(batches)), table, slots)
    step = per_token(whole, deployment)
    seconds, device = (_flat(value, len(grid)).reshape(-1, 2) for value in (step.seconds, step.device_s))
    slope = np.maximum((seconds[:, 1] - seconds[:, 0]) / (high - low), 0.0)
    idle = np.maximum(seconds[:, 0] - device[:, 0], 0.0)
    every = np.arange(largest + 1, dtype=float)
    rules = scheduling(deployment.engine, options)
    return ServerTables(
        np.interp(every, batches, seconds[:, 0] - slope * low).tolist(),
        np.interp(every, batches, slope).tolist(),
        np.interp(every, batches, idle).tolist(),
        _by_groups(placement, table, rules, prompt or context),
        options.dp_attention,
        int(pool.tokens_total) if pool.tokens > 0 else 2**62,
        largest,
        rules,
        float(table["prefill_interference"]),
    )


def _by_groups(placement: Placement, table: dict[str, float], rules: Scheduling, prompt: float) -> list[Prompts]:
    """Prices for 0, 1, 2, ... attention groups at work: of the nearest power of two."""
    groups = placement.deployment.options.dp_attention
    sizes = {*(2**k for k in range(20) if 2**k < groups), groups}
    known = {n: _prompts(placement, table, rules, prompt, n) for n in sizes}
    return [known[min(known, key=lambda n: abs(n - work))] for work in range(groups + 1)]


def _prompts(placement: Placement, table: dict[str, float], rules: Scheduling, prompt: float, groups: int) -> Prompts:
    """Forwards of up to a budget of prompt tokens in each of ``groups`` groups.

    Through a pipeline all of a forward's seconds count as device time: its stages follow each other.
    """
    d = placement.deployment
    most = min(rules.budget, _MOST_TOKENS)
    captured = d.engine.prefill_graph_tokens(d.options, d.facts)
    edges = [captured + k for k in (0, 1) if 0 < captured + k <= most]
    tokens = np.unique(np.round([*np.geomspace(1, most, _GRID), *edges]))
    own = (tokens + 1) / 2  # what a token of a chunk sees of the chunk itself, on average: the least it can see
    near = np.maximum(own, prompt / 4)
    far = near + max(prompt, 64.0)
    found = []
    for seen in (near, far):
        one = forward.prefill(placement, tokens * groups, seen - own, table, float(groups))
        found.append([_flat(value, len(tokens)) for value in (one.seconds, one.device_s, one.host_s)])
    (near_s, near_device, host), (far_s, _, _) = found
    attend = np.maximum((far_s - near_s) / (far - near), 0.0)
    seconds = np.maximum(near_s - attend * near, 0.0)
    device = np.maximum(near_device - attend * near, 0.0)
    if placement.stages > 1:
        device, host = seconds, np.zeros_like(host)
    every, places = np.arange(most + 1, dtype=float), np.concatenate([[0.0], tokens])

    def dense(values: np.ndarray) -> list[float]:
        listed: list[float] = np.interp(every, places, np.concatenate([[0.0], values])).tolist()
        return listed

    return Prompts(dense(seconds), dense(device), dense(host), dense(attend), most)


def _flat(values: object, count: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, float), (1, count))[0]
