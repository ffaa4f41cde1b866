"""The single steps between layouts that the table knows, and permutes, each priced forward and backward."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.apply import Tensor, changed, held_elements, permutable
from autoplan.redistribution.exchange.traffic import Traffic
from autoplan.redistribution.links import Links
from autoplan.redistribution.steps import Step, find_step

TOGETHER = 3  # axes that one step of the table moves at once, at most


@dataclass(frozen=True)
class Arc:
    """One step.

    target   the layout that it leads to
    seconds  forward and backward together
    op, axes, dims   the step (typed.Collective); none of a permute's or an exchange's axes are told
    """

    target: Layout
    seconds: float
    op: str
    axes: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """The steps of one tensor over the axes of a mesh.

    beside  the states in which each axis may be where it splits no dim
    """

    tensor: Tensor
    mesh: Mesh
    beside: Mapping[str, tuple[State, ...]]
    links: Links

    def held_bytes(self, layout: Layout) -> int:
        return held_elements(layout, self.tensor.shape, self.mesh) * self.tensor.itemsize

    def arcs(self, layout: Layout) -> Iterator[Arc]:
        """Every step of the table from a layout, in a fixed order. A dim takes part where its size divides by the axes
        that split it; elsewhere exchanges alone are exact."""
        for dim, axes in enumerate(layout.dims):
            if self.even(layout, dim):
                for first in range(len(axes)):
                    yield from self.leaving(layout, S(dim), axes[first:])
        together: dict[State, list[str]] = {}
        for axis, state in layout.rest:
            together.setdefault(state, []).append(axis)
        for state, names in together.items():
            for count in range(1, min(TOGETHER, len(names)) + 1):
                for group in itertools.permutations(names, count):
                    yield from self.leaving(layout, state, group)

    def leaving(self, layout: Layout, state: State, axes: tuple[str, ...]) -> Iterator[Arc]:
        """Every step that takes these axes from one state to another."""
        ordered = list(axes) == sorted(axes, key=self.mesh.names.index)
        for there in (*(S(dim) for dim in range(layout.rank)), R, I, P, PMAX):
            step = find_step(state, there, self.tensor.carries) if there != state else None
            if step is None or (there.kind != "S" and state.kind != "S" and not ordered):
                continue
            if there.kind != "S" and not all(there in self.beside[axis] for axis in axes):
                continue
            after = changed(layout, axes, there, self.mesh)
            if there.kind != "S" or self.even(after, there.dim):
                dims = tuple(s.dim for s in (state, there) if s.kind == "S")
                yield self.arc(layout, after, step, axes, dims)

    def arc(self, layout: Layout, after: Layout, step: Step, axes: tuple[str, ...], dims: tuple[int, ...]) -> Arc:
        held = (self.held_bytes(layout), self.held_bytes(after))
        kinds = (step.forward, step.backward if self.tensor.carries else "")
        group = [self.mesh.axis(axis) for axis in axes]
        seconds = sum(self.links.collective_s(kind, max(held), group) for kind in kinds if kind)
        return Arc(after, seconds, step.op, axes, dims)

    def even(self, layout: Layout, dim: int) -> bool:
        return even(self.tensor.shape[dim], layout.dims[dim], self.mesh)

    def permutes(self, layout: Layout, others: Iterable[Layout], traffic: Traffic) -> Iterator[Arc]:
        """The permutes from a layout to those of the others to which one leads."""
        held, passes = self.held_bytes(layout), 2 if self.tensor.carries else 1
        for other in others:
            if layout.dims != other.dims and permutable(layout, other, self.tensor.shape, self.mesh):
                seconds = passes * traffic.permute_s(layout.dims, other.dims, held)
                yield Arc(other, seconds, "permute")


def even(size: int, axes: Iterable[str], mesh: Mesh) -> bool:
    return size % math.prod(mesh.size(axis) for axis in axes) == 0
