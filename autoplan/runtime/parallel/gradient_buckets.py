"""Gradient sums once a step: over axes on which each rank has a summand, then between stages with tied weights.

Gradients are views of buckets (as in DistributedDataParallel with gradient_as_bucket_view): the first microbatch's is
copied there as it comes, the others' are added to it there, and the all-reduce runs in place. Under mixed precision
they come in half precision and the sum is in float32: one kernel reads a gradient, adds it and writes the sum. It
begins during the last microbatch's backward, as soon as a bucket and all before it are complete, so that every rank
begins the same sums in the same order; what is left then, because it got no gradient or because fully_shard gives its
part of it late, follows the backward. Between microbatches nothing is exchanged. A rank of one stage, whose gradient
the stage before waits for, begins after its last backward: the sums would slow what all wait for, and run beside the
others' backwards as well.

A sum of several phases, on a tree or over two levels, runs in a thread or on a stream
(``runtime.parallel.bucket_sums``).

Gradients of parameters that a server has (``runtime.parallel.servers``) go there in such buckets, and other ranks are
left with none.

Gradients that go compressed lie in no bucket: once all buckets have begun they are sent
(``runtime.parallel.compression``), or in a training's first steps summed whole.

Ranks needn't have gradients of the same parameters: behind its gradients a bucket counts the ranks that had each. One
that no rank had stays without; one that only others had is their sum.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from autoplan.errors import DivergedError
from autoplan.ir.buckets import SumRule, cut
from autoplan.ir.mesh import ZERO_AXES
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.bucket_sums import OnStream, Running, Sum, SumQueue, phased_sums
from autoplan.runtime.parallel.compression.compressor import Compressor
from autoplan.runtime.parallel.compression.program_sums import compressors, goes_compressed, summed_axes
from autoplan.runtime.parallel.gradient_order import read_first
from autoplan.runtime.parallel.servers.backups import Backups
from autoplan.runtime.parallel.servers.parameter_server import Push
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec

ALIGNMENT_BYTES = 64  # of each gradient in its bucket, so that vectorised kernels need no odd beginning
REDUCED = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Bucket:
    """Gradients that are summed together, in one buffer.

    held      in the order in which a backward gives them
    groups    over which they are summed, one after another
    expected  how many backwards of a microbatch give each a gradient; 0 where no hook sees it
    dtype     in which they are summed over the first; None: the one in which they are
    owner     the rank in the group to which they are pushed, the only one that then has the sum; None: all have it
    phased    sums them over the first group in several phases, which a queue runs; None: one all-reduce does
    """

    def __init__(
        self, held: Sequence[ShardedParameter], groups: Sequence[ProcessGroup], expected: Sequence[int],
        dtype: torch.dtype | None = None, owner: int | None = None, phased: tuple[Sum, SumQueue] | None = None,
    ) -> None:  # fmt: skip
        self.owner, self.phased = owner, phased
        self.held, self.groups, self.expected = tuple(held), tuple(groups), tuple(expected)
        values = [h.values for h in held]
        stored, device = values[0].dtype, held[0].parameter.device
        places = offsets([v.numel() for v in values], stored.itemsize)
        multiple = phased[0].multiple if phased else 1
        size = -(-(places[-1] + len(values)) // multiple) * multiple
        self.flat = torch.zeros(size, dtype=stored, device=device)
        self.views = [self.flat[at : at + v.numel()].view(v.shape) for at, v in zip(places, values, strict=False)]
        self.had = self.flat[places[-1] : places[-1] + len(values)]
        self.sent = self.flat if dtype in (None, stored) else torch.empty_like(self.flat, dtype=dtype)
        self.begin(1)

    def begin(self, microbatches: int) -> None:
        """A new step: nothing has come yet."""
        self.microbatches = microbatches
        self.came = [0] * len(self.held)
        self.pending = len(self.held)
        self.missing: tuple[int, ...] = ()
        self.work: dist.Work | Push | Running | OnStream | None = None

    def take(self, place: int) -> None:
        """A backward has given a gradient, or added to it."""
        self.keep(place)
        self.came[place] += 1
        if self.came[place] == self.expected[place] * self.microbatches:
            self.pending -= 1

    def keep(self, place: int) -> None:
        """Has a gradient lie in the bucket; of one that fully_shard gives, which stays a DTensor, a copy."""
        held, view = self.held[place], self.views[place]
        if held.parameter.grad is view:
            return
        gradient = held.gradient if held.sharded else held.parameter.grad
        assert gradient is not None
        view.copy_(gradient)
        if not held.sharded:
            held.parameter.grad = view

    def start(self, taken: Sequence[int] | None = None) -> None:
        """Begins the sum; this rank's share of what it has no gradient of is zero. ``taken``: see ``Push``."""
        self.missing = tuple(i for i, h in enumerate(self.held) if h.parameter.grad is None)
        self.had.fill_(1)
        for place in range(len(self.held)):
            if place in self.missing:
                self.views[place].zero_()
                self.had[place] = 0
            else:
                self.keep(place)
        if self.sent is not self.flat:
            self.sent.copy_(self.flat)
        if self.owner is not None:
            if taken is not None and self.groups[0].rank() not in taken:
                self.missing = tuple(range(len(self.held)))
            self.work = Push(self.sent, self.groups[0], self.owner, taken)
        elif self.phased is not None:
            sum_up, queue = self.phased
            self.work = queue.begin(sum_up, self.sent)
        else:
            self.work = dist.all_reduce(self.sent, group=self.groups[0], async_op=True)

    def finish(self) -> None:
        """Waits for the sum, takes those that follow it, and gives every parameter its gradient."""
        assert self.work is not None
        self.work.wait()
        if self.owner not in (None, self.groups[0].rank()):
            for held in self.held:
                held.parameter.grad = None
            return
        if self.sent is not self.flat:
            self.flat.copy_(self.sent)
        for group in self.groups[1:]:
            dist.all_reduce(self.flat, group=group)
        had = self.had.tolist() if self.missing else ()  # read where it matters: an accelerator stops for it
        for place, held in enumerate(self.held):
            if place not in self.missing or had[place]:
                self.give(held, self.views[place])

    def give(self, held: ShardedParameter, summed: Tensor) -> None:
        if not held.sharded:
            held.parameter.grad = summed
            return
        if held.parameter.grad is None:
            held.parameter.grad = torch.zeros_like(held.parameter)
        gradient = held.gradient
        assert gradient is not None
        gradient.copy_(summed)


