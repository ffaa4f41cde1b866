"""Sums of buckets in several phases: up and down a tree, or over a node and between nodes (``ir.buckets.SumRule``).

    tree          neighbours in the group's order meet, then pairs of these, and so on: one sends its bucket, the other
                  adds it to its own; the sum goes back the same way
    hierarchical  in a node a reduce-scatter, between nodes an all-reduce of each rank's share, in the node an
                  all-gather: over the slow link go as many bytes as one rank has

They run beside the backward as an all-reduce of one call does: those of a program one after another in the order in
which they begin, which is the same on all ranks. On a CPU a thread runs them, on an accelerator a stream. They have
process groups of their own, so that no other collective comes between two ranks' phases.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.ir.buckets import SumRule, sum_levels
from autoplan.ir.mesh import Mesh
from autoplan.option_values import HIERARCHICAL, TREE
from autoplan.runtime.collectives.raw import gather_whole, sum_rows
from autoplan.runtime.parallel.compression.program_sums import summed_axes
from autoplan.runtime.program_spec import DATA, ProgramSpec


class TreeSum:
    """On a binomial tree whose root is the group's first rank. ``multiple``: of elements that it sums."""

    multiple = 1

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def __call__(self, flat: Tensor) -> None:
        """Leaves the sum in ``flat``, bit for bit the same on all ranks."""
        rank, size, apart = self.group.rank(), self.group.size(), 1
        while apart < size and rank % (2 * apart) == 0:
            if rank + apart < size:
                arrived = torch.empty_like(flat)
                dist.recv(arrived, group=self.group, group_src=rank + apart)
                flat.add_(arrived)
            apart *= 2
        if rank:
            dist.send(flat, group=self.group, group_dst=rank - apart)
            dist.recv(flat, group=self.group, group_src=rank - apart)
        while apart > 1:
            apart //= 2
            if rank + apart < size:
                dist.send(flat, group=self.group, group_dst=rank + apart)


class HierarchicalSum:
    """Over a node's ranks and those of their place in other nodes. ``multiple``: of elements that it sums."""

    def __init__(self, within: ProcessGroup, between: ProcessGroup) -> None:
        self.within, self.between, self.multiple = within, between, within.size()

    def __call__(self, flat: Tensor) -> None:
        """Leaves the sum in ``flat``, bit for bit the same on all ranks."""
        mine = sum_rows(flat.view(self.multiple, -1), self.within)
        dist.all_reduce(mine, group=self.between)
        flat.view(self.multiple, -1).copy_(gather_whole(mine, self.within))


Sum = TreeSum | HierarchicalSum


class Running:
    """A sum that a thread runs: a ``Work``, which raises what the thread met."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run, self.ended = run, threading.Event()
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.run()
        except BaseException as error:  # whoever waits is told
            self.error = error
        self.ended.set()

    def wait(self) -> None:
        self.ended.wait()
        if self.error is not None:
            raise self.error


class OnStream:
    """A sum on an accelerator's stream: a ``Work`` that has the current stream wait."""

    def __init__(self, end: torch.Event) -> None:
        self.end = end

    def wait(self) -> None:
        torch.accelerator.current_stream().wait_event(self.end)


class SumQueue:
    """Runs a program's sums of several phases one after another, beside whatever its main thread and stream do."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[Running | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.stream: torch.Stream | None = None

    def begin(self, sum_up: Sum, flat: Tensor) -> Running | OnStream:
        if flat.device.type != "cpu":
            return self.on_stream(sum_up, flat)
        running = Running(lambda: sum_up(flat))
        if dist.get_backend(sum_up_group(sum_up)) != "gloo":  # nothing blocks where nothing crosses (a rehearsal)
            running()
            return running
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, name="autoplan-sums", daemon=True)
            self.thread.start()
            atexit.register(self.close)  # a thread that waits within gloo would abort the process that ends
        self.waiting.put(running)
        return running

    def on_stream(self, sum_up: Sum, flat: Tensor) -> OnStream:
        """Buckets live as long as the program, so their memory goes to nobody else before the stream is done."""
        if self.stream is None:
            self.stream = torch.Stream(flat.device)
        self.stream.wait_stream(torch.accelerator.current_stream())
        with self.stream:
            sum_up(flat)
        return OnStream(self.stream.record_event())

    def work(self) -> None:
        while (running := self.waiting.get()) is not None:
            running()

    def close(self) -> None:
        """Ends the thread, once what has begun is done."""
        if self.thread is not None:
            atexit.unregister(self.close)
            self.waiting.put(None)
            self.thread.join()
            self.thread = None


def sum_up_group(sum_up: Sum) -> ProcessGroup:
    return sum_up.group if isinstance(sum_up, TreeSum) else sum_up.within


def phased_sums(spec: ProgramSpec) -> Mapping[tuple[str, tuple[str, ...]], Sum]:
    """By (algorithm, axes) the sums of several phases that a program may run; a collective of the whole world, whatever
    this rank's part of the program is."""
    rule = spec.parallelism.all_reduce
    if rule is None:
        return {}
    mesh, found = spec.lowered.mesh, dict[tuple[str, tuple[str, ...]], Sum]()
    groups = {summed_axes(spec, p) for p in spec.lowered.parameters if p.trainable}
    for axes in sorted(axes for axes in groups if DATA in axes):
        for name in sorted(set(SumRule.read(rule).algorithms)):
            if name == TREE:
                found[name, axes] = TreeSum(own_group(mesh, axes))
            elif name == HIERARCHICAL and (levels := sum_levels(axes, mesh, spec.node)):
                found[name, axes] = HierarchicalSum(own_group(mesh, levels[0]), own_group(mesh, levels[1]))
    return found


def own_group(mesh: Mesh, names: Sequence[str]) -> ProcessGroup:
    """A new group over these axes, or parts of axes; every rank of the world must call it."""
    members: dict[int, list[int]] = {}
    for rank in range(mesh.devices):
        first = rank - sum(mesh.coordinate(rank, name) * mesh.axis(name).stride for name in names)
        members.setdefault(first, []).append(rank)
    group, _ = dist.new_subgroups_by_enumeration(list(members.values()))
    assert group is not None, "groups over axes hold every rank"
    return group
