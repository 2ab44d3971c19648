"""The loop: a numbered input, a call within limits, an outcome. A value or a PerfModelError is right."""

import hashlib
import json
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from perfmodel.catalog.write import write_whole
from perfmodel.errors import MOST, PerfModelError

from .mutate import mutated
from .parsers import PARSERS

LIMIT_S = 2.0       # processor time of one input, of at most 64 KiB
KEEP = 20           # inputs that are kept of one kind of failure


class TooSlow(BaseException):
    """An input took longer than `LIMIT_S`; no parser catches it."""


@dataclass
class Tally:
    """What became of the inputs of one parser; ``failures`` counts them by what went wrong and where."""

    tried: int = 0
    read: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Take in another count."""
        self.tried, self.read = self.tried + other.tried, self.read + other.read
        self.seconds, self.slowest_s = self.seconds + other.seconds, max(self.slowest_s, other.slowest_s)
        self.failures += other.failures


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """How many of all inputs each parser gets."""
    whole = sum(PARSERS[name].share for name in names)
    return {name: -(-inputs * PARSERS[name].share // whole) for name in names}


def numbered(name: str, seed: int, number: int, samples: list[bytes]) -> bytes:
    """The input of this number: the same whenever it is asked for."""
    return mutated(Random(f"{seed}:{name}:{number}"), samples)


@contextmanager
def limited(seconds: float = LIMIT_S) -> Iterator[None]:
    """Within so many seconds of processor time; warnings are failures."""
    def late(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(read: Callable[[bytes], Any], data: bytes) -> str:
    """read, refused, or what went wrong and where."""
    try:
        with limited():
            read(data)
    except PerfModelError as error:
        short = len(error.message) <= MOST + 50 and error.message.isprintable() and error.exit_code in (1, 2)
        return "refused" if short else f"message of {len(error.message)} characters"
    except (Exception, TooSlow) as error:
        return f"{type(error).__name__} {_place(error)}"
    return "read"


def _place(error: BaseException) -> str:
    """The last line of perfmodel that was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/perfmodel/" in frame.filename]
    last = (ours or frames)[-1]
    return f"{last.filename.rpartition('/perfmodel/')[2]}:{last.lineno}"


def run(name: str, seed: int, start: int, stop: int, crashes: Path | None = None,
        until: float | None = None) -> Tally:
    """Inputs ``start`` to ``stop`` of a parser, or as many as come before the clock says ``until``."""
    parser, samples, tally = PARSERS[name], PARSERS[name].samples(), Tally()
    for number in range(start, stop):
        if until is not None and time.monotonic() > until:
            break
        data = numbered(name, seed, number, samples)
        begin = time.process_time()
        found = outcome(parser.read, data)
        took = time.process_time() - begin
        tally.tried, tally.seconds, tally.slowest_s = tally.tried + 1, tally.seconds + took, max(tally.slowest_s, took)
        if found == "read":
            tally.read += 1
        elif found != "refused":
            tally.failures[found] += 1
            if crashes is not None and tally.failures[found] <= KEEP:
                folder = crashes / name.replace(" ", "-")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{seed}-{number}-{hashlib.sha256(data).hexdigest()[:8]}").write_bytes(data)
    return tally


def load(state: Path) -> dict[str, Tally]:
    """Counts of an earlier run with the same seed."""
    if not state.is_file():
        return {}
    found = json.loads(state.read_text(encoding="utf-8"))
    return {name: Tally(**{**counts, "failures": Counter(counts["failures"])}) for name, counts in found.items()}


def save(state: Path, tallies: dict[str, Tally]) -> None:
    """Counts for a later run to go on from."""
    write_whole(state, json.dumps({name: vars(tally) for name, tally in sorted(tallies.items())}, indent=1) + "\n")
