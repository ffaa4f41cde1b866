"""Slopes and elasticities of a price."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import Boolean

from cost_models.arithmetic import Number
from cost_models.hardware import Topology
from cost_models.sensitivity.expression import Chosen, check_complete, compiled, folded, rebuilt_as, trend


@dataclass(frozen=True)
class Sensitivity:
    """How a time changes with one of what it depends on, the others kept.

    value       of the symbol
    seconds     the trend's time there
    slope       d(seconds)/d(symbol)
    elasticity  per cent of time for a per cent of the symbol: -1 where the time is all of it, 0 where it is none
    """

    symbol: str
    value: float
    seconds: float
    slope: float
    elasticity: float

    def __str__(self) -> str:
        """ "1% more network bandwidth: 0.31% less time"."""
        if abs(self.elasticity) < 0.005:
            return f"1% more {self.symbol}: the same time"
        return f"1% more {self.symbol}: {abs(self.elasticity):.2f}% {'more' if self.elasticity > 0 else 'less'} time"


def with_bandwidth(topology: Topology, level: int, factor: Number) -> Topology:
    """The topology with ``factor`` times the bandwidth on one level, innermost 0; a symbol gives its sensitivity."""
    levels = tuple(
        dataclasses.replace(each, link=each.link.scaled(factor)) if place == level else each
        for place, each in enumerate(topology.levels)
    )
    return dataclasses.replace(topology, levels=levels)


def sensitivities(expression: Number, at: Mapping[sympy.Symbol, float]) -> tuple[Sensitivity, ...]:
    """What each symbol of the expression is worth at a point, the most important first.

    A ``ValueError`` where the point lacks a symbol.
    """
    form = trend(expression)
    check_complete(form, at)
    symbols = sorted(form.free_symbols, key=str)
    point = [at[each] for each in symbols]
    seconds = float(compiled(form, symbols)(*point))
    slopes = [float(compiled(derivative(form, each), symbols)(*point)) for each in symbols]
    found = [
        Sensitivity(str(each), float(at[each]), seconds, slope, slope * at[each] / seconds)
        for each, slope in zip(symbols, slopes, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.elasticity)))


def derivative(expression: Number, by: sympy.Symbol) -> sympy.Expr:
    """The trend's slope, for numbers and arrays alike (``compiled``).

    At a kink, where two sides of a maximum or minimum are equal, the slope of the first.
    """

    def visit(node: sympy.Basic, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        if not arguments:
            return node, sympy.Integer(1 if node == by else 0)
        forms, slopes = zip(*arguments, strict=True)
        if isinstance(node, Relational | Boolean):
            return rebuilt_as(node, forms), None
        if isinstance(node, ExprCondPair):
            return rebuilt_as(node, forms), (slopes[0], forms[1])
        return rebuilt_as(node, forms), _slope(node, forms, slopes)

    return folded(trend(expression), visit)[1]


def _slope(node: sympy.Basic, forms: tuple[Any, ...], slopes: tuple[Any, ...]) -> Any:
    """The slope of one operation over arguments with these slopes."""
    if isinstance(node, sympy.Piecewise):
        return _cases(slopes)
    if all(slope == 0 for slope in slopes):
        return sympy.Integer(0)
    if isinstance(node, sympy.Add):
        return sympy.Add(*slopes)
    if isinstance(node, sympy.Mul):
        return sympy.Add(
            *(slope * sympy.Mul(*forms[:i], *forms[i + 1:]) for i, slope in enumerate(slopes) if slope != 0)
        )
    if isinstance(node, sympy.Pow):
        base, exponent = forms
        return exponent * base ** (exponent - 1) * slopes[0] + (sympy.log(base) * node * slopes[1] if slopes[1] else 0)
    if isinstance(node, sympy.log):
        return slopes[0] / forms[0]
    if isinstance(node, sympy.Max | sympy.Min):
        return _of_the_extreme(node, forms, slopes)
    raise TypeError(f"no slope is known of {type(node).__name__}: write its price with the functions of arithmetic")


def _of_the_extreme(node: sympy.Basic, forms: tuple[Any, ...], slopes: tuple[Any, ...]) -> Any:
    """The slope of the argument that is the greatest, or the least."""
    extreme = rebuilt_as(node, forms)
    holds = [sympy.Eq(form, extreme, evaluate=False) for form in forms]
    return _cases(tuple(zip(slopes, holds, strict=True)))


def _cases(pairs: tuple[tuple[Any, Any], ...]) -> Any:
    """Slopes by condition, the last where none before holds; one slope where all are the same."""
    chosen = pairs[-1][0]
    for slope, holds in reversed(pairs[:-1]):
        chosen = slope if slope == chosen else Chosen(holds, slope, chosen)
    return chosen
