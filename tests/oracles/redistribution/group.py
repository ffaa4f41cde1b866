"""What each operator of a redistribution does to the arrays of one group, forward and backward, in NumPy.

The table at the end is all that ``simulate`` knows of the operators. Both columns are written down on their own, so
that a test can show that the second is the adjoint of the first. Beside the arrays each says how many elements crossed
the links: reductions as the best algorithms need them, a reduce-scatter (n-1)/n of the operand to every member and an
all-reduce twice that (Thakur et al. 2005, section 4), everything else as it is sent.

Arrays are of floating point; they may share memory and are never written to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autoplan.ir.typed_program import Collective
from autoplan.redistribution.exchange.boxes import boxes
from autoplan.redistribution.exchange.messages import Box, parse_spec, reverse_spec, senders
from tests.oracles.redistribution.messages import messages

Parts = list[np.ndarray]
Index = tuple[slice, ...]


class Moved(NamedTuple):
    """What an operator leaves with each member of a group, and the elements that each was sent and sent itself."""

    parts: Parts
    received: Sequence[float]
    sent: Sequence[float]


@dataclass(frozen=True)
class Call:
    """An operator's arguments, the same for every group of the mesh."""

    step: Collective
    sizes: dict[str, int]

    @property
    def dim(self) -> int:
        return self.step.dims[0]

    @cached_property
    def senders(self) -> tuple[int, ...]:
        return senders(self.step.spec, self.step.axes, self.sizes)

    @cached_property
    def there(self) -> Route:
        return self._route(self.step.spec)

    @cached_property
    def back(self) -> Route:
        return self._route(reverse_spec(self.step.spec))

    def _route(self, spec: str) -> Route:
        shape, axes = self.step.shape, self.step.axes
        before, after = (boxes(dims, shape, axes, self.sizes) for dims in parse_spec(spec))
        starts = before[..., 0].tolist(), after[..., 0].tolist()
        transfers = []
        for message in messages(spec, shape, axes, self.sizes):
            sender, receiver = message.sender, message.receiver
            ways = _within(message.box, starts[0][sender]), _within(message.box, starts[1][receiver])
            transfers.append(Transfer(sender, receiver, *ways))
        lengths = [[tuple(row) for row in np.diff(found)[..., 0].tolist()] for found in (before, after)]
        return Route(transfers, *lengths)


class Transfer(NamedTuple):
    """A message by where it lies in the sender's array and where in the receiver's."""

    sender: int
    receiver: int
    source: Index
    target: Index


class Route(NamedTuple):
    """The messages of an exchange, and the shapes of what members hold before and after."""

    transfers: list[Transfer]
    before: list[tuple[int, ...]]
    after: list[tuple[int, ...]]


Work = Callable[[Parts, Call], Moved]


def _free(parts: Parts) -> Moved:
    return Moved(parts, [0] * len(parts), [0] * len(parts))


def _each(parts: Parts, elements: float) -> Moved:
    """Every member was sent as many elements as it sent."""
    return Moved(parts, [elements] * len(parts), [elements] * len(parts))


def _keep(xs: Parts, call: Call) -> Moved:
    return _free(xs)


def _mask(xs: Parts, call: Call) -> Moved:
    return _free([xs[0], *(np.zeros_like(x) for x in xs[1:])])


def _slice(xs: Parts, call: Call) -> Moved:
    return _free([_split(x, len(xs), call.dim)[member] for member, x in enumerate(xs)])


def _pad(xs: Parts, call: Call) -> Moved:
    zeros = np.zeros_like(xs[0])
    alone = [[x if other == member else zeros for other in range(len(xs))] for member, x in enumerate(xs)]
    return _free([np.concatenate(row, call.dim) for row in alone])


def _gather(xs: Parts, call: Call) -> Moved:
    return _each([np.concatenate(xs, call.dim)] * len(xs), sum(x.size for x in xs[1:]))


def _sum(xs: Parts, call: Call) -> Moved:
    return _each([_total(xs)] * len(xs), 2 * xs[0].size * (len(xs) - 1) / len(xs))


def _max(xs: Parts, call: Call) -> Moved:
    return _each([np.maximum.reduce(xs)] * len(xs), 2 * xs[0].size * (len(xs) - 1) / len(xs))


def _scatter_sum(xs: Parts, call: Call) -> Moved:
    parts = _split(_total(xs), len(xs), call.dim)
    return _each(parts, parts[0].size * (len(xs) - 1))


