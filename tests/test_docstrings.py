"""The docstring of a formula is a contract: arguments in order with units, a result, validity, an example, a source."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import pytest

import perfmodel.costs

SYMBOLS = {"B", "s", "FLOP", "Hz", "W", "J", "token"}
UNITS = {"1", *SYMBOLS, *(f"{over}/{under}" for over in {"1", *SYMBOLS} for under in SYMBOLS)}
OPERATORS = "perfmodel.costs.dispatch"  # maximum, where, ...: not formulas


def public_functions() -> list[Callable[..., Any]]:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(perfmodel.costs.__path__, "perfmodel.costs.")
        if found.name != OPERATORS
    ]
    return [
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == module.__name__
    ]


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """numpydoc sections by title; the summary is ''."""
    pieces = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.getdoc(function) or "", flags=re.M)
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def entries(section: str) -> list[tuple[str, str]]:
    """(first line, description) of each entry of a Parameters or Returns section."""
    return re.findall(r"^(\S.*)\n((?:    .*\n?|\n)+)", section, re.M)


def unit(description: str) -> str | None:
    found = re.search(r"\[([^\[\]]+)\]\Z", description.strip())
    return found[1] if found else None


def faults(function: Callable[..., Any]) -> list[str]:
    """What the docstring of a formula lacks."""
    part = sections(function)
    given = entries(part.get("Parameters", ""))
    names = [head.split(" : ")[0] for head, _ in given]
    wanted = list(inspect.signature(function).parameters)
    found = [] if names == wanted else [f"documents {names}, takes {wanted}"]
    found += [f"{head}: unit {unit(text)!r}" for head, text in given if unit(text) not in UNITS]
    result = entries(part.get("Returns", ""))
    found += [] if result else ["no result"]
    found += [f"result: unit {unit(text)!r}" for _, text in result if unit(text) not in UNITS]
    found += [] if part[""].strip() else ["no summary"]
    validity = re.search(r"\b([Vv]alid|[Ee]xact)\b", part.get("Notes", ""))
    found += [] if validity else ["no range of validity under Notes"]
    found += [] if ">>> " in part.get("Examples", "") else ["no example"]
    found += [] if re.search(r"\w{3}", part.get("References", "")) else ["no source under References"]
    return found


@pytest.mark.parametrize("function", public_functions(), ids=lambda function: function.__name__)
def test_formula_is_documented(function: Callable[..., Any]) -> None:
    assert faults(function) == []


def test_there_are_formulas() -> None:
    assert len(public_functions()) > 10


def good(size_bytes: float, ranks: int) -> float:
    """Divide.

    Parameters
    ----------
    size_bytes : float
        What is divided,
        over two lines. [B]
    ranks : int
        By how many. [1]

    Returns
    -------
    float
        One share. [B]

    Notes
    -----
    Valid for whole ranks.

    Examples
    --------
    >>> good(8.0, 2)
    4.0

    References
    ----------
    .. [1] Euclid, Elements, book VII.
    """
    return size_bytes / ranks


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("over two lines. [B]", "over two lines.", "size_bytes : float: unit None"),
        ("By how many. [1]", "By how many. [furlong]", "ranks : int: unit 'furlong'"),
        ("ranks : int", "rank : int", "documents ['size_bytes', 'rank'], takes ['size_bytes', 'ranks']"),
        ("One share. [B]", "One share.", "result: unit None"),
        ("Valid for whole ranks.", "Nice.", "no range of validity under Notes"),
        (">>> good(8.0, 2)", "good(8.0, 2)", "no example"),
        (".. [1] Euclid, Elements, book VII.", "", "no source under References"),
    ],
)
def test_the_reader_finds_what_is_missing(old: str, new: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(good) == []
    assert old in (good.__doc__ or "")
    monkeypatch.setattr(good, "__doc__", (good.__doc__ or "").replace(old, new))
    assert faults(good) == [fault]
