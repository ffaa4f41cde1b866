"""Random graphs of 5 to 30 operators on random meshes, as the planner lays them out and as random pins do: equal to one
device in value and gradient.

A failure prints its seed and the program, with everything left out that it fails without. Again by itself:
``python -m tests.equality.programs SEED``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from autoplan.compile import traced_model
from autoplan.errors import ParallelismError
from autoplan.ir.mesh import TENSOR
from tests.equality.programs.check import Pools, failures
from tests.equality.programs.draw import draw_program
from tests.equality.programs.plans import TRAINING, planned_with, random_pins
from tests.equality.programs.program import APPLY, Module, Program, Step, batch_of
from tests.equality.programs.setting import MESHES, draw_setting
from tests.equality.programs.shrink import shrink
from tests.support.sampling import sampled

ALL, FEW, CHUNK = 500, 12, 25
QUICK = [seed for seed in range(ALL) if len(draw_setting(seed).tensor) < 2][:FEW]
"""The first whose search takes a second: over several tensor axes it takes up to a minute."""


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    with Pools() as pools:
        yield pools


def check(seeds: Sequence[int], pools: Pools) -> None:
    print(f"seeds {seeds}")
    found = failures(seeds, pools)
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.parametrize("first", sampled(range(0, FEW, 2), [0]))
def test_random_programs_equal_one_device(first: int, pools: Pools) -> None:
    check(QUICK[first : first + 2], pools)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, CHUNK))
def test_many_random_programs_equal_one_device(first: int, pools: Pools) -> None:
    check(range(first, min(ALL, first + CHUNK)), pools)


def test_what_is_drawn_is_varied() -> None:
    """Every operator, every mesh, one to three axes, up to eight ranks, values read more than once, several outputs."""
    settings = [draw_setting(seed) for seed in range(ALL)]
    assert {(s.dp, s.tensor, s.pp) for s in settings} == set(MESHES)
    assert max(s.ranks for s in settings) == 8 and max(len(s.tensor) for s in settings) == len(TENSOR)
    programs = [draw_program(seed, settings[seed]) for seed in range(0, ALL, 10)]
    assert {step.op for program in programs for step in program.steps} == set(APPLY)
    counts = [len(program.steps) for program in programs]
    assert min(counts) >= 5 and max(counts) <= 30
    assert sum(len(program.loose) > 1 for program in programs) > len(programs) / 2


def test_a_seed_draws_the_same_again() -> None:
    first, again = (draw_program(7, draw_setting(7)) for _ in range(2))
    assert first == again
    assert all(torch.equal(a, b) for a, b in zip(Module(first).parameters(), Module(again).parameters(), strict=True))


def test_what_fails_is_made_as_small_as_it_fails() -> None:
    program = next(
        p
        for p in (draw_program(seed, draw_setting(seed)) for seed in range(ALL))
        if len(p.steps) > 10 and sum(step.op == "softmax" for step in p.steps) and p.layers == 1
    )

    def fails(smaller: Program) -> bool:
        return any(step.op == "softmax" for step in smaller.steps)

    small = shrink(program, fails)
    assert fails(small) and len(small.steps) <= 4


def test_a_program_can_be_read() -> None:
    program = Program(0, 4, (8,), 0, (Step("linear", (0,), (), ((6, 8),)), Step("add", (1, 1))), 1, ("mean",))
    assert str(program) == (
        "v0 = input [4, 8]\nv1 = linear(v0, weight[6, 8])\nv2 = add(v1, v1)\nloss of v2 by ('mean',)"
    )


def test_pins_that_no_layouts_meet_together_are_an_error_of_the_plan() -> None:
    """Each leaves its operator a way; together they leave none. (Found by seed 150.)"""
    setting = draw_setting(150)
    program = draw_program(150, setting)
    traced = traced_model(Module(program), batch_of(program), None, TRAINING)
    pins = random_pins(traced, setting, random.Random("pins 150"))
    with pytest.raises(ParallelismError, match="no way to lie on these axes together"):
        planned_with(traced, setting, [pin for each in pins for pin in each])
