"""Ranks that run the same calls: of each class one is rehearsed.

Ranks differ by their stages; along the data axis by the rows of parameters that ZeRO leaves them, and by how far away
which parameter server is: each of these ranks is a class; and along an axis
over which an operator or a redistribution does something else on each member. All else depends on shapes alone, and
parts of one layout have equal shapes (``runtime.parallel.own_box.part_of``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from autoplan.ir.mesh import Axis, Mesh, whole_axis
from autoplan.ir.typed_program import Compute, Move, Statement
from autoplan.rehearsal.records import RankClass
from autoplan.runtime.parallel.own_box import Part, part_of, rows_of
from autoplan.runtime.program_spec import DATA, PIPELINE, ProgramSpec

FIRST_ALONE = ("to_invariant", "replicate_to_partial", "invariant_to_partial")
"""Redistributions of which the first member keeps its tensor, forward or backward, and the others make zeros."""
BY_PLACE = ("permute", "exchange", "exchange_invariant", "exchange_sum")
"""Redistributions of which each member sends and receives other parts."""
ALIKE = (
    "batch_move", "grouped_attention", "local_experts", "routed_experts", "sync_batch_norm",
    "vocab_parallel_cross_entropy", "vocab_parallel_embedding", "vocab_parallel_embedding_bag",
    "vocab_parallel_ragged_bag", "vocab_parallel_weighted_cross_entropy",
)  # fmt: skip
"""Operators with collectives inside that launch the same on every member, by the names of their bodies."""

Place = Callable[[int], object]
"""A coordinate along an axis -> what sets ranks there apart."""


def rank_classes(spec: ProgramSpec) -> tuple[RankClass, ...]:
    """The classes, by their first ranks; every rank of the world is in one."""
    mesh = spec.lowered.mesh
    places = {axis: place for axis, place in _places(spec).items() if mesh.size(axis) > 1}
    ranks = np.arange(mesh.devices)
    keys, said = np.zeros(mesh.devices, dtype=np.int64), []
    for name, place in places.items():
        axis = mesh.axis(name)
        numbers: dict[object, int] = {}
        label = np.array([numbers.setdefault(place(at), len(numbers)) for at in range(axis.size)])
        if len(numbers) > 1:
            keys = keys * len(numbers) + label[ranks // axis.stride % axis.size]
            said.append((axis, label))
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    found = [RankClass(tuple(map(int, ranks[which == n])), _reason(int(first[n]), said)) for n in range(len(first))]
    return tuple(sorted(found, key=lambda each: each.first))


def _reason(rank: int, said: Iterable[tuple[Axis, np.ndarray]]) -> str:
    texts = []
    for axis, label in said:
        members = np.flatnonzero(label == label[rank // axis.stride % axis.size])
        span = f"{members[0]}" if len(members) == 1 else f"{members[0]}…{members[-1]}"
        texts.append(f"{axis.name}={span}")
    return ", ".join(texts) or "all ranks"


def _places(spec: ProgramSpec) -> Mapping[str, Place]:
    """What sets ranks apart along each axis."""
    mesh = spec.lowered.mesh
    places: dict[str, list[Place]] = defaultdict(list)
    if PIPELINE in mesh:
        places[PIPELINE].append(lambda at: at)
    for names, whole in _positioned(spec):
        for name in names:
            places[whole_axis(name)].append(_along(mesh, name, whole))
    for over in sorted({spec.shard_axes(stored) for stored in spec.lowered.parameters} - {()}):
        rows, ways = _rows(spec, mesh, over), spec.shard_ways(over)
        for name in over:
            place = rows if len(over) == 1 else _if_uneven(rows, ways)
            places[whole_axis(name)].append(_on_part(mesh, name, place))
    if spec.owners:
        places[DATA].append(lambda at: at)
    return {axis: _both(each) for axis, each in places.items()}


def _positioned(spec: ProgramSpec) -> set[tuple[tuple[str, ...], bool]]:
    """Groups of axes along which members differ, and whether each does, or the first from the others."""
    bodies: list[Iterable[Statement]] = [spec.lowered.constants, *(b.body for b in spec.lowered.blocks)]
    found = set()
    for statement in (statement for body in bodies for statement in body):
        if isinstance(statement, Move):
            for step in statement.collectives:
                if step.op in BY_PLACE or step.op in FIRST_ALONE:
                    found.add((step.axes, step.op in BY_PLACE))
        elif isinstance(statement, Compute) and statement.body and statement.body not in ALIKE:
            found.add((statement.body_axes, True))
    return found



def _along(mesh: Mesh, name: str, each: bool) -> Place:
    """The coordinate along an axis, or along a part of one, of a coordinate along all of it."""

    def place(at: int) -> object:
        coordinate = mesh.along(name, at)
        return coordinate if each else coordinate > 0

    return place


def _on_part(mesh: Mesh, name: str, place: Place) -> Place:
    """What sets ranks apart along a part of an axis, of a coordinate along all of it."""
    return lambda at: place(mesh.along(name, at))


def _rows(spec: ProgramSpec, mesh: Mesh, over: tuple[str, ...]) -> Place:
    """The rows that ZeRO leaves of each parameter that it shards over these axes: as torch.chunk cuts them, the last
    ones fewer."""
    origin = {axis.name: 0 for axis in mesh.device_axes if axis.name not in over}
    lengths = {
        part_of(stored.type.shape, stored.layout, mesh, origin).shape[0]
        for stored in spec.lowered.parameters
        if spec.shard_axes(stored) == over
    }
    ways = spec.shard_ways(over)
    return lambda at: tuple(rows_of(Part((0,), (length,)), ways, at).shape[0] for length in sorted(lengths))


def _if_uneven(rows: Place, ways: int) -> Place:
    """Along one of several axes over which rows are cut together: each place for itself, unless all have as many."""
    alike = len({rows(at) for at in range(ways)}) == 1
    return lambda at: () if alike else at


def _both(each: list[Place]) -> Place:
    return lambda at: tuple(place(at) for place in each)
