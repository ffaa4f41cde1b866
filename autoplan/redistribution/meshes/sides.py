"""A tensor on one of two meshes, and the links between them.

The ranks of a job are cut into meshes, a stage on each; they may have other axes and another number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Axis, Mesh
from autoplan.redistribution.exchange.boxes import Boxes, boxes
from autoplan.redistribution.exchange.messages import Message
from autoplan.redistribution.links import UNIFORM, Links
from autoplan.redistribution.meshes.crossing import Rounds, volume


@dataclass(frozen=True)
class Side:
    """A layout on a mesh of some of the job's ranks.

    layout   on the mesh's device axes, or prime factors of them
    devices  the rank of each of the mesh's devices, row-major over its device axes
    """

    layout: Layout
    mesh: Mesh
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(set(self.devices)) == self.mesh.devices == len(self.devices), f"{self.devices} for mesh {self.mesh}"

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Those that can hold different parts, outermost first; an axis of which the layout names prime factors as
        these."""
        found: list[Axis] = []
        for axis in self.mesh.device_axes:
            names = (axis.name,) if axis.name in self.layout.axes else self.mesh.factors(axis.name)
            found += [self.mesh.axis(name) for name in names if axis.size > 1]
        return tuple(found)

    def holding(self, *kinds: str) -> tuple[str, ...]:
        """The axes in states of these kinds."""
        return tuple(axis.name for axis in self.axes if self.layout.state(axis.name).kind in kinds)

    def boxes(self, shape: Sequence[int]) -> Boxes:
        """(devices, dims, 2): each device's part."""
        names, dims = tuple(axis.name for axis in self.axes), self.sized_dims()
        return boxes(dims, shape, names, {axis.name: axis.size for axis in self.axes})

    def coordinates(self) -> np.ndarray:
        """(devices, axes)"""
        return np.stack(np.unravel_index(range(len(self.devices)), [axis.size for axis in self.axes] or [1]), axis=-1)

    def sized_dims(self) -> tuple[tuple[str, ...], ...]:
        """The layout's dims, without axes of size 1."""
        names = {axis.name for axis in self.axes}
        return tuple(tuple(axis for axis in split if axis in names) for split in self.layout.dims)

    def held_bytes(self, shape: Sequence[int], itemsize: int) -> int:
        """Of the device that holds most."""
        return itemsize * math.prod(int(length) for length in np.diff(self.boxes(shape)).max(axis=0).ravel())


@dataclass(frozen=True)
class MeshLinks:
    """The links of a transfer: inside the two meshes, and between them.

    source, target  of the axes of the mesh that sends and of the one that receives
    latency_s       of one message between the meshes
    bytes_per_s     of one device's link to the other mesh, each way
    """

    source: Links = UNIFORM
    target: Links = UNIFORM
    latency_s: float = 0.0
    bytes_per_s: float = 1.0

    def reversed(self) -> MeshLinks:
        """For what comes back."""
        return replace(self, source=self.target, target=self.source)


def one_microbatch(layout: Layout, shape: Sequence[int], mesh: Mesh) -> tuple[Layout, tuple[int, ...]]:
    """The layout and the shape of one microbatch: without the virtual axes. Microbatches are of one size."""
    virtual = {axis.name for axis in mesh.axes if axis.virtual}
    ways = [math.prod(mesh.size(axis) for axis in split if axis in virtual) for split in layout.dims]
    assert all(size % n == 0 for size, n in zip(shape, ways, strict=True)), f"{shape} into {ways} microbatches"
    dims = tuple(tuple(axis for axis in split if axis not in virtual) for split in layout.dims)
    rest = tuple((axis, state) for axis, state in layout.rest if axis not in virtual)
    return Layout(dims, rest), tuple(size // n for size, n in zip(shape, ways, strict=True))


def rounds_s(rounds: Rounds, itemsize: int, source: Side, target: Side, links: MeshLinks) -> float:
    """Seconds of the rounds one after another, each as long as the device that is busiest sending or receiving.

    A message between two ranks of the target's mesh takes its links, any other the link between the meshes.
    """
    place = {rank: number for number, rank in enumerate(dict.fromkeys((*target.devices, *source.devices)))}
    return sum(round_s(messages, itemsize, place, target, links) for messages in rounds)


def round_s(
    messages: Sequence[Message], itemsize: int, place: Mapping[int, int], target: Side, links: MeshLinks
) -> float:
    """``rounds_s`` of one.

    place  a number for each rank: the target's devices in their order, then the other ranks
    """
    moved = [(place[m.sender], place[m.receiver], volume(m.box)) for m in messages if m.sender != m.receiver]
    pairs = np.array(moved, np.int64).reshape(-1, 3)
    ends, size = pairs[:, :2], pairs[:, 2] * float(itemsize)
    inside = (ends < len(target.devices)).all(axis=1)
    busy = np.zeros((2, len(place)))
    busy[:, : len(target.devices)] = busy_s(ends[inside], size[inside], target, links.target)
    seconds = links.latency_s + size[~inside] / links.bytes_per_s
    for way in (0, 1):
        np.add.at(busy[way], ends[~inside, way], seconds)
    return float(busy.max())


def busy_s(ends: np.ndarray, size: np.ndarray, side: Side, links: Links) -> np.ndarray:
    """(2, devices): seconds for which each device of a mesh sends and receives messages inside it.

    ends  (messages, 2): sender and receiver, by the numbers of the mesh's devices; a message crosses the outermost axis
          on which they differ
    size  bytes of each
    """
    count = np.zeros((2, len(side.devices), len(side.axes)))
    if not len(ends):
        return count.sum(axis=-1)
    load, places = np.zeros_like(count), side.coordinates()
    axis = np.argmax(places[ends[:, 0]] != places[ends[:, 1]], axis=1)
    for way in (0, 1):
        np.add.at(count[way], (ends[:, way], axis), 1)
        np.add.at(load[way], (ends[:, way], axis), size)
    return links.messages_s(count, load, side.axes)
