"""How a tensor lies on a mesh.

For each axis a tensor is in one state:

    S(d)    a slice along dim d                       its gradient: S(d)
    R       the same everywhere                       its gradient: P, each rank holds a summand
    I       the same everywhere (invariant)           its gradient: I, already whole
    P       a summand; P(max): an operand of max      its gradient: R

R against I is what makes gradients right by construction: an I may not meet an R, S or P in one operator, so the
conversion, whose backward is the reduction, has to be written. Tensors that carry no gradient are neutral: for them
R and I are one, written R.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplan.ir.mesh import MICROBATCH, Mesh


@dataclass(frozen=True, order=True)
class State:
    """A tensor's state on one axis: kind "S" (with its dim), "R", "I", "P" (with its reduction)."""

    kind: str
    dim: int = -1
    reduce: str = ""

    def __str__(self) -> str:
        if self.kind == "S":
            return f"S({self.dim})"
        return self.kind if self.reduce in ("", "sum") else f"P({self.reduce})"

    @property
    def placement(self) -> str:
        """In PyTorch's words, which lack one for I: "Shard(0)", "Replicate", "Invariant", "Partial", "Partial(max)"."""
        if self.kind == "S":
            return f"Shard({self.dim})"
        if self.kind == "P":
            return "Partial" if self.reduce == "sum" else f"Partial({self.reduce})"
        return {"R": "Replicate", "I": "Invariant"}[self.kind]

    @property
    def gradient(self) -> State:
        """The state of the gradient: the dual."""
        return {"S": self, "R": P, "I": I, "P": R}[self.kind]

    @staticmethod
    def parse(text: str) -> State:
        """The inverse of ``str``; ValueError for anything else."""
        shard = re.fullmatch(r"S\((\d+)\)", text)
        if shard:
            return S(int(shard[1]))
        named = {"R": R, "I": I, "P": P, "P(max)": PMAX}
        if text not in named:
            raise ValueError(f"{text!r} is no state; states are S(dim), R, I, P, P(max)")
        return named[text]


def S(dim: int) -> State:
    return State("S", dim)


R = State("R")
I = State("I")  # noqa: E741  the field's letter
P = State("P", reduce="sum")
PMAX = State("P", reduce="max")


@dataclass(frozen=True)
class Layout:
    """A tensor's states on all axes of a mesh.

    dims  for each tensor dim the ordered axes that split it, outermost first
    rest  (axis, state) for every other axis, in the mesh's order; the states are R, I or P

    Where sizes don't divide, parts are ``torch.chunk``'s, axis by axis from the outermost: of length ceil(size/ways),
    the last ones shorter or empty.
    """

    dims: tuple[tuple[str, ...], ...]
    rest: tuple[tuple[str, State], ...]

    @staticmethod
    def of(rank: int, states: Mapping[str, State], mesh: Mesh) -> Layout:
        """The layout in which each axis of the mesh is in its given state (R where none is given).

        Where several axes split one dim, they do so in this order: microbatches, then the mesh's order.
        """
        dims: list[tuple[str, ...]] = [()] * rank
        rest = []
        for axis in mesh.names:
            state = states.get(axis, R)
            if state.kind != "S":
                rest.append((axis, state))
            elif not 0 <= state.dim < rank:
                raise ValueError(f"{state} on axis {axis} of a tensor with {rank} dims")
            else:
                dims[state.dim] = (axis, *dims[state.dim]) if axis == MICROBATCH else (*dims[state.dim], axis)
        return Layout(tuple(dims), tuple(rest))

    @staticmethod
    def ordered(dims: Iterable[Iterable[str]], mesh: Mesh, rest: Mapping[str, State] | None = None) -> Layout:
        """The layout whose dims are split by these axes, outermost first; the other axes are as ``rest`` says, else R.

        Axes may be prime factors of the mesh's (``Mesh.axis``); an axis is then named by all of its factors.
        """
        split, rest = tuple(tuple(axes) for axes in dims), dict(rest or {})
        used = [axis for axes in split for axis in axes]
        whole = [axis for axis in mesh.names if not any(u == axis or u.startswith(axis + ".") for u in used)]
        partly = [f for axis in mesh.axes if axis.name not in whole for f in mesh.factors(axis.name)]
        left = [name for name in (*whole, *partly) if name not in used and not _covered(name, used)]
        if len(set(used)) != len(used) or set(rest) - set(left):
            raise ValueError(f"dims split by {split}, beside them {sorted(rest)}: an axis is named twice, or unknown")
        order = sorted(left, key=lambda name: (mesh.names.index(name.partition(".")[0]), name))
        return Layout(split, tuple((name, rest.get(name, R)) for name in order))

    @property
    def rank(self) -> int:
        return len(self.dims)

    def state(self, axis: str) -> State:
        for dim, axes in enumerate(self.dims):
            if axis in axes:
                return S(dim)
        for name, state in self.rest:
            if name == axis:
                return state
        raise KeyError(f"layout {self} says nothing of axis {axis!r}")

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(name for names in self.dims for name in names) | {name for name, _ in self.rest}

    def states(self) -> dict[str, State]:
        return {axis: self.state(axis) for axis in sorted(self.axes)}

    def local_shape(self, shape: Iterable[int], mesh: Mesh) -> tuple[int, ...]:
        """The shape of one rank's part; ValueError where a dim doesn't divide."""
        local = []
        for dim, (size, axes) in enumerate(zip(shape, self.dims, strict=True)):
            for axis in axes:
                if size % mesh.size(axis):
                    raise ValueError(f"dim {dim} of {tuple(shape)} doesn't divide over {axis}={mesh.size(axis)}")
                size //= mesh.size(axis)
            local.append(size)
        return tuple(local)

    def __str__(self) -> str:
        return ", ".join(f"{axis}: {state}" for axis, state in self.states().items()) or "whole"


def _covered(name: str, used: Iterable[str]) -> bool:
    """Whether a prime factor belongs to an axis that is used whole."""
    return name.partition(".")[0] in used
