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
from perfmodel.catalog.yaml import read_yaml

NOUNS = {"model": ModelArch, "node": Node, "accelerator": Accelerator, "calibration": Calibration}
ROOT = roots()[-1]
FILES = [(kind, path) for kind in NOUNS for path in sorted((ROOT / FOLDERS[kind]).glob("*.yaml"))]
TABLES = sorted((ROOT / FOLDERS["observations"]).glob("*.csv"))
IDS = [path.stem for _, path in FILES]


def noun(kind: str, path: Path) -> ModelArch | Node | Accelerator | Calibration:
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


PEAKS = {  # FMA an SM and clock: NVIDIA tensor cores, dense, FP32 accumulation
    "12.0": {"bf16": 512, "fp8": 1024, "int8": 1024, "fp4": 2048},
    "9.0": {"bf16": 2048, "fp16": 2048, "fp8": 4096, "int8": 4096},
}


@pytest.mark.parametrize("name", [path.stem for kind, path in FILES if kind == "accelerator"])
def test_peaks_follow_from_clock_and_units(name: str) -> None:
    gpu = load_accelerator(name)
    fma = PEAKS[str(gpu.compute_capability)]
    assert {*gpu.peak} == {*fma}
    for dtype, figure in gpu.peak.items():
        assert figure.value == pytest.approx(
            float(gpu.clock_boost) * float(gpu.sms) * fma[dtype] * 2, rel=5e-4, abs=0
        ), dtype


@pytest.mark.parametrize("name", [path.stem for kind, path in FILES if kind == "accelerator"])
def test_the_driver_reports_what_is_sold_within_a_tenth(name: str) -> None:
    memory = load_accelerator(name).memory
    assert 1.0 < float(memory.total) / float(memory.capacity) < 1.1


@pytest.mark.parametrize("name", [path.stem for kind, path in FILES if kind == "node"])
def test_a_node_names_an_accelerator_of_the_catalog(name: str) -> None:
    node = load_node(name)
    gpu = load_accelerator(node.accelerator)
    assert (node.topology.kind == "nvlink") == (gpu.link.nvlink is not None)
    for kind in node.topology.link_kinds.values():
        assert float(kind.bandwidth) <= 1.05 * float(gpu.link.nvlink or gpu.link.host)


def test_aliases_are_unique() -> None:
    for kind, load in (("model", load_model), ("node", load_node), ("accelerator", load_accelerator)):
        words = [fold(word) for k, path in FILES if k == kind
                 for word in {fold(alias) for alias in (path.stem, *load(path.stem).aliases)}]  # fmt: skip
        assert len(words) == len(set(words)), kind


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_observations_load_and_say_where_they_come_from(path: Path) -> None:
    if path.stem.startswith("kernels-"):
        rows = load_kernels(path)
        assert path.stat().st_size < 400_000
        assert all(row["backend"] and row["version"] for row in rows)
        assert "aiconfigurator-core" in (path.parent / "README.md").read_text()
        return
    assert tuple(path.read_text().splitlines()[0].split(",")) == COLUMNS
    for row in load_observations(path):
        assert row.source and row.sweep and row.unit and row.value > 0, row.id
        assert ("unusable:" in row.notes) == (row.use == "unusable"), row.id


def test_fitted_and_checked_sweeps_are_disjoint() -> None:
    used: dict[str, set[str]] = {"fit": set(), "check": set(), "unusable": set()}
    for path in TABLES:
        if not path.stem.startswith("kernels-"):
            for row in load_observations(path):
                used[row.use].add(row.sweep)
    assert used["fit"] and used["check"]
    assert not used["fit"] & used["check"]


def test_usable_rows_state_what_the_model_needs() -> None:
    for path in TABLES:
        if not path.stem.startswith("kernels-"):
            for row in load_observations(path):
                if row.use != "unusable":
                    assert row.engine and row.tp and row.pp and row.ep and row.n_gpus == row.tp * row.pp, row.id
                    if row.metric == "decode_throughput":
                        assert row.concurrency and row.cuda_graphs and row.spec == "off", row.id
