"""Backup workers: a step takes the gradients of the first n of its workers to be done, and drops the others'.

Chen et al. 2016, "Revisiting Distributed Synchronous SGD", algorithms 3 and 4: of n + b workers a step waits for n, and
updates by the mean of theirs. A worker whose backward is done draws a ticket of that step, from a store that all ranks
share. Who draws one of the first n is taken, and pushes its gradients; the others' are dropped where they are, and no
server waits for them. All servers read the same tickets, and add up in the order of ranks: a step is a function of who
was taken. ``recorded`` has that, and ``pinned`` repeats it.

A worker that finds a step's n tickets drawn before it begins with it computes nothing: it takes the new values, and has
caught up. Its rows of that batch are used by nobody.

No rank waits for all of them in a step, so what ranks agree on by a collective they agree on in the first step alone:
that batches belong together.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ParamSpec

import torch.distributed as dist
from torch import Tensor

from autoplan.errors import InputsError, LostRankError
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.objects import from_first

P = ParamSpec("P")
Taken = tuple[int, ...]
"""The data ranks whose gradients a step is by, in the order in which they were done."""


class Backups:
    """Who is taken, on one rank; a collective of the whole world to make.

    first     workers that a step takes
    recorded  who was taken in each step so far; None: it isn't kept
    nothing   a loss of zero, of the device and dtype of losses
    pinned    who is taken in each step from the first on, whoever is done first; None: the first
    """

    recorded: list[Taken] | None = None
    pinned: Sequence[Taken] | None = None

    def __init__(self, axis: MeshAxis, count: int, timeout_s: float, nothing: Tensor) -> None:
        self.rank, self.size, self.first, self.timeout_s = axis.rank, axis.size, axis.size - count, timeout_s
        self.store, self.step = shared_store(timeout_s), 0
        self.now: Taken = ()
        self.nothing = nothing
        self.idle = False
        self.written: deque[list[str]] = deque([[]])

    @property
    def taken(self) -> tuple[int, ...]:
        """Of the last step, in the order of ranks."""
        return tuple(sorted(self.now))

    def places(self) -> list[str]:
        """Where this step's tickets say who has them, and their losses."""
        return [f"{self.step}/{place}" for place in range(1, self.first + 1)]

    def dropped(self) -> bool:
        """Whether it is known before the step that this rank's gradients aren't wanted."""
        if self.pinned is not None:
            return self.rank not in self.turn(self.pinned)
        return self.store.check(self.places())

    def turn(self, pinned: Sequence[Taken]) -> Taken:
        """InputsError where what is pinned says nothing of this step, or takes another number of workers."""
        found = tuple(pinned[self.step]) if self.step < len(pinned) else ()
        if len(set(found)) != self.first or not set(found) <= set(range(self.size)):
            cause = f"of step {self.step + 1} it says {found}, and {self.first} of {self.size} workers are taken"
            raise InputsError("backups.pinned", cause, "give as many ranks for each step, or None")
        return found

    def run(self, compute: Callable[P, Tensor], *given: P.args, **named: P.kwargs) -> Tensor:
        """This rank's loss, its gradients computed, unless they are dropped before."""
        self.idle = self.dropped()
        return self.nothing if self.idle else compute(*given, **named)

    def arrived(self, loss: Tensor) -> Tensor:
        """This rank's gradients are done, or it has none: who is taken, and the mean of their losses, once they are.

        LostRankError where too few workers are done in time.
        """
        places, ticket = self.places(), f"{self.step}/tickets"
        if self.pinned is not None:
            turn = self.turn(self.pinned)
            place = turn.index(self.rank) + 1 if self.rank in turn else 0
        else:
            place = 0 if self.idle else self.store.add(ticket, 1)
        if 0 < place <= self.first:
            self.store.set(places[place - 1], f"{self.rank} {loss.item()!r}")
        try:
            self.store.wait(places, timedelta(seconds=self.timeout_s))
        except dist.DistError:
            raise self.too_few(places) from None
        told = [self.store.get(name).decode().split() for name in places]
        losses = {int(rank): float(value) for rank, value in told}
        self.now, self.step = tuple(losses), self.step + 1
        self.written[-1] += [*places, ticket]
        if self.recorded is not None:
            self.recorded.append(self.now)
        return self.nothing.new_tensor(sum(losses[rank] for rank in self.taken) / self.first)

    def too_few(self, places: Sequence[str]) -> LostRankError:
        done = [self.store.get(name).decode().split()[0] for name in places if self.store.check([name])]
        return LostRankError(
            f"step {self.step + 1} of {self.size - self.first} backup workers",
            f"of {self.size} workers {self.first} have to be done, and within {self.timeout_s:g} s "
            f"{'only ' + ', '.join(sorted(done)) if done else 'none'} were",
            "start it anew from a checkpoint, with more backups where workers are lost often",
        )

    def updated(self) -> None:
        """An update has been made: what was written from here on is of the next one."""
        self.written.append([])

    def received(self) -> None:
        """All workers have the values of the oldest update of which something is written: nobody reads that again."""
        for name in self.written.popleft() if self.rank == 0 else ():
            self.store.delete_key(name)


def shared_store(timeout_s: float) -> dist.Store:
    """A store that the first rank keeps, for all ranks."""
    host, store = os.environ.get("MASTER_ADDR", "127.0.0.1"), None
    if dist.get_rank() == 0:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    port = from_first(0 if store is None else store.port)
    return store or dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))


def in_turns(step: int, workers: int, first: int) -> Taken:
    """Who is taken where workers take turns in being dropped: what a verification pins."""
    return tuple((step + place) % workers for place in range(first))
