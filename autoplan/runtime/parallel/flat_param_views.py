"""Parameters that hold boxes of several of the user's own: which part of each a rank has, and the user's again."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autoplan.ir.graph import Member
from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.parallel.own_box import Part


@dataclass(frozen=True)
class Piece:
    """What a rank's part of a parameter has of one member: some of the elements of some of its rows.

    rows    the box of the user's own parameter that these rows are
    skip    elements of the first row that come before
    values  where the elements lie along the first dim of the rank's part
    """

    member: Member
    rows: Part
    skip: int
    values: slice


def pieces(stored: StoredParameter, part: Part) -> Iterator[Piece]:
    """Of what a rank keeps of a parameter."""
    if len(part.shape) > 1:
        for row, member in enumerate(stored.members[part.start[0] : part.start[0] + part.shape[0]]):
            yield Piece(member, Part(part.start[1:], part.shape[1:]), 0, slice(row, row + 1))
        return
    (start,), (count,) = part.start, part.shape
    for member in stored.members:
        columns = member.size[1]
        low, high = max(start, member.start), min(start + count, member.start + member.size[0] * columns)
        if low >= high:
            continue
        first, last = (low - member.start) // columns, -(-(high - member.start) // columns)
        box = Part((member.first[0] + first, member.first[1]), (last - first, columns))
        yield Piece(member, box, low - member.start - first * columns, slice(low - start, high - start))


def fill(stored: StoredParameter, part: Part, values: Tensor, read: Callable[[Member, Part, Tensor], None]) -> None:
    """Fills a rank's part; ``read`` puts a box of a member into a tensor of the box' shape. Padding is zero."""
    values.zero_()
    for piece in pieces(stored, part):
        into = values[piece.values]
        whole = into.numel() == math.prod(piece.rows.shape)
        rows = into.view(piece.rows.shape) if whole else values.new_empty(piece.rows.shape)
        read(piece.member, piece.rows, rows)
        if not whole:
            into.copy_(rows.view(-1)[piece.skip : piece.skip + into.numel()])


def matrices(stored: StoredParameter, flat: Tensor) -> dict[str, Tensor]:
    """The user's own parameters, by each of their names, from a whole one that holds them."""
    found: dict[str, Tensor] = {}
    for member in stored.members:
        if member.source not in found:
            found |= dict.fromkeys((member.source, *member.aliases), torch.zeros(member.shape, dtype=flat.dtype))
        found[member.source][box_of(member).slices] = values_of(member, flat)
    return found


def box_of(member: Member) -> Part:
    return Part(member.first, member.size)


def values_of(member: Member, flat: Tensor) -> Tensor:
    """A member's box within a whole parameter."""
    return flat.reshape(-1)[member.start : member.start + math.prod(member.size)].view(member.size)


def sources_of(stored: StoredParameter) -> Mapping[str, Member]:
    """One member of each of the user's parameters, by its name."""
    return {member.source: member for member in reversed(stored.members)}
