"""Plans of one rank: seconds and peak memory as they are predicted by the measured profile, as they are rehearsed, and
as they are measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from autoplan import Plan, Training
from tests.bench.gpu.clock import Act, kernels, peak_bytes, seconds
from tests.bench.gpu.one_rank import one_rank_plan, running, step_of
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

BOUND, GB = 0.05, 1e9


@dataclass(frozen=True)
class Asked:
    model: str
    precision: str
    recompute: str = "none"
    parts: int = 1  # microbatches


PLANS: Mapping[str, Asked] = {
    "llama, fp32": Asked("Llama", "fp32"),
    "llama": Asked("Llama", "bf16-mixed"),
    "llama, two microbatches": Asked("Llama", "bf16-mixed", parts=2),
    "llama, four microbatches": Asked("Llama", "bf16-mixed", parts=4),
    "llama, recomputed": Asked("Llama", "bf16-mixed", "full"),
    "llama, in part": Asked("Llama", "bf16-mixed", "selective"),
    "gpt2, fp32": Asked("GPT-2, dropout", "fp32"),
    "gpt2": Asked("GPT-2, dropout", "bf16-mixed"),
    "gpt2, recomputed": Asked("GPT-2, dropout", "bf16-mixed", "full"),
    "gpt2, two microbatches": Asked("GPT-2, dropout", "bf16-mixed", parts=2),
    "mixtral": Asked("Mixtral", "bf16-mixed"),
    "mixtral, recomputed": Asked("Mixtral", "bf16-mixed", "full"),
}


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
    rows = [measured(setting, name) for name in list(PLANS)[: 2 if setting.small else None]]
    wrong = [f"{row.name}: step time {row.seconds_off:+.1%}" for row in rows if abs(row.seconds_off) > BOUND]
    wrong += [f"{row.name}: peak memory {row.bytes_off:+.1%}" for row in rows if abs(row.bytes_off) > BOUND]
    told = (
        "Plans of one rank, priced by the measured profile. Peaks are of tensors on the device in a step and its "
        "update; kernels are what a rehearsal counts, against the profiler's, copies left out. Asked: predicted "
        f"seconds and bytes within {BOUND:.0%} of the measured."
    )
    heads = (
        "plan", "predicted, ms", "measured, ms", "off", "predicted, GB", "rehearsed", "measured", "predicted off",
        "rehearsed off", "kernels",
    )  # fmt: skip
    return Result("Predicted, rehearsed and measured", told, heads, tuple(row.cells() for row in rows), tuple(wrong))


def measured(setting: Setting, name: str) -> Row:
    asked = PLANS[name]
    pinned = {"recompute": asked.recompute, "micro_batch": setting.size.rows // asked.parts}
    plan = one_rank_plan(setting, asked.model, Training(precision=asked.precision, learning_rate=1e-4), pinned)
    (rehearsed,) = plan.rehearse().classes
    launched = sum(call.kind == "operator" for call in rehearsed.trace.calls)
    taken, most, ran = on_device(setting, plan)
    return Row(
        name, (plan.predicted.step_time_s, taken),
        (plan.predicted.peak_bytes[0].total, rehearsed.peak_bytes, most), (launched, ran),
    )  # fmt: skip


def on_device(setting: Setting, plan: Plan) -> tuple[float, int, int]:
    """Seconds of a step, bytes at most, kernels."""
    with ExitStack() as stack:
        acts: list[Act] = []

        def make() -> Act:
            acts.append(step_of(stack.enter_context(running(plan, setting.folder / "predicted")), setting))
            return acts[0]

        most = peak_bytes(make, setting.on)
        rounds = 3 if setting.small else 10
        return seconds(acts[0], setting.on, rounds), most, kernels(acts[0], setting.on)
