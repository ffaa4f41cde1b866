"""Where one recipe overtakes another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import sympy
from scipy.optimize import brentq

from cost_models.arithmetic import Number
from cost_models.sensitivity.expression import compiled

GRID = 600
"""Points at which the order is looked at; what changes and changes back between two of them goes unseen."""


@dataclass(frozen=True)
class Span:
    """From ``low`` to ``high`` the recipe ``name`` is the fastest."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Which of several recipes is the fastest, over a range of something that they depend on.

    spans  from the lower end to the upper
    unit   of what is varied: "tokens"
    """

    spans: tuple[Span, ...]
    unit: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """ "tensor parallel over 8 overtakes ZeRO-3 above 11k tokens"."""
        first = self.spans[0]
        if len(self.spans) == 1:
            return (f"{first.name} is the fastest from {rounded(first.low)} to {rounded(first.high)} {self.unit}",)
        pairs = pairwise(self.spans)
        return tuple(f"{b.name} overtakes {a.name} above {rounded(b.low)} {self.unit}" for a, b in pairs)


def crossings(
    first: Number,
    second: Number,
    by: sympy.Symbol,
    low: float,
    high: float,
    at: Mapping[sympy.Symbol, float] | None = None,
) -> tuple[float, ...]:
    """Values of ``by``, ascending, at which the order of two times changes: their difference is zero, or jumps over it.

    at  values of the other symbols
    """
    gap = _at(sympy.sympify(first) - sympy.sympify(second), by, at)
    values = _grid(low, high)
    signs = np.sign(gap(values) + np.zeros_like(values))
    known = np.flatnonzero(signs)                      # where they are equal, the order of before holds on
    turns = [(a, b) for a, b in pairwise(known) if signs[a] != signs[b]]
    return tuple(float(brentq(gap, values[a], values[b])) for a, b in turns)


def compare(
    recipes: Mapping[str, Number],
    by: sympy.Symbol,
    low: float,
    high: float,
    at: Mapping[sympy.Symbol, float] | None = None,
    unit: str = "",
) -> Comparison:
    """Which of the recipes, {name: time}, is the fastest where; ``unit`` names what ``by`` counts."""
    return Comparison(fastest(recipes, by, low, high, at), unit or str(by))


def fastest(
    recipes: Mapping[str, Number],
    by: sympy.Symbol,
    low: float,
    high: float,
    at: Mapping[sympy.Symbol, float] | None = None,
) -> tuple[Span, ...]:
    """The spans of ``by`` over which each recipe is the fastest, from ``low`` to ``high``; of equals the first."""
    names, values = list(recipes), _grid(low, high)
    times_s = np.stack([_at(recipes[name], by, at)(values) + np.zeros_like(values) for name in names])
    leads = times_s.argmin(axis=0)
    turns = np.flatnonzero(np.diff(leads))
    borders = [_border(recipes, [names[leads[n]], names[leads[n + 1]]], by, values[n:n + 2], at) for n in turns]
    lows, highs = [float(values[0]), *borders], [*borders, float(values[-1])]
    order = [names[leads[n]] for n in (*turns, len(values) - 1)]
    return tuple(Span(name, below, above) for name, below, above in zip(order, lows, highs, strict=True))


def _border(
    recipes: Mapping[str, Number],
    names: Sequence[str],
    by: sympy.Symbol,
    between: np.ndarray,
    at: Mapping[sympy.Symbol, float] | None,
) -> float:
    """Where the second overtakes the first; a value at which they are equal is the second's from there on."""
    found = crossings(recipes[names[0]], recipes[names[1]], by, float(between[0]), float(between[1]), at)
    return found[0] if found else float(between[1])


def _at(expression: Number, by: sympy.Symbol, at: Mapping[sympy.Symbol, float] | None) -> Callable[[Any], Any]:
    """The expression as a function of ``by`` alone."""
    others = dict(at or {})
    others.pop(by, None)
    price = compiled(expression, [by, *others])
    return lambda value: price(value, *others.values())


def _grid(low: float, high: float) -> np.ndarray:
    if not 0 < low < high:
        raise ValueError(f"from {low} to {high} is no range: give two positive ends, the lower first")
    return np.geomspace(low, high, GRID)


def rounded(value: float) -> str:
    """Two digits, thousands as k, M or G: 11k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.995 * size:
            return f"{_two_digits(value / size)}{letter}"
    return _two_digits(value)


def _two_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"
