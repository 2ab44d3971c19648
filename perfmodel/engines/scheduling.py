"""What an engine's scheduler does in one iteration, by version, as plain values for a simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType

from perfmodel.engines.options import Options
from perfmodel.engines.versions import at_least


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Rules of one engine copy. Token counts are those of one attention group."""

    mixes: bool              # prompt tokens and decode tokens share a forward; else prompts go first and decoding waits
    splits: bool             # a prompt may be cut where the budget ends
    budget: int              # tokens of one forward [tokens]
    own: float               # share of its own answer that must find room when a request is admitted
    own_most: int            # but at most so many tokens of it
    reserve: tuple[float, float, float]  # share of the answers still to come that stays free: first, least, loss a step
    raises: float            # what a preemption adds to that share
    watermark: float         # share of the pool that admission leaves free
    keeps: bool              # the prefix cache has what a preempted request left until others write over it
    every: int = 1           # decode steps between two looks for new requests; after a forward with prompts it looks
    wait_steps: int = 0      # beside decoding, prompts wait at most so many steps
    wait_tokens: float = 0.0  # until a forward has so many tokens
    ahead: bool = False      # the next forward is made up while one runs: who comes meanwhile misses it


def scheduling(engine: ModuleType, options: Options) -> Scheduling:
    """The rules in force for these options.

    With an overlapped scheduler (vLLM --async-scheduling, SGLang's event_loop_overlap, TensorRT-LLM's overlap
    scheduler) a request waits for the rest of the forward under way and for the one behind it.

    Sources: vLLM v1/core/sched/scheduler.py (running requests first, then waiting ones while tokens are left; a request
    that finds no block takes the youngest one's, whose blocks the prefix cache keeps at the end of its queue), before
    0.8 core/scheduler.py (prompts first, whole up to a context of 32,768, 1 % watermark). SGLang
    managers/schedule_policy.py PrefillAdder (prompts first; room for input and own answer up to 4,096 tokens;
    new_token_ratio), schedule_batch.py retract_decode, scheduler_recv_skipper.py (a forward with prompts counts as a
    thousand steps). TensorRT-LLM CapacitySchedulerPolicy GUARANTEED_NO_EVICT,
    chunked context off; pyexecutor/py_executor.py _waiting_requests (batch_wait_timeout_iters).
    """
    return replace(_rules(engine, options), ahead=engine.schedules_ahead(options))


def _rules(engine: ModuleType, options: Options) -> Scheduling:
    chunk = int(options.prefill_chunk or 2**20)
    reserve = engine.admission_reserve(options)
    if options.engine == "sglang":
        if options.pp > 1:  # it counts the answers of the current slot alone
            reserve = (reserve[0] / engine.slots(options), reserve[1] / engine.slots(options), reserve[2])
        return Scheduling(False, True, max(1, chunk // options.dp_attention), 1.0, 4096, reserve, 0.1, 0.0, False,
                          options.receive_interval)
    if options.engine == "tensorrt-llm":
        return Scheduling(True, False, chunk, 1.0, 2**62, reserve, 0.0, 0.0, False,
                          wait_steps=options.batch_wait_steps, wait_tokens=options.batch_wait_ratio * chunk)
    if not at_least(options.version, "0.8"):
        whole = (options.context or 0) <= 32768
        return Scheduling(not whole, not whole, chunk, 0.0, 0, reserve, 0.0, 0.01, False)
    return Scheduling(True, True, chunk, 0.0, 0, reserve, 0.0, 0.0, True)
