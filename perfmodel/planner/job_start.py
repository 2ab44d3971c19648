"""Before the first request: reading the checkpoint and getting ready, and the same again after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput, is_number, shown
from perfmodel.placement import text_bytes
from perfmodel.placement.topology import Graph

# What one rank gets through. Kind: measured, 594 GB in about 6 minutes with TP8 on the case's node (deployment articles
# on Kimi K2.6, 2026). 61 start-up logs of other machines have a median of 1.2 GB/s and a spread of 1.1 (log); in
# github llm-d-incubation/llm-d-planner#205 Llama-3.1-8B loads in 7 to 14 s with TP1, in 10.5 s with TP2 and TP4, and in
# 4.0 and 2.9 s with PP2 and PP4: a rank walks through all of its stage, whatever share of it it keeps.
LOAD_BPS, LOAD_SD = 1.65e9, 1.1
# Profiling, graph capture, warm-up. Kind: measured, 10 start-ups in public logs of vLLM ("init engine ... took": 4 to
# 539 s) and 6 of SGLang ("Capture cuda graph end": 7 to 55 s): median 28 s, spread 1.4 (log). Without graphs the
# shortest of them is taken (assumed).
WARMUP_S, WARMUP_EAGER_S, WARMUP_SD = 28.0, 4.0, 1.4


@dataclass(frozen=True)
class Start:
    """Seconds until a node serves, and until it serves again after a failure; ``notes`` say what was assumed."""

    load_s: float
    warmup_s: float
    reload_s: float
    load_sd: float
    warmup_sd: float
    notes: tuple[str, ...]

    @property
    def again_s(self) -> float:
        """From a failure until requests are taken. [s]"""
        return self.reload_s + self.warmup_s


def start_of(
    deployment: Deployment,
    *,
    load_rate: float | None = None,
    storage_bandwidth: float | None = None,
    host_memory: float | None = None,
    warmup: float | None = None,
) -> Start:
    """How long one node takes to start. Nodes start side by side, each from its own storage.

    Every rank reads its whole stage at ``load_rate`` [B/s]; a node's storage gives ``storage_bandwidth`` [B/s] to all
    ranks together. What is read once stays in the page cache where ``host_memory`` [B] holds it.
    """
    positive(1e6, load_rate=load_rate, storage_bandwidth=storage_bandwidth, host_memory=host_memory)
    if warmup is not None and not (is_number(warmup) and 0 <= warmup <= 1e6):
        raise BadInput(f"warmup must lie between 0 and 1e6 seconds, not {shown(warmup)}")
    options, size = deployment.options, text_bytes(deployment)
    rank_s = size / options.pp / (load_rate or LOAD_BPS)
    graph = Graph(deployment.node)
    machines = graph.machines(graph.gpus[: deployment.gpus])
    here = size * max(1.0, options.pp / machines) / options.pp  # bytes of the stages on one machine
    memory = host_memory if host_memory is not None else _stated(deployment)
    cached = memory is None or memory >= here
    reads = 1 if cached else options.tp * options.dp
    disk_s = 0.0 if storage_bandwidth is None else reads * here / storage_bandwidth
    graphs = bool(deployment.engine.capture_sizes(options, deployment.facts))
    ready = float(warmup) if warmup is not None else WARMUP_S if graphs else WARMUP_EAGER_S
    load = max(rank_s, disk_s)
    known = load_rate is not None or (storage_bandwidth is not None and disk_s >= rank_s)
    return Start(
        load,
        ready,
        rank_s if cached else load,
        0.1 if known else LOAD_SD,
        0.1 if warmup is not None else WARMUP_SD,
        tuple(_notes(load_rate, storage_bandwidth, memory, cached, reads, disk_s > rank_s, warmup, graphs)),
    )


def _stated(deployment: Deployment) -> float | None:
    memory = deployment.node.host.memory
    return None if memory is None or memory.value is None else float(memory.value)


def _notes(
    load_rate: float | None,
    storage: float | None,
    memory: float | None,
    cached: bool,
    reads: int,
    disk_binds: bool,
    warmup: float | None,
    graphs: bool,
) -> list[str]:
    known = "given" if load_rate else "measured on one node; start-up logs of others spread threefold"
    notes = [f"load: a rank reads its stage at {(load_rate or LOAD_BPS) / 1e9:.2f} GB/s ({known})"]
    if storage is None:
        notes.append("load: the storage of a node feeds all its ranks (assumed; storage_bandwidth says more)")
    else:
        binds = ", which binds" if disk_binds else ""
        notes.append(f"load: the storage of a node gives {storage / 1e9:.2f} GB/s{binds}")
    if memory is None:
        notes.append("load: host memory holds the checkpoint, so it is read once and restarts read no disk (assumed)")
    elif not cached:
        notes.append(f"load: {memory / 1e9:,.0f} GB of host memory do not hold it: read {reads} times (assumed)")
    if warmup is None:
        notes.append(f"start-up after the load: {'capture of graphs and ' if graphs else ''}warm-up as in public logs")
    return notes


def positive(least: float, **given: Any) -> None:
    """Refuse what is neither None nor a number of at least so much, up to 1e18."""
    for name, value in given.items():
        if value is not None and not (is_number(value) and least <= value <= 1e18):
            raise BadInput(f"{name} must lie between {least:g} and 1e18, not {shown(value)}")
