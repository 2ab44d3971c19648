"""What a probe measures: a list of tasks, decided before anything runs. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from perfmodel.errors import BadInput, UnknownName

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "send")
KINDS = ("copy", "launch", "gemm", "p2p", "collectives")
TRANSPORTS = ("default", "host_staged")         # host_staged: NCCL_P2P_DISABLE=1
# graph_unmixed: NCCL_GRAPH_MIXING_SUPPORT=0. By default NCCL ties a graph's calls to calls outside it. In a row of
# calls that costs the more the longer the row is: 10, 13 and 18 us each of 20, 100 and 200 (1 KiB, 2 x H200,
# NCCL 2.28.9) where 5 us are needed. Between GEMMs it costs about 2 us, whatever the length. See docs/probe.md.
MODES = ("graph", "eager", "graph_unmixed")

KIB, MIB, GIB = 2**10, 2**20, 2**30
# n (out), k (in) of dense layers from 8B to 1T parameters, narrow and wide, and a vocabulary.
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (2112, 7168), (7168, 2048), (24576, 1536),
          (7168, 8192), (163840, 7168))
QUICK_SHAPES = ((4096, 4096), (8192, 8192), (7168, 2048))
TOKENS = tuple(2**i for i in range(15))
QUICK_TOKENS = (1, 16, 256, 4096)
WIDTH = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
LEAST_CAPABILITY = {"bf16": 8.0, "fp16": 7.0, "fp8": 8.9, "int8": 7.5}
INT8_LEAST_TOKENS = 32                          # torch._int_mm takes more than 16 rows


@dataclass(frozen=True, slots=True)
class Task:
    """One number to measure. A field that does not apply keeps its default; the fields are columns of observations."""

    table: str                  # copy, launch, gemm, p2p, or the collective
    kernel: str = ""
    dtype: str = ""
    mode: str = ""              # inside a CUDA graph, or eager; of collectives also graph_unmixed
    transport: str = ""         # of a collective: default, host_staged
    gpus: int = 1
    message_bytes: int = 0      # of collectives as nccl-tests prints it; of copies what is copied
    m: int = 0
    n: int = 0
    k: int = 0
    src: int = -1
    dst: int = -1

    @property
    def key(self) -> str:
        """Names the task in the journal.

        >>> Task("gemm", "linear", "bf16", "graph", m=16, n=4096, k=4096).key
        'table=gemm kernel=linear dtype=bf16 mode=graph m=16 n=4096 k=4096'
        """
        return " ".join(f"{name}={value}" for name, value in self.to_dict().items())

    @property
    def ranks(self) -> int:
        """Processes that measure it, one a GPU; copies between GPUs need only one."""
        return self.gpus if self.table in COLLECTIVES else 1

    @property
    def environment(self) -> dict[str, str]:
        """What the measuring processes are told besides what the user's environment says."""
        told = {"NCCL_P2P_DISABLE": "1"} if self.transport == "host_staged" else {}
        return told | ({"NCCL_GRAPH_MIXING_SUPPORT": "0"} if self.mode == "graph_unmixed" else {})

    def to_dict(self) -> dict[str, Any]:
        """The fields that apply."""
        return {field.name: value for field, value in zip(fields(self), asdict(self).values(), strict=True)
                if field.name == "table" or value != field.default}


def plan(gpus: int, capability: float, memory_bytes: float, *, quick: bool = False, host_staged: bool = False,
         only: tuple[str, ...] = ()) -> tuple[Task, ...]:
    """Every task for a machine with so many GPUs, cheapest kinds first."""
    if gpus < 1:
        raise BadInput("a machine without a GPU has nothing to probe")
    for kind in only:
        if kind not in KINDS:
            raise UnknownName("kind of measurement", kind, KINDS)
    made = {
        "copy": lambda: _copies(memory_bytes, quick),
        "launch": lambda: _launches(),
        "gemm": lambda: _gemms(capability, memory_bytes, quick),
        "p2p": lambda: _pairs(gpus, quick),
        "collectives": lambda: _collectives(gpus, quick, host_staged),
    }
    return tuple(task for kind in KINDS if not only or kind in only for task in made[kind]())


