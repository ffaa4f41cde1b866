"""Transfers executed on all ranks of both meshes, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType

import numpy as np

from autoplan.ir.mesh import Mesh
from autoplan.redistribution import simulate
from autoplan.redistribution.exchange.boxes import volumes
from autoplan.redistribution.exchange.messages import Box, Message
from autoplan.redistribution.meshes.legs import Leg
from autoplan.redistribution.meshes.sides import Side


def execute(leg: Leg, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the target's devices hold at the end; NaN where nothing arrived.

    parts  what the source's devices hold
    """
    held = simulate.run(leg.before, list(parts), devices_of(leg.source.mesh))
    sources = dict(zip(leg.sent.devices, zip(corners(leg.sent, leg.shape), held, strict=True), strict=True))
    fill = 0.0 if leg.landed.holding("P") else np.nan
    boxes = corners(leg.landed, leg.shape)
    buffers = [np.full([stop - start for start, stop in box], fill) for box in boxes]
    targets = dict(zip(leg.landed.devices, zip(boxes, buffers, strict=True), strict=True))
    for messages in leg.rounds:
        read = [view(*(sources if holds(sources, m) else targets)[m.sender], m.box).copy() for m in messages]
        for message, data in zip(messages, read, strict=True):
            assert not np.isnan(data).any(), f"{message} is passed on before it has arrived"
            view(*targets[message.receiver], message.box)[...] = data
    return simulate.run(leg.after, buffers, devices_of(leg.target.mesh))


def holds(sources: Mapping[int, tuple[Box, np.ndarray]], message: Message) -> bool:
    """Whether the sender holds the box from the beginning; otherwise it passes on what it has received."""
    return message.sender in sources and all(
        outer[0] <= inner[0] and inner[1] <= outer[1]
        for inner, outer in zip(message.box, sources[message.sender][0], strict=True)
    )


def view(box: Box, part: np.ndarray, wanted: Box) -> np.ndarray:
    """A box of the tensor in a part that starts elsewhere; a view."""
    slices = tuple(slice(a - start, b - start) for (start, _), (a, b) in zip(box, wanted, strict=True))
    index: tuple[slice | EllipsisType, ...] = (*slices, ...)
    return np.asarray(part)[index]


def corners(side: Side, shape: Sequence[int]) -> list[Box]:
    return [tuple((start, stop) for start, stop in box) for box in side.boxes(shape).tolist()]


def devices_of(mesh: Mesh) -> Mesh:
    """The mesh without its virtual axes."""
    return Mesh(mesh.device_axes)


def received(leg: Leg, itemsize: int) -> dict[int, int]:
    """Bytes that come to each rank in the messages."""
    found = dict.fromkeys(leg.landed.devices, 0)
    for messages in leg.rounds:
        for m in messages:
            found[m.receiver] += itemsize * size(m) * (m.sender != m.receiver)
    return found


def sent(leg: Leg) -> dict[int, int]:
    """Elements that each of the source's ranks sends to others."""
    found = dict.fromkeys(leg.sent.devices, 0)
    for messages in leg.rounds:
        for m in messages:
            if m.sender in found and m.sender != m.receiver:
                found[m.sender] += size(m)
    return found


def size(message: Message) -> int:
    return int(volumes(np.array(message.box, np.int64).reshape(-1, 2)))
