"""The device's own profile, by ``cost_models.calibrate``."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import PROFILE, Setting

SECONDS, SMALL_SECONDS, LIMIT_S = 240, 6, 540.0


def run(setting: Setting) -> Result:
    """Raises where calibrate fails, with what it said."""
    file = setting.folder / PROFILE
    file.unlink(missing_ok=True)
    budget_s = SMALL_SECONDS if setting.small else SECONDS
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
        "-m", "cost_models.calibrate", "--out", str(file), "--seconds", str(budget_s),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"calibrate ended with {done.returncode}: {done.stderr[-2000:]}")
    device = setting.cluster().profile()[0]
    rows = [(f"{dtype}, peak", f"{rate / 1e12:.1f} TFLOP/s") for dtype, rate in device.peak_flops_per_s.items()]
    rows.append(("memory", f"{device.memory_bandwidth_bytes_per_s / 1e9:.0f} GB/s"))
    told = f"`cost_models.calibrate` in {budget_s} s: {PROFILE}, with every measured point beside it."
    return Result("Calibrated profile", told, ("figure", "measured"), tuple(rows))
