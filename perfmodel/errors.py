"""perfmodel's own errors. The CLI prints these without a traceback; anything else is a bug and keeps its own.

PerfModelError
├── QuestionError           the question is wrong (exit 2)
│   ├── UnknownName         no such model, node, accelerator, engine, flag; lists the nearest names
│   ├── DescriptorError     a YAML or JSON file does not say what it must
│   ├── IllegalDeployment   a strategy that the engine cannot run at all
│   ├── BadInput            a number or word out of range
│   └── Unpriced            a part of a model whose time no formula here gives
└── Infeasible              the question has an answer, and it is no (exit 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

MOST = 600  # characters of one line


def one_line(text: str, most: int = MOST) -> str:
    """Text on one line: what cannot be printed is escaped, the middle of what is too long is left out.

    >>> one_line("0123456789" * 9, most=20)
    '01234567 ... 3456789'
    """
    if len(text) > most:
        text = f"{text[: most // 2 - 2]} ... {text[3 - most // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any, most: int = 80) -> str:
    """A value as a message shows it: its repr, if that is short and there is one.

    >>> shown("x"), shown(10**5000)
    ("'x'", 'a huge int')
    """
    try:
        return one_line(repr(value), most)
    except ValueError:  # Python refuses to print a whole number of more than 4,300 digits
        return f"a huge {type(value).__name__}"
    except Exception:  # an object of the caller's, whose own repr fails
        return f"a {type(value).__name__}"


class PerfModelError(Exception):
    """Base: ``message`` in one line, remedies as hints."""

    exit_code = 2

    def __init__(self, message: str, hints: Iterable[str] = ()):
        self.message, self.hints = one_line(message), tuple(map(one_line, hints))
        below = ["", *(f"hint: {hint}" for hint in self.hints)] if self.hints else []
        super().__init__("\n".join([self.message, *below]))


class QuestionError(PerfModelError):
    """The question is wrong."""


class UnknownName(QuestionError):
    """No such name; the nearest known ones are listed."""

    def __init__(self, what: str, name: Any, known: Iterable[str]):
        from difflib import get_close_matches

        known, said = sorted(known), name if isinstance(name, str) else shown(name)
        fold = {k.lower().replace("_", "-"): k for k in known}
        near = [
            fold[k] for k in get_close_matches(said[:200].lower().replace("_", "-"), list(fold), n=3, cutoff=0.3)
        ]
        rest = f" and {len(known) - 8} more" if not near and len(known) > 8 else ""
        listed = ", ".join(near or known[:8]) + rest
        super().__init__(f"unknown {what} {said[:200]!r}; {'nearest' if near else 'known'}: {listed or 'none'}")


class DescriptorError(QuestionError):
    """A descriptor or result file does not say what it must."""


class IllegalDeployment(QuestionError):
    """The engine cannot run this strategy at all; the message gives its rule."""


class BadInput(QuestionError):
    """A number or word out of range."""


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python or NumPy; True and False are none.

    >>> is_number(2.5), is_number(True), is_number("2.5")
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(name: str, value: Any, least: int, most: int = 10**12) -> int:
    """The value if it is a whole number between two bounds.

    >>> whole("tp", 8.0, 1)
    8
    """
    if not is_number(value) or not least <= value <= most or value != int(value):
        above = f" to {most:,}" if most < 10**12 else ""
        raise BadInput(f"{name} must be a whole number from {least}{above}, not {shown(value)}")
    return int(value)


def word(name: str, value: Any) -> str:
    """The value if it is text with something in it.

    >>> word("engine", "vllm")
    'vllm'
    """
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name} must be a word, not {shown(value)}")
    return value


def one_of(what: str, value: Any, known: Iterable[str]) -> str:
    """The value if it is one of these words.

    >>> one_of("router", "even", ("even", "odd"))
    'even'
    """
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise UnknownName(what, value, known)
    return value


class Unpriced(QuestionError):
    """No formula here gives the time of this part of a model."""


class Infeasible(PerfModelError):
    """The question has an answer, and it is no."""

    exit_code = 1
