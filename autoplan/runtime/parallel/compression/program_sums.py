"""Which gradients of a program go compressed, over which axes, and what compresses them."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch.distributed import ProcessGroup

from autoplan.ir.buckets import two_levels
from autoplan.ir.mesh import EXPERT
from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.compression.compressor import Compressor
from autoplan.runtime.parallel.compression.kinds import compressor
from autoplan.runtime.parallel.compression.two_levels import TwoLevelSums
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import DATA, ProgramSpec


def summed_axes(spec: ProgramSpec, stored: StoredParameter) -> tuple[str, ...]:
    """Axes of the sums that fully_shard doesn't do, and that ranks whose gradients are used by themselves do without.
    """
    apart = spec.zero_axes(stored) or ((DATA,) if apart_on_data(spec) else ())
    return tuple(axis for axis in stored.reduce_axes if axis not in apart)


def apart_on_data(spec: ProgramSpec) -> bool:
    """Whether each data rank's gradients are used by themselves."""
    return spec.parallelism.steps_locally or bool(spec.parallelism.ahead)


def levels(spec: ProgramSpec, axes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a sum over these axes (``ir.buckets.two_levels``); within () where compressed gradients go over all of them.
    """
    how = spec.parallelism.compressed
    if how is None or how.within == 1:
        return (), tuple(axes)
    return two_levels(axes, how.within, spec.size(DATA), spec.size(EXPERT))


def gradient_groups(spec: ProgramSpec) -> tuple[tuple[str, ...], ...]:
    """The axes over which gradients are summed at once, where these are several: groups for ``mesh_axes``."""
    found = {summed_axes(spec, p) for p in spec.lowered.parameters if p.trainable}
    several = sorted(axes for axes in found if len(axes) > 1)
    parts = (axes for over in sorted(found) if DATA in over for axes in levels(spec, over))
    return tuple(dict.fromkeys((*several, *(axes for axes in parts if len(axes) > 1 or "." in "".join(axes)))))


def goes_compressed(spec: ProgramSpec, stored: StoredParameter) -> bool:
    """Whether its gradient goes over the data axis compressed. One that other stages have a summand of is summed whole,
    as is one that the data axis has none of; where compression isn't linear, one that other axes have a summand of,
    too: what is compressed is a replica's."""
    how, axes = spec.parallelism.compressed, summed_axes(spec, stored)
    if how is None or len(spec.pipeline_ranks(stored)) > 1 or not stored.trainable:
        return False
    return (DATA in axes if how.linear else axes == (DATA,)) and how.takes(stored.local_shape)


def compressors(
    spec: ProgramSpec, held: Sequence[ShardedParameter], axes: Mapping[str, MeshAxis]
) -> list[Compressor]:
    """Of gradients that go compressed those that are summed over the same axes together, alike on all ranks."""
    kinds: dict[tuple[tuple[str, ...], torch.dtype], list[ShardedParameter]] = {}
    for each in held:
        kinds.setdefault((summed_axes(spec, each.stored), each.values.dtype), []).append(each)
    found, how = [], spec.parallelism.compressed
    for (names, _), members in kinds.items():
        assert how is not None
        group = group_over(names, axes)
        inner, outer = levels(spec, names)
        if not inner:
            found.append(compressor(how, members, group, spec.training.seed))
            continue
        within, across = group_over(inner, axes), group_over(outer, axes)
        between = partial(compressor, how, group=across, seed=spec.training.seed)
        found.append(TwoLevelSums(members, group, within, between))
    return found


def group_over(names: Sequence[str], axes: Mapping[str, MeshAxis]) -> ProcessGroup:
    group = axes[",".join(names)].group
    assert group is not None, "a data axis of one rank has no gradients to compress"
    return group
