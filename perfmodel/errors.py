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


class PerfModelError(Exception):
    """Base: ``message`` in one line, remedies as hints."""

    exit_code = 2

    def __init__(self, message: str, hints: Iterable[str] = ()):
        self.message, self.hints = message, tuple(hints)
        super().__init__("\n".join([message, *([""] if self.hints else []), *(f"hint: {hint}" for hint in self.hints)]))


class QuestionError(PerfModelError):
    """The question is wrong."""


class UnknownName(QuestionError):
    """No such name; the nearest known ones are listed."""

    def __init__(self, what: str, name: str, known: Iterable[str]):
        from difflib import get_close_matches

        known = sorted(known)
        fold = {k.lower().replace("_", "-"): k for k in known}
        near = [
            fold[k] for k in get_close_matches(str(name)[:200].lower().replace("_", "-"), list(fold), n=3, cutoff=0.3)
        ]
        listed = ", ".join(near or known[:8])
        super().__init__(f"unknown {what} {str(name)[:200]!r}; {'nearest' if near else 'known'}: {listed or 'none'}")


class DescriptorError(QuestionError):
    """A descriptor or result file does not say what it must."""


class IllegalDeployment(QuestionError):
    """The engine cannot run this strategy at all; the message gives its rule."""


class BadInput(QuestionError):
    """A number or word out of range."""


class Unpriced(QuestionError):
    """No formula here gives the time of this part of a model."""


class Infeasible(PerfModelError):
    """The question has an answer, and it is no."""

    exit_code = 1
