"""Sizes that follow the inputs': which literals of a program are what multiple of a row or a token, and how they read.

The typed program is lowered at several sizes. A literal that is the same in all of them is a constant; one that differs
is a formula of the sizes of the tensors that enter (``Names.text``), or nothing is said of it. So it is told by
how a literal moves, never by what number it is.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any, TypeVar

from autoplan.ir.mesh import MICROBATCH, MICROBATCHES
from autoplan.ir.typed_program import Lowered

Vector = tuple[int, ...]
Found = TypeVar("Found")
APART = frozenset(
    "type layout strategies segments parameters forward_bytes backward_bytes stride recompute selective "
    "offloaded".split()
)
"""Fields that no line is printed from, or that no size of the batch moves."""


class UnsizedError(Exception):
    """A literal that differs between sizes, and is no formula of the entering tensors' sizes."""


class Size(int):
    """A literal that differs between sizes. As an int, and printed, it is the planned one.

    values  at every size that was lowered, the planned one first
    """

    values: Vector

    @staticmethod
    def of(values: Sequence[int]) -> "Size":
        size = Size(values[0])
        size.values = tuple(values)
        return size


@dataclass(frozen=True)
class Sized:
    """A typed program at one size.

    rows    of the whole batch
    tokens  in a row; 1 where the model reads none
    """

    lowered: Lowered
    rows: int
    tokens: int

    @property
    def microbatches(self) -> int:
        return self.lowered.mesh.size(MICROBATCH)


def together(programs: Sequence[Sized]) -> Lowered:
    """The first program, with a ``Size`` for each literal that isn't the same in all. UnsizedError where they differ in
    anything else."""
    return joined([sized.lowered for sized in programs], "the program")


def joined(values: Sequence[Any], where: str) -> Any:
    one = values[0]
    if any(type(value) is not type(one) for value in values):
        raise UnsizedError(f"{where} is of several kinds")
    if isinstance(one, int) and not isinstance(one, bool):
        return one if len(set(values)) == 1 else Size.of(values)
    if isinstance(one, tuple):
        if len({len(value) for value in values}) > 1:
            raise UnsizedError(f"{where} has {', '.join(str(len(value)) for value in values)} parts")
        parts = (joined(each, named(each[0], where)) for each in zip(*values, strict=True))
        return tuple(parts)
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one) if field.name not in APART]
        return replace(one, **{name: joined([getattr(v, name) for v in values], where) for name in names})
    if any(value != one for value in values):
        raise UnsizedError(f"{where} is {' or '.join(dict.fromkeys(map(str, values)))}")
    return one


def named(value: Any, where: str) -> str:
    """What an error calls a part: a statement by its value."""
    return getattr(getattr(value, "value", None), "name", None) or where


class Names:
    """The sizes that one function reads off what enters it, and literals in their words.

    programs   at which literals are told
    entering   (name, shape) of each tensor that enters, shapes with ``Size`` where they differ
    """

    def __init__(self, programs: Sequence[Sized], entering: Sequence[tuple[str, Sequence[int]]]) -> None:
        self.microbatches = tuple(p.microbatches for p in programs)
        self.rows = tuple(p.rows // p.microbatches for p in programs)
        self.tokens = tuple(p.tokens for p in programs)
        self.places: dict[Vector, tuple[str, int]] = {}
        for name, shape in entering:
            for dim, size in enumerate(shape):
                if isinstance(size, Size):
                    self.places.setdefault(size.values, (name, dim))
        self.words: dict[Vector, str] = {}
        for vector in self.places:
            base = self.word(vector)
            taken = self.words.values()
            self.words[vector] = base if base not in taken else f"{base}_{len(self.words) + 1}"
        self.used: set[Vector] = set()

    def word(self, vector: Vector) -> str:
        """b for rows, s for tokens, n for their product or anything else."""
        return "b" if proportional(vector, self.rows) else "s" if proportional(vector, self.tokens) else "n"

    def __call__(self, size: Size) -> str:
        """The literal as source. UnsizedError where it is no formula of what enters."""
        v = size.values
        if len(set(self.microbatches)) > 1 and proportional(v, self.microbatches):
            factor = v[0] // self.microbatches[0]
            return MICROBATCHES if factor == 1 else f"{factor} * {MICROBATCHES}"
        for needs, text in self.formulas(v):
            self.used.update(needs)
            return text
        raise UnsizedError(f"a size of {int(size)}")

    def formulas(self, v: Vector) -> Iterator[tuple[tuple[Vector, ...], str]]:
        """The formulas that give a literal at every size, the simplest first."""
        for count in (1, 2):
            for needs in combinations_with_replacement(self.words, count):
                product = tuple(math.prod(sizes) for sizes in zip(*needs, strict=True))
                words = " * ".join(self.words[each] for each in needs)
                if proportional(v, product):
                    share = Fraction(v[0], product[0])
                    times = f"{share.numerator} * " if share.numerator > 1 else ""
                    yield needs, f"{times}{words}" + (f" // {share.denominator}" if share.denominator > 1 else "")
        for one, word in self.words.items():
            if (line := straight(one, v)) is not None:
                factor, more = line
                times = word if factor == 1 else f"{factor} * {word}"
                yield (one,), f"{times} {'-' if more < 0 else '+'} {abs(more)}"

    def lines(self, indent: int) -> list[str]:
        """What reads the sizes that the texts name."""
        found, left = [], [v for v in self.places if v in self.used]
        while left:
            name, dim = self.places[left[0]]
            second = next((v for v in left if self.places[v] == (name, 1)), None) if dim == 0 else None
            if second is not None:
                found.append(f"{self.words[left[0]]}, {self.words[second]} = {name}.shape[:2]")
                left = [v for v in left[1:] if v != second]
            else:
                found.append(f"{self.words[left[0]]} = {name}.shape[{dim}]")
                left = left[1:]
        return [" " * indent + line for line in found]


def proportional(one: Vector, other: Vector) -> bool:
    return all(x * other[0] == y * one[0] for x, y in zip(one, other, strict=True))


def straight(x: Vector, y: Vector) -> tuple[int, int] | None:
    """(factor, more) of y = factor * x + more, in whole numbers; None where it is no line."""
    place = next(i for i, value in enumerate(x) if value != x[0])
    factor, rest = divmod(y[place] - y[0], x[place] - x[0])
    more = y[0] - factor * x[0]
    holds = not rest and factor > 0 and all(factor * a + more == b for a, b in zip(x, y, strict=True))
    return (factor, more) if holds else None
