"""Which collectives a TensorRT-LLM step pays, and which kernel runs an all-reduce."""

from __future__ import annotations

from perfmodel.engines import vllm_network
from perfmodel.engines.memory import MIB
from perfmodel.engines.options import Facts, Options
from perfmodel.engines.rules import Collective
from perfmodel.errors import UnknownName

ALL_REDUCE = ("auto", "nccl", "custom")


def all_reduce_backend(options: Options, facts: Facts, world: int, message_bytes: float) -> str:
    """Which kernel TensorRT-LLM takes: custom_one_shot, custom_two_shot or nccl.

    The AUTO strategy takes its own kernels where all GPUs of a node reach each other by NVLink, and NCCL elsewhere.
    Limits of 256 KiB and 8 MiB are assumed to be those of vLLM's kernels of the same origin.
    """
    choice = (options.all_reduce or "auto").lower().replace("-", "_")
    if choice not in ALL_REDUCE:
        raise UnknownName("all_reduce", choice, ALL_REDUCE)
    if world not in (2, 4, 6, 8) or choice == "nccl" or not facts.full_nvlink or message_bytes >= 8 * MIB:
        return "nccl"
    small = 512 * 1024 if world <= 4 else 256 * 1024
    return "custom_one_shot" if world == 2 or message_bytes < small else "custom_two_shot"


def layer_collectives(options: Options, facts: Facts, phase: str = "decode") -> tuple[Collective, ...]:
    """What one decoder layer pays: two all-reduces, or with attention data parallelism a gather and a scatter around
    each MoE layer. Source: TensorRT-LLM _torch/modules/fused_moe; bytes as in vLLM (assumed)."""
    return vllm_network.layer_collectives(options, facts, phase)


def step_collectives(options: Options, facts: Facts, phase: str = "decode") -> tuple[Collective, ...]:
    """What a step pays outside its layers: the embedding's all-reduce and the gather of the logits (assumed as in
    vLLM)."""
    return vllm_network.step_collectives(options, facts, phase)
