"""What a device has of a network, and how profiles and fabrics name it.

A fabric is a file of its own, ``profiles/fabrics/<name>.toml``, with the figures of one ``Link`` under ``[link]``; a
device's profile may instead hold them inline, under ``[links.node]`` and ``[links.nic]``. Either way a table holds::

    latency, bandwidth, startup                a figure each: what "ring", or whatever runs by default, reaches
    turn                                       optional: of the startup a wait for a processor that ranks share
    burst                                      optional: bytes that go at once after a pause, as a shaper lets them
    [….group_bandwidth] 2 = …, 8 = …           optional: bandwidth by members of the group, where it differs
    [….protocols.LL] latency, share            optional: other protocols that a collective may choose
    [….tree] latency                           optional: trees are tried for an all-reduce, with this latency per hop
    [….switch] startup, bandwidth, members     optional: a switch that adds
    [….all-gather] latency, bandwidth, …       optional, for any of ``KINDS``: a link's table that replaces this one
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.errors import ProfileError
from cost_models.figures import Figures
from cost_models.hardware.schema import FABRIC, KINDS, check_keys

FABRICS = Path(__file__).parents[1] / "profiles" / "fabrics"


@dataclass(frozen=True)
class Switch:
    """A switch that adds what its devices send it, so that an all-reduce needs no ring (NVLink SHARP, SHARP).

    startup_s    of such an all-reduce, in place of the ring's startup and latencies
    bytes_per_s  of a device's bytes that are reduced in a second
    members      the fewest for which the library uses it
    """

    startup_s: float
    bytes_per_s: float
    members: int = 2


@dataclass(frozen=True)
class Protocol:
    """Another way of handing data on: flags beside the data need no barrier, so that a step is shorter, but take
    a part of the bandwidth (NCCL's LL and LL128; its Simple is what the link's own figures tell).

    latency_s  of a step, in place of the link's
    share      of the link's bandwidth that is left
    """

    name: str
    latency_s: float
    share: float


@dataclass(frozen=True)
class Link:
    """What a device has of a network: its own share, since the other devices use theirs at the same time.

    latency_s              one message to a neighbour, beside its bytes
    bandwidth_bytes_per_s  per device, in one direction, as collectives reach it
    startup_s              paid once by a collective or a send, whatever its size
    switch                 a switch that adds, if there is one
    protocols              what a collective may use instead of the figures above, where that is faster
    tree_latency_s         a hop of a tree, if the library builds trees for an all-reduce
    group_bandwidths       ((members, bytes/s), ...), ascending: where devices are joined by links to each peer and not
                           by a switch, the bandwidth depends on how many are in the group; linear between, and
                           constant outside
    kinds                  ((kind of ``KINDS``, link), ...): figures that hold for that kind of collective in place of
                           these, as different shares of the wire are reached, or algorithms differ
    turn_s                 of the startup what a rank waits for its turn on a processor that ranks share: of messages
                           that answer each other only the first meets ranks that compute
    burst_bytes            that go at once after a pause as long as they take: a shaper's bucket of tokens
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    startup_s: float = 0.0
    switch: Switch | None = None
    protocols: tuple[Protocol, ...] = ()
    tree_latency_s: float | None = None
    group_bandwidths: tuple[tuple[int, float], ...] = ()
    kinds: tuple[tuple[str, Link], ...] = ()
    turn_s: float = 0.0
    burst_bytes: float = 0.0

    def of(self, kind: str) -> Link:
        """The figures that hold for a kind of collective."""
        assert kind in KINDS, kind
        return dict(self.kinds).get(kind, self)

    def among(self, members: int) -> float:
        """Bandwidth per device, in bytes/s, of a group with so many members on this link."""
        given = self.group_bandwidths
        if not given:
            return self.bandwidth_bytes_per_s
        if members <= given[0][0]:
            return given[0][1]
        for (fewer, low), (more, high) in itertools.pairwise(given):
            if members <= more:
                return low + (high - low) * (members - fewer) / (more - fewer)
        return given[-1][1]

    def scaled(self, share: float) -> Link:
        """With ``share`` times the bandwidth throughout, and the same latencies: a card that devices share, or a link
        that several groups use at once."""
        return dataclasses.replace(
            self,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * share,
            switch=self.switch and dataclasses.replace(self.switch, bytes_per_s=self.switch.bytes_per_s * share),
            group_bandwidths=tuple((members, bandwidth * share) for members, bandwidth in self.group_bandwidths),
            kinds=tuple((kind, link.scaled(share)) for kind, link in self.kinds),
            burst_bytes=self.burst_bytes * share,
        )


