"""The sizes of a batch as ranks give it, and the program that runs it: a shorter last batch, shorter rows of tokens."""

import torch

from autoplan.errors import InputsError, ParallelismError
from autoplan.ir.typed_program import Lowered
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.runtime.data.microbatches import Batch, Given, Rows, in_dtype, named, own_rows
from autoplan.runtime.program_spec import DATA, ProgramSpec


def program_of(spec: ProgramSpec, sizes: BatchSizes) -> Lowered:
    """The typed program of a step for such a batch.

    InputsError where the program doesn't run at that size, or the plan's memory isn't for it. A program that was made
    by hand, without a plan, is for its one size.
    """
    planned = planned_sizes(spec.lowered)
    if sizes == planned:
        return spec.lowered
    if spec.resized is None:
        raise InputsError(str(sizes), "a program without a plan is for its one size", f"give {planned}")
    if sizes.rows > planned.rows or sizes.tokens > planned.tokens:
        cause = f"the plan's memory is for {planned}"
        raise InputsError(str(sizes), cause, "give no more, or plan again with this one as example_inputs")
    try:
        return spec.resized(sizes)
    except ParallelismError as error:
        raise InputsError(error.value, error.cause, error.remedy) from None


def unsettled(
    spec: ProgramSpec, batch: Batch, rows: Rows | None, device: torch.device, after_whole: bool = False
) -> Given | None:
    """A batch of which shapes don't tell whether it is whole or a data rank's: nothing said, and rows as the plan has
    for neither, or, after whole batches, as it has for a rank. None for any other."""
    planned, ways = planned_sizes(spec.lowered).rows, spec.size(DATA)
    given = sizes_of(spec, batch, "whole")
    told = given.rows == planned or (given.rows == planned // ways and not after_whole)
    if spec.resized is None or rows is not None or ways == 1 or told:
        return None
    known = named([value.name for value in spec.lowered.batch], batch)
    values = {v.name: in_dtype(spec, v, known[v.name], device) for v in spec.lowered.batch}
    split = tuple(v.name for v in spec.lowered.batch if own_rows(spec, v) != tuple(v.type.shape))
    return Given(values, split, "either", given.rows, BatchSizes(0, given.tokens)) if split else None


def sizes_of(spec: ProgramSpec, batch: Batch, rows: Rows | None = None) -> BatchSizes:
    """The sizes of the whole batch that a rank is given, or given its rows of.

    rows  as of ``given_batch``; where nothing is said, as many rows as the planned batch has for a rank are its own
    InputsError where a name isn't the plan's. Shapes that are none of the plan's are compared by ``given_batch``.
    """
    planned, ways = planned_sizes(spec.lowered), spec.size(DATA)
    known = named([value.name for value in spec.lowered.batch], batch)
    with_rows = next((v for v in spec.lowered.batch if v.type.shape[:1] == (planned.rows,)), None)
    first, shape = spec.lowered.batch[0], tuple(known[spec.lowered.batch[0].name].shape)
    tokens = shape[1] if planned.tokens and len(shape) == len(first.type.shape) else planned.tokens
    if with_rows is None or not known[with_rows.name].ndim:
        return BatchSizes(planned.rows, tokens)
    count = known[with_rows.name].shape[0]
    own = rows == "own" or (rows is None and count == own_rows(spec, with_rows)[0])
    return BatchSizes(count * ways if own else count, tokens)
