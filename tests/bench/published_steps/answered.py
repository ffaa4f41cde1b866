"""A published row with the plan that was found for it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.closed_form.metrics import Point
from tests.bench.published_steps.price import Planned
from tests.bench.published_steps.rows import LAST, Published


@dataclass(frozen=True)
class Answered:
    """A row and its plan."""

    row: Published
    plan: Planned

    @property
    def is_planned(self) -> bool:
        return bool(self.plan.plan)

    @property
    def point(self) -> Point:
        predicted = self.plan.step_s
        if self.row.rank:
            predicted = self.row.beside + (self.plan.last_bytes if self.row.rank == LAST else self.plan.peak_bytes)
        return Point(self.row.row, self.row.label, self.row.group, self.row.device, predicted, self.row.measured)

    @property
    def closed(self) -> Point:
        row = self.row
        return Point(row.row, row.label, row.group, row.device, row.closed, row.measured)
