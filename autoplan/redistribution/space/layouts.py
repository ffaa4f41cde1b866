"""The layouts through which a redistribution may pass: every ordered one over the moving axes, or, where these are too
many, stations between the two ends."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from autoplan.ir.layout import Layout, State
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.apply import changed
from autoplan.redistribution.exchange.boxes import Dims

MOST_LAYOUTS = 450  # of a space: its prices are dense matrices

Beside = Mapping[str, tuple[State, ...]]
"""The states in which each axis may be where it splits no dim."""


def layouts_between(ends: tuple[Layout, Layout], mesh: Mesh, beside: Beside) -> tuple[tuple[Layout, ...], bool]:
    """The layouts of a space, the ends among them, and whether these are all that there are."""
    rank, names = ends[0].rank, mesh.names
    if count_layouts(rank, [len(beside[name]) for name in names]) <= MOST_LAYOUTS:
        return tuple(enumerate_layouts(rank, names, beside)), True
    for states in (beside, {name: beside[name][:1] for name in names}):
        if math.prod(2 + len(states[name]) for name in names) <= MOST_LAYOUTS:
            return tuple(dict.fromkeys((*ends, *stations(ends, mesh, states)))), False
    gathered = (one for end in ends for one in gathering(end, mesh, beside))
    return tuple(dict.fromkeys((*ends, *gathered))), False


def stations(ends: tuple[Layout, Layout], mesh: Mesh, beside: Beside) -> Iterator[Layout]:
    """Each axis where it is at the start, where it is at the goal, or beside the dims; on a dim those that are still
    there in the start's order, inside them those that have come in the goal's."""
    rests = [dict(end.rest) for end in ends]
    choices: list[tuple[int | State, ...]] = [(0, 1, *beside[name]) for name in mesh.names]
    for chosen in itertools.product(*choices):
        places = dict(zip(mesh.names, chosen, strict=True))
        dims = tuple(
            tuple(a for a in here if places[a] == 0) + tuple(a for a in there if places[a] == 1)
            for here, there in zip(ends[0].dims, ends[1].dims, strict=True)
        )
        found = {a: where if isinstance(where, State) else rests[where].get(a) for a, where in places.items()}
        yield Layout(dims, tuple((axis, state) for axis, state in found.items() if state is not None))


def gathering(end: Layout, mesh: Mesh, beside: Beside) -> Iterator[Layout]:
    """One axis after another beside the dims, the innermost of each dim first."""
    here = end
    for name in [*(axis for axes in end.dims for axis in reversed(axes)), *(axis for axis, _ in end.rest)]:
        here = changed(here, (name,), beside[name][0], mesh)
        yield here


def enumerate_layouts(rank: int, axes: Sequence[str], beside: Beside) -> Iterator[Layout]:
    """All of them: each axis in one of its states beside the dims, or on a dim, in every order."""
    for count in range(len(axes) + 1):
        for split in itertools.combinations(axes, count):
            left = [axis for axis in axes if axis not in split]
            rests = [tuple(zip(left, states, strict=True)) for states in itertools.product(*(beside[a] for a in left))]
            for dims in arrangements(rank, split):
                yield from (Layout(dims, rest) for rest in rests)


def arrangements(rank: int, axes: Sequence[str]) -> Iterator[Dims]:
    """Every way to put all these axes on the dims of a tensor, in every order."""
    if rank == 0:
        yield from () if axes else ((),)
        return
    for order in itertools.permutations(axes):
        for cuts in itertools.combinations_with_replacement(range(len(axes) + 1), rank - 1):
            yield tuple(tuple(order[a:b]) for a, b in itertools.pairwise((0, *cuts, len(axes))))


def count_layouts(rank: int, states: Sequence[int]) -> int:
    """How many there are.

    states  for each axis the number of its states beside the dims
    """
    total = 0
    for count in range(len(states) + 1):
        placed = math.comb(count + rank - 1, rank - 1) * math.factorial(count) if rank else int(count == 0)
        chosen = itertools.combinations(range(len(states)), len(states) - count)
        total += placed * sum(math.prod(states[i] for i in left) for left in chosen)
    return total
