"""What a step makes of a layout, and the step as it is written down, with its kinds and sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.exchange.messages import parse_spec, write_spec
from autoplan.redistribution.factors import place
from autoplan.redistribution.steps import EXCHANGES, Step, find_step


@dataclass(frozen=True)
class Tensor:
    """What is redistributed: its shape on the ranks among which it moves, the bytes of an element, and whether it
    carries a gradient."""

    shape: tuple[int, ...]
    itemsize: int
    carries: bool


def local_shape(layout: Layout, shape: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
    """The largest part's shape: ceil, axis by axis."""
    local = []
    for size, axes in zip(shape, layout.dims, strict=True):
        for axis in axes:
            size = -(-size // mesh.size(axis))
        local.append(size)
    return tuple(local)


def held_elements(layout: Layout, shape: Sequence[int], mesh: Mesh) -> int:
    """Elements that the rank with most of them holds."""
    return math.prod(local_shape(layout, shape, mesh))


def changed(layout: Layout, axes: Sequence[str], state: State, mesh: Mesh) -> Layout:
    """The layout with these axes in another state, innermost and in this order where they then split a dim."""
    dims = [tuple(a for a in split if a not in axes) for split in layout.dims]
    rest = [(a, s) for a, s in layout.rest if a not in axes]
    if state.kind == "S":
        dims[state.dim] += tuple(axes)
    else:
        rest = sorted([*rest, *((axis, state) for axis in axes)], key=lambda pair: place(pair[0], mesh))
    return Layout(tuple(dims), tuple(rest))


def respecified(layout: Layout, axes: Sequence[str], spec: str, rest: State, mesh: Mesh) -> Layout:
    """The layout after an exchange over these axes; those that the spec has in no dim are in ``rest``.

    ValueError where the layout isn't the one that the spec starts from.
    """
    before, after = parse_spec(spec)
    named = [a for dims in (before, after) for split in dims for a in split]
    if len(before) != layout.rank or not set(named) <= set(axes):
        raise ValueError(f"{spec!r} over {', '.join(axes)} doesn't fit a tensor of {layout.rank} dims")
    if any(len(set(used)) != len(used) for used in ([a for axes in side for a in axes] for side in (before, after))):
        raise ValueError(f"{spec!r} names an axis twice on one side")
    dims = []
    for dim, (split, start, end) in enumerate(zip(layout.dims, before, after, strict=True)):
        outer = split[: len(split) - len(start)]
        if split[len(outer) :] != start or set(outer) & set(axes):
            found = " ".join(split) or "nothing"
            raise ValueError(f"{spec!r}: dim {dim} is split by {found}, not by {' '.join(start)}")
        dims.append(outer + end)
    gone = {a for split in after for a in split}
    kept = [(a, s) for a, s in layout.rest if a not in gone]
    kept += [(a, rest) for a in axes if a not in gone and a not in dict(kept)]
    return Layout(tuple(dims), tuple(sorted(kept, key=lambda pair: place(pair[0], mesh))))


def write(
    step: Step, axes: tuple[str, ...], dims: tuple[int, ...], held_bytes: tuple[int, int], carries: bool,
    spec: str = "", shape: tuple[int, ...] = (),
) -> Collective:  # fmt: skip
    """A step as it is written down.

    held_bytes  of one rank, before and after: the larger is the size by which a collective is known
    """
    backward = step.backward if carries else ""
    forward_bytes, backward_bytes = (max(held_bytes) if kind else 0 for kind in (step.forward, backward))
    return Collective(step.op, axes, dims, step.forward, backward, forward_bytes, backward_bytes, spec, shape)


def spec_between(source: Layout, target: Layout, shape: Sequence[int], mesh: Mesh) -> tuple[
    tuple[str, ...], str, tuple[int, ...]
]:
    """The group, the spec and the shared tensor's shape of the exchange from one layout to another.

    Left out of the group: axes in the same state beside the dims, and those that split a dim outermost on both sides
    and divide it, for then nothing crosses them.
    """
    before, after, shared = [], [], []
    for size, here, there in zip(shape, source.dims, target.dims, strict=True):
        outer = 0
        while outer < min(len(here), len(there)) and here[outer] == there[outer] and not size % mesh.size(here[outer]):
            size //= mesh.size(here[outer])
            outer += 1
        before.append(here[outer:])
        after.append(there[outer:])
        shared.append(size)
    moving = {axis for split in (*before, *after) for axis in split}
    group = tuple(sorted(moving, key=lambda axis: place(axis, mesh)))
    return group, write_spec(tuple(before), tuple(after)), tuple(shared)


def exchange_op(source: Mapping[str, State], target: Mapping[str, State]) -> str | None:
    """The exchange between two layouts, told by the states beside their dims; None where there is none.

    What is fetched is R or I on both sides, and not R on one and I on the other, whose gradients are summands here and
    whole there; what is summed is P before and split after.
    """
    left = {state for axis, state in source.items() if axis not in target}
    entered = {state for axis, state in target.items() if axis not in source}
    if any(target[axis] != state for axis, state in source.items() if axis in target):
        return None
    if left | entered <= {R}:
        return "exchange"
    if left | entered == {I}:
        return "exchange_invariant"
    return "exchange_sum" if left == {P} and not entered else None


def permutable(source: Layout, target: Layout, shape: Sequence[int], mesh: Mesh) -> bool:
    """Whether one message for each rank leads from one layout to another: every dim in as many parts, all the same
    size, and the axes that replicate all R, all I or all P."""
    ways = [[math.prod(mesh.size(a) for a in split) for split in layout.dims] for layout in (source, target)]
    even = all(size % count == 0 for size, count in zip(shape, ways[0], strict=True))
    here, there = dict(source.rest), dict(target.rest)
    left = {state for axis, state in here.items() if there.get(axis) != state}
    entered = {state for axis, state in there.items() if here.get(axis) != state}
    return even and ways[0] == ways[1] and left == entered and len(left) <= 1


def target_of(layout: Layout, step: Collective, mesh: Mesh, carries: bool) -> tuple[Layout, Step]:
    """Where a written step leads from a layout, and which step it is; ValueError, saying why, where it can't be taken.

    layout  on the axes, or prime factors, that the step names
    """
    known = {axis for split in layout.dims for axis in split} | {axis for axis, _ in layout.rest}
    missing = [axis for axis in step.axes if axis not in known]
    if missing or not step.axes:
        raise ValueError(f"axis {', '.join(missing) or step.axis} holds nothing that could be exchanged")
    if len(set(step.axes)) != len(step.axes):
        raise ValueError(f"{step.op} over {step.axis} names an axis twice")
    if step.op in EXCHANGES:
        return exchanged(layout, step, mesh, carries)
    states = {layout.state(axis) for axis in step.axes}
    here = states.pop()
    if states:
        raise ValueError(f"{step.op} over {step.axis}: the axes are in different states of {layout}")
    if here.kind == "S" and layout.dims[here.dim][-len(step.axes) :] != step.axes:
        raise ValueError(f"{step.op} over {step.axis}: dim {here.dim} is split by {' '.join(layout.dims[here.dim])}")
    for there in landing(layout.rank, step, here):
        found = find_step(here, there, carries) if there != here else None
        if found is not None and found.op == step.op:
            return changed(layout, step.axes, there, mesh), found
    raise ValueError(f"{step.op} over {step.axis} with dims {step.dims} does not start from {here}")


def landing(rank: int, step: Collective, here: State) -> tuple[State, ...]:
    """The states in which a step's arguments allow it to end."""
    from_dim = 1 if here.kind == "S" else 0
    if step.dims[:from_dim] != ((here.dim,) if from_dim else ()):
        return ()
    if len(step.dims) == from_dim + 1 and step.dims[from_dim] < rank:
        return (S(step.dims[from_dim]),)
    return (R, I, P, PMAX) if len(step.dims) == from_dim else ()


def exchanged(layout: Layout, step: Collective, mesh: Mesh, carries: bool) -> tuple[Layout, Step]:
    """``target_of`` for a permute or an exchange."""
    here = dict(layout.rest)
    beside = {here[axis] for axis in step.axes if axis in here}
    kept = {"exchange": R, "exchange_invariant": I, "exchange_sum": P}.get(step.op, next(iter(beside), R))
    if not beside <= {kept} or (kept == I and not carries):
        raise ValueError(f"{step.op} over {step.axis} starts from {kept} beside the dims, not from {layout}")
    there = respecified(layout, step.axes, step.spec, kept, mesh)
    if step.op == "permute" and step.spec and not _same_parts(step.spec, mesh):
        raise ValueError(f"permute {step.spec!r} changes the number of parts")
    if step.op == "exchange_sum" and any(axis in dict(there.rest) for axis in step.axes):
        raise ValueError(f"{step.op} {step.spec!r} leaves an axis that splits nothing: what would it hold?")
    return there, EXCHANGES[step.op]


def _same_parts(spec: str, mesh: Mesh) -> bool:
    before, after = ([math.prod(mesh.size(a) for a in split) for split in dims] for dims in parse_spec(spec))
    return before == after
