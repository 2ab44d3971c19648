"""Prefill on some engine copies, decode on others: split searched for the best copies of an ordinary search."""

from __future__ import annotations

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.errors import PerfModelError
from perfmodel.planner.price import Prices
from perfmodel.planner.space import with_options
from perfmodel.serving.disaggregated import disaggregated
from perfmodel.serving.lengths import Lengths

MOST_COPIES_OF_A_KIND = 6  # strategies of one copy for which splits are priced; each split costs a whole curve
SHARES = (0.125, 0.25, 0.5, 0.75)  # of the copies that prefill


def split_prices(table: Prices, gpus: int, inputs: Lengths, outputs: Lengths) -> Prices | None:
    """Prices of prefill and decode pools of the copies that make most tokens a GPU; None where no two copies fit."""
    rows = _best_copies(table, gpus)
    found: list[tuple[Deployment, tuple[int, int], int, list[np.ndarray]]] = []
    for row in rows:
        d = with_options(table.deployments[row], dp=1)
        copies = gpus // d.gpus
        for n_prefill in sorted({min(copies - 1, max(1, round(share * copies))) for share in SHARES}):
            pools = (n_prefill, copies - n_prefill)
            try:
                curve = disaggregated(d, table.concurrency, None, inputs, outputs, pools)
            except PerfModelError:  # an engine or attention for which nobody has priced it
                continue
            tokens = int(table.kv_tokens[row]) // table.deployments[row].options.dp * pools[1]
            found.append((d, pools, tokens, [band[0] for band in (curve.output_tok_s, curve.ttft_s, curve.tpot_s)]))
    if not found:
        return None
    figures = [np.stack([figures[i] for *_, figures in found]) for i in range(3)]
    return Prices(tuple(d for d, *_ in found), np.array([tokens for _, _, tokens, _ in found]), table.concurrency,
                  figures[0], figures[1], figures[2], tuple(pools for _, pools, *_ in found))


def _best_copies(table: Prices, gpus: int) -> list[int]:
    """Rows of the table, the best of each strategy of one copy, most tokens a GPU first."""
    best = (table.output_tok_s / table.gpus[:, None]).max(axis=1)
    seen: dict[str, int] = {}
    for row in np.argsort(-best, kind="stable").tolist():
        d = table.deployments[row]
        if d.options.engine != "tensorrt-llm" and 2 * d.options.world <= gpus:
            seen.setdefault(with_options(d, dp=1).name, row)
        if len(seen) == MOST_COPIES_OF_A_KIND:
            break
    return list(seen.values())


def pool_commands(d: Deployment, pools: tuple[int, int]) -> tuple[tuple[int, str, str], ...]:
    """What starts the copies that prefill and those that decode: count, role and command.

    Source: SGLang --disaggregation-mode; vLLM --kv-transfer-config with its NIXL connector, whose ends are alike.
    """
    nixl = """ --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    found = []
    for copies, role in zip(pools, ("prefill", "decode"), strict=True):
        more = f" --disaggregation-mode {role}" if d.options.engine == "sglang" else nixl
        for count, place, line in d.launches():
            line += "" if line.startswith("ray ") else more
            found.append((copies * count, f"{role}, {place}" if place else role, line))
    return tuple(found)
