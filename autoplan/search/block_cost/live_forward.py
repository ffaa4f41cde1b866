"""A walk through a block as it runs eagerly: which storages its forward makes, and which its backward will read.

Values that are views of one another are one storage; what an operator makes beside its result is in the table of
``cost.operators.eager_temporaries``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.cost import Device, Operator
from autoplan.cost.operators.eager_temporaries import Holds, holds_of
from autoplan.cost.operators.kept_beside import activated_bytes, bytes_beside, is_mixture, passing_bytes
from autoplan.cost.operators.operator_seconds import lookups_of
from autoplan.cost.prices import COPYING, layout_bytes
from autoplan.ir.choice import BlockChoice, Hop
from autoplan.ir.graph import Block
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.ir.randomness import ATTENTION, scores_in_memory

Located = tuple[str, Layout]  # a value, and the layout in which it is held


@dataclass(frozen=True)
class Step:
    """One operator, or what runs in its place (``body``), or one redistribution, in the order of the program."""

    reads: tuple[Located, ...]
    makes: Located
    operator: Operator | None = None
    hop: Hop | None = None
    body: str = ""


def steps_of(block: Block, choice: BlockChoice, operators: Mapping[str, Operator], mesh: Mesh) -> Iterator[Step]:
    """The statements of a block: a value is moved where it is first wanted in another layout."""
    types, hops = block.types(), {(hop.value, hop.target): hop for hop in choice.hops}
    known: set[Located] = set()

    def moved(name: str, layout: Layout) -> Iterator[Step]:
        hop = hops.get((name, layout))
        if hop is None or (name, layout) in known:
            return
        known.add((name, layout))
        yield from moved(name, hop.source)
        yield Step(((name, hop.source),), (name, layout), hop=hop)

    strategies = dict(choice.strategies)
    for node in block.nodes:
        reads, strategy = [], strategies[node.name]
        for place, name in enumerate(node.operands):
            layout = strategy.input(place, len(types[name].shape), mesh)
            yield from moved(name, layout)
            reads.append((name, layout))
        made = (node.name, strategy.output(len(node.type.shape), mesh))
        known.add(made)
        bodies = [each.body for axis, each in strategy.axes if each.body and mesh.size(axis) > 1 and axis != MICROBATCH]
        yield Step(tuple(reads), made, operators[node.name], body=bodies[0] if bodies else "")
    for name, layout in zip(block.outputs, choice.outputs, strict=True):
        yield from moved(name, layout)


@dataclass
class Walk:
    """A walk through one block; storages are numbered.

    sizes   bytes of each storage that the block makes
    place   the storage of each value; of those that enter a negative number
    order   the dims of a value from the outermost in memory; () where they don't lie one after another
    saved   storages that each step's backward reads
    beside  of these what mixtures keep beside their operands and results, but for what their activations make:
            ``activated`` has those, by the storage beside
    """

    block: Block
    choice: BlockChoice
    operators: Mapping[str, Operator]
    mesh: Mesh
    device: Device
    sizes: dict[int, int] = field(default_factory=dict)
    place: dict[Located, int] = field(default_factory=dict)
    order: dict[Located, tuple[int, ...]] = field(default_factory=dict)
    saved: list[tuple[int, ...]] = field(default_factory=list)
    beside: dict[int, Step] = field(default_factory=dict)
    activated: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    most: int = 0

    def __post_init__(self) -> None:
        self.types, self.carries = self.block.types(), self.block.carries_gradient()
        self.numbers = itertools.count()
        self.inputs = {v.name for v in self.block.inputs}
        self.parameters = {p.name for p in self.block.parameters}
        self.entering = {v.name for v in (*self.block.inputs, *self.block.externals, *self.block.buffers)}
        self.entering |= self.parameters
        given = [(v.name, x) for v, x in zip(self.block.inputs, self.choice.inputs, strict=True)]
        for at in (*given, *self.choice.externals, *self.choice.parameters):
            self.storage(at)

    def bytes(self, at: Located) -> int:
        return layout_bytes(self.types[at[0]], at[1], self.mesh)

    def gradient_bytes(self, at: Located) -> int:
        """Of a value's gradient: as many, but of tables whose looked-up rows alone have one."""
        return self.by_rows.get(at[0]) or self.bytes(at)

    @cached_property
    def by_rows(self) -> dict[str, int]:
        """Bytes of these tables' gradients, by name."""
        found = {}
        for name, strategy in self.choice.strategies:
            operator = self.operators[name]
            if operator.rule.cost == "lookups" and (traffic := lookups_of(operator, strategy, self.mesh)).sparse:
                found[operator.node.operands[0]] = traffic.gradient_bytes()
        return found

    def storage(self, at: Located) -> int:
        """Of a value; those that enter have one each, whatever layout they are asked in without having been moved."""
        if at not in self.place:
            other = next((s for (name, _), s in self.place.items() if name == at[0]), None)
            if other is None:
                other = -1 - next(self.numbers)
                self.sizes[other] = self.bytes(at)
            self.place[at] = other
        return self.place[at]

    @property
    def entered(self) -> frozenset[int]:
        """The storages of the block's inputs."""
        pairs = zip(self.block.inputs, self.choice.inputs, strict=True)
        return frozenset(self.place[value.name, layout] for value, layout in pairs)

    def make(self, size: float) -> int:
        number = next(self.numbers)
        self.sizes[number] = round(size)
        return number

    # forward

    def forward(self) -> None:
        held = 0
        for step in steps_of(self.block, self.choice, self.operators, self.mesh):
            self.steps.append(step)
            beside = self.compute(step, step.operator) if step.operator else self.move(step)
            held = sum(size for number, size in self.sizes.items() if number >= 0)
            self.most = max(self.most, held + beside)

    def compute(self, step: Step, operator: Operator) -> int:
        """Makes a result, or a view of an operand; bytes that the operator needs beside."""
        holds = holds_of(operator.node.op, self.device, step.body, len(step.reads))
        sizes = [self.bytes(at) for at in step.reads]
        result = self.bytes(step.makes)
        self.order[step.makes] = self.order_of(step, operator)
        if self.is_view(step, operator):
            self.place[step.makes] = self.storage(step.reads[0])
        else:
            self.place[step.makes] = self.make(result)
        kept = [self.storage(step.makes if p == "out" else step.reads[int(p)]) for p in self.keeps(operator, holds)]
        if operator.result_carries:
            strategy = dict(self.choice.strategies)[operator.node.name]
            beside = holds.saved(sizes, result) + bytes_beside(operator, strategy, self.mesh)
            kept += [self.make(beside)] if beside else []
            if is_mixture(operator):
                self.beside[kept[-1]] = step
                kept.append(self.make(activated_bytes(operator, strategy, self.mesh)))
                self.activated[kept[-2]] = kept[-1]
        self.saved.append(tuple(dict.fromkeys(kept)))
        return round(self.passing(operator)[0])

    def passing(self, operator: Operator) -> tuple[float, float, float]:
        """As ``passing_bytes``."""
        return passing_bytes(operator, dict(self.choice.strategies)[operator.node.name], self.mesh)

    def keeps(self, operator: Operator, holds: Holds) -> tuple[int | str, ...]:
        return () if not operator.result_carries else operator.keeps if holds.keeps is None else holds.keeps

    def move(self, step: Step) -> int:
        """A redistribution: each step that sends or copies makes a tensor."""
        assert step.hop is not None
        steps = step.hop.steps or ()
        written = [s for s in steps if s.forward or s.op in COPYING]
        self.saved.append(())
        self.order[step.makes] = () if written else self.memory_order(step.reads[0])
        self.place[step.makes] = self.make(self.bytes(step.makes)) if written else self.storage(step.reads[0])
        return self.moving(step, [s.op for s in written])

    def moving(self, step: Step, ops: Sequence[str]) -> int:
        """Bytes that a redistribution takes beside its operand and its result: what arrives rank by rank and is then
        joined, or is put into order before it is sent."""
        dims = [dim for s in (step.hop.steps or ()) for dim in s.dims] if step.hop else []
        joined = self.bytes(step.makes) if "all_gather" in ops or "all_gather_invariant" in ops else 0
        ordered = self.bytes(step.reads[0]) if "reduce_scatter" in ops else 0
        both = self.bytes(step.makes) if "all_to_all" in ops else 0
        return max(both, (joined or ordered) if any(dims) else 0)

    def memory_order(self, at: Located) -> tuple[int, ...]:
        return self.order.get(at, tuple(range(len(self.types[at[0]].shape))))

    def order_of(self, step: Step, operator: Operator) -> tuple[int, ...]:
        """Of the result's dims; "transpose" and "permute" rename those of their operand."""
        op, rank = operator.node.op, len(self.types[step.makes[0]].shape)
        plain = tuple(range(rank))
        if op == ATTENTION and not scores_in_memory(operator.node):
            return (*plain[:-3], rank - 2, rank - 3, rank - 1)  # fused kernels write [batch, rows, heads, features]
        if not step.reads:
            return plain
        before = self.memory_order(step.reads[0])
        if op in ("aten.transpose.int", "aten.permute.default"):
            dims = transposed(operator, rank)
            return tuple(dims.index(d) for d in before) if before else ()
        if op in ("aten.slice.Tensor", "aten.select.int", "aten.expand.default"):
            return ()
        alike = len(before) == rank and self.types[step.reads[0][0]].shape == self.types[step.makes[0]].shape
        return before if alike and operator.rule.cost == "memory" and before else plain

    def is_view(self, step: Step, operator: Operator) -> bool:
        """Whether a result is its operand's storage: views are, a reshape of what lies in order is."""
        if operator.rule.cost != "free" or not step.reads:
            return False
        if operator.node.op != "aten.reshape.default":
            return True
        order = self.memory_order(step.reads[0])
        source, target = (self.types[at[0]].shape for at in (step.reads[0], step.makes))
        return order == tuple(range(len(source))) or (bool(order) and keeps_order(order, source, target))


def transposed(operator: Operator, rank: int) -> list[int]:
    """For each dim of the result the operand's."""
    if operator.node.op == "aten.permute.default":
        dims = operator.node.args[1]
        assert isinstance(dims, tuple)
        return [int(d) % rank for d in dims]
    one, other = (int(d) % rank for d in operator.node.args[1:3])  # type: ignore[call-overload]
    dims = list(range(rank))
    dims[one], dims[other] = dims[other], dims[one]
    return list(dims)


def keeps_order(order: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether only dims that lie one after another are joined: the leading ones that are in order."""
    same = 0
    while same < min(len(source), len(target)) and source[same] == target[same]:
        same += 1
    rest = [d for d in order if d >= same]
    return rest == sorted(rest) and order.index(rest[0]) == len(order) - len(rest) if rest else True
