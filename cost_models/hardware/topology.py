"""Devices on nested levels, and the links that a group of them spans.

Ranks are numbered so that the innermost level varies fastest: devices 0..7 share the first node of eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.hardware.device import Device
from cost_models.hardware.link import Link, LinkPath


@dataclass(frozen=True)
class Level:
    """``size`` members joined by ``link``; a member is a device, or one whole of the level inside."""

    name: str
    size: int
    link: Link


@dataclass(frozen=True)
class Topology:
    """One kind of device on nested levels, innermost first: devices in a node, nodes in a cluster."""

    device: Device
    levels: tuple[Level, ...]

    @property
    def devices(self) -> int:
        return math.prod(level.size for level in self.levels)

    def axis(self, stride: int, size: int) -> LinkPath:
        """The levels that a mesh axis spans.

        stride  device numbers between neighbours on the axis
        size    devices on the axis; 1 spans nothing

        On 8x8 devices: stride 1, size 16 is ((8, node), (2, cluster)); stride 8, size 8 is ((8, cluster),). Where the
        size doesn't factor over the levels, groups straddle their borders, and the slowest link spanned carries all.
        """
        if stride < 1 or size < 1 or stride * size > self.devices:
            raise ValueError(f"an axis of {size} devices, {stride} apart, does not fit on {self.devices} devices")
        path: list[tuple[int, Link]] = []
        inner, step, left = 1, stride, size
        for level in self.levels:
            outer = inner * level.size
            if left > 1 and step < outer:
                members = _members(step, left, inner, outer)
                if members is None:
                    return ((size, self.slowest(stride, size)),)
                path.append((members, level.link))
                left //= members
                step *= members
            inner = outer
        return tuple(path)

    def slowest(self, stride: int, size: int = 2) -> Link:
        """The slowest link between devices of one group, over all groups of ``size`` devices, ``stride`` apart.

        A level's link is used where two of a group's devices share the level but not the member inside it: they may
        share it where they are closer than its extent, and some group leaves a member unless the groups, each
        stride * size consecutive devices, tile the member exactly.
        """
        used, inner = [], 1
        for level in self.levels:
            outer = inner * level.size
            if level.size > 1 and stride < outer and inner % (stride * size) != 0:
                used.append(level.link)
            inner = outer
        assert used, f"{size} devices {stride} apart share no level of {self.levels}"
        return min(used, key=lambda link: link.bandwidth_bytes_per_s)


def _members(stride: int, left: int, inner: int, outer: int) -> int | None:
    """How many of ``left`` devices, ``stride`` apart, one whole of a level holds; None where they straddle its border.

    inner  devices in a member of the level
    outer  devices in the whole of it
    """
    if stride % inner or outer % stride:
        return None
    room = outer // stride
    members = math.gcd(left, room)
    return members if members in (left, room) else None


@dataclass(frozen=True)
class Interconnect:
    """The links of a device's usual machine.

    node           between the devices of one node
    nic            one network card of a node
    nics_per_node  cards that the node's devices share
    """

    node: Link
    nic: Link
    nics_per_node: int

    def levels(self, nodes: int, devices_per_node: int) -> tuple[Level, ...]:
        """Nodes of devices, innermost first. A device has its share of the cards, and at most one card to itself."""
        share = min(1.0, self.nics_per_node / devices_per_node)
        between = Link(self.nic.latency_s, self.nic.bandwidth_bytes_per_s * share, self.nic.startup_s)
        return Level("node", devices_per_node, self.node), Level("cluster", nodes, between)
