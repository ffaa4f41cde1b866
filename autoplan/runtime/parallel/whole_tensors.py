"""Whole tensors from the ranks' parts, under the names of the user's own model."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from autoplan.errors import WeightsError
from autoplan.ir.mesh import whole_axis
from autoplan.ir.typed_program import StoredParameter
from autoplan.option_values import DEVICE
from autoplan.runtime.collectives.objects import from_first
from autoplan.runtime.parallel.flat_param_views import matrices
from autoplan.runtime.parallel.meshes import reordered, sharded_meshes
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec


class Storage:
    """Each rank's parts as DTensors over its pipeline stage's mesh: what gathers and checkpoints work on.

    Making one is a collective of the whole world. Where ZeRO splits a parameter, the axes that it shards over come
    last, as one: the rows of a tensor-parallel part are split, which is what two Shard(0) on a mesh (tp, dp) say.
    What lies with the host has meshes of its own, since a DTensor's part is on the device of its mesh.

    zero  the meshes of what ZeRO shards (``meshes.sharded_meshes``)
    """

    def __init__(
        self, spec: ProgramSpec, device_mesh: DeviceMesh, device: torch.device,
        zero: Mapping[tuple[str, ...], DeviceMesh],
    ) -> None:  # fmt: skip
        self.device = device
        names = [a.name for a in spec.lowered.mesh.device_axes if a.name != PIPELINE]
        self.spec = spec
        self.on_device = {(): device_mesh[tuple(names)] if names else device_mesh, **zero}
        self.on_host = self.on_device
        apart = spec.parallelism.offload is not None or spec.parallelism.tables not in (None, DEVICE)
        if apart and device.type != "cpu":
            self.on_host = {(): reordered(spec, "cpu", names), **sharded_meshes(spec, "cpu")}

    @property
    def meshes(self) -> tuple[DeviceMesh, ...]:
        return *self.on_device.values(), *self.on_host.values()

    def speaks_for(self, stored: StoredParameter) -> bool:
        """Whether this rank's stage is the first of those that hold a parameter."""
        return coordinate(self.spec, dist.get_rank()) == self.spec.pipeline_ranks(stored)[0]

    def dtensor(self, held: ShardedParameter, part: Tensor) -> DTensor:
        """A tensor shaped as this rank's part of a parameter, as the DTensor that it is part of. Memory is shared."""
        shape = held.stored.type.shape
        mesh = (self.on_host if part.device.type == "cpu" else self.on_device)[held.axes]
        assert mesh.mesh_dim_names is not None
        where = tuple(placement(held, name) for name in mesh.mesh_dim_names)
        strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
        return DTensor.from_local(part, mesh, where, run_check=False, shape=torch.Size(shape), stride=strides)


