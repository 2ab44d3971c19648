"""A Hugging Face config.json as checked values: every number bounded, every refusal with the name of its key."""

from __future__ import annotations

import json
import os
from typing import Any

from perfmodel.catalog.yaml import read_text
from perfmodel.errors import DescriptorError

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 32
MAX_NUMBER = 10**9
_MISSING = object()


def read_json(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> dict[str, Any]:
    """The object in a JSON file of at most 4 MiB, unless more is allowed."""
    return parse_json(read_text(path, limit), os.path.basename(os.fspath(path)))


def parse_json(text: str, name: str = "config.json") -> dict[str, Any]:
    """The object in a JSON text; a key that appears twice, deep nesting and endless numbers are refused.

    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    perfmodel.errors.DescriptorError: config.json: key 'a' appears twice
    """
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found and found[key] != value:
                raise DescriptorError(f"{name}: key {key[:80]!r} appears twice")
            found[key] = value
        return found

    try:
        document = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise DescriptorError(f"{name}: nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        why = error.msg[:1].lower() + error.msg[1:]
        raise DescriptorError(f"{name}: line {error.lineno}: not JSON, {why}") from None
    except ValueError as error:                 # an integer of thousands of digits
        raise DescriptorError(f"{name}: not JSON, {str(error)[:80]}") from None
    if not isinstance(document, dict):
        raise DescriptorError(f"{name}: an object is needed at the top")
    check_depth(document, name)
    return document


def check_depth(document: Any, name: str) -> None:
    """Refuse nesting deeper than `MAX_DEPTH`; without recursion."""
    level = [document]
    for _ in range(MAX_DEPTH + 1):
        level = [value for item in level for value in (item.values() if isinstance(item, dict) else item)
                 if isinstance(value, (dict, list))]
        if not level:
            return
    raise DescriptorError(f"{name}: nested deeper than {MAX_DEPTH}")


class Keys:
    """The keys of one object of a config. Reading one that is missing, of the wrong kind or out of range is refused.

    Several names for one thing may be given; when more than one is there they must agree.
    """

    def __init__(self, values: dict[str, Any], file: str, path: str = ""):
        self.values, self.file, self.path = values, file, path
        self.used: dict[str, Any] = {}

    def refuse(self, key: str, what: str) -> DescriptorError:
        """The error for a key."""
        return DescriptorError(f"{self.file}: {self.path}{key} - {what}")

    def has(self, *names: str) -> bool:
        """Whether one of the names is there and not null."""
        return any(self.values.get(name) is not None for name in names)

    def _value(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        self.used |= found
        if not found:
            if default is _MISSING:
                others = f" (or {', '.join(names[1:])})" if names[1:] else ""
                raise self.refuse(names[0], f"this key is missing{others}")
            return names[0], default
        key, value = next(iter(found.items()))
        for other, against in found.items():
            if other != key and against != value:
                raise self.refuse(key, f"{_short(value)} contradicts {other}: {_short(against)}")
        return key, value

    def count(self, *names: str, default: Any = _MISSING, least: int = 1, most: int = MAX_NUMBER) -> Any:
        """A whole number within bounds."""
        key, value = self._value(names, default)
        if key not in self.used and not any(name in self.used for name in names):
            return value
        return self.whole(key, value, least, most)

    def whole(self, key: str, value: Any, least: int = 1, most: int = MAX_NUMBER) -> int:
        """A value of a key that must be a whole number."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, f"{_short(value)} is not a whole number")
        if not least <= value <= most:
            raise self.refuse(key, f"{_short(value)} is not from {least} to {most}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false."""
        key, value = self._value(names, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{_short(value)} is not true or false")
        return value

    def word(self, *names: str, default: Any = _MISSING) -> str:
        """A short text."""
        key, value = self._value(names, default)
        if not isinstance(value, str) or len(value) > 200:
            raise self.refuse(key, f"{_short(value)} is not a short text")
        return value

    def listed(self, *names: str, length: int | None = None, default: Any = _MISSING) -> Any:
        """A list, of a given length."""
        key, value = self._value(names, default)
        if value is default and not any(name in self.used for name in names):
            return value
        if not isinstance(value, list):
            raise self.refuse(key, f"{_short(value)} is not a list")
        if length is not None and len(value) != length:
            raise self.refuse(key, f"{len(value)} entries where {length} layers need one each")
        return value

    def words(self, *names: str, length: int | None = None, default: Any = _MISSING) -> Any:
        """A list of short texts."""
        value = self.listed(*names, length=length, default=default)
        for item in value or ():
            if not isinstance(item, str) or len(item) > 1000:
                raise self.refuse(names[0], f"{_short(item)} is not a text")
        return value

    def inner(self, *names: str, default: Any = _MISSING) -> Keys:
        """An object inside this one."""
        key, value = self._value(names, {} if default is None else default)
        if not isinstance(value, dict):
            raise self.refuse(key, f"{_short(value)} is not an object")
        child = Keys(value, self.file, f"{self.path}{key}.")
        if value:
            self.used[key] = child.used
        return child


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
