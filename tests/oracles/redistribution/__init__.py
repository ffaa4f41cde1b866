"""Redistributions on all ranks of a mesh at once, in NumPy: the judge of what the planner finds.

Order: `parts` (what each rank holds), `group` (one operator on one group), `execution` (whole redistributions).
"""

from __future__ import annotations

from tests.oracles.redistribution.execution import (
    Execution,
    execute,
    execute_backward,
    groups,
    run,
    run_backward,
)
from tests.oracles.redistribution.parts import deal, dual, pairing, whole_of

__all__ = [
    "Execution", "deal", "dual", "execute", "execute_backward", "groups", "pairing", "run", "run_backward", "whole_of",
]  # fmt: skip
