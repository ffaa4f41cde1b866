"""The device's own profile: its operators measured and fitted as ``cost_models.calibrate`` does it, in one process.

Between one device and itself there are no links to measure: those of the known profile stand in their place.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import torch
import torch.distributed as dist

from cost_models.calibrate import operators, sizes
from cost_models.calibrate.cases import split
from cost_models.calibrate.fit_device import blank_device, fit_device
from cost_models.calibrate.measure import measure
from cost_models.calibrate.report import held_out_errors, mean_error, rows
from cost_models.calibrate.world import World, machine
from cost_models.calibrate.write import Origin, profile_text, table_text, write_profile, write_text
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import PROFILE, Setting

SECONDS, SMALL_SECONDS, LONGEST = 80.0, 5.0, 0.01
DTYPES = ("float32", "bfloat16", "float64", "float16")


def run(setting: Setting) -> Result:
    file = setting.folder / PROFILE
    file.unlink(missing_ok=True)
    base, links = setting.cluster().profile()
    budget_s = SMALL_SECONDS if setting.small else SECONDS
    device = setting.on if setting.device == "cpu" else torch.device(setting.device, 0)
    backend = dist.get_default_backend_for_device(device.type)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        world = World(0, 1, 1, device, ())
        known = machine(world)
        cases = sizes.operators(DTYPES, "bfloat16" if known.accelerated else "float32", known.accelerated)
        samples, rounds = measure(
            cases, lambda case: operators.start(case, device), operators.calls, world, budget_s, budget_s * LONGEST
        )
    finally:
        dist.destroy_process_group()
    points = split(samples)
    blank = blank_device(file.stem, known.memory_bytes, known.reserved_bytes, known.multiprocessors, known.accelerated)
    fitted = replace(fit_device(blank, points.fitted), overlap_slowdown=base.overlap_slowdown)
    errors = held_out_errors(points, lambda case: case.predict(fitted))
    off = f"mean error {mean_error(errors):.1%} on sizes not fitted"
    left_out = f"; {len(cases) - len(samples)} of {len(cases)} sizes, which the host bounds or take too long, left out"
    told = f"one process on {known.name}, PyTorch {torch.__version__}: {off}"
    origin = Origin(f"Measured with {told}", date.today().isoformat(), told, f"as of {base.name}, not measured")
    write_profile(file, profile_text(fitted, {"node": links.node, "nic": links.nic}, 1, 1, origin))
    write_text(file.with_suffix(".csv"), table_text(list(rows(points, lambda case: case.predict(fitted)))))
    return result(setting, f"{told}, medians of {rounds} rounds in {budget_s:.0f} s{left_out}")


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
