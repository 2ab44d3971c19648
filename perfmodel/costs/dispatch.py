"""maximum, minimum, where, ceil, log2, exp, expm1, sqrt and log1p for numbers, arrays and SymPy symbols alike.

NumPy answers unless an argument is a SymPy expression, which is recognised without importing SymPy: whoever passes
one has already imported it. So the formula that predicts is the formula that `explain` prints and differentiates.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _symbolic(*values: Any) -> bool:
    return any(hasattr(value, "free_symbols") for value in values)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two values, element by element.

    >>> float(maximum(2.0, 3.0))
    3.0
    """
    if _symbolic(a, b):
        import sympy

        return sympy.Max(a, b)
    return np.maximum(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two values, element by element.

    >>> float(minimum(2.0, 3.0))
    2.0
    """
    if _symbolic(a, b):
        import sympy

        return sympy.Min(a, b)
    return np.minimum(a, b)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition holds, else ``no``.

    >>> int(where(True, 1, 2))
    1
    """
    if _symbolic(condition, yes, no):
        import sympy

        return sympy.Piecewise((yes, condition), (no, True))
    return np.where(condition, yes, no)


def ceil(a: Any) -> Any:
    """Round up.

    >>> float(ceil(1.2))
    2.0
    """
    if _symbolic(a):
        import sympy

        return sympy.ceiling(a)
    return np.ceil(a)


def sqrt(a: Any) -> Any:
    """Square root.

    >>> float(sqrt(9.0))
    3.0
    """
    if _symbolic(a):
        import sympy

        return sympy.sqrt(a)
    return np.sqrt(a)


def log1p(a: Any) -> Any:
    """Logarithm of one plus a small value, without losing its digits.

    >>> float(log1p(1e-20))
    1e-20
    """
    if _symbolic(a):
        import sympy

        return sympy.log(1 + a)
    return np.log1p(a)


def exp(a: Any) -> Any:
    """Exponential.

    >>> float(exp(0.0))
    1.0
    """
    if _symbolic(a):
        import sympy

        return sympy.exp(a)
    return np.exp(a)


def expm1(a: Any) -> Any:
    """Exponential less one, without losing the digits of a small value.

    >>> float(expm1(1e-20))
    1e-20
    """
    if _symbolic(a):
        import sympy

        return sympy.exp(a) - 1
    return np.expm1(a)


def log2(a: Any) -> Any:
    """Logarithm to base 2.

    >>> float(log2(8.0))
    3.0
    """
    if _symbolic(a):
        import sympy

        return sympy.log(a, 2)
    return np.log2(a)
