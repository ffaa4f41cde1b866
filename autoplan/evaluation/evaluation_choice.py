"""A plan's choice -> the choice of its forward alone, for any number of rows.

Everything lies as planned wherever sizes divide. Rows that don't divide over the data axis are computed by each of its
ranks, as if that axis had one member; rows that don't divide over a tensor axis are whole along it. Microbatches are
never larger than planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoplan.ir.choice import BlockChoice, Chosen, StageChoice, tensor_mesh
from autoplan.ir.graph import Block, Model, Node, TensorType, Typed, batch_rows
from autoplan.ir.layout import Layout, R
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.record import PlanRecord
from autoplan.rules.registry import AxisStrategy, rule_of
from autoplan.rules.strategies import Strategy, apart_strategies, axis_strategies, fits

DATA = "dp"


def forward_choice(record: PlanRecord, model: Model) -> Chosen:
    """How the model, the planned one in evaluation with its own number of rows, runs on the plan's devices."""
    chosen = record.chosen
    mesh = forward_mesh(chosen, batch_rows(record.model), batch_rows(model))
    flat = tensor_mesh(mesh)
    types, apart = model.types(), record.training.microbatch_statistics
    constants = dict(chosen.constants)
    return replace(
        chosen,
        mesh=mesh,
        microbatches=mesh.size(MICROBATCH),
        parallelism=replace(
            chosen.parallelism, local_steps=None, outer_optimizer=None, gossip=None, servers=None, staleness=None,
            backups=None, ahead=None,
        ),
        batch=tuple(dividing(x, v.type, flat) for v, x in zip(model.batch, chosen.batch, strict=True)),
        constants=tuple((n.name, fitting(n, constants[n.name], types, (), flat, apart)) for n in model.constants),
        blocks=tuple(block_choice(b, c, flat, apart) for b, c in zip(model.blocks, chosen.blocks, strict=True)),
        stages=tuple(StageChoice(stage.first, stage.last) for stage in chosen.stages),
    )


def forward_mesh(chosen: Chosen, planned: int, rows: int) -> Mesh:
    """The mesh with as many microbatches as these rows take, its data axis of one member where they don't divide."""
    dp = chosen.mesh.size(DATA)
    most = max(1, planned // (dp * chosen.microbatches))
    ways = dp if rows % dp == 0 else 1
    per_rank = rows // ways
    splits = any(MICROBATCH in axes for layout in chosen.batch for axes in layout.dims)
    count = next(m for m in range(1, per_rank + 1) if per_rank % m == 0 and per_rank // m <= most) if splits else 1
    sizes = {DATA: ways, MICROBATCH: count}
    return Mesh(tuple(replace(axis, size=sizes.get(axis.name, axis.size)) for axis in chosen.mesh.axes))


def block_choice(block: Block, choice: BlockChoice, mesh: Mesh, apart: bool) -> BlockChoice:
    types, strategies = block.types(), dict(choice.strategies)
    carries = block.carries_gradient()
    outputs = [Typed(name, types[name]) for name in block.outputs]
    return replace(
        choice,
        inputs=tuple(dividing(x, v.type, mesh) for v, x in zip(block.inputs, choice.inputs, strict=True)),
        outputs=tuple(dividing(x, v.type, mesh) for v, x in zip(outputs, choice.outputs, strict=True)),
        externals=tuple((name, dividing(x, types[name], mesh)) for name, x in choice.externals),
        strategies=tuple((n.name, fitting(n, strategies[n.name], types, carries, mesh, apart)) for n in block.nodes),
        hops=(),  # found anew: those that were priced are of other sizes
        again=(),  # a forward alone keeps nothing
    )


def dividing(layout: Layout, kind: TensorType, mesh: Mesh) -> Layout:
    """The layout, whole along each axis that a dim no longer divides over."""
    dims: list[tuple[str, ...]] = []
    dropped: list[str] = []
    for size, axes in zip(kind.shape, layout.dims, strict=True):
        kept: list[str] = []
        for axis in axes:
            divides = size % mesh.size(axis) == 0
            size = size // mesh.size(axis) if divides else size
            (kept if divides else dropped).append(axis)
        dims.append(tuple(kept))
    rest = dict(layout.rest) | dict.fromkeys(dropped, R)
    order = sorted(rest, key=lambda name: (mesh.names.index(name.partition(".")[0]), name))
    return Layout(tuple(dims), tuple((name, rest[name]) for name in order)) if dropped else layout


def fitting(
    node: Node, planned: Strategy, types: Mapping[str, TensorType], carries: Sequence[str] | frozenset[str], mesh: Mesh,
    apart: bool,
) -> Strategy:  # fmt: skip
    """The planned strategy; on the axes on which it no longer fits the operator is computed whole.

    apart  each microbatch has its own statistics
    """
    rule, operands = rule_of(node, types), [types[name] for name in node.operands]
    known = axis_strategies(rule, operands, [name in carries for name in node.operands])
    own = apart_strategies(known) if apart else known
    axes = [(axis, alike(strategy, own if axis == MICROBATCH else known)) for axis, strategy in planned.axes]
    whole = AxisStrategy(tuple(R for _ in operands), R)
    if fits(rule, axes, operands, node.type, mesh):
        return Strategy(tuple(axes))
    found = [(axis, whole) for axis, _ in axes]
    for place, one in enumerate(axes):  # outermost first, as ``dividing`` goes
        tried = [*found[:place], one, *found[place + 1 :]]
        found = tried if fits(rule, tried, operands, node.type, mesh) else found
    return Strategy(tuple(found))


def alike(planned: AxisStrategy, known: Sequence[AxisStrategy]) -> AxisStrategy:
    """The planned strategy where the operator still has it; else one between the same states, else whole.

    Batch norm in evaluation needs no other rows and doesn't count batches, its last operand in training.
    """
    if planned in known:
        return planned
    count = len(known[0].inputs)
    same = [s for s in known if s.inputs == planned.inputs[:count] and s.output == planned.output]
    return min(same, key=lambda s: bool(s.body), default=known[0])
