"""A solution of the operator problem -> how each block runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autoplan.ir.choice import BlockChoice, Hop
from autoplan.ir.graph import Block, TensorType
from autoplan.ir.layout import Layout
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.classes import GroupKey, boundary_classes, stored_classes
from autoplan.search.intra_op.inputs import Formulation, Prices
from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.solve import Solution


def block_choices(form: Formulation, problem: Problem, solution: Solution) -> tuple[BlockChoice, ...]:
    """One choice for each block of the model, with every redistribution that it needs."""
    reader = _Reader(form, problem, solution)
    return tuple(reader.block(index, block) for index, block in enumerate(form.model.blocks))


class _Reader:
    def __init__(self, form: Formulation, problem: Problem, solution: Solution) -> None:
        self.form, self.problem, self.solution = form, problem, solution
        pairs = zip(problem.groups, solution.options, strict=True)
        self.taken: dict[GroupKey, Layout | Strategy] = {g.key: g.options[o] for g, o in pairs}
        self.boundaries = boundary_classes(form.model)
        self.stored, _ = stored_classes(form.model)

    def block(self, index: int, block: Block) -> BlockChoice:
        types = block.types()
        sides = {"in": [v.name for v in block.inputs], "out": list(block.outputs)}
        ends = {
            side: tuple(
                self.layout(("boundary", -1, str(self.boundaries[index, side, i])), index, name, types[name])
                for i, name in enumerate(names)
            )
            for side, names in sides.items()
        }
        return BlockChoice(
            inputs=ends["in"],
            outputs=ends["out"],
            parameters=tuple(
                (p.name, self.layout(("stored", -1, self.stored["stored", index, p.name]), index, p.name, p.type))
                for p in block.parameters
            ),
            externals=tuple(
                (e.name, self.layout(("given", index, e.name), index, e.name, e.type)) for e in block.externals
            ),
            strategies=tuple(self.strategies(index, block)),
            hops=tuple(self.hops(index, types, block.carries_gradient())),
        )

    def layout(self, key: GroupKey, index: int, name: str, kind: TensorType) -> Layout:
        """The layout taken; whole on the searched axes where nothing reads the value."""
        found = self.taken.get(key)
        if isinstance(found, Layout):
            return found
        return Layout.of(len(kind.shape), self.form.states(index, name), self.form.mesh)

    def strategies(self, index: int, block: Block) -> Iterator[tuple[str, Strategy]]:
        for node in block.nodes:
            taken = self.taken["node", index, node.name]
            assert isinstance(taken, Strategy)
            yield node.name, taken

    def hops(self, index: int, types: Mapping[str, TensorType], carries: frozenset[str]) -> Iterator[Hop]:
        trees: Sequence[Sequence[tuple[int, int]]] = self.solution.trees
        for tensor, tree in zip(self.problem.tensors, trees, strict=True):
            if tensor.block == index:
                for source, target in tree:
                    ends = (tensor.layouts[source], tensor.layouts[target])
                    steps = self.form.prices.move_steps(types[tensor.name], *ends, tensor.name in carries)
                    yield Hop(tensor.name, *ends, steps)


def with_steps(block: Block, choice: BlockChoice, prices: Prices) -> BlockChoice | None:
    """The same layouts with the steps that are cheapest at these sizes; None where there is no way."""
    types, carries = block.types(), block.carries_gradient()
    steps = [prices.move_steps(types[h.value], h.source, h.target, h.value in carries) for h in choice.hops]
    if None in steps:
        return None
    return replace(choice, hops=tuple(replace(h, steps=s) for h, s in zip(choice.hops, steps, strict=True)))
