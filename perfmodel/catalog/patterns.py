"""Names of modules in ignore lists: exact, by parent, with `*`, and bounded regular expressions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

from perfmodel.errors import DescriptorError

MAX_PATTERN = 200
MAX_PATTERNS = 100_000
MAX_EXPRESSIONS = 256
MAX_OPEN = 3                    # repeats without an end inside one expression; more may take for ever
ROOTS = ("model", "language_model", "backbone", "text_model", "transformer", "")
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "backbone.", "")


class Patterns:
    """A list of patterns; `matches` says whether one of them means a module such as ``layers.3.self_attn.q_proj``.

    A plain pattern means every module whose path holds it as a run of whole parts, so it covers what lies below it.
    """

    def __init__(self, patterns: Iterable[str], file: str, key: str):
        self.plain: set[str] = set()
        self.starred: dict[str, list[re.Pattern[str]]] = {}
        self.expressions: list[re.Pattern[str]] = []
        for count, pattern in enumerate(patterns):
            if count >= MAX_PATTERNS:
                raise DescriptorError(f"{file}: {key} - more than {MAX_PATTERNS} entries")
            self._add(pattern, file, key)

    def _add(self, pattern: str, file: str, key: str) -> None:
        if pattern.startswith("re:"):
            self.expressions.append(expression(pattern[3:], file, key))
            if len(self.expressions) > MAX_EXPRESSIONS:
                raise DescriptorError(f"{file}: {key} - more than {MAX_EXPRESSIONS} regular expressions")
        elif "*" in pattern:
            text = _unrooted(pattern)
            if len(pattern) > MAX_PATTERN or text.rstrip("*").count("*") > MAX_OPEN:
                raise DescriptorError(f"{file}: {key} - {pattern[:60]!r} is too long, or has too many stars")
            body = re.escape(text).replace(r"\*", ".*")
            found = re.compile(rf"(?:^|\.){body}" + ("" if text.endswith("*") else r"(?:$|\.)"))
            bucket = re.match(r"layers\.(\d+)\.", text)
            self.starred.setdefault(bucket[1] if bucket else "", []).append(found)
            if re.fullmatch(r"layers\.\d+\*+", text):       # layers.1* also means layers.10
                self.starred.setdefault("", []).append(found)
        else:
            self.plain.add(_unrooted(pattern))

    def matches(self, module: str) -> bool:
        """Whether a module's path (from ``layers.`` on) is meant."""
        parts = module.split(".")
        if any(".".join(parts[a:b]) in self.plain for a in range(len(parts)) for b in range(a + 1, len(parts) + 1)):
            return True
        layer = parts[1] if parts[0] == "layers" and len(parts) > 1 else ""
        if any(found.search(module) for key in {layer, ""} for found in self.starred.get(key, ())):
            return True
        return any(found.match(prefix + module) for found in self.expressions for prefix in PREFIXES)


def _unrooted(pattern: str) -> str:
    """The pattern without what stands before ``layers.``; a pattern of one word keeps it."""
    while True:
        first, dot, rest = pattern.partition(".")
        if not dot or first not in ROOTS:
            return pattern
        pattern = rest


def expression(text: str, file: str, key: str) -> re.Pattern[str]:
    """A regular expression that cannot run away: short, no repeat inside a repeat, few open ends.

    >>> expression("(a+)+b", "config.json", "ignore")
    Traceback (most recent call last):
    perfmodel.errors.DescriptorError: config.json: ignore - '(a+)+b' repeats what already repeats
    """
    if len(text) > MAX_PATTERN:
        raise DescriptorError(f"{file}: {key} - a regular expression of {len(text)} characters; at most {MAX_PATTERN}")
    body = text.removeprefix("^").removeprefix(".*").removesuffix("$").removesuffix(".*")
    if re.search(r"[*+}]\)*[^)]*\)\s*[*+{]", body) or re.search(r"\([^)]*[*+{][^)]*\)[*+{]", body):
        raise DescriptorError(f"{file}: {key} - {text[:60]!r} repeats what already repeats")
    if len(re.findall(r"(?<!\\)[*+{]", body)) > MAX_OPEN:
        raise DescriptorError(f"{file}: {key} - {text[:60]!r} has more than {MAX_OPEN} repeats")
    if re.search(r"\\[1-9]|\(\?[^:!=]", body):
        raise DescriptorError(f"{file}: {key} - {text[:60]!r} refers back or sets flags")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")      # a set inside a set, which may mean something else one day
            return re.compile(text)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise DescriptorError(f"{file}: {key} - {text[:60]!r} is not a regular expression, {error}") from None
