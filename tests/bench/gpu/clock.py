"""Seconds, peak memory and kernels of a step on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from tests.bench.memory.watch import Tensors

Act = Callable[[], object]
COPIES = ("Memcpy", "Memset")


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
        act()
        synchronize(device)
    return found


def kernels(act: Act, device: torch.device) -> int:
    """How many the device ran, copies left out; on a CPU the operators that call no other."""
    events: list[FunctionEvent] = list(profiled(act, device).events() or [])
    if device.type == "cpu":
        return sum(e.name.startswith("aten::") and not e.cpu_children for e in events)
    cuda = torch.autograd.DeviceType.CUDA
    return sum(e.device_type == cuda and not e.name.startswith(COPIES) for e in events)


def peak_bytes(make: Callable[[], Act], device: torch.device) -> int:
    """Of tensors on the device, at most, in a step after the first of what ``make`` makes there."""
    if device.type == "cpu":
        with Tensors() as tensors:
            act = make()
            act()
            tensors.restart()
            act()
        return tensors.peak_bytes
    act = make()
    act()
    synchronize(device)
    torch.cuda.reset_peak_memory_stats()
    act()
    synchronize(device)
    return torch.cuda.max_memory_allocated()
