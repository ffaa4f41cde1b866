"""The candidates: every combination of sizes and options that the cluster, the batch and what is pinned allow.

A candidate lays the devices out as a mesh of axes. Each axis has a role:

    pp    pipeline parallelism: the chain of segments is cut into stages, one or several on each rank
    dp    data parallelism: ranks have rows of the batch each, and with ZeRO a share of the states
    ep    a part of the data ranks: a mixture's experts are split over it, and over further axes that are folded in
          (``ir.folding``), rows of all else
    cp    the context's axis: the sequence is split over it. Where experts are split over a part of it, that part is
          ``cp2``
    tp    the tensor axes: operators are split over them, in ways that ``intra_op`` chooses or a named system asks for;
          one axis, or several of which tp is the product
    mb    no devices: the microbatches that go through the pipeline one after another

and beside the mesh a candidate fixes the schedule, the ZeRO level, what may be recomputed and what the host keeps. How
operators are split and where the chain is cut is left to ``intra_op`` and ``inter_op``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.cost.interleaved import deals_rounds
from autoplan.ir.buckets import Compression, sum_levels
from autoplan.ir.folding import Folding, fold
from autoplan.ir.mesh import CONTEXT, CONTEXTS, TENSOR, Mesh, replicated
from autoplan.option_values import CONTINUOUS, CP_ATTENTION, HIERARCHICAL, IN_HOST, ON_DISK, cuts
from autoplan.options import Parallelism
from autoplan.search.space.tensor_axes import SYSTEMS as TENSOR_LAYOUTS


@dataclass(frozen=True, order=True)
class Candidate:
    """One candidate.

    micro_batch     rows of one microbatch along all ranks of ep, on one of dp
    recompute       "none", "selective", "full", or "auto": as many segments as memory asks for, each as cheaply;
                    "selective" where activations are offloaded, which takes its place (``chain.chain_of``)
    virtual_stages  stages on one pipeline rank: stage k of the chain runs on rank k modulo pp
    offload         "none", "optimizer", "parameters" or "activations": what the host's memory holds
    tensor          factors of tp, outermost first, one mesh axis for each; () is one axis
    tensor_system   how tensors lie over these axes, by a system's name (``row_systems.LAYOUTS``); "": as is
                    cheapest
    local_steps     steps from one average of the replicas to the next; 1: gradients are summed in every step
    ep, cp          devices of the mesh's axes of these names: of all data ranks, dp * ep, those among which experts are
                    split, and of the context's
    folds           further axes over which experts are split
    inner           of cp, the ranks of its inner factor, where experts are split over that alone
    cp_attention    how attention is split over cp: "heads", "rows" or "ring"; "" without that axis
    dp_replicate    replicas along dp of what ZeRO shards over the rest of it
    versions        of the weights, of the oldest of which gradients are: 1 and the staleness of servers
    servers         data ranks that are parameter servers; 0: gradients are summed on all ranks
    backups         of their workers those whose gradients a step does without
    ahead           steps that a worker may be ahead of others, or "unbounded", where servers apply gradients as they
                    arrive; 0: they wait for all
    gossip          the graph on which replicas that step by themselves meet their neighbours; "": all are averaged
    compressed      how gradients go over the data axis; None: they are summed whole
    all_reduce      what sums them, as it is pinned; "": what is quickest (``parameter_shares.data_axis``)
    tables          where embedding tables lie that are placed: "host" or "nvme"; "": on the devices. ``table_cache``,
                    ``table_misses``: as of ``Parallelism``
    """

    pp: int
    dp: int
    tp: int
    micro_batch: int
    microbatches: int
    zero: int
    schedule: str
    recompute: str
    virtual_stages: int = 1
    offload: str = "none"
    tensor: tuple[int, ...] = ()
    tensor_system: str = ""
    local_steps: int = 1
    versions: int = 1
    ep: int = 1
    cp: int = 1
    cp_attention: str = ""
    dp_replicate: int = 1
    folds: tuple[str, ...] = ()
    outer_optimizer: str = ""
    compressed: Compression | None = None
    gossip: str = ""
    servers: int = 0
    inner: int = 1
    backups: int = 0
    ahead: int | str = 0
    all_reduce: str = ""
    tables: str = ""
    table_cache: float | None = None
    table_misses: float | None = None

    @property
    def stages(self) -> int:
        """Parts into which the chain is cut."""
        return self.pp * self.virtual_stages

    @property
    def mesh(self) -> Mesh:
        return Mesh.planned(self.pp, self.dp, self.ep, self.cp, self.factors, self.microbatches, self.inner)

    @property
    def factors(self) -> tuple[int, ...]:
        """Sizes of the tensor axes, outermost first."""
        return self.tensor or (self.tp,)

    @property
    def operator_sizes(self) -> tuple[int, ...]:
        """Sizes of the axes over which operators are split: ep, those of cp, and those of tp."""
        return (self.ep, self.cp // self.inner, self.inner, *self.factors)

    @property
    def operator_ways(self) -> int:
        """Devices over which operators are split."""
        return self.ep * self.cp * self.tp

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """The axes whose ranks hold the same parameters and see other rows, of the batch or of the sequence: ZeRO
        shards over them, or of the data axis over the part that one replica has; gradients are summed over them
        together. Replicas that step alone are the data axis' own."""
        data = replicated(self.dp, self.dp_replicate)[1] if self.dp_replicate > 1 else "dp"
        along = self.cp > 1 and not (self.local_steps > 1 or self.gossip) and CONTEXT not in self.folds
        return (data, CONTEXT) if along else (data,)

    @property
    def folding(self) -> Folding:
        return Folding(self.ep, self.folds, self.inner)

    @property
    def wide(self) -> tuple[str, ...]:
        """The axes that split experts over which ZeRO shards weights that are whole there, beside ``shard_axes``."""
        return self.folding.shards if self.zero else ()

    @property
    def sizes(self) -> dict[str, int]:
        """What a user pins of the sizes: all data ranks, the axes beside, ranks among which experts are split, and
        over which each of them is."""
        folded = {axis: self.mesh.size(axis) for axis in self.folds}
        apart = math.prod(size for axis, size in folded.items() if axis not in CONTEXTS)
        sizes = {"dp": self.dp * self.ep, "cp": self.cp, "tp": self.tp, "pp": self.pp}
        return sizes | {"ep": self.ep * math.prod(folded.values()), "etp": self.tp // apart}

    @property
    def rows(self) -> int:
        """Of one microbatch on one data rank."""
        return self.micro_batch // self.ep

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.dp * self.operator_ways

    @property
    def sizes_text(self) -> str:
        """``dp=2 cp=2 tp=4 pp=1``: the axes' sizes; of the experts' and the context's where there is one."""
        sizes = self.sizes
        beside = [name for name in ("ep", "cp") if sizes[name] > 1]
        beside += ["etp"] * (sizes["ep"] > 1 and self.tp > 1)
        named = [name for name in ("dp", "cp", "tp", "pp", "ep", "etp") if name in beside or name in ("dp", "tp", "pp")]
        return " ".join(f"{name}={sizes[name]}" for name in named)

    @property
    def axes_text(self) -> str:
        """Its operator axes as a user would pin them."""
        sizes = [f"{name}={self.sizes[name]}" for name in ("ep", "etp", "cp") if self.sizes[name] > 1]
        return " ".join((*sizes, f"tensor={'x'.join(map(str, self.factors))}"))


@dataclass(frozen=True)
class SpaceLimits:
    """What bounds the candidates.

    devices, node   of the cluster, and of one of its nodes
    rows            of the batch
    segments        of the chain
    only_one        (axis, reason) for each batch axis that must have size 1
    fuses           whether segments are compiled, so that a backward gives all its gradients at once
    tokens          of the shortest sequence between blocks that attention runs over; 0 without one
    experts         of the mixture with the fewest; 0 without one
    adapters        of a device's memory what the states of all trained parameters take, where these are few beside
                    frozen ones; infinite of other models
    """

    devices: int
    node: int
    rows: int
    segments: int
    only_one: tuple[tuple[str, str], ...] = ()
    fuses: bool = True
    tokens: int = 0
    experts: int = 0
    adapters: float = math.inf


ONE_STAGE = ("gpipe", "1f1b", *CONTINUOUS)
VIRTUAL_STAGES = (1, 2, 4, 8)
LEAST_STATES = 0.01  # of a device's memory: the states of adapters that take less aren't worth sharding by themselves
LEAST_BUBBLE = 0.04  # the share of a step that has to be idle for twice as many stages on a rank to be tried
MOST_ACTIONS = 2**15
"""Forwards and backwards of a step, beyond which interleaving saves too little to be tried: its bubble falls with the
microbatches."""


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def all_candidates(limits: SpaceLimits, pinned: Parallelism) -> Iterator[Candidate]:
    """Every candidate. A tensor axis stays within a node unless it is pinned."""
    for (pp, dp, cp, tp), (tensor, folding) in foldings(limits, pinned):
        outer = dp // folding.data
        for rows in micro_batches(limits, pinned, dp):
            microbatches = limits.rows // (dp * rows)
            for schedule, virtual_stages in schedules(limits, pinned, pp, microbatches):
                for zero, replicas in sharings(limits, pinned, pp, outer, folding, cp, tp):
                    if schedule == "zero-bubble" and zero == 3:
                        continue
                    recompute = "none" if schedule == "zero-bubble" else pinned.recompute or "auto"
                    recompute = "selective" if pinned.offload == "activations" else recompute
                    for attention in attentions(pinned, cp):
                        candidate = Candidate(
                            pp, outer, tp, rows * folding.data, microbatches, zero, schedule, recompute,
                            virtual_stages, pinned.offload or "none", tensor, pinned.tensor_system or "",
                            pinned.local_steps or 1, 1 + (pinned.staleness or 0), folding.data, cp, attention, replicas,
                            folding.beside, pinned.outer_optimizer or "", pinned.compressed, pinned.gossip or "",
                            pinned.servers or 0, folding.inner, pinned.backups or 0,
                            pinned.ahead or 0, pinned.all_reduce or "",
                            pinned.tables if pinned.tables in (IN_HOST, ON_DISK) else "", pinned.table_cache,
                            pinned.table_misses,
                        )  # fmt: skip
                        if sums_as_pinned(candidate, limits.node):
                            yield candidate


def sums_as_pinned(candidate: Candidate, node: int) -> bool:
    """Whether gradients can be summed as it is asked for, where it is."""
    axes, mesh = candidate.shard_axes, candidate.mesh
    if not candidate.all_reduce:
        return True
    levels = HIERARCHICAL not in candidate.all_reduce or sum_levels(axes, mesh, node) is not None
    return levels and math.prod(map(mesh.size, axes)) > 1


def foldings(
    limits: SpaceLimits, pinned: Parallelism
) -> Iterator[tuple[tuple[int, int, int, int], tuple[tuple[int, ...], Folding]]]:
    """(pp, dp, cp, tp) with factors of the tensor axis and how experts lie on these ranks. Where ``etp`` is not pinned:
    each over all of tp, and each whole."""
    ep, how = pinned.ep or 1, pinned.compressed
    if how is not None and max(ep, pinned.cp or 1) > 1 and not how.linear:
        return  # refused where it is pinned (``gradient_checks``)
    for pp, dp, cp, tp in meshes(limits, pinned):
        for tensor in factorings(limits, pinned, tp):
            whole = (1,) if ep > 1 and pinned.tensor_system is None else ()
            ways = (tp, *whole) if pinned.etp is None else (pinned.etp,)
            for etp in dict.fromkeys(ways):
                folding = fold(dp, cp, tensor or (tp,), ep, etp)
                meets = pinned.steps_locally or pinned.compressed  # what several replicas have to do
                whole_groups = folding is None or how is None or how.within == 1 or how.within % folding.data == 0
                if folding is not None and whole_groups and not (meets and dp == folding.data):
                    yield (pp, dp, cp, tp), (tensor, folding)


def attentions(pinned: Parallelism, cp: int) -> tuple[str, ...]:
    """The ways to be tried in which attention is split over the context's axis; "" without one."""
    if cp == 1:
        return ("",)
    return CP_ATTENTION if pinned.cp_attention is None else (pinned.cp_attention,)


def factorings(limits: SpaceLimits, pinned: Parallelism, tp: int) -> list[tuple[int, ...]]:
    """The factors of the tensor axis to be tried, () for one axis: those that are pinned; one axis, and, where it
    spans several nodes, one axis across them and one inside (``factoring`` tries more where they can win). Where
    experts lie over a part of it, that part and the rest."""
    if pinned.tensor is not None:
        return [pinned.tensor if len(pinned.tensor) > 1 else ()] if math.prod(pinned.tensor) == tp else []
    if (pinned.ep or 1) > 1 and pinned.etp not in (None, 1, tp):
        return [(tp // pinned.etp, pinned.etp)] if tp % pinned.etp == 0 else []
    spans = tp > limits.node > 1 and tp % limits.node == 0
    return [(), (tp // limits.node, limits.node)] if spans else [()]


def meshes(limits: SpaceLimits, pinned: Parallelism) -> Iterator[tuple[int, int, int, int]]:
    """(pp, dp, cp, tp) whose product is the number of devices. The context's axis is there where it is pinned."""
    alone, cp = {axis for axis, _ in limits.only_one}, pinned.cp or 1
    if limits.devices % cp:
        return
    devices = limits.devices // cp
    for tp in divisors(devices):
        if pinned.tp not in (None, tp) or (pinned.tp is None and tp > limits.node):
            continue
        split = pinned.sequence_parallel or pinned.tensor_system or cuts(pinned.tp_overlap)
        if split and tp == 1:  # what is split is split along this axis
            continue
        for pp in divisors(devices // tp):
            dp = devices // tp // pp
            wanted = pinned.pp in (None, pp) and pinned.dp in (None, dp) and not (pinned.continuous and pp == 1)
            wanted = wanted and (not pinned.servers or dp == limits.devices > 1)
            within = pinned.compression_within or 1
            wanted = wanted and (within == 1 or (dp % within == 0 and dp > within))
            if wanted and pp <= limits.segments and limits.rows % dp == 0 and not ("dp" in alone and dp > 1):
                yield pp, dp, cp, tp


def micro_batches(limits: SpaceLimits, pinned: Parallelism, dp: int) -> list[int]:
    rows = limits.rows // dp
    if any(axis == "mb" for axis, _ in limits.only_one):
        return [rows] if pinned.micro_batch in (None, rows) else []
    return [b for b in divisors(rows) if pinned.micro_batch in (None, b) and b % batch_ways(pinned) == 0]


def batch_ways(pinned: Parallelism) -> int:
    """Over how many ranks the tensor axes split the rows of a microbatch further, as a named system asks; placed tables
    ask for none."""
    layouts = TENSOR_LAYOUTS.get(pinned.tensor_system or "")
    if layouts is None or pinned.tensor is None:
        return 1
    sizes = dict(zip(TENSOR, pinned.tensor, strict=False))
    return math.prod(sizes[axis] for axis in layouts.whole)


def schedules(limits: SpaceLimits, pinned: Parallelism, pp: int, microbatches: int) -> list[tuple[str, int]]:
    """(schedule, stages on a rank). 1F1B holds fewer microbatches than GPipe and takes as long. With fewer microbatches
    than stages GPipe may be quicker, since its messages pass under more compute; one alone goes the same way in both.
    PipeDream-2BW needs as many microbatches as stages: else more than two versions would be in use. Of the others those
    whose rounds the microbatches fill (``interleaved_schedules``)."""
    few, order = microbatches < pp, pinned.pipeline_schedule
    possible = ["gpipe"] * few + ["1f1b"] * (not few or microbatches > 1)
    wanted = possible if order is None else [order] * (order in ONE_STAGE and not (few and order == "pipedream-2bw"))
    found = [(s, 1) for s in wanted if pinned.virtual_stages in (None, 1)]
    if pp == 1 or not deals_rounds(pp, microbatches) or order in ONE_STAGE:
        return found
    return found + interleaved_schedules(limits, pinned, pinned.pipeline_schedule or "interleaved", pp, microbatches)


def interleaved_schedules(
    limits: SpaceLimits, pinned: Parallelism, schedule: str, pp: int, microbatches: int
) -> list[tuple[str, int]]:
    """Interleaved and zero-bubble, with counts of stages that double; where not pinned only up to ``MOST_ACTIONS``.
    Zero-bubble is tried only where it is pinned: a compiled segment's backward would run twice
    (``cost.interleaved.split_backward``), and torch splits no backward of stages that share what they compute."""
    counts = VIRTUAL_STAGES if pinned.virtual_stages is None else (pinned.virtual_stages,)
    least = 1 if schedule == "zero-bubble" else 2
    found = []
    for count in counts:
        fits = least <= count and pp * count <= limits.segments
        helps = 2 * (pp - 1) >= LEAST_BUBBLE * max(1, count - (least == 1)) * microbatches  # idle with fewer stages
        helps = helps and (microbatches > 1 or least == 1)  # one alone has none to go between
        if fits and (pinned.pipeline_schedule or (helps and 2 * pp * count * microbatches <= MOST_ACTIONS)):
            found.append((schedule, count))
    return found


def sharings(
    limits: SpaceLimits, pinned: Parallelism, pp: int, dp: int, folding: Folding, cp: int, tp: int
) -> Iterator[tuple[int, int]]:
    """(ZeRO level, replicas of what it shards) to be tried. Where no number of replicas is pinned: one, and one for
    each node, so that parameters are gathered inside.

    dp  data ranks that have the same experts
    """
    inside = folding.data * cp * tp
    across = dp * inside // limits.node if inside < limits.node < dp * inside and limits.node % inside == 0 else 1
    wanted = (1, across) if pinned.dp_replicate is None else (pinned.dp_replicate,)
    shards = dp * folding.beside_data(cp)
    levels = zero_levels(pinned, pp, shards)
    if pinned.zero is None and limits.adapters < LEAST_STATES * tp * pp:
        levels = [zero for zero in levels if zero not in (1, 2)] or levels
    for zero, replicas in itertools.product(levels, dict.fromkeys(wanted)):
        if replicas == 1 or (zero and dp % replicas == 0 and shards // replicas > 1):
            yield zero, replicas


def zero_levels(pinned: Parallelism, pp: int, shards: int) -> list[int]:
    """Those to be tried where so many ranks hold the same parameters. Under a pipeline ZeRO-2 is ZeRO-1: its engine
    reduces gradients once, after the last microbatch."""
    if pinned.zero is not None:
        return [pinned.zero]
    if pinned.asynchronous:
        return [0]
    if pinned.offload == "parameters":  # fully_shard moves its shards, and does so on one rank too
        return [3]
    if shards == 1:
        return [0]
    return [0, 1, 2, 3] if pp == 1 else [0, 1, 3]
