"""A device's figures from the plans of steps that were measured on it.

    python -m tests.bench.published_steps.fitting DEVICE [--figures matmul_sustained,…] [--published FOLDER]

As ``python -m tests.bench.closed_form --fit``, whose weights and halves it takes, but by the price that users are told.
Plans are priced with the profile's figures, and with each of them moved a little; between these the logarithms of
seconds are taken for straight lines, on which the best figures are found. What ``parallelize`` isn't asked (a layer
alone, products in 8 bit) the closed form prices.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from autoplan.ir.graph import Model
from tests.bench.closed_form.case import Case
from tests.bench.closed_form.fitting.steps import Figure, Seconds, figure_named, fit, with_figures
from tests.bench.closed_form.predict import predicted_s
from tests.bench.closed_form.published import cases_on, default_folder
from tests.bench.closed_form.report import print_fit
from tests.bench.published_steps.job import NotPlannable, Traced, job_of
from tests.bench.published_steps.price import planned, trace

USUAL = "matmul_sustained,overlap_slowdown,straggler_per_doubling"
MOVED = 0.03  # by which share of itself a figure is moved

Key = tuple[str, int, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="a shipped profile's name")
    parser.add_argument("--figures", default=USUAL, help="names of tests.bench.closed_form.fitting.steps.FIGURES")
    parser.add_argument("--published", type=Path, default=default_folder(), help="the folder of published tables")
    given = parser.parse_args(arguments)
    cases, names = tuple(cases_on(given.published, given.device)), given.figures.split(",")
    print_fit(fit(cases, names, seconds=straight(cases, names, by_plan({}))), Console(width=150))
    return 0


def by_plan(models: dict[Traced, Model]) -> Seconds:
    """What prices a case by its plan, or by the closed form where it has none; ``models`` takes up what is traced."""

    def seconds(case: Case) -> float:
        try:
            job = job_of(case)
        except NotPlannable:
            return predicted_s(case)
        if job.traced not in models:
            models[job.traced] = trace(job.traced, job)
        return planned(models[job.traced], job).step_s

    return seconds


@dataclass(frozen=True)
class Straight:
    """Seconds whose logarithms are straight in a few figures.

    begin   the figures' values of each case where it was priced
    logs    logarithms there
    slopes  of each figure
    """

    figures: tuple[Figure, ...]
    begin: dict[Key, tuple[float, ...]]
    logs: dict[Key, float]
    slopes: dict[Key, tuple[float, ...]]

    def __call__(self, case: Case) -> float:
        key = key_of(case)
        values = zip(self.figures, self.begin[key], self.slopes[key], strict=True)
        return math.exp(self.logs[key] + sum(slope * (f.of(case.topology) - begin) for f, begin, slope in values))


def key_of(case: Case) -> Key:
    return case.table, case.row, case.what


def straight(cases: Sequence[Case], names: Sequence[str], seconds: Seconds) -> Straight:
    """The straight lines through the cases' seconds, and through those with each figure moved."""
    figures = tuple(figure_named(name) for name in names)
    begin = {key_of(case): tuple(figure.of(case.topology) for figure in figures) for case in cases}
    logs = {key_of(case): math.log(seconds(case)) for case in cases}
    slopes = {key_of(case): tuple(slope(case, figure, seconds, logs[key_of(case)]) for figure in figures)
              for case in cases}  # fmt: skip
    return Straight(figures, begin, logs, slopes)


def slope(case: Case, figure: Figure, seconds: Seconds, log: float) -> float:
    """Of the logarithm of a case's seconds by a figure."""
    at = figure.of(case.topology)
    to = at * (1 + MOVED) if at * (1 + MOVED) <= figure.high else at * (1 - MOVED)
    if to == at:
        to = MOVED * figure.high
    moved = replace(case, topology=with_figures(case.topology, {figure.name: to}))
    return (math.log(seconds(moved)) - log) / (to - at)


if __name__ == "__main__":
    raise SystemExit(main())
