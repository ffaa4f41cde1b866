"""MindSpore's rule: a greedy over the dims of a tensor map, in which each dim is split by one axis at most.

Round after round, until every dim is as wanted:

1. split each dim that is whole and whose axis is free;
2. move each axis that another dim still holds to the whole dim that wants it, by an all-to-all ("permute"); where
   all-to-all is off, which is the default, by an all-gather and a split; then start again from 1;
3. when neither is possible, gather each axis that no dim wants;
4. when that isn't possible either, every axis left is in a cycle: gather the first dim.

A dim split by several axes is a dim reshaped into several, each split by one; both layouts are brought to the same
shape. Described in the MindSpore documentation and in mindspore/ccsrc/frontend/parallel/tensor_layout:
redistribution_operator_infer, redistribution_layout_transfer and, for the prices, tensor_redistribution.
"""

from __future__ import annotations

from fractions import Fraction

from autoplan.redistribution.exchange.boxes import Dims
from tests.bench.rivals.steps import Sizes, Step, gather, received, slice_, swap, walk


def plan(source: Dims, target: Dims, all_to_all: bool = True) -> tuple[Step, ...]:
    """The steps between two layouts in which no dim is split by more than one axis (``refined`` brings others there).

    all_to_all  MindSpore's switch ``enable_alltoall``; False is its default
    """
    rounds = _Rounds(source, target, all_to_all)
    while rounds.pending():
        while rounds.split() | rounds.permute():
            pass
        if rounds.pending() and not rounds.concat():
            rounds.give_up()
    return tuple(rounds.steps)


def refined(source: Dims, target: Dims, sizes: Sizes) -> tuple[Dims, Dims]:
    """The two layouts over dims that are cut so that each is split by one axis at most.

    ValueError where the axes that cut a dim, one by one from the outermost, differ in size: the axes then want refining
    too, which meshes of one prime never need.
    """
    parts: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for here, there in zip(source, target, strict=True):
        if any(sizes[a] != sizes[b] for a, b in zip(here, there, strict=False)):
            raise ValueError(f"{here} and {there} cut a dim into other sizes")
        for place in range(max(len(here), len(there), 1)):
            parts.append((here[place : place + 1], there[place : place + 1]))
    return tuple(part[0] for part in parts), tuple(part[1] for part in parts)


def refined_shape(shape: tuple[int, ...], source: Dims, target: Dims, sizes: Sizes) -> tuple[int, ...]:
    """The tensor's shape over these dims: each cut by the axes that split it on either side."""
    found: list[int] = []
    for length, here, there in zip(shape, source, target, strict=True):
        for axis in max(here, there, key=len)[:-1]:
            found.append(sizes[axis])
            length //= sizes[axis]
        found.append(length)
    return tuple(found)


def first_slice_price(source: Dims, steps: tuple[Step, ...], sizes: Sizes) -> Fraction:
    """The bytes of a plan as MindSpore's cost model sees them: each step as large as if it were taken at the start,
    because the slice that a step starts from is not updated where only the price is wanted. A share of the tensor."""
    return sum((received(source, step, sizes) for step in steps), Fraction(0))


def true_price(source: Dims, steps: tuple[Step, ...], sizes: Sizes) -> Fraction:
    """The bytes that these steps move."""
    return sum((received(dims, step, sizes) for dims, step in walk(source, steps)), Fraction(0))


class _Rounds:
    """The axis that splits each dim now, the one that is to split it, and the steps so far."""

    def __init__(self, source: Dims, target: Dims, all_to_all: bool):
        if any(len(axes) > 1 for axes in (*source, *target)):
            raise ValueError(f"{source} or {target} splits a dim by several axes")
        self.now = [next(iter(axes), "") for axes in source]
        self.wanted = [next(iter(axes), "") for axes in target]
        self.all_to_all = all_to_all
        self.steps: list[Step] = []

    def pending(self) -> list[int]:
        return [dim for dim, axis in enumerate(self.now) if axis != self.wanted[dim]]

    def split(self) -> bool:
        """1. Whole dims whose axis is free."""
        ready = [dim for dim in self.pending() if not self.now[dim] and self.wanted[dim] not in self.now]
        for dim in ready:
            self.now[dim] = self.wanted[dim]
            self.steps.append(slice_(dim, self.wanted[dim]))
        return bool(ready)

    def permute(self) -> bool:
        """2. Whole dims whose axis another dim holds, until there are none."""
        before = len(self.steps)
        while ready := [dim for dim in self.pending() if not self.now[dim] and self.wanted[dim] in self.now]:
            dim = ready[0]
            axis, holder = self.wanted[dim], self.now.index(self.wanted[dim])
            self.steps += [swap(holder, dim, axis)] if self.all_to_all else [gather(holder, axis), slice_(dim, axis)]
            self.now[holder], self.now[dim] = "", axis
        return len(self.steps) > before

    def concat(self) -> bool:
        """3. Axes that no dim wants."""
        unwanted = [dim for dim in self.pending() if self.now[dim] and self.now[dim] not in self.wanted]
        for dim in unwanted:
            self._gather(dim)
        return bool(unwanted)

    def give_up(self) -> None:
        """4. The first dim of a cycle."""
        self._gather(self.pending()[0])

    def _gather(self, dim: int) -> None:
        self.steps.append(gather(dim, self.now[dim]))
        self.now[dim] = ""
