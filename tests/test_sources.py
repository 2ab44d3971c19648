"""Every figure says where it comes from, every file is named after what it describes, and redundant figures agree."""

from pathlib import Path

import pytest

from perfmodel.catalog import (
    Accelerator,
    Calibration,
    ModelArch,
    Node,
    load_accelerator,
    load_model,
    load_node,
    sourced,
)
from perfmodel.catalog.load import validate
from perfmodel.catalog.lookup import FOLDERS, fold, roots
from perfmodel.catalog.observations import COLUMNS, load_kernels, load_observations
from perfmodel.catalog.schema import Fabric
from perfmodel.catalog.yaml import read_yaml

NOUNS = {"model": ModelArch, "node": Node, "accelerator": Accelerator, "calibration": Calibration,
         "fabric": Fabric}
ROOT = roots()[-1]
FILES = [(kind, path) for kind in NOUNS for path in sorted((ROOT / FOLDERS[kind]).glob("*.yaml"))]
TABLES = sorted((ROOT / FOLDERS["observations"]).glob("*.csv"))
IDS = [path.stem for _, path in FILES]


def noun(kind: str, path: Path) -> ModelArch | Node | Accelerator | Calibration | Fabric:
    return validate(NOUNS[kind], kind, read_yaml(path), path.name)


def test_no_yaml_lies_where_no_test_looks() -> None:
    seen = {path for _, path in FILES}
    everything = {path for folder in ("hardware", "models") for path in (ROOT / folder).rglob("*.y*ml")}
    assert everything == seen
    assert {kind for kind, _ in FILES} == {*NOUNS}


def test_hardware_and_models_hold_no_code() -> None:
    suffixes = {path.suffix for folder in ("hardware", "models")
                for path in (ROOT / folder).rglob("*") if path.is_file()}  # fmt: skip
    assert suffixes <= {".yaml", ".csv", ".md", ""}


@pytest.mark.parametrize(("kind", "path"), FILES, ids=IDS)
def test_loads_and_is_named_after_its_file(kind: str, path: Path) -> None:
    assert noun(kind, path).name == path.stem


@pytest.mark.parametrize(("kind", "path"), FILES, ids=IDS)
def test_every_figure_has_a_source_and_a_kind(kind: str, path: Path) -> None:
    """Walks the file itself, not the schema: whatever has a `value` or numbers beside a `source_kind`."""
    raw = read_yaml(path)
    figures = 0

    def walk(item: object, where: str) -> None:
        nonlocal figures
        if isinstance(item, dict):
            if "value" in item or "source_kind" in item:
                figures += 1
                kind_of = item.get("source_kind") or item.get("kind")
                assert kind_of in ("datasheet", "derived", "measured", "assumed"), where
                if item.get("value", 0) is not None and not (kind_of == "assumed" and item.get("note")):
                    assert item.get("source") in raw["sources"], f"{where}: {item.get('source')!r}"
                else:
                    assert item.get("note"), f"{where}: unknown, and no note says why"
            for key, value in item.items():
                walk(value, f"{where}.{key}")
        elif isinstance(item, list):
            for index, value in enumerate(item):
                walk(value, f"{where}[{index}]")

    walk(raw, path.name)
    assert figures == sum(1 for _ in sourced(noun(kind, path)))
    assert figures > 0


@pytest.mark.parametrize(("kind", "path"), FILES, ids=IDS)
def test_every_source_is_used_and_leads_somewhere(kind: str, path: Path) -> None:
    raw = path.read_text()
    for key, source in noun(kind, path).sources.items():
        assert raw.count(key) > 1 or kind == "calibration", f"source {key} is never named"
        assert source.url or kind == "calibration" or "for this project" in source.title, f"source {key} has no link"


PEAKS = {  # FMA an SM (a CU for AMD) and clock, dense, FP32 accumulation; GeForce and L40 run BF16 and FP8 at half rate
    "ada": {"bf16": 512, "fp16": 512, "fp8": 1024, "int8": 1024},
    "ampere": {"bf16": 512, "fp16": 512, "int8": 1024}, "a100": {"bf16": 1024, "fp16": 1024, "int8": 2048},
    "hopper": {"bf16": 2048, "fp16": 2048, "fp8": 4096, "int8": 4096},
    "gb202": {"bf16": 512, "fp8": 1024, "int8": 1024, "fp4": 2048}, "turing": {"fp16": 512, "int8": 1024},
    "cdna3": {"bf16": 1024, "fp16": 1024, "fp8": 2048, "int8": 2048},
    "cdna4": {"bf16": 2048, "fp16": 2048, "fp8": 4096, "int8": 4096, "fp4": 8192},
}  # fmt: skip
HALVED = {"rtx-3090": {"bf16", "fp16"}, "rtx-4090": {"bf16", "fp16", "fp8"}, "l40": {"bf16", "fp16", "fp8", "int8"},
          "rtx-5090": {"bf16", "fp16", "fp8"}}  # fmt: skip
FAMILY = {7.5: "turing", 8.0: "a100", 8.6: "ampere", 8.9: "ada", 9.0: "hopper", 9.4: "cdna3", 9.5: "cdna4",
          12.0: "gb202",
          12.1: "gb202"}  # fmt: skip
