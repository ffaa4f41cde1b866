"""Gradient sums once a step: over the axes on which each rank has a summand, then between stages that share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.runtime.axes import RankAxis
from autoplan.runtime.held import HeldParameter
from autoplan.runtime.spec import DATA, PIPELINE, ProgramSpec

BUCKET_BYTES = 64 * 2**20  # one all-reduce takes at least this much where there is as much: links are idle below it


class GradientSums:
    """The sums that are left once the engines have run; a collective of the whole world to make and to run."""

    def __init__(self, spec: ProgramSpec, held: Sequence[HeldParameter], axes: Mapping[str, RankAxis]) -> None:
        self.held, self.axes = held, axes
        self.stage_groups = stage_groups(spec, dist.get_rank())
        self.holders = {h.name: spec.pipeline_ranks(h.stored) for h in held}

    def run(self) -> None:
        """Makes every gradient whole."""
        for names, group in grouped((reduced_here(h), h) for h in self.held):
            for name in names:
                all_reduce([h.gradient for h in group], self.axes[name].group)
        for ranks, group in grouped((self.holders[h.name], h) for h in self.held):
            if len(ranks) > 1:
                all_reduce([h.gradient for h in group], self.stage_groups[ranks])


def reduced_here(held: HeldParameter) -> tuple[str, ...]:
    """Axes of the sums that fully_shard hasn't done."""
    return tuple(a for a in held.stored.reduce_axes if not (a == DATA and held.sharded))


def grouped(
    keyed: Iterable[tuple[tuple, HeldParameter]],
) -> Iterator[tuple[tuple, tuple[HeldParameter, ...]]]:
    """Trainable parameters with a gradient by key, keys in order, so that every rank runs the same sequence."""
    groups: dict[tuple, list[HeldParameter]] = {}
    for key, held in keyed:
        if held.gradient is not None:
            groups.setdefault(key, []).append(held)
    return ((key, tuple(groups[key])) for key in sorted(groups))


def all_reduce(tensors: Sequence[Tensor | None], group: ProcessGroup | None) -> None:
    """Sums tensors over a group in place, joined into buckets of one dtype."""
    if group is None:
        return
    for bucket in buckets([t for t in tensors if t is not None]):
        flat = torch.cat([t.reshape(-1) for t in bucket])
        dist.all_reduce(flat, group=group)
        for tensor, summed in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            tensor.copy_(summed.view_as(tensor))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for dtype in sorted({t.dtype for t in tensors}, key=str):
        bucket: list[Tensor] = []
        for tensor in (t for t in tensors if t.dtype == dtype):
            bucket.append(tensor)
            if sum(t.numel() * t.element_size() for t in bucket) >= BUCKET_BYTES:
                yield bucket
                bucket = []
        if bucket:
            yield bucket


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
