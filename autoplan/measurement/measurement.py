"""The result of a measurement: the predicted step beside the one that ran, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from autoplan.report.table import paragraph, table
from autoplan.report.words import seconds_text

GB = 1e9
SAME = 0.02  # of the measured step: what is off by less isn't worth a remedy


@dataclass(frozen=True)
class Measured:
    """One part of a step, in seconds.

    remedy  where the prediction is off: what its figure comes from, and how to get a better one
    """

    name: str
    predicted_s: float
    measured_s: float
    remedy: str

    @property
    def off_s(self) -> float:
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class MeasuredPeak:
    """Bytes of tensors on a device of one pipeline rank, at most; the largest of its ranks."""

    rank: int
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True)
class Measurement:
    """A plan's step as it ran, beside what was predicted.

    plan         its headline
    device       what it ran on
    steps_s      of each step that was timed, on the rank that took longest
    step_s       their median
    interval     within which the step was expected
    parts        of a step on one device, the mean over all; measured ones add up to ``step_s``
    axes         collectives, messages and copies: their own time by axis, hidden or not; where the profile says it
    peaks        by pipeline rank; none on a CPU, which doesn't count them
    profiled_s   how long the profiled step took, from which the parts are
    """

    plan: str
    device: str
    ranks: int
    steps_s: tuple[float, ...]
    step_s: float
    predicted_s: float
    interval: tuple[float, float]
    parts: tuple[Measured, ...]
    axes: tuple[Measured, ...]
    peaks: tuple[MeasuredPeak, ...]
    profiled_s: float

    @property
    def most_off(self) -> Measured | None:
        """The part whose prediction is furthest off; None where none is by 2% of the step."""
        most = max(self.parts, key=lambda part: abs(part.off_s))
        return most if abs(most.off_s) > SAME * self.step_s else None

    def to_dict(self) -> dict:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.interval
        within = "within" if low <= self.step_s <= high else "outside"
        share = f"{100 * (self.step_s / self.predicted_s - 1):+.1f}%" if self.predicted_s else "not predicted"
        steps = f"{len(self.steps_s)} step{'s' * (len(self.steps_s) > 1)}"
        lines = [
            f"{self.plan}, on {self.ranks} x {self.device}",
            f"measured {seconds_text(self.step_s)} a step, the median of {steps} ({seconds_text(min(self.steps_s))} to "
            f"{seconds_text(max(self.steps_s))}); predicted {seconds_text(self.predicted_s)}: {share}, {within} the "
            f"interval of {seconds_text(low)} to {seconds_text(high)}",
            "",
            seconds_table("part of a step", self.parts),
        ]
        if self.axes:
            lines += ["", seconds_table("on its way over, hidden or not", self.axes)]
        if self.peaks:
            lines += ["", peaks_table(self.peaks)]
        most = self.most_off
        if most is not None:
            off = f"Most off: {most.name}, {signed(most.off_s)}. {most.remedy}."
        else:
            off = "No part is off by 2% of the step."
        note = (
            f"The parts are of one step under the profiler, which took {seconds_text(self.profiled_s)}; they are put "
            "to the length of the others. A rank that waits for a slower one counts as waiting."
        )
        return "\n".join([*lines, "", paragraph(off), paragraph(note), ""])


def seconds_table(name: str, parts: Sequence[Measured]) -> str:
    rows = [[p.name, seconds_text(p.predicted_s), seconds_text(p.measured_s), signed(p.off_s)] for p in parts]
    return table([name, "predicted", "measured", "off by"], rows, right=(1, 2, 3))


def peaks_table(peaks: Sequence[MeasuredPeak]) -> str:
    rows = [
        [f"pipeline rank {p.rank}", f"{p.predicted_bytes / GB:.2f} GB", f"{p.measured_bytes / GB:.2f} GB",
         f"{100 * (p.measured_bytes / p.predicted_bytes - 1):+.1f}%"]
        for p in peaks
    ]  # fmt: skip
    return table(["peak memory", "predicted", "measured", "off by"], rows, right=(1, 2, 3))


def signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{seconds_text(abs(seconds))}"
