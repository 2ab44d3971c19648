"""Words that name kernels of an engine: which it knows, so that a misspelt one is refused instead of passed by."""

from __future__ import annotations

from perfmodel.engines import sglang_network, tensorrt_llm_network, vllm_network
from perfmodel.engines.options import Options
from perfmodel.errors import UnknownName

# --moe-backend of vLLM 0.33 (config/kernel.py MoEBackend), --moe-runner-backend of SGLang 0.5.23 (server_args.py
# MOE_RUNNER_BACKEND_CHOICES), moe_config.backend of TensorRT-LLM 1.2 (llmapi/llm_args.py MoeConfig). "flashinfer"
# stands for whichever of its kernels an engine picks, "none" for a model without experts
MOE_BACKENDS = {
    "vllm": ("auto", "triton", "triton_unfused", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer",
             "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_b12x", "b12x", "marlin",
             "humming", "aiter", "emulation", "none"),
    "sglang": ("auto", "deep_gemm", "triton", "triton_kernel", "flashinfer", "flashinfer_trtllm",
               "experimental_sgl_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutlass", "flashinfer_mxfp4",
               "flashinfer_cutedsl", "cutlass", "aiter", "marlin", "humming", "experimental_sgl_marlin", "hpc_ops",
               "megamoe", "intel_xpu", "none"),
    "tensorrt-llm": ("auto", "cutlass", "cutedsl", "wideep", "trtllm", "deepgemm", "densegemm", "vanilla", "triton",
                     "none"),
}
ALL_REDUCE = {"vllm": vllm_network.ALL_REDUCE, "sglang": sglang_network.ALL_REDUCE,
              "tensorrt-llm": tensorrt_llm_network.ALL_REDUCE}


def check_backends(options: Options) -> None:
    """Refuse kernels that the engine does not name.

    >>> check_backends(Options(moe_backend="marlin", all_reduce="nccl"))
    """
    for name, given, words in (("moe_backend", options.moe_backend, MOE_BACKENDS),
                               ("all_reduce", options.all_reduce, ALL_REDUCE)):
        known = words.get(options.engine, ())
        if given is not None and known and given.lower().replace("-", "_") not in known:
            raise UnknownName(f"{name} of {options.engine}", given, known)
