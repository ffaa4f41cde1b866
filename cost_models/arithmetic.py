"""Arithmetic that takes floats, NumPy arrays and SymPy symbols alike, so that a formula is written once.

``+ - * /`` and ``**`` work on all three; what follows is the rest that cost functions need. Of arrays the result is an
array (broadcast), of symbols an expression, of plain numbers a float.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

Number = Any
"""A float, an int, a NumPy array of them, or a SymPy expression."""
ROUNDING = 1e-12
"""Relative: what is as near to a whole number is that number."""


def is_symbolic(*values: Number) -> bool:
    """Whether any of them is a SymPy expression (a SymPy number is one too)."""
    sympy = sys.modules.get("sympy")  # where nobody imported it nothing is: most processes never need its 0.3 s
    return sympy is not None and any(isinstance(value, sympy.Basic) for value in values)


def maximum(*values: Number) -> Number:
    """The largest, element by element."""
    if is_symbolic(*values):
        return _distinct("Max", values)
    if any(isinstance(value, np.ndarray) for value in values):
        largest = values[0]
        for value in values[1:]:
            largest = np.maximum(largest, value)
        return largest
    return float(max(values))


def minimum(*values: Number) -> Number:
    """The smallest, element by element."""
    if is_symbolic(*values):
        return _distinct("Min", values)
    if any(isinstance(value, np.ndarray) for value in values):
        smallest = values[0]
        for value in values[1:]:
            smallest = np.minimum(smallest, value)
        return smallest
    return float(min(values))


def ceil(value: Number) -> Number:
    """The least whole number that is not smaller, to rounding: what lies above one by ``ROUNDING`` of it is that one.

    Where a formula divides by 132, SymPy multiplies by 1/132. So a quotient that is whole may come out an ulp above,
    and floats, arrays and symbols would give numbers a whole block apart.
    """
    if is_symbolic(value):
        return sys.modules["sympy"].ceiling(value)  # ``cost_models.sensitivity.compiled`` rounds in the same way
    least = value - ROUNDING * abs(value)
    return np.ceil(least) if isinstance(value, np.ndarray) else float(math.ceil(least))


def log2(value: Number) -> Number:
    """The logarithm to base 2."""
    if is_symbolic(value):
        return sys.modules["sympy"].log(value) / math.log(2)
    return np.log2(value) if isinstance(value, np.ndarray) else math.log2(value)


def where_positive(test: Number, value: Number, otherwise: Number = 0.0) -> Number:
    """``value`` where ``test`` > 0, else ``otherwise``. Symbols that are declared positive are taken at their word."""
    if is_symbolic(test):
        if test.is_positive:
            return value
        if test.is_positive is False:
            return otherwise
    if is_symbolic(test, value, otherwise):
        return sys.modules["sympy"].Piecewise((value, test > 0), (otherwise, True))
    if any(isinstance(part, np.ndarray) for part in (test, value, otherwise)):
        return np.where(np.asarray(test) > 0, value, otherwise)
    return value if test > 0 else otherwise


def _distinct(function: str, values: tuple[Number, ...]) -> Number:
    """Max or Min, unsimplified: SymPy's own simplification compares every pair of arguments, which takes minutes."""
    sympy = sys.modules["sympy"]
    different = list(dict.fromkeys(sympy.sympify(value) for value in values))
    return different[0] if len(different) == 1 else getattr(sympy, function)(*different, evaluate=False)
