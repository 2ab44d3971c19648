"""What a search repeats: priced once, and the same to the last digit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.engines.sglang_memory import runtime_rows
from perfmodel.placement import Links, place
from perfmodel.placement.links import links_of
from perfmodel.step import communication
from perfmodel.step.communication import nccl_choice, nccl_s

PLAIN = {"collective_latency_factor": 1.0, "collective_bandwidth_factor": 1.0}


def links(node: str) -> Links:
    return links_of(pm.deploy("kimi-k2.6", node=node, tp=8))


@given(st.lists(st.floats(1, 1e10), min_size=1, max_size=20),
       st.sampled_from(["8x-h200-sxm", "8x-rtx-pro-6000-server"]),
       st.sampled_from(["all_reduce", "all_gather", "all_to_all"]))  # fmt: skip
def test_nccl_takes_the_first_protocol_whose_limit_holds_the_message(sizes: list[float], node: str, op: str) -> None:
    """One message at a time, all protocols priced, against many at once."""
    here = links(node)
    known = here.protocols(op, 8)
    names, index, seconds = nccl_choice(op, np.array([sizes]), 8, here, PLAIN)
    for size, i, time in zip(sizes, index[0], seconds[0], strict=True):
        times = [float(nccl_s(op, size, 8, p, PLAIN)) for p in known]
        holding = [k for k, p in enumerate(known) if size <= p.until_bytes]
        endless = all(p.until_bytes == float("inf") for p in known)
        assert times[i] == time and names[i] == known[i].name
        assert i == (int(np.argmin(times)) if endless else holding[0])


def test_calls_of_one_size_are_priced_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and MLP, dense layers and experts: four all-reduces of one size, and one at the embedding."""
    asked: list[tuple[Any, ...]] = []
    real = communication.collective_s
    monkeypatch.setattr(communication, "collective_s", lambda *a: asked.append(a[:3]) or real(*a))
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", engine="sglang", tp=8)
    pm.step(d, batch=8, context=1024)
    sizes = [(op, ranks, float(np.max(size))) for op, size, ranks in asked]
    assert sizes and len(set(sizes)) == len(sizes)


def test_stages_that_hold_the_same_share_their_rows() -> None:
    d = pm.deploy("kimi-k2.6", node="8x-rtx-pro-6000-server", engine="sglang", pp=8, memory_fraction=0.92)
    ranks = place(d).rank_facts()
    pool = d.engine.kv_pool(d.options, d.facts, ranks)
    assert pool.rows == tuple(runtime_rows(d.options, d.facts, rank, pool.tokens) for rank in ranks)
    assert pool.rows[4] is pool.rows[5] and pool.rows[0] is not pool.rows[1]
