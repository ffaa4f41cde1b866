"""Who sends what to whom: the messages of a direct exchange and of a permute, from exact intersections of boxes.

A *spec* says how a group's axes split a tensor before and after: ``"x y, - -> y, x"`` is a tensor of two dims, the
first split by x and, inside, by y; afterwards the first by y, the second by x. Members are numbered row-major over the
group's axes. An axis of the group that splits no dim replicates: its members hold the same.

Every rank derives the same messages from the same words, so nothing is agreed upon at run time.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from autoplan.redistribution.exchange.boxes import Boxes, Dims, coordinates, intersections

Box = tuple[tuple[int, int], ...]
"""(start, stop) along each dim."""


def write_spec(before: Dims, after: Dims) -> str:
    """``"x y, - -> y, x"``"""
    return " -> ".join(", ".join(" ".join(split) or "-" for split in dims) for dims in (before, after))


def parse_spec(spec: str) -> tuple[Dims, Dims]:
    """The inverse; ValueError where the text is no spec, or the two sides have another number of dims."""
    sides = [
        tuple(() if split.strip() == "-" else tuple(split.split()) for split in side.split(","))
        for side in spec.split("->")
    ]
    if len(sides) != 2 or len(sides[0]) != len(sides[1]):
        raise ValueError(f"{spec!r} is no spec of an exchange: give the dims' axes before and after, 'x, - -> -, x'")
    return sides[0], sides[1]


def reverse_spec(spec: str) -> str:
    """The spec that leads back."""
    before, after = parse_spec(spec)
    return write_spec(after, before)


def sending_of(
    member: int, held: Boxes, wanted: Boxes, before: Dims, axes: Sequence[str], sizes: Mapping[str, int]
) -> tuple[Boxes, Boxes]:
    """(members, dims, 2) twice: the boxes that one member sends each other, and those that each other sends it; empty
    where none. Time and memory grow with the members, not with their square.

    Of the replicas of a part, a receiver's sender is the one with the receiver's own coordinates along the axes that
    replicate, so that senders are balanced, and as near as the part is. What a member holds it does not receive.

    held, wanted  every member's box before and after
    """
    mine = slice(member, member + 1)
    sent, received = intersections(held[mine], wanted)[0], intersections(held, wanted[mine])[:, 0]
    where = coordinates(axes, sizes)
    split = {axis for dims in before for axis in dims}
    for axis in axes:
        if axis not in split:
            other = where[axis] != where[axis][member]
            sent[other] = received[other] = 0
    return sent, received


def senders(spec: str, axes: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Whose part each member of a permute takes over; its own where it keeps what it holds.

    Each part is held by as many members after as before (``ValueError`` otherwise), so those that lose a part and those
    that gain it can be paired, in order; each member then sends and receives one message at most.
    """
    before, after = parse_spec(spec)
    held, wanted = (_parts(dims, axes, sizes) for dims in (before, after))
    found = [member if part == held[member] else -1 for member, part in enumerate(wanted)]
    free: dict[tuple[int, ...], list[int]] = {}
    for member, part in enumerate(held):
        if found[member] < 0:
            free.setdefault(part, []).append(member)
    for member, part in enumerate(wanted):
        if found[member] < 0:
            if not free.get(part):
                raise ValueError(f"{spec!r} over {dict(sizes)} is no permute: another number of parts on its two sides")
            found[member] = free[part].pop(0)
    return tuple(found)


def _parts(dims: Dims, axes: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The part that each member holds, as its number along each dim."""
    where = coordinates(axes, sizes)
    members = len(next(iter(where.values()))) if where else 1
    numbers = np.zeros((members, len(dims)), np.int64)
    for dim, split in enumerate(dims):
        for axis in split:
            numbers[:, dim] = numbers[:, dim] * sizes[axis] + where[axis]
    return [tuple(int(n) for n in row) for row in numbers]
