"""A solution of the operator problem -> how each block runs, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.cost import Device, Operator, Prices
from autoplan.ir.choice import BlockChoice, Hop
from autoplan.ir.graph import Block, TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost.account import BlockCost, price_block
from autoplan.search.intra_op.chunked import in_chunks
from autoplan.search.intra_op.exchanged import with_exchanges
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.shared_decisions import GroupKey
from autoplan.search.intra_op.solve import Solution
from autoplan.search.space.heterogeneous import kinds_of


@dataclass(frozen=True, eq=False)
class IntraOpPlan:
    """One way to run every block. Each is equal to itself alone: who solves a problem gives the same object for the
    same answer, so that a point is a key.

    blocks, prices  in the model's order
    kinds           of several kinds of device, the prices on each; they were chosen for the slowest
    gap             proven, relative
    """

    blocks: tuple[BlockChoice, ...]
    prices: tuple[BlockCost, ...]
    solution: Solution
    kinds: tuple[tuple[Device, tuple[BlockCost, ...]], ...] = ()

    def on(self, device: Device) -> tuple[BlockCost, ...]:
        """The prices on one kind of device; those of the slowest on what is none."""
        return dict(self.kinds).get(device, self.prices)

    def is_idle(self, mesh: Mesh) -> bool:
        """Whether no operator is split on some axis of this mesh, so that its ranks repeat one another's work."""
        strategies = [strategy for block in self.blocks for _, strategy in block.strategies]
        axes = [axis for axis in mesh.operator_axes if mesh.size(axis) > 1]
        return not all(any(splits(strategy, axis) for strategy in strategies) for axis in axes)

    @property
    def gap(self) -> float:
        return (self.solution.objective - self.solution.bound) / max(self.solution.objective, 1e-30)


def splits(strategy: Strategy, axis: str) -> bool:
    """Whether an operand or the result is split on an axis."""
    chosen = strategy.on(axis)
    return any(state.kind == "S" for state in (*chosen.inputs, chosen.output))


def priced_plan(
    form: OperatorInputs, choices: tuple[BlockChoice, ...], solution: Solution, known: Sequence[IntraOpPlan] = ()
) -> IntraOpPlan:
    """These choices with what each block costs on each kind of device.

    known  plans of the same problem: where they run a block alike, its costs are theirs
    """
    alike = [next((plan for plan in known if plan.blocks[n] == choice), None) for n, choice in enumerate(choices)]

    def priced(on: Prices) -> tuple[BlockCost, ...]:
        each = zip(form.model.blocks, choices, form.operators, alike, strict=True)
        return tuple(
            price_block(block, choice, operators, on) if plan is None else plan.on(on.device)[n]
            for n, (block, choice, operators, plan) in enumerate(each)
        )

    kinds = tuple((device, priced(form.prices.on(device))) for device in kinds_of(form.prices.topology))
    return IntraOpPlan(choices, priced(form.prices), solution, kinds)


def block_choices(form: OperatorInputs, problem: Problem, solution: Solution) -> tuple[BlockChoice, ...]:
    """One choice for each block of the model, with every redistribution that it needs."""
    reader, pairs = _Reader(form, problem, solution), zip(form.model.blocks, form.operators, strict=True)
    return tuple(
        overlapped(block, reader.block(index, block), operators, form.prices)
        for index, (block, operators) in enumerate(pairs)
    )


class _Reader:
    def __init__(self, form: OperatorInputs, problem: Problem, solution: Solution) -> None:
        self.form, self.problem, self.solution = form, problem, solution
        pairs = zip(problem.groups, solution.options, strict=True)
        self.taken: dict[GroupKey, Layout | Strategy] = {g.key: g.options[o] for g, o in pairs}

    def block(self, index: int, block: Block) -> BlockChoice:
        types, classes = block.types(), self.form.prepared.classes

        def layout(key: GroupKey, name: str) -> Layout:
            """The layout taken; whole on the searched axes where nothing reads the value."""
            found = self.taken.get(key)
            if isinstance(found, Layout):
                return found
            return Layout.of(len(types[name].shape), self.form.states(index, name), self.form.mesh)

        def boundary(side: str, names: Iterable[str]) -> tuple[Layout, ...]:
            numbered = enumerate(names)
            return tuple(layout(("boundary", -1, str(classes.boundaries[index, side, i])), n) for i, n in numbered)

        stored = {p.name: classes.stored["stored", index, p.name] for p in block.parameters}
        return BlockChoice(
            inputs=boundary("in", (v.name for v in block.inputs)),
            outputs=boundary("out", block.outputs),
            parameters=tuple((name, layout(("stored", -1, number), name)) for name, number in stored.items()),
            externals=tuple((e.name, layout(("given", index, e.name), e.name)) for e in block.externals),
            strategies=tuple(self.strategies(index, block)),
            hops=tuple(self.hops(index, types, block.carries_gradient())),
        )

    def strategies(self, index: int, block: Block) -> Iterator[tuple[str, Strategy]]:
        for node in block.nodes:
            taken = self.taken["node", index, node.name]
            assert isinstance(taken, Strategy)
            yield node.name, taken

    def hops(self, index: int, types: Mapping[str, TensorType], carries: frozenset[str]) -> Iterator[Hop]:
        for tensor, tree in zip(self.problem.tensors, self.solution.trees, strict=True):
            for source, target in tree if tensor.block == index else ():
                ends = (tensor.layouts[source], tensor.layouts[target])
                steps = self.form.prices.move_steps(types[tensor.name], *ends, tensor.name in carries)
                yield Hop(tensor.name, *ends, steps)


def with_steps(
    block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices
) -> BlockChoice | None:
    """The same layouts with the steps that are cheapest at these sizes; None where there is no way."""
    types, carries = block.types(), block.carries_gradient()
    steps = [prices.move_steps(types[h.value], h.source, h.target, h.value in carries) for h in choice.hops]
    if None in steps:
        return None
    hops = tuple(replace(h, steps=s) for h, s in zip(choice.hops, steps, strict=True))
    return overlapped(block, replace(choice, hops=hops), operators, prices)


def overlapped(
    block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices
) -> BlockChoice:
    """The choice with what of its collectives runs beside what is computed."""
    return with_exchanges(block, in_chunks(block, choice, operators, prices), operators, prices)
