"""The statements of one block, one after another: operators run as their rules allow, redistributions lead where they
say. A value is *live* if it may carry a gradient; for one that isn't, R and I are one."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import autoplan.rules.builtin  # noqa: F401  importing registers the rules
from autoplan.errors import LayoutError
from autoplan.ir.graph import Argument, Node, TensorType
from autoplan.ir.layout import I, Layout, R
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Compute, Move, TypedValue
from autoplan.redistribution import follow, neutral, simplify, sized, transition
from autoplan.rules.registry import AxisStrategy, Rule, registered, rule_of
from autoplan.rules.strategies import (
    SYNC_BATCH_NORM,
    alike,
    apart_strategies,
    axis_strategies,
    fits,
    local_arguments,
    replicated,
)

PLAN_AGAIN = "plan again, or undo the edit of the plan"


@dataclass
class Scope:
    """The values of one block that exist so far.

    where   the block's class, or "constants", for messages
    mesh    without the pipeline's axis
    apart   each microbatch has its own statistics
    live    names of those that may carry a gradient
    made    the operator that each is the result of, redistributed or not, for messages
    """

    where: str
    mesh: Mesh
    apart: bool = False
    values: dict[str, TypedValue] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    made: dict[str, str] = field(default_factory=dict)

    def enter(self, value: TypedValue, live: bool) -> None:
        """Takes a new value in, once its layout has been found to say its local shape."""
        label = f"{self.where}: {value.name}"
        check_value(label, value, self.mesh)
        if value.name in self.values:
            raise LayoutError(label, "the name is given twice", PLAN_AGAIN)
        self.values[value.name] = value
        if live and value.type.floating:
            self.live.add(value.name)

    def read(self, name: str, reader: str) -> TypedValue:
        if name not in self.values:
            raise LayoutError(reader, f"it reads {name!r}, which doesn't exist there", PLAN_AGAIN)
        return self.values[name]

    def same(self, here: Layout, there: Layout, live: bool) -> bool:
        """Whether two layouts are one on this mesh; axes of size 1 are in every state."""
        return simplify(here, self.mesh, live) == simplify(there, self.mesh, live)


def check_value(label: str, value: TypedValue, mesh: Mesh) -> None:
    """The layout speaks of every axis and of every dim, and gives the local shape."""
    layout = value.layout
    missing = [axis.name for axis in sized(mesh) if axis.name not in layout.axes]
    if missing or layout.rank != len(value.type.shape):
        cause = f"its layout, {layout}, with {layout.rank} dims, doesn't fit a tensor {value.type.shape} on mesh {mesh}"
        raise LayoutError(label, cause, PLAN_AGAIN)
    try:
        local = layout.local_shape(value.type.shape, mesh)
    except ValueError as error:
        raise LayoutError(label, str(error), "split another dim, or over fewer ranks") from None
    if local != value.local_shape:
        raise LayoutError(
            label, f"it is said to be {value.local_shape} on a rank, {layout} makes it {local}", PLAN_AGAIN
        )


def check_statement(scope: Scope, statement: Compute | Move) -> None:
    if isinstance(statement, Move):
        check_move(scope, statement)
    else:
        _Operator(scope, statement).check()


def check_move(scope: Scope, move: Move) -> None:
    """The collectives lead, one after another, from the source's layout to the one that is said, at the sizes said."""
    value, made = move.value, scope.made.get(move.source, "")
    label = f"{scope.where}: {value.name} = {move.source} redistributed{f', the result of {made}' if made else ''}"
    check_value(label, value, scope.mesh)
    source = scope.read(move.source, label)
    live = move.source in scope.live
    if source.type != value.type:
        raise LayoutError(label, f"it changes a {source.type} into a {value.type}", PLAN_AGAIN)
    here, goal = (simplify(layout, scope.mesh, live, value.type.shape) for layout in (source.layout, value.layout))
    for step in move.collectives:
        if any(axis in scope.mesh and scope.mesh.axis(axis).virtual for axis in step.axes):
            raise LayoutError(label, f"{step.op} over {step.axis}: microbatches can exchange nothing", PLAN_AGAIN)
        try:
            here, written = follow(here, step, value.type, scope.mesh, carries_gradient=live)
        except ValueError as error:
            raise LayoutError(label, str(error), PLAN_AGAIN) from None
        if written != step:
            raise LayoutError(label, f"{step} is written where {written} would run", PLAN_AGAIN)
    if here != goal:
        cause = f"it is said to be {goal}, but its steps lead from {source.layout} to {here}"
        raise LayoutError(label, f"{cause}: {differing(here, goal)}", remedy_for(here, goal, live))
    scope.enter(value, live)
    scope.made[value.name] = made


