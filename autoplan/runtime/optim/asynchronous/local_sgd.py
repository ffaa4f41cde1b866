"""Local SGD: every replica steps by itself on its own rows, and every few steps all replicas are averaged.

McMahan et al. 2017 ("Communication-Efficient Learning of Deep Networks from Decentralized Data"), Stich 2019 ("Local
SGD Converges Fast and Communicates Little"), Lin et al. 2020 ("Don't Use Large Mini-Batches, Use Local SGD"). What is
averaged over the data axis is the parameters and the optimizer's moments (Yu et al. 2019 average the momentum, too), so
that after it the replicas are one model, which a checkpoint can hold.

Under gossip no average of all is taken. Each replica steps, and then takes the mean of its parameters and its
neighbours' (D-PSGD on a ring: Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms?";
one neighbour at a time, 1, 2, 4, … places away, so that of 2^k replicas k meetings in a row are the mean of all: Ying
et al. 2021, "Exponential Graph is Provably Efficient for Decentralized Deep Training"). After a step, of replica i,

    ring         x_i = (x_(i-1) + x_i + x_(i+1)) / 3
    exponential  x_i = (x_i + x_(i-2^k)) / 2          k = 0, 1, … up to where 2^k reaches the replicas, and again

The optimizer's moments stay each replica's. Before a checkpoint the replicas are averaged, moments too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autoplan.ir.buckets import cut
from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.masters import publish
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, local
from autoplan.runtime.program_spec import DATA, ProgramSpec


def replica_axes(spec: ProgramSpec) -> tuple[str, ...]:
    """The axes over which one replica's ranks lie."""
    return tuple(a.name for a in spec.lowered.mesh.device_axes if a.name != DATA and a.size > 1)


def replica_groups(spec: ProgramSpec) -> tuple[tuple[str, ...], ...]:
    """What ``mesh_axes`` has to make for ``replica_of``."""
    names = replica_axes(spec)
    return (names,) if spec.parallelism.steps_locally and len(names) > 1 else ()


def replica_of(spec: ProgramSpec, axes: Mapping[str, MeshAxis]) -> MeshAxis | None:
    """The ranks of this rank's replica, where each steps by itself; None where the world is one model."""
    if not spec.parallelism.steps_locally:
        return None
    names = replica_axes(spec)
    return axes[",".join(names)] if names else MeshAxis("replica", 1, 0)


class LocalSteps:
    """The averages of one rank's replica with the others.

    every  steps from one average to the next
    axis   the data axis, on whose ranks the replicas are
    """

    def __init__(self, every: int, held: Sequence[ShardedParameter], axis: MeshAxis, optimizer: Optimizer) -> None:
        self.every, self.held, self.axis, self.optimizer = every, held, axis, optimizer

    def stepped(self, steps: int) -> None:
        """After every step; ``steps``: how many there have been."""
        if steps % self.every == 0:
            self.round()

    def round(self) -> None:
        """What brings the replicas together."""
        self.average()

    def begin(self) -> None:
        """Other parameters have been loaded."""

    def beside(self) -> Mapping[str, Mapping[str, Tensor]]:
        """What a checkpoint holds beside parameters and moments, by kind and the parameters' names."""
        return {}

    def average(self) -> None:
        """Makes all replicas one, their mean, in place."""
        parameters = [h.values for h in self.held if h.stored.trainable]
        for bucket in self.means([*parameters, *self.moments()]):
            for tensor, mean in bucket:
                tensor.copy_(mean)
        publish(self.held)

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Within it every replica computes with the mean of all; afterwards each has its own values again."""
        parameters = [h.values for h in self.held if h.stored.trainable]
        own = [p.clone() for p in parameters]
        try:
            for parameter in parameters:
                parameter.copy_(self.mean(parameter))
            publish(self.held)
            yield
        finally:
            for parameter, values in zip(parameters, own, strict=True):
                parameter.copy_(values)
            publish(self.held)

    def means(self, tensors: Sequence[Tensor]) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Each tensor with the replicas' mean of it, a bucket at a time."""
        for alike in by_kind(tensors):
            for places in cut([t.numel() * t.element_size() for t in alike]):
                bucket = [alike[i] for i in places]
                mean = self.mean(torch.cat([t.reshape(-1) for t in bucket]))
                parts = mean.split([t.numel() for t in bucket])
                yield [(t, part.view_as(t)) for t, part in zip(bucket, parts, strict=True)]

    def mean(self, values: Tensor) -> Tensor:
        """The replicas' mean of a tensor, as a new one on every rank of the axis; all of them call it."""
        summed = values.contiguous().clone()
        dist.all_reduce(summed, group=self.axis.group)
        return summed.div_(self.axis.size)

    def moments(self) -> Iterator[Tensor]:
        """The optimizer's state with an element for each of a parameter's; counts of steps are alike anyway."""
        for each in self.held:
            state: Mapping[str, object] = self.optimizer.state.get(each.updated, {})
            for _, value in sorted(state.items()):
                if isinstance(value, Tensor) and value.is_floating_point() and value.shape == each.updated.shape:
                    yield local(value)


class Gossip(LocalSteps):
    """The means of one rank's replica with its neighbours on a graph.

    graph  "ring" or "exponential"
    """

    def __init__(
        self, every: int, held: Sequence[ShardedParameter], axis: MeshAxis, optimizer: Optimizer, graph: str
    ) -> None:
        super().__init__(every, held, axis, optimizer)
        self.graph = graph

    def stepped(self, steps: int) -> None:
        if steps % self.every == 0:
            self.meet(steps // self.every - 1)

    def places(self, number: int) -> tuple[int, ...]:
        """How many places behind this replica those are that it hears from in the meeting of this number."""
        if self.graph == "ring":
            return (1, -1) if self.axis.size > 2 else (1,)
        return (2 ** (number % (self.axis.size - 1).bit_length()),)

    @torch.no_grad()
    def meet(self, number: int) -> None:
        """Bucket by bucket, so that no more stands beside the parameters than one and what comes for it."""
        for alike in by_kind([h.values for h in self.held if h.stored.trainable]):
            for bucket in cut([t.numel() * t.element_size() for t in alike]):
                self.mix([alike[place] for place in bucket], self.places(number))
        publish(self.held)

    def mix(self, tensors: Sequence[Tensor], places: Sequence[int]) -> None:
        """The mean of these with what replicas so many places behind have of them."""
        mean = torch.cat([t.reshape(-1) for t in tensors])
        arriving = [raw.start_shift(mean, place, self.axis) for place in places]
        arrived = [raw.wait(each) for each in arriving]
        for each in arrived:
            mean.add_(each)
        mean.div_(1 + len(places))
        for tensor, part in zip(tensors, mean.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors that can lie in one buffer: of one dtype, on one device. In the same order on every rank."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(kinds.values())
