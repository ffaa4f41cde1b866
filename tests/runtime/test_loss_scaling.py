"""Loss scaling: gradients that no scale is left in, steps that all ranks skip alike, an end where nothing helps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from autoplan.errors import DivergedError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = {
    "dp4, 2 microbatches": dict(dp=4, microbatches=2),
    "zero1 tp2": dict(dp=2, tp=2, zero=1, microbatches=2),
    "zero3": dict(dp=4, zero=3, microbatches=2),
    "pp2 tp2, tied": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
    "pp2 dp2 zero2, tied": dict(pp=2, dp=2, microbatches=2, zero=2),
    "interleaved": dict(pp=2, dp=2, microbatches=2, virtual_stages=2, pipeline_schedule="interleaved"),
    "zero-bubble": dict(pp=2, dp=2, microbatches=2, virtual_stages=2, pipeline_schedule="zero-bubble"),
    "offload": dict(tp=2, dp=2, zero=2, microbatches=2, offload="optimizer"),
}
SCHEDULE = LRSchedule("linear", steps=10)
PLAIN = Training(learning_rate=1e-2, clip_grad_norm=0.1, lr_schedule=SCHEDULE, compile=False)
SCALED = PLAIN.with_precision("fp16-mixed")
BEGIN = 2.0**16


def made(plan: dict, training: Training) -> Program:
    """The tiny program in float32 throughout, so that what scaling adds is all that differs."""
    spec = tiny.in_dtype(tiny.spec(**plan, training=training), "float32")
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().float().state_dict())
    return program


def trained(rank: int, world: int, plan: dict, training: Training) -> tuple[list[float], Mapping, Mapping, float]:
    with made(plan, training) as program:
        losses, gradients = [], {}
        for batch in tiny.batches(3):
            losses.append(program.step(batch).item())
            gradients = program.full_grads()
            program.optimizer.step()
        scale = program.updates.scaling.factor if program.updates.scaling else 0.0
        return losses, gradients, dict(program.full_state_dict()), scale


@pytest.mark.parametrize("plan", sampled(PLANS, ["zero3"]))
def test_no_scale_is_left_in_losses_gradients_or_what_is_clipped(pool: RankPool, plan: str) -> None:
    """A power of two changes no digit, so all are the same bits as without."""
    plain, scaled = (pool.run(trained, PLANS[plan], training) for training in (PLAIN, SCALED))
    for (losses, gradients, parameters, _), (found, grads, values, scale) in zip(plain, scaled, strict=True):
        assert losses == found and scale == BEGIN
        for wanted, those in ((gradients, grads), (parameters, values)):
            assert wanted.keys() == those.keys()
            assert all(torch.equal(wanted[name], those[name]) for name in wanted)


def overflowing(rank: int, world: int, plan: dict, which: int) -> list[tuple]:
    """Of three steps the second overflows, on one rank alone: (skipped, scale, updates, values) after each."""
    with made(plan, SCALED) as program:
        found = []
        for step, batch in enumerate(tiny.batches(3)):
            if step == 1 and rank == which:
                spoil(program)
            program.step(batch)
            grads = program.full_grads()
            program.optimizer.step()
            assert program.updates.scaling is not None and program.updates.rates is not None
            values = torch.cat([h.values.flatten() for h in program.held])
            state = program.skipped, program.updates.scaling.factor, program.updates.rates.updates
            found.append((*state, program.steps, program.optimizer.param_groups[0]["lr"], len(grads), values))
        return found


def spoil(program: Program) -> None:
    """Has this rank find an infinite gradient, once all sums are done: in the last part that isn't empty."""
    settle = program.updates.settle

    def spoilt(*given) -> None:
        last = next(h.gradient for h in reversed(program.held) if h.gradient is not None and h.gradient.numel())
        last.view(-1)[0] = torch.inf
        program.updates.settle = settle  # type: ignore[method-assign]
        settle(*given)

    program.updates.settle = spoilt  # type: ignore[method-assign]


CASES = [("dp4, 2 microbatches", 3), ("zero3", 1), ("pp2 tp2, tied", 2), ("offload", 0)]