LinkPath = tuple[tuple[int, Link], ...]
"""A group of devices as the levels it spans, innermost first: (members within that level, link)."""


def fabric_names() -> tuple[str, ...]:
    """The fabrics that come with the package."""
    return tuple(sorted(path.stem for path in FABRICS.glob("*.toml")))


def read_fabric(name: str | os.PathLike[str]) -> Link:
    """The link of a shipped fabric's name ("nvswitch-3"), or of a fabric's path (ends in .toml).

    A ``ProfileError`` for a name that isn't known, a file that isn't TOML, a figure that it lacks, or a key that
    nothing reads.
    """
    text = os.fspath(name)
    if text.endswith(".toml"):
        path = Path(text)
    elif text in fabric_names():
        path = FABRICS / f"{text}.toml"
    else:
        near = difflib.get_close_matches(text.lower(), fabric_names(), n=2, cutoff=0.4)
        cause = "is not a known fabric" + (f"; nearest: {' or '.join(near)}" if near else "")
        raise ProfileError(text, cause, f"Known are {', '.join(fabric_names())}; or give a path, ending in .toml")
    figures = Figures.read(path)
    link = _link(figures, ("link",))
    check_keys(figures, FABRIC)
    return link


def read_link(figures: Figures, name: str) -> Link:
    """The link of ``[links.<name>]``; a ``ProfileError`` where a figure is missing."""
    return _link(figures, ("links", name))


def _link(figures: Figures, at: tuple[str, ...]) -> Link:
    """The link of the table ``at``, with its kinds."""
    return Link(
        latency_s=figures.number(*at, "latency", measures="seconds"),
        bandwidth_bytes_per_s=figures.positive(*at, "bandwidth", measures="bytes/s"),
        startup_s=figures.number(*at, "startup", measures="seconds"),
        switch=_switch(figures, (*at, "switch")) if figures.has(*at, "switch") else None,
        protocols=tuple(_protocol(figures, (*at, "protocols", name)) for name in _names(figures, *at, "protocols")),
        tree_latency_s=_tree(figures, (*at, "tree")) if figures.has(*at, "tree") else None,
        group_bandwidths=_group_bandwidths(figures, (*at, "group_bandwidth")),
        kinds=tuple((kind, _link(figures, (*at, kind))) for kind in KINDS if figures.has(*at, kind)),
        turn_s=figures.number(*at, "turn", measures="seconds") if figures.has(*at, "turn") else 0.0,
        burst_bytes=figures.number(*at, "burst", measures="bytes") if figures.has(*at, "burst") else 0.0,
    )


def _names(figures: Figures, *at: str) -> tuple[str, ...]:
    return figures.names(*at) if figures.has(*at) else ()


def _switch(figures: Figures, at: tuple[str, ...]) -> Switch:
    members: Any = figures.number(*at, "members", measures="count") if figures.has(*at, "members") else 2
    return Switch(
        startup_s=figures.number(*at, "startup", measures="seconds"),
        bytes_per_s=figures.positive(*at, "bandwidth", measures="bytes/s"),
        members=int(members),
    )


def _protocol(figures: Figures, at: tuple[str, ...]) -> Protocol:
    return Protocol(
        name=at[-1],
        latency_s=figures.number(*at, "latency", measures="seconds"),
        share=figures.positive(*at, "share", measures="count"),
    )


def _tree(figures: Figures, at: tuple[str, ...]) -> float:
    return figures.number(*at, "latency", measures="seconds")


def _group_bandwidths(figures: Figures, at: tuple[str, ...]) -> tuple[tuple[int, float], ...]:
    bandwidths = []
    for members in _names(figures, *at):
        if not members.isdecimal():
            raise ProfileError(figures.path, f"{'.'.join(at)} has the key {members!r}", "Give members, as in 2 or 8")
        bandwidths.append((int(members), figures.positive(*at, members, measures="bytes/s")))
    return tuple(sorted(bandwidths))