def widen(parameter: Tensor, dtype: torch.dtype) -> None:
    """Has the first microbatch's gradient in the dtype of the sum; those after it are added to it as they come."""
    if parameter.grad is not None and parameter.grad.dtype != dtype:
        parameter.grad = parameter.grad.to(dtype)


class GradientSums:
    """The sums beside those of fully_shard; a collective of the whole world to make and to run.

    backups  say whose gradients a step's are; None: all ranks'

    The hooks by which it follows a backward stay on the parameters until it is closed.
    """

    def __init__(self, spec: ProgramSpec, held: Sequence[ShardedParameter], axes: Mapping[str, MeshAxis]) -> None:
        few = [h for h in held if goes_compressed(spec, h.stored)]
        self.queue = SumQueue()
        self.buckets = rank_buckets(spec, [h for h in held if h not in few], axes, self.queue)
        self.compressed, self.whole_until = compressors(spec, few, axes), spec.whole_steps
        one_stage = len(spec.lowered.stages) == spec.size(PIPELINE)
        self.awaited = one_stage and PIPELINE in axes and axes[PIPELINE].rank > 0
        self.awaited = self.awaited or bool(spec.parallelism.backups)  # who is taken is known after the backward
        self.backups: Backups | None = None
        self.started = len(self.buckets)
        self.hooks = [
            each.parameter.register_post_accumulate_grad_hook(partial(self.came, bucket, place))
            for bucket in self.buckets
            for place, each in enumerate(bucket.held)
            if bucket.expected[place]
        ]
        summed = {each.name for bucket in self.buckets for each in bucket.held} if not spec.continuous else set()
        self.hooks += [
            each.parameter.register_post_accumulate_grad_hook(partial(widen, dtype=each.values.dtype))
            for each in held
            if each.stored.trainable and not each.sharded and each.name not in summed
        ]

    def follow(self, optimizer: Optimizer) -> None:
        """Who steps by these gradients: the sums of a rule that looks at its state do so from here on."""
        for sums in self.compressed:
            sums.follow(optimizer)

    def close(self) -> None:
        """Takes the hooks from the parameters: by them a parameter refers to itself, past Python's collector. Ends the
        thread of sums in several phases."""
        self.queue.close()
        for hook in self.hooks:
            hook.remove()
        self.hooks, self.buckets, self.compressed = [], [], []

    def begin(self, microbatches: int, steps: int = 0) -> None:
        """Before the first of so many microbatches, when the gradients of the step before are gone.

        steps  how many there have been
        """
        self.started, self.whole = 0, steps < self.whole_until
        for bucket in self.buckets:
            bucket.begin(microbatches)

    def came(self, bucket: Bucket, place: int, _: Tensor) -> None:
        """Autograd has given a gradient: the sums begin of the next buckets that are complete."""
        bucket.take(place)
        while not self.awaited and self.started < len(self.buckets) and not self.buckets[self.started].pending:
            self.buckets[self.started].start()
            self.started += 1

    def start(self) -> None:
        """Begins the sums that haven't begun."""
        for bucket in self.buckets[self.started :]:
            bucket.start(self.backups.taken if self.backups else None)
        self.started = len(self.buckets)

    def finish(self) -> None:
        """Makes every gradient whole, once the engine has run."""
        self.start()
        for sums in self.compressed:
            if self.whole:
                self.sum_whole(sums)
            else:
                sums.sum_up()
        for bucket in self.buckets:
            bucket.finish()

    def begin_anew(self, keys: Sequence[str] | None = None) -> None:
        """Nothing has been compressed yet; ``keys``: of these factors alone (``factors``)."""
        for sums in self.compressed:
            sums.begin(keys)

    def errors(self) -> dict[str, Tensor]:
        """What compression has left out of gradients on this rank, by the parameters' names."""
        return {name: error for sums in self.compressed for name, error in sums.left_out.items()}

    def factors(self) -> dict[str, Tensor]:
        """What it goes on with beside these, by what a checkpoint knows it by."""
        return {key: factor for sums in self.compressed for key, factor in sums.factors.items()}

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Within it ``errors`` are the sums of all ranks', and afterwards each has its share of them."""
        for sums in self.compressed:
            sums.add_up()
        try:
            yield
        finally:
            self.share_out()

    @contextmanager
    def unless_diverged(self) -> Iterator[None]:
        """Where a step's loss isn't finite, neither is what compression left out of its gradients, and it begins anew:
        whether the step tells, or on an accelerator the next call."""
        try:
            yield
        except DivergedError:
            self.begin_anew()
            raise

    def share_out(self) -> None:
        """Has each rank hold its share of errors that are the sums of all ranks'."""
        for sums in self.compressed:
            sums.share_out()

    def sum_whole(self, sums: Compressor) -> None:
        """Before compression begins: in buckets of this step alone."""
        for places in cut([h.values.numel() * h.values.element_size() for h in sums.held]):
            bucket = Bucket([sums.held[place] for place in places], [sums.group], [0] * len(places))
            bucket.start()
            bucket.finish()


