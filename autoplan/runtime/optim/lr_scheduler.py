"""The learning rate's schedule: torch's schedulers, made from what the plan says and moved by each update."""

import inspect
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from autoplan.arguments.values import options_text
from autoplan.errors import ParallelismError
from autoplan.lr_schedule import LRSchedule
from autoplan.option_values import SET_RATES, SHAPES
from autoplan.options import Training
from autoplan.runtime.optim.optimizer_options import refused, unknown
from autoplan.runtime.optim.parameter_group import DEFAULT

NOT_DATA = ("LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler")
"""Classes that take functions or other schedulers, which plan.json doesn't hold."""

REDUCED = "reduced"
"""How the names begin under which it keeps the rates that it has come to."""
WATCHED = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""What ReduceLROnPlateau has learnt from the losses."""


class LearningRates:
    """The learning rates of an optimizer's groups, over the updates.

    own      the rate of each group before any update
    rate     the learning rate that the schedule starts from: the first group's
    updates  taken so far, those that were skipped not counted
    """

    def __init__(self, schedule: LRSchedule, optimizer: Optimizer) -> None:
        self.schedule, self.optimizer = schedule, optimizer
        self.own = tuple(float(group["lr"]) for group in optimizer.param_groups)
        self.rate, self.updates = self.own[0], 0
        self.scheduler = build_scheduler(schedule, optimizer)

    @property
    def watches(self) -> bool:
        """Whether it looks at the loss."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def moved(self, loss: Tensor | None = None) -> None:
        """After an update, whose loss one class looks at."""
        self.updates += 1
        if isinstance(self.scheduler, ReduceLROnPlateau):
            assert loss is not None
            self.scheduler.step(float(loss))
        else:
            self.step()

    def step(self) -> None:
        """ParallelismError where the schedule is over, and says so."""
        try:
            self.scheduler.step()
        except ValueError as error:
            said = f"it has no learning rate for the step after {self.updates} updates: {error}"
            raise ParallelismError(f"the schedule {self.schedule}", said, "plan with a longer one") from None

    def set_rate(self, rate: float) -> None:
        """As it would be now had it started from that learning rate; of ReduceLROnPlateau with the reductions so far.

        ParallelismError where the schedule sets every rate from its options.
        """
        if self.schedule.name in SET_RATES:
            cause = f"the schedule {self.schedule.name} sets every rate from {SET_RATES[self.schedule.name]}"
            raise ParallelismError(f"learning_rate={rate!r}", cause, "plan with other options of it")
        if self.watches and self.rate:
            state, times = self.state_dict(), rate / self.rate
            reductions = {key: value * times for key, value in state.items() if key.startswith(REDUCED)}
            self.load_state_dict(state | reductions | {"rate": rate})
        else:
            self.restart(rate, self.updates)

    def restart(self, rate: float, updates: int) -> None:
        """As it is after so many updates from that learning rate on.

        Every one is gone through again, since most classes reach a rate from the one before; of ReduceLROnPlateau none,
        since the losses are gone.
        """
        self.rate, self.updates = rate, updates
        for group, own in zip(self.optimizer.param_groups, in_proportion(self.own, rate), strict=True):
            group["lr"] = own
            group.pop("initial_lr", None)
        self.scheduler = build_scheduler(self.schedule, self.optimizer)
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # else torch warns of steps out of order
            for _ in range(updates):
                self.step()

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, from which it goes on exactly."""
        state = {"rate": self.rate, "updates": self.updates}
        if isinstance(self.scheduler, ReduceLROnPlateau):
            state |= {name: getattr(self.scheduler, name) for name in WATCHED}
            state |= {reduced(group): float(group["lr"]) for group in reversed(self.optimizer.param_groups)}
        return state

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """The plan's schedule at the point that a state was taken at."""
        self.restart(state["rate"], int(state["updates"]))
        if isinstance(self.scheduler, ReduceLROnPlateau) and REDUCED in state:
            for name in WATCHED:
                setattr(self.scheduler, name, state[name])
            for group in self.optimizer.param_groups:
                group["lr"] = state.get(reduced(group), state[REDUCED])


def reduced(group: Mapping[str, Any]) -> str:
    """Under which name a group's rate is kept."""
    title = group.get("name", DEFAULT)
    return REDUCED if title == DEFAULT else f"{REDUCED}/{title}"


def in_proportion(own: Sequence[float], rate: float) -> list[float]:
    """Each group's rate where the first's is another: as many times as much as it was of the first's."""
    first = own[0]
    return [rate if each == first else each * rate / first if first else each for each in own]


def build_scheduler(schedule: LRSchedule, optimizer: Optimizer) -> LRScheduler:
    """Torch's scheduler of a schedule."""
    if schedule.name in SHAPES:
        return LambdaLR(optimizer, partial(share, schedule))
    return scheduler_class(schedule)(optimizer, **dict(schedule.options))  # type: ignore[arg-type]


def share(schedule: LRSchedule, update: int) -> float:
    """Of the learning rate, what an update takes, counted from 0 (Loshchilov & Hutter 2017, "SGDR", for the cosine)."""
    if update < schedule.warmup:
        return (update + 1) / (schedule.warmup + 1)
    if schedule.steps is None:
        return 1.0
    done = min(1.0, (update - schedule.warmup) / (schedule.steps - schedule.warmup))
    left = 1 - done if schedule.name == "linear" else (1 + math.cos(math.pi * done)) / 2
    return schedule.end + (1 - schedule.end) * left


def scheduler_class(schedule: LRSchedule) -> type[LRScheduler]:
    """The class of torch.optim.lr_scheduler with this name; ParallelismError where there is none, or none from data."""
    known = {
        name: value
        for name, value in vars(lr_scheduler).items()
        if isinstance(value, type) and issubclass(value, LRScheduler) and value is not LRScheduler and name[0] != "_"
    }
    usable = sorted(set(known) - set(NOT_DATA))
    if schedule.name not in usable:
        held = "it takes functions or schedulers, which plan.json can't hold"
        cause = held if schedule.name in known else "torch has no such class"
        raise ParallelismError(f"lr_schedule={schedule.name!r}", cause, f"use one of {', '.join((*SHAPES, *usable))}")
    return known[schedule.name]


def check_schedule(training: Training) -> None:
    """ParallelismError where there is no such schedule, or one that doesn't take its options."""
    schedule = training.lr_schedule
    if schedule is None or schedule.name in SHAPES:
        return
    kind = scheduler_class(schedule)
    accepted = [name for name in inspect.signature(kind).parameters if name not in ("optimizer", "last_epoch")]
    for name, value in schedule.options:
        if name not in accepted:
            raise unknown(f"lr_schedule's options {name}={value!r}", schedule.name, name, accepted)
    with refused(f"{schedule.name} with {options_text(dict(schedule.options)) or 'no options'}"):
        build_scheduler(schedule, SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9))
