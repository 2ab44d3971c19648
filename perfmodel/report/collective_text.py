"""Every algorithm of a collective as a table: a column a message size, the one that runs marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.report.layout import listed, over_gpus, table
from perfmodel.report.text import _size
from perfmodel.units import si

if TYPE_CHECKING:
    from perfmodel.step import CollectiveCost

COLUMNS = 5         # message sizes side by side


def algorithms_text(cost: CollectiveCost) -> str:
    """A row an algorithm, fastest first at the first size; `*` is what runs."""
    sizes = np.atleast_1d(np.asarray(cost.message_bytes, float)).ravel()
    found = [(row["algorithm"], np.atleast_1d(np.asarray(row["seconds"], float)).ravel(), row["runs"])
             for row in cost.all_algorithms()]
    found.sort(key=lambda row: float(row[1][0]))
    lines = [f"{cost.op} {over_gpus(cost.ranks)}; * is what runs"]
    for first in range(0, len(sizes), COLUMNS):
        part = range(first, min(first + COLUMNS, len(sizes)))
        rows = [[name, *(f"{si(float(times[i]), 's')}{'*' if runs[i] else ' '}" for i in part)]
                for name, times, runs in found]
        lines += ["", *table(["algorithm", *(f"{_size(float(sizes[i]))} " for i in part)], rows, left=(0,))]
    return "\n".join([*lines, *listed("assumptions", cost.assumptions)])
