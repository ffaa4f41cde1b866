"""What a user rules out: filters on the strategies of single operators.

A target names a node ("q_proj"), a module ("model.layers.0.mlp", with all that it runs; a number or ``*`` in the path
stands for every repeat, since repeats share one block), or an operator ("aten.linear.default").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoplan.arguments.keywords import nearest
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Model, Node
from autoplan.ir.layout import State
from autoplan.ir.mesh import OPERATOR_AXES, TENSOR
from autoplan.rules.registry import WHOLE, registered
from autoplan.rules.strategies import Strategy

WHOLE_STATES = ("R", "I")


@dataclass(frozen=True)
class Constraint:
    """One rule about the operators that a target names.

    target   a node's name, a module's path or an operator
    states   texts of states on the axis, as ``layout.State`` writes them; of the result, or of one operand
    allow    the state has to be among these (True), or must not be (False)
    operand  position of the operand that is meant; None for the result
    axis     the mesh axis that is meant; "tp" is every tensor axis
    """

    target: str
    states: tuple[str, ...]
    allow: bool = True
    operand: int | None = None
    axis: str = "tp"

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not self.target:
            cause = "it names nothing"
            raise ParallelismError(f"constraint on {self.target!r}", cause, "give an operator, module or node")
        if self.axis not in OPERATOR_AXES:
            cause = "an operator's layout is chosen along tensor axes alone; the others split the batch"
            raise ParallelismError(f"axis={self.axis!r}", cause, f"use one of {', '.join(OPERATOR_AXES)}")
        if self.operand is not None and (type(self.operand) is not int or self.operand < 0):
            cause = "it is a position, from 0 on"
            raise ParallelismError(f"operand={self.operand!r}", cause, "leave it out for the result")
        if not self.states:
            raise ParallelismError(f"constraint on {self.target!r}", "it names no state", "write e.g. 'S(0)'")
        for text in self.states:
            try:
                State.parse(text)
            except (ValueError, TypeError) as error:
                raise ParallelismError(f"state {text!r}", str(error), "write e.g. 'S(0)'") from None

    def permits(self, strategy: Strategy) -> bool:
        meant = TENSOR if self.axis == TENSOR[0] else (self.axis,)
        axes = [name for name, _ in strategy.axes if name in meant]
        chosen = [strategy.on(axis) for axis in axes]
        if self.operand is not None and any(self.operand >= len(c.inputs) for c in chosen):
            return True  # of a module's operators those are meant that have this operand
        states = [c.output if self.operand is None else c.inputs[self.operand] for c in chosen]
        return all((str(state) in self.states) == self.allow for state in states)


def pin(target: str, *states: str, operand: int | None = None, axis: str = "tp") -> Constraint:
    """The result (or one operand) of the target has to be in one of these states: ``pin("q_proj", "S(2)")``."""
    return Constraint(target, states, True, operand, axis)


def forbid(target: str, *states: str, operand: int | None = None, axis: str = "tp") -> Constraint:
    """The result (or one operand) of the target may not be in any of these states."""
    return Constraint(target, states, False, operand, axis)


def replicated(target: str, axis: str = "tp") -> Constraint:
    """The target is computed whole on every rank of the axis."""
    return Constraint(target, WHOLE_STATES, True, None, axis)


def accept_whole(model: Model, constraints: Iterable[Constraint]) -> Model:
    """The model with those operators marked that have no rule and that a ``replicated`` constraint names; marks that it
    had are gone."""
    wanted = [c for c in constraints if c.allow and set(c.states) == set(WHOLE_STATES) and c.operand is None]

    def marked(node: Node) -> Node:
        node = replace(node, op=node.op.removeprefix(WHOLE)) if node.op.startswith(WHOLE) else node
        unknown = node.op not in registered() and any(matches(c, node) for c in wanted)
        return replace(node, op=f"{WHOLE}{node.op}") if unknown else node

    blocks = tuple(replace(b, nodes=tuple(map(marked, b.nodes))) for b in model.blocks)
    return replace(model, blocks=blocks, constants=tuple(map(marked, model.constants)))


def matches(constraint: Constraint, node: Node) -> bool:
    """Whether a constraint speaks of a node."""
    if constraint.target in (node.name, node.op.removeprefix(WHOLE)):
        return True
    if not node.module:
        return False
    wanted, path = constraint.target.split("."), node.module.split(".")
    return len(wanted) <= len(path) and all(same_part(a, b) for a, b in zip(wanted, path, strict=False))


def same_part(wanted: str, part: str) -> bool:
    return wanted in (part, "*") or (wanted.isdigit() and part.isdigit())


def permitted(constraints: Iterable[Constraint], node: Node, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """The strategies of a node that all constraints leave; ParallelismError where they leave none."""
    about = [c for c in constraints if matches(c, node)]
    left = tuple(s for s in found if all(c.permits(s) for c in about))
    if found and not left:
        raise no_way(about, node, found)
    return left


def no_way(about: Sequence[Constraint], node: Node, found: Sequence[Strategy]) -> ParallelismError:
    """The error for a node that constraints leave no strategy: what it can do where the first of them is at fault."""
    for constraint in about:
        before, found = found, [s for s in found if constraint.permits(s)]
        if not found:
            break
    ways, at = [s.on(constraint.axis) for s in before], constraint.operand
    offered = sorted({str(way.output if at is None else way.inputs[at]) for way in ways})
    what = "it can give" if at is None else f"that operand {at} can have"
    return ParallelismError(
        f"constraints on {constraint.target!r}",
        f"they leave {node.name} ({node.op}) no way to run",
        f"the states {what} on axis {constraint.axis} are {', '.join(offered)}",
    )


def check_targets(constraints: Iterable[Constraint], model: Model) -> None:
    """ParallelismError where a constraint speaks of nothing in the model."""
    nodes = [node for block in model.blocks for node in block.nodes]
    for constraint in constraints:
        meant = [node for node in nodes if matches(constraint, node)]
        if not meant:
            modules = sorted({node.module for node in nodes if node.module})
            near = nearest(constraint.target, [*modules, *(n.name for n in nodes), *dict.fromkeys(n.op for n in nodes)])
            such = f"name one of its modules, such as {', '.join(modules[:6]) or 'an operator'}"
            raise ParallelismError(
                f"constraint on {constraint.target!r}",
                "the model has no operator, module or node of that name",
                f"did you mean {' or '.join(near)}?" if near else such,
            )
        most = max(len(node.operands) for node in meant)
        if constraint.operand is not None and constraint.operand >= most:
            raise ParallelismError(
                f"constraint on operand {constraint.operand} of {constraint.target!r}",
                f"no operator there has more than {most}",
                f"give a position below {most}, or leave it out for the result",
            )
