"""What the property tests of rules share: a strategy's outcomes held to the operator on one device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autoplan.ir.mesh import Mesh
from autoplan.rules.check.case import Case, copies
from autoplan.rules.check.differ import differences
from autoplan.rules.check.simulate import (
    Coordinates,
    Local,
    Outcome,
    cut,
    everywhere,
    joint_groups,
    localise,
    rank_axes_at,
    run_local,
    run_whole,
)
from autoplan.rules.strategies import Strategy

__all__ = [
    "Case",
    "Coordinates",
    "Local",
    "Outcome",
    "check",
    "copies",
    "cut",
    "everywhere",
    "joint_groups",
    "localise",
    "rank_axes_at",
    "run_local",
    "run_whole",
]


def check(case: Case, strategy: Strategy, mesh: Mesh, outcomes: Mapping[Coordinates, Outcome], whole: Outcome) -> None:
    """Every rank's outcome together equals the operator on one device: value, gradients, and buffers."""
    tolerance = 1e-4 if torch.float32 in {t.dtype for t in (*case.tensors, case.result)} else 1e-9
    assert all(o.value.dtype == whole.value.dtype for o in outcomes.values()) or whole.value.dtype == torch.bool
    for difference in differences(case, strategy, mesh, outcomes, whole):
        says = f"{difference} of {case.sample} {case.rule.spec} {strategy} differs by {difference.error}"
        assert difference.error <= tolerance, says
