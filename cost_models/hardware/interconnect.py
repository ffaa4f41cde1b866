"""The links of a device's usual machine, and the levels that a cluster of such machines forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.errors import ProfileError
from cost_models.hardware.link import Link
from cost_models.hardware.topology import Crossing, Level


@dataclass(frozen=True)
class Interconnect:
    """The links of a device's usual machine.

    node           between the devices of one node
    nic            one network card of a node; None where the profile knows of no network: it serves single nodes
    nics_per_node  cards that the node's devices share; a mean where nodes of several kinds are one
    domain         devices that the node's own link joins beyond the node, as NVLink does in a rack; None: the node's
    crossing       how devices reach others' cards through the host; None: not known
    relays         collectives reach others' cards over the devices' own links (NCCL since 2.12); False: by the host
    """

    node: Link
    nic: Link | None
    nics_per_node: float
    domain: int | None = None
    crossing: Crossing | None = None
    relays: bool = True

    def share(self, devices_per_node: int) -> float:
        """Cards that a device has to itself, at most one."""
        return min(1.0, self.nics_per_node / devices_per_node)

    def levels(self, nodes: int, devices_per_node: int, outer: Sequence[Level] = ()) -> tuple[Level, ...]:
        """Nodes of devices, innermost first.

        outer  the levels above the node with the link that one network card has there, innermost first: pods on a leaf
               switch, then what the spine leaves to each. None given: the nodes of a domain on the node's own link, if
               it reaches so far, then all nodes on one network.

        A device has its ``share`` of the cards; a level on the node's own link needs none. A ``ProfileError`` for
        several nodes without a network.
        """
        outer = tuple(outer) or self._usual(nodes, devices_per_node)
        joined = math.prod(level.size for level in outer)
        assert joined == nodes, f"levels of {joined} nodes for {nodes} nodes"
        share = self.share(devices_per_node)
        above = (
            level if level.link == self.node
            else replace(level, link=level.link.scaled(share), lone=1 / share, crossing=self.crossing)
            for level in outer
        )  # fmt: skip
        return Level("node", devices_per_node, self.node), *above

    def _usual(self, nodes: int, devices_per_node: int) -> tuple[Level, ...]:
        """Domains of equally many nodes, as large as they may be, then the cluster; the cluster alone without them."""
        if self.nic is None:
            return self._alone(nodes)
        room = (self.domain or 0) // devices_per_node
        if room < 2:
            return (Level("cluster", nodes, self.nic),)
        inside = max(count for count in range(1, room + 1) if nodes % count == 0)
        return Level("domain", inside, self.node), Level("cluster", nodes // inside, self.nic)

    def _alone(self, nodes: int) -> tuple[Level, ...]:
        """No level above the single node that there may be without a network."""
        if nodes > 1:
            cause = "the profile has no link between nodes: it was calibrated on one"
            raise ProfileError(f"{nodes} nodes", cause, "Calibrate on several nodes, or add [links.nic] to it")
        return ()


def slower_of(first: Interconnect, second: Interconnect) -> Interconnect:
    """What holds between machines of two kinds: the slower link within a node, and of the cards those that leave a
    node less. Only a domain that both have joins them."""
    return Interconnect(
        node=_slower(first.node, second.node),
        nic=_slower(first.nic, second.nic) if first.nic and second.nic else None,
        nics_per_node=min(first.nics_per_node, second.nics_per_node),
        domain=min(first.domain, second.domain) if first.domain and second.domain else None,
        crossing=first.crossing if first.crossing == second.crossing else None,
        relays=first.relays and second.relays,
    )


def _slower(first: Link, second: Link) -> Link:
    return min(first, second, key=lambda link: link.bandwidth_bytes_per_s)
