"""Seconds of a collective on a cluster: the links that a mesh's axes span, priced by the cost models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from autoplan.ir.mesh import Axis
from cost_models.collective import COLLECTIVES, send_seconds
from cost_models.hardware import Link, LinkPath, Topology


@dataclass(frozen=True)
class ClusterLinks:
    """``redistribution.links.Links`` of a topology, for axes with the strides that they have there."""

    topology: Topology

    def collective_s(self, kind: str, bytes: int, axes: Sequence[Axis]) -> float:
        return float(COLLECTIVES[kind](bytes, group_path(self.topology, axes)))

    def messages_s(self, count: np.ndarray, bytes: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
        """Startup, a latency for each message, and the bytes of the link that carries for longest: links of several
        levels carry their messages at the same time. Links to each peer (``Link.group_bandwidths``) all carry."""
        links = [self.slowest(axis) for axis in axes]
        distinct = list(dict.fromkeys(links))
        startup_s = max((link.startup_s for link in links), default=0.0) * (bytes.sum(axis=-1) > 0)
        latency_s = count @ np.array([link.latency_s for link in links])
        seconds = [
            [float(link == other) / link.among(axis.size) for other in distinct]
            for axis, link in zip(axes, links, strict=True)
        ]
        busy: np.ndarray = startup_s + latency_s + (bytes @ np.array(seconds)).max(axis=-1)
        return busy

    def bandwidth_bytes_per_s(self, axis: Axis) -> float:
        return self.slowest(axis).bandwidth_bytes_per_s if axis.size > 1 else math.inf

    def slowest(self, axis: Axis) -> Link:
        """The link between the members of an axis that are furthest apart, as messages of an exchange find it."""
        links = (link.of("all-to-all") for _, link in self.path(axis))
        return min(links, key=lambda link: link.bandwidth_bytes_per_s)

    def path(self, axis: Axis) -> LinkPath:
        return self.topology.axis(axis.stride, axis.size)


def group_path(topology: Topology, axes: Sequence[Axis]) -> LinkPath:
    """The levels that a group of several axes spans, innermost first; neighbouring ones on one link are one level."""
    path: list[tuple[int, Link]] = []
    for axis in sorted(axes, key=lambda axis: axis.stride):
        for members, link in topology.axis(axis.stride, axis.size):
            if path and path[-1][1] == link:
                path[-1] = (path[-1][0] * members, link)
            else:
                path.append((members, link))
    return tuple(path)


def tree_seconds(bytes: float, topology: Topology, axes: Sequence[Axis]) -> float:
    """Of messages of so many bytes up and down a binomial tree of a group, whole ones, round after round: each answers
    the one before, so only the first may meet a rank that computes. Up and down are two directions of a link: each
    rests while the other carries as much, so that each message begins with the link's burst."""
    links = tree_links(topology, axes)
    waits_s = [link.of("send").turn_s for link in links]
    bursts_s = [min(link.burst_bytes, bytes) / link.of("send").bandwidth_bytes_per_s for link in links]
    apart_s = sum(2 * float(send_seconds(bytes, link)) for link in links) - 2 * sum(bursts_s)
    return apart_s - (2 * sum(waits_s) - max(waits_s, default=0.0)) * (bytes > 0)


def tree_links(topology: Topology, axes: Sequence[Axis]) -> list[Link]:
    """The slowest link of each round of a binomial tree: in the n-th from the leaves neighbours 2^n apart in the
    group's order meet. One of a node's ranks sends at a time, and has the cards of those of its group that don't."""
    along = [range(0, axis.size * axis.stride, axis.stride) for axis in axes]
    devices, apart, found = sorted(sum(at) for at in product(*along)), 1, []
    while apart < len(devices):
        pairs = zip(devices[:: 2 * apart], devices[apart :: 2 * apart], strict=False)
        links = [link_between(topology, *pair, devices) for pair in pairs]
        found.append(min(links, key=lambda link: link.bandwidth_bytes_per_s))
        apart *= 2
    return found


def link_between(topology: Topology, first: int, second: int, group: Sequence[int]) -> Link:
    """Of two devices' outermost common level, for one of a group that sends while the others don't: other groups beside
    it in its node send, too."""
    inner, level, inside = 1, topology.levels[0], 1
    for each in topology.levels:
        if first // inner != second // inner and each.size > 1:
            level, inside = each, inner
        inner *= each.size
    return level.link.scaled(min(level.lone, sum(device // inside == first // inside for device in group)))
