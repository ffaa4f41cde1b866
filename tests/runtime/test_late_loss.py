"""A loss that isn't finite, told a step late as on an accelerator: nothing is updated by it, and all ranks are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autoplan.errors import DivergedError
from autoplan.options import Training
from autoplan.runtime.optim.updates import guarded
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = {
    "dp2 tp2": dict(dp=2, tp=2),
    "zero3": dict(dp=4, zero=3, microbatches=2),
    "pp2 dp2 zero1": dict(pp=2, dp=2, microbatches=2, zero=1),
}
ADAMW = Training(learning_rate=1e-2, clip_grad_norm=0.1, compile=False)


def made(plan: dict, training: Training = ADAMW, late: bool = True) -> Program:
    spec = tiny.in_dtype(tiny.spec(**plan, training=training), "float32")
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().float().state_dict())
    assert not program.updates.late, "a CPU's values are there at once"
    program.updates.late = late and guarded(program.optimizer, program.device)
    assert program.updates.late == late
    return program


def batches() -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Two with a loss, and between them one without a label that counts: 0/0, and so are its gradients."""
    first, bad, second = tiny.batches(3)
    return first, {**bad, "labels": torch.full_like(bad["labels"], -100)}, second


def update(program: Program, batch: dict[str, Tensor], accumulate: bool = False) -> Tensor:
    loss = program.step(batch, accumulate=accumulate)
    program.optimizer.step()
    return loss


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(DivergedError) as error:
        act()
    return str(error.value)


def after_a_bad_batch(rank: int, world: int, plan: dict) -> tuple[str, bool, bool, dict, dict]:
    """The error; whether the loss was NaN; whether gradients are left; parameters afterwards and without that batch."""
    first, bad, second = batches()
    with made(plan) as program:
        update(program, first)
        lost = bool(update(program, bad).isnan())
        text = refused(lambda: program.step(second))
        left = any(h.gradient is not None for h in program.held)
        update(program, second)
        found = dict(program.full_state_dict())
    with made(plan, late=False) as program:
        update(program, first)
        update(program, second)
        return text, lost, left, found, dict(program.full_state_dict())


@pytest.mark.parametrize("plan", sampled(PLANS, ["pp2 dp2 zero1"]))
def test_the_next_step_tells_and_nothing_was_updated(pool: RankPool, plan: str) -> None:
    """Parameters, moments and their count of steps: training goes on with the same bits as without the batch."""
    for text, lost, left, found, wanted in pool.run(after_a_bad_batch, PLANS[plan]):
        assert text.startswith("loss=nan at step 2") and "no label of this batch counts" in text
        assert lost and not left
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def accumulated(rank: int, world: int) -> tuple[str, bool]:
    """The bad batch first, a good one added: their sum updates nothing. The error comes with the second."""
    first, bad, second = batches()
    with made(PLANS["dp2 tp2"]) as program:
        update(program, first)
        before = dict(program.full_state_dict())
        program.step(bad)
        text = refused(lambda: program.step(second, accumulate=True))
        program.optimizer.step()
        after = dict(program.full_state_dict())
        return text, all(torch.equal(before[name], after[name]) for name in before)


def test_gradients_that_are_added_to_bad_ones_update_nothing(pool: RankPool) -> None:
    for text, same in pool.run(accumulated):
        assert "at step 2" in text and same


def other_calls(rank: int, world: int, folder: str) -> list[str]:
    """Whatever asks first is told, once."""
    found = []
    asked: dict[str, Callable[[Program], object]] = {
        "save_checkpoint": lambda program: program.save_checkpoint(Path(folder, "kept")),
        "save_weights": lambda program: program.save_weights(Path(folder, "weights")),
        "skipped": lambda program: program.skipped,
        "full_grads": lambda program: program.full_grads(),
        "close": lambda program: program.close(),
    }
    first, bad, _ = batches()
    for name, act in asked.items():
        with made(PLANS["dp2 tp2"]) as program:
            update(program, first)
            update(program, bad)
            assert "loss=nan at step 2" in refused(lambda act=act, program=program: act(program)), name
            found.append(name)
            if name == "close":
                assert program.closed
    return found


def test_saves_and_close_tell(pool: RankPool, tmp_path: Path) -> None:
    for found in pool.run(other_calls, str(tmp_path)):
        assert len(found) == 5
    assert not (tmp_path / "kept").exists() and not (tmp_path / "weights").exists()


def loaded(rank: int, world: int) -> bool:
    """Other weights: what was computed before counts no more. An error on its way isn't replaced."""
    _, bad, second = batches()
    with made(PLANS["dp2 tp2"]) as program:
        program.step(bad)
        program.optimizer.zero_grad()
        program.load_weights(tiny.reference().float().state_dict())
        fine = bool(program.step(second).isfinite())
    with pytest.raises(KeyError), made(PLANS["dp2 tp2"]) as program:
        program.step(bad)
        raise KeyError
    return fine


def test_loading_forgets(pool: RankPool) -> None:
    assert all(pool.run(loaded))


def unguarded(rank: int, world: int) -> list[bool]:
    trainings = [
        ADAMW,
        Training(optimizer="sgd", compile=False),
        Training(optimizer="sgd", optimizer_options={"momentum": 0.9}, compile=False),
        Training(optimizer="adamw", optimizer_options={"foreach": True}, compile=False),
        Training(optimizer="muon", compile=False),
    ]
    found = []
    for training in trainings:
        with Program(tiny.in_dtype(tiny.spec(dp=4, training=training), "float32"), tiny.program(1)) as program:
            found.append(guarded(program.optimizer, program.device))
            assert not guarded(program.optimizer, torch.device("meta"))
    return found


def test_where_no_kernel_takes_the_flag_the_loss_is_read_at_once(pool: RankPool) -> None:
    assert pool.run(unguarded) == [[True, True, False, False, False]] * 4
