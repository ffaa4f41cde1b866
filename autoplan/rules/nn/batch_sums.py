"""Sums over the rows of the batch that a loss doesn't merely add up: a load-balancing loss multiplies two of them.

Where the batch is split over ranks such a sum is partial. ``batch_total`` makes it whole there, ``batch_part`` makes a
whole value a summand again, to be added to the rest of the loss. On one rank both give back what they get.
"""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import I, P, R
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


@rule("autoplan.batch_total")
def batch_total(x: TensorType) -> Rule:
    """Of what carries a gradient."""
    reduced = AxisStrategy((P,), I, body="batch_total", communicates=True)
    return Rule(f"{letters(x)} -> {letters(x)}", extra=(reduced,))


@rule("autoplan.batch_count")
def batch_count(x: TensorType) -> Rule:
    """Of what carries none."""
    reduced = AxisStrategy((P,), R, body="batch_count", communicates=True)
    return Rule(f"{letters(x)} -> {letters(x)}", extra=(reduced,))


@rule("autoplan.batch_part")
def batch_part(x: TensorType) -> Rule:
    part = AxisStrategy((I,), P, body="batch_part", communicates=True)
    return Rule(f"{letters(x)} -> {letters(x)}", extra=(part,))