class OnFirstRank(dict[str, Tensor]):
    """What another rank has of tensors that are whole on rank 0: nothing, and that isn't written into a file."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        cause = "the whole tensors are on rank 0, and this is another rank, which would write an empty file over its"
        remedy = "save it where program.rank is 0 alone; program.state_dict(full=True) has them on every rank"
        raise WeightsError("program.full_state_dict()", cause, remedy)

    def copy(self) -> "OnFirstRank":
        return OnFirstRank()

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnFirstRank":
        return OnFirstRank()


def placement(held: ShardedParameter, axis: str) -> Placement:
    """On an axis of the mesh, or on those that ZeRO shards over."""
    if axis == ",".join(held.axes):
        return Shard(held.cut)
    state = held.stored.layout.state(whole_axis(axis))
    return Shard(state.dim) if state.kind == "S" else Replicate()


def gathered(
    spec: ProgramSpec, storage: Storage, held: Sequence[ShardedParameter],
    value: Callable[[ShardedParameter], Tensor | None], receiver: Callable[[StoredParameter], int] = lambda stored: 0,
) -> Iterator[tuple[StoredParameter, Tensor]]:  # fmt: skip
    """Each parameter's value, whole, one after another on the CPU of the rank that receives it.

    Nothing on the others, which must iterate as well, to the end.

    value     this rank's part of it, None where there is none
    receiver  the rank that a parameter's value is for, alike on every rank
    """
    mine = {h.name: h for h in held}
    rank = dist.get_rank()
    for stored in spec.lowered.parameters:
        home, target = spec.pipeline_ranks(stored)[0], receiver(stored)
        sender = target
        if coordinate(spec, target) != home:
            sender = home * (spec.lowered.mesh.axis(PIPELINE).stride if PIPELINE in spec.lowered.mesh else 0)
        whole = None
        if storage.speaks_for(stored):
            part = value(mine[stored.name])
            whole = None if part is None else whole_of(storage.dtensor(mine[stored.name], part))
        if sender != target and rank in (target, sender):
            whole = passed(whole, sender, target, storage.device)
        if rank == target and whole is not None:
            yield stored, whole.to("cpu", copy=True)


def whole_of(tensor: DTensor) -> Tensor:
    """The whole tensor on every rank of its mesh, gathered over one axis after another, innermost first."""
    placements = list(tensor.placements)
    for dim in reversed(range(len(placements))):
        placements[dim] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def coordinate(spec: ProgramSpec, rank: int) -> int:
    mesh = spec.lowered.mesh
    return mesh.coordinate(rank, PIPELINE) if PIPELINE in mesh else 0


def passed(tensor: Tensor | None, sender: int, target: int, device: torch.device) -> Tensor | None:
    """A tensor, or None, sent from one rank to another; both call it."""
    if dist.get_rank() == sender:
        header = None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.device.type)
        dist.send_object_list([header], dst=target)
        if tensor is not None:
            dist.send(tensor.contiguous(), dst=target)
        return None
    found: list = [None]
    dist.recv_object_list(found, src=sender)
    if found[0] is None:
        return None
    shape, dtype, kind = found[0]
    received = torch.empty(shape, dtype=dtype, device="cpu" if kind == "cpu" else device)
    dist.recv(received, src=sender)
    return received


def by_user_names(values: Iterator[tuple[StoredParameter, Tensor]]) -> dict[str, Tensor]:
    """Pieces of fused projections put together, flat parameters taken apart, tied ones under each of their names."""
    pieces: dict[str, list[tuple[StoredParameter, Tensor]]] = {}
    found: dict[str, Tensor] = {}
    for stored, tensor in values:
        if stored.members:
            found |= matrices(stored, tensor)
            continue
        pieces.setdefault(stored.source, []).append((stored, tensor))
    for source, parts in pieces.items():
        first = parts[0][0]
        whole = parts[0][1] if first.dim < 0 else joined(parts)
        found |= {name: whole for name in (source, *first.aliases)}
    return found


def on_every_rank(found: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """What the first rank has, on the CPU of all; names that share a tensor there do so everywhere."""
    owners: dict[int, str] = {}
    for name, value in found.items():
        owners.setdefault(id(value), name)
    mine = dist.get_rank() == 0
    whole: dict[str, Tensor] = {}
    for name, owner, shape, dtype in from_first([(n, owners[id(v)], v.shape, v.dtype) for n, v in found.items()]):
        if owner == name:
            moved = found[name].to(device) if mine else torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(moved, src=0)
            whole[name] = found[name] if mine else moved.to("cpu")
        else:
            whole[name] = whole[owner]
    return whole


def joined(parts: Sequence[tuple[StoredParameter, Tensor]]) -> Tensor:
    ordered = sorted(parts, key=lambda part: part[0].start)
    return torch.cat([tensor for _, tensor in ordered], ordered[0][0].dim)


def whole_buffers(spec: ProgramSpec, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of the user's own state dict, on rank 0, from whichever stages hold them; {} elsewhere."""
    mesh, rank = spec.lowered.mesh, dist.get_rank()
    speaks = all(mesh.coordinate(rank, a.name) == 0 for a in mesh.device_axes if a.name != PIPELINE)
    wanted = [name for name in buffers if speaks and name not in spec.transient_buffers]
    kept = {name: buffers[name].to("cpu", copy=True) for name in wanted}
    everyone: list[dict[str, Tensor]] | None = [{}] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(kept, everyone, dst=0)
    return {name: value for part in reversed(everyone or []) for name, value in part.items()}


def unread_values(spec: ProgramSpec, rank: int) -> dict[str, Tensor]:
    """Memory for what the program never reads, whole, with the first rank alone."""
    kept = spec.unread if rank == 0 else ()
    return {u.name: torch.zeros(u.type.shape, dtype=spec.activation_dtype(u.type)) for u in kept}


def under_all_names(spec: ProgramSpec, unread: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, copied, tied ones under each of their names."""
    copies = {name: value.clone() for name, value in unread.items()}
    return {name: copies[u.name] for u in spec.unread if u.name in copies for name in (u.name, *u.aliases)}
