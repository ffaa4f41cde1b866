"""The learning rate's schedule: torch's classes as data, moved by updates, taken up where a checkpoint left it."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer, lr_scheduler

import autoplan
from autoplan.cli.typed_words import training
from autoplan.errors import LaunchError, ParallelismError
from autoplan.ir.codec import decode, encode
from autoplan.lr_schedule import LRSchedule
from autoplan.option_values import SET_RATES, SHAPES
from autoplan.options import Training
from autoplan.runtime.elastic.scaled_batch import check_rate
from autoplan.runtime.optim.lr_scheduler import NOT_DATA, LearningRates, check_schedule, scheduler_class
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.optim.updates import Updates
from tests.support.forked import in_fork
from tests.support.planning import parallelize_alone

CLASSES = {
    "StepLR": {"step_size": 3, "gamma": 0.5},
    "MultiStepLR": {"milestones": (2, 5), "gamma": 0.1},
    "ConstantLR": {"factor": 0.5, "total_iters": 4},
    "LinearLR": {"start_factor": 0.2, "total_iters": 6},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {"total_iters": 8, "power": 2.0},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 3},
    "OneCycleLR": {"max_lr": 0.5, "total_steps": 12},
    "ReduceLROnPlateau": {"patience": 1, "factor": 0.5, "cooldown": 1},
}
LOSSES = [3.0, 2.0, 2.5, 2.4, 2.3, 2.3, 1.0, 1.5, 1.6, 1.7]


def optimizer() -> SGD:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return SGD([{"params": [parameter]}, {"params": []}], lr=0.25, momentum=0.9)


def settings(made: SGD) -> list[tuple[float, float]]:
    return [(group["lr"], group["momentum"]) for group in made.param_groups]


def course(rates: LearningRates, losses: list[float]) -> list:
    """What each update takes."""
    found = []
    for loss in losses:
        found.append(settings(rates.optimizer))  # type: ignore[arg-type]
        rates.optimizer.step()
        rates.moved(torch.tensor(loss))
    return found


def test_linear_and_cosine_rise_fall_and_stay() -> None:
    for name, half in (("linear", 0.55), ("cosine", 0.55)):
        schedule = LRSchedule(name, steps=7, warmup=3, end=0.1)
        taken = [rate / 0.25 for [(rate, _), _] in course(LearningRates(schedule, optimizer()), [1.0] * 10)]
        assert taken[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
        assert taken[5] == pytest.approx(half) and taken[7:] == pytest.approx([0.1] * 3)
        quarter = 0.775 if name == "linear" else 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
        assert taken[4] == pytest.approx(quarter)
    constant = course(LearningRates(LRSchedule(warmup=1), optimizer()), [1.0] * 3)
    assert [rate for [(rate, _), _] in constant] == [0.125, 0.25, 0.25]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_torch_does_what_it_does_there(name: str) -> None:
    rates = LearningRates(LRSchedule(name, options=CLASSES[name]), optimizer())
    theirs = optimizer()
    scheduler = getattr(lr_scheduler, name)(theirs, **CLASSES[name])
    wanted = []
    for loss in LOSSES:
        wanted.append(settings(theirs))
        theirs.step()
        scheduler.step(*([loss] if name == "ReduceLROnPlateau" else []))
    found = course(rates, LOSSES)
    assert found == wanted
    assert len({rate for [(rate, _), _] in found}) > 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [*CLASSES, "cosine"])
def test_a_schedule_goes_on_exactly_where_it_was(name: str) -> None:
    options = CLASSES.get(name, {})
    schedule = LRSchedule(name, options=options) if options else LRSchedule(name, steps=9, warmup=2)
    wanted = course(LearningRates(schedule, optimizer()), LOSSES)
    for cut in (0, 1, 4, 7):
        first = LearningRates(schedule, optimizer())
        course(first, LOSSES[:cut])
        kept = json.loads(json.dumps(first.state_dict()))
        made = optimizer()
        for group in made.param_groups:
            group["lr"] = 1.0  # another plan's
        again = LearningRates(schedule, made)
        again.load_state_dict(kept)
        assert course(again, LOSSES[cut:]) == wanted[cut:]


def test_another_learning_rate_moves_the_whole_course() -> None:
    rates = LearningRates(LRSchedule("cosine", steps=10), optimizer())
    before = course(rates, [1.0] * 4)
    rates.restart(0.5, rates.updates)
    after = course(rates, [1.0] * 4)
    whole = course(LearningRates(LRSchedule("cosine", steps=10), optimizer()), [1.0] * 8)
    assert before == whole[:4]
    assert [rate for [(rate, _), _] in after] == pytest.approx([2 * rate for [(rate, _), _] in whole[4:]])


def test_another_learning_rate_keeps_what_was_learnt_from_the_losses() -> None:
    """ReduceLROnPlateau has halved the rate; of twice the rate it is half, and it goes on counting."""
    schedule = LRSchedule("ReduceLROnPlateau", options={"patience": 1, "factor": 0.5})
    rates, other = LearningRates(schedule, optimizer()), LearningRates(schedule, optimizer())
    assert course(rates, [1.0] * 5) == course(other, [1.0] * 5)
    other.set_rate(2 * other.rate)
    found, moved = course(rates, [1.0] * 4), course(other, [1.0] * 4)
    assert [rate for [(rate, _), _] in moved] == pytest.approx([2 * rate for [(rate, _), _] in found])
    assert found[-1][0][0] < found[0][0][0] < rates.rate


@pytest.mark.parametrize("name", SET_RATES)
def test_a_schedule_that_reads_no_rate_takes_no_other(name: str) -> None:
    schedule = LRSchedule(name, options=CLASSES[name])
    rates = LearningRates(schedule, optimizer())
    with pytest.raises(ParallelismError, match=f"{name} sets every rate from its"):
        rates.set_rate(0.1)
    training = Training(lr_schedule=schedule)
    check_rate(training, "keep")
    with pytest.raises(LaunchError, match=rf"--elastic-rate linear: .*{name} sets every rate"):
        check_rate(training, "linear")


@pytest.mark.parametrize("rate", [-0.1, math.nan, "0.1", True])
def test_what_is_no_learning_rate_is_refused(rate: object) -> None:
    made = optimizer()
    updates = Updates(Training(), made, (), torch.device("cpu"))
    with pytest.raises(ParallelismError, match=r"learning_rate=.*at least 0"):
        updates.set_learning_rate(rate)  # type: ignore[arg-type]
    assert settings(made)[0][0] == 0.25
    updates.set_learning_rate(0.125)
    assert settings(made)[0][0] == 0.125


def test_one_device_follows_it_too() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    falling, watching = LRSchedule("linear", steps=4), LRSchedule("ReduceLROnPlateau")
    for schedule, rates in ((falling, [0.75, 0.5, 0.25]), (watching, [1.0] * 3)):
        made = build_optimizer([parameter], Training(learning_rate=1.0, lr_schedule=schedule))
        found = []
        for _ in range(3):
            made.step()
            found.append(made.param_groups[0]["lr"])
        assert found == rates


def test_every_class_is_there_or_said_to_be_no_data() -> None:
    kind = lr_scheduler.LRScheduler
    classes = {n for n, v in vars(lr_scheduler).items() if isinstance(v, type) and issubclass(v, kind)}
    assert {n for n in classes if n[0] != "_"} - {"LRScheduler"} == set(CLASSES) | set(NOT_DATA)
    for name in NOT_DATA:
        with pytest.raises(ParallelismError, match=f"lr_schedule='{name}': it takes functions or schedulers"):
            scheduler_class(LRSchedule(name))


def test_it_is_data() -> None:
    for given in (
        {"name": "MultiStepLR", "options": {"milestones": [2, 5]}}, {"name": "cosine", "steps": 10, "warmup": 2}, None,
        "constant",
    ):  # fmt: skip
        how = Training(lr_schedule=given, optimizer_options={"amsgrad": True})  # type: ignore[arg-type]
        assert decode(Training, json.loads(json.dumps(encode(how))), "training") == how
        assert hash(how) == hash(decode(Training, encode(how), "training"))


def test_the_command_line_writes_it_as_a_mapping() -> None:
    schedule = "lr_schedule={'name': 'cosine', 'steps': 9, 'warmup': 2}"
    told = [schedule, "optimizer_options={'amsgrad': True}", "eps=1e-6"]
    assert training(told) == Training(
        lr_schedule=LRSchedule("cosine", steps=9, warmup=2), optimizer_options=(("amsgrad", True),), eps=1e-6
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cosine", "steps=None: 'cosine' arrives after so many updates, more than its warmup=0. give as many as"),
        ({"name": "linear", "steps": 3, "warmup": 3}, "steps=3: 'linear' arrives after so many updates"),
        ({"name": "constant", "steps": 3}, "lr_schedule='constant' with steps=3, end=0.0: only 'linear' and 'cosine'"),
        ({"name": "cosine", "steps": 9, "options": {"T_max": 3}}, "lr_schedule='cosine' with options {'T_max': 3}"),
        ({"name": "StepLR", "warmup": 3}, "lr_schedule='StepLR' with warmup=3: torch's class sets every update's rate"),
        ({"name": "linear", "stops": 9}, "lr_schedule={'name': 'linear', 'stops': 9}: a schedule has name"),
        ({"warmup": -1}, "warmup=-1: it is a number of updates"),
        ({"name": "cosine", "steps": 9, "end": "0"}, "end='0': it is a share of the learning rate"),
        (7, "lr_schedule=7: a schedule has name, steps"),
        ({"name": "StepLR", "options": [("gamma", 0.1), ("gamma", 0.2)]}, "lr_schedule's options [('gamma', 0.1)"),
        ({"name": "StepLR", "options": {"gamma": torch.ones(1)}}, "lr_schedule's options: gamma=tensor([1.]): plan"),
        ({"name": "StepLR", "options": {"gamma": float("nan")}}, "lr_schedule's options: gamma=nan: plan.json"),
        ("StairsLR", f"lr_schedule='StairsLR': torch has no such class. use one of {', '.join(SHAPES)}, ConstantLR"),
        ("StepLR", "StepLR with no options: "),
        ({"name": "StepLR", "options": {"size": 3}}, "lr_schedule's options size=3: StepLR has no size: it takes"),
    ],
)
def test_what_is_no_schedule_is_refused(given: object, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        check_schedule(Training(lr_schedule=given))  # type: ignore[arg-type]
    assert str(error.value).startswith(said)


@in_fork
def test_a_scheduler_made_in_the_loop_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Without a word: what it has moved is none of the plan's."""
    batch, how = (torch.randn(4, 4), torch.randn(4, 4)), Training(learning_rate=0.1)
    plan = parallelize_alone(nn.Linear(4, 4), "1x1 cpu", batch, loss_fn=nn.functional.mse_loss, training=how)
    folder, rates, told = plan.export(tmp_path / "plan"), [], io.StringIO()
    for begun in range(2):
        with autoplan.load(folder).program() as program, redirect_stderr(told):
            scheduler = lr_scheduler.OneCycleLR(program.optimizer, max_lr=0.5, total_steps=6)
            if not begun:
                program.init_weights()
            else:
                scheduler.load_state_dict(program.load_checkpoint(tmp_path / "saved")["scheduler"])
            for _ in range(3 - begun):
                rates.append([scheduler.get_last_lr()[0], *settings_of(program.optimizer)])
                program.step(batch)
                program.optimizer.step()
                scheduler.step()
                if program.steps == 1:
                    program.save_checkpoint(tmp_path / "saved", extra={"scheduler": scheduler.state_dict()})
    assert rates[3:] == rates[1:3] and rates[0] != rates[1]
    assert "its own" not in told.getvalue()


def settings_of(made: Optimizer) -> list[tuple[float, float]]:
    return [(group["lr"], group["betas"][0]) for group in made.param_groups]
