"""Plans for tests of what is planned: the very plan that a search chooses, with nothing priced beside it.

Pricing named systems and what pins cost takes most of a small model's search, and comes after the plan is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import autoplan
from autoplan.ir.choice import StageChoice
from autoplan.ir.record import PlanRecord
from tests.support.shared_traces import SharedTraces

TRACES = SharedTraces()


@contextmanager
def alone() -> Iterator[None]:
    """Within it searches give their plan and no alternatives."""
    with patch("autoplan.search.entry.alternatives", return_value=()):
        yield


def parallelize_alone(*arguments: object, **options: object) -> autoplan.Plan:
    """What ``autoplan.parallelize`` gives for these arguments, no alternatives beside it; of a trace that is shared."""
    with alone(), TRACES.within():
        return TRACES.proving(autoplan.parallelize(*arguments, **options))  # type: ignore[arg-type]


def parallelize_unproved(*arguments: object, **options: object) -> autoplan.Plan:
    """The same, whose export proves nothing of evaluations and of other sizes: that takes four more traces."""
    return replace(parallelize_alone(*arguments, **options), given=None)


def with_stage(record: PlanRecord, full: int, selective: int) -> PlanRecord:
    """A plan of one stage, so many of its segments recomputed."""
    stage = StageChoice(0, len(record.model.segments), full, selective)
    return replace(record, chosen=replace(record.chosen, stages=(stage,)))
