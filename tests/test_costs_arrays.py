"""Every formula takes scalars, arrays and SymPy symbols, and means the same by all three."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest
import sympy

from perfmodel import costs
from perfmodel.costs import dispatch

# arguments that stay plain whole numbers: ranks, experts, heads and the like
PLAIN = {
    "moe.distinct_experts": {"experts", "per_token"},
    "moe.busiest_rank_experts": {"experts", "ranks"},
    "moe.busiest_rank_tokens": {"per_token", "experts", "ranks"},
    "moe.expected_maximum_of_normals": {"ranks"},
    "memory.gqa_kv_values": {"kv_heads", "head_dim", "v_head_dim", "ranks"},
    "memory.mla_kv_values": {"kv_lora_rank", "qk_rope_head_dim"},
    "memory.bytes_per_weight": {"bits", "group", "scale_bits", "zero_bits"},
    "launch.eager_host_s": {"ranks"},
    **{f"collectives.{name}": {"ranks"} for name in (
        "ring_all_reduce_s", "ring_all_gather_s", "one_shot_all_reduce_s", "two_shot_all_reduce_s", "all_to_all_s")},
    "network.multimem_all_reduce_s": {"ranks"}, "network.nvls_all_reduce_s": {"ranks"},
    "network.hierarchical_all_reduce_s": {"local", "machines"},
    "difference.smooth_difference": {"centers", "weights", "length"}, "disaggregation.router_imbalance": {"places"},
    "speculative.tokens_per_step": {"drafts"},
    # numbers and arrays only: nothing prints or differentiates these
    "disaggregation.share_within": {"limit", "median", "high"},
    "speculative.chance_of_length": {"length", "drafts"}, "speculative.tokens_by_position": {"accepted"},
}  # fmt: skip

VALUES = {
    "flop": 3e12, "peak_FLOPps": 5e14, "efficiency": 0.7, "traffic_bytes": 6e9, "bandwidth_Bps": 1.8e12,
    "compute": 3e-3, "memory": 4e-3, "kernels": 120.0, "kernel_s": 3e-6, "overlap": 0.4,
    "m": 17.0, "n": 7168.0, "k": 2048.0, "tile": 16.0, "width": 2.0,
    "query_tokens": 100.0, "context": 1000.0, "heads": 8.0, "key_dim": 576.0, "value_dim": 512.0,
    "sequences": 12.0, "bytes_per_token": 576.0, "pad_tokens": 128.0, "blocks_per_sequence": 32.0,
    "half_blocks": 75.0, "ceiling": 0.75,
    "tokens": 32.0, "experts": 384, "per_token": 8, "concentration": 2.5, "distinct": 150.0, "ranks": 8,
    "message_bytes": 14336.0, "base_s": 6.6e-6, "hop_s": 1e-6, "busbw_Bps": 2e10, "link_Bps": 5e10,
    "occupied_slots_s": 0.04, "traverse_s": 0.03, "chunks": 3.0, "slowest_stage_s": 0.005, "stages_s": 0.03,
    "hidden": 7168.0, "launch_s": 2e-5, "spread": 0.15, "host_s": 0.04, "device_s": 0.012,
    "step_s": 0.03, "prefill_s": 0.2, "running": 33.0, "output_tokens": 1000.0, "interference": 1.1,
    "chunk": 64.0, "pairs": 256.0, "touched": 150.0,
    "ttft_s": 0.4, "tpot_s": 0.03, "mean": 2000.0, "load": 0.6, "service_s": 0.2, "second_moment": 1.5,
    "bits": 4, "group": 32, "scale_bits": 16, "zero_bits": 0, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "kv_heads": 8, "head_dim": 128, "v_head_dim": 128,
    "inner_steps": 14.0, "outer_steps": 4.0, "net_hop_s": 5e-6, "tree_Bps": 9e10, "ramp_Bps": 4e11, "ramp_bytes": 6.7e7,
    "local": 8, "machines": 4, "inner_Bps": 3e11,
    "uplink_Bps": 4e11, "write_Bps": 2.6e10, "read_Bps": 2.4e10, "chunk_bytes": 131072.0,
    "copies": 7.0, "copy_bytes": 7392.0,
    "away": 0.5, "during_prefill": 1.5, "apart_s": 0.5, "during_step": 0.2,
    "work_s": 1e5, "interval_s": 600.0, "dump_s": 30.0, "restart_s": 400.0, "mtbf_s": 5e4,
    "waiting": 117.0, "memory_share": 0.6, "compute_share": 0.1, "limit": 700.0,
    "position": 2.0, "centers": [1.0, 3.0], "weights": [0.1, -0.2], "length": 1.5,
    "bandwidth": 5e10, "latency_s": 1e-3, "prefill_copies": 2.0, "decode_copies": 3.0, "decode_req_s": 2.0,
    "places": 8, "each": 16.0, "prefill_steps": 500.0, "mean_wait_s": 0.3, "beyond": 0.05,
    "acceptance": 0.65, "drafts": 3, "together_s": 12.8, "alone_s": 0.1, "rounds": 10.0,
    "streams": 64.0, "at_once": 8.0, "held": 4.0,
    "made_tokens": 2e6, "prior": 100.0, "prior_sd": 0.2, "measured": 80.0, "measured_sd": 0.1,
}  # fmt: skip


def formulas() -> dict[str, Callable[..., Any]]:
    """All public functions of costs/ but the dispatching ones."""
    found = {}
    for module in iter_modules(costs.__path__):
        if module.name == "dispatch":
            continue
        room = import_module(f"{costs.__name__}.{module.name}")
        for name, value in vars(room).items():
            if inspect.isfunction(value) and value.__module__ == room.__name__ and not name.startswith("_"):
                found[f"{module.name}.{name}"] = value
    return found


FORMULAS = formulas()
CHANGING = sorted(name for name, f in FORMULAS.items() if set(inspect.signature(f).parameters) - PLAIN.get(name, set()))


def arguments(name: str) -> tuple[dict[str, Any], list[str]]:
    """Example values of all arguments, and the names of those that may be arrays or symbols."""
    names = list(inspect.signature(FORMULAS[name]).parameters)
    return {key: VALUES[key] for key in names}, [key for key in names if key not in PLAIN.get(name, set())]


def test_the_list_of_plain_arguments_is_up_to_date() -> None:
    assert set(PLAIN) <= set(FORMULAS)
    for name, plain in PLAIN.items():
        assert plain <= set(inspect.signature(FORMULAS[name]).parameters), name


@pytest.mark.parametrize("name", CHANGING)
def test_symbols_give_the_number_that_numpy_gives(name: str) -> None:
    values, free = arguments(name)
    symbols = {key: sympy.Symbol(key, positive=True) for key in free}
    expression = sympy.sympify(FORMULAS[name](**{**values, **symbols}))
    assert expression.free_symbols == set(symbols.values()), "an argument that the formula does not use"
    number = expression.subs({symbols[key]: values[key] for key in free})
    assert float(number) == pytest.approx(float(FORMULAS[name](**values)), rel=1e-9, abs=0)


@pytest.mark.parametrize("name", CHANGING)
def test_one_symbol_at_a_time_goes_through_too(name: str) -> None:
    """So `explain` may leave all but one quantity as numbers."""
    values, free = arguments(name)
    for key in free:
        symbol = sympy.Symbol(key, positive=True)
        number = sympy.sympify(FORMULAS[name](**{**values, key: symbol})).subs(symbol, values[key])
        assert float(number) == pytest.approx(float(FORMULAS[name](**values)), rel=1e-9, abs=0), key


@pytest.mark.parametrize("name", CHANGING)
def test_an_array_gives_what_its_elements_give(name: str) -> None:
    values, free = arguments(name)
    factors = np.array([1.0, 1.5, 2.0])
    together = FORMULAS[name](**{**values, **{key: values[key] * factors for key in free}})
    for i, factor in enumerate(factors):
        alone = FORMULAS[name](**{**values, **{key: values[key] * factor for key in free}})
        assert np.broadcast_to(together, factors.shape)[i] == pytest.approx(float(alone), rel=1e-12, abs=0)


@pytest.mark.parametrize("name", CHANGING)
def test_axes_broadcast(name: str) -> None:
    values, free = arguments(name)
    if len(free) > 1:
        a, b, *_ = free
        grid = {a: values[a] * np.ones((3, 1)), b: values[b] * np.ones((1, 2))}
        assert np.shape(FORMULAS[name](**{**values, **grid})) == (3, 2)


@pytest.mark.parametrize(
    ("name", "given"),
    [("maximum", (2.0, 3.0)), ("minimum", (2.0, 3.0)), ("ceil", (2.25,)), ("sqrt", (2.25,)), ("log2", (8.0,))],
)
def test_dispatch_means_the_same_for_symbols(name: str, given: tuple[float, ...]) -> None:
    call = getattr(dispatch, name)
    symbols = sympy.symbols("a b", positive=True)[: len(given)]
    number = call(*symbols).subs(dict(zip(symbols, given, strict=True)))
    assert float(number) == pytest.approx(float(call(*given)))


def test_where_takes_a_symbolic_condition() -> None:
    x = sympy.Symbol("x", positive=True)
    chosen = dispatch.where(x > 2, x, 2 * x)
    assert [float(chosen.subs(x, value)) for value in (1.0, 3.0)] == [2.0, 3.0]
    assert dispatch.where(np.array([1.0, 3.0]) > 2, 1, 0).tolist() == [0, 1]
