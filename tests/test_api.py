"""The public names: there, lazy, and the same whatever is imported first."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import perfmodel as pm

CONTRACT = {
    "deploy", "memory", "step", "prefill", "predict", "compare", "collective", "lognormal", "uniform",
    "size_job", "plan", "calibrate", "doctor", "load_model", "load_node", "load_accelerator",
}  # fmt: skip
MORE = {"explain", "read_trace", "simulate", "sweep", "whatif"}


def test_all_names_of_the_contract_are_listed() -> None:
    assert set(pm.__all__) == {*CONTRACT, *MORE, "__version__"}
    assert set(dir(pm)) >= set(pm.__all__)


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_every_name_is_callable_and_documented(name: str) -> None:
    value = getattr(pm, name)
    assert callable(value)
    assert value.__doc__


@pytest.mark.parametrize("name", sorted(CONTRACT | MORE))
def test_type_checkers_see_every_name(name: str) -> None:
    assert name in typed_names(), "add it to the TYPE_CHECKING block of perfmodel/__init__.py"


def typed_names() -> set[str]:
    tree = ast.parse(Path(pm.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names}


def runs(code: str) -> None:
    """Run code in a fresh interpreter; its assertions must hold."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_unknown_attributes_are_attribute_errors() -> None:
    assert not hasattr(pm, "no_such_name")
    with pytest.raises(ImportError):
        exec("from perfmodel import no_such_name")


STEP_IS_ROOM_AND_VERB = """
import perfmodel as pm, types
assert isinstance(pm.step, types.ModuleType) and callable(pm.step)
import perfmodel.step
import perfmodel.step as room
from perfmodel import step
from perfmodel.step import step as verb
assert pm.step is perfmodel.step is room is step and callable(verb) and verb is room.step
asked = []
room.step = lambda *args, **keywords: asked.append((args, keywords)) or "answer"
assert pm.step(1, batch=2) == "answer" and asked == [((1,), {"batch": 2})]
assert callable(pm.memory) and pm.memory is room.memory
"""


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import perfmodel.step",
        "from perfmodel import step",
        "from perfmodel.step import memory",
        "import perfmodel; perfmodel.memory",
        "import perfmodel; perfmodel.step",
        "import perfmodel.serving",
        "import perfmodel.cli",
        "from perfmodel import *",
    ],
)
def test_step_is_room_and_verb_in_every_import_order(first: str) -> None:
    runs(first + STEP_IS_ROOM_AND_VERB)


@pytest.mark.parametrize("room", sorted(pm._PLOTTED))
def test_nouns_get_their_plot_when_their_room_is_loaded(room: str) -> None:
    checks = [f"assert room.{noun}.plot is perfmodel._plot" for noun in pm._PLOTTED[room]]
    runs("\n".join([f"import perfmodel.{room} as room, perfmodel", *checks]))
