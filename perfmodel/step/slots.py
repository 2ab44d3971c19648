"""Running sequences -> micro-batches in the pipeline's slots, for whole arrays of concurrencies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.engines.options import Options
from perfmodel.errors import one_of

ARRIVALS = ("burst", "staggered")


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Two sizes of micro-batch, the fullest first: ``count[:, i]`` slots hold ``batch[:, i]`` sequences each."""

    batch: np.ndarray  # (1, 2, ...): axis of draws, axis of slots, shape of the question
    count: np.ndarray  # (1, 2, ...)
    rule: str
    in_line: Any = False  # whether the host's loop holds up the stages: `loop_in_line`


def usual_arrival(options: Options, lasting: bool = False) -> str:
    """How an engine fills a pipeline's slots where nobody says; ``lasting``: at a rate, or in a long job.

    vLLM's scheduler takes every request that runs into its next batch and splits none: measured with 0.22.1 on two
    stages, where a closed loop with mixed lengths and Poisson arrivals made as many tokens as on one stage
    (h200-vllm-served-2026-11); reported for prefill as vllm-project/vllm issue 41682; assumed for other versions.
    SGLang crowds a burst into one slot, and requests that replace others come to lie evenly. TensorRT-LLM: assumed.
    """
    if options.engine == "vllm":
        return "burst"
    return "burst" if options.engine == "sglang" and not lasting else "staggered"


def arrival_of(options: Options, asked: str | None, lasting: bool = False) -> str:
    """The arrival that was asked for, else the engine's usual one."""
    return usual_arrival(options, lasting) if asked is None else one_of("arrival", asked, ARRIVALS)


def loop_in_line(options: Options) -> bool:
    """Whether a stage stands still while the host takes a micro-batch's tokens and makes up the next micro-batch.

    SGLang without async depth (managers/scheduler_pp_mixin.py event_loop_pp): the host launches one micro-batch, waits
    for the last stage's tokens of another, processes them, schedules, and only then launches again.
    """
    return options.engine == "sglang" and options.pp > 1 and not options.async_depth


def occupancy(deployment: Deployment, batch: Any, max_running: int, arrival: str | None = None) -> Occupancy:
    """How the engine deals ``batch`` running sequences to its slots.

    ``burst``: requests that arrive together fill one slot up to its limit, then the next (SGLang's scheduler takes
    from the queue whatever slot comes by). ``staggered``: they spread evenly, as they do once finished requests have
    been replaced many times. The default is the engine's own, `usual_arrival`. What exceeds all slots waits.
    """
    dealt = _dealt(deployment, batch, max_running, arrival_of(deployment.options, arrival))
    return replace(dealt, in_line=loop_in_line(deployment.options))


def _dealt(deployment: Deployment, batch: Any, max_running: int, rule: str) -> Occupancy:
    options, engine = deployment.options, deployment.engine
    running = np.maximum(np.asarray(batch, float), 1.0)
    if options.pp == 1:
        return _pair(running, running, np.ones_like(running), np.zeros_like(running), "one batch")
    slots, limit = engine.slots(options), float(engine.slot_limit(options, max_running))
    running = np.minimum(running, slots * limit)
    if rule == "burst":
        full = np.minimum(np.floor(running / limit), slots)
        rest = np.where(full >= slots, 0.0, running - full * limit)
        first = np.where(full > 0, limit, rest)
        return _pair(
            first,
            np.maximum(rest, 1.0),
            np.where(full > 0, full, 1.0),
            np.where((full > 0) & (rest > 0), 1.0, 0.0),
            rule,
        )
    used = np.minimum(running, slots)
    high, low = np.ceil(running / used), np.maximum(np.floor(running / used), 1.0)
    many = np.where(high > low, running - low * used, used)
    return _pair(high, low, many, used - many, rule)


def _pair(full: Any, rest: Any, full_count: Any, rest_count: Any, rule: str) -> Occupancy:
    return Occupancy(np.stack([full, rest])[None], np.stack([full_count, rest_count])[None], rule)
