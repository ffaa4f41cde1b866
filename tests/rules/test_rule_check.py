"""``check_rule``: right rules pass, each kind of wrong one is told of; suggested rules are found by trying."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.library import CustomOpDef

import autoplan
from autoplan.errors import NoRuleError, RuleError
from autoplan.ir.graph import Node, Ref, TensorType
from autoplan.ir.layout import R, S
from autoplan.rules.check.suggest import suggested_rule
from autoplan.rules.registry import AxisStrategy, Rule
from tests.support import custom_operators
from tests.support.custom_operators import custom, rules_as_before

SMALL = ((2,), (2, 2))


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with rules_as_before():
        yield


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def check(op: CustomOpDef, rule: Rule, *inputs: object) -> autoplan.RuleReport:
    autoplan.rule(op)(lambda *args, **kwargs: rule)
    return autoplan.check_rule(op, inputs, meshes=SMALL)


def test_a_right_rule_passes_on_every_split_up_to_eight_ranks() -> None:
    rule = Rule("a b, b -> a b", linear=((0,), (1,)), saved=(0, 1))
    autoplan.rule(custom_operators.scale)(lambda *args: rule)
    report = autoplan.check_rule(custom_operators.scale, (x(24, 8), x(8), 3.0))
    assert report.largest_difference < 1e-12 and report.meshes[-1] == (2, 2, 2)
    assert {row.states for row in report.rows} == {
        "R, R -> R", "I, I -> I", "S(0), R -> S(0)", "S(1), S(0) -> S(1)", "P, R -> P", "R, P -> P"
    }  # fmt: skip
    split = next(row for row in report.rows if row.splits == "a")
    assert split.strategies > 20 and split.gradients is not None
    text = str(report)
    assert "tried.scale.default: " in text and "S(1), S(0) -> S(1)" in text and "keeps" not in text


def test_several_calls_and_meshes_of_ones_own() -> None:
    autoplan.rule(custom_operators.scale)(lambda *args: Rule("a b, b -> a b", saved=(0, 1)))
    report = autoplan.check_rule("tried::scale", [(x(6, 3), x(3)), (x(6, 6), x(6), 1.5)], meshes=[(3,)])
    assert report.meshes == ((3,),) and report.specs == ("a b, b -> a b",)


@pytest.mark.parametrize(
    ("op", "rule", "inputs", "says"),
    [
        ("soft", Rule("a b -> a b"), (x(4, 8),),
         r"under S\(1\) -> S\(1\) on 2 ranks, splitting b the value differs by .* say so: whole='b'"),
        ("mean_last", Rule("a b -> a"), (x(4, 8),), "the parts reduce to the whole by reduce='mean'"),
        ("largest", Rule("a b -> a", reduce="mean"), (x(4, 8),), "the value differs by .* whole='b'"),
        ("product", Rule("a k, k b -> a b", linear=((0,), (1,))), (x(4, 8), x(8, 4)),
         r"under P, R -> P on 2 ranks the value differs by .* take \(0,\) out of linear"),
        ("leaky", Rule("a b -> a b"), (x(4, 8),),
         r"splitting b the gradient of operand 0 differs by .* gradient that is registered"),
        ("join", Rule("a b c -> a (c b)"), (x(4, 2, 4),), "splitting c the value differs by"),
        ("centre", Rule("a b -> a b"), (x(4, 8),), "splitting a the value differs .* whole='a'; .* whole='b'"),
        ("scale", Rule("a b, b -> a b", extra=(AxisStrategy((S(0), R), R),)), (x(4, 8), x(8)),
         r"correct the strategy S\(0\), R -> R of extra="),
        ("product", Rule("a k, z b -> a b"), (x(4, 8), x(8, 4)), "the operator doesn't run on its parts .* whole='k'"),
    ],
    ids=lambda given: given if isinstance(given, str) and given.isidentifier() else "",
)  # fmt: skip
def test_a_wrong_rule_is_told_of(op: str, rule: Rule, inputs: tuple[object, ...], says: str) -> None:
    with pytest.raises(RuleError, match=says):
        check(getattr(custom_operators, op), rule, *inputs)


def test_what_is_kept_for_the_backward_is_compared_with_the_rule() -> None:
    report = check(custom_operators.scale, Rule("a b, b -> a b", saved=(0,)), x(4, 8), x(8))
    assert report.notes == (
        "keeps operand 0 and operand 1 for its backward, and the rule says operand 0: saved=(0, 1) prices its memory "
        "right",
    )


def test_a_factor_that_no_size_divides_is_told_of() -> None:
    report = check(custom_operators.scale, Rule("a b, b -> a b", saved=(0, 1)), x(4, 7), x(7))
    assert report.notes == ("never split: b of 'a b, b -> a b'; give inputs whose sizes the meshes' divide",)


def test_an_operator_without_float64_is_checked_in_float32() -> None:
    single = custom("single", _single)
    with pytest.raises(RuleError, match=r"fails on these inputs .*dtype=torch\.float32"):
        check(single, Rule("a -> a"), x(8))
    assert autoplan.check_rule(single, (x(8),), meshes=SMALL, dtype=torch.float32).dtype == "float32"


def _single(given: Tensor) -> Tensor:
    assert given.dtype == torch.float32
    return given.clone()


def test_rules_of_this_package_are_checked_too_those_whose_ranks_communicate_included() -> None:
    ids = torch.randint(8, (4, 6))
    report = autoplan.check_rule("autoplan.cross_entropy", (x(4, 6, 8), ids, torch.tensor(24), -100, 0.0), meshes=SMALL)
    assert "S(2), R, R -> I" in {row.states for row in report.rows}


def one_argument(given: TensorType) -> Rule:
    return Rule("a b -> a b")


def unfinished(given: TensorType, weight: TensorType, factor: float = 1.0) -> Rule:
    raise ValueError("not written")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (one_argument, r"the rule of tried\.scale\.default, one_argument of .*the operator is called with .*too many"),
        (unfinished, r"the rule of .*, unfinished of .*fails with ValueError: not written; the operator is \[4, 8\]"),
    ],
)
def test_a_rule_that_can_not_be_asked_is_told_of_as_the_rules_fault(rule: object, says: str) -> None:
    autoplan.rule(custom_operators.scale)(rule)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=says):
        autoplan.check_rule(custom_operators.scale, (x(4, 8), x(8)), meshes=SMALL)


def test_what_can_not_be_checked() -> None:
    with pytest.raises(NoRuleError, match="it has no rule to be checked"):
        autoplan.check_rule(custom_operators.scale, (x(4, 8), x(8)))
    autoplan.rule("tried::missing")(lambda given: Rule("a -> a"))
    with pytest.raises(RuleError, match="torch knows no operator of that name"):
        autoplan.check_rule("tried::missing", (x(4),))
    autoplan.rule(custom_operators.soft)(lambda given: Rule("a b -> a b", whole="b"))
    with pytest.raises(RuleError, match="give a tuple"):
        autoplan.check_rule(custom_operators.soft, x(4, 8))  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="it is no mesh"):
        autoplan.check_rule(custom_operators.soft, (x(4, 8),), meshes=[(2, 2, 2, 2)])


@pytest.mark.parametrize(
    ("op", "shapes", "rule"),
    [
        ("scale", [(64, 1024), (1024,)], "Rule('a b, b -> a b', linear=((0,), (1,)))"),
        ("soft", [(32, 4096)], "Rule('a b -> a b', whole='b')"),
        ("mean_last", [(8, 16, 64)], "Rule('a b c -> a b', linear=((0,),), reduce='mean')"),
        ("largest", [(8, 16)], "Rule('a b -> a', whole='b')"),
        ("product", [(8, 64), (64, 256)], "Rule('a b, b c -> a c', linear=((1,),))"),
        ("join", [(8, 4, 64)], "Rule('a b c -> a (b c)', linear=((0,),))"),
        ("lookup", [(4096, 64), (8, 16)], "Rule('a b, c d -> c d b', whole='a', linear=((0,),))"),
        ("centre", [(8, 16)], "None"),
    ],
    ids=lambda given: given if isinstance(given, str) and given.isidentifier() else "",
)
def test_a_rule_is_suggested_by_trying(op: str, shapes: list[tuple[int, ...]], rule: str) -> None:
    types = {f"t{i}": TensorType(shape, "float32") for i, shape in enumerate(shapes)}
    if op == "lookup":
        types["t1"] = TensorType(shapes[1], "int64")
    found = getattr(custom_operators, op)(*(torch.empty(s, device="meta", dtype=getattr(torch, t.dtype))
                                            for s, t in zip(shapes, types.values(), strict=True)))  # fmt: skip
    name = f"tried.{op}.default"
    node = Node("y", name, tuple(Ref(t) for t in types), (), TensorType(tuple(found.shape), "float32"))
    suggestion = suggested_rule(node, types)
    assert str(suggestion) == rule
    if suggestion is not None:  # and it is right, on other sizes than those it was found by
        autoplan.rule(name)(lambda *args: suggestion.rule)
        small = {"product": (x(4, 6), x(6, 4)), "scale": (x(4, 6), x(6)), "lookup": (x(4, 6), torch.randint(4, (4, 6)))}
        autoplan.check_rule(name, small.get(op, (x(*(4, 6, 8)[: len(shapes[0])]),)), meshes=SMALL)
