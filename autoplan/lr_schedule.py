"""The learning rate's schedule, as a user asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from autoplan.arguments.keywords import keywords
from autoplan.arguments.synonyms import SCHEDULE_NAMES
from autoplan.arguments.values import Settings, is_number, is_whole, settings
from autoplan.errors import ParallelismError
from autoplan.option_values import SHAPES


@keywords(ParallelismError, SCHEDULE_NAMES)
@dataclass(frozen=True)
class LRSchedule:
    """How the learning rate moves from update to update; steps that float16 skips move nothing.

    name     "constant", "linear" or "cosine": the learning rate itself, or on its way down to ``end`` times it; or a
             class of torch.optim.lr_scheduler by its name, "StepLR"
    steps    updates after which "linear" and "cosine" have arrived, warm-up included; they stay there
    warmup   updates in which it rises before, linearly: update k of them has (k+1)/(warmup+1) of it
    end      the share of the learning rate that is left after ``steps``
    options  the class' own, by its names: a mapping, or pairs
    """

    name: str = "constant"
    steps: int | None = None
    warmup: int = 0
    end: float = 0.0
    options: Settings = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", settings("lr_schedule's options", self.options))
        if not isinstance(self.name, str):
            raise ParallelismError(f"lr_schedule={self.name!r}", "a schedule has a name", "give for example 'cosine'")
        if not is_whole(self.warmup) or self.warmup < 0:
            raise ParallelismError(f"warmup={self.warmup!r}", "it is a number of updates", "give 0 or more")
        if not is_number(self.end) or self.end < 0:
            raise ParallelismError(f"end={self.end!r}", "it is a share of the learning rate", "give 0 or more")
        falls = self.name in SHAPES[1:]
        if falls and not (is_whole(self.steps) and self.steps > self.warmup):  # type: ignore[operator]
            cause = f"{self.name!r} arrives after so many updates, more than its warmup={self.warmup}"
            remedy = f"give as many as training takes, as in lr_schedule={{'name': {self.name!r}, 'steps': 1000}}"
            raise ParallelismError(f"steps={self.steps!r}", cause, remedy)
        if not falls and (self.steps is not None or self.end):
            raise ParallelismError(
                f"lr_schedule={self.name!r} with steps={self.steps}, end={self.end}",
                "only 'linear' and 'cosine' take them", "leave them out, or use one of these",
            )  # fmt: skip
        if self.name in SHAPES and self.options:
            raise ParallelismError(
                f"lr_schedule={self.name!r} with options {dict(self.options)}", "only a class of torch's has options",
                "leave them out, or name a class of torch.optim.lr_scheduler",
            )  # fmt: skip
        if self.name not in SHAPES and self.warmup:
            raise ParallelismError(
                f"lr_schedule={self.name!r} with warmup={self.warmup}", "torch's class sets every update's rate",
                f"leave it out, or use one of {SHAPES}",
            )  # fmt: skip


def as_schedule(given: object) -> LRSchedule | None:
    """What a user gives for a schedule as one; ParallelismError where it is none."""
    if given is None or isinstance(given, LRSchedule):
        return given
    known = [field.name for field in fields(LRSchedule)]
    if isinstance(given, str):
        return LRSchedule(given)
    if not isinstance(given, Mapping) or not set(given) <= set(known):
        cause = f"a schedule has {', '.join(known)}"
        raise ParallelismError(f"lr_schedule={given!r}", cause, "give an autoplan.LRSchedule")
    return LRSchedule(**given)
