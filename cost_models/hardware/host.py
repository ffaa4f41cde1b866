"""What stands behind a device: its share of the host's memory, and the link there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.figures import Figures

HOST = ("host",)
OWN = (*HOST, "own")  # 1: the device's memory is the host's own, as of a CPU
COPYING = 2           # a copy within one memory reads and writes it
DISK = (*HOST, "disk")


@dataclass(frozen=True)
class Disk:
    """One device's share of its node's disks (NVMe), with every device of the node at work.

    bytes              that one device's states may take
    read_bytes_per_s   of large blocks, in order
    write_bytes_per_s  likewise, once they are on the disk
    """

    bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float


@dataclass(frozen=True)
class Host:
    """One device's share of its node's host, with every device of the node at work.

    memory_bytes           of the host's memory, that one device's states may take
    link_bytes_per_s       what a copy between device and host reaches, one way
    bandwidth_bytes_per_s  at which the host's processors read and write its memory
    own                    the device's memory is the host's: what lies "there" takes of the same bytes
    disk                   None where the profile has no figures of it
    """

    memory_bytes: int
    link_bytes_per_s: float
    bandwidth_bytes_per_s: float
    own: bool = False
    disk: Disk | None = None

    def on_disk(self) -> Host:
        """The same, whose memory is its disk: a place apart from the device's memory."""
        assert self.disk is not None, "a profile without [host.disk]"
        return replace(self, memory_bytes=self.disk.bytes, own=False)


def read_host(figures: Figures, usable_bytes: int, rate_bytes_per_s: float) -> Host | None:
    """``[host]`` of a profile, None where it has none; a ``ProfileError`` where a figure of it is missing.

    usable_bytes, rate_bytes_per_s  of the device's memory, which is the host's where the profile says so
    """
    if not figures.has(*HOST):
        return None
    disk = read_disk(figures)
    if figures.has(*OWN) and figures.number(*OWN, measures="count"):
        return Host(usable_bytes, rate_bytes_per_s / COPYING, rate_bytes_per_s, own=True, disk=disk)
    return Host(
        memory_bytes=int(figures.positive(*HOST, "memory", measures="bytes")),
        link_bytes_per_s=figures.positive(*HOST, "link", measures="bytes/s"),
        bandwidth_bytes_per_s=figures.positive(*HOST, "bandwidth", measures="bytes/s"),
        disk=disk,
    )


def read_disk(figures: Figures) -> Disk | None:
    """``[host.disk]``, None where the profile has none; a ``ProfileError`` where a figure of it is missing."""
    if not figures.has(*DISK):
        return None
    return Disk(
        bytes=int(figures.positive(*DISK, "memory", measures="bytes")),
        read_bytes_per_s=figures.positive(*DISK, "read", measures="bytes/s"),
        write_bytes_per_s=figures.positive(*DISK, "write", measures="bytes/s"),
    )


def slowest_host(hosts: Sequence[Host | None]) -> Host | None:
    """The least of each figure; None where one device has no host beside it."""
    known = [host for host in hosts if host is not None]
    if len(known) < len(hosts):
        return None
    return Host(
        min(host.memory_bytes for host in known),
        min(host.link_bytes_per_s for host in known),
        min(host.bandwidth_bytes_per_s for host in known),
        any(host.own for host in known),
        slowest_disk([host.disk for host in known]),
    )


def slowest_disk(disks: Sequence[Disk | None]) -> Disk | None:
    known = [disk for disk in disks if disk is not None]
    if len(known) < len(disks):
        return None
    return Disk(
        min(disk.bytes for disk in known),
        min(disk.read_bytes_per_s for disk in known),
        min(disk.write_bytes_per_s for disk in known),
    )
