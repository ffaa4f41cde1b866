"""Plans that several test files ask for, searched once in a run of the tests, whichever of its processes asks first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from autoplan.export.folder import plan_text
from autoplan.ir.record import PlanRecord
from autoplan.plan import Plan
from tests.support.records import parse_plan


@dataclass(frozen=True)
class SharedPlans:
    """A folder that all of a run's processes see, with a plan.json for each plan by its key."""

    folder: Path

    def record(self, key: str, make: Callable[[], Plan]) -> PlanRecord:
        """The plan that ``make`` makes, read back from its file: a key stands for one plan."""
        file = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                plan = make()
                file.write_text(plan_text(plan.record, str(plan)))
            return parse_plan(file.read_text(), str(file))
