"""Attacks on what a checkpoint brings along beside values: extra, moments, schedules, groups, averages."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import AutoplanError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Place, Silent, clear, equal
from tests.attacks.checkpoints import RANKS, TRAINING, caught, load, load_refused, new_program, of, saved, train
from tests.fixtures import tiny_program as tiny

ENDED = LRSchedule("linear", steps=2)


def change_extra(rank: int, world: int, folder: str) -> Mapping[str, object]:
    extra: dict[str, list[int]] = {"order": [1, 2]}
    with new_program() as program:
        program.save_checkpoint(folder, extra=extra, asynchronous=True)
        extra["order"].append(3)
        program.saver.wait()
        return program.load_checkpoint(folder)


def extra_changed_later(place: Place) -> str:
    found = place.pools.of(RANKS).run(change_extra, str(place.folder / "step-1"))[0]
    return equal(found == {"order": [1, 2]}, f"extra is {found}")


def save_extra(rank: int, world: int, folder: str, kind: str) -> AutoplanError | None:
    endless: list = []
    endless.append(endless)
    extra = {"by rank": rank, "endless": endless, "tensor": torch.ones(1)}[kind]
    with new_program() as program:
        return caught(lambda: program.save_checkpoint(folder, extra={"position": extra}))


def extra_refused(place: Place, kind: str, *words: str) -> str:
    told = place.pools.of(RANKS).run(save_extra, str(place.folder / "step-1"), kind)
    if None in told or any(place.folder.iterdir()):
        raise Silent("it was saved")
    return clear(told[1], words)


def save_nan_moment(rank: int, world: int, folder: str) -> AutoplanError | None:
    with new_program() as program:
        train(program)
        if rank == 1:
            state = next(s for h in program.held if (s := program.optimizer.state[h.updated])["exp_avg_sq"].numel())
            state["exp_avg_sq"].mul_(float("nan"))
        return caught(lambda: program.save_checkpoint(folder))


def moment_not_finite(place: Place) -> str:
    told = place.pools.of(RANKS).run(save_nan_moment, str(place.folder / "step-1"))
    if None in told or (place.folder / "step-1").exists():
        raise Silent("a NaN was saved")
    return clear(told[1], ("optimizer state that isn't finite", "exp_avg_sq"))


def load_and_go_on(rank: int, world: int, folder: str, training: Training) -> tuple[dict[str, Tensor], str, set[str]]:
    """After a load and a step in another precision: parameters, what was said, the dtypes of moments."""
    said = io.StringIO()
    with new_program(training) as program, contextlib.redirect_stderr(said):
        program.load_checkpoint(folder)
        found = dict(program.full_state_dict())
        for held in program.held:  # the tiny program computes in float64 alone: an update is enough
            held.parameter.grad = torch.ones_like(held.parameter)
        program.optimizer.step()
        moments = {str(program.optimizer.state[h.updated]["exp_avg"].dtype) for h in program.held}
    return found, said.getvalue(), moments


def another_precision(place: Place) -> str:
    folder, single = saved(place), replace(TRAINING, precision="fp32")
    wanted, _, _ = place.pools.of(RANKS).run(load_and_go_on, str(folder), TRAINING)[0]
    found, said, moments = place.pools.of(RANKS).run(load_and_go_on, str(folder), single)[0]
    alike = all(torch.equal(found[name], wanted[name].to(found[name].dtype)) for name in wanted)
    return equal(alike and "converted" in said and moments == {"torch.float32"}, f"{said.strip()[-90:]}; {moments}")


def schedule_has_ended(place: Place) -> str:
    folder = saved(place, steps=2, training=replace(TRAINING, lr_schedule=ENDED))
    return load_refused(place, folder, "has ended at a learning rate of 0", "the plan has none")


def told_at_load(place: Place, folder: Path, training: Training, *words: str) -> str:
    error, _, said = place.pools.of(RANKS).run(load, str(folder), training)[0]
    if error is not None or any(word not in said for word in words):
        raise Silent(f"it was loaded, and said: {error or said!r}")
    return said.strip()


def another_schedule(place: Place) -> str:
    folder = saved(place, training=replace(TRAINING, lr_schedule=ENDED))
    longer = replace(TRAINING, lr_schedule=LRSchedule("cosine", steps=50))
    return told_at_load(place, folder, longer, "its schedule is linear steps=2", "the plan's cosine steps=50")


def another_weight_decay(place: Place) -> str:
    return told_at_load(place, saved(place), replace(TRAINING, weight_decay=0.5), "weight_decay 0.01 (the plan's 0.5)")


def in_two_groups(program: Program) -> None:
    """The first parameter in a group by itself, as a program with parameter groups has it."""
    [*_, group] = program.optimizer.param_groups
    first, *rest = group["params"]
    group["params"] = rest
    program.optimizer.add_param_group({**group, "params": [first], "lr": 0.5, "weight_decay": 0.0})


def save_groups(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        in_two_groups(program)
        train(program)
        program.save_checkpoint(folder)


def load_groups(rank: int, world: int, folder: str, split: bool) -> list[tuple[float, float]] | AutoplanError:
    with new_program(replace(TRAINING, learning_rate=0.25)) as program:
        if split:
            in_two_groups(program)
            for group in program.optimizer.param_groups:
                group["lr"], group["weight_decay"] = 0.125, 0.75
        error = caught(lambda: program.load_checkpoint(folder))
        return error or [(group["lr"], group["weight_decay"]) for group in program.optimizer.param_groups]


def rates_by_group(place: Place) -> str:
    place.pools.of(RANKS).run(save_groups, str(place.folder / "step-1"))
    found = place.pools.of(RANKS).run(load_groups, str(place.folder / "step-1"), True)[0]
    return equal(found == [(1e-2, 0.01), (0.5, 0.0)], f"rates and decays are {found}")


def groups_into_one(place: Place) -> str:
    place.pools.of(RANKS).run(save_groups, str(place.folder / "step-1"))
    found = place.pools.of(RANKS).run(load_groups, str(place.folder / "step-1"), False)[0]
    if isinstance(found, list):
        raise Silent(f"one group's rate was taken for all: {found}")
    return clear(found, ("here they are in one group", "plan with the parameter groups"))


def save_apart(rank: int, world: int, folder: str) -> bool:
    """Whether save_weights writes the replicas' mean while they are apart."""
    spec = tiny.spec(dp=RANKS, training=TRAINING)
    spec = replace(spec, parallelism=replace(spec.parallelism, local_steps=8))
    with Program(spec, tiny.program()) as program:
        program.load_weights(tiny.reference().state_dict())
        for held in program.held:
            held.values.add_(float(rank))
        before = [held.values.clone() for held in program.held]
        wanted = dict(program.full_state_dict())
        program.save_weights(folder)
        apart = all(torch.equal(held.values, kept) for held, kept in zip(program.held, before, strict=True))
        dist.barrier()
        program.load_weights(folder)
        found = dict(program.full_state_dict())
        return apart and all(torch.equal(found[name], wanted[name]) for name in wanted)


