"""Every parser against damaged samples for a moment, and against every input that once broke one.

The long run is ``python -m tests.fuzz --inputs 2000000 --seed 1``; its last result is in docs/fuzzing.md.
"""

import hashlib
import time
from pathlib import Path

import pytest
from fuzz.mutate import MOST_BYTES
from fuzz.parsers import PARSERS
from fuzz.run import Tally, load, numbered, outcome, run, save, shares

from perfmodel.errors import BadInput

MOMENT_S = 0.6      # of one parser
CRASHES = Path(__file__).parent / "fuzz" / "crashes"
FOLDERS = {name.replace(" ", "-"): name for name in PARSERS}


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_samples_are_read_or_refused(name: str) -> None:
    tally = run(name, 0, 0, 1_000_000, until=time.monotonic() + MOMENT_S)
    assert not tally.failures, f"python -m tests.fuzz --seed 0 --parser '{name}' finds the inputs"
    assert tally.tried > 10 and tally.read                          # the samples are read, so that damage goes deep


@pytest.mark.parametrize("path", sorted(CRASHES.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_broke_a_parser_once_does_not_again(path: Path) -> None:
    assert outcome(PARSERS[FOLDERS[path.parent.name]].read, path.read_bytes()) in ("read", "refused")


def test_a_number_is_one_input() -> None:
    samples = [b'{"a": [1, 2.5, "x"], "b": {"c": null}}', b"line 1\nline 22\n"]
    made = [numbered("any", 1, number, samples) for number in range(2000)]
    assert made == [numbered("any", 1, number, samples) for number in range(2000)]
    assert len(set(made)) > 1200 and max(map(len, made)) <= MOST_BYTES
    # the same on every version of Python, or seeds in docs would mean nothing
    assert hashlib.sha256(b"\0".join(made)).hexdigest()[:16] == "5c3870965cf74763"


def test_what_is_neither_a_value_nor_a_refusal_is_seen() -> None:
    def ends_never(data: bytes) -> None:
        while True:
            pass

    def warns(data: bytes) -> None:
        import warnings

        warnings.warn("x", RuntimeWarning, stacklevel=1)

    def refuses(data: bytes) -> None:
        raise BadInput("no")

    assert outcome(len, b"x") == "read" and outcome(refuses, b"x") == "refused"
    assert outcome(lambda data: data[9], b"x").startswith("IndexError")
    assert outcome(ends_never, b"x").startswith("TooSlow")
    assert outcome(warns, b"x").startswith("RuntimeWarning")


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    once = run("strategy", 5, 0, 400)
    first, second = run("strategy", 5, 0, 150), run("strategy", 5, 150, 400)
    save(tmp_path / "state.json", {"strategy": first})
    both = load(tmp_path / "state.json")["strategy"]
    both.add(second)
    assert (both.tried, both.read, both.failures) == (once.tried, once.read, once.failures)
    assert load(tmp_path / "none.json") == {} and Tally() == Tally()
    assert sum(shares(2_000_000, list(PARSERS)).values()) >= 2_000_000
