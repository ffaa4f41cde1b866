"""Draws of Python's random whose number doesn't matter: ``random.uniform(0, 1) < self.layerdrop``, with no layer
dropped.

A draw stands for all numbers of its range while a model is traced. A comparison that comes out alike for all of them
is that; whatever else forward does with a draw would stay as it was in the first step, and is refused.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from autoplan.errors import TraceError

REMEDY = "draw by dropout, rand_like, randn_like or bernoulli of a tensor, or hand the numbers in with the batch"
USES = (
    "abs add bool ceil divmod eq float floor floordiv format hash index int mod mul ne neg pos pow radd rdivmod "
    "rfloordiv rmod rmul round rpow rsub rtruediv str sub truediv trunc"
).split()


def refused(source: str, owner: str) -> TraceError:
    cause = f"its forward draws from {source}, and the program would repeat one draw in every step"
    return TraceError(owner, cause, REMEDY)


class Draw:
    """Every number from ``low`` on and below ``high``; not the latter itself."""

    def __init__(self, low: float, high: float, owner: str) -> None:
        self.low, self.high, self.owner = low, high, owner

    def compared(self, *, below: bool, above: bool) -> bool:
        """Whether all are below what they are compared with, or none."""
        if below == above:
            raise refused("random", self.owner)
        return below

    def __lt__(self, other: float) -> bool:
        return self.compared(below=self.high <= other, above=self.low >= other)

    def __le__(self, other: float) -> bool:
        return self.compared(below=self.high <= other, above=self.low > other)

    def __gt__(self, other: float) -> bool:
        return not self <= other

    def __ge__(self, other: float) -> bool:
        return not self < other


def use(draw: Draw, *_: object) -> object:
    raise refused("random", draw.owner)


for _name in USES:
    setattr(Draw, f"__{_name}__", use)


@contextmanager
def drawing(owner: str) -> Iterator[None]:
    """Within it, what Python's random draws from a range is a Draw. ``owner``: whose forward runs."""

    def unit() -> Draw:
        return Draw(0.0, 1.0, owner)

    def uniform(a: float, b: float) -> object:
        return Draw(a, b, owner) if a < b else drawn(a, b)

    drawn: Callable[[float, float], float] = random.uniform
    with patch.object(random, "random", unit), patch.object(random, "uniform", uniform):
        yield
