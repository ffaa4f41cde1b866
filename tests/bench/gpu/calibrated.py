"""The device's own profile: its operators measured and fitted as ``cost_models.calibrate`` does it, in one process.

Between one device and itself there are no links to measure: those of the known profile stand in their place.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date

import torch
import torch.distributed as dist

from cost_models.calibrate import operators, sizes
from cost_models.calibrate.cases import Operator, Sample, split
from cost_models.calibrate.fit_device import blank_device, fit_device
from cost_models.calibrate.measure import measure
from cost_models.calibrate.report import held_out_errors, mean_error, rows, sizes_text
from cost_models.calibrate.world import Machine, World, machine
from cost_models.calibrate.write import Origin, profile_text, table_text, write_profile, write_text
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import PROFILE, Setting

SECONDS, SMALL_SECONDS, LONGEST = 80.0, 5.0, 0.01
DTYPES = ("float32", "bfloat16", "float64", "float16")
TABLE, MACHINE = "profile.csv", "machine.json"


def run(setting: Setting) -> Result:
    budget_s = SMALL_SECONDS if setting.small else SECONDS
    device = setting.on if setting.device == "cpu" else torch.device(setting.device, 0)
    backend = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        world = World(0, 1, 1, device, ())
        known = machine(world)
        cases = cases_of(known)
        samples, rounds = measure(
            cases, lambda case: operators.start(case, device), operators.calls, world, budget_s, budget_s * LONGEST
        )
    finally:
        dist.destroy_process_group()
    left_out = f"{len(cases) - len(samples)} of {len(cases)} sizes, which the host bounds or take too long, left out"
    said = f"medians of {rounds} rounds in {budget_s:.0f} s; {left_out}"
    text = {"known": asdict(known), "torch": torch.__version__, "date": date.today().isoformat(), "said": said}
    (setting.folder / MACHINE).write_text(json.dumps(text, indent=1))
    return fitted(setting, samples)


def refit(setting: Setting) -> Result:
    """Fits the profile anew from what was measured; it needs no device."""
    cases = {(case.family, sizes_text(case)): case for case in cases_of(known_machine(setting))}
    with (setting.folder / TABLE).open() as file:
        table = [(cases.get((row["kind"], row["case"])), float(row["measured_s"])) for row in csv.DictReader(file)]
    return fitted(setting, [Sample(case, seconds) for case, seconds in table if case is not None])


def cases_of(known: Machine) -> Sequence[Operator]:
    return sizes.operators(DTYPES, "bfloat16" if known.accelerated else "float32", known.accelerated)


def known_machine(setting: Setting) -> Machine:
    return Machine(**json.loads((setting.folder / MACHINE).read_text())["known"])


def fitted(setting: Setting, samples: Sequence[Sample[Operator]]) -> Result:
    file, known = setting.folder / PROFILE, known_machine(setting)
    file.unlink(missing_ok=True)
    base, links = setting.cluster().profile()
    measured = json.loads((setting.folder / MACHINE).read_text())
    points = split(samples)
    blank = blank_device(file.stem, known.memory_bytes, known.reserved_bytes, known.multiprocessors, known.accelerated)
    found = replace(fit_device(blank, points.fitted), overlap_slowdown=base.overlap_slowdown)
    errors = held_out_errors(points, lambda case: case.predict(found))
    off = f"mean error {mean_error(errors):.1%} on sizes not fitted"
    told = f"one process on {known.name}, PyTorch {measured['torch']}: {off}"
    origin = Origin(f"Measured with {told}", measured["date"], told, f"as of {base.name}, not measured")
    write_profile(file, profile_text(found, {"node": links.node, "nic": links.nic}, 1, 1, origin))
    write_text(setting.folder / TABLE, table_text(list(rows(points, lambda case: case.predict(found)))))
    return result(setting, f"{told}, {measured['said']}")


def result(setting: Setting, told: str) -> Result:
    """What is read back of the profile."""
    device = setting.cluster().profile()[0]
    figures = [(f"{dtype}, peak", f"{rate / 1e12:.2f} TFLOP/s") for dtype, rate in device.peak_flops_per_s.items()]
    figures += [
        ("memory, peak", f"{device.memory_bandwidth_bytes_per_s / 1e9:.0f} GB/s"),
        ("memory, of the peak", f"{device.memory_efficiency:.0%}"),
    ]
    text = f"{told}. Plans are priced by it ({PROFILE}); links are those of the known profile, for there is one device."
    return Result("Calibrated profile", text, ("figure", "measured"), tuple(figures))
