"""Seconds of a collective on a cluster: the links that a mesh's axes span, priced by the cost models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.ir.mesh import Axis
from cost_models.collective import COLLECTIVES
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
