"""Which collectives an SGLang step pays, and which kernel runs an all-reduce."""

from __future__ import annotations

from perfmodel.engines.memory import MIB
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.rules import Collective
from perfmodel.engines.versions import at_least
from perfmodel.errors import IllegalDeployment, UnknownName

ALL_REDUCE = ("auto", "nccl", "custom", "symm_mem", "pcie_ipc")
ACTIVATION_BYTES = 2.0  # [B]
KIB = 1024.0


def all_reduce_backend(options: Options, facts: Facts, world: int, message_bytes: float) -> str:
    """Which kernel SGLang takes: custom_one_shot, custom_two_shot, symm_mem, pcie_ipc or nccl.

    Source: SGLang distributed/parallel_state.py GroupCoordinator.all_reduce and the custom all-reduce classes. Valid
    inside one node. PCIe-only groups of more than two GPUs take NCCL, unless the PCIe IPC kernel is switched on.
    """
    version, choice = options.version or "9999", (options.all_reduce or "auto").lower().replace("-", "_")
    if choice not in ALL_REDUCE:
        raise UnknownName("all_reduce", choice, ALL_REDUCE)
    if world == 1 or choice == "nccl":
        return "nccl"
    if choice == "pcie_ipc":
        if not at_least(version, "0.5.21"):
            raise IllegalDeployment(f"SGLang {version} has no PCIe IPC all-reduce (since 0.5.21)")
        return "pcie_ipc" if world in (2, 4, 8) else "nccl"
    if choice == "symm_mem" and facts.full_nvlink and message_bytes < (128 if world == 8 else 64) * MIB:
        return "symm_mem"
    subgroup = options.dp_attention > 1 and world < options.tp
    if subgroup and not at_least(version, "0.5.20"):
        return "nccl"
    linked = facts.full_nvlink or (world == 2 and facts.p2p)
    if not linked or world not in (2, 4, 6, 8):
        return "nccl"
    one_shot, most = _limits(version, int(facts.compute_capability), world)
    if message_bytes > most:
        return "nccl"
    return "custom_one_shot" if message_bytes <= one_shot else "custom_two_shot"


def _limits(version: str, capability: int, world: int) -> tuple[float, float]:
    """Largest one-shot and largest two-shot message [B]. Version 1 compares with "below", so its limits end one byte
    earlier; combinations that version 2 does not list keep the limits of version 1."""
    if at_least(version, "0.5.15"):
        second = {(9, 8): (128 * KIB, 16 * MIB), (9, 4): (384 * KIB, 16 * MIB), (10, 8): (256 * KIB, 8 * MIB)}
        if (capability, world) in second:
            return second[capability, world]
    if world == 2:
        return 8 * MIB, 8 * MIB
    return (512 * KIB if world <= 4 else 256 * KIB) - 1, 8 * MIB


def layer_collectives(options: Options, facts: Facts, phase: str = "decode") -> tuple[Collective, ...]:
    """What one decoder layer pays, dense layers and MoE layers apart, with moe-a2a-backend none.

    DP attention gathers all groups' tokens before every MLP. Decode pads and uses all-gather and reduce-scatter;
    prefill sums zero-filled buffers with all-reduces. Source: SGLang layers/communicator.py, layers/dp_attention.py.
    """
    hidden, ways, calls = facts.hidden * ACTIVATION_BYTES, options.attention_tp, []
    kinds = [kind for kind, there in (("dense", facts.dense_intermediate > 0), ("moe", facts.experts > 0)) if there]
    for kind in kinds:
        if options.dcp > 1:
            calls += _context_parallel(options, facts, kind) if phase == "decode" else []
        if options.dp_attention == 1:
            if options.tp > 1:
                calls += [Collective("all_reduce", "tp", options.tp, place, hidden, "local", kind)
                          for place in ("attention", "mlp")]
            continue
        if ways > 1:
            calls.append(Collective("reduce_scatter", "attention", ways, "attention", hidden, "local", kind))
        ops = ("all_gather", "reduce_scatter") if phase == "decode" else ("all_reduce", "all_reduce")
        calls += [Collective(op, "tp", options.tp, "mlp", hidden, "global", kind) for op in ops]
        if ways > 1:
            calls.append(Collective("all_gather", "attention", ways, "mlp", hidden, "local", kind))
    return tuple(calls)


def _context_parallel(options: Options, facts: Facts, kind: str) -> list[Collective]:
    """Gather of query heads and of softmax sums, reduce-scatter of partial outputs over the dcp group. Source: SGLang
    layers/dcp/comm.py cp_lse_ag_out_rs_mla, as in vLLM."""
    width = facts.kv_values_per_token_layer / (1 if facts.attention == "mla" else 2 * facts.kv_heads)
    heads = facts.heads / options.attention_tp * options.dcp
    wide, sums = heads * width * ACTIVATION_BYTES, options.dcp * heads * 4.0
    return [Collective(op, "dcp", options.dcp, "attention", size, "local", kind)
            for op, size in (("all_gather", wide), ("all_gather", sums), ("reduce_scatter", wide))]


def step_collectives(options: Options, facts: Facts, phase: str = "decode") -> tuple[Collective, ...]:
    """What a step pays outside its layers: embedding all-reduce, gather of the logits, and under DP attention the
    gather of the hidden states before the head and of the token counts."""
    hidden, logits = facts.hidden * ACTIVATION_BYTES, facts.vocab * ACTIVATION_BYTES
    calls, ways = [], options.attention_tp
    if ways > 1:
        group = "tp" if options.dp_attention == 1 else "attention"
        calls.append(Collective("all_reduce", group, ways, "embedding", hidden, "local", "step", "first"))
    if options.dp_attention == 1:
        if options.tp > 1:
            calls.append(Collective("all_gather", "tp", options.tp, "logits", logits, "sampled", "step", "last"))
        return tuple(calls)
    return (*calls,
            Collective("all_gather", "tp", options.tp, "logits", hidden, "sampled_global", "step", "last"),
            Collective("all_gather", "tp", options.tp, "logits", logits, "sampled_global", "step", "last"),
            Collective("all_gather", "tp", options.dp_attention, "sync", 0.0, "local", "step",
                       bytes_fixed=8.0 * options.dp_attention))
