"""Seconds of the data axis: ZeRO's gathers and reduce-scatters, data parallelism's all-reduces, what compute hides."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from autoplan.cost.mesh_links import tree_links, tree_seconds
from autoplan.cost.prices import COPY
from autoplan.cost.server_links import ADDED
from autoplan.cost.zero_shares import DataShares, Held, added, by_axes, joined
from autoplan.ir.buckets import SumRule, bucket_bytes, by_size, sum_levels
from autoplan.option_values import HIERARCHICAL, RING, TREE
from cost_models.collective import hidden_seconds
from cost_models.offload import link_seconds

Sent = tuple[str, float, str, float, float]
TREE_SUM = "tree all-reduce"
"""Messages up and down a tree, as one."""
OUTER_PASSES = 6.0
"""Of an outer update over what is stored: it reads the round's beginning, the mean and the momentum, and writes the
first, the last and the parameters."""


@dataclass(frozen=True)
class DataAxis(DataShares):
    """One setting's data axis, with what its collectives, copies and transfers take.

    Collectives run segment by segment, those of zero 0 bucket by bucket, and hide under the compute beside, which they
    slow: those of fully_shard where the device has streams (not ``Device.blocking``), the buckets on every device,
    since a process group has threads of its own. What serving them costs a core that computes is in the device's
    slowdown, which ``calibrate`` measures with an all-reduce beside products.
    What is sent together is copied together before, and taken apart after: fully_shard's copies in and out, and of
    plain data parallelism, whose gradients stay in their buckets, those into them.
    """

    def gather_s(self, held: Held) -> float:
        """All-gathers of parameters, of each group's one."""
        return sum(self.prices.collective_s("all-gather", n, axes) for axes, n in self.by_group(held).items())

    def scatter_s(self, held: Held) -> float:
        """Reduce-scatters of gradients, in the dtype in which they are summed."""
        summed = self.prices.summed
        groups = self.by_group(held).items()
        return sum(self.prices.collective_s("reduce-scatter", summed * n, axes) for axes, n in groups)

    def replicas_s(self, held: Held) -> float:
        """All-reduces of a rank's shards of the gradients across replicas."""
        return sum(self.replica_s(n, axes) for axes, n in self.by_group(held).items())

    def replica_s(self, bytes: float, axes: str) -> float:
        """The same of the parameters that are sharded over these axes."""
        return self.prices.collective_s("all-reduce", self.shard_bytes(bytes, axes), self.across)

    def hidden_s(self, compute_s: float, comm_s: float) -> float:
        """What running a collective beside compute saves."""
        device = self.prices.device
        return 0.0 if device.blocking else float(hidden_seconds(compute_s, comm_s, device.overlap_slowdown))

    def copied_s(self, bytes: float) -> float:
        """Seconds to copy what is gathered or sent out of its buffer or into it."""
        return self.prices.cold_s(COPY * bytes) if self.shared else 0.0

    def gathered_copy_s(self, bytes: float) -> float:
        """Parameters copied out of the buffer that they were gathered into."""
        return self.copied_s(bytes)

    def fetched_s(self, held: Held, frozen: Held = 0.0) -> float:
        """A shard of a segment's parameters over the link to the host, or of its gradients; 0 where they stay here."""
        if self.offload != "parameters":
            return 0.0
        return self.link_s(self.prices.stored * self.shards_bytes(held) + self.shards_bytes(frozen))

    def shards_bytes(self, held: Held) -> float:
        """A rank's shards of parameters of so many bytes."""
        return sum(size / self.ways(summed) for summed, size in by_axes(held).items())

    def link_s(self, bytes: float) -> float:
        """Seconds over the link between the device and its host."""
        return float(link_seconds(bytes, self.host))

    def gathered_s(self, held: Held, frozen: Held) -> float:
        """One gather of a segment's parameters where that is done again and again."""
        return self.fetched_s(held, frozen) + self.gather_s(joined(held, frozen))

    def exposed_forward_s(self, forward_s: float, held: Held, frozen: Held = 0.0) -> float:
        """What the gather of a segment's parameters, prefetched under the segment before, adds to its forward."""
        if self.zero < 3:
            return 0.0
        gather_s = self.gathered_s(held, frozen)
        return gather_s - self.hidden_s(forward_s, gather_s)

    def exposed_backward_s(self, backward_s: float, held: Held, frozen: Held = 0.0, last: bool = False) -> float:
        """The same backward: parameters gathered again (ZeRO-3), gradients scattered (ZeRO-2 and 3). ``last``: as of
        ``gathers``."""
        again = self.zero == 3 and not (last and self.keeps_last)
        busy_s = self.gathered_s(held, frozen) if again else 0.0
        busy_s += self.fetched_s(held) + self.scatter_s(held) if self.scatters_each else 0.0
        return busy_s - self.hidden_s(backward_s, busy_s)

    def copies_s(
        self, parameter_bytes: float, frozen_bytes: float = 0.0, last: bool = False
    ) -> tuple[float, float]:
        """Copies of a segment's (forward, backward) in each microbatch; ``last``: as of ``gathers``."""
        gathered_s = self.gathered_copy_s(parameter_bytes + frozen_bytes) if self.zero == 3 else 0.0
        scattered_s = self.scattered_copy_s(parameter_bytes) if self.scatters_each else 0.0
        return gathered_s, scattered_s + (0.0 if last and self.keeps_last else gathered_s)

    def scattered_copy_s(self, parameter_bytes: float) -> float:
        """Gradients copied into the buffer that they are scattered from: fully_shard reads them in the dtype in which
        parameters are used, and writes that in which they are summed."""
        return self.copied_s((1 + self.prices.summed) / COPY * parameter_bytes)

    def added_s(self, parameter_bytes: float) -> float:
        """A microbatch's gradients added to those before, on average over the step: what a rank keeps of them, a shard
        where they are scattered in each microbatch, which comes in the dtype of the sum."""
        if self.scatters_each:
            return self.prices.added_s(parameter_bytes / self.size, self.prices.stored)
        return self.prices.added_s(parameter_bytes)

    def accumulate_s(self, parameter_bytes: float) -> float:
        """The same of every microbatch but the first."""
        if self.scatters_each:
            return self.prices.accumulate_s(parameter_bytes / self.size, self.prices.stored)
        return self.prices.accumulate_s(parameter_bytes)

    def once_s(
        self, sizes: Sequence[Held], forward_s: float, backward_s: float, opens: Sequence[tuple[float, float]] = ()
    ) -> tuple[float, float]:
        """(seconds, of these hidden) of the collectives once a step, for a stage with these times of a microbatch.

        sizes  bytes of each segment's parameters
        opens  of the stage that opens a pipeline the (forward, backward) from each of these segments to the next
        """
        if not self.shared and self.offload != "parameters":
            return 0.0, 0.0
        if self.zero == 0:
            counted = Counter(tuple(by_axes(held).items()) for held in sizes)
            return self.summed_s([(self.by_group(dict(held)), count) for held, count in counted.items()], backward_s)
        (gather_s, ahead_s), (scatter_s, back_s) = self.sharded_once_s(sizes, forward_s, backward_s, opens)
        return gather_s + scatter_s, ahead_s + back_s

    def sharded_once_s(
        self, sizes: Sequence[Held], forward_s: float, backward_s: float, opens: Sequence[tuple[float, float]] = ()
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """The same of what fully_shard gathers once a step, and of the gradients that it scatters once. Stages hide
        both under one another's compute, but for the one that opens a pipeline, for which all wait: there a segment's
        gather hides under the segment before it, and so does its scatter, so that the first's are in the open."""
        counted = Counter(tuple(by_axes(held).items()) for held in sizes)
        spent_s = {key: (self.gathered_once_s(dict(key)), self.scattered_once_s(dict(key))) for key in counted}
        gather_s, scatter_s = (sum(n * spent_s[key][way] for key, n in counted.items()) for way in (0, 1))
        beside = [(forward_s, backward_s, gather_s, scatter_s)]
        if opens:
            each = [spent_s[tuple(by_axes(held).items())] for held in sizes]
            beside = [(*times_s, *unit_s) for times_s, unit_s in zip(opens, each[1:], strict=False)]
        ahead_s = sum(self.hidden_s(f, gather) for f, _, gather, _ in beside)
        back_s = 0.0 if self.late else sum(self.hidden_s(b, scatter) for _, b, _, scatter in beside)
        return (gather_s, ahead_s), (scatter_s, back_s)

    def gathered_once_s(self, held: Held) -> float:
        """Of a segment's parameters what is gathered once a step."""
        return self.gather_s(held) if self.zero < 3 else 0.0

    def scattered_once_s(self, held: Held) -> float:
        """Of its gradients what is scattered, and what is summed across replicas, once a step."""
        scatter_s = 0.0 if self.scatters_each else self.scatter_s(held) + self.fetched_s(held)
        return scatter_s + (self.replicas_s(held) if self.replicas > 1 else 0.0)

    def summed_s(
        self, sizes: Sequence[tuple[Mapping[str, float], int]], backward_s: float
    ) -> tuple[float, float]:
        """(seconds, of these hidden) of the gradients' all-reduces or pushes in buckets: all but the first one's time
        of the last microbatch's backward is there to hide them, and the last bucket, or the first segment's gradients
        where these are more (an embedding's), begins when it ends. Of replicas that step alone a step's share of where
        they meet, in the open.

        sizes  (bytes of a segment's parameters, by the group that sums their gradients; how many segments are alike);
               the first to read a batch first
        """
        totals = dict[str, float]()
        for held, count in sizes:
            for axes, size in held.items():
                totals[axes] = totals.get(axes, 0.0) + count * size
        total = sum(totals.values())
        if not total:
            return 0.0, 0.0
        if self.alone:
            return self.met_s(self.averaged * total * self.prices.stored) / self.local_steps, 0.0
        summed = self.prices.summed
        spent_s = sum(self.buckets_s(summed * size, axes) for axes, size in totals.items())
        spent_s = self.links.crossing_s(summed * total) * self.taken if self.servers else spent_s
        first = min(sum(bucket_bytes(summed * size) for size in totals.values()) / summed, total)
        beside_s = backward_s * (1 - first / total)
        early_s = spent_s * (1 - max(first, sum(sizes[0][0].values())) / total)
        slowdown = self.prices.device.overlap_slowdown
        behind = self.late or self.backups or self.arriving
        return spent_s, 0.0 if behind else float(hidden_seconds(beside_s, early_s, slowdown))

    def beside_s(self, sums: Mapping[str, float], sizes: Sequence[Held], backward_s: float) -> tuple[float, float]:
        """(seconds, of these hidden) of gradients that are summed by themselves: in buckets, too, so that they begin
        as early. Those that fully_shard gives come behind the backward.

        sums   bytes by the axes of their group
        sizes  of each segment's parameters
        """
        spent_s = sum(self.buckets_s(size, axes) for axes, size in sums.items())
        if self.zero or not spent_s:
            return spent_s, 0.0
        own = [[{self.beside(summed): size} for summed, size in by_axes(held).items()] for held in sizes]
        each = [({axes: size for axes, size in added(parts).items() if axes}, 1) for parts in own]
        return spent_s, min(spent_s, self.summed_s(each, backward_s)[1])

    def buckets_s(self, bytes: float, axis: str = "") -> float:
        """All-reduces of so many bytes, bucket by bucket, over the data axis or another group."""
        axis, each = axis or self.axis, bucket_bytes(bytes)
        whole, rest = divmod(bytes, each)
        sum_s = partial(self.sum_s, self.algorithm(bytes, axis), axis)
        return whole * sum_s(each) + (sum_s(rest) if rest >= 1 else 0.0)

    def algorithm(self, bytes: float, axes: str) -> str:
        """What sums gradients of so many bytes over these axes, as the program chooses, too; "" for the backend's own.
        """
        found = SumRule.read(self.all_reduce).of(bytes) if self.all_reduce and "dp" in axes.split(",") else ""
        return "" if found == RING or (found == HIERARCHICAL and not self.levels(axes)) else found

    def levels(self, axes: str) -> tuple[str, str] | None:
        """The axes of a sum within a node, and those between nodes; None where it hasn't two levels."""
        found = sum_levels(axes.split(","), self.prices.mesh, self.prices.topology.levels[0].size)
        return None if found is None else (",".join(found[0]), ",".join(found[1]))

    def sum_s(self, algorithm: str, axes: str, bytes: float) -> float:
        """One sum of a bucket."""
        return sum(spent_s for *_, spent_s in self.phases(algorithm, axes, bytes))

    def phases(self, algorithm: str, axes: str, bytes: float) -> tuple[tuple[str, float, str, float], ...]:
        """(what is sent, its bytes, the axes that it goes over, seconds) of each of a sum's phases: on a tree with what
        its nodes add, over two levels with a copy out of what is gathered."""
        prices = self.prices
        if algorithm == TREE:
            group = [prices.mesh.axis(axis) for axis in axes.split(",")]
            added_s = len(tree_links(prices.topology, group)) * prices.cold_s(ADDED * bytes)
            return ((TREE_SUM, bytes, axes, tree_seconds(bytes, prices.topology, group) + added_s),)
        if algorithm == HIERARCHICAL and (levels := self.levels(axes)):
            within, between = levels
            share = bytes / math.prod(prices.mesh.size(axis) for axis in within.split(","))
            sent = (("reduce-scatter", bytes, within), ("all-reduce", share, between), ("all-gather", bytes, within))
            first, second, last = (prices.collective_s(*each) for each in sent)
            seconds = first, second, last + prices.cold_s(COPY * bytes)
            return tuple((*each, spent_s) for each, spent_s in zip(sent, seconds, strict=True))
        return (("all-reduce", bytes, axes, prices.collective_s("all-reduce", bytes, axes)),)

    def summed_by(self, bytes: float, axes: str, spent_s: float, hidden_s: float = 0.0) -> Iterator[Sent]:
        """(what is sent, its bytes, the axes that it goes over, seconds, of these hidden) of all buckets together, of
        gradients of so many bytes that take these seconds over these axes."""
        algorithm = self.algorithm(bytes, axes)
        one = self.phases(algorithm, axes, min(bytes, bucket_bytes(bytes)))
        whole_s = sum(seconds for *_, seconds in one) or 1.0
        for (kind, _, over, seconds), (_, total, *_) in zip(one, self.phases(algorithm, axes, bytes), strict=True):
            yield kind, total, over, spent_s * seconds / whole_s, hidden_s * seconds / whole_s

    def quickest(self) -> str:
        """The all-reduce of each size of buckets that takes least; "" where that is always the backend's own."""
        ways = (RING, TREE, HIERARCHICAL) if self.levels(self.axis) else (RING, TREE)
        rule = str(by_size({name: partial(self.sum_s, name, self.axis) for name in ways}))
        return "" if rule == RING else rule

    def met_s(self, bytes: float) -> float:
        """Replicas of so many bytes averaged, or each with its neighbours, bucket by bucket."""
        if not self.neighbours:
            return self.buckets_s(bytes, self.axis)
        each = bucket_bytes(bytes)
        whole, rest = divmod(bytes, each)
        sent_s = whole * self.prices.sent_s(each, self.axis) + (self.prices.sent_s(rest, self.axis) if rest >= 1 else 0)
        return self.neighbours * sent_s

    def with_pulls(self, pushed: tuple[float, float], bytes: float, compute_s: float) -> tuple[float, float]:
        """(seconds, of these hidden) of pushes, and of what workers pull from servers, of parameters of so many bytes:
        of weights that the next step doesn't read all that the rest of its compute has room for."""
        if not self.servers:
            return pushed
        spent_s, hidden_s = pushed
        pull_s = self.links.crossing_s(self.prices.stored * bytes)
        beside_s = hidden_seconds(compute_s - hidden_s, pull_s, self.prices.device.overlap_slowdown)
        return spent_s + pull_s, hidden_s + (float(beside_s) if self.pulls_late else 0.0)

    def served_s(self, bytes: float) -> float:
        """Copies of that: into and out of buckets, and to what is computed with. And a server's sums of what comes."""
        stored = self.prices.stored * bytes
        published_s = self.prices.cold_s(stored + bytes) if self.publishes else 0.0
        if self.arriving:  # gradients into messages, and a server's values into each of its workers'
            return published_s + self.prices.cold_s(COPY * stored * (2 + self.size * self.updated))
        added_s = (self.size - 1 - self.backups) * self.prices.cold_s(ADDED * self.updated * self.prices.summed * bytes)
        return self.prices.cold_s(COPY * stored) + published_s + added_s

    def copies_once_s(self, parameter_bytes: float, compressed_bytes: float = 0.0) -> float:
        """Copies once a step: masters to what is computed with; gradients into buckets, or what is averaged into them
        and back; a version of the weights; or of ZeRO what ``once_s`` gathers and scatters.

        compressed_bytes  of the parameters those whose gradients go compressed, and lie in no buckets
        """
        if self.sharded:
            return sum(self.sharded_copies_once_s(parameter_bytes))
        stored_s = self.copied_s(self.prices.stored * (parameter_bytes - compressed_bytes))
        kept_s = (self.versions > 1 or self.stashes) * self.prices.cold_s(COPY * parameter_bytes)
        kept_s += self.served_s(parameter_bytes) if self.servers else 0.0
        kept_s += self.prices.cold_s((1 + self.prices.stored) * parameter_bytes) if self.publishes else 0.0
        averaged_s = (2 + self.neighbours) * self.averaged * stored_s / self.local_steps
        if self.outer:
            averaged_s += self.prices.cold_s(OUTER_PASSES * self.prices.stored * parameter_bytes) / self.local_steps
        return kept_s + (averaged_s if self.alone else stored_s)

    def sharded_copies_once_s(self, parameter_bytes: float) -> tuple[float, float]:
        """fully_shard's copies once a step: (of parameters that were gathered, of gradients that are scattered)."""
        gathered_s = self.gathered_copy_s(parameter_bytes) if self.sharded and self.zero < 3 else 0.0
        return gathered_s, self.copied_s(self.prices.stored * parameter_bytes) if self.scatters_once else 0.0
