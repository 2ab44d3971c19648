"""YAML as descriptors use it: mappings, lists, text, numbers. No tags, no anchors, no duplicate keys, no surprises.

Built from parser events, so that YAML 1.1's traps never fire: `no` and `12:30` and `2026-08-22` stay text.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from typing import Any

from perfmodel.errors import DescriptorError

MAX_BYTES = 2**20
MAX_DEPTH = 24
MAX_NODES = 50_000      # values of a document whose aliases are written out
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


def check_plain(path: str | os.PathLike[str]) -> None:
    """Refuse what is not a plain file: opening a pipe would wait for ever, a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:                                      # a path of odd characters names no file
        raise FileNotFoundError(errno.ENOENT, "no such file") from None
    if not stat.S_ISREG(mode):
        raise DescriptorError(f"{os.path.basename(os.fspath(path))}: not a plain file")


def read_text(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> str:
    """The text of a plain UTF-8 file of at most `limit` bytes."""
    name = os.path.basename(os.fspath(path))
    try:
        check_plain(path)
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
    except (OSError, ValueError) as error:                  # a path of odd characters is a ValueError
        why = (getattr(error, "strerror", None) or "no such file").lower()
        raise DescriptorError(f"{os.fspath(path)}: cannot be read, {why}") from None
    if len(raw) > limit:
        raise DescriptorError(f"{name}: larger than {limit} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DescriptorError(f"{name}: not UTF-8 text (byte {error.start})") from None


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML file."""
    return parse_yaml(read_text(path), os.path.basename(os.fspath(path)))


def parse_yaml(text: str, name: str = "<text>", aliases: bool = False) -> dict[str, Any]:
    """The mapping in a YAML text; `name` is used in messages.

    ``aliases`` allows anchors, aliases and merge keys, as other programs' files have them; what they stand for is
    counted, and a document that grows beyond MAX_NODES is refused.

    >>> parse_yaml("a: {b: 4.8 TB/s, c: [1, 2.5, no]}")
    {'a': {'b': '4.8 TB/s', 'c': [1, 2.5, 'no']}}
    """
    import yaml

    if not isinstance(text, str):
        raise DescriptorError(f"{name}: YAML is read from text, not from a {type(text).__name__}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = _build(yaml.parse(text, Loader=loader), name, aliases)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise DescriptorError(f"{name}:{where} {getattr(error, 'problem', None) or 'not YAML'}") from None
    if not isinstance(document, dict):
        raise DescriptorError(f"{name}: a mapping is needed at the top")
    return document


def _build(events: Any, name: str, aliases: bool = False) -> Any:
    """Fold the event stream into plain Python values; an explicit stack, so depth is ours to limit."""
    stack: list[tuple[Any, list[Any]]] = [([], [])]     # (container, [pending key])
    anchors: dict[str, tuple[Any, int]] = {}            # values that are complete, and how many they hold
    sizes, names = [0], [""]
    value: Any
    for event in events:
        what = type(event).__name__
        line = event.start_mark.line + 1 if event.start_mark else 0
        if sizes[-1] > MAX_NODES:
            raise DescriptorError(f"{name}: line {line}: more than {MAX_NODES:,} values")
        if what == "AliasEvent" and event.anchor in anchors:
            value, size = anchors[event.anchor]
            sizes[-1] += size
            _put(stack[-1], value, name, line)
            continue
        if what == "AliasEvent" or getattr(event, "anchor", None) and not aliases:
            raise DescriptorError(f"{name}: line {line}: anchors and aliases are not allowed, write the value out")
        if getattr(event, "tag", None) not in (None, "!"):
            raise DescriptorError(f"{name}: line {line}: tags such as {event.tag[:40]!r} are not allowed")
        if what == "ScalarEvent":
            value = _scalar(event, name, line)
            sizes[-1] += 1
            _put(stack[-1], value, name, line, plain=event.implicit[0] and not aliases)
            if event.anchor:
                anchors[event.anchor] = value, 1
        elif what in ("MappingStartEvent", "SequenceStartEvent"):
            if len(stack) > MAX_DEPTH:
                raise DescriptorError(f"{name}: line {line}: nested deeper than {MAX_DEPTH}")
            value = {} if what == "MappingStartEvent" else []
            _put(stack[-1], value, name, line)
            stack.append((value, []))
            sizes.append(1)
            names.append(event.anchor or "")
        elif what in ("MappingEndEvent", "SequenceEndEvent"):
            value, size = stack.pop()[0], sizes.pop()
            sizes[-1] += size
            if aliases and isinstance(value, dict):
                _merge(value)
            if anchor := names.pop():
                anchors[anchor] = value, size
        elif what == "DocumentStartEvent" and stack[0][0]:
            raise DescriptorError(f"{name}: line {line}: one document a file")
    return stack[0][0][0] if stack[0][0] else None


def _merge(value: dict[str, Any]) -> None:
    """Put in what ``<<`` names, below the mapping's own keys."""
    merged = value.pop("<<", None)
    for other in merged if isinstance(merged, list) else [merged]:
        for key, entry in other.items() if isinstance(other, dict) else ():
            value.setdefault(key, entry)


def _put(top: tuple[Any, list[Any]], value: Any, name: str, line: int, plain: bool = False) -> None:
    container, key = top
    if isinstance(container, list):
        container.append(value)
    elif key:
        container[key.pop()] = value
    elif not isinstance(value, str):
        raise DescriptorError(f"{name}: line {line}: a key must be text, not {str(value)[:40]!r}; put it in quotes")
    elif value == "<<" and plain:
        raise DescriptorError(f"{name}: line {line}: merge keys are not allowed, write the values out")
    elif value in container:
        raise DescriptorError(f"{name}: line {line}: key {value[:80]!r} appears twice")
    else:
        key.append(value)


def _scalar(event: Any, name: str, line: int) -> Any:
    text = event.value
    if not event.implicit[0]:                           # quoted: always text
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        if not math.isfinite(float(text)):
            raise DescriptorError(f"{name}: line {line}: {text[:40]!r} is not a finite number")
        return float(text)
    return text
