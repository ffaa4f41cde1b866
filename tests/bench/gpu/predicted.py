"""What was measured, beside what is predicted and rehearsed. It needs no device."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.gpu.attempt import attempted
from tests.bench.gpu.measured import GB, PLANS, Measured, read
from tests.bench.gpu.plans import plan_of
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

BOUND = 0.05


@dataclass(frozen=True)
class Row:
    """Of one plan: (predicted, measured) seconds, (predicted, rehearsed, measured) bytes, (rehearsed, measured)
    kernels."""

    name: str
    seconds: tuple[float, float]
    bytes: tuple[int, int, int]
    kernels: tuple[int, int]

    @property
    def seconds_off(self) -> float:
        return self.seconds[0] / self.seconds[1] - 1

    @property
    def bytes_off(self) -> float:
        return self.bytes[0] / self.bytes[2] - 1

    @property
    def rehearsed_off(self) -> float:
        return self.bytes[1] / self.bytes[2] - 1

    def cells(self) -> tuple[str, ...]:
        planned, real = (f"{s * 1e3:.1f}" for s in self.seconds)
        predicted, rehearsed, measured = (f"{b / GB:.3f}" for b in self.bytes)
        return (
            self.name, planned, real, f"{self.seconds_off:+.1%}", predicted, rehearsed, measured,
            f"{self.bytes_off:+.1%}", f"{self.rehearsed_off:+.1%}", "{} : {}".format(*self.kernels),
        )  # fmt: skip


def run(setting: Setting) -> Result:
    wrong: list[str] = []
    rows: list[Row] = []
    for name, measured in read(setting).items():
        row = attempted(lambda name=name, measured=measured: row_of(setting, name, measured), name, wrong)
        if row is not None:
            rows.append(row)
            print(*row.cells(), sep=" | ", flush=True)
    wrong += [f"{row.name}: step time {row.seconds_off:+.1%}" for row in rows if abs(row.seconds_off) > BOUND]
    wrong += [f"{row.name}: peak memory {row.bytes_off:+.1%}" for row in rows if abs(row.bytes_off) > BOUND]
    told = (
        f"Plans of one rank, priced by {setting.priced_by}. Peaks are of tensors on the device in a step and its "
        "update; kernels are what a rehearsal counts, against the profiler's, copies left out. Asked: predicted "
        f"seconds and bytes within {BOUND:.0%} of the measured."
    )
    heads = (
        "plan", "predicted, ms", "measured, ms", "off", "predicted, GB", "rehearsed", "measured", "predicted off",
        "rehearsed off", "kernels",
    )  # fmt: skip
    return Result("Predicted, rehearsed and measured", told, heads, tuple(row.cells() for row in rows), tuple(wrong))


def row_of(setting: Setting, name: str, measured: Measured) -> Row:
    plan = plan_of(setting, PLANS[name])
    (rehearsed,) = plan.rehearse().classes
    launched = sum(call.kind == "operator" for call in rehearsed.trace.calls)
    return Row(
        name, (plan.predicted.step_time_s, measured.seconds),
        (plan.predicted.peak_bytes[0].total, rehearsed.peak_bytes, measured.peak_bytes), (launched, measured.kernels),
    )  # fmt: skip
