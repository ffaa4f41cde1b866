"""Ranks that run the same calls: of each class one is rehearsed.

Ranks differ by their stages; along the axes over which ZeRO shards by what that leaves them of parameters;
along the data axis by how far away which parameter server is: each of these ranks is a class; and along an axis over
which an operator or a redistribution does something else on each member. All else depends on shapes alone, and parts of
one layout have equal shapes (``runtime.parallel.own_box.part_of``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from autoplan.ir.mesh import Mesh, whole_axis
from autoplan.ir.typed_program import Compute, Move, Statement
from autoplan.rehearsal.records import RankClass
from autoplan.runtime.parallel.own_box import part_of, share_of
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
"""A place along some axes, counted from their outermost -> what sets ranks there apart."""
Axes = tuple[str, ...]
Ranks = NDArray[np.int64]


def rank_classes(spec: ProgramSpec) -> tuple[RankClass, ...]:
    """The classes, by their first ranks; every rank of the world is in one."""
    mesh = spec.lowered.mesh
    ranks = np.arange(mesh.devices)
    keys, said = np.zeros(mesh.devices, dtype=np.int64), []
    for axes, place in _places(spec).items():
        numbers: dict[object, int] = {}
        label = np.array([numbers.setdefault(place(at), len(numbers)) for at in range(spec.shard_ways(axes))])
        if len(numbers) > 1:
            at = _along_all(mesh, axes, ranks)
            keys = np.unique(keys * len(numbers) + label[at], return_inverse=True)[1]
            said.append((axes, at, label))
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    found = [RankClass(tuple(map(int, ranks[which == n])), _reason(int(first[n]), said)) for n in range(len(first))]
    return tuple(sorted(found, key=lambda each: each.first))


def _along_all(mesh: Mesh, axes: Axes, ranks: Ranks) -> Ranks:
    """Where ranks lie along some axes, or parts of them, taken together."""
    place = np.zeros_like(ranks)
    for name in axes:
        place = place * mesh.size(name) + ranks // mesh.axis(name).stride % mesh.size(name)
    return place


def _reason(rank: int, said: Iterable[tuple[Axes, Ranks, Ranks]]) -> str:
    texts = []
    for axes, at, label in said:
        members = np.flatnonzero(label == label[at[rank]])
        span = f"{members[0]}" if len(members) == 1 else f"{members[0]}…{members[-1]}"
        texts.append(f"{'×'.join(axes)}={span}")
    return ", ".join(texts) or "all ranks"


def _places(spec: ProgramSpec) -> Mapping[Axes, Place]:
    """What sets ranks apart along each axis, or along several together."""
    mesh = spec.lowered.mesh
    places: dict[Axes, list[Place]] = defaultdict(list)
    if PIPELINE in mesh:
        places[PIPELINE,].append(lambda at: at)
    for names, whole in _positioned(spec):
        for name in names:
            places[whole_axis(name),].append(_along(mesh, name, whole))
    for over in sorted({spec.shard_axes(stored) for stored in spec.lowered.parameters} - {()}):
        shares = _shares(spec, mesh, over)
        if len(over) == 1:  # beside what else sets ranks apart along that axis
            places[whole_axis(over[0]),].append(_on_part(mesh, over[0], shares))
        else:
            places[over].append(shares)
    if spec.owners:
        places[DATA,].append(lambda at: at)
    return {axes: _both(each) for axes, each in places.items()}


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


def _shares(spec: ProgramSpec, mesh: Mesh, over: tuple[str, ...]) -> Place:
    """The shapes that ZeRO leaves of the parameters that it shards over these axes: as torch.chunk cuts them, the last
    ones smaller."""
    origin = {axis.name: 0 for axis in mesh.device_axes if axis.name not in over}
    wholes = {
        part_of(stored.type.shape, stored.layout, mesh, origin)
        for stored in spec.lowered.parameters
        if spec.shard_axes(stored) == over
    }
    ways, ordered = spec.shard_ways(over), sorted(wholes, key=lambda part: part.shape)
    return lambda at: tuple(share_of(part, ways, at).shape for part in ordered)


def _both(each: list[Place]) -> Place:
    return lambda at: tuple(place(at) for place in each)
