"""Products of strategies over two and three axes, and the strategies whose ranks communicate, against one device.

The quick tests take a few products of each sample, always the same; the slow ones all of them, on 2x2 and 2x2x2.
"""

from __future__ import annotations

import random

import pytest

from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy
from autoplan.verify.local_ranks import RankPool
from tests.support.rule_proof import (
    CASES,
    CUBE,
    FOUR,
    PAIR,
    SQUARE,
    alone,
    each_case,
    together,
    verify,
    verify_on_ranks,
)
from tests.support.simulate import Case

TAKEN = {SQUARE: 4, CUBE: 1}  # products of a sample that a quick test takes


def some(case: Case, found: list[Strategy], most: int) -> list[Strategy]:
    return random.Random(str(case.sample)).sample(found, min(most, len(found)))


@each_case
def test_some_products_of_strategies(case: Case) -> None:
    for mesh, most in TAKEN.items():
        verify(case, some(case, alone(case, mesh), most), mesh)


@pytest.mark.slow
@each_case
@pytest.mark.parametrize("mesh", TAKEN, ids=str)
def test_all_products_of_strategies(case: Case, mesh: Mesh) -> None:
    verify(case, alone(case, mesh), mesh)


def test_every_strategy_that_communicates(pool: RankPool) -> None:
    chosen = [(case, strategy) for case in CASES for strategy in together(case, FOUR)]
    assert {a.body for _, s in chosen for _, a in s.axes} == {
        a.body for case in CASES for a in case.rule.extra if a.communicates
    }, "of each communicating function some sample divides by four"
    verify_on_ranks(pool, chosen, FOUR)


def test_some_products_that_communicate(pool: RankPool) -> None:
    verify_on_ranks(pool, [(case, s) for case in CASES for s in some(case, together(case, SQUARE), 2)], SQUARE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [PAIR, SQUARE, CUBE], ids=str)
def test_all_products_that_communicate(mesh: Mesh) -> None:
    chosen = [(case, strategy) for case in CASES for strategy in together(case, mesh)]
    ranks = 2 ** len(mesh.axes)
    with RankPool(ranks, timeout_s=900) as pool:
        for start in range(0, len(chosen), 200):
            verify_on_ranks(pool, chosen[start : start + 200], mesh)
