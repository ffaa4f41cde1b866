"""An operator problem without its prices: what may be chosen, and the ways of every value.

A template depends on the tensor axes, and on the rows of a microbatch only by what of them divides: problems of other
rows and other data axes share it, and are it with the prices filled in (``problem.build``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from autoplan.cost import Operator, weights_of
from autoplan.ir.graph import Block, TensorType
from autoplan.ir.layout import I, Layout, P, R, S, State
from autoplan.redistribution.hidden import read_by_products
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.flows import LayoutPaths, Step, divides, states_on, ways_of
from autoplan.search.intra_op.problem_inputs import SEQUENCE, OperatorInputs, has_sequence
from autoplan.search.intra_op.shared_decisions import GroupKey

RESULT = -1  # in place of an operand's number


@dataclass(frozen=True)
class Decision:
    """A group without its prices.

    stored  the type of the parameter, where it decides how one is stored
    frozen  that isn't trained
    count   segments that have the operator, or parameters that are stored so; 0 where the decision costs nothing
    """

    key: GroupKey
    options: tuple[Strategy | Layout, ...]
    stored: TensorType | None = None
    count: int = 0
    frozen: bool = False


@dataclass(frozen=True)
class Value:
    """A tensor without its prices (``problem.Tensor``).

    ways   the number of its ways in the template
    count  segments that have it
    fed    products that alone read it, whose weights' gradients its own may be summed under
    whole  the layouts in which nothing is kept of it, since it stands there anyway
    stands  of a value that lies in the memory of another that is kept, until it is moved, the layout in which it does;
            None of any other
    """

    block: int
    name: str
    kind: TensorType
    ways: int
    source: int
    given: np.ndarray
    sinks: tuple[tuple[int, np.ndarray], ...]
    keepers: tuple[tuple[int, np.ndarray], ...]
    count: int
    whole: np.ndarray
    fed: tuple[str, ...] = ()
    stands: np.ndarray | None = None


@dataclass(frozen=True)
class Template:
    """Decisions in the order: operators, boundaries, stored parameters, what is given."""

    decisions: tuple[Decision, ...]
    values: tuple[Value, ...]
    ways: tuple[LayoutPaths, ...]


def template_of(form: OperatorInputs) -> Template:
    return _Builder(form).build()


class _Builder:
    def __init__(self, form: OperatorInputs) -> None:
        self.form, self.model, self.mesh = form, form.model, form.mesh
        self.groups: list[Decision] = []
        self.position: dict[GroupKey, int] = {}
        self.weights = [sum(s.block == i for s in form.model.segments) for i in range(len(form.model.blocks))]
        self.classes = form.prepared.classes
        self.ways: dict[tuple, tuple[int, LayoutPaths]] = {}
        self.known: dict[tuple, Layout] = {}
        self.kept = [keepers_of(operators) if form.prepared.training else {} for operators in form.operators]
        pairs = zip(form.model.blocks, form.operators, strict=True)
        self.products = [frozenset(product_weights(block, operators)) for block, operators in pairs]

    def build(self) -> Template:
        for index, block in enumerate(self.model.blocks):
            for node in block.nodes:
                key = ("node", index, node.name)
                self.add(Decision(key, self.form.options[index, node.name], count=self.weights[index]))
        values = [v for index, block in enumerate(self.model.blocks) for v in self.values(index, block)]
        return Template(tuple(self.groups), tuple(values), tuple(ways for _, ways in self.ways.values()))

    def add(self, group: Decision) -> int:
        self.position[group.key] = len(self.groups)
        self.groups.append(group)
        return len(self.groups) - 1

    def layout_group(
        self, key: GroupKey, options: Sequence[Layout], kind: TensorType | None = None, frozen: bool = False
    ) -> int:
        """The group of a layout; of a stored parameter where its type is given."""
        if key in self.position:
            return self.position[key]
        count = 0 if kind is None else self.classes.sharers[key[2]]
        return self.add(Decision(key, tuple(options), kind, count, frozen))

    def values(self, index: int, block: Block) -> list[Value]:
        """Every value of a block that something reads."""
        carries, types = block.carries_gradient(), block.types()
        takers: dict[str, list[tuple[int, int]]] = {name: [] for name in types}
        for node in block.nodes:
            group = self.position["node", index, node.name]
            for operand, name in enumerate(node.operands):
                takers[name].append((group, operand))
        parameters = {p.name for p in block.parameters}
        fixed = {v.name for v in block.buffers}
        values, fed = [], read_by_products(block)
        for name, kind in types.items():
            sinks = self.sinks(index, name, kind, takers[name])
            if name in block.outputs:
                sinks.append(self.boundary_sink(index, block, name, kind))
            if not sinks:
                continue
            source, given = self.source(index, block, name, kind)
            stream = self.stream(index, block, name, kind) if name in carries else None
            step = self.parameter_step if name in parameters else no_step if name in fixed else stream
            value = self.value(index, name, kind, (source, given), sinks, name in carries, step)
            alone = fed.get(name, ()) if name in carries else ()
            values.append(replace(value, fed=tuple(node.name for node in alone)))
        return values

    def sinks(
        self, index: int, name: str, kind: TensorType, takers: Iterable[tuple[int, int]]
    ) -> list[tuple[int, list[Layout]]]:
        rank = len(kind.shape)
        options = [(group, operand, self.groups[group].options) for group, operand in takers]
        return [
            (group, [self.met(s, operand, rank) for s in found if isinstance(s, Strategy)])
            for group, operand, found in options
        ]

    def met(self, strategy: Strategy, place: int, rank: int) -> Layout:
        """The layout of an operand, or of the result, under a strategy."""
        ways = [way for _, way in strategy.axes]
        key = (rank, *(way.output if place == RESULT else way.inputs[place] for way in ways))
        if key not in self.known:
            mesh = self.mesh
            found = strategy.output(rank, mesh) if place == RESULT else strategy.input(place, rank, mesh)
            self.known[key] = found
        return self.known[key]

    def boundary_sink(self, index: int, block: Block, name: str, kind: TensorType) -> tuple[int, list[Layout]]:
        number = self.classes.boundaries[index, "out", block.outputs.index(name)]
        group = self.boundary(number, index, name, kind)
        return group, [o for o in self.groups[group].options if isinstance(o, Layout)]

    def boundary(self, number: int, index: int, name: str, kind: TensorType) -> int:
        last = self.classes.boundaries[self.model.segments[-1].block, "out", 0]
        states: Iterable[State] = [S(d) for d in range(len(kind.shape))] + [I, R]
        system = self.form.system
        if number == last and self.form.prepared.training:
            states, system = [I, P], None
        elif self.form.sequence is not None:
            states = [S(SEQUENCE)] if self.form.sequence and has_sequence(kind, self.mesh) else [I, R]
        asked = {a: system.between(a, kind) for a in self.form.searched} if system is not None else {}
        return self.layout_group(("boundary", -1, str(number)), self.layouts(index, name, kind, states, asked))

    def layouts(
        self,
        index: int,
        name: str,
        kind: TensorType,
        states: Iterable[State],
        asked: Mapping[str, Sequence[State]] = MappingProxyType({}),
    ) -> tuple[Layout, ...]:
        """The layouts with the searched axes in these states, where the sizes divide; an axis of size 1 stays R.

        asked  the states of single axes, in place of ``states``; these again where no layout divides
        """
        free = {a: tuple(states) if self.mesh.size(a) > 1 else (R,) for a in self.form.searched}
        own = {a: tuple(found) for a, found in asked.items() if found and self.mesh.size(a) > 1}
        fixed, rank = self.form.states(index, name), len(kind.shape)
        for each in (free | own, free) if own else (free,):
            found = [Layout.of(rank, {**fixed, **on}, self.mesh) for on in states_on(self.form.searched, each)]
            left = tuple(layout for layout in dict.fromkeys(found) if divides(kind, layout, self.mesh))
            if left:
                return left
        return ()

    def asked_of(self, index: int, name: str, kind: TensorType) -> Mapping[str, Sequence[State]]:
        """What a named system asks of how a parameter is stored."""
        system, product = self.form.system, name in self.products[index]
        return {} if system is None else {axis: system.stored(axis, kind, product) for axis in self.form.searched}

    def source(self, index: int, block: Block, name: str, kind: TensorType) -> tuple[int, list[Layout]]:
        """The group that gives a value, and the layout that each of its options gives."""
        if ("node", index, name) in self.position:
            group = self.position["node", index, name]
            options = self.groups[group].options
            return group, [self.met(s, RESULT, len(kind.shape)) for s in options if isinstance(s, Strategy)]
        names = [v.name for v in block.inputs]
        if name in names:
            group = self.boundary(self.classes.boundaries[index, "in", names.index(name)], index, name, kind)
        elif ("stored", index, name) in self.classes.stored:
            states = [S(d) for d in range(len(kind.shape))] + [I, R]
            key: GroupKey = ("stored", -1, self.classes.stored["stored", index, name])
            asked = self.asked_of(index, name, kind)
            group = self.layout_group(key, self.layouts(index, name, kind, states, asked), kind, name in block.frozen)
        else:
            read = {axis: (state, R) for axis, state in self.form.entering(index, name).items()}
            group = self.layout_group(("given", index, name), self.layouts(index, name, kind, [R], read))
        return group, [o for o in self.groups[group].options if isinstance(o, Layout)]

    def value(
        self,
        index: int,
        name: str,
        kind: TensorType,
        source: tuple[int, list[Layout]],
        sinks: Sequence[tuple[int, list[Layout]]],
        carries: bool,
        step: Step | None,
    ) -> Value:
        group, given = source
        number, ways = self.ways_of(kind, given, [layout for _, taken in sinks for layout in taken], carries, step)
        where = {layout: i for i, layout in enumerate(ways.layouts)}
        taken = tuple((g, np.array([where[x] for x in layouts], dtype=int)) for g, layouts in sinks)
        starts = np.array([where[x] for x in given], dtype=int)
        keepers, whole = self.keepers(index, name, where), starts[:0]
        if self.form.gathered and name in self.products[index]:  # what was gathered stands beside what is stored
            keepers, whole = taken, starts
        count, same = self.weights[index], self.in_one_memory(where)
        stands = np.array([same[x] for x in given], dtype=int) if self.is_view_of_kept(index, name) else None
        return Value(index, name, kind, number, group, starts, taken, keepers, count, whole, stands=stands)

    def ways_of(
        self, kind: TensorType, given: Sequence[Layout], taken: Sequence[Layout], carries: bool, step: Step | None
    ) -> tuple[int, LayoutPaths]:
        """The ways of a value, and their number; values that start and end alike have the same."""
        key = (kind, carries, tuple(dict.fromkeys(given)), tuple(dict.fromkeys(taken)), step)
        if key not in self.ways:
            ways = ways_of(kind, given, taken, carries, step, self.form.searched, self.mesh)
            self.ways[key] = (len(self.ways), ways)
        return self.ways[key]

    def stream(self, index: int, block: Block, name: str, kind: TensorType) -> Step | None:
        """The steps of an activation with a sequence, where sequence parallelism is pinned; None for all."""
        form, operators = self.form, self.form.operators[index]
        pinned = form.sequence is not None and form.strict and form.system is None and len(form.searched) == 1
        if not pinned or not has_sequence(kind, self.mesh) or self.mesh.tensor_size == 1:
            return None
        if not form.sequence:
            return whole_step
        kinds = {operators[node.name].rule.cost for node in block.nodes if name in node.operands}
        return split_step if kinds <= {"memory"} else scattered_step

    def parameter_step(self, axis: str, source: State, target: State) -> bool:
        """Only I -> R: a parameter isn't gathered inside a microbatch, but where a named system has it so."""
        return (source, target) == (I, R) or (axis == self.form.gathered and source.kind == "S" and target == R)

    def is_view_of_kept(self, index: int, name: str) -> bool:
        """Whether a value lies in the memory of another that is kept, until it is moved."""
        operators = self.form.operators[index]
        while name in operators and operators[name].rule.cost == "free" and operators[name].node.operands:
            name = operators[name].node.operands[0]
            if name in self.kept[index]:
                return True
        return False

    def keepers(
        self, index: int, name: str, where: Mapping[Layout, int]
    ) -> tuple[tuple[int, np.ndarray], ...]:
        """The groups that keep a tensor for the backward, and in which layout."""
        found, rank, same = [], len(next(iter(where)).dims), self.in_one_memory(where)
        for node, place in self.kept[index].get(name, ()):
            layouts = [self.met(s, place, rank) for s in self.form.options[index, node]]
            group = self.position["node", index, node]
            found.append((group, np.array([same[layout] for layout in layouts], dtype=int)))
        return tuple(found)

    def in_one_memory(self, where: Mapping[Layout, int]) -> Mapping[Layout, int]:
        """Of I and R, which lie in one memory, the number of R, where a tensor may be in that."""
        return {layout: where.get(self.replicated(layout), number) for layout, number in where.items()}

    def replicated(self, layout: Layout) -> Layout:
        """R in place of I."""
        searched = self.form.searched
        states = {a: R if state == I and a in searched else state for a, state in layout.states().items()}
        return Layout.of(len(layout.dims), states, self.mesh)


