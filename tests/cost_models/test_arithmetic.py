"""The same number from floats, arrays and symbols."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy
from hypothesis import example, given
from hypothesis import strategies as st

from cost_models.arithmetic import ceil, log2, maximum, minimum, where_positive
from cost_models.sensitivity import compiled

numbers = st.floats(-1e9, 1e9).map(lambda value: round(value, 3))
X, Y, Z = sympy.symbols("x y z", real=True)


@pytest.mark.parametrize("function", [maximum, minimum])
@given(values=st.tuples(numbers, numbers, numbers))
def test_extremes(function, values):
    number = function(*values)
    assert isinstance(number, float)
    assert function(np.array([values[0]]), *values[1:]).tolist() == [number]
    assert float(function(X, Y, Z).subs(dict(zip((X, Y, Z), values, strict=True)))) == pytest.approx(number)


@pytest.mark.parametrize("function", [ceil, log2])
@given(value=st.floats(0.001, 1e9))
@example(value=math.nextafter(195312500.0, 1e9))
@example(value=math.nextafter(195312500.0, 0))
def test_functions_of_one(function, value):
    number = function(value)
    assert function(np.array([value])).tolist() == pytest.approx([number])
    assert float(compiled(function(X), [X])(value)) == pytest.approx(number, abs=1e-12)


@pytest.mark.parametrize("blocks", [1, 2, 131, 195312500])
def test_ceil_takes_an_ulp_above_for_rounding_and_more_for_another_block(blocks):
    assert ceil(math.nextafter(blocks, math.inf)) == ceil(math.nextafter(blocks, 0)) == blocks
    assert ceil(blocks * (1 + 1e-11)) == blocks + 1


@given(test=numbers, value=numbers, otherwise=numbers)
def test_where_positive(test, value, otherwise):
    number = where_positive(test, value, otherwise)
    assert number == (value if test > 0 else otherwise)
    assert where_positive(np.array([test]), value, otherwise).tolist() == [number]
    assert float(where_positive(X, Y, Z).subs({X: test, Y: value, Z: otherwise})) == pytest.approx(number)
    positive = sympy.Symbol("p", positive=True)
    assert where_positive(positive, value, otherwise) == value


def test_equal_symbols_are_one():
    assert maximum(X, X) == X
    assert maximum(X, 3).subs(X, 2) == 3
