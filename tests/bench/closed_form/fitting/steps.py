"""A device's figures from the steps that were measured on it: python -m tests.bench.closed_form --fit a100-sxm-80gb.

Figures are fitted per device over all of its tables at once, on their even rows, and the odd rows' errors are told. No
figure belongs to a table.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from cost_models.hardware import Level, Topology
from tests.bench.closed_form.case import Case
from tests.bench.closed_form.halves import split
from tests.bench.closed_form.metrics import Errors, errors_of
from tests.bench.closed_form.predict import point_of, predicted_s

Seconds = Callable[[Case], float]


@dataclass(frozen=True)
class Figure:
    """What may be fitted: a field of ``Device``, or a factor on a link's bandwidth.

    low, high       its range
    section, key    where a profile holds it; a factor's are those of the figure that it multiplies
    unit, scale     as a profile writes it, and what one such unit is
    """

    name: str
    low: float
    high: float
    section: str
    key: str
    unit: str = "1"
    scale: float = 1.0

    @property
    def factor(self) -> bool:
        """Multiplies the profile's figure instead of replacing it."""
        return "." in self.name

    @property
    def crossing(self) -> bool:
        """Stands in the levels of a topology instead of in its device."""
        return self.name == CROSSING

    @property
    def dtype(self) -> str:
        """Of a share that a dtype's products reach; "" for other figures."""
        return self.name.removeprefix(_SHARE) if self.name.startswith(_SHARE) else ""

    def of(self, topology: Topology) -> float:
        """The topology's or its device's own; 1 for a factor, and where no level has it."""
        if self.factor:
            return 1.0
        if self.crossing:
            return next((level.crossing.share for level in topology.levels if level.crossing), 1.0)
        device = topology.device
        return dict(device.matmul_shares).get(self.dtype, 1.0) if self.dtype else float(getattr(device, self.name))


_SHARE = "share of "
CROSSING = "through_host"

FIGURES = (
    Figure("matmul_sustained", 0.3, 1.0, "matmul", "sustained"),
    Figure("matmul_efficiency", 0.3, 1.0, "matmul", "efficiency"),
    Figure("attention_efficiency", 0.1, 1.0, "attention", "efficiency"),
    Figure("attention_backward_efficiency", 0.1, 1.0, "attention", "backward_efficiency"),
    Figure("scores_efficiency", 0.2, 1.0, "attention", "scores"),
    Figure("memory_efficiency", 0.2, 0.92, "memory", "efficiency"),
    Figure("overlap_slowdown", 0.0, 1.0, "overhead", "overlap"),
    Figure("straggler_per_doubling", 0.0, 0.1, "overhead", "straggler"),
    Figure("kernel_launch_s", 0.0, 30e-6, "overhead", "kernel_launch", "us", 1e-6),
    Figure("dispatch_s", 0.0, 100e-6, "overhead", "dispatch", "us", 1e-6),
    Figure(_SHARE + "float8", 0.2, 1.2, "shares", "float8"),
    Figure(_SHARE + "float8-rowwise", 0.2, 1.2, "shares", "float8-rowwise"),
    Figure(CROSSING, 0.05, 1.0, "machine", "through_host"),
    Figure("node.bandwidth", 0.2, 1.5, "links.node", "bandwidth"),
    Figure("nic.bandwidth", 0.2, 1.5, "links.nic", "bandwidth"),
)


@dataclass(frozen=True)
class TableErrors:
    """A table's errors under some figures, on the rows fitted and on the others."""

    table: str
    fitted: Errors | None
    reported: Errors | None


@dataclass(frozen=True)
class Fit:
    """The figures of a device, before and after, and what each table's errors came to."""

    device: str
    start: tuple[tuple[str, float], ...]
    values: tuple[tuple[str, float], ...]
    before: tuple[TableErrors, ...]
    after: tuple[TableErrors, ...]

    def toml(self) -> str:
        """Lines for the device's profile, below the section that each belongs to; factors as comments."""
        source = f"fit: even rows of {', '.join(table.table for table in self.after)}"
        today = datetime.date.today().strftime("%Y-%m")
        lines: dict[str, list[str]] = {}
        for name, value in self.values:
            figure = figure_named(name)
            shown = f'value = {value / figure.scale:.4g}, unit = "{figure.unit}"'
            line = f'{figure.key} = {{ {shown}, source = "{source}", date = "{today}" }}'
            if figure.factor:
                line = f"# {figure.key}: times {value:.4g}, {source}"
            lines.setdefault(figure.section, []).append(line)
        return "\n".join(line for section, below in lines.items() for line in (f"[{section}]", *below))


def figure_named(name: str) -> Figure:
    """A ``ValueError`` for a name that isn't one of ``FIGURES``."""
    for figure in FIGURES:
        if figure.name == name:
            return figure
    raise ValueError(f"{name} can't be fitted; these can: {', '.join(figure.name for figure in FIGURES)}")


