"""The messages from one mesh to another: which replica sends which box, directly or down a chain of receivers.

A *part* is a box that one or several senders hold. What a receiver wants of a part is a *piece*; any of the part's
holders can send it, and the one that has least to send does, the largest pieces first (Graham 1969: the busiest is
within one piece of the optimum). What a receiver holds itself it doesn't receive.

Replicas on the receiving side can also pass a piece on: the first has it from its sender, each next one from the one
before, in chunks, so that all are under way at once (Zhuang et al. 2022, "On Optimizing the Communication of Model
Parallelism"). Messages come in rounds: what a round passes on has arrived in an earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autoplan.redistribution.exchange.boxes import Boxes, intersections, volumes
from autoplan.redistribution.exchange.messages import Box, Message

Rounds = tuple[tuple[Message, ...], ...]
"""Of messages between ranks; those of a round are under way at once."""


@dataclass(frozen=True)
class Part:
    """A box and the ranks that hold it, or want it."""

    box: Box
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """What one sender has to bring to some ranks that all want it."""

    sender: int
    receivers: tuple[int, ...]
    box: Box


def parts(found: Boxes, ranks: Sequence[int]) -> tuple[Part, ...]:
    """Ranks by the box they have, those with an empty one left out; in the order in which they first come."""
    grouped: dict[Box, list[int]] = {}
    for rank, corners, volume in zip(ranks, found.tolist(), volumes(found), strict=True):
        if volume:
            grouped.setdefault(tuple((start, stop) for start, stop in corners), []).append(rank)
    return tuple(Part(box, tuple(members)) for box, members in grouped.items())


def pieces(held: Sequence[Part], wanted: Sequence[Part]) -> tuple[Piece, ...]:
    """Every piece with its sender, the senders balanced; ordered by what is wanted, then by what is held."""
    shared = intersections(_boxes(held), _boxes(wanted))
    size = volumes(shared)
    load: dict[int, int] = {}
    found: dict[tuple[int, int], list[Piece]] = {}
    for here, there in sorted(np.argwhere(size > 0).tolist(), key=lambda at: (-size[at[0], at[1]], at[1], at[0])):
        holders, receivers = held[here].ranks, wanted[there].ranks
        box = tuple((start, stop) for start, stop in shared[here, there].tolist())
        here_already = [Piece(rank, (rank,), box) for rank in receivers if rank in holders]
        found[there, here] = here_already
        if missing := tuple(rank for rank in receivers if rank not in holders):
            sender = min(holders, key=lambda rank: load.get(rank, 0))
            load[sender] = load.get(sender, 0) + int(size[here, there])
            found[there, here] = [*here_already, Piece(sender, missing, box)]
    return tuple(piece for _, several in sorted(found.items()) for piece in several)


def _boxes(of: Sequence[Part]) -> Boxes:
    rank = len(of[0].box) if of else 0
    return np.array([part.box for part in of], np.int64).reshape(len(of), rank, 2)


def direct(held: Sequence[Part], wanted: Sequence[Part]) -> Rounds:
    """Every receiver has its pieces from their holders, in one round."""
    alone = [Part(part.box, (rank,)) for part in wanted for rank in part.ranks]
    found = [Message(p.sender, p.receivers[0], p.box) for p in pieces(held, alone)]
    return (tuple(sorted(found, key=_order)),) if found else ()


def chained(held: Sequence[Part], wanted: Sequence[Part], chunks: int) -> Rounds:
    """Every piece goes down the chain of the ranks that want it, in chunks along its longest dim.

    Chains of pieces that the same ranks want start at one after another of them.
    """
    started: dict[tuple[int, ...], int] = {}
    rounds: dict[int, list[Message]] = {}
    for piece in pieces(held, wanted):
        members = piece.receivers
        first = started.get(members, 0)
        started[members] = (first + 1) % len(members)
        chain = (piece.sender, *members[first:], *members[:first])
        copied = members == (piece.sender,)
        for number, box in enumerate(cut(piece.box, 1 if copied else chunks)):
            for hop, (sender, receiver) in enumerate(pairwise(chain)):
                rounds.setdefault(number + hop, []).append(Message(sender, receiver, box))
    return tuple(tuple(sorted(found, key=_order)) for _, found in sorted(rounds.items()))


def cut(box: Box, count: int) -> tuple[Box, ...]:
    """A box in so many pieces of nearly one size along its longest dim, or as many as there are indices."""
    if not box:
        return (box,)
    dim = max(range(len(box)), key=lambda d: box[d][1] - box[d][0])
    start, stop = box[dim]
    count = min(count, stop - start)
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return tuple((*box[:dim], (a, b), *box[dim + 1 :]) for a, b in pairwise(edges))


def volume(box: Box) -> int:
    """Its elements."""
    return math.prod(stop - start for start, stop in box)


def _order(message: Message) -> tuple[int, int, Box]:
    return message.sender, message.receiver, message.box