@pytest.mark.parametrize(("plan", "which"), sampled(CASES, CASES[1:3]))
def test_one_rank_s_overflow_skips_the_step_everywhere(pool: RankPool, plan: str, which: int) -> None:
    results = pool.run(overflowing, PLANS[plan], which)
    for rank, (first, second, third) in enumerate(results):
        assert first[:5] == (False, BEGIN, 1, 1, pytest.approx(0.9e-2))
        assert second[:5] == (True, BEGIN / 2, 1, 2, pytest.approx(0.9e-2))
        assert third[:5] == (False, BEGIN / 2, 2, 3, pytest.approx(0.8e-2))
        assert torch.equal(first[6], second[6]) and not torch.equal(second[6], third[6])
        assert (first[5] > 0) == (third[5] > 0) == (rank == 0) and second[5] == 0


def growing(rank: int, world: int) -> list[float]:
    with made(dict(dp=4), SCALED) as program:
        assert program.updates.scaling is not None
        program.updates.scaling.load_state_dict(program.updates.scaling.state_dict() | {"_growth_tracker": 1998})
        scales = []
        for batch in tiny.batches(3):
            program.step(batch)
            program.optimizer.step()
            scales.append(program.updates.scaling.factor)
        return scales


def test_after_2000_steps_without_an_overflow_the_scale_doubles(pool: RankPool) -> None:
    assert pool.run(growing) == [[BEGIN, 2 * BEGIN, 2 * BEGIN]] * 4


def diverging(rank: int, world: int, training: Training, folder: str) -> tuple[str, int, bool]:
    """What is said where the weights aren't finite, after how many steps, and whether the checkpoint was kept."""
    with made(dict(dp=2, tp=2, zero=1), training) as program:
        batch = next(tiny.batches(1))
        program.step(batch)
        program.optimizer.step()
        program.save_checkpoint(folder)
        if rank == 1:
            program.held[0].values.view(-1)[0] = torch.nan
        try:
            program.save_checkpoint(folder)
        except DivergedError as error:
            refused = "parameters that aren't finite" in str(error)
        for step in range(40):
            try:
                program.step(batch)
            except DivergedError as error:
                program.load_checkpoint(folder)
                again = program.step(batch).isfinite().item()
                return str(error), step, refused and again
            program.optimizer.step()
    return "", 40, False


def test_a_loss_that_is_not_finite_ends_the_run_and_the_last_checkpoint_stays(pool: RankPool, tmp_path: Path) -> None:
    for text, steps, kept in pool.run(diverging, PLAIN, str(tmp_path / "c")):
        assert "at step 2: the forward of this batch isn't finite" in text and "; it may be a learning rate of" in text
        assert text.endswith(f"go back to {tmp_path / 'c'}, with a lower learning rate.")
        assert steps == 0 and kept


@pytest.mark.slow
def test_under_float16_it_is_skipped_until_the_scale_is_at_its_floor(pool: RankPool, tmp_path: Path) -> None:
    for text, steps, kept in pool.run(diverging, SCALED, str(tmp_path / "c")):
        assert text.startswith("a loss scale of 1 at step 18: gradients overflow in float16 at the least scale")
        assert steps == 16 and kept


def halves(rank: int, world: int, plan: dict, folder: str, first: bool) -> tuple:
    with made(plan, SCALED) as program:
        batches = list(tiny.batches(5))
        if first:
            for step, batch in enumerate(batches[:3]):
                if step == 1 and rank == 0:
                    spoil(program)
                program.step(batch)
                program.optimizer.step()
            program.save_checkpoint(folder)
        else:
            program.load_checkpoint(folder)
        for batch in batches[3:]:
            program.step(batch)
            program.optimizer.step()
        assert program.updates.scaling is not None
        rate = program.optimizer.param_groups[0]["lr"]
        return dict(program.full_state_dict()), program.updates.scaling.state_dict(), rate, program.steps


def test_scale_and_schedule_go_on_from_a_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    wanted = pool.run(halves, PLANS["zero1 tp2"], str(tmp_path / "c"), True)
    found = pool.run(halves, PLANS["zero1 tp2"], str(tmp_path / "c"), False)
    for one, other in zip(wanted, found, strict=True):
        assert one[1:] == other[1:] and one[2] == pytest.approx(0.6e-2)
        assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    other = pool.run(halves, PLANS["pp2 tp2, tied"], str(tmp_path / "c"), False)
    assert other[0][1:] == wanted[0][1:]
