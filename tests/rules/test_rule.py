"""The notation, and what is read off a rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as drawn

import autoplan.rules.builtin
from autoplan.errors import NoRuleError
from autoplan.ir.graph import Node, Ref, TensorType
from autoplan.rules.registry import Rule, broadcast, broadcast_shape, factor_sizes, kept, letters, parse_terms, rule_of
from autoplan.rules.tensor.matmul import linear
from autoplan.rules.tensor.view import reshape


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype)


def test_terms() -> None:
    assert parse_terms("b (h d) 1") == (("b",), ("h", "d"), ())
    assert parse_terms("[]") == ()
    rule = Rule("b s k, n k -> b s n")
    assert rule.operands == ((("b",), ("s",), ("k",)), (("n",), ("k",)))
    assert rule.result == (("b",), ("s",), ("n",))
    assert rule.factors == ("b", "s", "k", "n")


def test_no_operands_is_not_an_operand_without_dims() -> None:
    assert Rule(" -> n").operands == ()
    assert Rule("[] -> []").operands == ((),)
    assert Rule("b v, b, [] -> []").operands == ((("b",), ("v",)), (("b",),), ())


def test_letters_of_a_scalar() -> None:
    assert letters(tensor(2, 3)) == "d0 d1"
    assert letters(0) == "[]"


def test_broadcasting_aligns_at_the_last_dim() -> None:
    assert broadcast_shape((4, 1), (2, 1, 8), ()) == (2, 4, 8)
    assert broadcast(tensor(4, 1), (2, 4, 8)) == "d1 1"
    assert broadcast(tensor(1, 1, 8), (1, 4, 8)) == "d0 1 d2"
    with pytest.raises(AssertionError):
        broadcast_shape((3,), (4,))


def test_sizes_come_from_dims_that_stand_alone() -> None:
    sizes = factor_sizes(Rule("b (h d) -> b h d"), [tensor(2, 12)], tensor(2, 4, 3))
    assert sizes == {"b": 2, "h": 4, "d": 3}
    assert factor_sizes(Rule("b (g r) -> b (g r)", sizes={"r": 3}), [tensor(2, 12)], tensor(2, 12))["g"] == 4


def test_a_notation_that_contradicts_the_shapes_is_caught() -> None:
    with pytest.raises(AssertionError, match="factor b is 2 and 3"):
        factor_sizes(Rule("b, b -> b"), [tensor(2), tensor(3)], tensor(2))
    with pytest.raises(AssertionError, match="is not 13"):
        factor_sizes(Rule("(h d) -> h d"), [tensor(13)], tensor(4, 3))


def test_an_operator_without_a_rule_is_named_with_its_module() -> None:
    node = Node("y", "mylib.fancy.default", (Ref("x"),), (), tensor(2), module="layers.3.act")
    with pytest.raises(NoRuleError) as caught:
        rule_of(node, {"x": tensor(2)})
    text = str(caught.value)
    assert "mylib.fancy.default" in text
    assert "layers.3.act" in text
    assert "@autoplan.rule('mylib.fancy.default')" in text


def test_operands_that_a_backward_keeps() -> None:
    product = linear(tensor(4, 8), tensor(12, 8))
    assert kept(product, (True, True)) == (0, 1)
    assert kept(product, (True, False)) == (1,)
    assert kept(product, (False, False)) == ()
    assert kept(Rule("n -> n", saved=("out",)), (True,)) == ("out",)


def test_importing_the_rules_registers_them() -> None:
    assert autoplan.rules.tensor.matmul.linear is linear


@given(drawn.lists(drawn.integers(1, 4), min_size=1, max_size=5), drawn.data())
def test_reshape_refines_any_two_shapes(sizes: list[int], data: drawn.DataObject) -> None:
    """Both sides' factors multiply up to their dims, and every factor that may split is on both sides."""

    def grouped() -> tuple[int, ...]:
        order = data.draw(drawn.permutations(sizes))
        cuts = sorted(data.draw(drawn.sets(drawn.integers(1, len(order) - 1)))) if len(order) > 1 else []
        return tuple(math.prod(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True))

    before, after = grouped(), grouped()
    rule = reshape(tensor(*before), after)
    assert factor_sizes(rule, [tensor(*before)], tensor(*after)) == dict(rule.sizes)
    left = {f for term in rule.operands[0] for f in term}
    right = {f for term in rule.result for f in term}
    assert left - rule.whole_factors == right - rule.whole_factors


def test_reshape_by_common_refinement() -> None:
    assert reshape(tensor(2, 6, 8), (2, 6, 4, 2)).spec == "f0 f1 (f2 f3) -> f0 f1 f2 f3"
    assert reshape(tensor(4, 1, 6), (24,)).spec == "f0 1 f1 -> (f0 f1)"
    mixed = reshape(tensor(6, 4), (4, 6))
    assert mixed.operands[0][0][0] == mixed.result[0][0] == "f0"
    assert mixed.sizes["f0"] == 2