def rank_buckets(
    spec: ProgramSpec, held: Sequence[ShardedParameter], axes: Mapping[str, MeshAxis], queue: SumQueue
) -> list[Bucket]:
    """This rank's buckets, in the order in which a backward completes them (``gradient_order``).

    The same on all ranks of a stage; of those with a parameter that several stages share, the same on these stages.
    """
    groups, phased = stage_groups(spec, dist.get_rank()), phased_sums(spec)
    rank = axes[PIPELINE].rank if PIPELINE in axes else 0
    read = read_first(spec.lowered)
    summed = sorted((h for h in held if h.stored.trainable), key=lambda h: read[h.name], reverse=True)
    place = {h.name: i for i, h in enumerate(summed)}
    found = []
    for members in alike(spec, summed):
        names, ranks = summed_axes(spec, members[0].stored), spec.pipeline_ranks(members[0].stored)
        over = [axes[",".join(names)].group] if names else []
        over += [groups[ranks]] if len(ranks) > 1 else []
        known = [group for group in over if group is not None]
        sum_up = phased.get((algorithm(spec, names, summed), names))
        for places in cut([h.values.numel() * h.values.element_size() for h in members]) if known else ():
            few = [members[i] for i in places]
            expected, owner = [backwards(spec, h, rank) for h in few], spec.owners.get(few[0].name)
            how = (sum_up, queue) if sum_up else None
            found.append(Bucket(few, known, expected, reduce_dtype(spec, names), owner, how))
    return sorted(found, key=lambda bucket: (bucket.held[-1].sharded, place[bucket.held[-1].name]))


