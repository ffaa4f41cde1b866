"""Gradients of the rows of tables that were looked up, beside which nothing of a table's size is made.

Of each box of tables (``ir.tables``) that a rank has, the rows that a step looked up, each once, and their gradients.
They are in the place of the flat parameter's ``.grad``, which stays None. torch's own sparse gradient would name each
element of the flat parameter, with eight bytes beside its four.

How many rows a step looks up follows from its values. Yet these have as many as there are indices, or as the box has
rows if that is less: rows that weren't looked up fill it, with gradients of zero. So no size depends on values, no
accelerator is waited for, and an update by them must be none where a gradient is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autoplan.ir.tables import CACHED, LOOKUPS, SPARSE, Cached
from autoplan.ir.typed_program import Compute, Lowered
from autoplan.runtime.collectives.mesh_axes import MeshAxis

ATTRIBUTE = "row_gradients"


@dataclass(frozen=True)
class BoxGradient:
    """Of a box of so many rows: rows [k], each once, and the gradients of their elements, values [k, columns]."""

    count: int
    rows: Tensor
    values: Tensor

    def __add__(self, other: BoxGradient) -> BoxGradient:
        """What stands in either."""
        rows, slots = distinct(torch.cat([self.rows, other.rows]), self.count)
        values = self.values.new_zeros(len(rows), self.values.shape[1])
        for each, places in zip((self, other), slots.split([len(self.rows), len(other.rows)]), strict=True):
            values.index_add_(0, places, each.values)
        return BoxGradient(self.count, rows, values)


class RowGradients:
    """Of one flat parameter on this rank.

    boxes  by the first element of each here
    axis   over whose ranks the tables are placed: all of them look the same rows up; None: nothing came yet
    """

    def __init__(self) -> None:
        self.boxes: dict[int, BoxGradient] = {}
        self.axis: MeshAxis | None = None

    def add(self, start: int, found: BoxGradient) -> None:
        """A backward's gradient of a box."""
        known = self.boxes.get(start)
        self.boxes[start] = found if known is None else known + found

    def put(self, boxes: Mapping[int, BoxGradient]) -> None:
        """Those of earlier batches."""
        for start, found in boxes.items():
            self.add(start, found)

    def aside(self) -> Mapping[int, BoxGradient]:
        """What is there, which is then there no more."""
        boxes, self.boxes = self.boxes, {}
        return boxes

    def clear(self) -> None:
        self.boxes = {}

    @property
    def values(self) -> Iterator[Tensor]:
        """[k, columns] of each box, to read or to write in place."""
        return (each.values for each in self.boxes.values())

    def elements(self) -> Tensor:
        """Where the elements of ``flattened`` lie in the flat parameter, no place twice."""
        found = []
        for start, each in self.boxes.items():
            columns = each.values.shape[1]
            within = torch.arange(columns, device=each.rows.device)
            found.append((start + each.rows[:, None] * columns + within).reshape(-1))
        return torch.cat(found)

    def flattened(self) -> Tensor:
        """All boxes' values one after another."""
        return torch.cat([values.reshape(-1) for values in self.values])

    def whole(self, like: Tensor) -> Tensor:
        """The gradient of the flat parameter, as large as it."""
        found = torch.zeros_like(like)
        if not self.boxes:
            return found
        return found.index_copy_(0, self.elements().to(like.device), self.flattened().to(like.device))


def rows_of(parameter: Tensor) -> RowGradients | None:
    """Where the gradients of a parameter's rows are; None where it has one of its own size."""
    return getattr(parameter, ATTRIBUTE, None)


def keep_rows(parameter: Tensor) -> None:
    """Has a parameter's gradients be rows from here on."""
    setattr(parameter, ATTRIBUTE, RowGradients())


def kept_by_rows(lowered: Lowered) -> frozenset[str]:
    """The parameters that the program looks up with gradients of rows: none that is summed over other ranks."""
    alone = {p.name for p in lowered.parameters if not p.reduce_axes and len(p.stages) == 1}
    return frozenset({name for name, how in looked_up_by(lowered) if how.get(SPARSE)} & alone)


def cached_tables(lowered: Lowered) -> dict[str, Cached]:
    """The parameters that lie off the device, which has a cache of their rows."""
    each = ((name, Cached.of(how.get(CACHED))) for name, how in looked_up_by(lowered))
    return {name: cached for name, cached in each if cached is not None}


def looked_up_by(lowered: Lowered) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Of each look-up in placed tables the parameter, and its keywords."""
    for segment in lowered.segments:
        block = lowered.blocks[segment.block]
        names = dict(zip((p.name for p in block.parameters), segment.parameters, strict=True))
        computed = (s for s in block.body if isinstance(s, Compute) and s.op == LOOKUPS)
        yield from ((names[s.reads[0]], dict(s.kwargs)) for s in computed)


def distinct(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """rows [n] of ``count`` that there are -> (min(n, count) rows, none twice, each given one among them; which of
    these each given one is). Where fewer were given, the first of those that weren't fill it."""
    size = rows.numel()
    if size >= count:
        return torch.arange(count, device=rows.device, dtype=rows.dtype), rows
    ordered, order = rows.sort()
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    numbers = begins.cumsum(0) - 1
    slots = torch.empty_like(numbers).scatter_(0, order, numbers)
    first = torch.arange(size, device=rows.device, dtype=rows.dtype)
    near = torch.searchsorted(ordered, first).clamp(max=size - 1)
    fills = ordered[near] != first
    places = fills.cumsum(0) + numbers[-1:]  # behind the given ones
    found = rows.new_empty(size + 1).scatter_(0, numbers, ordered)
    found.scatter_(0, torch.where(fills, places, size).clamp(max=size), first)  # one more takes what is too many
    return found[:size], slots
