"""What one rank sends and receives in a permute and in an exchange, and how it does.

The messages follow from the same words on every rank (autoplan.redistribution.exchange.messages), so none has to tell
another what comes. A compiler takes them as constants: they depend on the program and on the rank, never on a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from autoplan.redistribution.exchange.boxes import Boxes, boxes, volumes
from autoplan.redistribution.exchange.messages import Box, parse_spec, reverse_spec, senders, sending_of
from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis

F = TypeVar("F", bound=Callable)


@dataclass(frozen=True)
class Route:
    """An exchange as one member takes part in it.

    before, after   the shape of its part, as it holds it and as it will
    sent, received  for each member, the box that goes to it and the one that comes from it, in indices of this member's
                    part before and after; None where nothing does. Its own entry is what it keeps
    member          its index
    silent          no member sends another anything, so nothing crosses the links
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    sent: tuple[Box | None, ...]
    received: tuple[Box | None, ...]
    member: int
    silent: bool

    def transposed(self) -> Route:
        """Every message sent back."""
        return Route(self.after, self.before, self.received, self.sent, self.member, self.silent)


Routes = tuple[Route, Route]
"""Of the forward and of the backward."""


def find_route(spec: str, shape: Sequence[int], member: int, names: Sequence[str], sizes: Sequence[int]) -> Route:
    """A member's share of an exchange's messages."""
    before, after = parse_spec(spec)
    by_name = dict(zip(names, sizes, strict=True))
    held, wanted = (boxes(dims, shape, names, by_name) for dims in (before, after))
    sent, received = sending_of(member, held, wanted, before, names, by_name)
    kept = np.stack([np.maximum(held[..., 0], wanted[..., 0]), np.minimum(held[..., 1], wanted[..., 1])], axis=-1)
    return Route(
        before=_lengths(held[member]),
        after=_lengths(wanted[member]),
        sent=_within(sent, held[member]),
        received=_within(received, wanted[member]),
        member=member,
        silent=bool((volumes(kept) == volumes(wanted)).all()),
    )


def _lengths(box: Boxes) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box.tolist())


def _within(found: Boxes, part: Boxes) -> tuple[Box | None, ...]:
    """Boxes of the shared tensor in indices of one part, None for those that are empty."""
    full = volumes(found) > 0
    relative = found - part[:, :1]
    return tuple(
        tuple((start, stop) for start, stop in box) if some else None
        for box, some in zip(relative.tolist(), full.tolist(), strict=True)
    )


def constant_if_compiled(function: F) -> F:
    """Marks a function as torch.compiler.assume_constant_result does. That imports the whole compiler to set the mark:
    half a second and 40 MB of every process that loads a plan."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_if_compiled
def routes(
    op: str, spec: str, shape: tuple[int, ...], member: int, names: tuple[str, ...], sizes: tuple[int, ...]
) -> Routes:
    """The routes of an exchange forward and backward; ``op`` names the function of ``collectives.typed``."""
    if op == "exchange_sum":
        back = find_route(reverse_spec(spec), shape, member, names, sizes)
        return back.transposed(), back
    there = find_route(spec, shape, member, names, sizes)
    if op == "exchange_invariant":
        return there, find_route(reverse_spec(spec), shape, member, names, sizes)
    assert op == "exchange", op
    return there, there.transposed()


@constant_if_compiled
def partners(spec: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of a permute: for each member, whose part it takes over and who takes over its own."""
    sources = senders(spec, names, dict(zip(names, sizes, strict=True)))
    return sources, tuple(sources.index(member) for member in range(len(sources)))


def fetch(x: Tensor, there: Route, back: Route, axis: MeshAxis) -> Tensor:
    """This member's part after an exchange: what it lacks comes from the others, each element once."""
    result = x.new_empty(there.after)
    for box, piece in _pieces(x, there, axis):
        result[box] = piece
    return result


def fetch_back(x: Tensor, there: Route, back: Route, axis: MeshAxis) -> Tensor:
    return fetch(x, back, there, axis)


def collect(x: Tensor, there: Route, back: Route, axis: MeshAxis) -> Tensor:
    """The transpose of a fetch: what comes from the others and what is kept is added up; zeros where nothing does."""
    result = x.new_zeros(there.after)
    for box, piece in _pieces(x, there, axis):
        result[box] += piece
    return result


def collect_back(x: Tensor, there: Route, back: Route, axis: MeshAxis) -> Tensor:
    return collect(x, back, there, axis)


def _pieces(x: Tensor, route: Route, axis: MeshAxis) -> list[tuple[tuple[slice, ...], Tensor]]:
    """What this member receives and keeps, in the order of the senders, and where it belongs."""
    assert tuple(x.shape) == route.before, f"a part of shape {tuple(x.shape)}, the exchange expects {route.before}"
    arrived = [] if route.silent else _arrived(x, route, axis)
    found = []
    for member, box in enumerate(route.received):
        if box is None:
            continue
        if member == route.member:
            kept = route.sent[member]
            assert kept is not None
            found.append((_slices(box), x[_slices(kept)]))
        else:
            found.append((_slices(box), arrived[member].view([stop - start for start, stop in box])))
    return found


def _arrived(x: Tensor, route: Route, axis: MeshAxis) -> list[Tensor]:
    """What each member sends, flat; nothing from this one."""
    nothing = x.new_empty(0)
    parts, lengths = [], []
    for member, (sent, received) in enumerate(zip(route.sent, route.received, strict=True)):
        own = member == route.member
        parts.append(nothing if sent is None or own else x[_slices(sent)].reshape(-1))
        lengths.append(0 if received is None or own else math.prod([stop - start for start, stop in received]))
    return raw.all_to_all_v(parts, lengths, axis)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def permute(x: Tensor, source: int, target: int, axis: MeshAxis) -> Tensor:
    """The part of member ``source`` while member ``target`` takes over this one's; every member's has x's shape."""
    parts, lengths = [x.new_empty(0)] * axis.size, [0] * axis.size
    if target != axis.rank:
        parts[target] = x.reshape(-1)
    if source != axis.rank:
        lengths[source] = x.numel()
    arrived = raw.all_to_all_v(parts, lengths, axis)  # every member of the group takes part, those that keep theirs too
    return x if source == axis.rank else arrived[source].view(x.shape)


def permute_back(x: Tensor, source: int, target: int, axis: MeshAxis) -> Tensor:
    return permute(x, target, source, axis)
