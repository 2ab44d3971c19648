"""Where the tensors of our inventory lie in a checkpoint: one module path stands for each class of weight."""

from __future__ import annotations

from typing import Any

_ATTENTION = {
    "mla": {"q_proj": "q_proj", "q_a_proj": "q_a_proj", "q_b_proj": "q_b_proj", "kv_a_proj": "kv_a_proj_with_mqa",
            "kv_b_proj": "kv_b_proj", "o_proj": "o_proj"},
    "gqa": {"q_proj": "q_proj", "kv_proj": "k_proj", "o_proj": "o_proj"},
}  # fmt: skip
_COMPRESSED = {"q_a_proj": "attn.wq_a", "q_b_proj": "attn.wq_b", "kv_proj": "attn.wkv", "o_a_proj": "attn.wo_a",
               "o_b_proj": "attn.wo_b"}
_GDN = {"in_proj_qkv": "linear_attn.in_proj_qkv", "in_proj_gate": "linear_attn.in_proj_z",
        "out_proj": "linear_attn.out_proj"}
_KDA = {"in_proj_qkv": "self_attn.q_proj", "in_proj_gate": "self_attn.g_proj", "out_proj": "self_attn.o_proj"}
_MOE = {"experts": "mlp.experts.0.gate_proj", "shared_experts": "mlp.shared_experts.gate_proj"}
_MOES: dict[str, dict[str, str]] = {
    "mixtral": {"experts": "block_sparse_moe.experts.0.w1"},
    "minimax_m2": {"experts": "block_sparse_moe.experts.0.w1"},
    "minimax_m3": {"experts": "block_sparse_moe.experts.0.w1",
                   "shared_experts": "block_sparse_moe.shared_experts.gate_proj"},
    "deepseek_v4": {"experts": "ffn.experts.0.w1", "shared_experts": "ffn.shared_experts.w1"},
    "qwen": {"experts": "mlp.experts.0.gate_proj", "shared_experts": "mlp.shared_expert.gate_proj"},
    "llama4_text": {"experts": "feed_forward.experts.0.gate_proj",
                    "shared_experts": "feed_forward.shared_expert.gate_proj"},
    "gemma4_text": {"experts": "experts.0.gate_proj", "mlp": "mlp.gate_proj"},
    "nemotron_h": {"experts": "mixer.experts.0.up_proj", "shared_experts": "mixer.shared_experts.up_proj",
                   "latent_proj": "mixer.fc1_latent_proj"},
    "granitemoehybrid": {"experts": "block_sparse_moe.input_linear", "shared_experts": "shared_mlp.input_linear"},
}  # fmt: skip
_DENSE = {"nemotron_h": "mixer.up_proj", "llama4_text": "feed_forward.gate_proj", "opt": "fc1", "phi": "mlp.fc1",
          "phi3": "mlp.gate_up_proj", "granitemoehybrid": "shared_mlp.input_linear"}

# role -> the tensors that are usually stored alike
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "roles": {
        "attention": ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "kv_proj", "o_proj", "output_gate",
                      "o_a_proj", "o_b_proj"),
        "linear": ("in_proj_qkv", "in_proj_gate", "in_proj_ba", "in_proj", "out_proj", "forget_gate", "in_proj_b"),
        "indexer": ("indexer",), "dense": ("mlp",), "experts": ("experts",), "shared": ("shared_experts",),
        "latent_moe": ("latent_proj",),
    },
}  # fmt: skip


def modules_of(family: str, part: dict[str, Any]) -> dict[str, str]:
    """Tensor -> the module inside a layer that says how it is stored.

    >>> modules_of("qwen3", {"kind": "dense"})
    {'mlp': 'mlp.gate_proj'}
    """
    kind = part["kind"]
    if kind == "dense":
        return {"mlp": _DENSE.get(family, "mlp.gate_proj")}
    if kind == "moe":
        table = _MOES.get(family) or (_MOES["qwen"] if family.startswith("qwen") else _MOE)
        if family == "deepseek_ref":
            table = _MOES["deepseek_v4"]
        lacking = {"shared_experts": not (part.get("shared_experts") or part.get("shared_intermediate")),
                   "mlp": not part.get("residual_intermediate"), "latent_proj": not part.get("latent")}
        return {tensor: path for tensor, path in table.items() if not lacking.get(tensor)}
    if kind == "compressed":
        return _COMPRESSED | ({"indexer": "attn.indexer.wq_b"} if part.get("indexer") else {})
    if kind == "linear":
        return (_KDA if part["rule"] == "kda" else _GDN) | (
            {"in_proj_ba": "linear_attn.in_proj_b"} if part["rule"] == "gdn" else {})
    if kind == "mamba2":
        where = "mixer" if family == "nemotron_h" else "mamba"
        return {"in_proj": f"{where}.in_proj", "out_proj": f"{where}.out_proj"}
    where = {"nemotron_h": "mixer"}.get(family, "self_attn")
    found = {tensor: f"{where}.{path}" for tensor, path in _ATTENTION[kind].items() if _there(tensor, part)}
    index = part.get("indexer")
    if index and not index.get("shared"):
        found["indexer"] = f"{where}.index_q_proj" if kind == "gqa" else f"{where}.indexer.wq_b"
    if part.get("output_gate"):
        own = kind == "mla" or part["output_gate"] == "head"        # else it is the second half of q_proj
        found["output_gate"] = f"{where}.g_proj" if own else f"{where}.q_proj"
    return found


def _there(tensor: str, part: dict[str, Any]) -> bool:
    if tensor in ("q_a_proj", "q_b_proj"):
        return bool(part.get("q_lora_rank"))
    if tensor == "q_proj":
        return not part.get("q_lora_rank")
    return not (tensor == "kv_proj" and part.get("shares_kv"))
