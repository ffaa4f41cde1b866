"""Every row met once by figures that it had no part in: fitted on the even rows and met on the odd ones, and the other
way round.

The profiles hold the figures of the even rows. This says whether that half was a lucky one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.closed_form.case import Case
from tests.bench.closed_form.fitting.steps import fit, with_figures
from tests.bench.closed_form.halves import split
from tests.bench.closed_form.metrics import Errors, errors_of
from tests.bench.closed_form.predict import point_of
from tests.bench.closed_form.published import cases_on

FITTED: Mapping[str, tuple[str, ...]] = {
    "a100-sxm-80gb": (
        "matmul_sustained", "memory_efficiency", "scores_efficiency", "overlap_slowdown", "straggler_per_doubling",
        "through_host",
    ),
    "a100-sxm-40gb": ("matmul_sustained", "scores_efficiency"),
    "h100-sxm": ("matmul_sustained", "overlap_slowdown", "straggler_per_doubling"),
    "h100-sxm-96gb-500w": (
        "matmul_sustained", "overlap_slowdown", "share of float8", "share of float8-rowwise",
    ),
}  # fmt: skip
"""Which figures of a device are fitted to steps: those that no benchmark of a kernel tells."""


@dataclass(frozen=True)
class BothWays:
    """A table's errors on a device: of the odd rows, the even ones and all, each by figures of the other half."""

    table: str
    device: str
    odd: Errors | None
    even: Errors | None
    together: Errors | None


def both_ways(cases: Iterable[Case], names: Sequence[str]) -> tuple[BothWays, ...]:
    """The errors of one device's tables."""
    held = tuple(cases)
    values = [dict(fit(held, names, half=half).values) for half in (0, 1)]
    made = []
    for table in dict.fromkeys(case.table for case in held):
        even, odd = split(case for case in held if case.table == table)
        halves = [
            [point_of(replace(case, topology=with_figures(case.topology, found))) for case in half]
            for half, found in ((odd, values[0]), (even, values[1]))
        ]
        odd_errors, even_errors, together = (errors_of(points) for points in (*halves, halves[0] + halves[1]))
        made.append(BothWays(table, held[0].device, odd_errors, even_errors, together))
    return tuple(made)


def all_both_ways(folder: Path) -> tuple[BothWays, ...]:
    """Of every device that figures are fitted of and that the folder has tables of."""
    found: list[BothWays] = []
    for device, names in FITTED.items():
        cases = cases_on(folder, device)
        if cases:
            found += both_ways(cases, names)
    return tuple(found)
