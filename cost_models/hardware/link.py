"""What a device has of a network, and how a profile names it."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.figures import Figures


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


def read_link(figures: Figures, name: str) -> Link:
    """The link of ``[links.<name>]``; a ``ProfileError`` where a figure is missing."""
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
