"""Measured throughput from a CSV, for pictures and tables: only rows whose conditions are those of the deployment."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path

from perfmodel.catalog.lookup import fold
from perfmodel.catalog.once import csv_rows
from perfmodel.catalog.yaml import read_text
from perfmodel.deployment import Deployment
from perfmodel.errors import DescriptorError

Point = tuple[float, float]  # concurrency, output tokens/s
METRICS = ("output_tok_s", "output_throughput", "decode_throughput")
MAX_BYTES = 2**22  # some 50,000 rows
MOST_LOADS = 64
LIKE = 0.25  # input and output lengths may differ by this share


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Rows of a CSV that has ``concurrency`` and either ``output_tok_s`` or ``metric`` and ``value``."""
    file = Path(path)
    text = io.StringIO(read_text(file, MAX_BYTES).removeprefix("\ufeff"))
    try:
        reader = csv_rows(text, file.name)
        columns = set(reader.fieldnames or ())
        if (reader.fieldnames or [""])[0].lstrip().startswith(("{", "[")):
            raise DescriptorError(f"{file.name}: a result file, and no CSV of points", [
                "perfmodel doctor COMMAND --benchmark FILE sets it beside the prediction",
                "perfmodel calibrate FILE fits it",
                "a CSV needs the columns concurrency and output_tok_s"])
        if "concurrency" not in columns or not ("output_tok_s" in columns or {"metric", "value"} <= columns):
            raise DescriptorError(f"{file.name}: needs the columns concurrency and output_tok_s, or metric and value")
        return [{key: (row.get(key) or "").strip() for key in columns} for row in reader]
    except csv.Error as error:
        raise DescriptorError(f"{file.name}: {error}") from None


def matching(
    rows: list[dict[str, str]], deployment: Deployment, input_tokens: float, output_tokens: float
) -> list[Point]:
    """Points measured under the conditions of this deployment; a condition that a row leaves open does not count."""
    points = []
    for row in rows:
        text = row.get("output_tok_s") or (row.get("value", "") if row.get("metric") in METRICS else "")
        try:
            point = float(row["concurrency"]), float(text)
        except ValueError:
            continue
        sound = all(0 < number < 1e12 for number in point)
        if sound and _same(row, deployment) and _like(row, input_tokens, output_tokens):
            points.append(point)
    return points


def and_measured(concurrency: Iterable[float], points: Iterable[Point]) -> list[float]:
    """The loads that are asked about and those that were measured, so that both meet at the same ones.

    >>> and_measured([8, 1], [(4.0, 200.0), (8.0, 371.0)])
    [8, 1, 4.0]
    """
    asked = list(concurrency)
    return [*asked, *sorted({c for c, _ in points if c >= 1} - set(asked))][:MOST_LOADS]


def _same(row: dict[str, str], deployment: Deployment) -> bool:
    o = deployment.options
    words = {
        "model": deployment.model.name,
        "engine": o.engine,
        "gpu": deployment.accelerator.name,
        "prompts": o.prompts,
        "strategy": deployment.name,
    }
    counts = {"tp": o.tp, "pp": o.pp, "ep": o.ep, "dp": o.dp, "dp_attention": o.dp_attention, "dcp": o.dcp}
    if row.get("use") == "unusable" or row.get("spec") not in (None, "", "none", "off"):
        return False
    if not fold(o.kv_dtype).startswith(fold(row.get("kv_dtype", "").removeprefix("auto"))):
        return False
    if row.get("cuda_graphs", "").lower() in ("on", "off") and (row["cuda_graphs"].lower() == "on") != o.cuda_graphs:
        return False
    return all(fold(row.get(key) or word) == fold(word) for key, word in words.items()) and all(
        row.get(key, "") in ("", str(count)) for key, count in counts.items()
    )


def _like(row: dict[str, str], input_tokens: float, output_tokens: float) -> bool:
    for key, asked in (("isl", input_tokens), ("osl", output_tokens)):
        try:
            value = float(row.get(key) or asked)
        except ValueError:
            return False
        if abs(value - asked) > LIKE * asked:
            return False
    return True
