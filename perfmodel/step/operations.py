"""What prices an operation on one rank, and the ends of the model. The layers are in attention_rows, mixer_rows and
expert_rows: formulas meet descriptors there.

Every function returns `Row`s whose fields broadcast: [draws of the factors, slots, shape of the question].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.catalog import Format, ModelArch, Moe
from perfmodel.costs.gemm import gemm_activation_bytes, gemm_flop
from perfmodel.costs.memory import bytes_per_weight
from perfmodel.costs.roofline import compute_s, memory_s, operation_s
from perfmodel.engines.options import Options
from perfmodel.engines.sharding import weight_divisors
from perfmodel.placement.inventory import Tensor, stored_in
from perfmodel.step.factors import ENDINGS
from perfmodel.step.machine import Machine

ACTIVATION = 2.0  # bytes of a BF16 activation


@dataclass(frozen=True, eq=False)
class Row:
    """One priced operation. ``latency_s`` is the part of ``seconds`` that is kernel start-up."""

    name: str
    seconds: Any
    flop: Any = 0.0
    bytes: Any = 0.0
    message_bytes: Any = 0.0
    kernels: Any = 0.0
    compute_s: Any = 0.0
    memory_s: Any = 0.0
    latency_s: Any = 0.0
    bound: str = ""  # set where it is not decided by the three parts: communication, host, pipeline, learnt


FIELDS = ("seconds", "flop", "bytes", "message_bytes", "kernels", "compute_s", "memory_s", "latency_s")


def mapped(row: Row, change: Callable[[Any], Any], fields: tuple[str, ...] = FIELDS) -> Row:
    """The row with a function applied to each of its numbers."""
    return replace(row, **{name: change(getattr(row, name)) for name in fields})


@dataclass(frozen=True, eq=False)
class Load:
    """What one forward carries. ``tokens`` are the padded rows of one attention group, ``all_tokens`` of all groups."""

    phase: str  # "decode" or "prefill"
    tokens: Any
    all_tokens: Any
    sequences: Any  # sequences of one attention group, unpadded
    context: Any  # mean cached tokens that a new token attends to
    sampled: Any  # rows that get logits, one attention group
    queries: float = 1.0  # tokens of a sequence in one decode step: more where drafts are verified


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything that prices an operation: model, options, formats, machine, calibrated factors."""

    model: ModelArch
    options: Options
    formats: dict[str, tuple[str, Format]]
    machine: Machine
    factors: dict[str, Any]
    kv_bytes_per_value: float
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)  # what `once` has made

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, made once: layers of several kinds share an attention and calls of one size."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def form(self, role: str, part: str = "", tensor: str = "") -> tuple[str, Format]:
        """Name and format of a weight by its role, the section of the model file and its own name."""
        return stored_in(self.formats, Tensor(tensor, role, 0.0, part))

    def width(self, role: str, part: str = "", tensor: str = "") -> float:
        """Bytes per weight of a role. [B]"""
        form = self.form(role, part, tensor)[1]
        return bytes_per_weight(form.bits, form.group or 0, form.scale_bits, form.zero_bits)

    def peak(self, role: str, part: str = "", tensor: str = "") -> float:
        """Peak of the arithmetic of a role. [FLOP/s]"""
        return self.machine.peak_of(self.form(role, part, tensor)[0])

    def arithmetic(self, role: str, part: str = "", tensor: str = "") -> str:
        """The number format that a role is multiplied in here: bf16, fp8, int8 or fp4."""
        return self.machine.arithmetic_of(self.form(role, part, tensor)[0])

    @property
    def divisors(self) -> dict[str, float]:
        """Ways that weights of a role are divided."""
        moe = next((m for m in self.model.mlp.values() if isinstance(m, Moe)), None)
        return weight_divisors(self.options, moe.experts if moe else 0)


def price(
    bench: Bench,
    name: str,
    flop: Any,
    traffic: Any,
    kernels: float,
    *,
    peak: Any = None,
    compute: str = "gemm_efficiency",
    memory: Any = None,
) -> Row:
    """One row from work and traffic: the roofline with the factors of the calibration."""
    f = bench.factors
    arithmetic = compute_s(flop, bench.machine.peak_of("bf16") if peak is None else peak, f[compute])
    moving = memory_s(traffic, bench.machine.bandwidth_Bps, f["dram_efficiency"] if memory is None else memory)
    seconds = operation_s(arithmetic, moving, kernels, f["kernel_s"], f["roofline_overlap"])
    return Row(name, seconds, flop, traffic, 0.0, kernels, arithmetic, moving, kernels * f["kernel_s"])


def gemm(
    bench: Bench, name: str, role: str, m: Any, n: float, k: float, kernels: float = 1, part: str = "", tensor: str = ""
) -> Row:
    """A dense projection of m rows with an [k, n] weight of this role; one kernel more quantises narrow inputs."""
    traffic = n * k * bench.width(role, part, tensor) + gemm_activation_bytes(m, n, k, ACTIVATION)
    narrow = bench.arithmetic(role, part, tensor)
    compute = f"gemm_efficiency{ENDINGS.get(narrow, '')}"
    more = 0.0 if narrow == "bf16" else 1.0
    traffic = traffic + more * m * k * (ACTIVATION + 1.0)
    return price(
        bench, name, gemm_flop(m, n, k), traffic, kernels + more, peak=bench.peak(role, part, tensor), compute=compute
    )


def edge_rows(bench: Bench, load: Load, first: bool, last: bool) -> list[Row]:
    """Embedding on the first stage; final norm, head and sampling on the last."""
    model, rows = bench.model, []
    if first:
        rows.append(price(bench, "embedding", 0.0, load.tokens * model.hidden * 2 * ACTIVATION, 1))
    if last:
        columns = model.vocab / bench.divisors["head"]
        gathered = bench.divisors["head"] > bench.divisors["attention"]
        sampled = load.sampled * (bench.options.dp_attention if gathered else 1)
        rows.append(gemm(bench, "lm head", "head", sampled, columns, model.hidden, 2))
        rows.append(price(bench, "sampling", 0.0, load.sampled * model.vocab * 4.0 * 4, 6))
    return rows
