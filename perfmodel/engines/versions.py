"""Which rules hold for an engine version: parse, order, and pick the newest rules that are not newer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from perfmodel.errors import BadInput

_PATTERN = re.compile(r"v?(\d{1,9}(?:\.\d{1,9})*)((?:[.\-]?(?:post|rc|dev|a|b)\d*)*)(?:\+[\w.]+)?", re.IGNORECASE)


@lru_cache(maxsize=1024)
def numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version, in order; suffixes such as ``.post1`` and ``rc1`` do not count.

    >>> numbers("0.6.6.post1") < numbers("0.10.2")
    True
    """
    match = _PATTERN.fullmatch(version.strip())
    if match is None:
        raise BadInput(f"engine version {version[:80]!r} is not a version", ["write numbers and dots, such as 0.5.10"])
    parts = [int(part) for part in match[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def at_least(version: str, since: str) -> bool:
    """Whether a version is the given one or newer.

    >>> at_least("0.10.2", "0.9.2"), at_least("0.5.9", "0.5.10")
    (True, False)
    """
    return numbers(version) >= numbers(since)


def pick(engine: str, version: str | None, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The known version whose rules apply, and what was assumed by taking it.

    No version: the newest known. Between two known ones: the older. Older than all: the oldest.

    >>> pick("sglang", "0.5.12", ("0.5.11", "0.5.13"))
    ('0.5.11', ('engine: sglang 0.5.12 is not one of the versions read; the rules of 0.5.11 apply',))
    """
    if not version:
        return known[-1], (f"engine: no version given; {engine} {known[-1]}, the newest known",)
    wanted = numbers(version)
    for candidate in known:
        if numbers(candidate) == wanted:
            return candidate, ()
    older = [candidate for candidate in known if numbers(candidate) < wanted]
    if older:
        note = f"engine: {engine} {version} is not one of the versions read; the rules of {older[-1]} apply"
        return older[-1], (note,)
    return known[0], (f"engine: {engine} {version} is older than all versions read; the rules of {known[0]} apply",)
