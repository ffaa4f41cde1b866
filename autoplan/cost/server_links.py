"""What parameter servers take on the links: gradients many to one, weights one to many.

Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server" (OSDI), sections 3 and 5.1: every
worker sends every server its shard's gradients, and gets its shard's weights. With n ranks, and a shard of b_j bytes on
server j, what enters server j is (n-1)·b_j: of one server n-1 times all gradients, of n even ones (n-1)/n of them, as
under a reduce-scatter. On a level of the network a group of ranks, a device or a node, has to let in what all workers
outside send its servers, and to let out what its workers send servers outside,

    in   =  (workers outside) · Σ b_j of servers inside  /  (bandwidth · what its servers have of its cards)
    out  =  Σ b_j of servers outside  /  bandwidth,   for each worker at its own share

and the longest of these, over all groups and levels, is what a push takes. A pull is the same the other way. Messages
go in rounds of a bucket of each server, each with a startup and a latency for every message of the busiest rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.ir.buckets import bucket_bytes, server_ranks
from cost_models.hardware import Topology

ADDED = 3.0
"""Passes over a gradient that has come: it and the sum are read, the sum is written."""


@dataclass(frozen=True)
class ServerLinks:
    """Servers on a data axis that is the whole cluster.

    shards  each server's share of the parameters' bytes
    ranks   along the data axis
    """

    shards: Sequence[float]
    ranks: int
    topology: Topology

    @property
    def busiest(self) -> float:
        """The greatest share."""
        return max(self.shards)

    def crossing_s(self, bytes: float) -> float:
        """Seconds of a push, or a pull, of all gradients or weights, of so many bytes."""
        return self.waits_s(bytes) + bytes * self.seconds_per_byte

    def waits_s(self, bytes: float) -> float:
        """Startups and latencies of all rounds."""
        links = [level.link.of("send") for level in self.topology.levels if level.size > 1]
        if not links or not bytes:
            return 0.0
        rounds = max(math.ceil(share * bytes / bucket_bytes(share * bytes)) for share in self.shards if share)
        messages = max(self.ranks - 1, len(self.shards))
        return rounds * max(link.startup_s + messages * link.latency_s for link in links)

    @property
    def seconds_per_byte(self) -> float:
        """Of the group of ranks through which the bytes take longest."""
        held = [0.0] * self.ranks
        for rank, share in zip(server_ranks(len(self.shards), self.ranks), self.shards, strict=True):
            held[rank] = share
        inside, worst_s = 1, 0.0
        for level in self.topology.levels:
            whole, bandwidth = inside * level.size, level.link.of("send").bandwidth_bytes_per_s
            for first in range(0, self.ranks, inside):
                around = first // whole * whole
                mine, all_shares = sum(held[first : first + inside]), sum(held[around : around + whole])
                servers = sum(share > 0 for share in held[first : first + inside])
                enters = mine * (whole - inside) / min(level.lone * servers, inside) if servers else 0.0
                worst_s = max(worst_s, enters / bandwidth, (all_shares - mine) / bandwidth)
            inside = whole
        return worst_s
