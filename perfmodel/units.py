"""The only place where a unit prefix is a number. Inside the library everything is SI: bytes, FLOP, seconds.

GB is 10^9 bytes and GiB is 2^30 bytes; `gb_gib` prints both, because people mix them up and they differ by 7 %.
"""

from __future__ import annotations

import math
import re

DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
SMALL = {"m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}
PREFIX = {**DECIMAL, **BINARY, **SMALL}
BASE = ("B/s", "B", "FLOP/s", "FLOP", "s", "Hz", "W", "token")

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TEXT = re.compile(rf"({_NUMBER})(?: ({'|'.join(sorted(PREFIX, key=len, reverse=True))})({'|'.join(BASE)}))?")


def split(text: str | float) -> tuple[float, str]:
    """Read a quantity as a datasheet prints it: (SI value, base unit); a bare number has the base "1".

    >>> split("17 us")
    (1.7e-05, 's')
    """
    match = _TEXT.fullmatch(str(text)[:100].strip()) if not isinstance(text, bool) else None
    if match is None or not _sensible(match[2] or "", match[3] or "1"):
        wanted = "write a number, a space and a unit, such as '4.8 TB/s'"
        raise ValueError(f"{str(text)[:100]!r} is not a quantity; {wanted}")
    number, prefix, unit = match.groups()
    value = _scale(float(number), prefix or "")
    if not math.isfinite(value):
        raise ValueError(f"{str(text)[:100]!r} is not a finite number")
    return value, unit or "1"


def parse(text: str | float, base: str = "1") -> float:
    """Read a quantity of one dimension, in SI.

    >>> parse("4.8 TB/s", "B/s")
    4800000000000.0
    >>> parse("141 GB", "B") < parse("141 GiB", "B")
    True
    >>> parse(0.8)
    0.8
    """
    value, unit = split(text)
    if unit != base:
        is_in = f"in {unit}" if unit != "1" else "a bare number"
        raise ValueError(f"{str(text)[:100]!r} is {is_in}; a quantity in {base} is needed")
    return value


def format_bytes(size: float, unit: str = "GiB", digits: int = 1) -> str:
    """Bytes in the unit that is asked for.

    >>> format_bytes(594.2e9, "GB"), format_bytes(594.2e9)
    ('594.2 GB', '553.4 GiB')
    """
    if not unit.endswith("B") or unit[:-1] not in PREFIX:
        raise ValueError(f"{unit!r} is not a unit of bytes")
    return f"{size / PREFIX[unit[:-1]]:,.{digits}f} {unit}"


def gb_gib(size: float, digits: int = 1) -> str:
    """Bytes in GB and GiB.

    >>> gb_gib(594.2e9)
    '594.2 GB (553.4 GiB)'
    """
    return f"{format_bytes(size, 'GB', digits)} ({format_bytes(size, 'GiB', digits)})"


def si(value: float, unit: str, digits: int = 3) -> str:
    """A number with the decimal prefix that leaves 1 to 999 before the point, to `digits` significant digits.

    >>> si(1.792e12, "B/s"), si(1.7e-05, "s"), si(0.0, "W")
    ('1.79 TB/s', '17 us', '0 W')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    rounded = abs(float(f"{value:.{digits}g}"))
    steps = sorted({**DECIMAL, **(SMALL if unit == "s" else {})}.items(), key=lambda item: item[1])
    prefix, factor = next((step for step in reversed(steps) if rounded >= step[1]), steps[0])
    text = f"{value / factor:.{digits}g}"
    return f"{float(text):g} {prefix}{unit}"


def _sensible(prefix: str, unit: str) -> bool:
    """Binary prefixes count bytes, small ones divide seconds; '1 mB' is a slip of the pen."""
    if prefix in BINARY:
        return unit in ("B", "B/s")
    return prefix not in SMALL or unit == "s"


def _scale(number: float, prefix: str) -> float:
    """Divide by whole powers for the small prefixes, so that '17 us' is the float nearest to 17e-6."""
    return number / round(1 / SMALL[prefix]) if prefix in SMALL else number * PREFIX[prefix]
