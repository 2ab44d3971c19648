"""Pictures: units on axes, nothing cut or on top of anything, the same bytes twice, and what they show is true."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ask
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import perfmodel as pm
from perfmodel.catalog import load_node, names
from perfmodel.errors import BadInput, UnknownName
from perfmodel.report import plot, save
from perfmodel.report.plots import PICTURES
from perfmodel.report.roofline_plot import marks, roofs
from perfmodel.report.style import COLOURS, HATCHES, LINES, MARKERS, SIZE, STYLE, drawn
from perfmodel.report.topology_plot import places

MODEL, NODE = "kimi-k2.6", "8x-rtx-pro-6000-server"
LLAMA = ["--model", "llama-3.1-8b", "--node", "1x-h100-sxm"]


def kimi(**keywords: Any) -> Any:
    return pm.deploy(MODEL, node=NODE, **keywords)


@pytest.fixture(scope="module")
def nouns() -> dict[str, Any]:
    from perfmodel.planner.job_compare import compare_jobs

    tp8, pp8 = kimi(tp=8, kv_dtype="fp8"), kimi(pp=8, context=32768)
    loads = {"concurrency": [1, 8, 32, 128]}
    found = [
        pm.memory(pp8), pm.step(tp8, batch=[1, 8, 32], context=1024), pm.predict(tp8, **loads),
        pm.compare([tp8, pp8, kimi(tp=8, ep=8)], **loads),
        pm.collective("all_reduce", node=NODE, message_bytes=[2.0**k for k in range(10, 28)]),
        pm.plan(MODEL, node=NODE, context=32768, tp=8, pp=1), pm.size_job(tp8, samples=900_000),
        compare_jobs([tp8, pp8], samples=50_000), load_node(NODE),
        pm.simulate(tp8, inputs=np.full(40, 512), outputs=np.arange(40, 80), concurrency=8),
    ]  # fmt: skip
    return {type(noun).__name__: noun for noun in found}


ALL = [(noun, kind) for noun, kinds in PICTURES.items() if noun not in ("InTime", "Forecast") for kind in kinds]
CASES = pytest.mark.parametrize(("noun", "kind"), ALL, ids=["-".join(pair) for pair in ALL])


def figure_of(noun: Any, kind: str) -> Figure:
    with rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        plot(noun, ax=figure.add_subplot(), kind=kind)
        figure.draw_without_rendering()
        return figure


@CASES
def test_every_axis_has_its_unit(noun: str, kind: str, nouns: dict[str, Any]) -> None:
    figure = figure_of(nouns[noun], kind)
    shown = [(axis, words) for ax in figure.axes if ax.axison for axis, words in
             (("x", ax.get_xlabel()), ("y", ax.get_ylabel())) if words]  # fmt: skip
    assert shown or noun == "Node"
    assert all("[" in words and "]" in words for _, words in shown), shown
    assert figure.axes[0].get_title(loc="left")


@CASES
def test_nothing_is_cut_and_no_names_overlap(noun: str, kind: str, nouns: dict[str, Any]) -> None:
    figure = figure_of(nouns[noun], kind)
    page, renderer = figure.bbox, FigureCanvasAgg(figure).get_renderer()
    for ax in figure.axes:
        legend = ax.get_legend()
        words = [*ax.texts, ax.xaxis.label, ax.yaxis.label, ax._left_title, *(legend.texts if legend else [])]
        for text in (one for one in words if one.get_visible() and one.get_text()):
            box = text.get_window_extent(renderer)
            assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, text.get_text()
            assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, text.get_text()
        for axis in (ax.xaxis, ax.yaxis):
            boxes = [t.get_window_extent(renderer) for t in axis.get_ticklabels() if ax.axison and t.get_text()]
            inside = [b for b in boxes if b.width and page.x0 <= b.x0 and b.x1 <= page.x1 + 1]
            assert not any(a.overlaps(b) for a, b in combinations(inside, 2) if a.bounds != b.bounds)


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("noun", ["MemoryReport", "StepCost", "Comparison", "Node"])
def test_the_same_answer_is_the_same_bytes(noun: str, ending: str, nouns: dict[str, Any]) -> None:
    first, second = (drawn(lambda ax: plot(nouns[noun], ax=ax), ending) for _ in range(2))
    assert first == second
    assert b"CreationDate" not in first and b"<dc:date>" not in first


def test_an_unknown_picture_names_the_nearest(nouns: dict[str, Any]) -> None:
    with pytest.raises(UnknownName, match="roofline"):
        plot(nouns["StepCost"], kind="rooflin")
    with pytest.raises(BadInput):
        plot(pm.load_model("llama-3.1-8b"))


# ---------------------------------------------------------------- colours

# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, IEEE TVCG 15(6), 2009, severity 1.0, linear RGB
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "sees": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
}


@pytest.mark.parametrize("eye", sorted(BLIND))
def test_neighbouring_colours_are_told_apart(eye: str) -> None:
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(BLIND[eye]).T, 0, 1)
    xyz = seen @ np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]).T
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
    apart = [float(np.linalg.norm(a - b)) for a, b in zip(lab, lab[1:], strict=False)]
    assert min(apart) > 20, apart  # CIE 1976; 2.3 is just noticed


def test_curves_and_parts_differ_without_colour() -> None:
    assert len(set(zip(MARKERS, map(str, LINES), strict=True))) == len(COLOURS) == len(MARKERS) == len(LINES)
    assert len(set(HATCHES)) == len(HATCHES) == len(COLOURS)


# ---------------------------------------------------------------- roofline


@pytest.mark.parametrize(
    ("model", "node", "keywords"),
    [(MODEL, NODE, {"tp": 8}), (MODEL, NODE, {"pp": 8}), ("llama-3.1-8b", "1x-h100-sxm", {}),
     ("deepseek-v3.1", "8x-h200-sxm", {"tp": 8, "ep": 8})],
)  # fmt: skip
def test_no_operation_is_above_the_roof(model: str, node: str, keywords: dict[str, Any]) -> None:
    d = pm.deploy(model, node=node, **keywords)
    for cost in (pm.step(d, batch=[1, 8, 64, 256], context=2048), pm.prefill(d, tokens=[16, 512, 8192])):
        peak, bandwidth = max(roofs(cost).values()), float(d.accelerator.memory.bandwidth)
        found = marks(cost)
        assert found
        for name, (intensity, rate, share) in found.items():
            assert np.all(rate <= np.minimum(peak, intensity * bandwidth) * (1 + 1e-9)), name
            assert np.all((share > 0) & (share <= 1))
        assert np.all(np.sum([share for _, _, share in found.values()], axis=0) <= 1 + 1e-9)


def test_roofs_are_those_of_the_formats() -> None:
    nvfp4 = pm.step(pm.deploy(MODEL, node=NODE, tp=8, quantization="nvfp4"), batch=8)
    assert set(roofs(nvfp4)) == {"bf16", "fp4"}
    assert set(roofs(pm.step(kimi(tp=8), batch=8))) == {"bf16"}  # int4 weights are multiplied in bf16


# ---------------------------------------------------------------- topology


@pytest.mark.parametrize("name", names("node"))
def test_a_node_is_drawn_with_nothing_on_top_of_anything(name: str) -> None:
    node = load_node(name)
    at = places(node)
    machines = 1 + sum(kind == "nvswitch" for kind in node.topology.vertices.values())
    assert len(set(at.values())) == len(at)
    assert machines > 3 or set(at) == set(node.topology.vertices)  # of larger clusters two machines are drawn
    assert {"gpu"} <= {node.topology.vertices[one] for one in at}
    figure = figure_of(node, "topology")
    words = " ".join(text.get_text() for text in figure.axes[0].get_legend().texts)
    assert all(kind in words for kind in {link.kind for link in node.topology.links})


# ---------------------------------------------------------------- command line


@pytest.mark.parametrize(
    "words",
    [("step", *LLAMA, "--picture", "roofline"), ("predict", *LLAMA, "--picture", "ttft"),
     ("predict", *LLAMA, "--picture", "parts"), ("catalog", "show", NODE),
     ("job", *LLAMA, "--samples", "2000", "--picture", "phases"), ("memory", *LLAMA)],
    ids=lambda words: words[0],
)  # fmt: skip
def test_pictures_come_from_the_command_line(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    done = ask(*words, "--plot", str(file))
    assert done.exit_code == 0, done.output
    assert file.read_bytes().startswith(b"<?xml")


def test_a_name_with_mathematics_in_it_stays_a_name(tmp_path: Path) -> None:
    node = load_node(NODE).model_copy(update={"name": r"$\frac{1}{"})
    assert save(node, tmp_path / "node.png").stat().st_size > 1000
