"""Numbers that other people printed. A row is never edited to make it pass: give it a `gap` and say why.

``printed = ours + gap`` within half a unit of the last printed digit.
"""

import csv
from pathlib import Path

import pytest
from cases import toy

import perfmodel as pm
from perfmodel.placement import Placement, place, text_bytes, weight_width
from perfmodel.placement.inventory import text_tensors
from perfmodel.units import PREFIX

TABLES = Path(__file__).parent / "tables"
LOADING = ("rotary tables", "allocator rounding", "padding of experts")


def rows(name: str) -> list[dict[str, str]]:
    with (TABLES / name).open(newline="") as file:
        return list(csv.DictReader(file))


def agrees(ours: float, row: dict[str, str]) -> None:
    """Compare in the unit and to the digits of the row."""
    value = ours / PREFIX[row["unit"].removesuffix("B")] + float(row["gap"])
    half_a_digit = 0.5 * 10.0 ** -len(row["printed"].partition(".")[2])
    printed = float(row["printed"])
    assert value == pytest.approx(printed, rel=half_a_digit / printed, abs=0), f"{row['source']}; {row['reason']}"


def keywords(text: str) -> dict[str, int | str]:
    pairs = (pair.partition("=") for pair in text.split())
    return {key: int(value) if value.isdigit() else value for key, _, value in pairs}


def added_by_loading(placement: Placement, stage: int) -> float:
    """Bytes that an engine's load line counts and a list of tensors does not."""
    return float(sum(placement.parts[name][stage] for name in LOADING if name in placement.parts))


def weights(row: dict[str, str]) -> float:
    """The bytes that a row of the weights table is about."""
    node = f"{row['gpus']}x-rtx-pro-6000-server"
    d = pm.deploy(row["model"], node=node, engine=row["engine"], **keywords(row["keywords"]))
    experts = sum(
        count * tensor.parameters * weight_width(d.formats, tensor.role)
        for count, tensor in text_tensors(d.model)
        if tensor.role == "experts"
    )
    whole = {"text": text_bytes(d), "text experts": experts, "text rest": text_bytes(d) - experts}
    if row["what"] in whole:
        return whole[row["what"]]
    placement, stage = place(d), int(row["stage"])
    if row["what"] == "rank tensors":
        return float(placement.weights_bytes[stage] - added_by_loading(placement, stage))
    if row["what"] == "rank":
        return float(placement.weights_bytes[stage])
    if row["what"] == "stage text":
        beside = [placement.parts[name][stage] for name in ("vision tower", "absorbed MLA copies")]
        return float(placement.weights_bytes[stage] - sum(beside)) - added_by_loading(placement, stage)
    return float(sum(placement.parts[name][stage] for name in row["what"].split("+")))


@pytest.mark.parametrize("row", rows("weights_per_rank.csv"), ids=lambda row: row["id"])
def test_weights_per_rank(row: dict[str, str]) -> None:
    agrees(weights(row), row)


@pytest.mark.parametrize("row", rows("kv_cache.csv"), ids=lambda row: row["id"])
def test_kv_bytes_per_token(row: dict[str, str]) -> None:
    """On the rank that holds most of it; experts are there only where data-parallel attention needs them."""
    split = {key: int(row[key]) for key in ("tp", "pp", "dp_attention", "dcp")}
    sizes = {key: int(row[key]) for key in ("layers", "heads", "kv_heads", "head_dim") if row[key]}
    kind = {"mla": row["attention"] != "gqa", "indexer": row["attention"] == "mla+dsa"}
    model = toy(**kind, experts=8 if split["dp_attention"] > 1 else 0, **sizes)
    d = pm.deploy(model, node="8x-rtx-pro-6000-server", engine=row["engine"], kv_dtype=row["kv_dtype"], **split)
    agrees(float(max(place(d).kv_bytes_per_token)), row)


@pytest.mark.parametrize("row", rows("all_reduce.csv"), ids=lambda row: row["id"])
def test_all_reduce_within_the_band_of_the_row(row: dict[str, str]) -> None:
    """Inside a CUDA graph, with the protocol that NCCL takes for this size on this node."""
    cost = pm.collective(
        "all_reduce",
        node=row["node"],
        message_bytes=int(row["message_bytes"]),
        ranks=int(row["ranks"]),
        nccl=row["nccl"] or None,
    )
    assert 1e6 * cost.seconds == pytest.approx(float(row["printed_us"]), rel=float(row["within"]), abs=0), row["source"]


@pytest.mark.parametrize("name", ["weights_per_rank.csv", "kv_cache.csv"])
def test_every_row_has_a_source_and_every_gap_a_reason(name: str) -> None:
    table = rows(name)
    assert len({row["id"] for row in table}) == len(table)
    for row in table:
        assert row["source"], row["id"]
        assert bool(row["reason"]) == (float(row["gap"]) != 0), row["id"]
