"""All messages of a direct exchange, between all members: what each finds on its own (``exchange.messages``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.redistribution.exchange.boxes import Boxes, Dims, boxes, coordinates, intersections, volumes
from autoplan.redistribution.exchange.messages import Box, parse_spec


@dataclass(frozen=True)
class Message:
    """What one member sends another: ``box`` of the shared tensor, not empty. Sender and receiver may be the same: that
    part is copied."""

    sender: int
    receiver: int
    box: Box


def sending(before: Dims, after: Dims, shape: Sequence[int], axes: Sequence[str], sizes: Mapping[str, int]) -> Boxes:
    """(members, members, dims, 2): the box that each member (first) sends each other (second); empty where none.

    Of the replicas of a part, a receiver's sender is the one with the receiver's own coordinates along the axes that
    replicate, so that senders are balanced, and as near as the part is. What a member holds it does not receive.
    """
    held, wanted = (boxes(dims, shape, axes, sizes) for dims in (before, after))
    found = intersections(held, wanted)
    where = coordinates(axes, sizes)
    split = {axis for dims in before for axis in dims}
    for axis in axes:
        if axis not in split:
            found[where[axis][:, None] != where[axis][None, :]] = 0
    return found


def messages(spec: str, shape: Sequence[int], axes: Sequence[str], sizes: Mapping[str, int]) -> tuple[Message, ...]:
    """The messages of an exchange, what stays included, ordered by sender and receiver.

    Together the boxes that a member receives are its part after, each element once; boxes are in indices of the whole
    tensor of ``shape``.
    """
    found = sending(*parse_spec(spec), shape, axes, sizes)
    pairs = np.argwhere(volumes(found) > 0) if len(shape) else np.argwhere(np.eye(len(found), dtype=bool))
    boxes_sent = found[pairs[:, 0], pairs[:, 1]].tolist()
    return tuple(Message(s, r, tuple(map(tuple, box))) for (s, r), box in zip(pairs.tolist(), boxes_sent, strict=True))
