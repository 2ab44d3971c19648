"""KV pools that vLLM printed, from its rule, the printed weights and our rows of runtime memory.

The rows were fitted on these logs, so this guards the fit; it is no measure of accuracy.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import perfmodel as pm
from perfmodel.placement import place

GIB = 2.0**30
TABLE = Path(__file__).parent / "tables" / "vllm_pools.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines()))
NAMED_BY = ("model", "version", "tp", "pp", "kv_dtype")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[key] for key in NAMED_BY))
def test_pool_of_a_start_up_log(row: dict[str, str]) -> None:
    """Within the band, and within 0.3 GiB of the printed pool."""
    d = pm.deploy(
        row["model"], node="8x-h200-sxm", engine=f"vllm=={row['version']}", tp=int(row["tp"]), pp=int(row["pp"]),
        memory_fraction=float(row["fraction"]), context=int(row["context"]), max_sequences=int(row["sequences"]),
        prefill_chunk=int(row["chunk"]), kv_dtype=row["kv_dtype"],
    )  # fmt: skip
    facts = replace(d.facts, gpu_memory_bytes=float(row["total_gib"]) * GIB)
    ranks = [replace(rank, weights_bytes=float(row["weights_gib"]) * GIB) for rank in place(d).rank_facts()]
    pool = d.engine.kv_pool(d.options, facts, ranks)
    printed = int(row["tokens"])
    assert pool.tokens_low <= printed <= pool.tokens_high
    per_token = pool.pool_bytes[pool.binding_rank] / pool.tokens
    assert abs(pool.tokens - printed) * per_token < 0.3 * GIB
