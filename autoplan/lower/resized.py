"""A plan's typed program at other sizes of the batch: the same choice, with other rows, tokens and microbatches.

Everything lies as planned. A size that doesn't divide as the plan splits it is refused: nothing is padded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.errors import LayoutError, ParallelismError, RescaleError
from autoplan.ir.choice import Chosen, tensor_mesh
from autoplan.ir.graph import Model, Node, TensorType, Typed
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import typed_program
from autoplan.rules.registry import rule_of
from autoplan.rules.strategies import Strategy, alike, axis_strategies, fits
from autoplan.trace.rescale import rescale
from cost_models.pipeline.order import actions

DATA, PIPELINE = "dp", "pp"


@dataclass(frozen=True)
class BatchSizes:
    """Of a whole batch: its rows, and the tokens in a row; 0 tokens for a model that reads none."""

    rows: int
    tokens: int = 0

    def __str__(self) -> str:
        rows = f"{self.rows} row{'s' * (self.rows != 1)}"
        return f"a batch of {rows}" + (f" of {self.tokens} token{'s' * (self.tokens != 1)}" if self.tokens else "")


def planned_sizes(program: Model | Lowered) -> BatchSizes:
    """Rows: the first size that most inputs have. Tokens: dim 1 of the first, where it is of token ids or vectors."""
    kinds = [value.type for value in program.batch]
    firsts = [kind.shape[0] for kind in kinds if kind.shape]
    rows = max(dict.fromkeys(firsts), key=firsts.count) if firsts else 1
    first = kinds[0] if kinds else TensorType((), "float32")
    reads_tokens = len(first.shape) == 3 or (len(first.shape) == 2 and not first.floating)
    return BatchSizes(rows, first.shape[1] if reads_tokens else 0)


def resized(record: PlanRecord, sizes: BatchSizes, microbatches: int | None = None) -> Lowered:
    """The typed program of a plan's step for such a batch.

    microbatches  None: as few as keep them no larger than planned
    ParallelismError where the graph can't be taken to that size, or a dim doesn't divide as the plan splits it.
    """
    planned = planned_sizes(record.model)
    if microbatches is None:
        microbatches = microbatch_count(record.chosen, planned.rows, sizes.rows, record.training.microbatch_statistics)
    count = microbatches
    try:
        model = rescale(record.model, batch=sizes.rows, seq=sizes.tokens or None, compared=True)
    except RescaleError as error:
        raise refusal(sizes, str(error), planned) from None
    mesh = with_microbatches(record.chosen.mesh, count)
    chosen = replace(record.chosen, mesh=mesh, microbatches=count)
    uneven = next(undivided(model, chosen), "")
    if uneven:
        raise refusal(sizes, uneven, planned)
    try:
        return typed_program(model, chosen, record.training.microbatch_statistics)
    except (LayoutError, ValueError, AssertionError) as error:
        raise refusal(sizes, f"the plan's layouts don't go with it: {error}", planned) from None


def refusal(sizes: BatchSizes, cause: str, planned: BatchSizes) -> ParallelismError:
    return ParallelismError(str(sizes), cause, f"give {planned}, as planned, or plan again with that one")


def microbatch_count(chosen: Chosen, planned: int, rows: int, apart: bool) -> int:
    """As few microbatches as keep each no larger than planned, and as the schedule takes.

    planned  rows of the planned batch
    apart    each microbatch has its own statistics: then how many there are follows from the rows alone, as on one
             device that accumulates
    ParallelismError where rows don't divide over the data axis, or microbatches that have statistics of their own.
    """
    dp, most = chosen.mesh.size(DATA), max(1, planned // (chosen.mesh.size(DATA) * chosen.microbatches))
    said = f"a batch of {rows} row{'s' * (rows != 1)}"
    if rows < 1:
        raise ParallelismError(said, "there is nothing to train on", f"give {planned} rows, as planned")
    if rows % dp:
        near = f"{rows - rows % dp} or " if rows > dp else ""
        cause = f"the plan splits rows over {dp} data ranks, and a training step pads none"
        raise ParallelismError(said, cause, f"give {near}{rows + dp - rows % dp} rows")
    splits = any(MICROBATCH in axes for layout in chosen.batch for axes in layout.dims)
    if not splits:
        counts: Iterable[int] = (1,)
    elif apart:
        counts = (next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= most * dp),)
    else:
        counts = (n for n in range(1, rows // dp + 1) if rows // dp % n == 0 and rows // dp // n <= most)
    for count in counts:
        if rows // dp % count == 0 and runs(chosen, count):
            return count
    cause = f"no number of microbatches divides {rows // dp} rows a data rank and runs by the schedule that was planned"
    if apart and splits:
        cause = (
            f"one device has statistics over {count} microbatches of {rows // count} rows, which the plan can't split "
            f"over {dp} data ranks or run by its schedule"
        )
    raise ParallelismError(said, cause, f"give {planned} rows, as planned")


def runs(chosen: Chosen, count: int) -> bool:
    """Whether the pipeline's schedule takes so many microbatches."""
    p, ranks = chosen.parallelism, chosen.mesh.size(PIPELINE)
    schedule, several = p.pipeline_schedule or "gpipe", len(chosen.stages) // ranks
    try:
        actions(schedule, 0, ranks, count, several)
    except ValueError:
        return False
    return True


def with_microbatches(mesh: Mesh, count: int) -> Mesh:
    return Mesh(tuple(replace(axis, size=count) if axis.name == MICROBATCH else axis for axis in mesh.axes))


def undivided(model: Model, chosen: Chosen) -> Iterator[str]:
    """What doesn't divide as the choice splits it, as text."""
    mesh = tensor_mesh(chosen.mesh)
    yield from uneven_values(zip(model.batch, chosen.batch, strict=True), mesh)
    yield from uneven_nodes(model.constants, dict(chosen.constants), model.types(), mesh)
    for block, choice in zip(model.blocks, chosen.blocks, strict=True):
        types = block.types()
        outputs = [Typed(name, types[name]) for name in block.outputs]
        externals = [(Typed(name, types[name]), layout) for name, layout in choice.externals]
        values = [*zip(block.inputs, choice.inputs, strict=True), *zip(outputs, choice.outputs, strict=True)]
        yield from uneven_values([*values, *externals], mesh)
        yield from uneven_nodes(block.nodes, dict(choice.strategies), types, mesh)


def uneven_values(values: "Sequence[tuple[Typed, Layout]] | zip[tuple[Typed, Layout]]", mesh: Mesh) -> Iterator[str]:
    for value, layout in values:
        for dim, (size, axes) in enumerate(zip(value.type.shape, layout.dims, strict=True)):
            ways = 1
            for axis in axes:
                ways *= mesh.size(axis)
            if size % ways:
                yield f"dim {dim} of {value.name}, {size}, doesn't divide over {' x '.join(axes)} = {ways}"


def uneven_nodes(
    nodes: Sequence[Node], strategies: Mapping[str, Strategy], types: Mapping[str, TensorType], mesh: Mesh
) -> Iterator[str]:
    for node in nodes:
        rule, kinds = rule_of(node, types), [types[name] for name in node.operands]
        given = axis_strategies(rule, kinds, [True] * len(kinds))
        axes = [(axis, alike(way, given) or way) for axis, way in strategies[node.name].axes]
        if not fits(rule, axes, kinds, node.type, mesh):
            split = " x ".join(f"{a} = {mesh.size(a)}" for a, s in axes if mesh.size(a) > 1 and s.factor)
            shape = list(node.type.shape)
            yield f"{node.name} of {node.module or 'the root'} of shape {shape} doesn't divide over {split}"
