"""A schedule is given as a name, a mapping or a schedule, and refused where it says what its name doesn't take."""

from __future__ import annotations

import pytest

from autoplan.errors import ParallelismError
from autoplan.lr_schedule import LRSchedule, as_schedule

COSINE = LRSchedule("cosine", steps=100, warmup=10, end=0.1)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (None, None),
        ("constant", LRSchedule()),
        (COSINE, COSINE),
        ({"name": "cosine", "steps": 100, "warmup": 10, "end": 0.1}, COSINE),
        ({"name": "StepLR", "options": {"step_size": 3}}, LRSchedule("StepLR", options=(("step_size", 3),))),
    ],
)
def test_all_ways_to_give_one(given: object, made: LRSchedule | None) -> None:
    assert as_schedule(given) == made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "cosine", "step": 3}, "a schedule has name, steps, warmup, end, options"),
        (7, "give an autoplan.LRSchedule"),
        ({"name": "cosine", "steps": 10, "warmup": 10}, "more than its warmup=10"),
        ({"name": "constant", "steps": 10}, "only 'linear' and 'cosine' take them"),
        ({"name": "constant", "options": {"gamma": 0.1}}, "only a class of torch's has options"),
        ({"name": "StepLR", "warmup": 2}, "torch's class sets every update's rate"),
        ({"warmup": -1}, "it is a number of updates"),
        ({"end": -0.5}, "it is a share of the learning rate"),
    ],
)
def test_what_a_name_does_not_take_is_refused(given: object, said: str) -> None:
    with pytest.raises(ParallelismError, match=said.replace("(", r"\(")):
        as_schedule(given)
