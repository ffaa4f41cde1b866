"""One step under torch.profiler."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from autoplan.measurement.rank_step import STEP, UPDATE, Event


def profiled(
    step: Callable[[], object], update: Callable[[], object], device: torch.device, ready: Callable[[], object],
    kept: Path | None = None,
) -> list[Event]:  # fmt: skip
    """The events of a step and its update, in the trace's own form.

    ready  waits until every rank's profiler has started, which takes one a quarter of a second more than another
    kept   where the trace is to stay, gzipped where its name ends in .gz
    """
    activities = {ProfilerActivity.CPU} if device.type == "cpu" else supported_activities()
    with profile(activities=activities) as found:
        ready()
        with record_function(STEP):
            step()
            with record_function(UPDATE):
                update()
            synchronize(device)
    with tempfile.TemporaryDirectory(prefix="autoplan-profile-") as folder:
        file = Path(folder) / "step.json"
        found.export_chrome_trace(str(file))  # which a profile does once
        content = file.read_bytes()
    if kept is not None:
        kept.write_bytes(gzip.compress(content) if kept.suffix == ".gz" else content)
    return json.loads(content)["traceEvents"]


def synchronize(device: torch.device) -> None:
    """Waits for what the device was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