def worlds(gpus: int, quick: bool = False) -> list[int]:
    """Sizes of groups: powers of two and all GPUs; only all of them when quick.

    >>> worlds(6), worlds(8, quick=True), worlds(1)
    ([2, 4, 6], [8], [])
    """
    return sorted({size for size in (2**i for i in range(1, 13)) if size < gpus and not quick} | {gpus} - {1})


def _copies(memory_bytes: float, quick: bool) -> Iterator[Task]:
    sizes = [2**i for i in range(12, 33, 4 if quick else 2)]
    for size in sizes:
        if 4 * size <= memory_bytes:
            yield Task("copy", "device_to_device", mode="graph", message_bytes=size)
            yield Task("copy", "device_to_device", mode="eager", message_bytes=size)
    for size in sizes:
        if size <= 256 * MIB:
            yield Task("copy", "host_to_device", mode="eager", message_bytes=size)
            yield Task("copy", "device_to_host", mode="eager", message_bytes=size)


def _launches() -> Iterator[Task]:
    yield Task("launch", "add_1", mode="eager")
    yield Task("launch", "add_1", mode="graph")
    yield Task("launch", "graph_of_1", mode="eager")        # host time of one replay of the smallest graph


def _gemms(capability: float, memory_bytes: float, quick: bool) -> Iterator[Task]:
    for dtype, width in WIDTH.items():
        if capability < LEAST_CAPABILITY[dtype] or quick and dtype == "fp16":
            continue
        for n, k in QUICK_SHAPES if quick else SHAPES:
            for m in QUICK_TOKENS if quick else TOKENS if dtype in ("bf16", "fp8") else TOKENS[::2]:
                needed = 3 * n * k * width + m * k * width + 2 * m * n * 4
                if needed <= memory_bytes / 2 and not (dtype == "int8" and m < INT8_LEAST_TOKENS):
                    yield Task("gemm", "linear", dtype, "graph", m=m, n=n, k=k)


def _pairs(gpus: int, quick: bool) -> Iterator[Task]:
    """Every ordered pair; the quick probe of a large machine takes GPU 0's pairs. A GPU's own reads are the base."""
    for a in range(gpus if not quick or gpus <= 4 else 1) if gpus > 1 else ():
        for b in range(gpus):
            yield Task("p2p", "read", mode="eager", gpus=1 + (a != b), message_bytes=8, src=a, dst=b)
            if a == b:
                continue
            yield Task("p2p", "one_way", mode="eager", gpus=2, message_bytes=256 * MIB, src=a, dst=b)
            yield Task("p2p", "copy_latency", mode="graph", gpus=2, message_bytes=16, src=a, dst=b)
            if a < b:
                yield Task("p2p", "both_ways", mode="eager", gpus=2, message_bytes=256 * MIB, src=a, dst=b)


def _collectives(gpus: int, quick: bool, host_staged: bool) -> Iterator[Task]:
    """`send_recv` is nccl-tests' ring of neighbours, `send` one way from rank 0 to rank 1 (a pipeline hop)."""
    for transport in TRANSPORTS if host_staged else TRANSPORTS[:1]:
        for ranks in worlds(gpus, quick):
            for modes in (MODES[:2], MODES[2:]):                # one start of the processes each
                for op in COLLECTIVES if ranks == 2 else COLLECTIVES[:-1]:
                    for size in (2**i for i in range(10, 29, 3 if quick else 1)):
                        whole = size - size % (16 * ranks)      # every rank's part stays aligned, as in nccl-tests
                        for mode in modes:
                            yield Task(op, "nccl", "bf16", mode, transport, ranks, whole)