def keepers_of(operators: Mapping[str, Operator]) -> Mapping[str, Sequence[tuple[str, int]]]:
    """Of every value of a block the operators that keep it, and as which operand."""
    found: dict[str, list[tuple[str, int]]] = {}
    for name, operator in operators.items():
        operands = operator.node.operands
        for place in operator.keeps:
            kept, number = (name, RESULT) if place == "out" else (operands[int(place)], int(place))
            found.setdefault(kept, []).append((name, number))
    return found


def scattered_step(axis: str, source: State, target: State) -> bool:
    """Under sequence parallelism sums are scattered along the sequence and gathered again: none becomes whole on every
    rank as it is, but by a gather whose gradients are scattered."""
    return target != I and (source, target) != (P, R)


def split_step(axis: str, source: State, target: State) -> bool:
    """What only norms and elementwise operators read isn't gathered either: they run on the parts."""
    return scattered_step(axis, source, target) and (source, target) != (S(SEQUENCE), R)


def whole_step(axis: str, source: State, target: State) -> bool:
    """Without it sums become whole on every rank, and nothing is split along the sequence on the way."""
    return S(SEQUENCE) not in (source, target) and not (source == P and target.kind == "S")


def no_step(axis: str, source: State, target: State) -> bool:
    """A buffer is met as it is: it may be written to."""
    return False


def product_weights(block: Block, operators: Mapping[str, Operator]) -> Iterator[str]:
    """Parameters, and what is computed from them alone, that a product has as its second operand."""
    weights = weights_of(block)
    for operator in operators.values():
        operands = operator.node.operands
        if operator.rule.cost == "matmul" and len(operands) > 1 and operands[1] in weights:
            yield operands[1]
