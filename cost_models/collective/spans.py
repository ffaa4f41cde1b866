"""The levels that a group spans, and what a ring of the group puts on each.

A ring over several levels is one ring: it goes through all of a node's devices before it enters the next node, and
enters and leaves each node once. As many such rings run side by side as devices of the group are in a node, each
leaving it by another device (NCCL's channels), so that each device's share of the network carries 1/p of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.arithmetic import Number
from cost_models.hardware import Link, LinkPath


@dataclass(frozen=True)
class Span:
    """One level that has more than one member of the group.

    inside   devices of the group in a member
    members  members of the group on the level
    ranks    devices of the group
    link     the level's figures for the kind of collective
    """

    inside: int
    members: int
    ranks: int
    link: Link

    @property
    def ring_steps(self) -> int:
        """Of the N - 1 steps of a ring over all N ranks, those between members of one whole of this level."""
        return (self.members - 1) * (self.ranks // (self.inside * self.members))

    @property
    def ring_share(self) -> float:
        """The part of what goes round the rings that a device's share of this level carries: all the level's steps,
        with the one that closes the ring, over the ranks. Over the levels these add up to 1."""
        outermost = self.inside * self.members == self.ranks
        return (1.0 if outermost else (self.members - 1) / self.members) / self.inside

    @property
    def peers(self) -> int:
        """Devices of the group that share the level with one device, but not the member inside."""
        return self.inside * (self.members - 1)

    def latency_s(self, protocol: str) -> Number:
        """Of a step under the protocol of that name; the link's own where it has none such."""
        named = {each.name: each.latency_s for each in self.link.protocols}
        return named.get(protocol, self.link.latency_s)

    def bandwidth_bytes_per_s(self, protocol: str) -> Number:
        """Of a device, in this group, under the protocol of that name."""
        shares = {each.name: each.share for each in self.link.protocols}
        return self.link.among(self.members) * shares.get(protocol, 1.0)


def group_size(path: LinkPath) -> int:
    """Devices in the group."""
    return math.prod(members for members, _ in path)


def spans(path: LinkPath, kind: str) -> tuple[Span, ...]:
    """The levels of a path that have more than one member, innermost first, with their figures for a kind."""
    found, inside, ranks = [], 1, group_size(path)
    for members, link in path:
        if members > 1:
            found.append(Span(inside, members, ranks, link.of(kind)))
        inside *= members
    return tuple(found)


def protocols(levels: Sequence[Span]) -> tuple[str, ...]:
    """The names of all protocols that some level has; "" for every link's own figures."""
    return ("", *dict.fromkeys(each.name for span in levels for each in span.link.protocols))