def differing(here: Layout, there: Layout) -> str:
    """On which axis two layouts differ, or in which dim the axes' order does."""
    for axis in sorted(here.axes):
        if here.state(axis) != there.state(axis):
            return f"{here.state(axis)} instead of {there.state(axis)} on axis {axis}"
    dim = next((d for d, pair in enumerate(zip(here.dims, there.dims, strict=True)) if pair[0] != pair[1]), None)
    return "no axis differs" if dim is None else f"dim {dim} split in the order {here.dims[dim]}, not {there.dims[dim]}"


def remedy_for(here: Layout, there: Layout, live: bool) -> str:
    """The step that is missing on the first axis that differs."""
    for axis in sorted(here.axes):
        op = transition(here.state(axis), there.state(axis), live)
        if op:
            return f"insert {op} over axis {axis}"
    return PLAN_AGAIN


class _Operator:
    """One operator on local tensors."""

    def __init__(self, scope: Scope, compute: Compute) -> None:
        self.scope, self.compute, self.mesh = scope, compute, scope.mesh
        where = f" of module {compute.module}" if compute.module else ""
        self.made = f"{compute.op}{where}"
        self.label = f"{scope.where}: {compute.value.name} = {self.made}"
        self.node = compute.node
        self.operands = [scope.read(name, self.label) for name in self.node.operands]
        self.carries = [name in scope.live for name in self.node.operands]
        self.live = any(self.carries) and compute.value.type.floating

    def fault(self, cause: str, remedy: str = PLAN_AGAIN) -> LayoutError:
        return LayoutError(self.label, cause, remedy)

    def check(self) -> None:
        strategies = dict(self.compute.strategies)
        for axis in sized(self.mesh):
            if axis.name not in strategies:
                raise self.fault(f"nothing says how it runs on axis {axis.name}")
            if len(strategies[axis.name].inputs) != len(self.operands):
                raise self.fault(f"its strategy on axis {axis.name} is for another number of operands")
            apart = self.scope.apart and strategies[axis.name].body == SYNC_BATCH_NORM
            if axis.virtual and strategies[axis.name].body and not apart:
                raise self.fault(f"{strategies[axis.name].body} can't run over microbatches, which exchange nothing")
        self.chosen = [(axis.name, strategies[axis.name]) for axis in sized(self.mesh)]
        for position in range(len(self.operands)):
            self.check_operand(position)
        self.check_rule()
        self.check_result()

    def check_operand(self, position: int) -> None:
        """The operand lies as the strategies take it."""
        operand, live = self.operands[position], self.carries[position]
        wanted = {axis: strategy.inputs[position] for axis, strategy in self.chosen}
        layout = Layout.of(operand.layout.rank, wanted, self.mesh)
        here, there = (simplify(x, self.mesh, live) for x in (operand.layout, layout))
        if here == there:
            return
        cause = f"its operand {operand.name!r} comes as {differing(here, there)}"
        if any({here.state(axis), there.state(axis)} == {I, R} for axis in here.axes):
            cause += "; the gradient of an I is whole, of an R a summand, and one taken for the other is wrong"
        raise self.fault(cause, f"{remedy_for(here, there, live)} before it")

    def check_rule(self) -> None:
        """Each axis' strategy is one that the operator's rule gives, and together their sizes divide."""
        kinds = [operand.type for operand in self.operands]
        rule = self.rule(kinds) if self.compute.op in registered() else None
        given = replicated(self.carries) if rule is None else axis_strategies(rule, kinds, self.carries)
        named = []
        for axis, strategy in self.chosen:
            apart = self.scope.apart and self.mesh.axis(axis).virtual
            ways = apart_strategies(given) if apart else given
            found = alike(strategy, ways) or alike(self.normal(strategy), list(map(self.normal, ways)))
            if found is None:
                raise self.foreign(axis, strategy, ways)
            named.append((axis, replace(strategy, factor=found.factor)))
        if rule is not None and not fits(rule, named, kinds, self.compute.value.type, self.mesh):
            raise self.fault("its strategies on the several axes don't go together: a size that doesn't divide")

    def foreign(self, axis: str, strategy: AxisStrategy, given: Iterable[AxisStrategy]) -> LayoutError:
        """A strategy that the rule doesn't give; where an I meets another state, that is said first."""
        live = [state for state, carries in zip(strategy.inputs, self.carries, strict=True) if carries]
        cause = f"on axis {axis} it runs as {written(strategy)}, which its rule doesn't give"
        if I in live and len(set(live)) > 1:
            names = [n for n, state in zip(self.node.operands, strategy.inputs, strict=True) if state == I]
            cause += f": {', '.join(names)} is an I and may not meet an R, S or P in one operator"
            return self.fault(cause, f"insert to_replicate({', '.join(names)}) over axis {axis} before it")
        return self.fault(cause, f"its rule gives {'; '.join(dict.fromkeys(written(s) for s in given))}")

    def normal(self, strategy: AxisStrategy) -> AxisStrategy:
        """The strategy with R for I wherever no gradient is carried."""
        inputs = tuple(neutral(s, c) for s, c in zip(strategy.inputs, self.carries, strict=True))
        return replace(strategy, inputs=inputs, output=neutral(strategy.output, self.live))

    def rule(self, kinds: Sequence[TensorType]) -> Rule:
        """The operator's rule on whole tensors, found from the arguments, whose sizes are local."""
        for node in self.whole_nodes():
            try:
                rule = rule_of(node, {o.name: o.type for o in self.operands})
                fits(rule, (), kinds, node.type, self.mesh)  # asserts that the notation fits the shapes
                local = local_arguments(rule, node, self.compute.value.local_shape)
            except (ArithmeticError, AssertionError, LookupError, StopIteration, TypeError, ValueError):
                continue  # these arguments don't go with the whole tensors
            if local == (self.compute.args, self.compute.kwargs):
                return rule
        raise self.fault("its arguments don't fit the shapes of its operands and its result")

    def whole_nodes(self) -> Iterator[Node]:
        """The operator with whole sizes for local ones: as its rule on local tensors says which arguments they are,
        or, where locally that argument is trivial (one group of several), with one argument multiplied."""
        node = self.node
        try:
            rule = rule_of(node, {o.name: TensorType(o.local_shape, o.type.dtype) for o in self.operands})
            args, kwargs = local_arguments(rule, node, node.type.shape)
            yield replace(node, args=args, kwargs=kwargs)
        except (ArithmeticError, AssertionError, LookupError, StopIteration, TypeError, ValueError):
            pass
        for factor in dict.fromkeys(s.factor for _, s in self.chosen if s.factor):
            ways = math.prod(self.mesh.size(axis) for axis, s in self.chosen if s.factor == factor)
            for position, argument in enumerate(node.args):
                if type(argument) is int:
                    yield replace(node, args=replaced(node.args, position, argument * ways))

    def check_result(self) -> None:
        """The result's layout and divisor follow from the strategies."""
        value = self.compute.value
        check_value(self.label, value, self.mesh)
        states = {axis: strategy.output for axis, strategy in self.chosen}
        follows = simplify(Layout.of(len(value.type.shape), states, self.mesh), self.mesh, self.live)
        said = simplify(value.layout, self.mesh, self.live)
        if said != follows:
            cause = f"its result is said to be {said}, but its strategy makes it {follows}"
            raise self.fault(f"{cause}: {differing(follows, said)}", f"{remedy_for(follows, said, self.live)} after it")
        divisor = math.prod(self.mesh.size(axis) for axis, strategy in self.chosen if strategy.scaled)
        if divisor != self.compute.divisor:
            raise self.fault(f"it is divided by {self.compute.divisor}, a mean over these axes by {divisor}")
        self.scope.enter(value, self.live)
        self.scope.made[value.name] = self.made


def replaced(args: tuple[Argument, ...], position: int, value: Argument) -> tuple[Argument, ...]:
    return (*args[:position], value, *args[position + 1 :])


def written(strategy: AxisStrategy) -> str:
    """``I, S(0) -> S(1)``"""
    return f"{', '.join(map(str, strategy.inputs))} -> {strategy.output}"
