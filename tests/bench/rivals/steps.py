"""The steps that every engine has in common, and the bytes they move.

Slices, all-gathers and all-to-alls over one axis or several, at the innermost places of a dim. Sizes divide, so that
all devices receive the same and one figure describes a step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from autoplan.ir.typed_program import Collective
from autoplan.redistribution.exchange.boxes import Dims, boxes, intersections, volumes

Sizes = Mapping[str, int]
"""The size of each axis of the mesh, outermost first."""


@dataclass(frozen=True)
class Step:
    """op is "slice", "all-gather" or "all-to-all"; ``dims`` are the dim, or the one given up and the one taken on;
    ``axes`` the group's, outermost first, in the order in which they split the dim."""

    op: str
    dims: tuple[int, ...]
    axes: tuple[str, ...]


def slice_(dim: int, *axes: str) -> Step:
    return Step("slice", (dim,), axes)


def gather(dim: int, *axes: str) -> Step:
    return Step("all-gather", (dim,), axes)


def swap(source: int, target: int, *axes: str) -> Step:
    return Step("all-to-all", (source, target), axes)


def after(dims: Dims, step: Step) -> Dims:
    """Where a step leads; ValueError where the axes aren't the innermost ones of the dim that gives them up."""
    split = list(dims)
    if step.op != "slice":
        given_up = split[step.dims[0]]
        if given_up[-len(step.axes) :] != step.axes:
            raise ValueError(f"{step} does not start from {dims}")
        split[step.dims[0]] = given_up[: -len(step.axes)]
    if step.op != "all-gather":
        if any(axis in axes for axes in split for axis in step.axes):
            raise ValueError(f"{step} does not start from {dims}: an axis is in use")
        split[step.dims[-1]] += step.axes
    return tuple(split)


def held(dims: Dims, sizes: Sizes) -> Fraction:
    """The share of the tensor that one device holds."""
    return Fraction(1, math.prod(sizes[axis] for axes in dims for axis in axes))


def received(dims: Dims, step: Step, sizes: Sizes) -> Fraction:
    """The share of the tensor that each device receives in a step taken from ``dims``.

    All-gather: the parts of the k-1 others. All-to-all: all but 1/k of as much as was held. Slice: nothing.
    """
    ways = math.prod(sizes[axis] for axis in step.axes)
    return {
        "slice": Fraction(0),
        "all-gather": (ways - 1) * held(dims, sizes),
        "all-to-all": Fraction(ways - 1, ways) * held(dims, sizes),
    }[step.op]


def walk(start: Dims, steps: Iterable[Step]) -> Iterator[tuple[Dims, Step]]:
    """Each step with the layout from which it is taken."""
    for step in steps:
        yield start, step
        start = after(start, step)


def end(start: Dims, steps: Iterable[Step]) -> Dims:
    for step in steps:
        start = after(start, step)
    return start


def total(start: Dims, steps: Iterable[Step], sizes: Sizes) -> Fraction:
    """The share of the tensor that each device receives in all."""
    return sum((received(dims, step, sizes) for dims, step in walk(start, steps)), Fraction(0))


def peak(start: Dims, steps: Iterable[Step], sizes: Sizes) -> Fraction:
    """The largest share of the tensor that a device holds before, between or after the steps."""
    dims = [start]
    for step in steps:
        dims.append(after(dims[-1], step))
    return max(held(each, sizes) for each in dims)


def receive_bound(source: Dims, target: Dims, sizes: Sizes) -> Fraction:
    """No device can receive less than what it is to hold and does not yet: of the device that lacks most, a share of
    the tensor. No plan of any kind is below it at its busiest device."""
    axes = tuple(sizes)
    shape = tuple(
        math.prod(sizes[axis] for axis in {*here, *there}) for here, there in zip(source, target, strict=True)
    )
    wanted = boxes(target, shape, axes, sizes)
    kept = intersections(boxes(source, shape, axes, sizes), wanted)
    lacking = volumes(wanted) - volumes(kept).diagonal()
    return Fraction(int(lacking.max()), math.prod(shape))


def ordered_layouts(rank: int, sizes: Sizes) -> tuple[Dims, ...]:
    """Every way to split a tensor of ``rank`` dims with ordered axes, each axis used once or not at all."""
    found: list[Dims] = []
    for count in range(len(sizes) + 1):
        for axes in itertools.permutations(sizes, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                edges = (0, *cuts, count)
                found.append(tuple(axes[a:b] for a, b in itertools.pairwise(edges)))
    return tuple(found)


def pairs(layouts: Iterable[Dims]) -> tuple[tuple[Dims, Dims], ...]:
    """All ordered pairs of different layouts."""
    return tuple(itertools.permutations(layouts, 2))


OPERATORS = {"slice": "shard", "all-gather": "all_gather", "all-to-all": "all_to_all"}


def write(start: Dims, steps: Iterable[Step], whole_bytes: int, sizes: Sizes) -> tuple[Collective, ...]:
    """The steps as the simulator executes and the links price them; no gradient is carried."""
    found = []
    for dims, step in walk(start, steps):
        kind = "" if step.op == "slice" else step.op
        size = int(max(held(dims, sizes), held(after(dims, step), sizes)) * whole_bytes) if kind else 0
        found.append(Collective(OPERATORS[step.op], step.axes, step.dims, kind, "", size, 0))
    return tuple(found)