def _scatter_max(xs: Parts, call: Call) -> Moved:
    parts = _split(np.maximum.reduce(xs), len(xs), call.dim)
    return _each(parts, parts[0].size * (len(xs) - 1))


def _all_to_all(xs: Parts, call: Call) -> Moved:
    return _transpose(xs, *call.step.dims)


def _all_to_all_back(xs: Parts, call: Call) -> Moved:
    return _transpose(xs, *reversed(call.step.dims))


def _transpose(xs: Parts, source: int, target: int) -> Moved:
    """From split along ``source`` to split along ``target``."""
    pieces = [_split(x, len(xs), target) for x in xs]
    received = sum(row[0].size for row in pieces[1:])
    return _each([np.concatenate(column, source) for column in zip(*pieces, strict=True)], received)


def _permute(xs: Parts, call: Call) -> Moved:
    return _handed([xs[sender] for sender in call.senders], call.senders)


def _permute_back(xs: Parts, call: Call) -> Moved:
    receivers = tuple(call.senders.index(member) for member in range(len(xs)))
    return _handed([xs[receiver] for receiver in receivers], receivers)


def _handed(parts: Parts, senders: Sequence[int]) -> Moved:
    sent = [0] * len(parts)
    received = [0 if sender == member else parts[member].size for member, sender in enumerate(senders)]
    for sender, elements in zip(senders, received, strict=True):
        sent[sender] += elements
    return Moved(parts, received, sent)


def _fetch(xs: Parts, call: Call) -> Moved:
    return _fetched(xs, call.there)


def _fetch_back(xs: Parts, call: Call) -> Moved:
    return _fetched(xs, call.back)


def _return(xs: Parts, call: Call) -> Moved:
    return _returned(xs, call.there)


def _reduce(xs: Parts, call: Call) -> Moved:
    return _returned(xs, call.back)


def _fetched(xs: Parts, route: Route) -> Moved:
    """Every member is sent the boxes that it lacks."""
    results = [np.full(shape, np.nan) for shape in route.after]
    received, sent = [0] * len(xs), [0] * len(xs)
    for sender, receiver, source, target in route.transfers:
        value = xs[sender][source]
        results[receiver][target] = value
        if sender != receiver:
            received[receiver] += value.size
            sent[sender] += value.size
    return Moved(results, received, sent)


def _returned(xs: Parts, route: Route) -> Moved:
    """The transpose: what came is sent back, and what several were sent is added."""
    results = [np.zeros(shape) for shape in route.before]
    received, sent = [0] * len(xs), [0] * len(xs)
    for sender, receiver, source, target in route.transfers:
        value = xs[receiver][target]
        results[sender][source] += value
        if sender != receiver:
            received[sender] += value.size
            sent[receiver] += value.size
    return Moved(results, received, sent)


def _within(box: Box, starts: Sequence[int]) -> Index:
    """Where a box lies in an array that starts there."""
    return tuple(slice(start - own, stop - own) for (start, stop), own in zip(box, starts, strict=True))


def _total(xs: Parts) -> np.ndarray:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def _split(x: np.ndarray, ways: int, dim: int) -> Parts:
    """Equal parts; ValueError where there are none."""
    length, left = divmod(x.shape[dim], ways)
    if left:
        raise ValueError(f"dim {dim} of {x.shape} doesn't divide by {ways}")
    outer = (slice(None),) * dim
    return [x[(*outer, slice(at * length, (at + 1) * length))] for at in range(ways)]


OPERATORS: dict[str, tuple[Work, Work | None]] = {
    "all_gather": (_gather, _scatter_sum),
    "all_gather_invariant": (_gather, _slice),
    "shard": (_slice, _pad),
    "shard_invariant": (_slice, _gather),
    "all_to_all": (_all_to_all, _all_to_all_back),
    "to_replicate": (_keep, _sum),
    "to_invariant": (_keep, _mask),
    "all_reduce": (_sum, _keep),
    "all_reduce_to_replicate": (_sum, _sum),
    "all_reduce_max": (_max, None),
    "reduce_scatter": (_scatter_sum, _gather),
    "reduce_scatter_max": (_scatter_max, None),
    "replicate_to_max": (_keep, None),
    "replicate_to_partial": (_mask, _mask),
    "invariant_to_partial": (_mask, _keep),
    "shard_to_partial": (_pad, _slice),
    "permute": (_permute, _permute_back),
    "exchange": (_fetch, _return),
    "exchange_invariant": (_fetch, _fetch_back),
    "exchange_sum": (_reduce, _fetch_back),
}
"""op -> (forward, backward) on the arrays of one group; no backward where no gradient passes."""
