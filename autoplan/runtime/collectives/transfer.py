"""A value's way from one stage's ranks to another's and its gradient's way back, executed as they were planned.

Nothing here is seen by autograd: the schedule of a pipeline says when a stage sends and when it receives. Every rank
follows the same plan, so no rank has to tell another what comes.

    groups = Groups()
    crossing = Crossing(transfer, groups, torch.float32, device)     # on every rank of the world
    sent = crossing.forward.send(x)                                  # on the ranks of the source
    y = crossing.forward.receive()                                   # on the ranks of the target
    sent.wait()                                                      # when the memory is to be used again
    ... crossing.backward.send(y_gradient) ... crossing.backward.receive()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp, ProcessGroup, Work

from autoplan.ir.typed import Collective
from autoplan.redistribution.exchange.messages import Box, Message
from autoplan.redistribution.meshes.legs import Leg, Transfer
from autoplan.redistribution.meshes.sides import Side
from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.collectives.redistribution import groups_of, run

Index = tuple[slice, ...]


class Groups:
    """Process groups of the ranks of stages, each made once.

    Every process of the world has to ask for the same ones in the same order, those that are in none of them too.
    """

    def __init__(self) -> None:
        self.made: dict[tuple[object, ...], ProcessGroup] = {}

    def axes(self, side: Side, steps: Sequence[Collective]) -> dict[str, MeshAxis]:
        """What the collectives on one mesh run over, by name; nothing on ranks beside the mesh."""
        found = {}
        for names in groups_of(steps):
            for members in members_of(side, names):
                group = self.group(members)
                if distributed.get_rank() in members:
                    found[",".join(names)] = rank_axis(side, names, members, group)
        return found

    def messages(self, leg: Leg, way: str) -> ProcessGroup:
        """What a leg's messages go over, used by no other traffic: nccl takes a group's messages one after another, so
        a value that waits to be received must hold up no gradient, nor a value that goes the other way."""
        ranks = (*leg.source.devices, *leg.target.devices)
        known = len(self.made)
        group = self.group(ranks, way, leg.source.devices, leg.target.devices)
        if len(self.made) > known and distributed.get_rank() in ranks:
            distributed.barrier(group)  # nccl's first use of a group has to be by all of its ranks
        return group

    def group(self, members: Sequence[int], *purpose: object) -> ProcessGroup:
        """Of these ranks, for one purpose."""
        ranks = sorted(set(members))
        key = (*ranks, *purpose)
        if key not in self.made:
            self.made[key] = distributed.new_group(ranks)
        return self.made[key]


def members_of(side: Side, names: Sequence[str]) -> list[list[int]]:
    """The ranks of every group over these axes, row-major in the order of the names."""
    axes = [side.mesh.axis(name) for name in names]
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for device, rank in enumerate(side.devices):
        at = tuple(device // axis.stride % axis.size for axis in axes)
        first = device - sum(axis.stride * place for axis, place in zip(axes, at, strict=True))
        found.setdefault(first, []).append((at, rank))
    return [[rank for _, rank in sorted(members)] for members in found.values()]


def rank_axis(side: Side, names: Sequence[str], members: Sequence[int], group: ProcessGroup) -> MeshAxis:
    """The group as the calling rank sees it."""
    device = side.devices.index(distributed.get_rank())
    parts = tuple(MeshAxis(name, side.mesh.size(name), side.mesh.coordinate(device, name)) for name in names)
    order = sorted(members)  # in which torch numbers a group's ranks
    places = tuple(order.index(member) for member in members)
    index, size = index_over(parts)
    several = parts if len(parts) > 1 else ()
    return MeshAxis(",".join(names), size, index, group, several, () if order == list(members) else places)


@dataclass(frozen=True)
class Sent:
    """What a rank holds until its sends are done."""

    held: Tensor
    works: tuple[Work, ...]
    outgoing: tuple[Tensor, ...]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


@dataclass(frozen=True)
class Round:
    """One rank's messages of a round: (peer, place in what it receives)."""

    received: tuple[tuple[int, Index], ...]
    passed_on: tuple[tuple[int, Index], ...]


