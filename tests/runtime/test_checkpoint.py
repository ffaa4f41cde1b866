"""A checkpoint of one plan goes on in it, and in another plan of the same model, as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.checkpoint.groups import own_groups
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = {
    "dp4 zero3": dict(dp=4, zero=3),
    "tp2 dp2 zero1": dict(tp=2, dp=2, zero=1, microbatches=2),
    "tp2 dp2 zero2 offload": dict(tp=2, dp=2, zero=2, microbatches=2, offload="optimizer"),
    "pp2 tp2": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
    "dp2 pp2": dict(pp=2, dp=2),
    "interleaved": dict(pp=2, dp=2, microbatches=2, virtual_stages=2, pipeline_schedule="interleaved"),
}
TRAINING = Training(precision="fp64", learning_rate=1e-2, compile=False)
Result = tuple[Mapping[str, Tensor], int]


def program_of(plan: dict, training: Training = TRAINING) -> Program:
    spec = tiny.spec(**plan, training=training)
    return Program(spec, tiny.program(len(spec.lowered.stages)))


def train(program: Program, batches: list[dict[str, Tensor]]) -> None:
    for batch in batches:
        program.step(batch)
        program.optimizer.step()


def unbroken(rank: int, world: int, plan: dict) -> Mapping[str, Tensor]:
    with program_of(plan) as program:
        program.load_weights(tiny.reference().state_dict())
        train(program, list(tiny.batches(4)))
        return dict(program.full_state_dict())


def first_half(rank: int, world: int, plan: dict, folder: str) -> None:
    with program_of(plan) as program:
        program.load_weights(tiny.reference().state_dict())
        program.save_checkpoint(folder)  # one before any optimizer state, which the next one replaces
        train(program, list(tiny.batches(4))[:2])
        program.save_checkpoint(folder)


def second_half(rank: int, world: int, plan: dict, folder: str) -> Result:
    with program_of(plan, Training(precision="fp64", learning_rate=1.0, compile=False)) as program:
        program.load_checkpoint(folder)
        steps = program.steps
        train(program, list(tiny.batches(4))[2:])
        return dict(program.full_state_dict()), steps


@pytest.mark.parametrize("source", sampled(PLANS, ["dp4 zero3"]))  # each also into the next two: all but one
def test_another_plan_goes_on_where_this_one_stopped(pool: RankPool, tmp_path: Path, source: str) -> None:
    folder = tmp_path / "checkpoint"
    wanted = pool.run(unbroken, PLANS[source])[0]
    pool.run(first_half, PLANS[source], str(folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
    names = [*PLANS, *PLANS]
    for target in names[names.index(source) : names.index(source) + 3]:
        found, steps = pool.run(second_half, PLANS[target], str(folder))[0]
        assert steps == 2
        assert found.keys() == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-12, atol=1e-12, msg=f"{target}: {name}")


def save_untrained(rank: int, world: int, plan: dict, folder: str) -> Tensor:
    with program_of(plan) as program:
        program.load_weights(tiny.reference().state_dict())
        torch.manual_seed(rank)
        program.save_checkpoint(folder)
        return torch.rand(3)


def load_untrained(rank: int, world: int, plan: dict, folder: str) -> tuple[Tensor, int]:
    with program_of(plan) as program:
        program.load_checkpoint(folder)
        return torch.rand(3), len(program.optimizer.state)


def test_random_states_are_taken_up_and_an_untrained_optimizer_stays_so(pool: RankPool, tmp_path: Path) -> None:
    saved = pool.run(save_untrained, PLANS["dp2 pp2"], str(tmp_path / "c"))
    loaded = pool.run(load_untrained, PLANS["pp2 tp2"], str(tmp_path / "c"))
    for drawn, (again, states) in zip(saved, loaded, strict=True):
        assert torch.equal(drawn, again)
        assert states == 0


def load_and_keep(rank: int, world: int, folder: str, training: Training) -> tuple[str, bool]:
    """What was said, and whether the parameters were left alone."""
    with program_of(PLANS["dp4 zero3"], training) as program:
        program.load_weights(tiny.reference(1).state_dict())
        before = [h.values.clone() for h in program.held]
        try:
            program.load_checkpoint(folder)
        except WeightsError as error:
            return str(error), all(torch.equal(h.values, b) for h, b in zip(program.held, before, strict=True))
        return "", False


def test_a_checkpoint_of_something_else_is_refused_before_anything_changes(pool: RankPool, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    pool.run(save_untrained, PLANS["dp4 zero3"], str(folder))
    sgd = Training(optimizer="sgd", precision="fp64", compile=False)
    (tmp_path / "half").mkdir()
    for where, training, said in (
        (folder, sgd, "its optimizer is 'adamw', the plan's 'sgd'"),
        (tmp_path / "half", TRAINING, "there is no finished checkpoint"),
        (tmp_path / "none", TRAINING, "there is no finished checkpoint"),
    ):
        for text, kept in pool.run(load_and_keep, str(where), training):
            assert said in text and kept


def save_another(rank: int, world: int, folder: str, **sizes: int) -> None:
    with patch.multiple(tiny, **sizes), program_of(PLANS["dp4 zero3"]) as program:
        program.load_weights(tiny.reference().state_dict())
        program.save_checkpoint(folder)


def save_by_torch_alone(rank: int, world: int, folder: str) -> None:
    dcp.save({"model": {"weight": torch.ones(3)}}, checkpoint_id=folder)


@pytest.mark.slow
def test_another_model_s_checkpoint_is_refused_before_anything_changes(pool: RankPool, tmp_path: Path) -> None:
    pool.run(partial(save_another, WIDTH=6), str(tmp_path / "wide"))
    pool.run(partial(save_another, LAYERS=0), str(tmp_path / "short"))
    pool.run(save_by_torch_alone, str(tmp_path / "foreign"))
    (tmp_path / "file").write_text("no folder")
    for where, said in (
        ("wide", "embed.weight has shape (10, 6) there, here (10, 5)"),
        ("short", "it lacks layers.0.scale, one of the parameters"),
        ("foreign", "there is no finished checkpoint: it has no state.json"),
        ("file", "there is no finished checkpoint"),
    ):
        for text, kept in pool.run(load_and_keep, str(tmp_path / where), TRAINING):
            assert said in text and kept


def test_a_checkpoint_that_was_being_replaced_is_still_there(pool: RankPool, tmp_path: Path) -> None:
    pool.run(save_untrained, PLANS["dp2 pp2"], str(tmp_path / "c"))
    shutil.move(tmp_path / "c", tmp_path / "c.old")  # as left by an end between the two renames
    pool.run(load_untrained, PLANS["dp2 pp2"], str(tmp_path / "c"))


GROUPED = replace(TRAINING, groups=({"match": "*.bias|*.scale", "lr": 5e-3, "weight_decay": 0.0},))
REGROUPED = ({"match": "*.bias", "lr": 0.3}, {"match": "*.scale", "lr": 0.4})  # the same ones, apart


def options_by_name(program: Program) -> dict[str, tuple[float, float]]:
    groups = own_groups(program.optimizer, program.held)
    return {name: (group["lr"], group["weight_decay"]) for group, names in groups for name in names}


def save_grouped(rank: int, world: int, plan: dict, folder: str, schedule: LRSchedule | None) -> None:
    with program_of(plan, replace(GROUPED, lr_schedule=schedule)) as program:
        program.load_weights(tiny.reference().state_dict())
        train(program, list(tiny.batches(2)))
        program.save_checkpoint(folder)


def load_grouped(rank: int, world: int, plan: dict, folder: str, training: Training) -> dict[str, tuple[float, float]]:
    with program_of(plan, training) as program:
        program.load_checkpoint(folder)
        found = options_by_name(program)
        train(program, list(tiny.batches(1)))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, LRSchedule("linear", steps=4)], ids=["constant", "linear"])
def test_each_group_s_options_are_taken_up_by_the_names_of_its_parameters(
    pool: RankPool, tmp_path: Path, schedule: LRSchedule | None
) -> None:
    """Where there is a schedule, rates are the plan's at the point that the schedule has come to."""
    pool.run(save_grouped, PLANS["dp4 zero3"], str(tmp_path / "c"), schedule)
    part = 1.0 if schedule is None else 0.5
    for plan in ("pp2 tp2", "tp2 dp2 zero2 offload"):
        for training in (GROUPED, replace(GROUPED, groups=REGROUPED, weight_decay=0.7)):
            told = pool.run(load_grouped, PLANS[plan], str(tmp_path / "c"), replace(training, lr_schedule=schedule))
            for name, (rate, decay) in (item for each in told for item in each.items()):
                grouped = name.endswith(("bias", "scale"))
                wanted = 5e-3 if grouped else 1e-2
                if grouped and schedule is not None and training is not GROUPED:
                    wanted = 0.3 if name.endswith("bias") else 0.4
                assert rate == pytest.approx(wanted * part), f"{plan}: {name}"
                assert decay == (0.0 if grouped else 0.01), f"{plan}: {name}"
