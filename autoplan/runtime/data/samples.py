"""The batch that begins at a sample: the data's order is of samples, however many of them a step takes."""

from collections.abc import Callable

import torch
from torch import Tensor

from autoplan.lower.resized import planned_sizes
from autoplan.runtime.program_spec import ProgramSpec

Batch = dict[str, Tensor]


def by_sample(spec: ProgramSpec, source: Callable[[int], Batch], rows: int) -> Callable[[int], Batch]:
    """A function from a position, in samples, to the batch of a step of this program that begins there.

    source  gives batch k of the samples in their order, ``rows`` of them, the same on every rank. Steps that begin each
            where the last one ended take every sample once, however many rows they have
    rows    an input has that many, or a multiple: these stay together. Any other is that of the first sample's batch
    """
    taken = planned_sizes(spec.lowered).rows

    def batch(position: int) -> Batch:
        first, skipped = divmod(position, rows)
        parts = [source(number) for number in range(first, first + -(-(skipped + taken) // rows))]
        return {name: cut([part[name] for part in parts], rows, skipped, taken) for name in parts[0]}

    return batch


def cut(parts: list[Tensor], rows: int, skipped: int, taken: int) -> Tensor:
    """Some samples of an input's batches, one after another."""
    whole = parts[0]
    if not whole.ndim or whole.shape[0] % rows:
        return whole
    each = whole.shape[0] // rows
    joined = torch.cat(parts) if len(parts) > 1 else whole
    return joined[skipped * each : (skipped + taken) * each]
