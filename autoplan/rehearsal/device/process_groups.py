"""Process groups without other processes: a rank of any world, whose collectives are told to the recorder and cross
nothing.

Tensors on the device have no values, so nothing is to be done for them. Of tensors on the CPU the other ranks are taken
to hold what this one does: a sum is this rank's value times their number, a gather repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from autoplan.errors import RehearsalError
from autoplan.rehearsal.device.streams import NAME
from autoplan.rehearsal.records import Span

BACKEND = "rehearsal"


class CallListener(Protocol):
    """Who is told of calls that take or make tensors of the group's members."""

    def joins(self, span: Span) -> int:
        """The rank is in a new group; returns how many of this span it was in before."""

    def collective(self, name: str, given: Sequence[Tensor], made: Sequence[Tensor], group: FakeGroup) -> int:
        """A collective was started; returns its number."""

    def message(self, name: str, tensor: Tensor, peer: int, group: FakeGroup) -> int:
        """A send or a receive was started, with the peer's global rank; returns its number."""

    def waited(self, number: int, on_device: bool) -> None:
        """The current stream, or the host for tensors on the CPU, waits for a call's end."""


_Group: Any = dist.ProcessGroup  # its methods are declared with overloads, of which torch calls one


class FakeWork(dist._Work):
    """A collective in flight."""

    def __init__(self, listener: CallListener, number: int, on_device: bool, result: object) -> None:
        super().__init__()
        self.listener, self.number, self.on_device, self.result_ = listener, number, on_device, result

    def wait(self, timeout: object = None) -> bool:
        self.listener.waited(self.number, self.on_device)
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result_)
        return future


class NamedGroup(_Group):
    """A process group written in Python: its names, of which torch asks.

    backend  the name that it is registered under
    """

    backend = ""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.name = self.description = ""

    def getBackendName(self) -> str:
        return self.backend

    def setGroupName(self, name: str) -> None:
        self.name = name

    def getGroupName(self) -> str:
        return self.name

    def setGroupDesc(self, description: str) -> None:
        self.description = description

    def getGroupDesc(self) -> str:
        return self.description


class FakeGroup(NamedGroup):
    """A group of ranks as this one sees it.

    ranks   the members' global numbers, in the group's order
    span    of them
    number  of the rank's groups of this span, in the order in which they were made
    """

    backend = BACKEND

    def __init__(self, rank: int, ranks: Sequence[int], listener: CallListener) -> None:
        super().__init__(rank, len(ranks))
        self.ranks, self.listener = tuple(ranks), listener
        self.span = span_of(ranks)
        self.number = listener.joins(self.span)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> FakeWork:
        operation = reduction(opts)
        for tensor in tensors:
            self._reduced(tensor, operation)
        return self._work(f"all-reduce {operation}", tensors, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> FakeWork:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> FakeWork:
        return self._work(f"reduce {reduction(opts)}", tensors, tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> FakeWork:
        return self._work("broadcast", tensors, tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> FakeWork:
        for parts, own in zip(outputs, inputs, strict=True):
            for part in parts:
                _set(part, own)
        return self._work("all-gather", inputs, [part for parts in outputs for part in parts])

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> FakeWork:
        _set(output, given.repeat(self.size(), *[1] * (given.ndim - 1)) if given.device.type == "cpu" else given)
        return self._work("all-gather", [given], [output])

    _allgather_base = all_gather_single  # its name before torch 2.13

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> FakeWork:
        return self._work("all-gather", inputs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> FakeWork:
        return self._work(f"reduce-scatter {reduction(opts)}", [part for parts in inputs for part in parts], outputs)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> FakeWork:
        return self._work(f"reduce-scatter {reduction(opts)}", [given], [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> FakeWork:
        return self._work(f"reduce-scatter {reduction(opts)}", inputs, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: Tensor, given: Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> FakeWork:
        return self._work("all-to-all", [given], [output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> FakeWork:
        return self._work("all-to-all", inputs, outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> FakeWork:
        for parts, own in zip(outputs, inputs, strict=False):
            for part in parts:
                _set(part, own)
        return self._work("gather", inputs, [part for parts in outputs for part in parts])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> FakeWork:
        return self._work("scatter", [part for parts in inputs for part in parts], outputs)

    def barrier(self, opts: Any = None) -> FakeWork:
        return self._work("barrier", [], [])

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> FakeWork:
        return self._message("send", tensors[0], peer)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> FakeWork:
        return self._message("receive", tensors[0], peer)

    def _work(self, name: str, given: Sequence[Tensor], made: Sequence[Tensor]) -> FakeWork:
        number = self.listener.collective(name, given, made, self)
        return FakeWork(self.listener, number, any(x.device.type == NAME for x in (*given, *made)), list(made))

    def _message(self, name: str, tensor: Tensor, peer: int) -> FakeWork:
        number = self.listener.message(name, tensor, self.ranks[peer], self)
        return FakeWork(self.listener, number, tensor.device.type == NAME, [tensor])

    def _reduced(self, tensor: Tensor, operation: str) -> None:
        if tensor.device.type == "cpu" and operation == "sum":
            tensor.mul_(self.size())


def reduction(opts: Any) -> str:
    """ "sum", "max", … of a collective's options; a sum where there are none."""
    operation = getattr(opts, "reduceOp", None)
    return str(getattr(operation, "op", operation)).rpartition(".")[2].lower() if operation is not None else "sum"


def _set(target: Tensor, source: Tensor) -> None:
    if target.device.type == "cpu" and source.device.type == "cpu":
        target.copy_(source.view(target.shape) if source.numel() == target.numel() else target)


def span_of(ranks: Sequence[int]) -> Span:
    """The axes that a group spans: (stride, size) of each, the greatest stride first.

    RehearsalError for ranks that are no such product: a class of ranks has no group of that kind.
    """
    rest, found = sorted(ranks), []
    while len(rest) > 1:
        stride, size = rest[1] - rest[0], 1
        while size < len(rest) and rest[size] - rest[0] == size * stride:
            size += 1
        starts = rest[::size]
        if len(rest) % size or rest != [start + i * stride for start in starts for i in range(size)]:
            raise RehearsalError(f"a group of ranks {ranks}", "it is no product of axes", "rehearse every rank")
        if rest[0] // stride % size:
            raise RehearsalError(f"a group of ranks {ranks}", "it begins within an axis", "no span names it")
        found.append((stride, size))
        rest = starts
    return tuple(reversed(found))


@contextmanager
def fake_world(rank: int, size: int, listener: CallListener) -> Iterator[None]:
    """A default process group of so many ranks, of which this process is one, alone."""

    def create(common: Any, options: Any) -> FakeGroup:
        ranks = common.global_ranks_in_group or range(size)
        return FakeGroup(common.group_rank, list(ranks), listener)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", NAME])
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
