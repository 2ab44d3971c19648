"""Text and pictures of answers: bars add up, axes carry their units, files are whole or not there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import perfmodel as pm
from perfmodel.errors import BadInput, DescriptorError
from perfmodel.report import plot, predicted_vs_measured, save
from perfmodel.report.layout import labels, number, table, tables
from perfmodel.report.measured import matching, read_rows
from perfmodel.report.plots import COLOURS, memory_groups, step_groups

MODEL, NODE = "kimi-k2.6", "8x-rtx-pro-6000-server"


def deployment(**keywords: Any) -> Any:
    return pm.deploy(MODEL, node=NODE, **keywords)


@pytest.fixture(scope="module")
def memory() -> Any:
    return pm.memory(deployment(pp=8, context=32768))


@pytest.fixture(scope="module")
def curve() -> Any:
    return pm.predict(deployment(tp=8), concurrency=[1, 8, 32, 128])


@pytest.fixture(scope="module")
def comparison() -> Any:
    ways: list[dict[str, Any]] = [{"tp": 8}, {"tp": 8, "cuda_graphs": False}, {"pp": 8}]
    return pm.compare([deployment(**way) for way in ways], concurrency=[1, 8, 32])


@pytest.fixture(scope="module")
def step() -> Any:
    return pm.step(deployment(tp=8), batch=[1, 8, 32], context=1024)


def axes() -> Any:
    return Figure().add_subplot()


def bars(ax: Any) -> list[Any]:
    from matplotlib.container import BarContainer

    return [container for container in ax.containers if isinstance(container, BarContainer)]


def tops(ax: Any) -> np.ndarray:
    """Where the highest bar of each stack ends."""
    return np.max([[bar.get_y() + bar.get_height() for bar in container] for container in bars(ax)], axis=0)


def has_units(ax: Any) -> bool:
    return all("[" in label and label.rstrip().find("]") > 0 for label in (ax.get_xlabel(), ax.get_ylabel()))


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", ["memory", "curve", "comparison", "step"])
def test_every_noun_is_drawn_with_units(name: str, request: pytest.FixtureRequest) -> None:
    ax = axes()
    assert plot(request.getfixturevalue(name), ax=ax) is ax
    assert has_units(ax), (ax.get_xlabel(), ax.get_ylabel())
    assert ax.get_title(loc="left")
    assert ax.get_legend() is not None


def test_nouns_draw_themselves(memory: Any, curve: Any, step: Any) -> None:
    import matplotlib.pyplot as plt

    for noun in (memory, curve, step):
        ax = noun.plot()
        assert has_units(ax)
        plt.close(ax.figure)


def test_memory_bars_add_up_to_the_card(memory: Any) -> None:
    ax = plot(memory, ax=axes())
    limit = memory.deployment.facts.gpu_memory_bytes / 1e9
    assert tops(ax) == pytest.approx(np.full(8, limit), rel=1e-9, abs=0)
    ranks = memory.to_dict()["ranks"]
    used = [rank["weights_bytes"] + rank["kv_pool_bytes"] + rank["runtime_bytes"] for rank in ranks]
    assert sum(memory_groups(memory).values()) * 1e9 == pytest.approx(used, rel=1e-9, abs=0)


def test_a_bar_that_does_not_fit_passes_the_limit() -> None:
    report = pm.memory(pm.deploy(MODEL, node="4x-rtx-pro-6000-server", pp=4), hints=False)
    assert not report.fits
    ax = plot(report, ax=axes())
    limit = report.deployment.facts.gpu_memory_bytes / 1e9
    assert tops(ax).max() > limit
    assert ax.get_ylim()[1] > tops(ax).max()
    assert "does not fit" in ax.get_title(loc="left")


def test_step_bars_add_up_to_the_step(step: Any) -> None:
    ax = plot(step, ax=axes())
    assert tops(ax) == pytest.approx(1e3 * np.asarray(step.seconds), rel=1e-9, abs=0)
    groups = step_groups(step)
    assert len(groups) <= len(COLOURS)
    assert sum(groups.values()) == pytest.approx(1e3 * np.asarray(step.seconds), rel=1e-9, abs=0)


def test_a_single_step_is_one_bar() -> None:
    ax = plot(pm.step(deployment(tp=8), batch=8), ax=axes())
    assert {len(container) for container in bars(ax)} == {1}


def test_curves_lie_inside_their_bands(comparison: Any) -> None:
    ax = plot(comparison, ax=axes())
    lines = [line for line in ax.lines if line.get_marker() not in ("", "None", None)]
    assert len(lines) == len(ax.collections) == 3
    for line, band, one in zip(lines, ax.collections, comparison.curves, strict=True):
        assert line.get_ydata() == pytest.approx(one.output_tok_s[0], rel=1e-12, abs=0)
        low, high = band.get_paths()[0].get_extents().ymin, band.get_paths()[0].get_extents().ymax
        assert low <= min(line.get_ydata()) and max(line.get_ydata()) <= high
    assert ax.get_xscale() == "log"
    assert len({line.get_label() for line in lines}) == 3


def test_measured_points_are_drawn_where_they_were_measured(curve: Any) -> None:
    ax = plot(curve, ax=axes(), measured={0: [(8.0, 407.0), (1.0, 91.4)]})
    points = ax.collections[-1].get_offsets()
    assert points.tolist() == [[1.0, 91.4], [8.0, 407.0]]


def test_predicted_vs_measured_counts_what_is_near() -> None:
    ax = predicted_vs_measured([(100, 100), (110, 100), (130, 100, "TP8"), (70, 100, "TP8")], ax=axes())
    assert ax.get_title(loc="left") == "4 points, 50 % within 20 %"
    assert has_units(ax) and ax.get_xlim() == ax.get_ylim()
    with pytest.raises(BadInput):
        predicted_vs_measured([(0, 100)], ax=axes())
    with pytest.raises(BadInput):
        predicted_vs_measured([], ax=axes())


def test_what_has_no_picture_says_so() -> None:
    with pytest.raises(BadInput, match="a dict has no picture; these have one: MemoryReport"):
        plot({})


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".PNG"])
def test_a_picture_is_written(ending: str, memory: Any, tmp_path: Path) -> None:
    file = save(memory, tmp_path / f"memory{ending}")
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending.lower()]
    assert file.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [f"memory{ending}"]  # no scraps


def test_a_picture_that_fails_leaves_the_old_one(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "memory.png"
    file.write_text("old")

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(BadInput, match="cannot be written, no space left on device"):
        save(memory, file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt", "missing/a.png"])
def test_a_picture_that_cannot_be_written_is_refused(name: str, memory: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        save(memory, tmp_path / name)


# ---------------------------------------------------------------- text


def test_tables_align() -> None:
    lines = table(["name", "GB"], [["a", "1.0"], ["long name", "12.5"]])
    assert lines == ["name         GB", "---------  ----", "a           1.0", "long name  12.5"]


@pytest.mark.parametrize("columns", [1, 5, 30])
def test_wide_tables_go_on_below_and_lose_nothing(columns: int) -> None:
    cells = [f"{i * 1.5:.1f}" for i in range(columns)]
    lines = tables(["what", *(f"C={i}" for i in range(columns))], [["row", *cells]])
    assert max(map(len, lines)) <= 80
    assert [word for line in lines for word in line.split() if "." in word] == cells


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.99951, "1.000"), (999.6, "1,000"), (12345.0, "12,345"), (-3.25, "-3.25"), (1e-9, "<0.0001"),
     (float("nan"), "-"), (float("inf"), "-")],
)  # fmt: skip
def test_numbers_read_well(value: float, text: str) -> None:
    assert number(value) == text


def test_labels_tell_deployments_apart() -> None:
    same = [deployment(tp=8), deployment(tp=8, cuda_graphs=False), deployment(pp=8)]
    assert labels(same) == ["TP8", "TP8 cuda_graphs=False", "PP8"]
    engines = [deployment(tp=8, engine="vllm==0.19.1"), deployment(tp=8, engine="sglang==0.5.10")]
    assert labels(engines) == ["TP8 vllm 0.19.1", "TP8 sglang 0.5.10"]
    assert len(set(labels([deployment(tp=8), pm.deploy(MODEL, node="8x-h200-sxm", tp=8)]))) == 2


# ---------------------------------------------------------------- measured points


def test_plain_points_are_all_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("concurrency,output_tok_s\n1,91.4\n8,407\n,5\n32,\n0,0\n")
    assert matching(read_rows(file), deployment(tp=8), 1024, 1024) == [(1.0, 91.4), (8.0, 407.0)]


HEAD = "concurrency,metric,value,engine,tp,pp,cuda_graphs,spec,use,isl,kv_dtype\n"


@pytest.mark.parametrize(
    ("row", "taken"),
    [
        ("8,output_tok_s,407,vllm,8,1,on,,fit,1024", True),
        ("8,output_tok_s,407,,,,,,,,", True),
        ("8,output_tok_s,407,vllm,8,1,on,,fit,1024,bf16", True),
        ("8,output_tok_s,407,vllm,8,1,on,,fit,1024,fp8", False),
        ("8,ttft_ms,407,vllm,8,1,on,,fit,1024", False),
        ("8,output_tok_s,407,sglang,8,1,on,,fit,1024", False),
        ("8,output_tok_s,407,vllm,4,1,on,,fit,1024", False),
        ("8,output_tok_s,407,vllm,8,2,on,,fit,1024", False),
        ("8,output_tok_s,407,vllm,8,1,off,,fit,1024", False),
        ("8,output_tok_s,407,vllm,8,1,on,mtp,fit,1024", False),
        ("8,output_tok_s,407,vllm,8,1,on,,unusable,1024", False),
        ("8,output_tok_s,407,vllm,8,1,on,,fit,64", False),
    ],
)
def test_only_points_of_the_same_conditions_are_taken(row: str, taken: bool, tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text(HEAD + row + "\n")
    assert matching(read_rows(file), deployment(tp=8), 1024, 1024) == ([(8.0, 407.0)] if taken else [])


@pytest.mark.parametrize("text", ["", "concurrency\n1\n", "concurrency,value\n1,2\n", "a,b\n1,2\n"])
def test_a_file_without_the_columns_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    file.write_text(text)
    with pytest.raises(DescriptorError, match="needs the columns concurrency and output_tok_s, or metric and value"):
        read_rows(file)
