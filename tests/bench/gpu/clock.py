"""Seconds, peak memory and kernels of a step on a device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from tests.bench.memory.watch import Tensors

Act = Callable[[], object]
COPIES = ("Memcpy", "Memset")
STEP = "autoplan step"  # the mark around what is profiled


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def seconds(act: Act, device: torch.device, rounds: int) -> float:
    """The median; each is from a device at rest to a device at rest."""
    found = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        act()
        synchronize(device)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def in_turns(one: Act, other: Act, device: torch.device, rounds: int) -> list[float]:
    """Ratios of the seconds of both, round by round."""
    return [seconds(one, device, 1) / seconds(other, device, 1) for _ in range(rounds)]


def profiled(act: Act, device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities) as found:
        with record_function(STEP):
            act()
        synchronize(device)
    return found


def kernels(act: Act, device: torch.device) -> int:
    """How many the device ran, copies left out; on a CPU the operators that call no other."""
    return sum(count for count, _ in kernel_times(act, device).values())


def kernel_times(act: Act, device: torch.device) -> dict[str, tuple[int, float]]:
    """Of each kernel, as ``kernels`` counts them, by name: how often it ran, and its seconds in all."""
    return times_in(profiled(act, device), device)


def times_in(found: profile, device: torch.device) -> dict[str, tuple[int, float]]:
    """``kernel_times`` of what was profiled."""
    events: list[FunctionEvent] = list(found.events() or [])
    if device.type == "cpu":
        ran = [(e.name, e.self_cpu_time_total) for e in events if e.name.startswith("aten::") and not e.cpu_children]
    else:
        cuda = torch.autograd.DeviceType.CUDA
        marks = {e.name for e in events if e.device_type != cuda}  # of the profiled program: they aren't kernels
        own = [e for e in events if e.device_type == cuda and e.name not in marks and not e.name.startswith(COPIES)]
        ran = [(e.name, e.self_device_time_total) for e in own]
    times: dict[str, tuple[int, float]] = {}
    for name, microseconds in ran:
        count, taken = times.get(name, (0, 0.0))
        times[name] = count + 1, taken + microseconds / 1e6
    return times


def peak_bytes(make: Callable[[], Act], device: torch.device) -> int:
    """Of tensors on the device, at most, in a step after the first of what ``make`` makes there."""
    if device.type == "cpu":
        with Tensors() as tensors:
            act = make()
            act()
            tensors.restart()
            act()
        return tensors.peak_bytes
    gc.collect()  # what a program left behind in cycles isn't this one's
    synchronize(device)
    before = torch.cuda.memory_allocated()
    act = make()
    act()
    gc.collect()
    synchronize(device)
    torch.cuda.reset_peak_memory_stats()
    act()
    synchronize(device)
    return torch.cuda.max_memory_allocated() - before
