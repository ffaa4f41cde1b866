"""Across a reshape: layouts of two shapes by their common refinement, on which merging and splitting is relabelling."""

from __future__ import annotations

from autoplan.redistribution.refinement import Refinement, follow_reshape, from_refined, refine, to_refined
from autoplan.redistribution.reshape.plan import Leg, ReshapePlan, redistribute_reshape

__all__ = [
    "Leg", "Refinement", "ReshapePlan", "follow_reshape", "from_refined", "redistribute_reshape", "refine",
    "to_refined",
]  # fmt: skip
