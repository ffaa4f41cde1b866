"""The kinds of folders that are damaged: one import and one entry each."""

from __future__ import annotations

from tests.corruptions import checkpoint
from tests.corruptions.target import Target

TARGETS: tuple[Target, ...] = (checkpoint.TARGET,)
