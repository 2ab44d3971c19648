"""Which collectives a vLLM step pays, and which kernel runs an all-reduce."""

from __future__ import annotations

from perfmodel.engines.memory import MIB
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.rules import Collective
from perfmodel.engines.versions import at_least
from perfmodel.errors import IllegalDeployment, UnknownName

ALL_REDUCE = ("auto", "nccl", "custom", "symm_mem", "pcie_ipc")
ACTIVATION_BYTES = 2.0  # hidden states travel as bf16 or fp16 [B]

# Largest message of the custom kernel beside torch symmetric memory [MiB]: capability -> ranks -> size
_CUSTOM_MIB = {9.0: {2: 64.0, 4: 32.0, 6: 0.5, 8: 0.25}, 10.0: {2: 2.0, 4: 2.0, 6: 1.0, 8: 1.0},
               10.3: {2: 4.0, 4: 4.0, 6: 8.0, 8: 4.0}}
_SYMM_MIB = {9: {2: 64.0, 4: 32.0, 6: 64.0, 8: 64.0}, 10: {2: 8.0, 4: 32.0, 6: 128.0, 8: 128.0}}


def all_reduce_backend(options: Options, facts: Facts, world: int, message_bytes: float) -> str:
    """Which kernel vLLM takes: custom_one_shot, custom_two_shot, symm_mem, pcie_ipc or nccl.

    Source: vLLM 0.33.0 distributed/device_communicators/cuda_communicator.py, custom_all_reduce.py and
    csrc/custom_all_reduce.cuh. Valid inside one node. More than two GPUs without full NVLink always take NCCL.
    """
    version, choice = options.version or "9999", (options.all_reduce or "auto").lower().replace("-", "_")
    if choice not in ALL_REDUCE:
        raise UnknownName("all_reduce", choice, ALL_REDUCE)
    if world == 1 or choice == "nccl":
        return "nccl"
    if choice == "pcie_ipc":
        if not at_least(version, "0.30"):
            raise IllegalDeployment(f"vLLM {version} has no PCIe IPC all-reduce (since 0.30)")
        return "pcie_ipc" if world in (2, 4, 8) else "nccl"
    symmetric = at_least(version, "0.11") and facts.full_nvlink and int(facts.compute_capability) in _SYMM_MIB
    linked = facts.full_nvlink or (world == 2 and facts.p2p)
    limit = 8 * MIB
    if symmetric:
        table = _CUSTOM_MIB.get(round(facts.compute_capability, 1), _CUSTOM_MIB[10.0])
        limit = min(limit, table.get(world, 0.0) * MIB)
    if choice != "symm_mem" and linked and world in (2, 4, 6, 8) and message_bytes < limit:
        small = 512 * 1024 if world <= 4 else 256 * 1024
        return "custom_one_shot" if world == 2 or message_bytes < small else "custom_two_shot"
    if choice != "custom" and symmetric and message_bytes <= (
            _SYMM_MIB[int(facts.compute_capability)].get(world, 0.0) * MIB):
        return "symm_mem"
    return "nccl"


def layer_collectives(options: Options, facts: Facts, phase: str = "decode") -> tuple[Collective, ...]:
    """What one decoder layer pays, dense layers and MoE layers apart. Only decode gathers queries over the dcp group.

    Source: vLLM 0.33.0; allgather_reducescatter is the default all-to-all backend since 0.11.0.
    """
    hidden, calls = facts.hidden * ACTIVATION_BYTES, []
    ways, tp = options.attention_tp, options.tp
    kinds = [kind for kind, there in (("dense", facts.dense_intermediate > 0), ("moe", facts.experts > 0)) if there]
    for kind in kinds:
        calls += _context_parallel(options, facts, kind) if phase == "decode" else []
        if options.dp_attention > 1 and kind == "moe":
            if ways > 1:
                calls.append(Collective("reduce_scatter", "attention", ways, "attention", hidden, "local", kind))
            routing = 8.0 * facts.per_token  # weights fp32 and ids int32
            calls += [Collective("all_gather", "tp", tp, "mlp", hidden + routing, "global", kind),
                      Collective("reduce_scatter", "tp", tp, "mlp", hidden, "global", kind)]
            if ways > 1:
                calls.append(Collective("all_gather", "attention", ways, "mlp", hidden, "local", kind))
        elif ways > 1:
            group = "tp" if options.dp_attention == 1 else "attention"
            calls += [Collective("all_reduce", group, ways, place, hidden, "local", kind)
                      for place in ("attention", "mlp")]
    return tuple(calls)


def _context_parallel(options: Options, facts: Facts, kind: str) -> list[Collective]:
    """Gather of the query heads, gather of their softmax sums, and reduce-scatter of the partial outputs over the dcp
    group. Source: vLLM v1/attention/ops/common.py cp_lse_ag_out_rs.

    For MLA both are taken as wide as the latent with its rotary part (576 for DeepSeek; the output has 512).
    """
    if options.dcp == 1:
        return []
    width = facts.kv_values_per_token_layer / (1 if facts.attention == "mla" else 2 * facts.kv_heads)
    heads = facts.heads / options.attention_tp * options.dcp
    wide, sums = heads * width * ACTIVATION_BYTES, options.dcp * heads * 4.0
    return [Collective(op, "dcp", options.dcp, "attention", size, "local", kind)
            for op, size in (("all_gather", wide), ("all_gather", sums), ("reduce_scatter", wide))]


def step_collectives(options: Options, facts: Facts, phase: str = "decode") -> tuple[Collective, ...]:
    """What a step pays outside its layers: the embedding's all-reduce, the gather of the logits, the DP sync."""
    calls, ways = [], options.attention_tp
    group = "tp" if options.dp_attention == 1 else "attention"
    if ways > 1:
        calls += [
            Collective("all_reduce", group, ways, "embedding", facts.hidden * ACTIVATION_BYTES, "local", "step",
                       "first"),
            Collective("all_gather", group, ways, "logits", facts.vocab * ACTIVATION_BYTES, "sampled", "step", "last")]
    if options.dp_attention > 1:
        calls.append(Collective("all_reduce", "tp", options.dp_attention, "sync", 0.0, "local", "step",
                                bytes_fixed=16.0 * options.dp_attention))
    return tuple(calls)
