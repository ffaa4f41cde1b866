"""What the ranks of a data axis hold of the states (ZeRO), and who sums what with whom."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from autoplan.cost.prices import Prices
from autoplan.cost.server_links import ServerLinks
from autoplan.ir.buckets import LATE, Compression, bucket_bytes
from autoplan.ir.mesh import replicated, whole_axis
from autoplan.option_values import OF_OPTIMIZER, ON_DISK
from cost_models.hardware import Host

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


def added(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Their sums, by name."""
    found: dict[str, float] = {}
    for sizes in each:
        for name, size in sizes.items():
            found[name] = found.get(name, 0.0) + size
    return found


@dataclass(frozen=True)
class DataShares:
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
          "nvme": its state and that copy lie on the disk
    late  no sum of gradients hides: no hook sees those of a split backward
          (``runtime.parallel.gradient_buckets.backwards``)
    local_steps  from one average of the replicas to the next, which then takes the place of the gradients' sums
          (``runtime.optim.asynchronous.local_sgd``); 1: gradients are summed in every step
    averaged what is averaged then for each parameter: it and the optimizer's states, or it alone
    outer    the average's changes go through an outer optimizer, which keeps two values more of each parameter
          (``runtime.optim.asynchronous.diloco``)
    axis     "dp", or "dp,cp": ranks along both hold the same parameters, and see other rows
    wide     axes that split experts, over which ZeRO shards dense weights, too: these over dp, ep and cp, experts over
             what is left of them, each by itself where that is one rank
    replicas along the data axis, each with all shards (HSDP): ``size`` and ``axis`` are one replica's. A rank's shard
             of the gradients is summed across them once a step, behind its last reduce-scatter
    versions of the weights that are held (``runtime.optim.asynchronous.weight_stashing``)
    stashes  whether an update leaves the weights before it, for the microbatches in flight (``runtime.continuous``);
             what a rank holds of them differs from rank to rank (``cost.step.held_between_steps``)
    together whether an update looks at the gradients of all stages, so that each waits for the last one
    compressed  how gradients go (``runtime.parallel.compression``): what is left out is held, too; None: summed whole
    servers  parameter servers among the ranks (``runtime.parallel.servers``), each of which updates its shard alone;
             0: none
    backups  of their workers those whose gradients a step does without: who they are is known after the backward
    arriving whether they apply each worker's gradients as they arrive: an update for each, none hidden by a backward
    compensates whether a server keeps what each worker has read, for the delay of its gradient
    shards   each server's share of the parameters; () where that isn't known: even ones
    neighbours whose parameters each replica gets in an average's place (gossip); 0: all are averaged
    beyond   (name, elements of optimizer state for each of its own) of parameters that the device keeps more for than
             for the others: their group has another optimizer
    all_reduce  what sums gradients, by their buckets' size (``ir.buckets.SumRule``); "": the backend's own all-reduce
    tables   where embedding tables lie: "host" or "nvme", of whose rows the device has a cache; "": on the device

    Bytes are those in which parameters are used; what is stored takes ``prices.stored`` times as many.

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
    stashes: bool = False
    together: bool = False
    axis: str = "dp"
    wide: tuple[str, ...] = ()
    replicas: int = 1
    compressed: Compression | None = None
    neighbours: int = 0
    servers: int = 0
    shards: tuple[float, ...] = ()
    backups: int = 0
    arriving: bool = False
    compensates: bool = False
    beyond: tuple[tuple[str, float], ...] = ()
    all_reduce: str = ""
    tables: str = ""

    @property
    def links(self) -> ServerLinks:
        """Between servers and workers."""
        return ServerLinks(self.shards or (1 / self.servers,) * self.servers, self.size, self.prices.topology)

    @property
    def updated(self) -> float:
        """Of the parameters' bytes on a rank those that it updates at most."""
        return self.links.busiest if self.servers else 1.0

    @property
    def taken(self) -> float:
        """Of the workers those whose gradients a step is by."""
        return 1 - self.backups / self.size

    @property
    def updates(self) -> int:
        """That the optimizer makes in a step of each worker."""
        return self.size if self.arriving else 1

    @property
    def pulls_late(self) -> bool:
        """Whether what is pulled runs beside the next step, in memory of its own."""
        return self.servers > 0 and self.versions > 1

    @property
    def alone(self) -> bool:
        """Whether replicas step by themselves, so that their gradients aren't summed."""
        return self.local_steps > 1 or self.neighbours > 0

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
        more = summed if self.zero == 0 and not self.alone else ()
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

    @property
    def across(self) -> str:
        """The axis along which ranks of several replicas hold the same shard; "" where there is one replica."""
        return replicated(self.prices.mesh.size("dp"), self.replicas)[0] if self.replicas > 1 else ""

    def shard_bytes(self, bytes: float, axes: str) -> float:
        """A rank's share of gradients as they are summed, of so many bytes of parameters."""
        return self.prices.summed * bytes / math.prod(self.prices.mesh.size(axis) for axis in axes.split(","))

    @property
    def host(self) -> Host:
        """Of the device, whose profile knows it wherever something is offloaded; its disk in its memory's place, where
        that is what holds the states."""
        host = self.prices.device.host
        assert host is not None, f"{self.prices.device.name} has no host"
        return host.on_disk() if ON_DISK in (self.offload, self.tables) else host

    @property
    def tables_apart(self) -> bool:
        """Whether tables lie in memory apart from the device's."""
        return bool(self.tables) and not self.host.own

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

    @property
    def parameter_share(self) -> float:
        """Bytes of parameters held between uses, per byte of them: what is computed with, of two versions both, its
        master, unless the host has it, what an outer optimizer has beside, and what is pulled or pushed apart; under
        ZeRO the shard, which is the master, and at levels 1 and 2 the gathered."""
        if self.sharded:
            return self.shard_share + (self.zero < 3)
        masters = self.prices.stored if self.publishes and self.offload not in OF_OPTIMIZER else 0.0
        beside = 2 * self.outer + (self.pulls_late or self.arriving)
        return self.versions + masters + self.prices.stored * beside

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
            return states * self.optimizer_share * self.updated
        return self.offloaded_share(states) if self.host.own else 0.0

    def states_share_of(self, states: float, summed: tuple[str, ...]) -> float:
        """The same of a parameter whose gradient is summed over these axes, however wide ZeRO shards it."""
        return self.states_share(states) / (self.wide_ways if self.zero and self.is_wide(summed) else 1)

    def host_share(self, states: float) -> float:
        """Bytes in a host's memory apart, per byte of parameters."""
        return self.offloaded_share(states) if self.offloads and not self.host.own else 0.0

    def offloaded_share(self, states: float) -> float:
        """What the host holds, per byte of parameters: those that it updates, their states and gradients. A disk holds
        no gradients: each is brought to the host as its parameter's turn comes."""
        return ((1 if self.offload == ON_DISK else 2) + states) * self.optimizer_share

    @property
    def offloads(self) -> bool:
        """Whether the host keeps the optimizer's states, and updates."""
        return self.offload in (*OF_OPTIMIZER, "parameters")

    def beside_update(self, parameters: np.ndarray) -> np.ndarray:
        """[segments] bytes that stand where the optimizer updates, or right before or after it: gradients on their way
        to their shards, or to owners that compress them; of replicas that meet a bucket, and what comes for it; what
        workers have sent to a server.

        parameters  bytes of each segment's, trained ones
        """
        if not self.prices.training:
            return 0.0 * parameters
        if self.alone:
            bucket = bucket_bytes(self.prices.stored * float(parameters.sum()))
            return np.full_like(parameters, (1 + max(self.neighbours, 1)) * bucket)
        if self.servers:
            pushed = (self.size - 1 - self.backups) * self.prices.summed
            kept = (1 + LATE) * self.prices.stored * (self.backups > 0)  # for workers that are late
            kept += self.prices.stored * self.arriving  # the server's own, beside what its worker computes with
            kept += self.prices.stored * self.size * self.compensates
            return np.full_like(parameters, (pushed + kept) * self.updated * parameters.sum())
        whole_first = self.compressed is not None and self.compressed.within > 1
        return parameters * (self.prices.stored if self.zero or whole_first else 0.0)

    @property
    def unit(self) -> tuple[float, float]:
        """(of a segment's parameters those that are gathered at once: all, bytes of the buffer that their gradients are
        scattered from, per byte of them)."""
        return 1.0, self.prices.summed

    @property
    def gathered_segments(self) -> tuple[float, float]:
        """Segments whose parameters, and whose gradients, stand whole at once: the one in use, the one prefetched."""
        share, buffer = self.unit
        return 2.0 * share * (self.zero == 3), share * buffer * (self.scatters_each and self.prices.training)