def with_figures(topology: Topology, values: Mapping[str, float]) -> Topology:
    """The topology with figures of its device replaced, and the bandwidths of its levels multiplied, of those on the
    node's own link by one factor and of the others by another."""
    figures = [figure_named(name) for name in values]
    plain = [figure.name for figure in figures if not (figure.factor or figure.dtype or figure.crossing)]
    fields: dict[str, Any] = {name: values[name] for name in plain}
    shares = {figure.dtype: values[figure.name] for figure in figures if figure.dtype}
    fields["matmul_shares"] = tuple({**dict(topology.device.matmul_shares), **shares}.items())
    node = topology.levels[0].link
    factors = {True: values.get("node.bandwidth", 1.0), False: values.get("nic.bandwidth", 1.0)}
    levels = (replace(level, link=level.link.scaled(factors[level.link == node])) for level in topology.levels)
    if CROSSING in values:
        levels = (_crossed(level, values[CROSSING]) for level in levels)
    return Topology(replace(topology.device, **fields), tuple(levels))


def _crossed(level: Level, share: float) -> Level:
    return level if level.crossing is None else replace(level, crossing=replace(level.crossing, share=share))


def fit(
    cases: Iterable[Case], names: Sequence[str], softness: float = 0.01, half: int = 0, seconds: Seconds = predicted_s
) -> Fit:
    """The named figures of one device that meet its cases' fitted halves best.

    softness  error (as a share) above which it counts linearly and no longer squared: "soft_l1", so that outliers stay
              in but don't lead; small, since it is the mean absolute error that is reported
    half      0: fitted on the even rows; 1: on the odd ones
    seconds   what predicts a case: the closed form, or what prices its plan

    Errors are logarithms of predicted over measured. A table of n rows weighs as n to the power 2/3: between tables
    alike, where 5 rows would lead 109, and rows alike, where 109 would silence 5. A
    ``ValueError`` where there is nothing to fit on, or where the cases are of several devices.
    """
    held = tuple(cases)
    devices = {case.device for case in held}
    if not held:
        raise ValueError("no published steps of that device are read: name one that a fitted table has")
    if len(devices) != 1:
        raise ValueError(f"one device is fitted at a time, not {sorted(devices)}")
    figures = [figure_named(name) for name in names]
    begin = [figure.of(_widest(held)) for figure in figures]
    halves = [split(cases_of)[half] for cases_of in _tables(held).values()]
    fitted = [(case, weight) for part in halves for case, weight in _weighted(part)]

    def residuals(places: Sequence[float]) -> np.ndarray:
        values = {figure.name: _value(figure, place) for figure, place in zip(figures, places, strict=True)}
        return np.array([weight * _soft(_log_error(case, values, seconds), softness) for case, weight in fitted])

    places = [_place(figure, value) for figure, value in zip(figures, begin, strict=True)]
    found = least_squares(residuals, places, bounds=(0.0, 1.0), diff_step=1e-3, x_scale=0.1).x
    values = {figure.name: _value(figure, place) for figure, place in zip(figures, found, strict=True)}
    start = dict(zip(names, begin, strict=True))
    before, after = (errors_with(held, figures, seconds) for figures in (start, values))
    return Fit(held[0].device, tuple(start.items()), tuple(values.items()), before, after)


def errors_with(
    cases: Sequence[Case], values: Mapping[str, float], seconds: Seconds = predicted_s
) -> tuple[TableErrors, ...]:
    """Each table's errors with some figures replaced."""
    made = []
    for table, held in _tables(cases).items():
        halves = split(replace(case, topology=with_figures(case.topology, values)) for case in held)
        points = ([replace(point_of(case), predicted=seconds(case)) for case in half] for half in halves)
        fitted, reported = (errors_of(own) for own in points)
        made.append(TableErrors(table, fitted, reported))
    return tuple(made)


def _widest(cases: Sequence[Case]) -> Topology:
    """The topology that tells every figure: one of several nodes, where there is one."""
    return max((case.topology for case in cases), key=lambda topology: topology.devices)


def _tables(cases: Iterable[Case]) -> dict[str, list[Case]]:
    by_table: dict[str, list[Case]] = {}
    for case in cases:
        by_table.setdefault(case.table, []).append(case)
    return by_table


def _weighted(cases: Sequence[Case]) -> list[tuple[Case, float]]:
    return [(case, len(cases) ** (-1 / 6)) for case in cases]


def _log_error(case: Case, values: Mapping[str, float], seconds: Seconds) -> float:
    return math.log(seconds(replace(case, topology=with_figures(case.topology, values))) / case.measured_s)


def _soft(error: float, softness: float) -> float:
    """A number whose square is soft_l1 of the error: 2·c²·(√(1 + (error/c)²) − 1)."""
    return math.copysign(softness * math.sqrt(2 * (math.hypot(1, error / softness) - 1)), error)


def _value(figure: Figure, place: float) -> float:
    """Of a place in the figure's range, 0 to 1."""
    return figure.low + float(place) * (figure.high - figure.low)


def _place(figure: Figure, value: float) -> float:
    """Strictly inside, as the solver wants its start."""
    return min(0.99, max(0.01, (value - figure.low) / (figure.high - figure.low)))
