"""Where this process lies on the mesh: one MeshAxis for each device axis, and for each group that several of them make.

An exported module gets ``mesh_axes(...)`` as ``mesh`` and keeps what it uses: ``self.tp = mesh["tp"]``,
``self.dp_tp = mesh["dp,tp"]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from autoplan.ir.mesh import Mesh

Members = tuple[int, ...]
"""The processes of one group, by their global ranks."""


@dataclass(frozen=True)
class MeshAxis:
    """One device axis, a prime factor of one, or several of them as one group, as one rank sees it.

    size    members along the axis
    rank    this rank's index among them, from 0: its coordinate; row-major over ``parts`` where there are several
    group   the members' process group; None where the axis has one member, so that every collective is the identity
    parts   the axes that make a group, outermost first, in the order of its members; none for a single axis
    places  the rank in the process group of each member, in the members' order; empty where it is the same. torch
            sorts a group's processes by their global ranks, so a group over (tp, dp) of a mesh dp × tp has an order of
            its own
    """

    name: str
    size: int
    rank: int
    group: ProcessGroup | None = None
    parts: tuple[MeshAxis, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def names(self) -> tuple[str, ...]:
        """Of the axes that make the group."""
        return tuple(part.name for part in self.parts) if self.parts else (self.name,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the axes that make the group."""
        return tuple(part.size for part in self.parts) if self.parts else (self.size,)


def mesh_axes(mesh: Mesh, device_mesh: DeviceMesh, groups: Iterable[tuple[str, ...]] = ()) -> dict[str, MeshAxis]:
    """The device axes of a mesh by name, for the process that calls it; the virtual axis has no place here.

    device_mesh  a DeviceMesh with the mesh's device axes as its dims, under the same names; axes of size one may be
                 missing from it
    groups       names of axes, or of prime factors (``Mesh.axis``), that act as one: found under ",".join(names).
                 Process groups are made for those that lie on no axis alone, so every process of the world has to call
                 this with the same groups in the same order, and the mesh to hold all of them
    """
    axes, known = {}, {}
    for axis in mesh.device_axes:
        if axis.size == 1:
            axes[axis.name] = MeshAxis(axis.name, 1, 0)
            continue
        names = device_mesh.mesh_dim_names or ()
        size = device_mesh.size(names.index(axis.name))
        assert size == axis.size, f"the device mesh has {axis.name}={size}, the plan {axis.size}"
        rank, group = device_mesh.get_local_rank(axis.name), device_mesh.get_group(axis.name)
        places = _places(tuple(device_mesh[axis.name].mesh.tolist()))
        axes[axis.name] = MeshAxis(axis.name, axis.size, rank, group, places=places)
        known[axis.name] = group
    wanted = [names for names in dict.fromkeys(groups) if ",".join(names) not in axes]
    return axes | _several(mesh, device_mesh, axes, known, wanted) if wanted else axes


def release(axes: Iterable[MeshAxis]) -> None:
    """Lets go of the process groups, whose threads and sockets live as long as anything refers to them.

    What was exported keeps its axes, and a user may keep that: so it is the axes that forget their groups. Nothing may
    be computed with them afterwards.
    """
    for axis in axes:
        object.__setattr__(axis, "group", None)
        release(axis.parts)


def _several(
    mesh: Mesh, device_mesh: DeviceMesh, axes: dict[str, MeshAxis], known: dict[str, ProcessGroup],
    wanted: Sequence[tuple[str, ...]],
) -> dict[str, MeshAxis]:  # fmt: skip
    """The groups over several axes or over prime factors; two that join the same processes share a process group."""
    processes = _processes(mesh, device_mesh)
    device = processes.index(distributed.get_rank())
    made = {_joined(_groups(mesh, (name,), processes)): group for name, group in known.items()}
    found = {}
    for names in wanted:
        parts = tuple(axes.get(name) or _part(mesh, name, device) for name in names)
        rank, size = index_over(parts)
        members = _groups(mesh, names, processes)
        joined = _joined(members)
        if size > 1 and joined not in made:
            made[joined] = _new_group(joined)
        group = made[joined] if size > 1 else None
        places = _places(next(m for m in members if processes[device] in m))
        found[",".join(names)] = MeshAxis(",".join(names), size, rank, group, parts, places)
    return found


def _part(mesh: Mesh, name: str, device: int) -> MeshAxis:
    """A prime factor within a group: where this rank lies along it. It has no process group of its own."""
    return MeshAxis(name, mesh.size(name), mesh.coordinate(device, name))


def _processes(mesh: Mesh, device_mesh: DeviceMesh) -> Members:
    """The process of each device, devices numbered row-major over the mesh's device axes."""
    names = device_mesh.mesh_dim_names or ()
    used = [names.index(axis.name) for axis in mesh.device_axes if axis.name in names]
    assert len(used) == len(names), f"the device mesh has dims {names}, the plan the axes {mesh}"
    return tuple(device_mesh.mesh.permute(used).flatten().tolist())


def _groups(mesh: Mesh, names: Sequence[str], processes: Members) -> list[Members]:
    """The members of every group over these axes, row-major in the order of the names."""
    axes = [mesh.axis(name) for name in names]
    offsets = [
        sum(coordinate * axis.stride for coordinate, axis in zip(at, axes, strict=True))
        for at in product(*(range(axis.size) for axis in axes))
    ]
    firsts = [device for device in range(mesh.devices) if all(device // a.stride % a.size == 0 for a in axes)]
    return [tuple(processes[first + offset] for offset in offsets) for first in firsts]


def _joined(members: Iterable[Members]) -> tuple[Members, ...]:
    """Which processes are together, whatever their order."""
    return tuple(sorted(tuple(sorted(group)) for group in members))


def _new_group(joined: Sequence[Members]) -> ProcessGroup:
    """Makes all the groups, as every process must; this process' own."""
    if len(joined) == 1:
        assert distributed.group.WORLD is not None
        return distributed.group.WORLD
    group, _ = distributed.new_subgroups_by_enumeration([list(group) for group in joined])
    assert group is not None
    return group


def _places(members: Members) -> tuple[int, ...]:
    order = sorted(members)
    places = tuple(order.index(member) for member in members)
    return () if places == tuple(range(len(members))) else places


def index_over(axes: Sequence[MeshAxis]) -> tuple[int, int]:
    """This rank's index among all members of several axes, the last varying fastest, and how many they are."""
    index, ways = 0, 1
    for axis in axes:
        index = index * axis.size + axis.rank
        ways *= axis.size
    return index, ways
