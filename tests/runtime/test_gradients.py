"""Gradients of several batches add up as on one device, and those that no update has used aren't dropped."""

from __future__ import annotations

import pytest
import torch

from autoplan.errors import DivergedError, InputsError
from autoplan.runtime.ops.global_random import step_keys
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.added_gradients import PLANS, accumulated, one_device, overflowing
from tests.support.sampling import sampled, slow

QUICK = ("zero3", "pp2 dp2 zero1, tied")


@pytest.mark.parametrize("plan", sampled(PLANS, QUICK))
def test_they_add_up_as_on_one_device(pool: RankPool, plan: str) -> None:
    for found, wanted in zip(pool.run(accumulated, PLANS[plan])[0], one_device(), strict=True):
        assert found.keys() == wanted.keys()
        for name in wanted:
            difference = (found[name] - wanted[name]).norm() / wanted[name].norm()
            assert difference < 1e-12, f"{name} differs by {difference:.1e} of its norm"


@pytest.mark.parametrize(("plan", "at"), [slow(("zero1", 0)), ("pp2 tp2", 1), slow(("zero3", 2))])
def test_an_overflow_in_one_batch_skips_the_update(pool: RankPool, plan: str, at: int) -> None:
    for skipped, updates, unchanged, steps in pool.run(overflowing, PLANS[plan], at):
        assert skipped == [number >= at for number in range(3)] + [False]
        assert (updates, unchanged, steps) == (0, True, 1)


def never_lost(rank: int, world: int, plan: dict) -> list[str]:
    """What is said of steps that would lose gradients, or update nothing; and that nothing is lost."""
    batches, said = list(tiny.batches(3)), []
    with Program(tiny.spec(**plan), tiny.program(1)) as program:
        program.load_weights(tiny.reference().state_dict())

        def told(call) -> None:
            before = [None if h.gradient is None else h.gradient.clone() for h in program.held]
            steps = program.steps
            try:
                call()
            except (InputsError, DivergedError) as error:
                said.append(str(error))
            after = [h.gradient for h in program.held]
            assert all(a is b or torch.equal(a, b) for a, b in zip(before, after, strict=True))
            assert steps == program.steps

        told(program.optimizer.step)
        program.step(batches[0])
        told(lambda: program.step(batches[1]))
        program.step(batches[1], accumulate=True)
        told(lambda: program.step(batches[2]))
        values, spoilt = program.held[0].values, program.held[0].values.clone()
        values.fill_(torch.nan)
        told(lambda: program.step(batches[2], accumulate=True))
        values.copy_(spoilt)
        program.optimizer.zero_grad()
        told(program.optimizer.step)
        program.step(batches[2])
        program.optimizer.step()
        program.step(batches[2])
    return said


@pytest.mark.parametrize("plan", [slow("dp4"), "zero3"])
def test_no_gradient_is_dropped_silently(pool: RankPool, plan: str) -> None:
    nothing = "program.optimizer.step(): there are no gradients, so nothing would be updated. call program.step(batch)"
    for first, one, two, diverged, again in pool.run(never_lost, PLANS[plan]):
        assert first.startswith(nothing) and again.startswith(nothing)
        assert one.startswith("program.step(batch): the gradients of 1 batch before it are not used yet")
        assert "accumulate=True" in one and "zero_grad()" in one
        assert two.startswith("program.step(batch): the gradients of 2 batches before it")
        assert diverged.startswith("loss=nan")


def test_batches_that_are_added_up_drop_other_elements() -> None:
    keys = [step_keys(0, 3, 2, batch=batch) for batch in range(3)]
    assert len({int(key[0, 0]) for key in keys}) == 3
    assert torch.equal(keys[0], step_keys(0, 3, 2))
