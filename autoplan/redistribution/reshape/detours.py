"""Layouts that a reshape can be crossed in, for one that it can't be, or that it is dearer to cross in: where axes may
be moved on a shape before it is refined, or after."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoplan.ir.layout import I, Layout, R, State
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.factors import expand, place, split_evenly
from autoplan.redistribution.refinement import Refinement, Side, from_refined, to_refined
from autoplan.redistribution.space.layouts import count_layouts, enumerate_layouts

MOST_LAYOUTS = 64  # of a shape, if all are to be tried
MOST_WAYS = 96  # in which a layout's axes are moved out of a reshape's way, otherwise


@dataclass(frozen=True)
class Detours:
    """Of one side of a reshape.

    shape, far_shape  of the whole tensor on that side, and on the other
    """

    refinement: Refinement
    side: Side
    shape: tuple[int, ...]
    far_shape: tuple[int, ...]
    mesh: Mesh
    carries: bool

    def options(self, layout: Layout, other: Layout) -> tuple[Layout, ...]:
        """Layouts of this side that can be refined: ``layout`` itself if it can; the name of the other side's layout
        here; all others where these are few, else those with the axes that can't stay elsewhere; everything gathered.
        """
        beside = (R, I) if self.carries and I in (s for _, s in (*layout.rest, *other.rest)) else (R,)
        there = to_refined(other, self.refinement, "after" if self.side == "before" else "before", self.mesh)
        called = None if there is None else from_refined(there, self.refinement, self.side, self.mesh)
        ways = self.every(layout, other, beside, helped=True) or self.every(layout, other, beside, helped=False)
        if ways is None:
            ways = itertools.islice(self.moved_away(layout, beside, 0), MOST_WAYS)
        options = [layout, *([] if called is None else [called]), *ways, gathered(layout, self.mesh)]
        return tuple(dict.fromkeys(option for option in options if self.refines(option)))

    def refines(self, layout: Layout) -> bool:
        return to_refined(layout, self.refinement, self.side, self.mesh) is not None

    def every(self, layout: Layout, other: Layout, beside: tuple[State, ...], helped: bool) -> Iterator[Layout] | None:
        """All layouts over some axes; None where they are too many, or where microbatches split a dim inside an axis.

        beside  states beside the dims, further to those that an axis has here and there
        helped  over those axes, too, that replicate at both ends: they can share what the others move
        """
        if split_evenly(layout, self.shape, self.mesh) and split_evenly(other, self.far_shape, self.mesh):
            layout, other = expand(layout, self.mesh), expand(other, self.mesh)
        outer = [tuple(itertools.takewhile(self.virtual, axes)) for axes in layout.dims]
        held, there = dict(layout.rest), dict(other.rest)
        moving = [a for axes, fixed in zip(layout.dims, outer, strict=True) for a in axes[len(fixed) :]]
        moving += [a for a, s in held.items() if (there.get(a) != s or (helped and s == R)) and not self.virtual(a)]
        states = {a: tuple(dict.fromkeys((*beside, held.get(a, R), there.get(a, R)))) for a in moving}
        count = count_layouts(len(self.shape), [len(s) for s in states.values()])
        if count > MOST_LAYOUTS or any(self.virtual(a) for a in moving):
            return None
        kept = tuple((a, state) for a, state in layout.rest if a not in moving)
        found = enumerate_layouts(len(self.shape), sorted(moving, key=lambda a: place(a, self.mesh)), states)
        return (
            Layout(
                tuple(fixed + axes for fixed, axes in zip(outer, option.dims, strict=True)),
                in_order((*kept, *option.rest), self.mesh),
            )
            for option in found
        )

    def virtual(self, axis: str) -> bool:
        return self.mesh.axis(axis).virtual

    def moved_away(self, layout: Layout, beside: Sequence[State], dim: int) -> Iterator[Layout]:
        """The layout with the axes of each dim that can't be refined, from this one on, elsewhere; few of them first.

        beside  what an axis that splits no dim then is: R, whose gradient is summed, or I, whose gradient is whole
        """
        if dim == layout.rank:
            yield layout
            return
        options = iter((layout,)) if self.stays(layout, dim) else self.rearranged(layout, beside, dim)
        for option in options:
            yield from self.moved_away(option, beside, dim + 1)

    def stays(self, layout: Layout, dim: int) -> bool:
        """Whether what splits one dim can be refined."""
        return self.refines(Layout(tuple(axes if n == dim else () for n, axes in enumerate(layout.dims)), ()))

    def rearranged(self, layout: Layout, beside: Sequence[State], dim: int) -> Iterator[Layout]:
        """The layout with one dim split by some of its axes, in any order, and the others anywhere else."""
        layout = expand(layout, self.mesh) if split_evenly(layout, self.shape, self.mesh) else layout
        axes = layout.dims[dim]
        places: list[State | int] = [*beside, *(other for other in range(layout.rank) if other != dim)]
        for count in reversed(range(len(axes) + 1)):
            for kept in itertools.permutations(axes, count):
                gone = [axis for axis in axes if axis not in kept]
                if not any(self.virtual(axis) for axis in gone):
                    options = placed(layout, dim, kept, gone, places, self.mesh)
                    yield from (option for option in options if self.stays(option, dim))


def placed(
    layout: Layout, dim: int, kept: tuple[str, ...], gone: Sequence[str], places: Sequence[State | int], mesh: Mesh
) -> Iterator[Layout]:
    """One dim split by ``kept``, each of the axes that are gone in one of the places: a state beside the dims, or
    innermost along another dim."""
    for chosen in itertools.product(places, repeat=len(gone)):
        dims = [kept if n == dim else axes for n, axes in enumerate(layout.dims)]
        rest = dict(layout.rest)
        for axis, where in zip(gone, chosen, strict=True):
            if isinstance(where, State):
                rest[axis] = where
            else:
                dims[where] += (axis,)
        yield Layout(tuple(dims), in_order(rest.items(), mesh))


def gathered(layout: Layout, mesh: Mesh) -> Layout:
    """The layout whose dims only microbatches split; the other axes that did are R."""
    dims = tuple(tuple(a for a in axes if mesh.axis(a).virtual) for axes in layout.dims)
    gone = [(a, R) for axes in layout.dims for a in axes if not mesh.axis(a).virtual]
    return Layout(dims, in_order((*layout.rest, *gone), mesh))


def in_order(rest: Iterable[tuple[str, State]], mesh: Mesh) -> tuple[tuple[str, State], ...]:
    """As ``Layout.rest`` lists them: in the mesh's order."""
    return tuple(sorted(rest, key=lambda pair: place(pair[0], mesh)))
