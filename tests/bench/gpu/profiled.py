"""A profiler's trace of a training step: nothing on its path waits for the device."""

from __future__ import annotations

from collections import Counter

from autoplan import Training
from tests.bench.gpu.clock import profiled
from tests.bench.gpu.one_rank import MODELS, one_rank_plan, running, step_of
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

WAITS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "StreamSynchronize", "EventSynchronize")
LAST = "DeviceSynchronize"  # the profile's own, once the step is issued


def run(setting: Setting) -> Result:
    rows, wrong = [], []
    for model in MODELS[:1] if setting.small else MODELS:
        plan = one_rank_plan(setting, model, Training(precision="bf16-mixed"), {"recompute": "none"})
        with running(plan, setting.folder / "profiled") as program:
            act = step_of(program, setting)
            act()
            act()
            found = profiled(act, setting.on)
        file = setting.folder / f"trace-{model.split(',')[0].lower()}.json.gz"
        found.export_chrome_trace(str(file))
        waits = waiting([event.name for event in found.events() or []])
        rows.append((model, str(sum(waits.values())), ", ".join(f"{n} {name}" for name, n in waits.items()), file.name))
        wrong += [f"{model}: {n} {name}" for name, n in waits.items()]
    told = (
        "A step under torch.profiler, after two others; calls by which the host waits for the device. A CPU has none "
        "to wait for: there a step looks at its own loss."
    )
    heads = ("model", "waits", "which", "trace")
    return Result("A step without a stop", told, heads, tuple(rows), tuple(wrong))


def waiting(names: list[str]) -> Counter[str]:
    """Of a trace's events those that wait: the last synchronisation of the device is the measurement's own."""
    found = Counter(name for name in names if name.endswith(WAITS))
    beyond = sum(name.endswith(LAST) for name in names) - 1
    return found + Counter({f"cuda{LAST}": beyond} if beyond > 0 else {})
