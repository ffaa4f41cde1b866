"""A run with dropout that stops and goes on repeats the one that doesn't: to the bit, in another plan exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import autoplan
from autoplan.options import Parallelism, Training
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.exported_plans import exported_plans
from tests.support.resumed import MODEL, STOP, onwards, unbroken, until

P, LAYERS = 0.25, 2
TRAINING = Training(learning_rate=1e-3, seed=11)
PLANS = {
    "dp tp": Parallelism(dp=2, tp=2, pp=1, zero=1, micro_batch=2),
    "pp dp, recomputed": Parallelism(dp=2, tp=1, pp=2, micro_batch=2, recompute="full"),
    "ZeRO-3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1),
    "sequence parallel": Parallelism(dp=1, tp=4, pp=1, micro_batch=8, sequence_parallel=True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return exported_plans(tmp_path_factory, MODEL, LAYERS, P, TRAINING, PLANS)




@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)  # the one under sequence parallelism goes on under ZeRO-3, too
def test_a_resumed_run_repeats_the_unbroken_one(
    pool: RankPool, folder: Callable[[str], str], tmp_path: Path, plan: str
) -> None:
    whole = pool.run(unbroken, folder(plan))
    pool.run(until, folder(plan), str(tmp_path / "checkpoint"))
    again = pool.run(onwards, folder(plan), str(tmp_path / "checkpoint"))
    for rank, (found, wanted) in enumerate(zip(again, whole, strict=True)):
        assert found.losses == wanted.losses[STOP:], f"rank {rank}"
        assert found.state.keys() == wanted.state.keys()
        assert all(torch.equal(value, wanted.state[name]) for name, value in found.state.items())
    other = list(PLANS)[list(PLANS).index(plan) - 1]
    (moved, *_) = pool.run(onwards, folder(other), str(tmp_path / "checkpoint"))
    assert moved.losses == pytest.approx(whole[0].losses[STOP:], rel=1e-12)
    for name, value in moved.state.items():
        torch.testing.assert_close(value, whole[0].state[name], rtol=1e-9, atol=1e-12, msg=f"{other}: {name}")


def test_each_step_drops_anew(pool: RankPool, folder: Callable[[str], str]) -> None:
    """Or the tests above would hold of a mask that is always the same."""
    losses = pool.run(same_batch, folder("sequence parallel"))[0]
    assert len(set(losses)) == len(losses)


def same_batch(rank: int, world: int, folder: str) -> list[float]:
    """Steps on one batch from the same weights, counted but not updated."""
    program = autoplan.load(folder).program()
    program.load_weights(f"{folder}/weights.safetensors")
    losses = []
    for step in range(3):
        program.steps = step
        losses.append(float(program.step(zoo.batch_of(MODEL))))
        program.optimizer.zero_grad()
    return losses
