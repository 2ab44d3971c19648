"""Launches that span machines: how the GPUs of a deployment lie on them, and the words by which machines find each
other, by engine and version.

``$HEAD_ADDR`` and ``$NODE_RANK`` stand in these words: the address of the first machine, and the number of a machine,
from 0. Whoever launches sets them; nothing here knows addresses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from perfmodel.engines.options import Options
from perfmodel.engines.versions import at_least

HEAD, RANK = "$HEAD_ADDR", "$NODE_RANK"
SGLANG_PORT, RAY_PORT, RPC_PORT = 5000, 6379, 13345  # any that is free on the first machine


class Spread(NamedTuple):
    """Equal launches side by side, the options of one of them, and the machines that one spans."""

    launches: int
    options: Options
    machines: int


def spread(options: Options, machine_gpus: int | None) -> Spread:
    """How the GPUs lie on machines of so many; copies that leave a machine are launched apart, behind a router.

    Copies behind one router process stay on one machine: SGLang asserts it, and vLLM's copies of a dense model are
    independent servers anyway. Every machine of a launch has as many of its GPUs, which both engines ask for.

    >>> spread(Options(tp=8, pp=2), 8).machines, spread(Options(tp=4, dp=4), 8)[::2]
    (2, (2, 1))
    """
    if machine_gpus is None or options.dp * options.world <= machine_gpus:
        return Spread(1, options, 1)
    together = max(1, machine_gpus // options.world)
    together = together if options.dp % together == 0 else 1
    least = -(-options.world // machine_gpus)
    even = next(n for n in range(least, options.world + 1) if options.world % n == 0)
    return Spread(options.dp // together, replace(options, dp=together), even)


def sglang_words(machines: int, worker: bool) -> list[str]:
    """Source: SGLang, multi-node deployment; world size must be a multiple of the machines (check_server_args)."""
    if machines == 1:
        return []
    return ["--nnodes", str(machines), "--node-rank", RANK if worker else "0", "--dist-init-addr",
            f"{HEAD}:{SGLANG_PORT}"]


def vllm_words(options: Options, groups: int, machines: int, worker: bool) -> list[str]:
    """What joins the machines of one server, which holds ``groups`` data-parallel ranks.

    Ranks that fit a machine are data-parallel ranks of several machines; a rank that does not is one world of processes
    since 0.11.2, before that and where both meet a Ray cluster. Source: vLLM docs/serving/parallelism_scaling.md and
    data_parallel_deployment.md.
    """
    if machines == 1:
        return []
    if needs_ray(options, groups, machines):
        apart = groups > 1 and at_least(options.version or "9999", "0.9.2")
        return ["--data-parallel-backend" if apart else "--distributed-executor-backend", "ray"]
    if groups == 1:
        return ["--nnodes", str(machines), "--node-rank", RANK if worker else "0", "--master-addr", HEAD,
                *(["--headless"] if worker else [])]
    local = groups // machines
    first = ["--headless", "--data-parallel-start-rank", f"$(({local}*{RANK.removeprefix('$')}))"] if worker else []
    return ["--data-parallel-size-local", str(local), "--data-parallel-address", HEAD, "--data-parallel-rpc-port",
            str(RPC_PORT), *first]


def needs_ray(options: Options, groups: int, machines: int) -> bool:
    """Whether vLLM spans these machines by Ray alone: one command then, on the first."""
    version = options.version or "9999"
    if groups == 1:
        return machines > 1 and not at_least(version, "0.11.2")
    return machines > 1 and (groups % machines > 0 or not at_least(version, "0.10.2"))


def mpi_words(options: Options, machines: int, environment: list[str]) -> list[str]:
    """TensorRT-LLM: one MPI process a GPU. Source: docs, trtllm-serve, multi-node serving."""
    if machines == 1:
        return environment
    exported = [word for setting in environment for word in ("-x", setting.partition("=")[0])]
    return [*environment, "mpirun", "-n", str(options.world), "--hostfile", "hosts", *exported, "trtllm-llmapi-launch"]
