"""What is plain in a checkpoint, taken up: the scaler, the schedule, the options of the optimizer's groups.

What goes on otherwise than the plan says is told; what would train nothing, or can't be had, is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from autoplan.errors import AutoplanError, WeightsError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.checkpoint import plain_values
from autoplan.runtime.checkpoint.groups import Options, changes, restored
from autoplan.runtime.checkpoint.keys import Snapshot
from autoplan.runtime.checkpoint.state_json import CheckpointState
from autoplan.runtime.elastic.stderr_messages import note

MOVED = ("lr", "betas", "momentum")  # by schedulers of torch's


def taken_plain_parts(snapshot: Snapshot, state: CheckpointState, source: Path) -> list[Options]:
    """Takes up the scaler's and the schedule's state; the options of this rank's groups, which the caller takes up.

    An AutoplanError, and nothing is changed, where one doesn't fit.
    """
    options = restored(snapshot.optimizer, snapshot.held, state.groups, source)
    check_rates(snapshot.spec.training, state, source)
    before = {name: part.state_dict() for name, part in snapshot.states.items()}
    rates = [dict(group) for group in snapshot.optimizer.param_groups]
    try:
        for name, part in snapshot.states.items():
            part.load_state_dict(state.states[name])  # type: ignore[arg-type]
    except (AutoplanError, KeyError, TypeError, ValueError, RuntimeError) as error:
        for name, part in snapshot.states.items():
            part.load_state_dict(before[name])
        for group, kept in zip(snapshot.optimizer.param_groups, rates, strict=True):
            group.update(kept)
        if isinstance(error, AutoplanError):
            raise
        said = f"the state of its {name} doesn't fit ({type(error).__name__}: {error})"
        raise WeightsError(source, said, "plan with the precision and schedule that it had") from None
    tell_changes(snapshot, state, source, options, rates)
    if snapshot.spec.training.lr_schedule is not None:  # which says the rates, by the plan's groups
        options = [{name: value for name, value in each.items() if name != "lr"} for each in options]
    return options


def check_rates(training: Training, state: CheckpointState, source: Path) -> None:
    """WeightsError where the checkpoint's learning rate is that of a schedule that is over, and the plan has none."""
    groups: Sequence[Any] = state.groups
    rates = [options.get("lr") for options, _ in groups] or [state.learning_rate]
    over = not any(rates) and training.learning_rate != 0
    if over and training.lr_schedule is None and state.schedule is not None:
        said = f"its schedule ({schedule_text(state.schedule)}) has ended at a learning rate of 0"
        remedy = (
            "plan with a schedule, or take its weights alone: load it into its own plan, save_weights there, and "
            "load_weights here"
        )
        raise WeightsError(source, f"{said}, and the plan has none: nothing would be trained", remedy)


def tell_changes(
    snapshot: Snapshot, state: CheckpointState, source: Path, options: Sequence[Options], before: Sequence[Options]
) -> None:
    """What goes on otherwise than the plan says, told by the first rank."""
    if dist.get_rank() != 0:
        return
    schedule, was = snapshot.spec.training.lr_schedule, state.schedule
    here = schedule_data(schedule)
    if here != was:
        note(f"{source}: its schedule is {schedule_text(was)}, the plan's {schedule_text(here)}, which is kept")
    for group, taken, now in zip(before, options, snapshot.optimizer.param_groups, strict=True):
        own = "initial_lr" in now and schedule is None  # a scheduler of torch's, made in the loop, moves them
        moved = MOVED if own else ("lr",) if schedule is not None else ()
        told = {name: value for name, value in taken.items() if name not in moved}
        if text := changes(group, told):
            note(f"{source}: goes on with its own {text}")
        rate, scheduled = float(taken.get("lr", now["lr"])), float(now["lr"])  # type: ignore[arg-type]
        if schedule is not None and here == was and not math.isclose(rate, scheduled):
            note(f"{source}: a learning rate of {rate:g} was reached there; by the plan's groups it is {scheduled:g}")


def schedule_data(schedule: LRSchedule | None) -> object:
    """A schedule as state.json has it."""
    return None if schedule is None else plain_values.frozen(asdict(schedule), "schedule")


def schedule_text(data: object) -> str:
    if not isinstance(data, dict):
        return "none"
    told = [f"{k}={v!r}" for k, v in data.items() if k != "name" and v not in (None, (), [], 0, 0.0)]
    return f"{data.get('name')} {' '.join(told)}".strip()
