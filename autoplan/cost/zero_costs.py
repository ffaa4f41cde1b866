"""How the data axis shares the states (ZeRO), in bytes and seconds."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost.prices import Prices
from autoplan.ir.buckets import bucket_bytes
from autoplan.ir.mesh import replicated, whole_axis
from cost_models.collective import hidden_seconds
from cost_models.hardware import Host
from cost_models.offload import link_seconds

COPY = 2.0
"""Passes of a copy over what it copies: read, written."""
OUTER_PASSES = 6.0
"""Of an outer update over what is stored: it reads the round's beginning, the mean and the momentum, and writes the
first, the last and the parameters."""
Held = float | Mapping[tuple[str, ...], float]
"""Local bytes of parameters, by the operator axes over which their gradients are summed; a number: over none. Of those
that aren't trained, by the axes along which they are whole."""


def by_axes(held: Held) -> Mapping[tuple[str, ...], float]:
    return held if isinstance(held, Mapping) else {(): held}


def joined(held: Held, frozen: Held) -> Held:
    """Both together."""
    if not frozen:
        return held
    found = dict(by_axes(held))
    for axes, size in by_axes(frozen).items():
        found[axes] = found.get(axes, 0.0) + size
    return found


@dataclass(frozen=True)
class DataAxis:
    """One setting's data axis.

    zero  0: every rank holds everything and gradients are all-reduced in buckets under the last backward; 1: the
          optimizer's state is split, gradients are reduce-scattered under the last backward and parameters gathered
          under the next forward; 2: gradients are split too, reduce-scattered in each microbatch; 3: parameters too,
          gathered in each microbatch's forward and backward (Rajbhandari et al. 2020); those of the last segment once
          for both, where its backward follows at once (``keeps_last``)
    piped  several pipeline stages: gradients are reduced once, under a stage's last backward, at every level
    offload  "optimizer": its state, a copy of the parameters that it updates and their gradients lie in the host's
          memory; "parameters": parameters and reduced gradients too, each shard going over the link as it is gathered
          or reduced
    late  no sum of gradients hides: no hook sees those of a split backward
          (``runtime.parallel.gradient_buckets.backwards``)
    local_steps  from one average of the replicas to the next, which then takes the place of the gradients' sums
          (``runtime.optim.local_sgd``); 1: gradients are summed in every step
    averaged what is averaged then for each parameter: it and the optimizer's states, or it alone
    outer    the average's changes go through an outer optimizer, which keeps two values more of each parameter
          (``runtime.optim.outer_steps``)
    axis     "dp", or "dp,cp": ranks along both hold the same parameters, and see other rows
    wide     axes that split experts, over which ZeRO shards dense weights, too: these over dp, ep and cp, experts over
             what is left of them, each by itself where that is one rank
    replicas along the data axis, each with all shards (HSDP): ``size`` and ``axis`` are one replica's. A rank's shard
             of the gradients is summed across them once a step, behind its last reduce-scatter
    versions of the weights that are held (``runtime.optim.weight_stashing``)

    Bytes are those in which parameters are used; what is stored takes ``prices.stored`` times as many. Collectives run
    segment by segment, those of zero 0 bucket by bucket, and hide under the compute beside, which they slow: those of
    fully_shard where the device has streams (not ``Device.blocking``), the buckets on every device, since a process
    group has threads of its own. What serving them costs a core that computes is in the device's slowdown, which
    ``calibrate`` measures with an all-reduce beside products.
    What is sent together is copied together before, and taken apart after: fully_shard's copies in and out, and of
    plain data parallelism, whose gradients stay in their buckets, those into them.

    Parameters that aren't trained (``frozen``) have no master, gradient or state. ZeRO-3 shards them, in the dtype in
    which they are used, and gathers them beside the others; below that every rank keeps them.
    """

    zero: int
    size: int
    prices: Prices
    piped: bool = False
    offload: str = "none"
    late: bool = False
    local_steps: int = 1
    averaged: float = 1.0
    outer: bool = False
    versions: int = 1
    axis: str = "dp"
    wide: tuple[str, ...] = ()
    replicas: int = 1

    @property
    def shared(self) -> bool:
        """Whether several ranks hold the same of some parameter."""
        return self.size * self.wide_ways > 1

    @property
    def wide_ways(self) -> int:
        """Ranks along the axes of ``wide``."""
        return math.prod(self.prices.mesh.size(axis) for axis in self.wide)

    def group(self, summed: tuple[str, ...]) -> str:
        """The axes of the group that gathers a parameter and scatters its gradient, or, without ZeRO, sums it.

        summed  operator axes over which its gradient is summed
        """
        more = summed if self.zero == 0 and self.local_steps == 1 else ()
        more = self.wide if self.is_wide(summed) else more
        axes, mesh = {*self.axis.split(","), *more}, self.prices.mesh
        found = sorted(axes, key=lambda name: mesh.names.index(whole_axis(name)))
        return ",".join([name for name in found if mesh.size(name) > 1] or found)

    def beside(self, summed: tuple[str, ...]) -> str:
        """The axes over which its gradient is summed by itself then."""
        axes = self.group(summed).split(",") if self.shared else ()
        return ",".join(axis for axis in summed if axis not in axes)

    def by_group(self, held: Held) -> dict[str, float]:
        """Bytes by the group that they are gathered, scattered or summed over."""
        found: dict[str, float] = {}
        for summed, size in by_axes(held).items():
            found[self.group(summed)] = found.get(self.group(summed), 0.0) + size
        return found

    def ways(self, summed: tuple[str, ...]) -> int:
        """Ranks that share a parameter's states."""
        return self.size * (self.wide_ways if self.is_wide(summed) else 1) if self.zero else 1

    def takes_turns(self, kinds: Iterable[tuple[str, ...]]) -> bool:
        """Whether a stage's gradients stand by themselves, from its first backward: none are summed in buckets, which
        hold those of all stages and stay.

        kinds  operator axes over which its parameters' gradients are summed
        """
        return self.zero > 0 or not (self.size > 1 or any(map(self.beside, kinds)))

    def is_wide(self, summed: tuple[str, ...]) -> bool:
        """Whether a parameter whose gradient is summed over these axes is sharded over those that split experts."""
        return bool(self.wide) and self.wide[0] in summed

    @property
    def elsewhere(self) -> float:
        """Of a dense weight's bytes those whose states other ranks along the axes of ``wide`` have."""
        return 1 - 1 / self.wide_ways

    def gather_s(self, held: Held) -> float:
        """All-gathers of parameters, of each group's one."""
        return sum(self.prices.collective_s("all-gather", n, axes) for axes, n in self.by_group(held).items())

    def scatter_s(self, held: Held) -> float:
        """Reduce-scatters of gradients, in the dtype in which they are summed."""
        summed = self.prices.summed
        groups = self.by_group(held).items()
        return sum(self.prices.collective_s("reduce-scatter", summed * n, axes) for axes, n in groups)

    @property
    def across(self) -> str:
        """The axis along which ranks of several replicas hold the same shard; "" where there is one replica."""
        return replicated(self.prices.mesh.size("dp"), self.replicas)[0] if self.replicas > 1 else ""

    def replicas_s(self, held: Held) -> float:
        """All-reduces of a rank's shards of the gradients across replicas."""
        return sum(self.replica_s(n, axes) for axes, n in self.by_group(held).items())

    def replica_s(self, bytes: float, axes: str) -> float:
        """The same of the parameters that are sharded over these axes."""
        return self.prices.collective_s("all-reduce", self.shard_bytes(bytes, axes), self.across)

    def shard_bytes(self, bytes: float, axes: str) -> float:
        """A rank's share of gradients as they are summed, of so many bytes of parameters."""
        return self.prices.summed * bytes / math.prod(self.prices.mesh.size(axis) for axis in axes.split(","))

    def hidden_s(self, compute_s: float, comm_s: float) -> float:
        """What running a collective beside compute saves."""
        device = self.prices.device
        return 0.0 if device.blocking else float(hidden_seconds(compute_s, comm_s, device.overlap_slowdown))

    def copied_s(self, bytes: float) -> float:
        """Seconds to copy what was gathered out of its buffer, or gradients into the one they are sent from."""
        return self.prices.cold_s(COPY * bytes) if self.shared else 0.0

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

    @property
    def host(self) -> Host:
        """Of the device, whose profile knows it wherever something is offloaded."""
        host = self.prices.device.host
        assert host is not None, f"{self.prices.device.name} has no host"
        return host

    @property
    def sharded(self) -> bool:
        """Whether fully_shard splits parameters, or has the host keep them."""
        return self.zero > 0 and (self.shared or self.offload == "parameters")

    @property
    def publishes(self) -> bool:
        """Whether masters stand beside what is computed with, and are copied to it after an update."""
        return not self.sharded and self.prices.stored > 1

    @property
    def scatters_each(self) -> bool:
        """Whether gradients are scattered in each microbatch rather than once a step."""
        return self.zero >= 2 and not self.piped

    @property
    def scatters_once(self) -> bool:
        """Whether whole gradients accumulate, and are scattered once a step."""
        return self.sharded and not self.scatters_each

    @property
    def keeps_last(self) -> bool:
        """Whether the chain's last segment stays gathered from its forward to its backward, which is next."""
        return self.zero == 3 and not self.piped

    def gathers(self, microbatches: int, last: bool = False) -> int:
        """How often a step gathers each segment's parameters; ``last``: those of the chain's last segment."""
        return 1 if self.zero < 3 else (2 - (last and self.keeps_last)) * microbatches

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
        gathered_s = self.copied_s(parameter_bytes + frozen_bytes) if self.zero == 3 else 0.0
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

    def once_s(self, sizes: Iterable[Held], forward_s: float, backward_s: float) -> tuple[float, float]:
        """(seconds, of these hidden) of the collectives once a step, for a stage with these times of a microbatch.

        sizes  bytes of each segment's parameters
        """
        if not self.shared and self.offload != "parameters":
            return 0.0, 0.0
        counted = Counter(tuple(by_axes(held).items()) for held in sizes)
        alike = [(dict(held), count) for held, count in counted.items()]
        if self.zero == 0:
            return self.summed_s([(self.by_group(held), count) for held, count in alike], backward_s)
        gather_s = sum(count * self.gather_s(held) for held, count in alike) if self.zero < 3 else 0.0
        scatter_s = 0.0
        if not self.scatters_each:
            scatter_s = sum(n * (self.scatter_s(held) + self.fetched_s(held)) for held, n in alike)
        if self.replicas > 1:
            scatter_s += sum(n * self.replicas_s(held) for held, n in alike)
        hidden_s = self.hidden_s(forward_s, gather_s) + self.hidden_s(0.0 if self.late else backward_s, scatter_s)
        return gather_s + scatter_s, hidden_s

    def summed_s(
        self, sizes: Sequence[tuple[Mapping[str, float], int]], backward_s: float
    ) -> tuple[float, float]:
        """(seconds, of these hidden) of the gradients' all-reduces in buckets: all but the first bucket's time of the
        last microbatch's backward is there to hide them, and the last bucket, or the first segment's gradients where
        these are more (an embedding's), begins when it ends. Of local SGD a step's share of the average, in the open.

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
        if self.local_steps > 1:
            return self.buckets_s(self.averaged * total * self.prices.stored, self.axis) / self.local_steps, 0.0
        summed = self.prices.summed
        spent_s = sum(self.buckets_s(summed * size, axes) for axes, size in totals.items())
        first = min(sum(bucket_bytes(summed * size) for size in totals.values()) / summed, total)
        beside_s = backward_s * (1 - first / total)
        early_s = spent_s * (1 - max(first, sum(sizes[0][0].values())) / total)
        slowdown = self.prices.device.overlap_slowdown
        return spent_s, 0.0 if self.late else float(hidden_seconds(beside_s, early_s, slowdown))

    def buckets_s(self, bytes: float, axis: str = "") -> float:
        """All-reduces of so many bytes, bucket by bucket, over the data axis or another group."""
        axis, each = axis or self.axis, bucket_bytes(bytes)
        whole, rest = divmod(bytes, each)
        rest_s = self.prices.collective_s("all-reduce", rest, axis) if rest >= 1 else 0.0
        return whole * self.prices.collective_s("all-reduce", each, axis) + rest_s

    def copies_once_s(self, parameter_bytes: float) -> float:
        """Copies once a step: masters to what is computed with; gradients into buckets, or what is averaged into them
        and back; a version of the weights; or of ZeRO what ``once_s`` gathers and scatters."""
        if self.sharded:
            return sum(self.sharded_copies_once_s(parameter_bytes))
        stored_s = self.copied_s(self.prices.stored * parameter_bytes)
        kept_s = (self.versions - 1) * self.prices.cold_s(COPY * parameter_bytes)
        kept_s += self.prices.cold_s((1 + self.prices.stored) * parameter_bytes) if self.publishes else 0.0
        averaged_s = 2 * self.averaged * stored_s / self.local_steps
        if self.outer:
            averaged_s += self.prices.cold_s(OUTER_PASSES * self.prices.stored * parameter_bytes) / self.local_steps
        return kept_s + (averaged_s if self.local_steps > 1 else stored_s)

    def sharded_copies_once_s(self, parameter_bytes: float) -> tuple[float, float]:
        """fully_shard's copies once a step: (of parameters that were gathered, of gradients that are scattered)."""
        gathered_s = self.copied_s(parameter_bytes) if self.sharded and self.zero < 3 else 0.0
        return gathered_s, self.copied_s(self.prices.stored * parameter_bytes) if self.scatters_once else 0.0

    @property
    def parameter_share(self) -> float:
        """Bytes of parameters held between uses, per byte of them: what is computed with, of two versions both, its
        master, unless the host has it, and what an outer optimizer has beside; under ZeRO the shard, which is the
        master, and at levels 1 and 2 the gathered."""
        if self.sharded:
            return self.shard_share + (self.zero < 3)
        masters = self.prices.stored if self.publishes and self.offload != "optimizer" else 0.0
        return self.versions + masters + 2 * self.prices.stored * self.outer

    def frozen_share(self, whole: tuple[str, ...] = ()) -> float:
        """The same of parameters that aren't trained.

        whole  operator axes along which they are whole
        """
        if self.zero < 3:
            return 1.0
        return 1 / self.ways(whole) if self.offload != "parameters" or self.host.own else 0.0

    def frozen_host_share(self, whole: tuple[str, ...] = ()) -> float:
        """Of these the bytes in a host's memory apart."""
        return 1 / self.ways(whole) if self.zero == 3 and self.offload == "parameters" and not self.host.own else 0.0

    @property
    def gradient_share(self) -> float:
        """The same of gradients: those that are scattered once a step accumulate whole until then."""
        return self.shard_share + (self.prices.stored if self.scatters_once else 0.0)

    @property
    def gradient_shares(self) -> tuple[float, ...]:
        """The same by what stands of a stage's gradients (``cost.interleaved``)."""
        share, kept = self.gradient_share * self.prices.training, self.shard_share * self.prices.training
        return (0.0, kept, share - kept, share) if self.scatters_once else (0.0, share, share, share)

    @property
    def sharded_gradients(self) -> tuple[float, ...]:
        """Of these what ZeRO shards."""
        kept = self.shard_share * self.prices.training * (self.zero > 0)
        return (0.0, kept, 0.0 if self.scatters_once else kept, kept)

    @property
    def shard_share(self) -> float:
        """What is stored of them between steps, per byte of them, on the device."""
        return self.optimizer_share if self.offload != "parameters" else 0.0

    @property
    def optimizer_share(self) -> float:
        """Bytes that one device's optimizer updates, per byte of the parameters that are used there."""
        return self.prices.stored * (1.0 if self.zero == 0 else 1 / self.size)

    def states_share(self, states: float) -> float:
        """Bytes on the device of the optimizer's states, per byte of parameters; of what is offloaded, too, where the
        device's memory is the host's own."""
        if not self.offloads:
            return states * self.optimizer_share
        return self.offloaded_share(states) if self.host.own else 0.0

    def host_share(self, states: float) -> float:
        """Bytes in a host's memory apart, per byte of parameters."""
        return self.offloaded_share(states) if self.offloads and not self.host.own else 0.0

    def offloaded_share(self, states: float) -> float:
        """What the host holds, per byte of parameters: those that it updates, their gradients and states."""
        return (2 + states) * self.optimizer_share

    @property
    def offloads(self) -> bool:
        """Whether the host keeps the optimizer's states, and updates."""
        return self.offload in ("optimizer", "parameters")

    @property
    def gathered_segments(self) -> tuple[float, float]:
        """Segments whose parameters, and whose gradients, stand whole at once: the one in use, the one prefetched."""
        return (2.0 if self.zero == 3 else 0.0, self.prices.stored if self.scatters_each else 0.0)
