"""A batch -> this rank's microbatches of it.

Row order: with m microbatches, microbatch j is rows [j·B/m, (j+1)·B/m) of the whole batch, of which each data rank
takes its share. "This rank's rows" of a batch are therefore its shares of all microbatches, one after another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from autoplan.errors import InputsError
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.typed_program import TypedValue
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.runtime import host
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.own_box import Part, part_of
from autoplan.runtime.program_spec import DATA, ProgramSpec

Batch = Mapping[str, Tensor] | Sequence[Tensor] | Tensor


Microbatches = dict[str, tuple[Tensor, ...]]
"""By name a value for each microbatch."""
Rows = Literal["whole", "own"]
"""What a rank is given: the whole batch, or its data-parallel rows of it."""
Shown = Rows | Literal["either"]
"""Likewise, before all ranks have shown whether theirs are the same."""
AS_PLANNED = BatchSizes(0)


@dataclass(frozen=True)
class Given:
    """A batch as one rank was given it.

    values  by name, in the program's dtypes: in the host's memory where they were given there, else on the device
    split   names of those of which each data rank has rows; the others are the same on all
    form    whether these are whole or the rank's own rows; None where the plan makes no difference. "either" where the
            ranks' values tell, once all have shown them
    rows    how many rows of them were given, 0 where none is split
    sizes   of the whole batch; 0 rows where that isn't known yet
    """

    values: Mapping[str, Tensor]
    split: tuple[str, ...]
    form: Shown | None
    rows: int
    sizes: BatchSizes = AS_PLANNED


def microbatches(
    spec: ProgramSpec, batch: Batch, axes: Mapping[str, MeshAxis], device: torch.device
) -> Microbatches:
    """Each input by name: a tensor of this rank's local shape for each microbatch.

    batch   the whole batch, or this rank's rows of it: by name, or in the order of the plan's inputs
    InputsError where a name, a shape or a kind of dtype isn't the plan's.
    """
    return own_microbatches(spec, given_batch(spec, batch, device), axes, device)


def given_batch(spec: ProgramSpec, batch: Batch, device: torch.device, rows: Rows | None = None) -> Given:
    """A batch, checked against the plan.

    rows  what it is said to be; None: its shapes tell
    InputsError where a name, a shape or a kind of dtype isn't the plan's, or some inputs are whole and others not.
    """
    if rows not in (None, "whole", "own"):
        raise InputsError(f"rows={rows!r}", "a rank is given the 'whole' batch or its 'own' rows", "give one of these")
    known = named([value.name for value in spec.lowered.batch], batch)
    values = {v.name: converted(spec, v, known[v.name], device) for v in spec.lowered.batch}
    split = tuple(v.name for v in spec.lowered.batch if own_rows(spec, v) != tuple(v.type.shape))
    whole = {v.name: tuple(values[v.name].shape) == tuple(v.type.shape) for v in spec.lowered.batch}
    forms: dict[str, Rows] = {name: "whole" if whole[name] else "own" for name in split}
    wrong = next((name for name, form in forms.items() if form != (rows or forms[split[0]])), None)
    if wrong is not None:
        what: dict[Rows, str] = {"whole": "the whole batch", "own": "one data rank's rows"}
        said = f"rows={rows!r} was said" if rows else f"{split[0]} is {what[forms[split[0]]]}"
        value = f"{wrong} of shape {tuple(values[wrong].shape)}"
        raise InputsError(value, f"it is {what[forms[wrong]]}, and {said}", "give all inputs alike")
    count = values[split[0]].shape[0] if split else 0
    return Given(values, split, forms[split[0]] if split else None, count, planned_sizes(spec.lowered))


def own_microbatches(
    spec: ProgramSpec, given: Given, axes: Mapping[str, MeshAxis], device: torch.device
) -> Microbatches:
    """This rank's microbatches of what it was given, each input by name, on its device: no other rows are copied."""
    coordinates = {name: axis.rank for name, axis in axes.items()}
    own = {axis: rank for axis, rank in coordinates.items() if axis != DATA}
    found = {}
    for value in spec.lowered.batch:
        known = own if given.form == "own" and value.name in given.split else coordinates
        found[value.name] = parts(spec, value, given.values[value.name], known, device)
    return found


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


def own_rows(spec: ProgramSpec, value: TypedValue) -> tuple[int, ...]:
    """The shape of one data rank's rows of an input."""
    return part_of(value.type.shape, value.layout, spec.lowered.mesh, {DATA: 0}).shape


def converted(spec: ProgramSpec, value: TypedValue, tensor: Tensor, device: torch.device) -> Tensor:
    """One input in the dtype that the program takes, on the device unless it is the host's.

    InputsError where it isn't what the plan is for.
    """
    rows = own_rows(spec, value)
    if tuple(tensor.shape) not in (tuple(value.type.shape), rows):
        raise InputsError(
            f"{value.name} of shape {tuple(tensor.shape)}",
            f"the plan is for a batch of {tuple(value.type.shape)}, of which a rank's rows are {rows}",
            "pass a batch of that size, or plan again with this one as example_inputs",
        )
    return in_dtype(spec, value, tensor, device)


def in_dtype(spec: ProgramSpec, value: TypedValue, tensor: Tensor, device: torch.device) -> Tensor:
    """One input as the program takes it, of any shape."""
    if tensor.is_floating_point() != value.type.floating:
        raise InputsError(f"{value.name} of {tensor.dtype}", f"the plan has {value.type.dtype}", "convert it first")
    place = tensor.device if tensor.device.type == "cpu" else device
    return tensor.to(place, spec.activation_dtype(value.type))


def parts(
    spec: ProgramSpec, value: TypedValue, tensor: Tensor, known: Mapping[str, int], device: torch.device
) -> tuple[Tensor, ...]:
    """One input's microbatches on the device: the parts that the rank with these coordinates has of them. What lies
    together is a view; several that don't, or must cross to the device, are copied together."""
    shape, mesh, count = tuple(tensor.shape), spec.lowered.mesh, spec.microbatches
    boxes = [part_of(shape, value.layout, mesh, {**known, MICROBATCH: j}) for j in range(count)]
    if consecutive(boxes, shape) and (count == 1 or tensor.is_contiguous()):
        here = host.to_device(tensor, device)
        return (here,) if count == 1 else here.split(boxes[0].shape[0])
    found = [tensor[box.slices] for box in boxes]
    if count == 1:
        return (host.to_device(found[0], device),)
    if tensor.device.type == device.type and all(part.is_contiguous() for part in found):
        return tuple(found)
    return host.to_device(torch.stack(found), device).unbind()


def consecutive(boxes: Sequence[Part], shape: tuple[int, ...]) -> bool:
    """Whether boxes are all of a tensor's rows, one after another, and each as many."""
    rows = boxes[0].shape[0] if shape else 0
    return rows * len(boxes) == sum(shape[:1]) and all(
        box.shape == (rows, *shape[1:]) and box.start[0] == rows * j for j, box in enumerate(boxes)
    )