CONTRACT = [
    "rtx-pro-6000-server", "rtx-pro-6000-workstation", "rtx-pro-6000-max-q", "rtx-pro-5000", "rtx-3090", "rtx-4090",
    "rtx-5090", "rtx-a6000", "rtx-6000-ada", "a10", "a40", "a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb",
    "a100-pcie-80gb", "l4", "l20", "l40", "l40s", "t4", "h20", "h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm",
    "b200-sxm", "b300-sxm", "gb200", "gb300", "gb10", "mi300x", "mi325x", "mi355x",
]
ACCELERATORS = [path.stem for kind, path in FILES if kind == "accelerator"]


def test_every_accelerator_of_the_contract_is_there() -> None:
    assert sorted(ACCELERATORS) == sorted(CONTRACT)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_peaks_follow_from_clock_and_units(name: str) -> None:
    """Derived peaks are exact; those that the sheet prints lie within 3 % of units and clock, or say why not."""
    gpu = load_accelerator(name)
    fma = PEAKS.get(FAMILY.get(gpu.compute_capability, ""), {})
    for dtype, figure in gpu.peak.items():
        if figure.kind != "derived":
            assert figure.kind == "datasheet" and figure.value, dtype
            continue
        units = fma.get(dtype, fma.get("bf16", 0)) / (2 if dtype in HALVED.get(name, ()) else 1)
        expected = float(gpu.clock_boost) * float(gpu.sms) * units * 2
        assert figure.value == pytest.approx(expected, rel=1e-3, abs=0), dtype


@pytest.mark.parametrize("name", ACCELERATORS)
def test_the_driver_reports_what_is_sold_within_a_tenth(name: str) -> None:
    memory = load_accelerator(name).memory
    assert float(memory.bandwidth) > 1e11
    if memory.total.value is None:
        assert memory.total.note
    else:
        assert 1.0 < float(memory.total) / float(memory.capacity) < 1.1


@pytest.mark.parametrize("name", [path.stem for kind, path in FILES if kind == "node"])
def test_a_node_names_an_accelerator_of_the_catalog(name: str) -> None:
    node = load_node(name)
    gpu = load_accelerator(node.accelerator)
    assert (node.topology.kind == "nvlink") == (gpu.link.nvlink is not None)
    ends = {link.kind for link in node.topology.links if "gpu" in {node.topology.vertices[end] for end in (link.a,
                                                                                                           link.b)}}
    for kind in sorted(ends):
        width = float(node.topology.link_kinds[kind].bandwidth)
        assert width <= 1.05 * max(float(gpu.link.nvlink or 0.0), float(gpu.link.host)), kind


def test_aliases_are_unique() -> None:
    for kind, load in (("model", load_model), ("node", load_node), ("accelerator", load_accelerator)):
        words = [fold(word) for k, path in FILES if k == kind
                 for word in {fold(alias) for alias in (path.stem, *load(path.stem).aliases)}]  # fmt: skip
        assert len(words) == len(set(words)), kind


def header(path: Path) -> tuple[str, ...]:
    """Column names of a table."""
    with path.open() as file:
        return tuple(file.readline().strip().split(","))


SERVED = [path for path in TABLES if header(path) == COLUMNS]
TIMED = [path for path in TABLES if header(path)[0] == "table"]


def test_every_table_is_of_a_known_kind() -> None:
    # read by insight/; the last by docs and notebooks
    others = [path for path in TABLES if path.stem in ("memory-logs", "e2e-tpot", "e2e-excluded", "e2e-serving",
                                                       "h200-vllm-steps-2026-11", "h200-vllm-served-2026-11",
                                                       "h200-vllm-http-2026-11",
                                                       "speculative")]
    assert sorted(SERVED + TIMED + others) == sorted(TABLES)
    page = (TABLES[0].parent / "README.md").read_text()
    for path in TABLES:
        assert path.name in page, f"hardware/observations/README.md does not name {path.name}"


@pytest.mark.parametrize("path", TIMED, ids=lambda path: path.stem)
def test_kernel_and_collective_tables_state_their_source(path: Path) -> None:
    rows = load_kernels(path)
    assert path.stat().st_size < 420_000
    assert all(float(row["latency_us"]) > 0 for row in rows)
    if "source" in header(path):
        assert all(row["source"] for row in rows)
    else:
        assert all(row["backend"] and row["version"] for row in rows)
        assert "aiconfigurator-core" in (path.parent / "README.md").read_text()


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.stem)
def test_observations_load_and_say_where_they_come_from(path: Path) -> None:
    for row in load_observations(path):
        assert row.source and row.sweep and row.unit and row.value > 0, row.id
        assert ("unusable:" in row.notes) == (row.use == "unusable"), row.id


def test_fitted_and_checked_sweeps_are_disjoint() -> None:
    used: dict[str, set[str]] = {"fit": set(), "check": set(), "unusable": set()}
    for path in SERVED:
        for row in load_observations(path):
            used[row.use].add(row.sweep)
    assert used["fit"] and used["check"]
    assert not used["fit"] & used["check"]


def test_usable_rows_state_what_the_model_needs() -> None:
    for path in SERVED:
        for row in load_observations(path):
            if row.use != "unusable":
                assert row.engine and row.tp and row.pp and row.ep and row.n_gpus == row.tp * row.pp, row.id
                if row.metric == "decode_throughput":
                    assert row.concurrency and row.cuda_graphs and row.spec == "off", row.id
