"""Segments whose activations lie in host memory between their forward and their backward.

What autograd saves of such a segment is copied to the host as it is saved, each tensor once, and back when its backward
begins. On an accelerator both copies run on a stream of their own: to the host under the forward that follows, to the
device under the backward of the later segment, which prefetches it. On a CPU both memories are one, and the copies run
all the same. Nothing is computed again, so random operators have nothing to repeat. Parameters, constants and what is
too small to be worth a copy stay where they are.
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
class OffloadedTensor:
    """A saved tensor's copy in host memory, and the tensor while it is on the device again. It lives for as long as
    the backward that wants it."""

    memory: Tensor
    device: torch.device
    on_device: Tensor | None = None


@dataclass(eq=False)
class SavedTensors:
    """What one segment saves of one microbatch for its backward.

    before     what the segment before it saves of the same microbatch
    sources    tensors whose copy to the host runs, held so that no other tensor gets the address of one meanwhile
    requested  whether the copies back to the device have been started
    arrived    when they have ended
    """

    before: SavedTensors | None
    tensors: WeakValueDictionary[tuple, OffloadedTensor] = field(default_factory=WeakValueDictionary)
    sources: list[Tensor] = field(default_factory=list)
    requested: bool = False
    arrived: torch.Event | None = None


class CopyStream:
    """Copies the saved tensors of a stage's segments, which run one after another, on a stream of its own."""

    def __init__(self) -> None:
        self.stream: torch.Stream | None = None
        self.last: SavedTensors | None = None

    def to_host(self, saved: SavedTensors, x: Tensor) -> OffloadedTensor:
        """Starts a tensor's copy to the host; one that is saved twice is copied once. A part of another tensor, as of
        a joined product, takes the memory of its own elements alone."""
        key = (x.data_ptr(), x.dtype, x.shape, x.stride(), x._version)
        offloaded = saved.tensors.get(key)
        if offloaded is None:
            pinned = x.device.type != "cpu"
            memory = torch.empty_like(x, device="cpu", pin_memory=pinned, requires_grad=False)
            offloaded = saved.tensors[key] = OffloadedTensor(memory, x.device)
            saved.sources.append(x)
            self.copy(memory, x.detach(), x.device)
        return offloaded

    def prefetch(self, saved: SavedTensors) -> None:
        """Starts the copies back to the device of all that a segment saves."""
        if saved.requested:
            return
        saved.requested = True
        for each in list(saved.tensors.values()):
            memory = each.memory
            each.on_device = torch.empty_like(memory, device=each.device)
            self.copy(each.on_device, memory, each.device)
        if self.stream is not None:
            saved.arrived = self.stream.record_event()

    def to_device(self, saved: SavedTensors, offloaded: OffloadedTensor) -> Tensor:
        """A tensor that a backward wants; meanwhile an accelerator prefetches what the next backward will want."""
        self.prefetch(saved)
        if saved.arrived is not None:
            torch.accelerator.current_stream().wait_event(saved.arrived)
            if saved.before is not None:
                self.prefetch(saved.before)
        saved.before = None
        assert offloaded.on_device is not None
        return offloaded.on_device

    def copy(self, target: Tensor, source: Tensor, device: torch.device) -> None:
        """On the stream; memory of the device isn't given to others before the copy has ended."""
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


class OffloadHooks:
    """One segment's hooks, which stand around its forward and so outside of what is compiled.

    first  whether no segment comes before it on its stream, so that its backward prefetches nothing
    """

    def __init__(self, copies: CopyStream, first: bool) -> None:
        self.copies, self.first = copies, first
        self.open: tuple[saved_tensors_hooks, SavedTensors] | None = None

    def enter(self, segment: nn.Module, given: tuple[Any, ...]) -> None:
        saved = SavedTensors(None if self.first else self.copies.last)
        self.copies.last = saved
        staying = {p.untyped_storage().data_ptr() for p in segment.parameters()}
        staying |= {x.untyped_storage().data_ptr() for x in given if isinstance(x, Tensor) and not x.requires_grad}

        def pack(x: Tensor) -> Tensor | OffloadedTensor:
            small = x.numel() * x.element_size() < LEAST_BYTES
            return x if small or x.untyped_storage().data_ptr() in staying else self.copies.to_host(saved, x)

        def unpack(packed: Tensor | OffloadedTensor) -> Tensor:
            return self.copies.to_device(saved, packed) if isinstance(packed, OffloadedTensor) else packed

        context = saved_tensors_hooks(pack, unpack)
        context.__enter__()
        self.open = context, saved

    def leave(self, *_: object) -> None:
        if self.open is not None:
            context, saved = self.open
            context.__exit__(None, None, None)
            saved.sources.clear()
            self.open = None


def offload_activations(segments: Iterable[nn.Module]) -> None:
    """Keeps the activations of these segments, which run in this order, in host memory until their backward."""
    copies = CopyStream()
    for number, segment in enumerate(segments):
        hooks = OffloadHooks(copies, first=number == 0)
        segment.register_forward_pre_hook(hooks.enter)
        segment.register_forward_hook(hooks.leave, always_call=True)