def algorithm(spec: ProgramSpec, axes: tuple[str, ...], held: Sequence[ShardedParameter]) -> str:
    """What sums the gradients over these axes, by how many bytes of them a rank has; "" where the backend is asked."""
    rule, dtype = spec.parallelism.all_reduce, reduce_dtype(spec, axes)
    if rule is None:
        return ""
    values = [h.values for h in held if summed_axes(spec, h.stored) == axes]
    return SumRule.read(rule).of(sum(v.numel() * (dtype or v.dtype).itemsize for v in values))


def alike(spec: ProgramSpec, held: Sequence[ShardedParameter]) -> list[list[ShardedParameter]]:
    """Parameters whose gradients are summed over the same axes and between the same stages, are of one dtype, and come
    by hooks or late, from fully_shard; or are pushed to the same server."""
    kinds: dict[tuple, list[ShardedParameter]] = {}
    for each in held:
        ranks, dtype, owner = spec.pipeline_ranks(each.stored), each.values.dtype, spec.owners.get(each.name)
        kinds.setdefault((summed_axes(spec, each.stored), ranks, each.sharded, dtype, owner), []).append(each)
    return list(kinds.values())


def offsets(counts: Sequence[int], element_bytes: int) -> list[int]:
    """Where each of so many elements begins, aligned, and where the last ends."""
    step = max(1, ALIGNMENT_BYTES // element_bytes)
    places = [0]
    for count in counts:
        places.append(places[-1] + -(-count // step) * step)
    return places


def backwards(spec: ProgramSpec, held: ShardedParameter, rank: int) -> int:
    """How many backwards of a microbatch give a parameter on this pipeline rank a gradient, as its hook sees it.

    0 where fully_shard does; under a split backward, whose second half takes the weights' gradients by autograd.grad
    and adds them up itself (``runtime.pipeline.split_backward``), past every hook; and where a step's gradients aren't
    complete with its backwards (``runtime.pipeline.continuous``).
    """
    if held.sharded or spec.parallelism.splits_backward or spec.continuous:
        return 0
    return sum(spec.pipeline_rank(stage) == rank for stage in held.stored.stages)


def reduce_dtype(spec: ProgramSpec, axes: Sequence[str]) -> torch.dtype | None:
    """The dtype in which gradients are summed over these axes; None: the one in which they are. What is asked for is
    of the axes that split the batch and its rows, as under ZeRO; sums of tensor-parallel ranks alone are left out."""
    asked = spec.training.reduce_dtype if {*ZERO_AXES} & {*axes} else None
    return None if asked is None else REDUCED[asked]


def stage_groups(spec: ProgramSpec, rank: int) -> dict[tuple[int, ...], ProcessGroup]:
    """For each set of pipeline ranks that share a parameter, the group of this rank and its like on the others.

    Every rank of the world must call it: torch makes groups collectively.
    """
    mesh = spec.lowered.mesh
    found = {}
    sharing = {spec.pipeline_ranks(p) for p in spec.lowered.parameters}
    for ranks in sorted(r for r in sharing if len(r) > 1):
        firsts = [r for r in range(mesh.devices) if mesh.coordinate(r, PIPELINE) == 0]
        members = [[first + r * mesh.axis(PIPELINE).stride for r in ranks] for first in firsts]
        group, _ = dist.new_subgroups_by_enumeration(members)
        if mesh.coordinate(rank, PIPELINE) in ranks:
            assert group is not None
            found[ranks] = group
    return found
