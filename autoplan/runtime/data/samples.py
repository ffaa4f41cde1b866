"""The batch that begins at a sample: the data's order is of samples, however many of them a step takes."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from autoplan.errors import InputsError, RescaleError
from autoplan.ir.graph import Model, batch_rows
from autoplan.lower.resized import planned_sizes
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.trace.rescale import rescale

Batch = dict[str, Tensor]


def by_sample(spec: ProgramSpec, source: Callable[[int], Batch], planned: Model) -> Callable[[int], Batch]:
    """A function from a position, in samples, to the batch of a step of this program that begins there.

    source   gives batch k of the samples in their order, as planned, the same on every rank. Steps that begin each
             where the last one ended take every sample once, however many rows they have
    planned  the model whose batches these are. It says which inputs have rows of the batch (``inputs_of_rows``); any
             other is that of the first sample's batch
    """
    taken, rows = planned_sizes(spec.lowered).rows, planned_sizes(planned).rows
    known: dict[str, int] = {}

    def batch(position: int) -> Batch:
        first, skipped = divmod(position, rows)
        if taken == rows and not skipped:
            return source(first)
        if not known:
            known.update(inputs_of_rows(planned))
        parts = [source(number) for number in range(first, first + -(-(skipped + taken) // rows))]
        return {name: cut([part[name] for part in parts], known[name], skipped, taken) for name in parts[0]}

    return batch


def inputs_of_rows(model: Model) -> Mapping[str, int]:
    """By name of each input how many elements of its dim 0 are one row of the batch: 0 where none is.

    The model itself says: at twice as many rows an input of rows has twice the elements. That its dim 0 happens to be a
    multiple of the rows says nothing. InputsError where the model can't be taken to another number of rows, and for an
    input that follows them and isn't whole rows along dim 0.
    """
    rows = planned_sizes(model).rows
    try:
        twice = rescale(model, batch=2 * batch_rows(model), compared=True)
    except RescaleError as error:
        cause = f"which inputs have rows of the batch isn't known: {error}"
        raise InputsError(f"a step that is no whole batch of {rows} rows", cause, "keep the batch") from None
    found = {}
    for one, two in zip(model.batch, twice.batch, strict=True):
        shape, other = one.type.shape, two.type.shape
        if shape == other:
            found[one.name] = 0
        elif shape[0] % rows or other != (2 * shape[0], *shape[1:]):
            cause = f"it can't be cut into rows of the batch: of twice as many it is {list(other)}"
            raise InputsError(f"{one.name} of shape {list(shape)}", cause, "keep the batch")
        else:
            found[one.name] = shape[0] // rows
    return found


def cut(parts: list[Tensor], each: int, skipped: int, taken: int) -> Tensor:
    """Some samples of an input's batches, one after another.

    each  elements of its dim 0 for a row; 0: it has no rows
    """
    if not each:
        return parts[0]
    joined = torch.cat(parts) if len(parts) > 1 else parts[0]
    return joined[skipped * each : (skipped + taken) * each]
