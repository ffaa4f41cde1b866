"""The batch over an axis: microbatches (``mb``) and data parallelism (``dp``).

Both split the rows of the batch, so on them nothing is searched: the batch's tensors come as S(0), parameters and
buffers as R, and each operator takes the strategy that fits what enters it, without any redistribution. Where none
fits, a value that came out whole only because nothing had asked otherwise (a mask of the batch's size, a class token
expanded over it) is split from where it is made, and the walk begins again. The loss has to come out partial.

An operator that can't follow (batch norm on ``mb``: its body communicates, and microbatches can't) leaves the axis at
size 1, and the reason is kept for the report. Where each microbatch has its own statistics, what it sums up over its
rows is whole in it, and so is its loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoplan.ir.graph import Block, Model, Node, Segment, TensorType, batch_rows
from autoplan.ir.layout import P, R, S, State
from autoplan.rules.registry import AxisStrategy, rule_of
from autoplan.rules.strategies import apart_strategies, axis_strategies

Key = tuple[int, str]  # (index of the block, -1 for the constants; name)
CONSTANTS = -1
OWN = "; with Training(statistics='microbatch') each microbatch has its own"
MOVE = "autoplan.batch_move"  # takes a value from one state to another: on the batch's axes it is there for its body


@dataclass(frozen=True)
class BatchSplit:
    """What runs on one batch axis.

    strategies  of every node, by (block, -1 for the constants) and name
    states      of every value, likewise; batch inputs and buffers stand among the constants
    batch       of each batch input
    reason      why the axis must have size 1; "" where it may have any
    """

    strategies: Mapping[Key, AxisStrategy]
    states: Mapping[Key, State]
    batch: tuple[State, ...]
    reason: str = ""


@dataclass(frozen=True)
class BatchEnds:
    """Where a walk ended, and why.

    scope   the block, or the constants
    node    the operator that has no strategy for what it meets; None where the block's result is the matter
    values  its operands, or the result
    met     their states
    usable  the strategies that the operator has; of a result one, with the state that is wanted of it
    """

    scope: int
    node: Node | None
    values: tuple[str, ...]
    met: tuple[State, ...]
    usable: tuple[AxisStrategy, ...]


def result_ends(key: Key, met: State, wanted: State) -> BatchEnds:
    """A value of a block, or of the constants, that is wanted in another state."""
    return BatchEnds(key[0], None, (key[1],), (met,), (AxisStrategy((wanted,), wanted),))


class Unsplittable(Exception):
    """The batch can't be split over the axis.

    The message says where it stops; ``at`` too, where it is an operator.
    """

    def __init__(self, text: str, at: BatchEnds | None = None) -> None:
        super().__init__(text)
        self.at = at


class BatchDemand(Exception):
    """Values that came out whole are wanted split; the walk starts again with these states forced."""

    def __init__(self, wanted: Mapping[Key, State]) -> None:
        super().__init__(str(wanted))
        self.wanted = dict(wanted)


def split_batch(model: Model, *, virtual: bool, loss: bool = True, apart: bool = False) -> BatchSplit:
    """Splits the batch over one axis, whatever its size.

    virtual  the axis is that of the microbatches, on which nothing communicates
    loss     the model's result is a loss, which has to come out as P
    apart    each microbatch has its own statistics
    """
    try:
        return walked(model, virtual, loss, apart)
    except Unsplittable as stop:
        return whole_batch(model, f"{stop}{OWN if virtual and not apart and runs_apart(model, loss) else ''}")


def runs_apart(model: Model, loss: bool) -> bool:
    """Whether microbatches with statistics of their own can be run."""
    try:
        walked(model, virtual=True, loss=loss, apart=True)
    except Unsplittable:
        return False
    return True


def walked(model: Model, virtual: bool, loss: bool, apart: bool = False) -> BatchSplit:
    """Walks again and again, until no value is wanted otherwise than it came out."""
    forced: dict[Key, State] = {}
    ways: dict[Key, tuple[AxisStrategy, ...]] = {}
    while True:
        try:
            return _Walk(model, virtual, dict(forced), ways, apart).run(loss)
        except BatchDemand as demand:
            forced.update(demand.wanted)


def first_stop(model: Model) -> BatchEnds | None:
    """The operator that keeps a batch with a loss from being split over ranks; None where there is none."""
    try:
        walked(model, virtual=False, loss=True)
    except Unsplittable as stop:
        return stop.at
    return None


def whole_batch(model: Model, reason: str) -> BatchSplit:
    """The axis of size 1: every rank and microbatch has the whole batch."""
    scopes: list[tuple[int, tuple[Node, ...]]] = [(CONSTANTS, model.constants)]
    scopes += [(index, block.nodes) for index, block in enumerate(model.blocks)]
    strategies = {
        (scope, n.name): AxisStrategy(tuple(R for _ in n.operands), R) for scope, nodes in scopes for n in nodes
    }
    states = {key: R for key in strategies}
    states |= {(CONSTANTS, v.name): R for v in model.batch} | {(CONSTANTS, v.name): R for v in model.buffers}
    for index, block in enumerate(model.blocks):
        states |= {(index, name): R for name in block.types()}
    return BatchSplit(strategies, states, tuple(R for _ in model.batch), reason)


@dataclass
class _Walk:
    """One pass over the constants and the chain, with the states of some values forced.

    ways  strategies of the operators that some pass has met
    """

    model: Model
    virtual: bool
    forced: Mapping[Key, State]
    ways: dict[Key, tuple[AxisStrategy, ...]]
    apart: bool = False
    states: dict[Key, State] = field(default_factory=dict)
    strategies: dict[Key, AxisStrategy] = field(default_factory=dict)
    origin: dict[Key, Key] = field(default_factory=dict)

    def run(self, loss: bool) -> BatchSplit:
        rows = batch_rows(self.model)
        batch = tuple(S(0) if t.type.shape[:1] == (rows,) else R for t in self.model.batch)
        for tensor, state in zip(self.model.batch, batch, strict=True):
            self.states[CONSTANTS, tensor.name] = state
        for buffer in self.model.buffers:
            self.states[CONSTANTS, buffer.name] = R
        self.constants()
        given: list[Key] = []
        for segment in self.model.segments:
            given = self.segment(segment, given)
        last = self.model.blocks[self.model.segments[-1].block]
        wanted = R if self.apart else P
        if loss and (state := self.states[given[0]]) != wanted:
            text = f"the loss ({last.outputs[0]} of {last.name}) is not a sum over the rows of the batch but comes out "
            raise Unsplittable(f"{text}as {state}", result_ends(given[0], state, wanted))
        return BatchSplit(dict(self.strategies), dict(self.states), batch)

    def constants(self) -> None:
        types = {v.name: v.type for v in self.model.batch} | {v.name: v.type for v in self.model.buffers}
        types |= {n.name: n.type for n in self.model.constants}
        for node in self.model.constants:
            self.node(CONSTANTS, node, types, frozenset())
            if node.name in self.model.counts:  # counted beforehand, over the whole batch
                if self.states[CONSTANTS, node.name] != (R if self.apart else P):
                    raise Unsplittable(f"{node.op} is of no rows of the batch, so that every rank would count them all")
                self.states[CONSTANTS, node.name] = R

    def segment(self, segment: Segment, given: Sequence[Key]) -> list[Key]:
        """Walks one segment, or checks that it is entered as the first one of its block was."""
        index, block = segment.block, self.model.blocks[segment.block]
        entering = {(index, v.name): key for v, key in zip(block.inputs, given, strict=True)}
        for value, name in zip(block.externals, segment.externals, strict=True):
            entering[index, value.name] = (CONSTANTS, name)
        seen = any(key in self.states for key in entering) or any((index, n.name) in self.states for n in block.nodes)
        if seen:
            self.same_entry(entering, block)
        else:
            self.enter(index, block, entering)
        return [(index, name) for name in block.outputs]

    def enter(self, index: int, block: Block, entering: Mapping[Key, Key]) -> None:
        for key, source in entering.items():
            self.states[key] = self.states[source]
            self.origin[key] = source
        for value in (*block.parameters, *block.buffers):
            self.states[index, value.name] = R
        types, carries = block.types(), block.carries_gradient()
        for node in block.nodes:
            self.node(index, node, types, carries)

    def same_entry(self, entering: Mapping[Key, Key], block: Block) -> None:
        for key, source in entering.items():
            here, there = self.states[key], self.states[source]
            if here == there:
                continue
            if there == R and self.splittable(self.source(source), here):
                raise BatchDemand({self.source(source): here})
            text = f"{key[1]} enters {block.name} once as {here} and once as {there}"
            raise Unsplittable(text, result_ends(source, there, here))

    def source(self, key: Key) -> Key:
        """Where the value that enters a block under this key was made."""
        while key in self.origin:
            key = self.origin[key]
        return key

    def node(self, scope: int, node: Node, types: Mapping[str, TensorType], carries: frozenset[str]) -> None:
        """Takes the strategy that fits the states of the operands."""
        key = (scope, node.name)
        if key not in self.ways:
            kinds = [types[name] for name in node.operands]
            found = axis_strategies(rule_of(node, types), kinds, [name in carries for name in node.operands])
            self.ways[key] = apart_strategies(found) if self.apart else found
        wanted = [s for s in self.ways[key] if self.forced.get(key, s.output) == s.output]
        usable = [s for s in wanted if not (self.virtual and s.communicates) or self.apart]
        if self.apart and node.op == MOVE:  # what gathers the batch's rows would miss those of other microbatches
            usable = [s for s in usable if s.output.kind != "S"]
        keys = [(scope, name) for name in node.operands]
        have = tuple(self.states[key] for key in keys)
        fitting = [s for s in usable if s.inputs == have]
        if not wanted:
            text = f"{node.op} can't give its rows alone to each of the ranks"
            raise Unsplittable(text, result_ends(key, R, self.forced[key]))
        if not fitting:
            raise self.mismatch(scope, node, usable, keys, have)
        there_for_it = node.op == MOVE
        self.strategies[key] = min(fitting, key=lambda s: bool(s.body) != there_for_it)
        self.states[key] = self.strategies[key].output

    def mismatch(
        self, scope: int, node: Node, usable: Sequence[AxisStrategy], keys: Sequence[Key], have: tuple[State, ...]
    ) -> Exception:
        """Either a demand to split operands that came out whole, the fewest that do, or the end."""
        demands = []
        for strategy in usable:
            wrong = [(key, want) for key, want, s in zip(keys, strategy.inputs, have, strict=True) if want != s]
            sources = {self.source(key): want for key, want in wrong}
            splittable = all(self.splittable(key, want) for key, want in sources.items())
            if wrong and splittable and all(self.states[key] == R for key, _ in wrong):
                demands.append(sources)
        if demands:
            return BatchDemand(min(demands, key=len))
        met = ", ".join(f"{key[1]} as {state}" for key, state in zip(keys, have, strict=True))
        where = f" of {node.module}" if node.module else ""
        kind = "microbatches" if self.virtual else "ranks"
        text = f"{node.op}{where} can't run with its rows split over {kind}: it meets {met}"
        return Unsplittable(text, BatchEnds(scope, node, node.operands, have, tuple(usable)))

    def splittable(self, key: Key, want: State) -> bool:
        """Whether a value that came out whole may still be asked to come out split: it is computed, not given."""
        scope, name = key
        nodes = self.model.constants if scope == CONSTANTS else self.model.blocks[scope].nodes
        computed = any(node.name == name for node in nodes)
        return computed and key not in self.forced and want.kind == "S" and name not in self.model.counts
