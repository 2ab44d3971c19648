"""What starts a deployment: every command, how many times, and on which machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.catalog.cluster import machine_size
from perfmodel.engines.machines import HEAD, RAY_PORT, needs_ray, spread

if TYPE_CHECKING:
    from perfmodel.deployment.deploy import Deployment


def launches(d: Deployment) -> tuple[tuple[int, str, str], ...]:
    """Count, place and command; the engines of several launches stand behind a router."""
    size = machine_size(d.node)
    count, options, machines = spread(d.options, size)
    line = d.command()
    if machines == 1 or d.options.engine == "tensorrt-llm":
        whole = options.dp_attention == 1 and ("--dp-size" in line or "--data-parallel-size" in line)
        return ((count if whole else count * options.dp, "", line),)
    others, place = count * (machines - 1), f"each other of {machines} machines"
    first = f"first of {machines} machines"
    groups = options.dp_attention if options.dp_attention > 1 or d.facts.experts > 0 else options.dp
    if d.options.engine == "vllm" and needs_ray(options, groups, machines):
        line = f"VLLM_RAY_DP_PACK_STRATEGY=span {line}" if groups > 1 else line
        return ((count, first, f"ray start --head --port={RAY_PORT}"),
                (others, place, f"ray start --address={HEAD}:{RAY_PORT}"), (count, first, line))
    return (count, first, line), (others, place, d.command(worker=True))
