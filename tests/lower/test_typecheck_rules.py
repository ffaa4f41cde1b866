"""The typechecker on every registered rule: what the rule gives passes, an operand in another state doesn't."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as drawn

from autoplan.errors import LayoutError
from autoplan.ir.layout import I, P, R, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Compute, TypedValue
from autoplan.lower.typecheck.body import Scope, check_statement
from autoplan.rules.strategies import Strategy, local_arguments
from tests.support.layouts import in_state
from tests.support.rule_samples import samples
from tests.support.sampling import examples
from tests.support.simulate import Case

CASES = [Case.of(sample) for sample in samples()]


def lowered_alone(case: Case, strategy: Strategy, mesh: Mesh) -> tuple[Scope, Compute]:
    """One operator as lowering writes it, in a block whose inputs lie as it takes them."""
    scope = Scope("Alone", mesh)
    for i, (kind, live) in enumerate(zip(case.types, case.carries, strict=True)):
        layout = strategy.input(i, len(kind.shape), mesh)
        scope.enter(TypedValue(f"t{i}", kind, layout, layout.local_shape(kind.shape, mesh)), live)
    layout = strategy.output(len(case.node.type.shape), mesh)
    value = TypedValue("y", case.node.type, layout, layout.local_shape(case.node.type.shape, mesh))
    args, kwargs = local_arguments(case.rule, case.node, value.local_shape)
    divisor = math.prod(mesh.size(axis) for axis, s in strategy.axes if s.scaled)
    return scope, Compute(value, case.node.op, args, kwargs, strategy.axes, "", divisor)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.sample))
def test_every_strategy_passes_and_with_an_operand_in_another_state_does_not(case):
    mesh = Mesh.of(tp=2)
    for strategy in case.strategies(mesh):
        check_statement(*lowered_alone(case, strategy, mesh))
        for i, state in enumerate(strategy.on("tp").inputs):
            if case.carries[i] and state in (R, I, P):
                refuse(case, strategy, mesh, f"t{i}", {R: I, I: P, P: R}[state])


@examples(150)
@given(drawn.data())
def test_products_of_strategies_on_two_axes_pass(data):
    mesh = Mesh.of(dp=2, tp=2)
    case = data.draw(drawn.sampled_from(CASES), label="case")
    strategy = data.draw(drawn.sampled_from(case.strategies(mesh)), label="strategy")
    check_statement(*lowered_alone(case, strategy, mesh))


def refuse(case: Case, strategy: Strategy, mesh: Mesh, operand: str, state: State) -> None:
    """The operator with one operand in another state on tp is refused, naming both."""
    scope, compute = lowered_alone(case, strategy, mesh)
    value = scope.values[operand]
    scope.values[operand] = replace(value, layout=in_state(value.layout, "tp", state, mesh))
    with pytest.raises(LayoutError, match=f"Alone: y = .*: its operand '{operand}' comes as {state} instead of"):
        check_statement(scope, compute)
