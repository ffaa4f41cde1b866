"""What direct exchanges and permutes put on the links: who is busiest, and for how long.

A placement is how the dims are split, without the states beside them. Between two placements each member sends every
other the intersection of what it holds with what that one wants (``messages.sending_of``); a pair's messages cross the
outermost axis on which the two differ. The exchange takes as long as its busiest member, sending or receiving.
"""

import math
from collections.abc import Sequence

import numpy as np

from autoplan.ir.mesh import Axis
from autoplan.redistribution.exchange.boxes import Dims, boxes, coordinates
from autoplan.redistribution.exchange.messages import senders, write_spec
from autoplan.redistribution.links import Links


class Traffic:
    """Exchanges of one tensor among the members of one group.

    shape     of the tensor that they share
    itemsize  bytes of an element
    axes      the group's
    """

    def __init__(self, shape: Sequence[int], itemsize: int, axes: Sequence[Axis], links: Links):
        self.shape, self.itemsize, self.axes, self.links = tuple(shape), itemsize, tuple(axes), links
        self.names = tuple(axis.name for axis in axes)
        self.sizes = {axis.name: axis.size for axis in axes}
        self.members = math.prod(self.sizes.values())
        self.where = coordinates(self.names, self.sizes)
        self.permuted: dict[tuple[Dims, Dims, int], float] = {}

    def crossed(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(..., axes): 1 for the outermost axis on which two members differ; ``left``, ``right`` are their numbers."""
        found = np.zeros((*np.broadcast_shapes(left.shape, right.shape), len(self.axes)))
        same = np.ones(found.shape[:-1], bool)
        for number, axis in sorted(enumerate(self.axes), key=lambda pair: -pair[1].stride):
            differ = self.where[axis.name][left] != self.where[axis.name][right]
            found[..., number] = same & differ
            same &= ~differ
        return found

    def boxes(self, placement: Dims) -> np.ndarray:
        return boxes(placement, self.shape, self.names, self.sizes)

    def sent(self, before: Dims, after: np.ndarray) -> np.ndarray:
        """(placements, members, members): elements that each member (second) sends each other (last).

        after  (placements, members, dims, 2): the boxes wanted
        """
        held, found = self.boxes(before), np.ones((len(after), self.members, self.members), np.int64)
        for dim in range(len(self.shape)):
            start = np.maximum(held[None, :, None, dim, 0], after[:, None, :, dim, 0])
            stop = np.minimum(held[None, :, None, dim, 1], after[:, None, :, dim, 1])
            found *= np.maximum(stop - start, 0)
        split = {axis for dims in before for axis in dims}
        for name in self.names:
            if name not in split:
                where = self.where[name]
                found *= where[:, None] == where[None, :]
        return found * ~np.eye(self.members, dtype=bool)

    def busiest(self, sent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, bytes) of exchanges: of the members that are busy longest, sending or receiving."""
        size, count = sent * float(self.itemsize), (sent > 0).astype(float)
        everyone = np.arange(self.members)
        crossed = self.crossed(everyone[:, None], everyone[None, :])
        seconds, most = np.zeros(len(sent)), np.zeros(len(sent))
        for toward in ("nij,ijk->nik", "nij,ijk->njk"):
            crossing = [np.einsum(toward, what, crossed) for what in (count, size)]
            seconds = np.maximum(seconds, self.links.messages_s(crossing[0], crossing[1], self.axes).max(axis=1))
            most = np.maximum(most, crossing[1].sum(axis=2).max(axis=1))
        return seconds, most

    def one(self, before: Dims, after: Dims) -> tuple[float, float]:
        """``busiest`` of a single exchange."""
        seconds, most = self.busiest(self.sent(before, self.boxes(after)[None]))
        return float(seconds[0]), float(most[0])

    def permute_s(self, before: Dims, after: Dims, part_bytes: int) -> float:
        """Seconds of a permute: one message for each member that doesn't keep its part."""
        key = (before, after, part_bytes)
        if key not in self.permuted:
            receivers = np.arange(self.members)
            crossed = self.crossed(np.array(senders(write_spec(before, after), self.names, self.sizes)), receivers)
            self.permuted[key] = float(self.links.messages_s(crossed, crossed * part_bytes, self.axes).max())
        return self.permuted[key]
