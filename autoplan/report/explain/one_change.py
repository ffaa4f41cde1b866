"""The price of running one operator in another way, everything else left as it was chosen."""

from collections.abc import Iterable
from dataclasses import dataclass

from autoplan.cost import Operator, Prices, operators_of
from autoplan.cost.prices import layout_bytes
from autoplan.cost.step import stored_ratio
from autoplan.ir.choice import BlockChoice, tensor_mesh
from autoplan.ir.graph import Block, Node
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.record import PlanRecord
from autoplan.options import Training
from autoplan.report.words import way_text
from autoplan.rules.strategies import Strategy, strategies


@dataclass(frozen=True)
class Option:
    """One way to run an operator, in seconds of one microbatch on one device, forward and backward.

    compute_s  the operator itself
    moves_s    bringing its operands from where they stand to where it wants them, and its result to where its
               consumers want it; None where there is no way
    stored_s   the share of a microbatch in reducing its parameters' gradients and updating them
    parameter_bytes  of its parameters, on one rank
    """

    strategy: Strategy
    chosen: bool
    compute_s: float
    moves_s: float | None
    stored_s: float
    parameter_bytes: int

    @property
    def total_s(self) -> float | None:
        return None if self.moves_s is None else self.compute_s + self.moves_s + self.stored_s


def local_options(record: PlanRecord, index: int, node: Node, axis: str) -> list[Option]:
    """The chosen way and those that differ from it on one axis, the cheapest first, those without a way last.

    Of ways that read alike the cheapest stands for all.
    """
    training = record.training
    mesh = tensor_mesh(record.chosen.mesh)
    prices = Prices(
        mesh=mesh,
        topology=record.cluster.topology(),
        fuses=training.compile,
        training=isinstance(training, Training),
        microbatches=record.chosen.microbatches,
        stored=stored_ratio(training),
    )
    block, choice = record.model.blocks[index], record.chosen.blocks[index]
    operator = operators_of(block, fuses=training.compile)[node.name]
    chosen = dict(choice.strategies)[node.name]
    ways = neighbours(operator, chosen, mesh, axis)
    count = sum(segment.block == index for segment in record.model.segments)
    options = [price(s, s == chosen, operator, block, choice, prices, count) for s in ways]
    distinct: dict[str, Option] = {}
    for option in sorted(options, key=lambda o: (not o.chosen, o.total_s is None, o.total_s or 0.0)):
        distinct.setdefault(way_text(option.strategy.on(axis)), option)
    return sorted(distinct.values(), key=lambda o: (o.total_s is None, o.total_s or 0.0, not o.chosen))


def neighbours(operator: Operator, chosen: Strategy, mesh: Mesh, axis: str) -> Iterable[Strategy]:
    """The chosen strategy, and every one that differs from it on that axis alone."""
    pinned = {name: way for name, way in chosen.axes if name != axis}
    found = strategies(operator.rule, operator.operands, operator.node.type, operator.carries, mesh, pinned)
    return dict.fromkeys((chosen, *found))


def price(
    strategy: Strategy, chosen: bool, operator: Operator, block: Block, choice: BlockChoice, prices: Prices, count: int
) -> Option:
    """``count`` segments are this block; their parameters' gradients are summed together."""
    mesh, node = prices.mesh, operator.node
    kinds, parameters = block.types(), {p.name for p in block.parameters}
    carries = block.carries_gradient()
    stored_s, parameter_bytes = 0.0, 0
    moves: list[float | None] = []
    for position, name in enumerate(node.operands):
        wanted = strategy.input(position, len(kinds[name].shape), mesh)
        if name in parameters:
            stored_s += 0.0 if name in block.frozen else prices.stored_s(kinds[name], wanted, count) / count
            parameter_bytes += layout_bytes(kinds[name], wanted, mesh)
        else:
            moves.append(prices.move_s(kinds[name], home(name, block, choice, mesh), wanted, name in carries))
    given = strategy.output(len(node.type.shape), mesh)
    for wanted in consumers(node.name, block, choice, mesh):
        moves.append(prices.move_s(node.type, given, wanted, node.name in carries))
    known = [m for m in moves if m is not None]
    total = sum(known) if len(known) == len(moves) else None
    return Option(strategy, chosen, prices.operator_s(operator, strategy), total, stored_s, parameter_bytes)


def home(name: str, block: Block, choice: BlockChoice, mesh: Mesh) -> Layout:
    """The layout in which a value is made, or enters the block."""
    for value, layout in zip(block.inputs, choice.inputs, strict=True):
        if value.name == name:
            return layout
    entering = {**dict(choice.externals), **dict(choice.parameters)}
    if name in entering:
        return entering[name]
    rank = len(block.types()[name].shape)
    made = dict(choice.strategies).get(name)
    return Layout.of(rank, {}, mesh) if made is None else made.output(rank, mesh)


def consumers(name: str, block: Block, choice: BlockChoice, mesh: Mesh) -> list[Layout]:
    """The distinct layouts in which a value is wanted, by operators and at the block's end."""
    chosen, rank = dict(choice.strategies), len(block.types()[name].shape)
    wanted = [
        chosen[reader.name].input(position, rank, mesh)
        for reader in block.nodes
        for position, operand in enumerate(reader.operands)
        if operand == name
    ]
    wanted += [layout for output, layout in zip(block.outputs, choice.outputs, strict=True) if output == name]
    return list(dict.fromkeys(wanted))
