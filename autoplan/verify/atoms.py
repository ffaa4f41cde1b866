"""Which dims of a model must change together when its sizes shrink.

Each dim of each value is a product of *atoms*, outermost first: a view that splits 8192 into 64 heads of 128 splits its
atom. Operators equate atoms as their rules say. A dim may also be an atom plus an offset: labels padded by one column.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Dim:
    """A product of atoms, plus an offset. A dim of size one has no atoms."""

    atoms: tuple[int, ...] = ()
    offset: int = 0


class Atoms:
    """A union-find whose members can be split into factors."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.parents: list[int] = []
        self.parts: dict[int, tuple[int, ...]] = {}
        self.frozen: set[int] = set()

    def new(self, size: int) -> tuple[int, ...]:
        """A fresh atom of that size; none for a size of one."""
        if size == 1:
            return ()
        self.sizes.append(size)
        self.parents.append(len(self.parents))
        return (len(self.parents) - 1,)

    def find(self, atom: int) -> int:
        while self.parents[atom] != atom:
            atom = self.parents[atom]
        return atom

    def flat(self, atoms: Iterable[int]) -> list[int]:
        """The indivisible atoms that these stand for."""
        found: list[int] = []
        for atom in map(self.find, atoms):
            found += self.flat(self.parts[atom]) if atom in self.parts else [atom]
        return found

    def equate(self, one: Dim, other: Dim) -> None:
        """Both dims are the same: their atoms are joined, the larger split where they don't match."""
        if one.offset != other.offset:
            self.freeze(one)
            self.freeze(other)
            return
        left, right = self.flat(one.atoms), self.flat(other.atoms)
        while left and right:
            a, b = self.find(left.pop(0)), self.find(right.pop(0))
            if a == b:
                continue
            if self.sizes[a] == self.sizes[b]:
                self.join(a, b)
            elif self.sizes[a] % self.sizes[b] == 0:
                left = [*self.split(a, b), *left]
            elif self.sizes[b] % self.sizes[a] == 0:
                right = [*self.split(b, a), *right]
            else:
                self.freeze(Dim((a, b, *left, *right)))
                return

    def join(self, a: int, b: int) -> None:
        self.parents[a] = b
        if a in self.frozen:
            self.frozen.add(b)

    def split(self, atom: int, outer: int) -> list[int]:
        """Splits an atom into one like ``outer`` and the rest; returns what remains to be matched."""
        rest = self.new(self.sizes[atom] // self.sizes[outer])
        self.parts[atom] = (outer, *rest)
        if atom in self.frozen:
            self.freeze(Dim((outer, *rest)))
        return list(rest)

    def freeze(self, dim: Dim) -> None:
        """These keep their sizes."""
        self.frozen |= set(self.flat(dim.atoms))

    def is_frozen(self, atom: int) -> bool:
        return any(self.find(frozen) == atom for frozen in self.frozen)

    def size(self, dim: Dim, sizes: dict[int, int]) -> int:
        """The dim's size when each indivisible atom has the size given, its own where none is."""
        return math.prod(sizes.get(atom, self.sizes[atom]) for atom in self.flat(dim.atoms)) + dim.offset
