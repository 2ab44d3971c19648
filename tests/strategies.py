"""Hypothesis strategies: models, nodes, deployments and workloads, as varied as the catalog and the engines allow."""

from typing import Any

from cases import toy
from hypothesis import note, reject
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import engines
from perfmodel.catalog import ModelArch, names
from perfmodel.deployment import Deployment
from perfmodel.errors import PerfModelError

ENGINES = tuple(f"{name}=={version}" for name, module in engines.ENGINES.items() for version in module.VERSIONS)
NODES = ("1x-l40s", "2x-rtx-4090", "3x-a10", "4x-a100-sxm-80gb", "4x-rtx-pro-6000-server-2switch", "6x-l20",
         "8x-l40s", "8x-h100-sxm", "8x-mi300x", "8x-rtx-pro-6000-server", "16x-h200-sxm",
         "2x-dgx-h100")  # fmt: skip
# Of every family and format, and small enough that some deployment of each fits somewhere.
CATALOG = ("llama-3.1-8b", "llama-3.1-8b-instruct-w4a16", "qwen3-4b-fp8", "qwen3-30b-a3b", "mixtral-8x7b",
           "gemma-3-12b", "deepseek-v2-lite", "deepseek-v3.2", "gpt-oss-20b", "glm-4.5-air",
           "nemotron-3-nano-30b-a3b", "kimi-linear-48b-a3b", "qwen3-next-80b-a3b", "qwen3-vl-8b", "kimi-k2.6",
           "minimax-m2", "llama-4-scout")  # fmt: skip


@st.composite
def toys(draw: st.DrawFn) -> ModelArch:
    """Models that no file describes: dense or sparse, grouped or latent attention."""
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    experts = draw(st.sampled_from([0, 0, 4, 8, 64]))
    return toy(
        layers=draw(st.integers(1, 24)), hidden=draw(st.sampled_from([256, 512, 2048])),
        heads=kv_heads * draw(st.sampled_from([1, 2, 4])), kv_heads=kv_heads, head_dim=draw(st.sampled_from([64, 128])),
        vocab=draw(st.sampled_from([1024, 32_000, 128_256])), experts=experts,
        per_token=min(experts, draw(st.integers(1, 8))) or 1, intermediate=draw(st.sampled_from([512, 1024, 4096])),
        mla=draw(st.booleans()),
    )  # fmt: skip


def models() -> st.SearchStrategy[Any]:
    """Names of the catalog, any of them now and then, and toys."""
    return st.sampled_from(CATALOG) | toys() | st.sampled_from(names("model"))


def nodes() -> st.SearchStrategy[str]:
    """Machines: one card to two boxes, switched and not, with and without peer access."""
    return st.sampled_from(NODES)


@st.composite
def degrees(draw: st.DrawFn, gpus: int) -> dict[str, int]:
    """tp, pp, dp, ep and attention groups on at most so many GPUs; the engine may still refuse them."""
    tp = draw(st.sampled_from([n for n in range(1, gpus + 1) if gpus % n == 0]))
    pp = draw(st.integers(1, gpus // tp))
    dp = draw(st.integers(1, gpus // tp // pp))
    groups = draw(st.sampled_from([1, 1, 1, tp]))
    return {"tp": tp, "pp": pp, "dp": dp, "ep": draw(st.sampled_from([1, 1, tp])), "dp_attention": groups}


@st.composite
def deployments(draw: st.DrawFn, model: st.SearchStrategy[Any] | None = None,
                engine: st.SearchStrategy[str] | None = None, **fixed: Any) -> Deployment:
    """Deployments that can exist at all, whether they fit or not; ``fixed`` keywords hold in all of them."""
    node = draw(nodes())
    wanted = draw(degrees(pm.load_node(node).count))
    wanted |= {key: draw(values) for key, values in SETTINGS.items() if draw(st.integers(0, 3)) == 0}
    known = st.sampled_from(ENGINES) if engine is None else engine
    return deployed(draw(models() if model is None else model), node, draw(known), wanted | fixed)


def deployed(model: Any, node: str, engine: str, wanted: dict[str, Any]) -> Deployment:
    """The deployment; what an engine cannot run loses its odd words, then its degrees, and is dropped at last."""
    plain = {key: value for key, value in wanted.items() if key not in SETTINGS}
    simple = {key: value for key, value in plain.items() if key not in ("ep", "dp_attention")}
    for keywords in (wanted, plain, simple, {**simple, "tp": 1}):
        try:
            found = pm.deploy(model, node=node, engine=engine, **keywords)
            note(f"{getattr(model, 'name', model)} on {node}, {engine}, {keywords}")
            return found
        except PerfModelError:
            continue
    reject()


SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "kv_dtype": st.sampled_from(["fp8", "bf16"]), "context": st.integers(1024, 65_536),
    "memory_fraction": st.integers(70, 96).map(lambda n: n / 100), "max_sequences": st.integers(1, 1024),
    "prefill_chunk": st.integers(512, 16_384), "cuda_graphs": st.booleans(), "quantization": st.just("fp8"),
    "prefix_hit_rate": st.sampled_from([0.3, 0.9]),
}  # fmt: skip


def workloads() -> st.SearchStrategy[dict[str, Any]]:
    """Keywords of `predict`: lengths fixed or spread, and a load in flight."""
    lengths = st.integers(1, 8192) | st.tuples(st.integers(1, 900), st.integers(901, 4000)).map(
        lambda pair: f"uniform:{pair[0]}:{pair[1]}") | st.integers(50, 3000).map(lambda mean: f"lognormal:{mean}:0.7")
    load = {"concurrency": st.integers(1, 2000), "input_tokens": lengths, "output_tokens": lengths}
    return st.fixed_dictionaries(load)
