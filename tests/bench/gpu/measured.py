"""Plans of one rank on the device: seconds of a step, bytes at their peak, kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.gpu.attempt import attempted
from tests.bench.gpu.clock import Act, peak_bytes, profiled, seconds, times_in
from tests.bench.gpu.plans import OneRank, folder_of, running, step_of
from tests.bench.gpu.profiled import waiting
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

GB = 1e9
PLANS: Mapping[str, OneRank] = {
    "llama, fp32": OneRank("Llama", "fp32"),
    "llama": OneRank("Llama", "bf16-mixed"),
    "llama, two microbatches": OneRank("Llama", "bf16-mixed", parts=2),
    "llama, recomputed": OneRank("Llama", "bf16-mixed", recompute="full"),
    "llama, in part": OneRank("Llama", "bf16-mixed", recompute="selective"),
    "llama, eager": OneRank("Llama", "bf16-mixed", compiled=False),
    "gpt2, fp32": OneRank("GPT-2, dropout", "fp32"),
    "gpt2": OneRank("GPT-2, dropout", "bf16-mixed"),
    "gpt2, recomputed": OneRank("GPT-2, dropout", "bf16-mixed", recompute="full"),
    "gpt2, two microbatches": OneRank("GPT-2, dropout", "bf16-mixed", parts=2),
    "mixtral": OneRank("Mixtral", "bf16-mixed"),
    "mixtral, recomputed": OneRank("Mixtral", "bf16-mixed", recompute="full"),
}


@dataclass(frozen=True)
class Measured:
    """Of one plan.

    kernel_s  what each kernel took in a step, by its name: (how often, seconds in all)
    waits     calls in a step by which the host waits for the device, by name
    """

    seconds: float
    peak_bytes: int
    kernels: int
    kernel_s: Mapping[str, tuple[int, float]]
    waits: Mapping[str, int]


def names(setting: Setting) -> list[str]:
    return list(PLANS)[: 2 if setting.small else None]


def prepare(setting: Setting) -> None:
    for name in names(setting):
        folder_of(setting, PLANS[name])


def run(setting: Setting) -> Result:
    wrong: list[str] = []
    found: dict[str, Measured] = {}
    for name in names(setting):
        measured = attempted(lambda name=name: on_device(setting, PLANS[name]), name, wrong)
        if measured is not None:
            found[name] = measured
            file(setting).write_text(json.dumps({name: asdict(each) for name, each in found.items()}, indent=1))
            print(name, f"{measured.seconds * 1e3:.1f} ms", f"{measured.peak_bytes / GB:.3f} GB", flush=True)
    rows = [
        (name, f"{each.seconds * 1e3:.1f}", f"{sum(s for _, s in each.kernel_s.values()) * 1e3:.1f}",
         f"{each.peak_bytes / GB:.3f}", str(each.kernels), ", ".join(f"{n} {k}" for k, n in each.waits.items()) or "0")
        for name, each in found.items()
    ]  # fmt: skip
    told = (
        "Plans of one rank: the median of ten steps with their updates, what their kernels take together, the bytes of "
        "tensors on the device at most, kernels without copies, and calls by which the host waits for the device."
    )
    heads = ("plan", "step, ms", "kernels, ms", "peak, GB", "kernels", "waits")
    return Result("Measured", told, heads, tuple(rows), tuple(wrong))


def on_device(setting: Setting, asked: OneRank) -> Measured:
    with ExitStack() as stack:
        acts: list[Act] = []

        def make() -> Act:
            acts.append(step_of(stack.enter_context(running(setting, asked)), setting))
            return acts[0]

        most = peak_bytes(make, setting.on)
        taken = seconds(acts[0], setting.on, 3 if setting.small else 10)
        found = profiled(acts[0], setting.on)
    times, waits = times_in(found, setting.on), dict(waiting(list(found.events() or [])))
    return Measured(taken, most, sum(count for count, _ in times.values()), times, waits)


def file(setting: Setting) -> Path:
    return setting.folder / "measured_plans.json"


def read(setting: Setting) -> dict[str, Measured]:
    """What ``run`` left; FileNotFoundError before it ran."""
    data = json.loads(file(setting).read_text())
    kernels = {name: {k: (int(n), float(s)) for k, (n, s) in each["kernel_s"].items()} for name, each in data.items()}
    return {
        name: Measured(
            float(each["seconds"]), int(each["peak_bytes"]), int(each["kernels"]), kernels[name], each["waits"]
        )
        for name, each in data.items()
    }
