"""What a user rules out: filters on the strategies of single operators.

A target names a node ("q_proj"), a module ("model.layers.0.mlp", with all that it runs; a number or ``*`` in the path
stands for every repeat, since repeats share one block), or an operator ("aten.linear.default").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoplan.errors import ParallelismError
from autoplan.graph import Model, Node
from autoplan.layout import State
from autoplan.mesh import TENSOR
from autoplan.rule import WHOLE, registered
from autoplan.strategies import Strategy

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
        for text in self.states:
            try:
                State.parse(text)
            except ValueError as error:
                raise ParallelismError(f"state {text!r}", str(error), "write e.g. 'S(0)'") from None

    def permits(self, strategy: Strategy) -> bool:
        meant = TENSOR if self.axis == TENSOR[0] else (self.axis,)
        axes = [name for name, _ in strategy.axes if name in meant]
        chosen = [strategy.on(axis) for axis in axes]
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
        offered = sorted({str(s.on(about[0].axis).output) for s in found})
        raise ParallelismError(
            f"constraints on {about[0].target!r}",
            f"they leave {node.name} ({node.op}) no way to run",
            f"the states it can give on axis {about[0].axis} are {', '.join(offered)}",
        )
    return left


def check_targets(constraints: Iterable[Constraint], model: Model) -> None:
    """ParallelismError where a constraint speaks of nothing in the model."""
    nodes = [node for block in model.blocks for node in block.nodes]
    for constraint in constraints:
        if not any(matches(constraint, node) for node in nodes):
            modules = sorted({node.module for node in nodes if node.module})[:6]
            raise ParallelismError(
                f"constraint on {constraint.target!r}",
                "the model has no operator, module or node of that name",
                f"name one of its modules, such as {', '.join(modules) or 'an operator'}",
            )
