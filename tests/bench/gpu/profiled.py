"""A profiler's trace of a training step: nothing on its path waits for the device."""

from __future__ import annotations

from collections import Counter

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from tests.bench.gpu.clock import STEP, profiled, synchronize
from tests.bench.gpu.one_rank import MODELS
from tests.bench.gpu.plans import OneRank, folder_of, running, step_of
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

WAITS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "Synchronize")


def plans(setting: Setting) -> list[OneRank]:
    return [OneRank(model, "bf16-mixed") for model in (MODELS[:1] if setting.small else MODELS)]


def prepare(setting: Setting) -> None:
    for asked in plans(setting):
        folder_of(setting, asked)


def run(setting: Setting) -> Result:
    rows, wrong = [], []
    for asked in plans(setting):
        model = asked.model
        with running(setting, asked) as program:
            act = step_of(program, setting)
            act()
            act()
            synchronize(setting.on)  # else the step waits to see how the one before it ended
            found = profiled(act, setting.on)
        file = setting.folder / f"trace-{model.split(',')[0].lower()}.json.gz"
        found.export_chrome_trace(str(file))
        waits = waiting(list(found.events() or []))
        rows.append((model, str(sum(waits.values())), ", ".join(f"{n} {name}" for name, n in waits.items()), file.name))
        wrong += [f"{model}: {n} {name}" for name, n in waits.items()]
    told = (
        "A step under torch.profiler, after two others; calls by which the host waits for the device. A CPU has none "
        "to wait for: there a step looks at its own loss."
    )
    heads = ("model", "waits", "which", "trace")
    return Result("A step without a stop", told, heads, tuple(rows), tuple(wrong))


def waiting(events: list[FunctionEvent]) -> Counter[str]:
    """Of a trace's events within the step those that wait; what the profile itself waits for lies outside."""
    (step,) = (event.time_range for event in events if event.name == STEP and event.device_type == DeviceType.CPU)
    within = (event for event in events if step.start <= event.time_range.start <= step.end)
    return Counter(event.name for event in within if event.name.endswith(WAITS))
