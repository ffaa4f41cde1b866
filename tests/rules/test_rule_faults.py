"""What is said of a user's rule that is none: value, cause, remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import autoplan
from autoplan.errors import RuleError
from autoplan.ir.graph import Node, Ref, TensorType
from autoplan.ir.layout import R, S
from autoplan.rules.faults import check_users_rule
from autoplan.rules.registry import AxisStrategy, Rule, rule_of
from tests.support.custom_operators import rules_as_before

NODE = Node("y", "tried.scale.default", (Ref("x"), Ref("w"), 3.0), (), TensorType((4, 8), "float32"))
TYPES = {"x": TensorType((4, 8), "float32"), "w": TensorType((8,), "float32")}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with rules_as_before():
        yield


def rule_that(function: Callable[..., object]) -> Rule:
    autoplan.rule("tried::scale")(function)  # type: ignore[type-var]
    check_users_rule(NODE, TYPES)
    return rule_of(NODE, TYPES)


def test_a_right_rule_is_taken() -> None:
    assert rule_that(lambda x, w, k=2.0: Rule("a b, b -> a b")).factors == ("a", "b")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule("a b, b"), "it has no arrow"),
        (Rule("a (b, b -> a b"), "parentheses don't match in 'a (b'"),
        (Rule("a b -> a b"), "it names 1 operand, and 2 tensors are read; the operator is [4, 8], [8] -> [4, 8]"),
        (Rule("a b c, b -> a b"), "operand 0 has 3 dims there"),
        (Rule("a b, b -> a"), "the result has 1 dim there"),
        (Rule("a b, b -> b a"), "factor b is 8 and 4"),
        (Rule("a (c d), (c d) -> a (c d)"), "the size of factor 'c' is nowhere"),
        (Rule("a b, b -> a b", whole="n"), "whole names 'n', which it lacks"),
        (Rule("a b, b -> a b", linear=((2,),)), "linear=((2,),) names operands that aren't there"),
        (Rule("a b, b -> a b", saved=(0, "result")), "saved=(0, 'result') names operands that aren't there"),
        (Rule("a b, b -> a b", reduce="min"), "reduce='min' is none"),
        (Rule("a b, b -> a b", cost="cheap"), "cost='cheap' is none"),
        (Rule("a b, b -> a b", extra=(AxisStrategy((S(0),), S(0)),)), "S(0) -> S(0) of extra has other operands"),
        (Rule("a b, b -> a b", extra=(AxisStrategy((S(2), R), R),)), "S(2), R -> R of extra has other operands"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_wrong_with_the_notation(rule: Rule, says: str) -> None:
    with pytest.raises(RuleError) as caught:
        rule_that(lambda x, w, k=2.0: rule)
    assert says in str(caught.value)
    assert "the rule of tried.scale.default" in str(caught.value)


def test_a_rule_takes_the_operators_arguments() -> None:
    with pytest.raises(RuleError, match=r"is called with \(a tensor, a tensor, 3.0\): too many positional arguments"):
        rule_that(lambda x, w: Rule("a b, b -> a b"))


def test_a_rule_returns_a_rule() -> None:
    with pytest.raises(RuleError, match=r"it returns a str\. return an autoplan\.Rule"):
        rule_that(lambda x, w, k: "a b, b -> a b")