def local_sgd_weights(place: Place) -> str:
    told = place.pools.of(RANKS).run(save_apart, str(place.folder / "weights"))
    return equal(all(told), "save_weights writes the replicas' mean, and leaves them apart")


ATTACKS: tuple[Attack, ...] = (
    of("extra changed while an asynchronous save runs", "extra as it is later", extra_changed_later),
    of("extra that differs by rank", "one rank's taken for all",
       lambda p: extra_refused(p, "by rank", "ranks don't agree on extra")),
    of("extra that holds itself", "RecursionError", lambda p: extra_refused(p, "endless", "it holds itself")),
    of("a tensor in extra", "TypeError in a thread", lambda p: extra_refused(p, "tensor", "of Tensor")),
    of("NaN in one rank's optimizer state", "a checkpoint that can't be gone on from", moment_not_finite),
    of("a checkpoint in fp64 loaded into a plan in fp32", "the optimizer crashes at its first step", another_precision),
    of("a finished schedule's checkpoint, a plan without one", "trained at a rate of 0", schedule_has_ended),
    of("another schedule in the plan", "the schedule changed silently", another_schedule),
    of("another weight_decay in the plan", "one of both dropped silently", another_weight_decay),
    of("two groups with rates of their own", "group 0's rate for all", rates_by_group),
    of("two groups loaded into one", "group 0's rate for all", groups_into_one),
    of("save_weights between two averages of local SGD", "one replica written", local_sgd_weights),
)  # fmt: skip
