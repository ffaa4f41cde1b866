"""A parameter as one rank holds it, with all that gradients, clipping and storage need to know of it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.looked_up import RowGradients, rows_of
from autoplan.runtime.parallel.own_box import Part, cut_dim, part_of, share_of
from autoplan.runtime.program_spec import DATA, PIPELINE, ProgramSpec

Zeros = Callable[[Sequence[int], torch.dtype], Tensor]


@dataclass(frozen=True)
class ShardedParameter:
    """One parameter on one rank.

    parameter  what the program computes with: plain, or a DTensor over ``axes`` where ZeRO splits it
    axes       the axes that ZeRO splits it over (``spec.shard_axes``), and the dim that it cuts
    part       the box of the whole tensor that this rank keeps
    copies     ranks of the world that keep this same box, and its gradient
    master     this rank's part as it is updated, where that isn't the parameter itself: in float32 under mixed
               precision, in the host's memory or on its disk where the optimizer is offloaded
               (``runtime.optim.masters``, ``runtime.optim.streamed_optimizer``)
    here       whether this rank updates it; a parameter server on another may
    """

    stored: StoredParameter
    parameter: nn.Parameter
    axes: tuple[str, ...]
    part: Part
    copies: int
    master: nn.Parameter | None = None
    here: bool = True
    cut: int = 0

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def sharded(self) -> bool:
        """Whether ZeRO splits it."""
        return bool(self.axes)

    @property
    def updated(self) -> nn.Parameter:
        """What the optimizer steps, and keeps its state by."""
        return self.parameter if self.master is None else self.master

    @property
    def values(self) -> Tensor:
        """This rank's values as they are updated, to read or to write in place; a master's are to be published then."""
        return local(self.updated.detach())

    @property
    def gradient(self) -> Tensor | None:
        """This rank's gradient, to read or to write in place; None where there is none."""
        return None if self.parameter.grad is None else local(self.parameter.grad.detach())

    @property
    def rows(self) -> RowGradients | None:
        """Where its gradients are those of looked-up rows; None where it has one of its own size."""
        return rows_of(self.parameter)

    @property
    def gradients(self) -> Iterator[Tensor]:
        """All tensors that its gradient lies in, to read or to write in place: no element of it twice."""
        if self.gradient is not None:
            yield self.gradient
        if self.rows is not None:
            yield from self.rows.values

    @property
    def whole_gradient(self) -> Tensor | None:
        """This rank's gradient, to read; where it is of rows, made as large as the parameter."""
        return self.rows.whole(self.values) if self.rows is not None and self.rows.boxes else self.gradient


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_parameters(
    spec: ProgramSpec, parameters: Mapping[str, nn.Parameter], axes: Mapping[str, MeshAxis],
    on_disk: Zeros | None = None,
) -> tuple[ShardedParameter, ...]:  # fmt: skip
    """The rank's parameters, in the program's order, which is the same on every rank.

    on_disk  makes the memory of masters that lie on the node's disks; None: they don't
    """
    coordinates = {name: axis.rank for name, axis in axes.items()}
    held = []
    for stored in spec.lowered.parameters:
        if stored.name not in parameters:
            continue
        over = spec.shard_axes(stored)
        part = part_of(stored.type.shape, stored.layout, spec.lowered.mesh, coordinates)
        cut = cut_dim(part.shape, spec.shard_ways(over)) if over else 0
        if over:
            part = share_of(part, spec.shard_ways(over), spec.shard_index(over, coordinates))
        parameter = parameters[stored.name]
        master = master_of(spec, stored, local(parameter.detach()), on_disk)
        here = spec.owners.get(stored.name, coordinates.get(DATA, 0)) == coordinates.get(DATA, 0)
        held.append(ShardedParameter(stored, parameter, over, part, copies(spec, stored), master, here, cut))
        assert tuple(held[-1].values.shape) == part.shape, f"{stored.name}: {held[-1].values.shape} is not {part}"
    return tuple(held)


def master_of(
    spec: ProgramSpec, stored: StoredParameter, part: Tensor, on_disk: Zeros | None = None
) -> nn.Parameter | None:
    """Memory for the master of this rank's part of a parameter, without its values yet; None where it needs none."""
    dtype, offloaded = spec.storage_dtype(stored.type), spec.parallelism.offload == "optimizer"
    if stored.trainable and on_disk is not None:
        return nn.Parameter(on_disk(part.shape, dtype))
    if not stored.trainable or (part.dtype == dtype and not offloaded):
        return None
    pinned = offloaded and part.device.type != "cpu"
    device = torch.device("cpu") if offloaded else part.device
    values = torch.empty(part.shape, dtype=dtype, device=device, pin_memory=pinned)
    return nn.Parameter(values)


def copies(spec: ProgramSpec, stored: StoredParameter) -> int:
    """Ranks of the world that keep the same box of a parameter; of a replica where each steps by itself. Of what a
    server has the gradient is there alone."""
    alone = spec.zero_axes(stored) or ((DATA,) if spec.parallelism.steps_locally or spec.owners else ())
    replicated = [
        axis.size
        for axis in spec.lowered.mesh.device_axes
        if axis.name not in (PIPELINE, *alone) and stored.layout.state(axis.name).kind != "S"
    ]
    replicas = spec.replicas if spec.shard_axes(stored) else 1
    return math.prod(replicated) * replicas * len(spec.pipeline_ranks(stored))
