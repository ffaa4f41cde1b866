"""Segments whose activations lie in the host's memory between their forward and their backward.

What autograd keeps of such a segment goes down as it is kept, each tensor once, and comes up again when its backward
begins. On an accelerator both run on a stream of their own: the way down under the forward that follows, the way up
under the backward of the segment behind, which asks for it. On a CPU both memories are one, and the copies run all the
same. Nothing is computed again, so random operators have nothing to repeat. Parameters, constants and what is too small
to be worth a copy stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

LEAST_BYTES = 4096  # statistics of a few rows, say


@dataclass(eq=False)
class Parcel:
    """A tensor's place in the host's memory, and the tensor while it is on the device again. It lives for as long as
    the backward that wants it."""

    memory: Tensor
    device: torch.device
    here: Tensor | None = None


@dataclass(eq=False)
class Load:
    """What one segment keeps of one microbatch.

    before   the load of the segment before it in the same microbatch
    sources  on their way down, held so that no other tensor gets the address of one while the forward runs
    """

    before: Load | None
    parcels: WeakValueDictionary[tuple, Parcel] = field(default_factory=WeakValueDictionary)
    sources: list[Tensor] = field(default_factory=list)
    asked: bool = False
    arrived: torch.Event | None = None


class Lane:
    """The copies of some segments of a stage, which run one after another."""

    def __init__(self) -> None:
        self.stream: torch.Stream | None = None
        self.last: Load | None = None

    def down(self, load: Load, x: Tensor) -> Parcel:
        """Starts a tensor's way down; one that is kept twice goes once."""
        key = (x.data_ptr(), x.dtype, x.shape, x.stride(), x._version)
        parcel = load.parcels.get(key)
        if parcel is None:
            pinned = x.device.type != "cpu"
            memory = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu", pin_memory=pinned)
            parcel = load.parcels[key] = Parcel(memory, x.device)
            load.sources.append(x)
            self.copy(memory, x.detach(), x.device)
        return parcel

    def ask(self, load: Load) -> None:
        """Starts the way up of all that a segment keeps."""
        if load.asked:
            return
        load.asked = True
        for parcel in list(load.parcels.values()):
            memory = parcel.memory
            parcel.here = torch.empty_strided(memory.shape, memory.stride(), dtype=memory.dtype, device=parcel.device)
            self.copy(parcel.here, memory, parcel.device)
        if self.stream is not None:
            load.arrived = self.stream.record_event()

    def up(self, load: Load, parcel: Parcel) -> Tensor:
        """A tensor that a backward wants; meanwhile, on an accelerator, what the one after it will want comes up."""
        self.ask(load)
        if load.arrived is not None:
            torch.accelerator.current_stream().wait_event(load.arrived)
            if load.before is not None:
                self.ask(load.before)
        load.before = None
        assert parcel.here is not None
        return parcel.here

    def copy(self, target: Tensor, source: Tensor, device: torch.device) -> None:
        """On the lane's stream; memory of the device isn't given to others before it is done."""
        if device.type == "cpu":
            target.copy_(source)
            return
        if self.stream is None:
            self.stream = torch.Stream(device)
        self.stream.wait_stream(torch.accelerator.current_stream())
        with self.stream:
            target.copy_(source, non_blocking=True)
        for tensor in (target, source):
            if tensor.device.type != "cpu":
                tensor.record_stream(self.stream)


class Hosted:
    """One segment's hooks, which stand around its forward and so outside of what is compiled.

    first  whether it is the first of its lane: none is asked for behind it
    """

    def __init__(self, lane: Lane, first: bool) -> None:
        self.lane, self.first = lane, first
        self.open: tuple[saved_tensors_hooks, Load] | None = None

    def enter(self, segment: nn.Module, given: tuple[Any, ...]) -> None:
        load = Load(None if self.first else self.lane.last)
        self.lane.last = load
        staying = {p.untyped_storage().data_ptr() for p in segment.parameters()}
        staying |= {x.untyped_storage().data_ptr() for x in given if isinstance(x, Tensor) and not x.requires_grad}

        def pack(x: Tensor) -> Tensor | Parcel:
            small = x.numel() * x.element_size() < LEAST_BYTES
            return x if small or x.untyped_storage().data_ptr() in staying else self.lane.down(load, x)

        def unpack(kept: Tensor | Parcel) -> Tensor:
            return self.lane.up(load, kept) if isinstance(kept, Parcel) else kept

        context = saved_tensors_hooks(pack, unpack)
        context.__enter__()
        self.open = context, load

    def leave(self, *_: object) -> None:
        if self.open is not None:
            context, load = self.open
            context.__exit__(None, None, None)
            load.sources.clear()
            self.open = None


def keep_on_host(segments: Iterable[nn.Module]) -> None:
    """Has the activations of these segments, which run in this order, lie with the host until their backward."""
    lane = Lane()
    for number, segment in enumerate(segments):
        hosted = Hosted(lane, first=number == 0)
        segment.register_forward_pre_hook(hosted.enter)
        segment.register_forward_hook(hosted.leave, always_call=True)
