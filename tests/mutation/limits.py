"""The conftest.py of the mutated tree: which of the tests that reach a mutant run, in what order, and for how long."""

import json
import os
import resource
from pathlib import Path

import pytest

TESTS_S = 3.0                         # time that the tests of one mutant may have, as measured without a mutant [s]
MEMORY = 8 * 2**30                    # address space, against mutants that fill it [B]
BREADTH = "breadth.json"              # how many functions each test reaches
_WHOLE = ("stats", "fail", "list_all_tests")    # what mutmut calls its runs of all tests


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Doctests once, not in the copy of every mutant; for a mutant those first that reach the fewest functions."""
    kept = [item for item in items if "__mutmut_" not in item.name]
    if os.environ.get("MUTANT_UNDER_TEST", "stats") not in _WHOLE and Path(BREADTH).exists():
        kept = _narrowest(kept)
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def _narrowest(items: list[pytest.Item]) -> list[pytest.Item]:
    took = json.loads(Path("mutmut-stats.json").read_text())["duration_by_test"]
    breadth = json.loads(Path(BREADTH).read_text())
    spent, kept = 0.0, list[pytest.Item]()
    for item in sorted(items, key=lambda item: (breadth.get(item.nodeid, 0), took.get(item.nodeid, 0.0))):
        if not kept or spent + took.get(item.nodeid, 0.0) <= TESTS_S:
            spent += took.get(item.nodeid, 0.0)
            kept.append(item)
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    until = int(used.ru_utime + used.ru_stime + 5 + 4 * min(spent, TESTS_S))
    resource.setrlimit(resource.RLIMIT_CPU, (until if hard < 0 else min(until, hard), hard))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return kept
