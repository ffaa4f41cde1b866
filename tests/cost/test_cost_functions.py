"""What holds for every cost function: free where nothing is done, positive, monotone, without jumps, its unit told, and
the same number from floats, arrays and symbols. The table of them is tests/support/cost_functions.py."""

from __future__ import annotations

import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

import numpy as np
import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.sensitivity import compiled, symbol, trend
from tests.support.cost_functions import NOT_PRICES, Price
from tests.support.cost_functions import PRICES as PART_PRICES
from tests.support.cost_functions_transformer import STEP_PRICES
from tests.support.sampling import sampled

PRICES = (*PART_PRICES, *STEP_PRICES)
PRICED = (
    "cost_models.compute", "cost_models.collective", "cost_models.optimizers", "cost_models.offload",
    "cost_models.pipeline.bottleneck", "tests.oracles.pipeline_formulas", "tests.bench.closed_form.transformer",
)  # fmt: skip
WORDS = {
    "seconds": r"\b[Ss]econds\b",
    "bytes": r"[Bb]ytes\b",
    "FLOPs": r"\bFLOPs\b",
    "elements": r"\b([Ee]lements|[Tt]okens)\b",
    "share": r"\b(share|factor)\b",
}
MAY_BE_FREE = ("exposed_gradients_s", "bubble_fraction")
"""What something else may hide whole."""
few = settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
every = pytest.mark.parametrize("price", PRICES, ids=lambda price: price.name)
PARTS = ("layer_operators", "layer_passes", "stage_passes")
"""What a step is made of: each recipe's step has them, so that quick runs make formulas of two recipes' alone."""
WHOLE = [price for price in PRICES if price.name.split(", ")[0] not in PARTS or price.name.endswith(("mixture", "bit"))]
as_formulas = pytest.mark.parametrize("price", sampled(PRICES, WHOLE), ids=lambda price: price.name)


def public_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every public function of the modules that hold prices, where it is defined."""
    for top in PRICED:
        module = import_module(top)
        inside = pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}.")
        for found in (module, *(import_module(each.name) for each in inside)):
            for name, function in vars(found).items():
                if inspect.isfunction(function) and function.__module__ == found.__name__ and name[0] != "_":
                    yield f"{found.__name__.removeprefix('cost_models.')}.{name}", function


def point(price: Price, data: st.DataObject) -> list[float]:
    """Sizes of a call, over all orders of magnitude alike."""
    return [
        math.exp(data.draw(st.floats(math.log(low), math.log(high)), label=name)) for name, low, high in price.sizes
    ]


def pick(price: Price, data: st.DataObject) -> int:
    return data.draw(st.integers(0, len(price.sizes) - 1), label="size")


@cache
def formulas(price: Price) -> tuple[sympy.Expr, ...]:
    return tuple(sympy.sympify(each) for each in price.of(*(symbol(name) for name, *_ in price.sizes)))


@cache
def from_symbols(price: Price, smooth: bool = False) -> tuple[Callable[..., float], ...]:
    """The prices as functions that SymPy made of the formulas; smooth: without rounding up to whole tiles."""
    names = [symbol(name) for name, *_ in price.sizes]
    return tuple(compiled(trend(form) if smooth else form, names) for form in formulas(price))


def test_no_cost_function_is_missing_from_the_table() -> None:
    found, told = dict(public_functions()), {price.function for price in PRICES}
    assert len(found) > 50
    missing = [name for name, function in found.items() if function not in told and name not in NOT_PRICES]
    assert not missing, f"give tests/support/cost_functions.py a row for {missing}"
    assert not [name for name in NOT_PRICES if name not in found or found[name] in told]
    assert told <= set(found.values())


@every
def test_its_docstring_names_the_unit(price: Price) -> None:
    assert re.search(WORDS[price.unit], price.function.__doc__ or ""), f"{price.name}: no word of {price.unit}"


@every
@few
@given(data=st.data())
def test_positive_and_monotone(price: Price, data: st.DataObject) -> None:
    """Rising, or falling with what makes it faster, to rounding; not less than nothing."""
    low = point(price, data)
    place = pick(price, data)
    high = list(low)
    high[place] *= 1 + data.draw(st.floats(1e-3, 3), label="more")
    first, second = price.of(*low), price.of(*high)
    if price.sizes[place][0] in price.falls:
        first, second = second, first
    for less, more in zip(first, second, strict=True):
        assert 0 <= less <= more * (1 + 1e-12)
    assert sum(first) > 0 or price.function.__name__ in MAY_BE_FREE


@every
@few
@given(data=st.data())
def test_free_for_nothing_and_for_one_rank(price: Price, data: st.DataObject) -> None:
    values = point(price, data)
    names = [name for name, *_ in price.sizes]
    for name in price.nothing:
        none = [0.0 if each == name else value for each, value in zip(names, values, strict=True)]
        assert price.of(*none) == (0.0,) * len(price.of(*none)), name
        arrays = [np.array([value]) for value in none]
        assert not np.any(np.stack([np.broadcast_to(each, 1) for each in price.of(*arrays)])), name
    if price.alone is not None:
        assert price.alone(*values) == 0


@as_formulas
@few
@given(data=st.data())
def test_floats_arrays_and_symbols_give_one_number(price: Price, data: st.DataObject) -> None:
    assert_one_number(price, point(price, data), point(price, data))


@as_formulas
def test_the_ends_of_a_range_give_one_number(price: Price) -> None:
    """As drawn: exp(log(1e11)), an ulp above a whole number of blocks, was a block more of floats than of symbols."""
    assert_one_number(price, *([math.exp(math.log(size[at])) for size in price.sizes] for at in (1, 2)))


def assert_one_number(price: Price, values: list[float], others: list[float]) -> None:
    numbers = price.of(*values)
    assert all(isinstance(number, float | int) for number in numbers)
    arrays = price.of(*(np.array(pair) for pair in zip(values, others, strict=True)))
    assert [float(np.broadcast_to(each, 2)[0]) for each in arrays] == pytest.approx(numbers, rel=1e-9)
    assert [float(np.broadcast_to(each, 2)[1]) for each in arrays] == pytest.approx(price.of(*others), rel=1e-9)
    for at in (values, others):
        assert [float(function(*at)) for function in from_symbols(price)] == pytest.approx(price.of(*at), rel=1e-9)


@as_formulas
@few
@given(data=st.data())
def test_no_jump_where_the_choice_changes(price: Price, data: st.DataObject) -> None:
    """Over a fine grid of a size's whole range, prices next to each other are as near as the sizes are.

    Without the rounding up to whole tiles and blocks, whose steps are real; nothing else may have any. None grows
    faster than the cube of a size: the steepest are attention's square and what no longer fits in a cache. What is left
    of a price when something hides the rest (``MAY_BE_FREE``) begins at nothing: its steps are small beside its
    greatest.
    """
    values, place = point(price, data), pick(price, data)
    _, low, high = price.sizes[place]
    sizes = np.geomspace(low, high, 10_000)
    step = (sizes[1] / sizes[0]) ** 3 - 1
    for function in from_symbols(price, smooth=True):
        prices = np.abs(np.broadcast_to(function(*values[:place], sizes, *values[place + 1:]), sizes.shape))
        beside = np.maximum(prices[1:], prices[:-1])
        scale = beside.max() if price.function.__name__ in MAY_BE_FREE else beside
        assert np.all(np.abs(np.diff(prices)) <= step * scale * (1 + 1e-9))
