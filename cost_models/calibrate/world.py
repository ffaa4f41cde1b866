"""The processes that torchrun started: where this one stands, the axes that they form, and what they agree upon."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from cost_models.calibrate.cases import Axis
from cost_models.errors import ProfileError

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class World:
    """One process among ``nodes`` x ``devices_per_node``, with its group on each axis."""

    rank: int
    nodes: int
    devices_per_node: int
    device: torch.device
    groups: tuple[tuple[Axis, ProcessGroup], ...]

    @property
    def size(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis, _ in self.groups)

    def group(self, axis: Axis) -> ProcessGroup:
        return dict(self.groups)[axis]

    def synchronize(self) -> None:
        """Waits for what the accelerator still has to do."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def barrier(self) -> None:
        self.largest([0.0])

    def mean(self, values: list[float]) -> list[float]:
        """The mean of each value over the ranks."""
        return self._reduced([value / self.size for value in values], dist.ReduceOp.SUM)

    def largest(self, values: list[float]) -> list[float]:
        """The largest of each value over the ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: list[float], by: dist.ReduceOp.RedOpType) -> list[float]:
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(together, by)
        result: list[float] = together.tolist()
        return result


def join() -> World:
    """Joins the processes that torchrun started; a ``ProfileError`` where it started one, none, or uneven nodes."""
    size, local = (int(os.environ.get(name, "0")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if size < 2 or local < 1:
        value = "one process" if size == 1 else "this process"
        cause = "links are measured between processes, which torchrun starts"
        remedy = "torchrun --nproc-per-node <devices of a node> -m cost_models.calibrate --out mine.toml"
        raise ProfileError(value, cause, f"Run {remedy}")
    if size % local:
        cause = f"is not a multiple of the {local} of this node"
        raise ProfileError(f"{size} processes", cause, "Start as many on each node")
    device = _device()
    dist.init_process_group(dist.get_default_backend_for_device(device.type), timeout=TIMEOUT)
    axes = cluster_axes(size // local, local)
    groups = tuple((axis, _group(axis, size)) for axis in axes)
    return World(dist.get_rank(), size // local, local, device, groups)


def _device() -> torch.device:
    """This process' accelerator, or the CPU where there is none. ``ProfileError`` for Apple's, which has no links."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    if accelerator.type == "mps":
        cause = "is Apple's GPU, one a machine, and torch has no collective library for its tensors"
        raise ProfileError("the accelerator mps", cause, "Plan for processes of the CPU, by the shipped profile cpu")
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    return torch.device(accelerator.type, int(os.environ["LOCAL_RANK"]))


def cluster_axes(nodes: int, devices_per_node: int) -> tuple[Axis, ...]:
    """The axes to measure: groups of every size inside a node, all nodes, and everything."""
    inside = [size for size in range(2, devices_per_node + 1) if devices_per_node % size == 0]
    axes = [Axis(f"node x{size}", 1, size, (("node", size),)) for size in inside]
    if nodes > 1:
        axes.append(Axis(f"nic x{nodes}", devices_per_node, nodes, (("nic", nodes),)))
    if nodes > 1 and inside:
        everything = (("node", devices_per_node), ("nic", nodes))
        axes.append(Axis(f"node x{devices_per_node} nic x{nodes}", 1, nodes * devices_per_node, everything))
    return tuple(axes)


def members(axis: Axis, size: int) -> list[list[int]]:
    """The ranks of each group that the axis cuts ``size`` ranks into."""
    span = axis.stride * axis.size
    starts = [first + inner for first in range(0, size, span) for inner in range(axis.stride)]
    return [list(range(start, start + span, axis.stride)) for start in starts]


def _group(axis: Axis, size: int) -> ProcessGroup:
    group, _ = dist.new_subgroups_by_enumeration(members(axis, size), timeout=TIMEOUT)
    assert group is not None, f"this rank is in no group of {axis}"
    return group


@dataclass(frozen=True)
class Machine:
    """What a process can be told of its device without measuring.

    reserved_bytes   taken before the first tensor: the accelerator's context, or the interpreter and its libraries
    multiprocessors  of the accelerator; of a CPU the threads that this process computes with
    """

    name: str
    memory_bytes: int
    reserved_bytes: int
    multiprocessors: int
    accelerated: bool


def machine(world: World) -> Machine:
    """The device of this process; a CPU's memory is shared by the processes of its node."""
    if world.device.type == "cpu":
        page = os.sysconf("SC_PAGE_SIZE")
        memory = os.sysconf("SC_PHYS_PAGES") * page // world.devices_per_node
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
        return Machine(_processor(), memory, resident, torch.get_num_threads(), accelerated=False)
    free, total = torch.accelerator.get_memory_info(world.device)
    properties = torch.get_device_module(world.device).get_device_properties(world.device)
    return Machine(properties.name, total, total - free, properties.multi_processor_count, accelerated=True)


def _processor() -> str:
    """The processor's name as Linux tells it, else as Python does."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
