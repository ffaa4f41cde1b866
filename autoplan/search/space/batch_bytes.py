"""What a step's batch takes on a device: all microbatches of what a rank's stages read, from the first to the last.

The program copies them there before the schedule begins (``runtime.data.microbatches``), so they stand beside whatever
is in flight. An input that several of a rank's stages read is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from autoplan.cost.prices import layout_bytes
from autoplan.ir.graph import Model
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.search.space.batch_axes import BatchSplit

Read = tuple[tuple[str, int], ...]
"""Inputs of the batch, each with bytes."""


def batch_layouts(model: Model, on_batch: Mapping[str, BatchSplit], mesh: Mesh) -> tuple[Layout, ...]:
    """Of each of the batch's inputs: as its axes split it, whole on the others."""
    return tuple(
        Layout.of(len(value.type.shape), {axis: split.batch[i] for axis, split in on_batch.items()}, mesh)
        for i, value in enumerate(model.batch)
    )


def batch_read(model: Model, on_batch: Mapping[str, BatchSplit], mesh: Mesh, microbatches: int) -> tuple[Read, ...]:
    """Of each segment (input, its bytes on one device in all microbatches) of what it reads of the batch, or what the
    constants that it reads are made of."""
    layouts = batch_layouts(model, on_batch, mesh)
    pairs = zip(model.batch, layouts, strict=True)
    sizes = {value.name: microbatches * layout_bytes(value.type, layout, mesh) for value, layout in pairs}
    return tuple(tuple((name, sizes[name]) for name in inputs_of(model, s.externals)) for s in model.segments)


def inputs_of(model: Model, names: Iterable[str]) -> Iterator[str]:
    """The batch's inputs among values that a segment reads, and behind its constants; counts are made once a step."""
    wanted = set(names) - set(model.counts)
    for node in reversed(model.constants):
        if node.name in wanted:
            wanted |= set(node.operands) - set(model.counts)
    return (value.name for value in model.batch if value.name in wanted)
