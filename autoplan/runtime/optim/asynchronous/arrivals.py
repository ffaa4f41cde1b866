"""What a server that applies gradients as they arrive keeps of them: in which order they came, and of which weights.

A run of such servers is a function of this record: each worker's gradient is that of its own rows at the weights that
it had read, and each server applies them in its order, one update each. ``recorded`` has that, and ``pin`` repeats it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from autoplan.errors import InputsError


class Arrival(NamedTuple):
    """One worker's gradients of a shard.

    worker  its data rank
    read    updates of the shard that the weights had seen which these gradients are of
    """

    worker: int
    read: int


class Turns:
    """Who is next at one server where that is pinned.

    order    the arrivals from the first on
    to_read  of each worker, the updates after which it reads what its gradients are of; the first were there before

    Each has its turn in that order, and reads neither too early nor once another update has been made.
    """

    def __init__(self, order: Sequence[Arrival], workers: int) -> None:
        self.order = order
        self.to_read = [[one.read for one in order if one.worker == worker][1:] for worker in range(workers)]

    def may_push(self, worker: int, version: int) -> bool:
        """InputsError where what is pinned doesn't say who is next."""
        if version >= len(self.order):
            cause = f"it says nothing of update {version + 1}"
            raise InputsError("servers.pin(orders)", cause, "give an arrival for each, or None")
        return self.order[version].worker == worker and all(reads[:1] != [version] for reads in self.to_read)

    def may_read(self, worker: int, version: int) -> bool:
        return self.to_read[worker][:1] in ([], [version])

    def has_read(self, worker: int) -> None:
        self.to_read[worker] = self.to_read[worker][1:]


def in_turn(workers: int, steps: int) -> list[Arrival]:
    """Workers that push one after another, each of which has its own update's weights at once: what a verification
    pins. After the first step gradients are of weights as many updates old as there are other workers."""
    turns = ((step, worker) for step in range(steps) for worker in range(workers))
    return [Arrival(worker, (step - 1) * workers + worker + 1 if step else 0) for step, worker in turns]


