"""DTensor's rule: a greedy over the mesh's axes; where an order of axes is not the mesh's, a shortest path.

DTensor gives each axis a placement, and of the axes that split a dim the mesh's order is the default. Between layouts
in that order the greedy

1. goes over the axes from the innermost to the outermost: an axis that is to split a dim whose outer axes are not yet
   those of the target is gathered first; any other takes its target placement at once, by a slice, an all-gather or an
   all-to-all;
2. goes from the outermost to the innermost and slices what was gathered.

For any other order DTensor takes Dijkstra's algorithm, with steps of one axis at the innermost place. Its prices are
seconds; with axes of one bandwidth and large tensors they are the bytes received, ties broken by fewer steps.

Described in the documentation of torch.distributed.tensor and of its redistribution (torch/distributed/tensor/
_redistribute.py, _collective_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.redistribution.exchange.boxes import Dims
from tests.bench.rivals.steps import Sizes, Step, gather, slice_, swap

WHOLE = -1
"""The dim of an axis that splits none."""


def in_mesh_order(dims: Dims, sizes: Sizes) -> bool:
    """Whether DTensor can write a layout by placements alone."""
    order = list(sizes)
    return all([*axes] == sorted(axes, key=order.index) for axes in dims)


def greedy(source: Dims, target: Dims, sizes: Sizes) -> tuple[Step, ...]:
    """The steps between two layouts in the mesh's order."""
    if not in_mesh_order(source, sizes) or not in_mesh_order(target, sizes):
        raise ValueError(f"{source} or {target} is not in the mesh's order")
    now, wanted = (_placements(dims, sizes) for dims in (source, target))
    steps: list[Step] = []

    def move(axis: str, dim: int) -> None:
        if now[axis] != dim:
            steps.append(_step(axis, now[axis], dim))
            now[axis] = dim

    for axis in reversed(list(sizes)):
        move(axis, wanted[axis] if _aligned(axis, now, wanted) else WHOLE)
    for axis in sizes:
        move(axis, wanted[axis])
    return tuple(steps)


def plan(source: Dims, target: Dims, sizes: Sizes, shortest: Mapping[Dims, tuple[Step, ...]]) -> tuple[Step, ...]:
    """What DTensor does: the greedy where it applies, else the shortest path, of which ``shortest`` holds those from
    ``source`` (``shortest.tree``)."""
    if in_mesh_order(source, sizes) and in_mesh_order(target, sizes):
        return greedy(source, target, sizes)
    return shortest[target]


def _placements(dims: Dims, sizes: Sizes) -> dict[str, int]:
    """The dim that each axis splits."""
    found = {axis: dim for dim, axes in enumerate(dims) for axis in axes}
    return {axis: found.get(axis, WHOLE) for axis in sizes}


def _aligned(axis: str, now: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether the axes outside this one that split its target dim are those that are to."""
    dim = wanted[axis]
    outside = list(now)[: list(now).index(axis)]
    return dim == WHOLE or all((now[other] == dim) == (wanted[other] == dim) for other in outside)


def _step(axis: str, here: int, there: int) -> Step:
    if here == WHOLE:
        return slice_(there, axis)
    return gather(here, axis) if there == WHOLE else swap(here, there, axis)
