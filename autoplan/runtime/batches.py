"""A batch -> this rank's microbatches of it.

Row order: with m microbatches, microbatch j is rows [j·B/m, (j+1)·B/m) of the whole batch, of which each data rank
takes its share. "This rank's rows" of a batch are therefore its shares of all microbatches, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoplan.errors import InputsError
from autoplan.mesh import MICROBATCH
from autoplan.runtime.axes import RankAxis
from autoplan.runtime.parts import part_of
from autoplan.runtime.spec import DATA, ProgramSpec
from autoplan.typed import TypedValue

Batch = Mapping[str, Tensor] | Sequence[Tensor] | Tensor


def microbatches(
    spec: ProgramSpec, batch: Batch, axes: Mapping[str, RankAxis], device: torch.device
) -> dict[str, Tensor]:
    """Each input by name, stacked: [microbatches, this rank's local shape of one microbatch].

    batch   the whole batch, or this rank's rows of it: by name, or in the order of the plan's inputs
    InputsError where a name, a shape or a kind of dtype isn't the plan's.
    """
    given = named([value.name for value in spec.lowered.batch], batch)
    coordinates = {name: axis.rank for name, axis in axes.items()}
    return {v.name: stacked(spec, v, given[v.name].to(device), coordinates) for v in spec.lowered.batch}


def named(names: Sequence[str], batch: Batch) -> dict[str, Tensor]:
    """A batch by name; InputsError where it isn't one of the plan's inputs."""
    wanted = f"the plan's inputs are {names}"
    if isinstance(batch, Mapping):
        if set(batch) != set(names):
            raise InputsError(f"a batch of {sorted(batch)}", wanted, "pass exactly these")
        given = dict(batch)
    else:
        values = list(batch) if isinstance(batch, Sequence) else [batch]
        if len(values) != len(names):
            raise InputsError(f"a batch of {len(values)} tensors", wanted, "pass one for each")
        given = dict(zip(names, values, strict=True))
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InputsError(f"{name} of type {type(value).__name__}", "it is no tensor", "convert it first")
    return given


def stacked(spec: ProgramSpec, value: TypedValue, tensor: Tensor, coordinates: Mapping[str, int]) -> Tensor:
    """One input's microbatches on this rank."""
    mesh = spec.lowered.mesh
    own_rows = part_of(value.type.shape, value.layout, mesh, {DATA: 0}).shape
    if tuple(tensor.shape) == tuple(value.type.shape):
        known = dict(coordinates)
    elif tuple(tensor.shape) == own_rows:
        known = {axis: rank for axis, rank in coordinates.items() if axis != DATA}
    else:
        raise InputsError(
            f"{value.name} of shape {tuple(tensor.shape)}",
            f"the plan is for a batch of {tuple(value.type.shape)}, of which a rank's rows are {own_rows}",
            "pass a batch of that size, or plan again with this one as example_inputs",
        )
    if tensor.is_floating_point() != value.type.floating:
        raise InputsError(f"{value.name} of {tensor.dtype}", f"the plan has {value.type.dtype}", "convert it first")
    tensor = tensor.to(spec.activation_dtype(value.type))
    shape = tuple(tensor.shape)
    parts = [part_of(shape, value.layout, mesh, {**known, MICROBATCH: j}) for j in range(spec.microbatches)]
    return torch.stack([tensor[part.slices] for part in parts])
