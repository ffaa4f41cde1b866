"""Where this process lies on the mesh: one RankAxis for each device axis.

An exported module gets ``rank_axes(...)`` as ``mesh`` and keeps the axes that it uses: ``self.tp = mesh["tp"]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from autoplan.mesh import Mesh


@dataclass(frozen=True)
class RankAxis:
    """One device axis as one rank sees it.

    size   members along the axis
    rank   this rank's coordinate, from 0
    group  the members' process group; None where the axis has one member, so that every collective is the identity
    """

    name: str
    size: int
    rank: int
    group: ProcessGroup | None = None

    @property
    def alone(self) -> bool:
        return self.group is None


def rank_axes(mesh: Mesh, device_mesh: DeviceMesh) -> dict[str, RankAxis]:
    """The device axes of a mesh by name, for the process that calls it; the virtual axis has no place here.

    device_mesh  a DeviceMesh with the mesh's device axes as its dims, under the same names; axes of size one may be
                 missing from it
    """
    axes = {}
    for axis in mesh.device_axes:
        if axis.size == 1:
            axes[axis.name] = RankAxis(axis.name, 1, 0)
            continue
        names = device_mesh.mesh_dim_names or ()
        size = device_mesh.size(names.index(axis.name))
        assert size == axis.size, f"the device mesh has {axis.name}={size}, the plan {axis.size}"
        rank, group = device_mesh.get_local_rank(axis.name), device_mesh.get_group(axis.name)
        axes[axis.name] = RankAxis(axis.name, axis.size, rank, group)
    return axes


def index_over(axes: Sequence[RankAxis]) -> tuple[int, int]:
    """This rank's index among all members of several axes, the last varying fastest, and how many they are."""
    index, ways = 0, 1
    for axis in axes:
        index = index * axis.size + axis.rank
        ways *= axis.size
    return index, ways
