"""A batch of real values for a traced model: what verification feeds to both sides.

Integers must mean something: ids below the vocabulary that they index, labels below the number of classes, some of
them ignored, unevenly over rows, so that ranks and microbatches hold different counts of valid ones.
"""

from collections.abc import Iterator, Mapping

import torch

from autoplan.errors import InputsError
from autoplan.ir.graph import Model, Node, TensorType
from autoplan.runtime.data.microbatches import Batch, named

LOSSES = {"autoplan.cross_entropy": 3, "autoplan.weighted_cross_entropy": 4}  # which argument is the ignored label
LOOK_UPS = ("aten.embedding.default", "autoplan.embedding_bag", "autoplan.ragged_bag")
GROUPED = "autoplan.lookups"  # of several tables, the first of whose arguments are their rows
SHARES = "aten.binary_cross_entropy.default"  # whose target is between 0 and 1
IGNORED_SHARE = 0.2  # of the labels, where the loss ignores an index


def given_batch(model: Model, batch: Batch) -> dict[str, torch.Tensor]:
    """A user's batch by name, in the dtypes of a model; InputsError where it isn't one of its shapes."""
    given = named([value.name for value in model.batch], batch)
    for value in model.batch:
        if tuple(given[value.name].shape) != value.type.shape:
            shape, cause = tuple(given[value.name].shape), f"the plan is for a batch of {value.type.shape}"
            raise InputsError(f"{value.name} of shape {shape}", cause, "give one of that size")
        if given[value.name].is_meta:
            cause = "it lies on the meta device and has no values"
            raise InputsError(f"{value.name} of the batch", cause, "give one with values, or leave the batch out")
    return {value.name: given[value.name].to("cpu", getattr(torch, value.type.dtype)) for value in model.batch}


def example_batch(model: Model, seed: int) -> dict[str, torch.Tensor]:
    """Random values for each batch input, by name; floats are normal, or from 0 to 1 as probabilities, integers within
    what reads them."""
    generator = torch.Generator().manual_seed(seed)
    bounds, ignored, shares = integer_bounds(model), ignored_indices(model), probabilities(model)
    return {
        value.name: torch.rand(value.type.shape, generator=generator, dtype=torch.float64)
        .to(getattr(torch, value.type.dtype)) if value.name in shares
        else example_values(value.type, bounds.get(value.name), ignored.get(value.name), generator)
        for value in model.batch
    }  # fmt: skip


def example_values(
    kind: TensorType, bound: int | None, ignored: int | None, generator: torch.Generator
) -> torch.Tensor:
    dtype = getattr(torch, kind.dtype)
    if dtype.is_floating_point:
        return torch.randn(kind.shape, generator=generator, dtype=torch.float64).to(dtype)
    if bound is None or dtype == torch.bool:
        return torch.ones(kind.shape, dtype=dtype)
    values = torch.randint(0, bound, kind.shape, generator=generator).to(dtype)
    if ignored is not None and len(kind.shape) > 1:
        rows = torch.linspace(0, 2 * IGNORED_SHARE, kind.shape[0]).reshape(-1, *[1] * (len(kind.shape) - 1))
        drop = torch.rand(kind.shape, generator=generator) < rows
        values[drop] = ignored
    return values


def integer_bounds(model: Model) -> dict[str, int]:
    """For each batch input the least number of entries of what its values index: embeddings, classes."""
    bounds: dict[str, int] = {}
    for _, names, size in index_readers(model):
        for name in names:
            bounds[name] = min(size, bounds.get(name, size))
    return bounds


def ignored_indices(model: Model) -> dict[str, int]:
    """For each batch input that is a loss' target, the label that the loss ignores."""
    return {
        name: int(str(node.args[LOSSES[node.op]]))
        for node, names, _ in index_readers(model)
        if node.op in LOSSES
        for name in names
    }


def probabilities(model: Model) -> frozenset[str]:
    """The floating batch inputs that a loss takes for probabilities."""
    read = [(node.operands[1], external) for node, _, external in nodes_of(model) if node.op == SHARES]
    origins = constant_origins(model)
    found = frozenset().union(*(origins.get(external.get(name, ""), frozenset()) for name, external in read))
    return found.intersection(value.name for value in model.batch if value.type.floating)


def nodes_of(model: Model) -> Iterator[tuple[Node, Mapping[str, TensorType], Mapping[str, str]]]:
    """Each node of each segment, the types around it, and what its block's externals are there."""
    for segment in model.segments:
        block = model.blocks[segment.block]
        external = {e.name: given for e, given in zip(block.externals, segment.externals, strict=True)}
        types = block.types()
        yield from ((node, types, external) for node in block.nodes)


def index_readers(model: Model) -> list[tuple[Node, frozenset[str], int]]:
    """Every use of integers as indices: the node, the batch inputs that they come from, what they are less than."""
    origins = constant_origins(model)
    return [
        (node, origins.get(external[name], frozenset()), size)
        for node, types, external in nodes_of(model)
        for name, size in indexed(node, types)
        if name in external
    ]


def indexed(node: Node, types: Mapping[str, TensorType]) -> list[tuple[str, int]]:
    """The operands of a node that are indices, and of what size is what they index."""
    if node.op in LOSSES:
        return [(node.operands[1], types[node.operands[0]].shape[-1])]
    if node.op in LOOK_UPS:
        return [(node.operands[1], types[node.operands[0]].shape[0])]
    if node.op == GROUPED:
        indices, tables = node.args[1], node.args[3]
        assert isinstance(indices, tuple) and isinstance(tables, tuple)
        return [(index.name, table[0]) for index, table in zip(indices, tables, strict=True)]
    return []


def constant_origins(model: Model) -> dict[str, frozenset[str]]:
    """The batch inputs that each constant depends on."""
    origins = {value.name: frozenset((value.name,)) for value in model.batch}
    for node in model.constants:
        origins[node.name] = frozenset().union(*(origins.get(name, frozenset()) for name in node.operands))
    return origins
