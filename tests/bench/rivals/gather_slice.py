"""Gather, then slice: what is always possible. Of each dim the outermost axes that stay are left alone."""

from __future__ import annotations

import itertools

from autoplan.redistribution.exchange.boxes import Dims
from tests.bench.rivals.steps import Step, gather, slice_


def common(here: tuple[str, ...], there: tuple[str, ...]) -> int:
    """How many axes, from the outermost, two splits of a dim have in common."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False)))


def plan(source: Dims, target: Dims) -> tuple[Step, ...]:
    kept = [common(here, there) for here, there in zip(source, target, strict=True)]
    gathers = [gather(dim, axis) for dim, axes in enumerate(source) for axis in reversed(axes[kept[dim] :])]
    slices = [slice_(dim, axis) for dim, axes in enumerate(target) for axis in axes[kept[dim] :]]
    return (*gathers, *slices)
