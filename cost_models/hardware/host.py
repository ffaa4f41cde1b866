"""What stands behind a device: its share of the host's memory, and the link there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.figures import Figures

HOST = ("host",)
OWN = (*HOST, "own")  # 1: the device's memory is the host's own, as of a CPU
COPYING = 2           # a copy within one memory reads and writes it


@dataclass(frozen=True)
class Host:
    """One device's share of its node's host, with every device of the node at work.

    memory_bytes           of the host's memory, that one device's states may take
    link_bytes_per_s       what a copy between device and host reaches, one way
    bandwidth_bytes_per_s  at which the host's processors read and write its memory
    own                    the device's memory is the host's: what lies "there" takes of the same bytes
    """

    memory_bytes: int
    link_bytes_per_s: float
    bandwidth_bytes_per_s: float
    own: bool = False


def read_host(figures: Figures, usable_bytes: int, rate_bytes_per_s: float) -> Host | None:
    """``[host]`` of a profile, None where it has none; a ``ProfileError`` where a figure of it is missing.

    usable_bytes, rate_bytes_per_s  of the device's memory, which is the host's where the profile says so
    """
    if not figures.has(*HOST):
        return None
    if figures.has(*OWN) and figures.number(*OWN, measures="count"):
        return Host(usable_bytes, rate_bytes_per_s / COPYING, rate_bytes_per_s, own=True)
    return Host(
        memory_bytes=int(figures.positive(*HOST, "memory", measures="bytes")),
        link_bytes_per_s=figures.positive(*HOST, "link", measures="bytes/s"),
        bandwidth_bytes_per_s=figures.positive(*HOST, "bandwidth", measures="bytes/s"),
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
    )
