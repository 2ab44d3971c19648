"""Damage as files from strangers have it: bytes, lines, words and structure of a sample, by a seeded generator.

The same seed, parser and number give the same input, on every version of Python.
"""

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MOST_BYTES = 2**16
ODD_NUMBERS = ("0", "-1", "-0", "1", "2", "7", "1.5", "-0.0", "1e-320", "1e308", "1e400", "-1e400", "nan", "NaN",
               "inf", "Infinity", "-Infinity", "9" * 30, "9" * 400, "1" + "0" * 5000, "2147483648",
               "9223372036854775808", "18446744073709551615", "0x10", "1_000", "1,000", "٣", "²", "1/0", "", " ",
               "true", "null", "1e", "+", ".", "1.2.3")  # fmt: skip
ODD_WORDS = ("", "null", "true", "[]", "{}", "-", "--", "..", "../../etc/passwd", "/dev/zero", "~", "*", "a" * 300,
             "%s", "{0}", "$(id)", "`id`", "${HOME}", "\x00", "\x1b[31m", "\u202e", "\ud7ff", "é", "\ufeff", "'",
             '"', "\\", "#", "<<", "&a", "*a", "!!python/object:os.system", "=1+1", "__class__", "(a+)+$",
             "re:(.*)*x")  # fmt: skip
ODD_BYTES = (b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\r", b"\n", b"\t",
             b"\x85", b"\xe2\x80\xa8", b"\x1a", b"---\n", b"...\n", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":",
             b"=", b"\\")  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, float("nan"), float("inf"), 10**18,
                               10**400, "", "8", "x", "nan", "a" * 300, [], {}, [1], ["x"], [None], [[]], {"a": 1},
                               {"": None}, [0] * 100)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.-]*")
_KEY = re.compile(rb'"[^"\\]{1,80}"\s*:')
_HELD = 400     # places of one kind that are looked at
Way = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutated(random: Random, samples: Sequence[bytes]) -> bytes:
    """One sample, damaged in one to five ways."""
    data = random.choice(samples)
    for _ in range(1 + min(int(random.expovariate(1.2)), 4)):
        data = random.choice(WAYS)(random, data, samples)[:MOST_BYTES]
    return data


def _span(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + int(random.expovariate(1 / 12)) + 1)


def flip(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """One bit of one byte."""
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1:]


def insert(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Odd bytes."""
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(ODD_BYTES) + data[at:]


def drop(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A few bytes gone."""
    start, end = _span(random, data)
    return data[:start] + data[end:]


def repeat(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A few bytes twice, or a thousand times."""
    start, end = _span(random, data)
    return data[:end] + data[start:end] * random.choice((1, 1, 2, 1000)) + data[end:]


def cut(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Half written."""
    return data[:random.randrange(len(data) + 1)]


def lines(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A line gone, twice, elsewhere, or without its indent."""
    rows = data.splitlines(keepends=True)
    if not rows:
        return data
    i, j = random.randrange(len(rows)), random.randrange(len(rows))
    row, way = rows[i], random.randrange(4)
    if way == 0:
        del rows[i]
    elif way == 1:
        rows.insert(j, row)
    elif way == 2:
        rows[i], rows[j] = rows[j], row
    else:
        rows[i] = row.lstrip() if random.random() < 0.5 else b"  " + row
    return b"".join(rows)


def _replaced(random: Random, data: bytes, pattern: re.Pattern[bytes], odd: Sequence[str], same: float) -> bytes:
    """One place of a pattern replaced by something odd, or by another such place."""
    places = [match.span() for _, match in zip(range(_HELD), pattern.finditer(data), strict=False)]
    if not places:
        return data
    start, end = random.choice(places)
    other = random.choice(places)
    new = data[slice(*other)] if random.random() < same else random.choice(odd).encode("utf-8", "surrogatepass")
    return data[:start] + new + data[end:]


def number(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A number that is none, is huge, or stands elsewhere."""
    return _replaced(random, data, _NUMBER, ODD_NUMBERS, 0.2)


def word(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A word that is odd, or stands elsewhere."""
    return _replaced(random, data, _WORD, ODD_WORDS, 0.5)


def splice(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """The beginning of this and the end of another sample."""
    other = random.choice(samples)
    return data[:random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1):]


def deep(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """Nesting, closed or not."""
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a: ", b"}"), (b"(", b")"), (b"- ", b"")))
    depth = random.choice((5, 30, 300, 3000))
    start, end = _span(random, data)
    return data[:start] + opening * depth + data[start:end] + closing * random.choice((0, depth)) + data[end:]


def twice(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A key of JSON twice, with another value."""
    places = [match for _, match in zip(range(_HELD), _KEY.finditer(data), strict=False)]
    if not places:
        return data
    match = random.choice(places)
    return data[:match.start()] + match[0] + _dumped(random.choice(ODD_VALUES)) + b"," + data[match.start():]


def structure(random: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """A value of JSON replaced, gone, renamed, wrapped or moved."""
    row = data
    rows = data.split(b"\n") if data.count(b"\n{") else []
    at = random.randrange(len(rows)) if rows else 0
    if rows:
        row = rows[at]
    try:
        document = json.loads(row)
    except (ValueError, RecursionError):
        return number(random, data, samples)
    places = _places(document)
    if not places:
        return data
    holder, key = random.choice(places)
    way = random.randrange(6)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[random.choice(ODD_WORDS)] = holder.pop(key)
    elif way == 2:
        holder[key] = random.choice(([holder[key]], {"a": holder[key]}, str(holder[key])[:200]))
    elif way == 3:
        other, name = random.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = random.choice(ODD_VALUES)
    try:
        new = _dumped(document)
    except (ValueError, RecursionError):
        return data
    return b"\n".join([*rows[:at], new, *rows[at + 1:]]) if rows else new


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value, up to a number."""
    found: list[tuple[Any, Any]] = []
    todo = [document]
    while todo and len(found) < _HELD:
        holder = todo.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            found.append((holder, key))
            todo.append(holder[key])
    return found


def _dumped(value: Any) -> bytes:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**300:
        return b"1" + b"0" * 400
    return json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")


WAYS: tuple[Way, ...] = (flip, insert, drop, repeat, cut, lines, number, number, word, word, splice, deep, twice,
                         structure, structure, structure)  # fmt: skip
