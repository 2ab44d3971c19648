"""Deployments that several tests ask about, and models that no file describes."""

from typing import Any

import perfmodel as pm
from perfmodel.catalog import Block, Dense, Format, Gqa, Mla, ModelArch, Moe
from perfmodel.catalog.architecture import Indexer
from perfmodel.catalog.base import Source
from perfmodel.deployment import Deployment
from perfmodel.step import StepCost
from perfmodel.step.operations import Row

GIB = 2.0**30
CASE_NODE = "8x-rtx-pro-6000-server"


def kimi(engine: str = "sglang==0.5.10", node: str = CASE_NODE, **keywords: Any) -> Deployment:
    """Kimi K2.6 on the node of the case."""
    return pm.deploy("kimi-k2.6", node=node, engine=engine, **keywords)


def named(cost: StepCost, name: str) -> Row:
    """The one row of a step with this name."""
    (row,) = [row for row in cost.rows if row.name == name]
    return row


def toy(
    *,
    layers: int = 4,
    hidden: int = 512,
    heads: int = 8,
    kv_heads: int = 8,
    head_dim: int = 64,
    vocab: int = 1024,
    experts: int = 0,
    per_token: int = 1,
    intermediate: int = 1024,
    mla: bool = False,
    indexer: bool = False,
    max_context: int = 131072,
) -> ModelArch:
    """A model of the given shape in BF16; with ``mla`` the latent of DeepSeek (512 + 64), with ``indexer`` also its
    sparse selection (128 values of FP8 and a scale)."""
    says = {"source": "toy", "source_kind": "assumed"}
    attention: Mla | Gqa = Gqa(kind="gqa", heads=heads, kv_heads=kv_heads, head_dim=head_dim, **says)
    if mla:
        sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        sparse = Indexer(heads=64, head_dim=128, topk=2048) if indexer else None
        attention = Mla(kind="mla", heads=heads, indexer=sparse, **sizes, **says)
    mlp: Dense | Moe = Dense(kind="dense", intermediate=intermediate, **says)
    if experts:
        mlp = Moe(kind="moe", experts=experts, per_token=per_token, intermediate=intermediate, **says)
    return ModelArch(
        name="toy", sources={"toy": Source(title="made up by a test")}, architecture="Toy", model_type="toy",
        hidden=hidden, vocab=vocab, max_context=max_context, blocks=(Block(layers=layers, attention="a", mlp="m"),),
        attention={"a": attention}, mlp={"m": mlp}, formats={"bf16": Format(bits=16, **says)},
        storage={"default": "bf16"}, **says,
    )  # fmt: skip
