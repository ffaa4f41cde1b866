"""Devices on nested levels, and the links that a group of them spans.

Ranks are numbered so that the innermost level varies fastest: devices 0..7 share the first node of eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.errors import ProfileError
from cost_models.hardware.device import Device
from cost_models.hardware.link import Link, LinkPath


@dataclass(frozen=True)
class Crossing:
    """How a node's devices reach network cards that aren't their own, through the host's processors.

    near   devices next to each other behind one PCIe switch, who reach its cards directly
    share  of a card's bandwidth that is left to a device behind another switch
    """

    near: int
    share: float


@dataclass(frozen=True)
class Level:
    """``size`` members joined by ``link``; a member is a device, or one whole of the level inside.

    lone      how many times the link's bandwidth a device has while the others of its node are silent: 1 where it has a
              card to itself
    crossing  how devices reach others' cards through the host; None: not known, or no cards
    """

    name: str
    size: int
    link: Link
    lone: float = 1.0
    crossing: Crossing | None = None

    def through_host(self, within: int, stride: int) -> Link:
        """The link of a group where nothing relays its data to the device at the card.

        A ring enters and leaves a node by one card (NCCL_CROSS_NIC, NVIDIA/nccl src/graph/search.cc): one of the
        group's devices there if it has one alone, else two of them, of which one is far from the card unless both are
        behind its switch.

        within, stride  devices of the group in a node, so many numbers apart

        A ``ProfileError`` where the level doesn't say what is left on that way.
        """
        if within == 1:
            return self.link
        if self.crossing is None:
            cause = "isn't known of this machine: what a device reaches of a card behind another switch"
            remedy = "Add through_host and devices_per_switch under [machine], or let collectives relay"
            raise ProfileError("through_host", cause, remedy)
        return self.link if stride < self.crossing.near else self.link.scaled(self.crossing.share)


@dataclass(frozen=True)
class Topology:
    """Devices on nested levels, innermost first: devices in a node, nodes in a pod, pods in a cluster.

    device  what each of them is, or of several kinds what holds for all of them (``slowest_of``): a step that is split
            evenly runs at the pace of the slowest and fits where the least memory is
    groups  the kinds where there are several, ((device, how many), ...), in the order of the devices' numbers; the
            memory of each is what may be filled of it
    relays  as ``Interconnect.relays``
    """

    device: Device
    levels: tuple[Level, ...]
    groups: tuple[tuple[Device, int], ...] = ()
    relays: bool = True

    def __post_init__(self) -> None:
        counted = sum(count for _, count in self.groups)
        assert not self.groups or counted == self.devices, f"{counted} devices in groups, {self.devices} on the levels"

    @property
    def devices(self) -> int:
        return math.prod(level.size for level in self.levels)

    @property
    def kinds(self) -> tuple[tuple[Device, int], ...]:
        """Every kind of device with how many there are, in the order of the devices' numbers."""
        return self.groups or ((self.device, self.devices),)

    def at(self, number: int) -> Device:
        """The device with that number."""
        if not 0 <= number < self.devices:
            raise ValueError(f"there is no device {number} among {self.devices}")
        for device, count in self.kinds:
            if number < count:
                return device
            number -= count
        raise AssertionError(f"the kinds of {self} don't add up")

    def among(self, first: int, count: int) -> Device:
        """What ``count`` devices from number ``first`` on are: their kind, or ``device`` where they are of several."""
        kinds, begin = [], 0
        for device, size in self.kinds:
            if begin < first + count and first < begin + size:
                kinds.append(device)
            begin += size
        return kinds[0] if len(set(kinds)) == 1 else self.device

    def axis(self, stride: int, size: int, relayed: bool | None = None) -> LinkPath:
        """The levels that a mesh axis spans.

        stride   device numbers between neighbours on the axis
        size     devices on the axis; 1 spans nothing
        relayed  data reach others' cards over the devices' own links (NCCL since 2.12, "PXN"); False: through the host;
                 None: as ``relays`` says

        On 8x8 devices: stride 1, size 16 is ((8, node), (2, cluster)); stride 8, size 8 is ((8, cluster),). Levels that
        follow one another on the same link are one ring. Where the size doesn't factor over the levels, groups straddle
        their borders, and the slowest link spanned carries all.
        """
        if stride < 1 or size < 1 or stride * size > self.devices:
            raise ValueError(f"an axis of {size} devices, {stride} apart, does not fit on {self.devices} devices")
        path: list[tuple[int, Link]] = []
        inner, step, left, node = 1, stride, size, self.levels[0]
        for level in self.levels:
            outer = inner * level.size
            if left > 1 and step < outer:
                members = _members(step, left, inner, outer)
                if members is None:
                    return ((size, self.slowest(stride, size)),)
                own = (self.relays if relayed is None else relayed) or level.link == node.link
                link = level.link if own else level.through_host(max(1, node.size // stride), stride)
                if path and path[-1][1] == link:
                    path[-1] = (path[-1][0] * members, link)
                else:
                    path.append((members, link))
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
