"""`python -m perfmodel.calibration.fabrics`: the classes of links in hardware/fabrics/, from the tables marked fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from perfmodel.calibration.interconnect import PLAIN, Fitted, Table, compact, fit_class
from perfmodel.catalog import load_accelerator, load_kernels, load_node
from perfmodel.catalog.lookup import FOLDERS, roots
from perfmodel.catalog.schema import Host
from perfmodel.catalog.write import write_whole
from perfmodel.placement.links import Links, links_for
from perfmodel.step.communication import nccl_choice

AICONFIGURATOR = {
    "title": "PyPI aiconfigurator-core 0.12.0, systems/ (Apache-2.0, "
    "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES)",
    "url": "https://github.com/ai-dynamo/aiconfigurator",
}
WIKI = {"title": "github sjug/rtx6kpro@738985bb optimization/nccl-tuning.md and hardware pages",
        "url": "https://github.com/sjug/rtx6kpro/tree/738985bb"}
NODE, TUNED = "8x-rtx-pro-6000-server", "2.28.3 NCCL_P2P_LEVEL=SYS NCCL_GRAPH_FILE=tuned"
WORDS = "least squares on relative error, protocols as NCCL's own tuning model chooses them"


@dataclass(frozen=True)
class Recipe:
    """One class: which sweeps of which observations, on which node and set-up, and the spread of its hosts."""

    title: str
    transport: str
    capability: tuple[float, float] | None
    bandwidth: str
    bandwidth_note: str
    peers: tuple[float, str]
    spread: tuple[float, float, str]
    sweeps: tuple[tuple[str, str, str], ...]        # observations, sweep begins with, set-up of NCCL
    node: str
    sources: dict[str, Any]


CLASSES = {
    "nvlink3": Recipe(
        "NVSwitch with NVLink 3 (A100)",
        "nvlink",
        (7.0, 9.0),
        "300 GB/s",
        "12 links of an A100, one direction",
        (0.8, "as NVLink 4; not measured"),
        (0.15, 0.08, "two hosts with 8 A100"),
        (("nccl-aiconfigurator", "aic/a100_sxm/", "2.27.3"),),
        "8x-a100-sxm-80gb",
        {"aiconfigurator-core": AICONFIGURATOR},
    ),
    "nvlink4": Recipe(
        "NVSwitch with NVLink 4 and later (H100, H200, B200)",
        "nvlink",
        (9.0, 99.0),
        "450 GB/s",
        "18 links of an H200, one direction",
        (0.8, "two-shot kernel on 8 H200: 375 of 450 GB/s, one-shot on 4: 336"),
        (0.15, 0.08, "H100 against H200; B200 is further off"),
        (("nccl-aiconfigurator", "aic/h200_sxm/", "2.29.2"),),
        "8x-h200-sxm",
        {"aiconfigurator-core": AICONFIGURATOR},
    ),
    "pcie": Recipe(
        "PCIe with peer-to-peer copies",
        "pcie",
        None,
        "55.5 GB/s",
        "PCIe 5.0 x16, payload of one direction",
        (0.63, "all-to-all over 4 GPUs of one switch or socket: 126 to 138 GB/s in total"),
        (0.25, 0.1, "LL steps of 0.75 us (two switches), 1.2 us (dual Turin) and 1.5 us; Simple 43 to 47 GB/s"),
        (
            ("nccl-public", "turin/tuner", TUNED),
            ("nccl-public", "turin/pynccl", TUNED),
            ("nccl-public", "turin/graph-file", TUNED),
            ("nccl-public", "turin/no-graph-file", TUNED.rpartition(" ")[0]),
            ("nccl-aiconfigurator", "aic/rtx_pro_6000_server/all_gather/2", TUNED),
            ("nccl-aiconfigurator", "aic/rtx_pro_6000_server/reduce_scatter/2", TUNED),
            ("nccl-aiconfigurator", "aic/rtx_pro_6000_server/all_to_all/2", TUNED),
            ("kernels-rtx-pro-6000", "all_reduce/nccl-tests/2", TUNED),
        ),
        NODE,
        {"aiconfigurator-core": AICONFIGURATOR, "wiki": WIKI},
    ),
    "host": Recipe(
        "PCIe, staged through the host's memory",
        "host",
        None,
        "55.5 GB/s",
        "PCIe 5.0 x16, payload of one direction",
        (0.5, "every byte crosses a link twice; assumed"),
        (
            0.4,
            0.3,
            "sound hosts carry 0.44 to 0.58 of their links; start-ups differ by 2 and more; faulty hosts carry a tenth",
        ),
        (
            ("nccl-aiconfigurator", "aic/rtx_pro_6000_server/all_gather/8", "2.29.2"),
            ("nccl-aiconfigurator", "aic/rtx_pro_6000_server/reduce_scatter/8", "2.29.2"),
            ("nccl-aiconfigurator", "aic/rtx_pro_6000_server/all_to_all/8", "2.29.2"),
            ("kernels-rtx-pro-6000", "all_reduce/nccl-tests/8", "2.29.2"),
            ("kernels-rtx-pro-6000", "all_reduce/vllm/4", "2.29.2"),
        ),
        NODE,
        {"aiconfigurator-core": AICONFIGURATOR},
    ),
}


def tables(recipe: Recipe) -> list[tuple[Table, Links]]:
    """The rows of a recipe as curves, each with the links that it ran over."""
    node = load_node(recipe.node)
    if recipe.transport == "host":  # the machine behind these tables is not the one of the node file
        node = node.model_copy(update={"host": Host(sockets=2, note="CPU not stated")})
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for stem, prefix, setup in recipe.sweeps:
        for row in load_kernels(stem):
            sweep = row.get("sweep") or f"{row['table']}/{row['backend']}/{row['gpus']}"
            if (
                sweep.startswith(prefix)
                and "engine" not in sweep
                and row["mode"] != "eager"
                and row.get("use") != "unusable"
            ):
                found.setdefault((sweep, setup), []).append(row)
    accelerator = load_accelerator(node.accelerator)
    return [(Table(rows[0]["table"], int(rows[0]["gpus"]), np.array([float(r["message_bytes"]) for r in rows]),
                   1e-6 * np.array([float(r["latency_us"]) for r in rows]), sweep),
             links_for(node, accelerator, setup, own=False)) for (sweep, setup), rows in found.items()]


def fit(name: str) -> Fitted:
    """Figures of a class from its recipe."""
    recipe = CLASSES[name]
    return fit_class(tables(recipe), 1e9 * float(recipe.bandwidth.split()[0]), next(iter(recipe.sources)))


def text(name: str, fitted: Fitted) -> str:
    """The YAML of a class."""
    recipe = CLASSES[name]
    used = sorted({table.name for table, _ in tables(recipe)})

    def figure(value: Any, note: str, kind: str = "derived") -> dict[str, Any]:
        return {"value": value, "kind": kind, "source": list(recipe.sources)[-1], "note": note}

    latency, bandwidth, why = recipe.spread
    body: dict[str, Any] = {
        "schema": "fabric/1",
        "name": name,
        "title": recipe.title,
        "sources": recipe.sources,
        "transport": recipe.transport,
        **({"compute_capability": list(recipe.capability)} if recipe.capability else {}),
        "bandwidth": figure(recipe.bandwidth, recipe.bandwidth_note),
        "peers": figure(*recipe.peers),
        "latency_sd": figure(latency, why),
        "bandwidth_sd": figure(bandwidth, why),
        "figures": compact(fitted.figures.model_dump(exclude_none=True, exclude_defaults=True))
        | {"note": f"{WORDS}; sweeps {', '.join(used)}"},
    }
    return yaml.safe_dump(body, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)


def main() -> None:
    """Write every class and print how far it misses the tables that it was fitted to."""
    folder = Path(roots()[-1]) / FOLDERS["fabric"]
    folder.mkdir(exist_ok=True)
    for name in CLASSES:
        write_whole(folder / f"{name}.yaml", text(name, fit(name)))
    for name, recipe in CLASSES.items():
        errors = {t.name: np.asarray(nccl_choice(t.op, t.message_bytes, t.ranks, links, PLAIN)[2] / t.seconds - 1)
                  for t, links in tables(recipe)}
        print(name, Fitted(fit(name).figures, errors).report(), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
