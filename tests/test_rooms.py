"""Data flows one way: a room imports only rooms above it. Read from the source, so nothing is run."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfmodel

# rooms in one entry may import each other
ORDER = [
    {"units", "errors"}, {"costs"}, {"catalog"}, {"engines"}, {"deployment"}, {"placement"}, {"step"}, {"serving"},
    {"planner"}, {"insight"}, {"report"}, {"calibration"}, {"probe"}, {"cli", "ui", "__main__"},
]  # fmt: skip
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
FORBIDDEN = {("costs", "catalog"), ("catalog", "costs")}
SIDE_LOOP = {"calibration": {"calibration", "cli", "__main__"}}  # who may import it
HEAVY = {"sympy", "scipy", "matplotlib", "rich", "streamlit", "torch", "dask", "distributed", "IPython", "pandas"}

HOME = Path(perfmodel.__file__).parent
FILES = [path for path in sorted(HOME.rglob("*.py")) if path != HOME / "__init__.py"]


def module_of(path: Path) -> str:
    parts = ("perfmodel", *path.relative_to(HOME).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    name = module_of(path)
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module that a tree names in an import, relative ones resolved, and in import_module("...")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            # `from perfmodel import step` names a room, `from perfmodel.step import x` a thing inside one
            yield from (f"{base}.{alias.name}" for alias in node.names) if base == "perfmodel" else [base]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def at_import_time(tree: ast.AST) -> Iterator[ast.stmt]:
    """Import statements that run when the module is imported: not in functions, not under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            for other in node.orelse:
                yield from at_import_time(ast.Module([other], []))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import_time(node)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_upstream(path: Path) -> None:
    here = module_of(path).split(".")[1]
    assert here in LEVEL, f"{here} is not a room; the rooms are in docs/architecture.md"
    for name in imported(ast.parse(path.read_text()), package_of(path)):
        if name.split(".")[0] != "perfmodel":
            continue
        there = name.split(".")[1] if "." in name else ""
        if there not in LEVEL:  # `import perfmodel`, `from perfmodel import deploy`: the face lies below all rooms
            assert LEVEL[here] == LEVEL["cli"] or there == "__version__", f"{here} imports the public face, {name}"
            continue
        assert there == here or LEVEL[there] < LEVEL[here] or LEVEL[here] == LEVEL[there], f"{here} imports {there}"
        assert (here, there) not in FORBIDDEN, f"{here} must not know {there}"
        assert here in SIDE_LOOP.get(there, {here}), f"{there} returns by file, {here} imports it"


@pytest.mark.parametrize("path", [*FILES, HOME / "__init__.py"], ids=module_of)
def test_heavy_packages_are_imported_inside_functions(path: Path) -> None:
    for node in at_import_time(ast.parse(path.read_text())):
        roots = {name.split(".")[0] for name in imported(ast.Module([node], []), package_of(path))}
        assert not roots & HEAVY, f"line {node.lineno}: {roots & HEAVY} at import time"


def test_the_package_itself_imports_lazily() -> None:
    for node in at_import_time(ast.parse((HOME / "__init__.py").read_text())):
        roots = {name.split(".")[0] for name in imported(ast.Module([node], []), "perfmodel")}
        assert roots <= sys.stdlib_module_names, f"line {node.lineno}: {roots}"


@pytest.mark.parametrize(
    ("line", "package", "found"),
    [
        ("import a.b, c", "perfmodel.step", ["a.b", "c"]),
        ("from perfmodel.costs import gemm", "perfmodel.step", ["perfmodel.costs"]),
        ("from perfmodel import costs, step", "perfmodel.step", ["perfmodel.costs", "perfmodel.step"]),
        ("from . import x", "perfmodel.step", ["perfmodel.step"]),
        ("from ..catalog.load import x", "perfmodel.step", ["perfmodel.catalog.load"]),
        ("from .. import catalog", "perfmodel.step", ["perfmodel.catalog"]),
        ("importlib.import_module('perfmodel.cli')", "perfmodel.step", ["perfmodel.cli"]),
    ],
)
def test_the_reader_sees_every_form_of_import(line: str, package: str, found: list[str]) -> None:
    assert list(imported(ast.parse(line), package)) == found


def test_the_reader_skips_functions_and_type_checking_only() -> None:
    code = "import a\nif TYPE_CHECKING:\n    import b\nelse:\n    import c\ntry:\n    import d\nfinally:\n    pass\n"
    code += "def f():\n    import e\nclass C:\n    import g\n"
    assert [node.names[0].name for node in at_import_time(ast.parse(code))] == ["a", "c", "d", "g"]  # type: ignore[attr-defined]
