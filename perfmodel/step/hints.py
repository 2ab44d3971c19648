"""What would fit instead: changes of one keyword, kept only where the model, asked again, says yes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from perfmodel.deployment import Deployment, deploy
from perfmodel.errors import PerfModelError

_MOST = 4  # hints shown


def hints_for(deployment: Deployment) -> tuple[str, ...]:
    """Nearby deployments that fit, each checked by `memory`."""
    from perfmodel.step.memory import memory

    found: list[str] = []
    for words, changes in _candidates(deployment):
        try:
            report = memory(_changed(deployment, changes), hints=False)
        except PerfModelError:
            continue
        if report.fits:
            found.append(f"{words} fits, with {report.kv_tokens:,} KV tokens")
        if len(found) == _MOST:
            break
    return tuple(found) or (
        "no change of one option fits on this node; a smaller format, more GPUs or a smaller model is needed",
    )


def _changed(deployment: Deployment, changes: dict[str, Any]) -> Deployment:
    requested = {
        f.name: getattr(deployment.requested, f.name)
        for f in fields(deployment.requested)
        if f.name not in ("engine", "version")
    }
    requested.update(changes)
    engine = f"{deployment.options.engine}=={deployment.options.version}"
    node = changes.get("node") or deployment.node
    requested.pop("node", None)
    return deploy(deployment.model, node=node, engine=engine, **requested)


def _candidates(deployment: Deployment) -> Iterator[tuple[str, dict[str, Any]]]:
    o, node = deployment.options, deployment.node
    for fraction in (0.9, 0.92, 0.94, 0.96):
        if o.memory_fraction and fraction > o.memory_fraction:
            yield f"memory_fraction={fraction:g}", {"memory_fraction": fraction}
    if o.kv_dtype in ("bf16", "fp16"):
        yield "kv_dtype=fp8", {"kv_dtype": "fp8"}
    for context in (131072, 65536, 32768):
        if o.context and o.context > context:
            yield f"context={context}", {"context": context}
    if o.max_sequences != 64:
        short = min(o.context or 32768, 32768)
        yield f"max_sequences=64 with context={short}", {"max_sequences": 64, "context": short}
    yield from _strategies(deployment)
    if o.memory_fraction and o.memory_fraction < 0.94:
        yield "memory_fraction=0.94 with kv_dtype=fp8", {"memory_fraction": 0.94, "kv_dtype": "fp8"}
    for more in (8, 16):
        if more > node.count:
            yield (
                f"tp=1 pp={more} with memory_fraction=0.92 on {more}x-{node.accelerator}",
                {
                    "node": f"{more}x-{node.accelerator}",
                    "tp": 1,
                    "pp": more,
                    "ep": 1,
                    "dp": 1,
                    "dp_attention": 1,
                    "dcp": 1,
                    "layers_per_stage": None,
                    "memory_fraction": 0.92,
                },
            )


def _strategies(deployment: Deployment) -> Iterator[tuple[str, dict[str, Any]]]:
    """Other ways to spread the model over the node's GPUs."""
    count = deployment.node.count
    for tp in (8, 4, 2, 1):
        pp = count // tp
        if pp * tp <= count and (tp, pp) != (deployment.options.tp, deployment.options.pp) and tp <= count:
            yield (
                f"tp={tp} pp={pp} with memory_fraction=0.92",
                {
                    "tp": tp,
                    "pp": pp,
                    "ep": 1,
                    "dp": 1,
                    "dp_attention": 1,
                    "dcp": 1,
                    "layers_per_stage": None,
                    "memory_fraction": 0.92,
                },
            )
