"""Every strategy of every rule on one axis, against the operator on one device: value, gradients and buffers, in
float64; what is offered where sizes don't divide; that nothing is left out. Several axes: test_rules_products.

Quick tests take two and four ranks, and constant operands where a rule has functions of its own; slow ones three ranks
and every operand constant in turn.
"""

from __future__ import annotations

import inspect

import pytest

from autoplan.ir.layout import S
from autoplan.ir.mesh import Mesh
from autoplan.rules.registry import factor_sizes, registered
from autoplan.rules.strategies import AxisStrategy, axis_strategies, split_dims
from autoplan.runtime import ops
from tests.support.rule_proof import (
    CASES,
    FOUR,
    PAIR,
    THREE,
    alone,
    constant_variants,
    each_case,
    verify,
)
from tests.support.rule_samples import s, x
from tests.support.sampling import slow
from tests.support.simulate import Case

EMITTED_ALONE = {"attention_with_dropout", "attention_by_rank", "dropout_by_rank", "send_tokens"}
"""In no strategy, but in emitted programs: test_dropout, test_rank_random_runs, test_expert_overlap."""


def test_every_rule_has_a_sample() -> None:
    """Rules that other tests register as users do aren't ours to prove."""
    ours = {op for op, function in registered().items() if function.__module__.startswith("autoplan.")}
    assert {case.node.op for case in CASES} == ours


def test_every_body_is_in_some_strategy() -> None:
    """Each function that runs differently by rank is proven, because some sample offers it on one of the meshes."""
    by_rank = {name for name in ops.__all__ if "axes" in inspect.signature(getattr(ops, name)).parameters}
    offered = {a.body for case in CASES for mesh in (PAIR, FOUR) for s in case.strategies(mesh) for _, a in s.axes}
    assert by_rank - EMITTED_ALONE <= offered
    assert offered - {""} <= set(ops.__all__)


@each_case
def test_every_strategy_on_one_axis(case: Case) -> None:
    for mesh in (PAIR, FOUR):
        assert case.strategies(mesh), "an operator can always be replicated"
        verify(case, alone(case, mesh), mesh)


@pytest.mark.slow
@each_case
def test_every_strategy_on_three_ranks(case: Case) -> None:
    verify(case, alone(case, THREE), THREE)


def check_constant_operands(case: Case) -> None:
    """What is constant is neutral: R and I meet there, and no gradient is asked for."""
    for sample in constant_variants(case.sample):
        variant = Case.of(sample)
        verify(variant, alone(variant, PAIR), PAIR)


@pytest.mark.parametrize("case", [c if c.rule.extra else slow(c) for c in CASES], ids=lambda case: str(case.sample))
def test_constant_operands(case: Case) -> None:
    """Quick of rules that have functions of their own."""
    check_constant_operands(case)


@pytest.mark.parametrize("mesh", [PAIR, FOUR, THREE, Mesh.of(tp=5)], ids=str)
def test_a_split_is_offered_where_its_sizes_divide_and_only_there(mesh: Mesh) -> None:
    for case in CASES:
        offered = {chosen.axes[0][1] for chosen in case.strategies(mesh)}
        for single in axis_strategies(case.rule, case.types, case.carries):
            assert (single in offered) == divisible(case, single, mesh.axes[0].size), f"{case.sample} {single}"


def divisible(case: Case, single: AxisStrategy, ways: int) -> bool:
    """Whether every dim that is split has parts of one size, and so has the factor, which may be a part of the dim."""
    sizes = factor_sizes(case.rule, case.types, case.node.type)
    tensors = (*case.types, case.node.type)
    dims = [tensors[tensor].shape[dim] for tensor, dim in split_dims(single)]
    return all(size % ways == 0 for size in (*dims, sizes.get(single.factor, 0)))


def test_heads_split_whole() -> None:
    """640 columns are four times 160, but ten heads of 64 are no whole heads on each of four ranks."""
    case = Case.of(s("aten.reshape.default", x(4, 2, 640), (4, 2, 10, 64)))
    outputs = [{c.axes[0][1].output for c in case.strategies(mesh)} for mesh in (PAIR, FOUR)]
    assert [S(2) in found for found in outputs] == [True, False]


def test_a_vocabulary_splits_where_it_divides() -> None:
    """Of GPT-2's 50257 tokens no two ranks have as many, of 50260 four have. The features split in any case."""
    for tokens, splits in ((50257, False), (50260, True)):
        case = Case.of(s("aten.linear.default", x(2, 8), x(tokens, 8)))
        outputs = {c.axes[0][1].inputs[1] for c in case.strategies(FOUR)}
        assert (S(0) in outputs, S(1) in outputs) == (splits, True)
