"""What a mixture holds beside its operands and its result, by how its experts are split."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cost import Operator, operators_of
from autoplan.cost.operators.kept_beside import (
    activated_again,
    activated_bytes,
    mixture_bytes,
    other_chunks,
    passing_bytes,
    rebuilt_bytes,
    standing_of,
)
from autoplan.cost.operators.operator_seconds import ROUTED
from autoplan.ir.graph import Block, Node, Ref, TensorType, Typed
from autoplan.ir.layout import P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy, axis_strategies
from cost_models.hardware import load_device
from tests.support.hand_made import f32

TOKENS, CHOICES, EXPERTS, HIDDEN, INNER = 1024, 2, 8, 64, 96


@pytest.fixture(scope="module")
def mixture() -> Operator:
    gate, up, down = (Typed(name, f32(EXPERTS, *shape)) for name, shape in (
        ("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER)),
    ))  # fmt: skip
    index = Typed("index", TensorType((TOKENS, CHOICES), "int64"))
    inputs = (Typed("hidden", f32(TOKENS, HIDDEN)), index, Typed("scores", f32(TOKENS, CHOICES)))
    names = Ref("hidden"), Ref("index"), Ref("scores"), (Ref("gate"), Ref("up")), Ref("down")
    node = Node("mixture", "autoplan.experts", (*names, (), "mul(silu(gate), up)", False), (), f32(TOKENS, HIDDEN))
    block = Block("Layer", inputs, (), (gate, up, down), (), (node,), ("mixture",))
    return operators_of(block, fuses=False)["mixture"]


def split(mixture: Operator, output: State, experts: State, *, routed: bool = False) -> Strategy:
    """Over the axis "ep": the way of which the result and the last weights are in these states."""
    ways = axis_strategies(mixture.rule, mixture.operands, mixture.carries)
    found = (s for s in ways if s.output == output and s.inputs[-1] == experts and (s.body == ROUTED) == routed)
    chosen: AxisStrategy = next(found)
    return Strategy((("ep", chosen),))


def test_rows_of_experts_elsewhere_stand_on_every_rank_that_has_all_tokens(mixture: Operator) -> None:
    """It puts all choices in the order of its experts, and multiplies the rows of its own alone: memory is that of all
    experts, however few it has."""
    whole = split(mixture, R, R)
    for ranks in (2, 4, 8):
        mesh, few = Mesh.of(ep=ranks), split(mixture, P, S(0))
        assert passing_bytes(mixture, few, mesh) == pytest.approx(passing_bytes(mixture, whole, mesh))
        assert mixture_bytes(mixture, few, mesh) == pytest.approx(mixture_bytes(mixture, whole, mesh))


def test_tokens_that_travel_leave_each_rank_with_its_own(mixture: Operator) -> None:
    """Of what passes, and of what is kept of the activation."""
    mesh, ways = Mesh.of(ep=4), (split(mixture, S(0), S(0), routed=True), split(mixture, R, R))
    there, whole = (passing_bytes(mixture, way, mesh)[0] + activated_bytes(mixture, way, mesh) for way in ways)
    assert there < whole / 2


def test_of_the_activation_its_calls_are_kept_or_stand_while_they_are_computed_again(mixture: Operator) -> None:
    """Two of the inner width, which a backward that has them doesn't make."""
    rows, mesh, device = TOKENS * CHOICES, Mesh.of(ep=4), load_device("cpu")[0]
    whole, there = split(mixture, R, R), split(mixture, S(0), S(0), routed=True)
    assert activated_bytes(mixture, whole, mesh) == 2 * rows * INNER * 4
    seconds, stands = activated_again(mixture, whole, mesh, device)
    assert seconds > 0 and stands == 2 * rows * INNER * 4
    cut_s, of_one = activated_again(replace(mixture, chunks=4), there, mesh, device)
    one_s, all_stand = activated_again(mixture, there, mesh, device)
    assert of_one == all_stand / 4 and cut_s == pytest.approx(one_s)
    assert activated_bytes(replace(mixture, result_carries=False), whole, mesh) == 0


def test_what_is_computed_again_is_one_chunks_with_a_gradient_of_the_inner_width(mixture: Operator) -> None:
    """Not what the experts gave, which is of the tokens' width: here the narrower one."""
    whole, mesh = split(mixture, R, R), Mesh.of(ep=4)
    rows = TOKENS * CHOICES
    assert rebuilt_bytes(mixture, whole, Mesh.of(ep=1)) == rows * (3 * INNER * 4 + 4 + 2 * 8)
    there = split(mixture, S(0), S(0), routed=True)
    one, cut = rebuilt_bytes(mixture, there, mesh), rebuilt_bytes(replace(mixture, chunks=4), there, mesh)
    assert 0.25 * one < cut < 0.6 * one  # the next chunk's tokens come meanwhile


def test_of_two_chunks_either_one_comes_or_one_goes(mixture: Operator) -> None:
    mesh, there = Mesh.of(ep=4), split(mixture, S(0), S(0), routed=True)
    grouped, travel = standing_of(replace(mixture, chunks=2), there, mesh)
    assert travel is not None
    result, weights = travel.result_bytes / 2, travel.gradient_bytes / 2 + 4 * grouped.weight_elements
    assert other_chunks(grouped, travel, 4, again=False) == max(result, weights)
    three = replace(travel, chunks=3)
    assert other_chunks(grouped, three, 4, again=False) == pytest.approx(sum((
        travel.result_bytes / 3, travel.gradient_bytes / 3, 4 * grouped.weight_elements,
    )))  # fmt: skip
