"""The device mesh: named axes with sizes, outermost first.

An *axis* is a mesh axis; a *dim* is a tensor dim. Ranks are numbered row-major over the device axes: the last axis
varies fastest, so it lies on the fastest links.

One axis may be virtual: ``mb``, the microbatches. They split the batch over time as data parallelism splits it over
devices, so the same algebra says which programs may be cut into microbatches; no collective can cross it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MICROBATCH = "mb"


@dataclass(frozen=True)
class Axis:
    """One mesh axis.

    name    "dp", "tp", "pp", or "mb" for the microbatches
    size    members of a group along it, at least 1
    stride  device numbers between neighbours along it; 0 for the virtual axis
    """

    name: str
    size: int
    stride: int

    @property
    def virtual(self) -> bool:
        return self.name == MICROBATCH


@dataclass(frozen=True)
class Mesh:
    """Axes, outermost first. ``Mesh.of(pp=2, dp=2, tp=4, mb=8)``: the device axes in the order given, 16 devices."""

    axes: tuple[Axis, ...]

    @staticmethod
    def of(**sizes: int) -> Mesh:
        """A mesh of these device axes, outermost first; strides follow from the sizes, ``mb`` has none."""
        devices = [(name, size) for name, size in sizes.items() if name != MICROBATCH]
        axes, stride = [], 1
        for name, size in reversed(devices):
            axes.append(Axis(name, size, stride))
            stride *= size
        axes.reverse()
        if MICROBATCH in sizes:
            axes.append(Axis(MICROBATCH, sizes[MICROBATCH], 0))
        return Mesh(tuple(axes))

    def __contains__(self, name: str) -> bool:
        return any(axis.name == name for axis in self.axes)

    def axis(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(f"mesh {self} has no axis {name!r}")

    def size(self, name: str) -> int:
        """Members along the axis; 1 where the mesh has no such axis."""
        for axis in self.axes:
            if axis.name == name:
                return axis.size
        return 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def device_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if not axis.virtual)

    @property
    def devices(self) -> int:
        return math.prod(axis.size for axis in self.device_axes)

    def coordinate(self, rank: int, name: str) -> int:
        """Where a rank lies along a device axis."""
        axis = self.axis(name)
        return rank // axis.stride % axis.size

    def __str__(self) -> str:
        return " ".join(f"{axis.name}={axis.size}" for axis in self.axes)
