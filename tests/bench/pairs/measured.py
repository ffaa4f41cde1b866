"""What one step of one side does on this rank: operator calls, collectives and their bytes, bytes saved at most."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator
from torch.utils._pytree import tree_iter

from autoplan.ops.experts.mixture import _backward, _experts
from autoplan.runtime.ops.experts.routed import _backward as _backward_routed
from autoplan.runtime.ops.experts.routed import _routed

MARKS = "profiler."  # the optimizer's and autograd's marks for a profiler: no operator
WIRES = ("c10d", "_c10d_functional")
LEAVES = {
    "allreduce": 1.0, "all_reduce": 1.0, "broadcast": 1.0, "send": 1.0, "allgather": 1.0, "all_gather": 1.0,
    "reduce_scatter": 0.5, "alltoall": 0.5, "all_to_all": 0.5,
}  # fmt: skip
"""What leaves one of two ranks, as a share of what it puts into a collective. A message counts where it is sent."""

WRITTEN = {
    "autoplan.experts.default": _experts, "autoplan.experts_backward.default": _backward,
    "autoplan.routed_experts.default": _routed, "autoplan.routed_experts_backward.default": _backward_routed,
}  # fmt: skip
"""Operators of torch.library that are written in Python: what they run is counted, too."""


@dataclass(frozen=True)
class Step:
    """One side's step: a call of ``run`` is forward, backward, gradient sums and update of all microbatches, and gives
    the loss, or None on a rank that has none. ``held`` names what isn't counted as saved: parameters and the batch."""

    run: Callable[[], Tensor | None]
    held: Callable[[], Iterable[Tensor]]


@dataclass(frozen=True)
class Counted:
    """Of one step on one rank.

    calls         operators by name, views among them
    collectives   those that cross ranks, by name; ``wire_bytes`` is what this rank puts into them
    saved_bytes   of storages that autograd keeps for the backward, at most at any moment
    """

    calls: Counter[str]
    collectives: Counter[str]
    wire_bytes: int
    saved_bytes: int

    @property
    def total(self) -> int:
        return sum(self.calls.values())


class Calls(TorchDispatchMode):
    """Counts operators. DTensors' are those that run on their local parts; of an operator of torch.library that is
    written in Python those that it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.collectives, self.wire_bytes = Counter[str](), Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it goes on with its local parts, which come here again
        name = str(func)
        if not name.startswith(MARKS):
            self.calls[name] += 1
        share = next((share for word, share in LEAVES.items() if word in name), 0.0)
        if func.namespace in WIRES and share:
            self.collectives[name] += 1
            self.wire_bytes += round(sent_bytes(name, args) * share)
        if name in WRITTEN:
            with self:
                return WRITTEN[name]._init_fn(*args)
        return func(*args, **(kwargs or {}))


def sent_bytes(name: str, args: Any) -> int:
    """Bytes that a rank puts into a collective: of operators that are given their result's memory first, the second
    argument is what is sent."""
    into = name.startswith("c10d.") and any(word in name for word in ("allgather", "reduce_scatter", "alltoall"))
    sent = args[1] if into else args[0]
    return sum(t.numel() * t.element_size() for t in tree_iter(sent) if isinstance(t, Tensor))


class Saved:
    """Bytes of the storages that autograd keeps, each counted once, now and at most."""

    def __init__(self, held: Callable[[], Iterable[Tensor]]) -> None:
        self.held = held
        self.users, self.now_bytes, self.peak_bytes = Counter[int](), 0, 0
        self.hooks = saved_tensors_hooks(self.pack, lambda kept: kept.tensor)

    def pack(self, tensor: Tensor) -> Kept:
        storage = local(tensor).untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        counted = place not in {local(t).untyped_storage().data_ptr() for t in self.held()}
        if counted:
            self.now_bytes += 0 if self.users[place] else size
            self.users[place] += 1
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return Kept(tensor, lambda: self.freed(place, size) if counted else None)

    def freed(self, place: int, size: int) -> None:
        self.users[place] -= 1
        self.now_bytes -= 0 if self.users[place] else size


class Kept:
    """A saved tensor, and what is done when the graph lets go of it."""

    def __init__(self, tensor: Tensor, freed: Callable[[], None]) -> None:
        self.tensor, self.freed = tensor, freed

    def __del__(self) -> None:
        self.freed()


def local(tensor: Tensor) -> Tensor:
    """A DTensor's part; of one whose collective is on its way what will hold it."""
    inner = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return inner.elem if isinstance(inner, AsyncCollectiveTensor) else inner


def counted(step: Step) -> Counted:
    """Of a step that isn't the first."""
    with Calls() as calls:
        step.run()
    return Counted(calls.calls, calls.collectives, calls.wire_bytes, saved_bytes(step))


def saved_bytes(step: Step) -> int:
    saved = Saved(step.held)
    with saved.hooks:
        step.run()
    return saved.peak_bytes


def cpu_seconds(step: Step) -> float:
    """Of this process, its threads included."""
    start = time.process_time()
    step.run()
    return time.process_time() - start
