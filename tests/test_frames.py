"""Answers as tables: rows that add up, frames, notebooks, and deployments made again from what they said."""

import json
import subprocess
import sys
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.deployment import Deployment
from perfmodel.errors import BadInput
from perfmodel.report.frames import TABLES, html, html_table, rows, to_pandas, to_polars

MODEL, NODE = "kimi-k2.6", "8x-rtx-pro-6000-server"


@pytest.fixture(scope="module")
def d() -> Deployment:
    return pm.deploy(MODEL, node=NODE, tp=8, context=32768)


def test_rows_of_a_step_add_up(d: Deployment) -> None:
    cost = pm.step(d, batch=[1, 8], context=1024)
    for i, batch in enumerate((1.0, 8.0)):
        total = sum(row["seconds"] for row in rows(cost) if row["batch"] == batch)
        assert total == pytest.approx(cost.seconds[i], rel=1e-9, abs=0)


def test_every_noun_that_is_a_table_has_the_methods(d: Deployment) -> None:
    nouns: list[Any] = [d, pm.memory(d), pm.step(d, batch=8), pm.predict(d, concurrency=[1, 8]), pm.whatif(d),
                        pm.compare([d], concurrency=[8]), pm.explain("step", d), pm.size_job(d, samples=50_000),
                        pm.collective("all_reduce", node=NODE, message_bytes=[1024, 2048])]  # fmt: skip
    for noun in nouns:
        assert type(noun).__name__ in TABLES
        table = noun.to_rows()
        assert table and all(isinstance(row, dict) for row in table)
        json.dumps(table, allow_nan=False)
        assert noun._repr_html_().count("<tr>") >= min(len(table), 2)


def test_frames_of_the_readers_own_libraries(d: Deployment) -> None:
    curve = pm.predict(d, concurrency=[1, 8, 32])
    for library, frame_of in (("pandas", to_pandas), ("polars", to_polars)):
        try:
            __import__(library)
        except ImportError:
            with pytest.raises(BadInput, match=f"{library} is not installed"):
                frame_of(curve)
        else:
            assert list(frame_of(curve)["concurrency"]) == [1, 8, 32]


def test_no_frame_library_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, perfmodel as pm; pm.deploy('llama-3.1-8b', node='1x-h100-sxm').to_rows(); "
    run = subprocess.run([sys.executable, "-c", code + "print({'pandas', 'polars'} & set(sys.modules))"],
                         capture_output=True, text=True, timeout=120)  # fmt: skip
    assert run.stdout.strip() == "set()", run.stderr


def test_what_is_no_table_says_so() -> None:
    with pytest.raises(BadInput, match="a dict has no table; these have one: MemoryReport"):
        rows({})


def test_words_do_not_become_markup() -> None:
    assert "<b>" not in html_table(["<b>"], [["<b>"]])
    assert "<script>" not in html(type("Deployment", (), {"to_dict": lambda _: {"options": {"<script>": "<script>"}},
                                                          "__repr__": lambda _: "<script>"})())  # fmt: skip


@pytest.mark.parametrize(
    "keywords",
    [{"tp": 8}, {"pp": 8, "context": 32768, "kv_dtype": "fp8"}, {"tp": 8, "dp_attention": 8, "ep": 8},
     {"engine": "sglang==0.5.10", "pp": 8, "cuda_graphs": False, "memory_fraction": 0.92},
     {"engine": "tensorrt-llm", "tp": 4, "pp": 2}, {"tp": 1, "pp": 2, "layers_per_stage": (30, 31)}],
)  # fmt: skip
def test_a_deployment_is_made_again_from_what_it_said(keywords: dict[str, Any]) -> None:
    first = pm.deploy(MODEL, node=NODE, **keywords)
    again = Deployment.from_dict(json.loads(json.dumps(first.to_dict())))
    assert again.to_dict()["options"] == first.to_dict()["options"]
    assert again.name == first.name
    assert pm.memory(again, hints=False).kv_tokens == pm.memory(first, hints=False).kv_tokens
    assert pm.step(again, batch=8).seconds == pytest.approx(pm.step(first, batch=8).seconds, rel=1e-12, abs=0)


@pytest.mark.parametrize("said", [None, {}, {"options": {}}, {"model": MODEL, "node": NODE, "engine": "vllm",
                                                               "options": {"no_such": 1}}])  # fmt: skip
def test_what_no_deployment_said_is_refused(said: Any) -> None:
    with pytest.raises(BadInput):
        Deployment.from_dict(said)