class RankLeg:
    """One rank's share of a leg.

    way  "forward" or "backward"
    dtype, device  of what it receives
    """

    def __init__(self, leg: Leg, way: str, groups: Groups, dtype: torch.dtype, device: torch.device) -> None:
        self.leg, self.dtype, self.device = leg, dtype, device
        self.group = groups.messages(leg, way)
        self.before_axes, self.after_axes = groups.axes(leg.source, leg.before), groups.axes(leg.target, leg.after)
        rank = distributed.get_rank()
        given, held, wanted = (part_of(side, leg.shape, rank) for side in (leg.source, leg.sent, leg.landed))
        self.given, self.wanted = given, wanted
        mine = [m for messages in leg.rounds for m in messages if m.sender == rank]
        own = [(m, place(m.box, held)) for m in mine if held is not None and within(m.box, held)]
        self.sends = tuple((m.receiver, at) for m, at in own if m.receiver != rank)
        self.copies = tuple((at, place(m.box, wanted or ())) for m, at in own if m.receiver == rank)
        first = {m for m, _ in own}
        self.rounds = tuple(round_of(messages, rank, first, wanted) for messages in leg.rounds if wanted is not None)

    def send(self, x: Tensor) -> Sent:
        """Starts sending a rank's part; what has to be reduced is reduced first, with the other ranks of its mesh."""
        assert self.given is not None, f"rank {distributed.get_rank()} holds nothing that it could send"
        assert tuple(x.shape) == lengths(self.given), f"a part of shape {tuple(x.shape)}, planned was {self.given}"
        with torch.no_grad():
            held = run(self.leg.before, countable(x.detach()), self.before_axes)
            outgoing = tuple(in_bytes(held[at]) for _, at in self.sends)
        sends = [P2POp(distributed.isend, x, to, self.group) for x, (to, _) in zip(outgoing, self.sends, strict=True)]
        return Sent(held, tuple(started(sends)), outgoing)

    def receive(self, sent: Sent | None = None) -> Tensor:
        """This rank's part on the target's mesh, once it has come, and been gathered with the other ranks of its mesh.

        sent  of a rank that is on both meshes: it keeps what it holds itself
        """
        assert self.wanted is not None, f"rank {distributed.get_rank()} receives nothing"
        make = torch.zeros if self.leg.landed.holding("P") else torch.empty
        with torch.no_grad():
            buffer = make(lengths(self.wanted), dtype=self.dtype, device=self.device)
            for source, target in self.copies:
                assert sent is not None, f"rank {distributed.get_rank()} is on both meshes: give what it sends"
                countable(buffer)[target] = sent.held[source]
            for messages in self.rounds:
                exchange(messages, buffer, self.group)
            return run(self.leg.after, countable(buffer), self.after_axes).view(self.dtype)

    def move(self, x: Tensor | None) -> Tensor | None:
        """Sends and receives, as the rank is on the one mesh, on the other, on both or on neither."""
        sent = self.send(x) if x is not None else None
        result = self.receive(sent) if self.wanted is not None else None
        if sent is not None:
            sent.wait()
        return result


class Crossing:
    """A transfer on one rank: ``forward`` for the value, ``backward`` for its gradient where it carries one.

    Every process of the world makes it, with the same transfers in the same order.
    """

    def __init__(self, transfer: Transfer, groups: Groups, dtype: torch.dtype, device: torch.device) -> None:
        self.forward = RankLeg(transfer.forward, "forward", groups, dtype, device)
        back = transfer.backward
        self.backward = RankLeg(back, "backward", groups, dtype, device) if back is not None else None


def exchange(messages: Round, buffer: Tensor, group: ProcessGroup) -> None:
    """One round: receives into the buffer and passes on what came before."""
    arriving = [buffer[at] for _, at in messages.received]
    # what is contiguous is received in place
    landing = [x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format) for x in arriving]
    passed = [in_bytes(buffer[at]) for _, at in messages.passed_on]
    ops = [P2POp(distributed.isend, x, to, group) for x, (to, _) in zip(passed, messages.passed_on, strict=True)]
    incoming = zip(landing, messages.received, strict=True)
    ops += [P2POp(distributed.irecv, in_bytes(x), of, group) for x, (of, _) in incoming]
    for work in started(ops):
        work.wait()
    for x, landed in zip(arriving, landing, strict=True):
        if landed is not x:
            x.copy_(landed)


def started(ops: list[P2POp]) -> list[Work]:
    return distributed.batch_isend_irecv(ops) if ops else []


def countable(x: Tensor) -> Tensor:
    """The tensor; truth values as bytes, for gloo's collectives carry none."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def in_bytes(x: Tensor) -> Tensor:
    """The memory of a tensor, a copy where it isn't contiguous: links carry every dtype as bytes."""
    return x.contiguous().view(-1).view(torch.uint8)


def round_of(messages: Sequence[Message], rank: int, own: set[Message], wanted: Box) -> Round:
    received = [(m.sender, place(m.box, wanted)) for m in messages if m.receiver == rank != m.sender]
    passed_on = [(m.receiver, place(m.box, wanted)) for m in messages if m.sender == rank and m not in own]
    return Round(tuple(received), tuple(passed_on))


def part_of(side: Side, shape: Sequence[int], rank: int) -> Box | None:
    """The box of a rank on a mesh, None where it isn't on it."""
    if rank not in side.devices:
        return None
    return tuple((start, stop) for start, stop in side.boxes(shape)[side.devices.index(rank)].tolist())


def place(box: Box, part: Box) -> Index:
    """A box of the tensor in indices of a part of it."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, part, strict=True))


def lengths(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def within(inner: Box, outer: Box) -> bool:
    return all(start <= a and b <= stop for (a, b), (start, stop) in zip(inner, outer, strict=True))
