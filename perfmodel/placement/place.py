"""Deployment -> what every rank holds. Equal ranks are one entry: arrays have a leading stage axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from perfmodel.catalog import Format, Gqa, Mla, ModelArch
from perfmodel.costs.memory import bytes_per_weight
from perfmodel.deployment import Deployment
from perfmodel.engines.options import LayerGroup, RankFacts
from perfmodel.engines.rules import draft_tokens
from perfmodel.engines.sharding import weight_divisors
from perfmodel.errors import BadInput, shown
from perfmodel.placement import cache, loaded
from perfmodel.placement.inventory import (
    FOUR_BYTES,
    Tensor,
    edge_tensors,
    layer_tensors,
    mtp_tensors,
    stored_in,
    text_tensors,
    vision_tensors,
)

PARTS = {
    "experts": "experts",
    "expert_bias": "experts",
    "latent_moe": "experts",
    "shared": "shared experts",
    "dense": "dense MLP",
    "attention": "attention",
    "latent": "attention",
    "kv_heads": "attention",
    "indexer": "attention",
    "compressor": "attention",
    "linear": "linear attention",
    "conv": "linear attention",
    "state": "linear attention",
    "per_layer": "embedding",
    "mtp": "MTP layers",
    "hyper": "norms and router",
    "norm": "norms and router",
    "router": "norms and router",
    "router_bias": "norms and router",
    "embedding": "embedding",
    "head": "lm head",
    "vision": "vision tower",
    "vision_replicated": "vision tower",
    "absorbed": "absorbed MLA copies",
}
DIVIDED_AS = {"linear": "attention", "conv": "attention", "state": "attention", "expert_bias": "experts"}


@dataclass(frozen=True, eq=False)
class Placement:
    """What the ranks of each pipeline stage hold; every rank of a stage holds the same.

    ``kinds`` are the different (attention, mlp) layers of the model; ``counts[s, k]`` how many of kind ``k`` stage
    ``s`` has. ``parts[name][s]`` are bytes of weights on one rank of stage ``s``.
    """

    deployment: Deployment
    kinds: tuple[tuple[str, str], ...]
    counts: np.ndarray
    parts: dict[str, np.ndarray]
    kv_bytes_per_token: np.ndarray
    kv_bytes_per_token_layer: tuple[float, ...]  # by kind, one rank
    state_bytes_per_sequence_layer: tuple[float, ...] = ()  # by kind, one rank: recurrent state, and V4's window
    windows: tuple[int | None, ...] = ()  # by kind: tokens that it looks back; None: all
    drafts: tuple[int, ...] = ()  # by kind: layers for multi-token prediction that the last stage runs as well

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return len(self.counts)

    @property
    def layers(self) -> np.ndarray:
        """Decoder layers of each stage."""
        return self.counts.sum(axis=1)

    @property
    def cached(self) -> np.ndarray:
        """Layers of each stage and kind that keep a cache, those for multi-token prediction included."""
        counts = self.counts.copy()
        if self.drafts:
            counts[-1] += np.array(self.drafts)
        return counts

    @property
    def weights_bytes(self) -> np.ndarray:
        """Weights on one rank of each stage, engine copies and vision tower included. [B]"""
        return np.sum(list(self.parts.values()), axis=0)

    def rank_facts(self) -> tuple[RankFacts, ...]:
        """One entry a stage, as the memory rules of an engine take it.

        A stage without any cache counts one byte a token, so that it never binds and nothing is divided by zero.
        """
        heads = self.deployment.facts.heads // self.deployment.options.attention_tp
        return tuple(
            RankFacts(
                stage,
                int(self.layers[stage]),
                stage == 0,
                stage == self.stages - 1,
                float(self.weights_bytes[stage]),
                max(1.0, float(self.kv_bytes_per_token[stage])),
                heads,
                self.layer_groups(stage),
            )
            for stage in range(self.stages)
        )


    def layer_groups(self, stage: int) -> tuple[LayerGroup, ...]:
        """Layers of a stage that cache alike; those for multi-token prediction count with their kind."""
        groups = []
        for kind, (attention, _) in enumerate(self.kinds):
            a = self.deployment.model.attention.get(attention)
            count = int(self.cached[stage, kind])
            chunked = isinstance(a, Gqa) and a.chunk is not None
            if count and (self.kv_bytes_per_token_layer[kind] or self.state_bytes_per_sequence_layer[kind]):
                groups.append(LayerGroup(count, self.kv_bytes_per_token_layer[kind], self.windows[kind],
                                         self.state_bytes_per_sequence_layer[kind], chunked,
                                         cache.in_flight_bytes_per_token_layer(a, self.deployment.options.kv_dtype)))
        return tuple(groups)


def place(deployment: Deployment) -> Placement:
    """Deal the layers out to the stages by the engine's own rule, and divide every tensor by its own divisor."""
    if not isinstance(deployment, Deployment):
        raise BadInput(f"a Deployment is needed, as pm.deploy makes it, not {shown(deployment)}")
    model, options = deployment.model, deployment.options
    split = deployment.engine.pipeline_split(model.layers, options.pp, options.version, options.layers_per_stage)
    of_layer = [(block.attention, block.mlp) for block in model.blocks for _ in range(block.layers)]
    kinds = tuple(dict.fromkeys(of_layer))
    index = np.array([kinds.index(kind) for kind in of_layer])
    edges = np.concatenate([[0], np.cumsum(split)])
    counts = np.stack(
        [np.bincount(index[a:b], minlength=len(kinds)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    )
    of_kind = [_listed(model, kind, partial(layer_tensors, model, *kind)) for kind in kinds]
    per_layer = [_bytes_by_part(deployment, tensors) for tensors in of_kind]
    for kind, table in zip(kinds, per_layer, strict=True):
        table["absorbed MLA copies"] = absorbed_copy_bytes(deployment, kind[0])
        table["padding of experts"] = loaded.padded_expert_bytes(deployment, kind[1])
        table["allocator rounding"] = loaded.layer_rounding_bytes(deployment, *kind)
    names = list(dict.fromkeys(name for table in per_layer for name in table))
    parts = {name: counts @ np.array([table.get(name, 0.0) for table in per_layer]) for name in names}
    parts["rotary tables"] = np.full(options.pp, loaded.rotary_bytes(deployment))
    for stage in range(options.pp):
        last = stage == options.pp - 1
        extra = mtp_tensors(model) if last and loaded.drafts_with_own_layers(deployment) else ()
        ends = _listed(model, (stage == 0, last), partial(edge_tensors, model, stage == 0, last))
        tensors = (*ends, *_listed(model, "vision", partial(vision_tensors, model)),
                   *(replace(tensor, parameters=count * tensor.parameters) for count, tensor in extra))
        for name, size in _bytes_by_part(deployment, tensors).items():
            parts.setdefault(name, np.zeros(options.pp))[stage] += size
    attentions = [model.attention.get(name) for name, _ in kinds]  # None where a layer has no attention
    ways, dtype = options.attention_tp, options.kv_dtype
    capability = deployment.facts.compute_capability
    layer_kv = tuple(cache.kv_bytes_per_token_layer(
        attention, cache.cached_as(attention, dtype, options.engine, capability), ways) for attention in attentions)
    drafts = _draft_layers(deployment, kinds)
    tokens = draft_tokens(options.speculative) if options.engine == "vllm" else 0
    states = tuple(cache.state_bytes_per_sequence_layer(attention, ways, draft_tokens=tokens)
                   + cache.window_bytes_per_sequence_layer(attention, dtype) for attention in attentions)
    parts = {name: sizes for name, sizes in parts.items() if np.any(sizes)}
    placement = Placement(deployment, kinds, counts, parts, np.zeros(options.pp), layer_kv, states,
                          tuple(map(cache.window_of, attentions)), drafts)
    return replace(placement, kv_bytes_per_token=placement.cached @ np.array(layer_kv) / options.dcp)


def _listed(model: ModelArch, what: Any, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Tensors of a model, listed once: a search places it a thousand times."""
    known = next((table for one, table in _LISTED if one is model), None)
    if known is None:
        known = {}
        _LISTED.insert(0, (model, known))
        del _LISTED[4:]
    if what not in known:
        known[what] = make()
    return known[what]


_LISTED: list[tuple[ModelArch, dict[Any, tuple[Tensor, ...]]]] = []  # of the models placed last


def _draft_layers(deployment: Deployment, kinds: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
    """Layers for multi-token prediction by kind; a kind of their own counts with the first of the same attention."""
    mtp = deployment.model.mtp
    if mtp is None or not loaded.drafts_with_own_layers(deployment):
        return (0,) * len(kinds)
    same = [index for index, kind in enumerate(kinds) if kind[0] == mtp.attention]
    return tuple(1 if same and index == same[0] else 0 for index in range(len(kinds)))


def rank_bytes(deployment: Deployment, tensor: Tensor) -> float:
    """Bytes of one tensor on one rank. [B]"""
    options, facts = deployment.options, deployment.facts
    role = DIVIDED_AS.get(tensor.role, tensor.role)
    divisor = weight_divisors(options, facts.experts).get(role, 1.0)
    if tensor.role.startswith("vision"):
        divisor = loaded.vision_divisor(deployment, tensor.role, divisor)
    if tensor.role == "kv_heads":
        divisor = tensor.units / max(1, tensor.units // options.attention_tp)
    return tensor.parameters * tensor_width(deployment.formats, tensor) / divisor


def tensor_width(formats: dict[str, tuple[str, Format]], tensor: Tensor) -> float:
    """Bytes per weight of a tensor. [B]"""
    if tensor.role in FOUR_BYTES:
        return 4.0
    form = stored_in(formats, tensor)[1]
    return bytes_per_weight(form.bits, form.group or 0, form.scale_bits, form.zero_bits)


def weight_width(formats: dict[str, tuple[str, Format]], role: str) -> float:
    """Bytes per weight of a role: its own format, else that of the group it belongs to, else the default. [B]"""
    return tensor_width(formats, Tensor(role, role, 0.0))


def absorbed_copy_bytes(deployment: Deployment, attention: str) -> float:
    """Copies that an engine makes of kv_b_proj for absorbed decode, in BF16, on one rank and layer. [B]

    vLLM keeps W_UK_T and W_UV beside it (v1/attention/backends/mla/common.py, process_weights_after_loading); SGLang
    w_kc and w_vc (models/deepseek_common/deepseek_weight_loader.py, post_load_weights).
    """
    mla = deployment.model.attention.get(attention)
    if not isinstance(mla, Mla):
        return 0.0
    heads = mla.heads / deployment.options.attention_tp
    return heads * (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank * 2.0


def text_bytes(deployment: Deployment) -> float:
    """The text model as stored, over all ranks and without engine copies. [B]"""
    return sum(
        count * tensor.parameters * tensor_width(deployment.formats, tensor)
        for count, tensor in text_tensors(deployment.model)
    )


def _bytes_by_part(deployment: Deployment, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for tensor in tensors:
        name = PARTS[tensor.role]
        table[name] = table.get(name, 0.0) + rank_bytes(deployment, tensor)
    return table
