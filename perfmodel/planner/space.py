"""Which deployments a search considers: every strategy that the engine accepts on the GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from perfmodel.catalog import ModelArch, Node
from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import QuestionError

KV_DTYPES = ("auto", "fp8")
FRACTIONS = {"sglang": (None, 0.92), "vllm": (None,), "tensorrt-llm": (None,)}


def divisors(number: int) -> list[int]:
    """Divisors, ascending.

    >>> divisors(8)
    [1, 2, 4, 8]
    """
    return [d for d in range(1, number + 1) if number % d == 0]


def strategies(gpus: int, moe: bool, layers: int) -> Iterator[dict[str, int]]:
    """All (tp, pp, dp, ep, dp_attention) that use at most ``gpus`` GPUs; powers of two and divisors of the node."""
    for tp in divisors(gpus):
        for pp in divisors(gpus // tp):
            for dp in divisors(gpus // tp // pp):
                if pp > layers:
                    continue
                for groups in divisors(tp):
                    for ep in divisors(tp) if moe else [1]:
                        yield {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "dp_attention": groups}


def candidates(
    model: ModelArch, node: Node, engine: str, fixed: dict[str, Any], concurrency: float
) -> Iterator[Deployment]:
    """Deployments that the engine accepts, largest use of the node first; ``fixed`` keywords stay as they are.

    Pipelines are also offered with the micro-batch limit that spreads the load over all slots.
    """
    moe = any(mlp.kind == "moe" for mlp in model.mlp.values())
    name = engine.partition("==")[0].strip().lower()
    dtypes = (None,) if "kv_dtype" in fixed else KV_DTYPES
    fractions = (None,) if "memory_fraction" in fixed else FRACTIONS.get(name, (None,))
    for strategy in strategies(node.count, moe, model.layers):
        if any(key in fixed and fixed[key] != value for key, value in strategy.items()):
            continue
        for kv_dtype in dtypes:
            for fraction in fractions:
                keywords = {**strategy, "kv_dtype": kv_dtype, "memory_fraction": fraction, **fixed}
                try:
                    found = deploy(model, node=node, engine=engine, **keywords)
                except QuestionError:
                    break
                yield found
                if strategy["pp"] > 1 and "max_micro_batch" not in fixed and name == "sglang":
                    slots = found.engine.slots(found.options)
                    each = max(1, -(-int(concurrency / strategy["dp"]) // slots))
                    spread = replace(found.options, max_micro_batch=each)
                    yield replace(found, options=spread, requested=replace(found.requested, max_micro_batch=each))
