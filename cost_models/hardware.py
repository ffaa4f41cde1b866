"""What there is to run on: a device's figures, the links between devices, and the levels they form.

Ranks are numbered so that the innermost level varies fastest: devices 0..7 share the first node of eight.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import ProfileError
from cost_models.figures import Figures

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Device:
    """One accelerator, or one process of a CPU machine. Figures come from a profile, each with its source.

    memory_bytes                  what the runtime reports as the device's memory
    reserved_bytes                of that, what no tensor can use: context, communication buffers, fragmentation
    peaks                         dense FLOP/s by dtype name, (("bfloat16", 312e12), ...); see ``peak_flops_per_s``
    matmul_efficiency             share of the peak that the best shapes reach, where whole waves of tiles run
    matmul_tiles                  output tiles to choose from, ((rows, columns, share of matmul_efficiency), ...)
    matmul_ramp_k                 inner extent at which filling the pipeline costs as much as the work itself
    multiprocessors               tiles that run at once
    attention_efficiency          share of the peak that a fused attention forward reaches on long sequences
    attention_backward_efficiency the same for its backward
    attention_ramp_k              keys seen by a query on average at which a fused attention reaches half of that
    attention_ramp_head_dim       the same for the extent of a head
    memory_bandwidth_bytes_per_s  the data sheet's
    memory_efficiency             share of it that a streaming kernel reaches
    kernel_launch_s               least time of one kernel, on the device
    dispatch_s                    least time of one operator in eager mode, in the framework
    compiles                      whether exported programs are compiled on it, where the training asks for it
    """

    name: str
    memory_bytes: int
    reserved_bytes: int
    peaks: tuple[tuple[str, float], ...]
    matmul_efficiency: float
    matmul_tiles: tuple[tuple[int, int, float], ...]
    matmul_ramp_k: float
    multiprocessors: int
    attention_efficiency: float
    attention_backward_efficiency: float
    attention_ramp_k: float
    attention_ramp_head_dim: float
    memory_bandwidth_bytes_per_s: float
    memory_efficiency: float
    kernel_launch_s: float
    dispatch_s: float
    compiles: bool = True

    @property
    def usable_bytes(self) -> int:
        """Bytes that tensors can use."""
        return self.memory_bytes - self.reserved_bytes

    @property
    def peak_flops_per_s(self) -> Mapping[str, float]:
        """Dense peak by dtype name: "float64", "float32", "bfloat16", "float16"."""
        return dict(self.peaks)


@dataclass(frozen=True)
class Switch:
    """A switch that adds what its devices send it, so that an all-reduce needs no ring (NVLink SHARP).

    startup_s    of such an all-reduce, in place of the ring's startup and latencies
    bytes_per_s  of a device's bytes that are reduced in a second
    """

    startup_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Link:
    """What a device has of a network: its own share, since the other devices use theirs at the same time.

    latency_s              one message to a neighbour, beside its bytes
    bandwidth_bytes_per_s  per device, in one direction, as collectives reach it
    startup_s              paid once by a collective or a send, whatever its size
    switch                 a switch that adds, if there is one
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    startup_s: float = 0.0
    switch: Switch | None = None


LinkPath = tuple[tuple[int, Link], ...]
"""A group of devices as the levels it spans, innermost first: (members within that level, link)."""


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


def device_names() -> tuple[str, ...]:
    """The devices whose profiles come with the package."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def load_device(name: str | os.PathLike[str]) -> tuple[Device, Interconnect]:
    """The device of a shipped profile's name ("h100-sxm"), or of a profile's path (ends in .toml), with its links.

    A ``ProfileError`` for a name that isn't known, a file that isn't a profile, or a figure that it lacks.
    """
    text = os.fspath(name)
    if text.endswith(".toml"):
        path = Path(text)
    elif text in device_names():
        path = PROFILES / f"{text}.toml"
    else:
        remedy = f"Known are {', '.join(device_names())}; or give a profile's path, ending in .toml"
        raise ProfileError(text, _unknown(text), remedy)
    figures = Figures.read(path)
    return _device(path.stem, figures), _interconnect(figures)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), device_names(), n=2, cutoff=0.4)
    return "is not a known device" + (f"; nearest: {' or '.join(near)}" if near else "")


def _device(name: str, figures: Figures) -> Device:
    dtypes = sorted(figures.names("peak"))
    return Device(
        name=name,
        memory_bytes=int(figures.positive("memory", "capacity", measures="bytes")),
        reserved_bytes=int(figures.number("memory", "reserved", measures="bytes")),
        peaks=tuple((dtype, figures.positive("peak", dtype, measures="flops/s")) for dtype in dtypes),
        matmul_efficiency=figures.positive("matmul", "efficiency", measures="count"),
        matmul_tiles=figures.triples("matmul", "tiles"),
        matmul_ramp_k=figures.number("matmul", "ramp_k", measures="count"),
        multiprocessors=int(figures.positive("matmul", "multiprocessors", measures="count")),
        attention_efficiency=figures.positive("attention", "efficiency", measures="count"),
        attention_backward_efficiency=figures.positive("attention", "backward_efficiency", measures="count"),
        attention_ramp_k=figures.number("attention", "ramp_k", measures="count"),
        attention_ramp_head_dim=figures.number("attention", "ramp_head_dim", measures="count"),
        memory_bandwidth_bytes_per_s=figures.positive("memory", "bandwidth", measures="bytes/s"),
        memory_efficiency=figures.positive("memory", "efficiency", measures="count"),
        kernel_launch_s=figures.number("overhead", "kernel_launch", measures="seconds"),
        dispatch_s=figures.number("overhead", "dispatch", measures="seconds"),
        compiles=bool(figures.number("overhead", "compiles", measures="count")),
    )


def _interconnect(figures: Figures) -> Interconnect:
    return Interconnect(
        node=_link(figures, "node"),
        nic=_link(figures, "nic"),
        nics_per_node=int(figures.positive("links", "nic", "per_node", measures="count")),
    )


def _link(figures: Figures, name: str) -> Link:
    return Link(
        latency_s=figures.number("links", name, "latency", measures="seconds"),
        bandwidth_bytes_per_s=figures.positive("links", name, "bandwidth", measures="bytes/s"),
        startup_s=figures.number("links", name, "startup", measures="seconds"),
        switch=_switch(figures, name) if figures.has("links", name, "switch") else None,
    )


def _switch(figures: Figures, name: str) -> Switch:
    return Switch(
        startup_s=figures.number("links", name, "switch", "startup", measures="seconds"),
        bytes_per_s=figures.positive("links", name, "switch", "bandwidth", measures="bytes/s"),
    )
