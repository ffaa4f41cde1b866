"""The operator problem of one model on one mesh, as arrays: what may be chosen, what each choice costs.

Every distinct block stands in it once, weighted by the number of its segments. A *group* is a decision with exactly
one of its options taken: an operator's strategy, a boundary's layout, the layout in which a parameter is stored. A
*tensor* flows from the group that gives it to the groups that take it, along *arcs*, each a redistribution.

With x[g,o] = 1 where group g takes option o, f[t,c,a] the flow of tensor t to its consumer c along arc a, y[t,a] = 1
where arc a is paid, and z[t,l] = 1 where t is kept for the backward in layout l:

    minimise   Σ x (time + w_state·state + w_act·kept)  +  Σ y·arc  +  w_act Σ z·kept        solve.objective
    Σ_o x[g,o] = 1                                            for each group g               solve.choose_one
    given(t,l) + Σ_{a into l} f[t,c,a] = taken(t,c,l) + Σ_{a from l} f[t,c,a]                solve.conserve
    f[t,c,a] ≤ y[t,a]        where t has several consumers; else f is y                      solve.share
    z[t,l] ≥ Σ_{o keeps t in l} x[g,o]                        for each keeper g of t         solve.keep

given(t,l) = Σ x[g,o] over the options of t's producer that give it in l; taken likewise. The arcs that one tensor pays
for form a tree over its layouts (shared flow), so a redistribution that two consumers need is paid once.

One to three axes are searched. An operator's strategies are products of those on the single axes, and a tensor's
layouts mixtures of the states met on them (``flows.between``); an arc changes one axis, or several alike, and costs
its single step (``Prices.direct``), or over one axis the cheapest way (``flows.prices_of``). What a named system asks
narrows the options (``tensor.as_asked``) and the boundary's and the stored layouts; ``prune.prune`` drops options and
arcs that no optimum needs.

The output of a segment and the input of the next are one tensor in one layout: both are the same boundary group, also
where a block follows itself. A parameter that several blocks or segments share has one group for how it is stored.
Collectives from a parameter other than I -> R are left out: a parameter is not gathered inside a microbatch, but over
the axis over which a named system gathers it (``TensorSystem.gathered``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from autoplan.graph import Block, Model, TensorType
from autoplan.layout import I, Layout, P, R, S, State
from autoplan.mesh import Mesh
from autoplan.pricing import Operator, weights_of
from autoplan.search.classes import GroupKey, boundary_classes, stored_classes
from autoplan.search.flows import Flows, Step, divides, local_bytes, local_elements, states_on
from autoplan.search.tensor import TensorSystem
from autoplan.strategies import Strategy
from autoplan.typed import Collective

SEQUENCE = 1  # the dim of an activation [batch, sequence, features]

class Prices(Protocol):
    """What the problem asks of pricing; seconds are of one microbatch, forward and backward."""

    def operator_s(self, operator: Operator, strategy: Strategy) -> float: ...

    def move_s(self, kind: TensorType, source: Layout, target: Layout, carries: bool) -> float | None: ...

    def move_steps(
        self, kind: TensorType, source: Layout, target: Layout, carries: bool
    ) -> tuple[Collective, ...] | None: ...

    def stored_s(self, kind: TensorType, layout: Layout) -> float: ...


@dataclass(frozen=True)
class Group:
    """One decision.

    options      Strategies of an operator, or Layouts
    time_s       seconds of each option in one microbatch, over all segments of the block
    state_bytes  bytes of parameter on one device
    kept_bytes   bytes kept for the backward beside tensors (a dropout's mask)
    """

    key: GroupKey
    options: tuple[Strategy | Layout, ...]
    time_s: np.ndarray
    state_bytes: np.ndarray
    kept_bytes: np.ndarray


@dataclass(frozen=True)
class Tensor:
    """One value and its ways from the group that gives it to those that take it.

    layouts   all in which it may be
    source    the producing group; ``given[o]`` is the index of the layout that its option o gives
    sinks     (consuming group, index of the layout that each of its options takes)
    arcs      [arcs, 2] indices of layouts, from and to; ``arc_s`` their prices over all segments
    keepers   (group, index of the layout kept for the backward by each option, -1 for none)
    kept_bytes  of each layout, over all segments
    """

    block: int
    name: str
    layouts: tuple[Layout, ...]
    source: int
    given: np.ndarray
    sinks: tuple[tuple[int, np.ndarray], ...]
    arcs: np.ndarray
    arc_s: np.ndarray
    keepers: tuple[tuple[int, np.ndarray], ...]
    kept_bytes: np.ndarray


@dataclass(frozen=True)
class Problem:
    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...]

    def index(self, key: GroupKey) -> int:
        for i, group in enumerate(self.groups):
            if group.key == key:
                return i
        raise KeyError(key)


@dataclass(frozen=True)
class Formulation:
    """All that a problem is made of.

    operators   of every block, by name
    options     the strategies of every node, by (block, name)
    states      (axis, state) of every value on the batch's axes, by (block, name)
    searched    names of the axes whose layouts are searched, in the mesh's order
    sequence    whether activations between segments are split along the sequence; None: whatever is cheaper
    system      what a named system asks of the tensor axes
    entering    of a constant of a block, the states on searched axes, beside R, in which the batch may be read
    """

    model: Model
    mesh: Mesh
    operators: tuple[Mapping[str, Operator], ...]
    options: Mapping[tuple[int, str], tuple[Strategy, ...]]
    states: Callable[[int, str], Mapping[str, State]]
    prices: Prices
    searched: tuple[str, ...] = ("tp",)
    training: bool = True
    sequence: bool | None = None
    system: TensorSystem | None = None
    entering: Callable[[int, str], Mapping[str, State]] = lambda index, name: {}

    @property
    def gathered(self) -> str:
        """The axis over which parameters are gathered inside a microbatch."""
        return self.system.gathered if self.system is not None else ""


def has_sequence(kind: TensorType, mesh: Mesh) -> bool:
    """Whether an activation has a sequence that the tensor axes can split."""
    return len(kind.shape) == 3 and kind.shape[SEQUENCE] % mesh.tensor_size == 0


def build(form: Formulation) -> Problem:
    """The arrays. Groups stand in the order: operators, boundaries, stored parameters, what is given."""
    return _Builder(form).build()


class _Builder:
    def __init__(self, form: Formulation) -> None:
        self.form, self.model, self.mesh = form, form.model, form.mesh
        self.groups: list[Group] = []
        self.position: dict[GroupKey, int] = {}
        self.weights = [sum(s.block == i for s in form.model.segments) for i in range(len(form.model.blocks))]
        self.boundaries = boundary_classes(form.model)
        self.stored, self.sharers = stored_classes(form.model)
        self.flows = Flows(form.mesh, form.searched, form.prices.move_s)
        pairs = zip(form.model.blocks, form.operators, strict=True)
        self.products = [frozenset(product_weights(block, operators)) for block, operators in pairs]

    def build(self) -> Problem:
        for index, block in enumerate(self.model.blocks):
            for node in block.nodes:
                self.operator_group(index, self.form.operators[index][node.name])
        tensors = [t for index, block in enumerate(self.model.blocks) for t in self.block_tensors(index, block)]
        return Problem(tuple(self.groups), tuple(tensors))

    def add(self, group: Group) -> int:
        self.position[group.key] = len(self.groups)
        self.groups.append(group)
        return len(self.groups) - 1

    def operator_group(self, index: int, operator: Operator) -> int:
        options = self.form.options[index, operator.node.name]
        weight = self.weights[index]
        time_s = np.array([weight * self.form.prices.operator_s(operator, s) for s in options])
        kept = np.array([weight * self.extra_bytes(operator, s) for s in options])
        return self.add(Group(("node", index, operator.node.name), options, time_s, np.zeros(len(options)), kept))

    def extra_bytes(self, operator: Operator, strategy: Strategy) -> float:
        if not operator.rule.saved_bytes_per_element or not operator.result_carries:
            return 0.0
        layout = strategy.output(len(operator.node.type.shape), self.mesh)
        return operator.rule.saved_bytes_per_element * local_elements(operator.node.type, layout, self.mesh)

    def layout_group(self, key: GroupKey, options: Sequence[Layout], kind: TensorType | None = None) -> int:
        """The group of a layout; of a stored parameter where its type is given."""
        if key in self.position:
            return self.position[key]
        zeros = np.zeros(len(options))
        if kind is None:
            return self.add(Group(key, tuple(options), zeros, zeros, zeros))
        count = self.sharers[key[2]]
        time_s = np.array([count * self.form.prices.stored_s(kind, layout) for layout in options])
        state = np.array([count * local_bytes(kind, layout, self.mesh) for layout in options], dtype=float)
        return self.add(Group(key, tuple(options), time_s, state, zeros))

    def block_tensors(self, index: int, block: Block) -> list[Tensor]:
        """Every value of a block that something reads."""
        carries, types = block.carries_gradient(), block.types()
        takers: dict[str, list[tuple[int, int]]] = {name: [] for name in types}
        for node in block.nodes:
            group = self.position["node", index, node.name]
            for operand, name in enumerate(node.operands):
                takers[name].append((group, operand))
        parameters = {p.name for p in block.parameters}
        fixed = {v.name for v in block.buffers}
        tensors = []
        for name, kind in types.items():
            sinks = self.sinks(index, name, kind, takers[name])
            if name in block.outputs:
                sinks.append(self.boundary_sink(index, block, name, kind))
            if not sinks:
                continue
            source, given = self.source(index, block, name, kind)
            step = self.parameter_step if name in parameters else no_step if name in fixed else None
            tensors.append(self.tensor(index, name, kind, (source, given), sinks, name in carries, step))
        return tensors

    def sinks(
        self, index: int, name: str, kind: TensorType, takers: Iterable[tuple[int, int]]
    ) -> list[tuple[int, list[Layout]]]:
        rank = len(kind.shape)
        options = [(group, operand, self.groups[group].options) for group, operand in takers]
        return [
            (group, [s.input(operand, rank, self.mesh) for s in found if isinstance(s, Strategy)])
            for group, operand, found in options
        ]

    def boundary_sink(self, index: int, block: Block, name: str, kind: TensorType) -> tuple[int, list[Layout]]:
        number = self.boundaries[index, "out", block.outputs.index(name)]
        group = self.boundary(number, index, name, kind)
        return group, [o for o in self.groups[group].options if isinstance(o, Layout)]

    def boundary(self, number: int, index: int, name: str, kind: TensorType) -> int:
        last = self.boundaries[self.model.segments[-1].block, "out", 0]
        states: Iterable[State] = [S(d) for d in range(len(kind.shape))] + [I, R]
        system = self.form.system
        if number == last and self.form.training:
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
        system, products = self.form.system, self.products[index]
        if system is None or name not in products:
            return {}
        return {axis: system.stored(axis, kind) for axis in self.form.searched}

    def source(self, index: int, block: Block, name: str, kind: TensorType) -> tuple[int, list[Layout]]:
        """The group that gives a value, and the layout that each of its options gives."""
        if ("node", index, name) in self.position:
            group = self.position["node", index, name]
            options = self.groups[group].options
            return group, [s.output(len(kind.shape), self.mesh) for s in options if isinstance(s, Strategy)]
        names = [v.name for v in block.inputs]
        if name in names:
            group = self.boundary(self.boundaries[index, "in", names.index(name)], index, name, kind)
        elif ("stored", index, name) in self.stored:
            states = [S(d) for d in range(len(kind.shape))] + [I, R]
            key: GroupKey = ("stored", -1, self.stored["stored", index, name])
            asked = self.asked_of(index, name, kind)
            group = self.layout_group(key, self.layouts(index, name, kind, states, asked), kind)
        else:
            read = {axis: (state, R) for axis, state in self.form.entering(index, name).items()}
            group = self.layout_group(("given", index, name), self.layouts(index, name, kind, [R], read))
        return group, [o for o in self.groups[group].options if isinstance(o, Layout)]

    def tensor(
        self,
        index: int,
        name: str,
        kind: TensorType,
        source: tuple[int, list[Layout]],
        sinks: Sequence[tuple[int, list[Layout]]],
        carries: bool,
        step: Step | None,
    ) -> Tensor:
        group, given = source
        weight = self.weights[index]
        flow = self.flows.flow(kind, given, (layout for _, taken in sinks for layout in taken), carries, step)
        where = {layout: i for i, layout in enumerate(flow.layouts)}
        kept = np.array([weight * local_bytes(kind, layout, self.mesh) for layout in flow.layouts], dtype=float)
        taken = tuple((g, np.array([where[x] for x in layouts], dtype=int)) for g, layouts in sinks)
        keepers = self.keepers(index, name, where)
        if self.form.gathered and name in self.products[index]:  # what was gathered stands beside what is stored
            kept[[where[x] for x in given]], keepers = 0.0, taken
        return Tensor(
            index, name, flow.layouts, group, np.array([where[x] for x in given], dtype=int), taken, flow.arcs,
            weight * flow.arc_s, keepers, kept,
        )  # fmt: skip

    def parameter_step(self, axis: str, source: State, target: State) -> bool:
        """Only I -> R: a parameter isn't gathered inside a microbatch, but where a named system has it so."""
        return (source, target) == (I, R) or (axis == self.form.gathered and source.kind == "S" and target == R)

    def keepers(
        self, index: int, name: str, where: Mapping[Layout, int]
    ) -> tuple[tuple[int, np.ndarray], ...]:
        """The groups that keep a tensor for the backward, and in which layout."""
        if not self.form.training:
            return ()
        found = []
        rank = len(next(iter(where)).dims)
        for operator in self.form.operators[index].values():
            node, options = operator.node, self.form.options[index, operator.node.name]
            group = self.position["node", index, node.name]
            places = [p for p in operator.keeps if (node.name if p == "out" else node.operands[int(p)]) == name]
            for place in places:
                layouts = [
                    s.output(rank, self.mesh) if place == "out" else s.input(int(place), rank, self.mesh)
                    for s in options
                ]
                found.append((group, np.array([where[layout] for layout in layouts], dtype=int)))
        return tuple(found)


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
