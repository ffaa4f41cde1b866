"""The kinds of folders that are damaged: one import and one entry each."""

from __future__ import annotations

from tests.corruptions import checkpoint, plan, weights
from tests.corruptions.target import Target

TARGETS: tuple[Target, ...] = (checkpoint.TARGET, weights.TARGET, plan.TARGET)
