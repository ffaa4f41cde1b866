"""Across a reshape: merging and splitting dims is relabelling on the common refinement of both shapes.

Order: `detours` (layouts in which a reshape can be crossed), `plan` (from a layout of one shape to one of another).
"""

from __future__ import annotations

from autoplan.redistribution.refinement import Refinement, follow_reshape, from_refined, refine, to_refined
from autoplan.redistribution.reshape.plan import Leg, ReshapePlan, redistribute_reshape

__all__ = [
    "Leg", "Refinement", "ReshapePlan", "follow_reshape", "from_refined", "redistribute_reshape", "refine",
    "to_refined",
]  # fmt: skip
