"""Meshes of torch for what lies over the plan's axes in another order, or over several of them as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh

from autoplan.runtime.program_spec import PIPELINE, ProgramSpec


def reordered(spec: ProgramSpec, device_type: str, order: Sequence[str]) -> DeviceMesh:
    """The mesh with its axes in another order, its pipeline axis left out; a collective of the world.

    order  names of axes or of parts of one, "dp,cp" for two as one, outermost first
    """
    mesh = spec.lowered.mesh
    everything = [PIPELINE, *order] if PIPELINE in mesh else list(order)
    ranks = torch.zeros((), dtype=torch.int64)
    for axis in (mesh.axis(name) for group in everything for name in group.split(",")):
        ranks = ranks.unsqueeze(-1) + axis.stride * torch.arange(axis.size)
    ranks = ranks.reshape([_members(spec, group) for group in everything])
    permuted = DeviceMesh(device_type, ranks, mesh_dim_names=tuple(everything))
    return permuted[tuple(order)]


def sharded_meshes(spec: ProgramSpec, device_type: str) -> dict[tuple[str, ...], DeviceMesh]:
    """For each set of axes that ZeRO shards parameters over, the mesh on which they lie: these axes come last, as one,
    behind that of the replicas. A collective of the world."""
    found = {spec.shard_axes(p): spec.zero_axes(p) for p in spec.lowered.parameters}
    names = [a.name for a in spec.lowered.mesh.device_axes if a.name != PIPELINE]
    return {
        axes: reordered(
            spec, device_type, [*(name for name in names if name not in found[axes]), *spec.across, ",".join(axes)]
        )
        for axes in sorted(found.keys() - {()})
    }


def _members(spec: ProgramSpec, group: str) -> int:
    size = 1
    for name in group.split(","):
        size *= spec.size(name)
    return size
