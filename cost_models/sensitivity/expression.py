"""Expressions: read, compiled, and freed of what is not smooth.

Sizes are cut into whole tiles that run in whole waves, so that a price has steps, where a slope is zero or infinite and
tells nothing. Closed forms and slopes are therefore those of the ``trend``, without the rounding up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import sympy
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.printing.numpy import NumPyPrinter

from cost_models.arithmetic import ROUNDING, Number, maximum, minimum


def symbol(name: str) -> sympy.Symbol:
    """A symbol for a size, a count, a bandwidth: something positive."""
    return sympy.Symbol(name, positive=True)


class Chosen(sympy.Expr):
    """(condition, value, otherwise): SymPy's Piecewise, which it resembles, simplifies itself for minutes."""

    def __new__(cls, condition: Any, value: Any, otherwise: Any) -> Chosen:
        return super().__new__(cls, sympy.sympify(condition), sympy.sympify(value), sympy.sympify(otherwise))


def folded(expression: sympy.Basic, visit: Callable[[sympy.Basic, tuple[Any, ...]], Any]) -> Any:
    """``visit(node, results of its arguments)`` from the leaves up, once for each distinct node."""
    results: dict[sympy.Basic, Any] = {}

    def fold(node: sympy.Basic) -> Any:
        if node not in results:
            results[node] = visit(node, tuple(fold(argument) for argument in node.args))
        return results[node]

    return fold(sympy.sympify(expression))


def rebuilt_as(node: sympy.Basic, arguments: tuple[Any, ...]) -> Any:
    """The node over other arguments, which are not compared to simplify it: that would take minutes."""
    if arguments == node.args:
        return node
    if isinstance(node, Relational | sympy.Piecewise):
        return node.func(*arguments, evaluate=False)
    if isinstance(node, sympy.Max | sympy.Min):
        return (maximum if isinstance(node, sympy.Max) else minimum)(*arguments)
    return node.func(*arguments)


def trend(expression: Number) -> sympy.Expr:
    """Without rounding up: what is left is continuous, and no more than the expression."""
    return folded(
        expression, lambda node, args: args[0] if isinstance(node, sympy.ceiling) else rebuilt_as(node, args)
    )


def regime(expression: Number, at: Mapping[sympy.Symbol, float]) -> sympy.Expr:
    """The expression that the trend is around the point ``at``: of each maximum, minimum and case the one that holds.

    A ``ValueError`` where the point lacks a symbol.
    """

    def visit(node: sympy.Basic, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        if not arguments:
            return at.get(node, node), node
        values, forms = zip(*arguments, strict=True)
        value = node.func(*values)
        if isinstance(node, sympy.Max | sympy.Min):
            return value, forms[values.index(value)]
        if isinstance(node, sympy.Piecewise):
            return value, next(form for held, form in zip(values, forms, strict=True) if held[1] == True)[0]  # noqa: E712
        if isinstance(node, ExprCondPair):
            return values, forms
        return value, rebuilt_as(node, forms)

    smooth = trend(expression)
    check_complete(smooth, at)
    return folded(smooth, visit)[1]


def check_complete(expression: sympy.Expr, at: Mapping[sympy.Symbol, float]) -> None:
    missing = sorted(str(each) for each in expression.free_symbols - set(at))
    if missing:
        raise ValueError(f"no value for {', '.join(missing)}: give each symbol one, as in {{sequence: 4096}}")


def closed_form(
    expression: Number, at: Mapping[sympy.Symbol, float] | None = None, digits: int = 3
) -> sympy.Expr:
    """The trend as a formula to be read, figures rounded to ``digits``.

    at  a point: then the formula that holds around it, a sum of terms instead of maxima over what might be
    """
    form = trend(expression) if at is None else sympy.expand(regime(expression, at))
    figures = {figure: sympy.Float(figure, digits) for figure in form.atoms(sympy.Float)}
    return folded(form, lambda node, args: figures.get(node, node) if not args else rebuilt_as(node, args))


def compiled(expression: Number, symbols: Sequence[sympy.Symbol]) -> Callable[..., Any]:
    """A function of the symbols' values, numbers or arrays that broadcast: prices thousands of points at once.

    The same as the cost function itself called with numbers, to rounding.
    """
    form = sympy.sympify(expression)
    missing = sorted(str(each) for each in form.free_symbols - set(symbols))
    if missing:
        raise ValueError(f"the expression also depends on {', '.join(missing)}: name every symbol")
    printer = _Printer({"fully_qualified_modules": False, "inline": True, "allow_unknown_functions": True})
    function = sympy.lambdify(list(symbols), form, modules="numpy", printer=printer, cse=_shared)

    def priced(*values: Any) -> Any:
        return function(*(np.asarray(value, dtype=float) if np.ndim(value) else float(value) for value in values))

    return priced


class _Printer(NumPyPrinter):
    """NumPy code that broadcasts; SymPy's own asks for operands of one shape and simplifies conditions for seconds."""

    def _print_Max(self, node: sympy.Max) -> str:
        return self._nested("maximum", node.args)

    def _print_Min(self, node: sympy.Min) -> str:
        return self._nested("minimum", node.args)

    def _nested(self, function: str, arguments: Sequence[sympy.Basic]) -> str:
        return reduce(lambda code, argument: f"{function}({code}, {self._print(argument)})", arguments[1:],
                      self._print(arguments[0]))

    def _print_Chosen(self, node: Chosen) -> str:
        return f"where({', '.join(self._print(part) for part in node.args)})"

    def _print_ceiling(self, node: sympy.ceiling) -> str:
        """To rounding, as ``cost_models.arithmetic.ceil``."""
        value = self._print(node.args[0])
        return f"ceil({value} - {ROUNDING} * abs({value}))"

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        """The last case stands for all that the others leave."""
        code = self._print(node.args[-1][0])
        for value, condition in reversed(node.args[:-1]):
            code = f"where({self._print(condition)}, {self._print(value)}, {code})"
        return code


def _shared(expression: sympy.Basic) -> tuple[list[tuple[sympy.Symbol, Any]], Any]:
    """What ``sympy.cse`` finds, but by identity alone: every node that is used more than once gets a name."""
    uses: Counter[sympy.Basic] = Counter()
    folded(expression, lambda node, _: uses.update(node.args))
    named: list[tuple[sympy.Symbol, Any]] = []

    def visit(node: sympy.Basic, arguments: tuple[Any, ...]) -> Any:
        rebuilt = rebuilt_as(node, arguments)
        if uses[node] < 2 or not arguments or not isinstance(node, sympy.Expr):
            return rebuilt
        named.append((sympy.Dummy(f"x{len(named)}"), rebuilt))
        return named[-1][0]

    return named, folded(expression, visit)
