"""Parameter servers: gradients pushed to the rank that has a parameter, its new values pulled from there.

Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI). Which ranks are servers, and
what each has, ``ir.buckets`` says. Every rank is a worker. A step of synchronous servers,

    push    each worker sends a bucket of gradients to its server as soon as its backward has given them; the server
            adds them up in the order of the ranks, its own first, so that the sum is the same in every run
    update  of the server's own parameters alone: only there are gradients, and so optimizer state
    pull    the server sends each worker the new values, bucket by bucket, of all servers side by side

Messages go from rank to rank, many to one and one to many: a server's link carries those of all workers. No collective
is used: a server waits for every gradient, but no worker for another's.

With a staleness of s the pull isn't waited for: it runs beside the next step, whose gradients are of weights that have
been there before (``runtime.optim.asynchronous.weight_stashing``). What ends it is the next update, or whatever reads
the newest values.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.ir.buckets import cut
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.servers.backups import Backups
from autoplan.runtime.parallel.servers.deliveries import Deliveries
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import ProgramSpec

ROUNDS = 2
"""Buckets of each server that are pulled at once by synchronous workers: one is copied while the next is on its way."""


class Push:
    """Workers' tensors on their way to the one rank that adds them up: a ``Work``, whose end leaves the sum there.

    flat   of this rank; the server's becomes the sum, or of those who are taken the mean
    owner  the server's rank in the group
    taken  of a step with backup workers those whose tensors count (``backups``); None: all
    """

    def __init__(self, flat: Tensor, group: ProcessGroup, owner: int, taken: Sequence[int] | None = None) -> None:
        self.flat, self.arriving, self.ways = flat, [], len(taken) if taken is not None else 1
        if group.rank() != owner:
            self.works = sent([(dist.isend, flat, owner)] * (taken is None or group.rank() in taken), group)
            return
        if taken is not None and owner not in taken:
            flat.zero_()
        workers = [rank for rank in (range(group.size()) if taken is None else taken) if rank != owner]
        self.arriving = [torch.empty_like(flat) for _ in workers]
        self.works = sent([(dist.irecv, x, rank) for x, rank in zip(self.arriving, workers, strict=True)], group)

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        for arrived in self.arriving:
            self.flat.add_(arrived)
        if self.arriving and self.ways > 1:
            self.flat.div_(self.ways)
        self.works, self.arriving = [], []  # works hold the memory, too


@dataclass(frozen=True)
class Pull:
    """One bucket of values on its way from its server.

    flat  the values one after another, in memory of their own
    """

    held: Sequence[ShardedParameter]
    flat: Tensor
    works: Sequence[dist.Work]
    mine: bool

    @torch.no_grad()
    def take(self) -> None:
        """Waits for it, and has the parameters be what has come."""
        for work in self.works:
            work.wait()
        if not self.mine:
            for each, part in zip(self.held, self.flat.split([h.values.numel() for h in self.held]), strict=True):
                each.values.copy_(part.view_as(each.values))


class Servers:
    """The shards of one program's parameters, as one rank sees them.

    staleness  updates by which the weights that gradients are of are behind the newest
    arrived    is called once new values are there
    backups    whose gradients are taken; None: all workers'
    tell       is told of workers that are lost
    """

    def __init__(
        self, spec: ProgramSpec, held: Sequence[ShardedParameter], axis: MeshAxis, arrived: Callable[[], None],
        timeout_s: float, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        assert axis.group is not None, "a data axis of one rank has no servers"
        self.arrived, self.group, self.staleness = arrived, axis.group, spec.parallelism.staleness or 0
        spare = spec.parallelism.backups
        dtype = torch.float64 if spec.training.precision == "fp64" else torch.float32
        nothing = torch.zeros((), dtype=dtype, device=held[0].parameter.device)
        self.backups = Backups(axis, spare, timeout_s, nothing) if spare else None
        self.deliveries = Deliveries(self.group, self.backups, tell) if self.backups else None
        self.owners = spec.owners
        self.held = [h for h in held if h.stored.trainable]
        self.rounds = list(pull_rounds(self.held, self.owners))
        self.flying = deque[Pull]()

    @torch.no_grad()
    def updated(self) -> None:
        """After an update: the servers' new values go to all workers, who wait for them where gradients are to be of
        these."""
        if self.deliveries is not None:
            self.deliveries.updated()
        for buckets in self.rounds:
            self.flying += [self.pull(bucket) for bucket in buckets]
            if not self.staleness:
                self.take(beside=(ROUNDS - 1) * len(buckets))
        if not self.staleness:
            self.come()

    def before_step(self) -> None:
        """A step computes with what is there: with older weights, where the newest are still on their way."""

    def begin(self) -> None:
        """Something other than an update has set the values, on every rank."""

    def settle(self) -> None:
        """Waits for all that is on its way, to whoever."""
        self.come()
        if self.deliveries is not None:
            self.deliveries.settle()

    def give_up(self, error: BaseException) -> None:
        """This rank ends by an error, as all do then."""

    before_update = close = settle

    def come(self) -> None:
        """Waits for what is on its way to this rank, or from it to workers that aren't late."""
        if self.flying:
            self.take()
            self.arrived()

    def take(self, beside: int = 0) -> None:
        """All that is on its way but for the last so many."""
        while len(self.flying) > beside:
            self.flying.popleft().take()

    def pull(self, held: Sequence[ShardedParameter]) -> Pull:
        """Begins to send one server's bucket."""
        owner, first = self.owners[held[0].name], held[0].values
        if self.group.rank() == owner:
            flat = torch.cat([h.values.reshape(-1) for h in held])
            if self.deliveries is not None:
                self.deliveries.send(flat)
                return Pull(held, flat, (), True)
            workers = (rank for rank in range(self.group.size()) if rank != owner)
            return Pull(held, flat, sent([(dist.isend, flat, rank) for rank in workers], self.group), True)
        flat = first.new_empty(sum(h.values.numel() for h in held))
        return Pull(held, flat, sent([(dist.irecv, flat, owner)], self.group), False)

    def gradient(self, held: ShardedParameter) -> Tensor | None:
        """A parameter's gradient on every rank, as its server has it; None where it has none. All ranks call it."""
        owner = self.owners.get(held.name)
        if owner is None:
            return held.gradient
        mine = held.gradient if self.group.rank() == owner else None
        there = torch.tensor(float(mine is not None), device=held.values.device)
        dist.broadcast(there, group=self.group, group_src=owner)
        if not there:
            return None
        found = torch.empty_like(held.values) if mine is None else mine.clone()
        dist.broadcast(found, group=self.group, group_src=owner)
        return found


def sent(messages: Sequence[tuple[Callable, Tensor, int]], group: ProcessGroup) -> list[dist.Work]:
    """Starts messages to and from ranks of a group, as one where the backend can."""
    operations = [dist.P2POp(way, x, group=group, group_peer=peer) for way, x, peer in messages]
    return dist.batch_isend_irecv(operations) if operations else []


def pull_rounds(
    held: Sequence[ShardedParameter], owners: Mapping[str, int]
) -> Iterator[list[list[ShardedParameter]]]:
    """The buckets in which values are pulled, one of each server that has any left; the same on all ranks."""
    shards: dict[tuple[int, torch.dtype], list[ShardedParameter]] = {}
    for each in held:
        shards.setdefault((owners[each.name], each.values.dtype), []).append(each)
    ordered = sorted(shards, key=lambda kind: (kind[0], str(kind[1])))
    queues = [deque(buckets_of(shards[kind])) for kind in ordered]
    while any(queues):
        yield [queue.popleft() for queue in queues if queue]


def buckets_of(held: Sequence[ShardedParameter]) -> Iterator[list[ShardedParameter]]:
    for places in cut([h.values.numel() * h.values.element_size() for h in held]):
        yield [held[place] for place in places]

