"""The fake accelerator as torch's engines see it: its streams, its events, and what it answers of its state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

NAME = "gpu"
HALF = [torch.float16, torch.bfloat16]


class Listener(Protocol):
    """Who is told what the program asks of the device."""

    def ran(self, function: Any, args: tuple, kwargs: dict, result: Any) -> None:
        """An operator ran on the current stream."""

    def copied(self, source: Tensor, target: Tensor, *, to_device: bool, blocking: bool) -> None:
        """A tensor was copied between the host's memory and the device's."""

    def joined(self, stream: int, other: int) -> None:
        """A stream waits for what another one holds so far."""

    def stopped(self, what: str) -> None:
        """The host waits for the device."""

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has got another size."""

    def fused(self, name: str, given: Sequence[Any], made: Sequence[Any]) -> None:
        """A kernel of several operators ran on the current stream: it read these tensors and wrote those."""


class FakeStream:
    """A queue of the device's work, by its number; used as torch.Stream is."""

    device_type, device_index = NAME, 0

    def __init__(self, device: FakeDevice, number: int) -> None:
        self.fake, self.number = device, number
        self.before: list[FakeStream] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.fake.listener.joined(self.number, other.number)

    def wait_event(self, event: FakeEvent) -> None:
        if event.stream is not None:
            self.wait_stream(event.stream)

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or FakeEvent(self.fake)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.fake.listener.stopped("stream.synchronize")

    def query(self) -> bool:
        return True

    def __enter__(self) -> FakeStream:
        self.before.append(self.fake.current)
        self.fake.current = self
        return self

    def __exit__(self, *exception: object) -> None:
        self.fake.current = self.before.pop()


class FakeEvent:
    """A point in a stream; used as torch.Event is.

    turn  the device's when it was recorded
    """

    def __init__(self, device: FakeDevice) -> None:
        self.fake, self.stream, self.turn = device, None, device.turn

    stream: FakeStream | None

    def record(self, stream: FakeStream | None = None) -> None:
        self.stream, self.turn = stream or self.fake.current, self.fake.turn

    def wait(self, stream: FakeStream | None = None) -> None:
        (stream or self.fake.current).wait_event(self)

    def synchronize(self) -> None:
        """Stops the host, unless the event is of a turn before: the device is behind it once it has begun this one."""
        if self.turn == self.fake.turn:
            self.fake.listener.stopped("event.synchronize")

    def query(self) -> bool:
        """As ``synchronize`` has it: what was recorded in this turn hasn't been reached."""
        return self.turn != self.fake.turn


class FakeDevice:
    """What ``torch.gpu`` is: the device's streams and state, under the names that torch's engines call.

    turn  counts the steps that were begun
    """

    listener: Listener
    library: torch.library.Library

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.streams, self.turn = 1, 0
        self.default = self.current = FakeStream(self, 0)

    def Stream(self, device: object = None, priority: int = 0) -> FakeStream:
        self.streams += 1
        return FakeStream(self, self.streams - 1)

    def Event(self, *args: object, **kwargs: object) -> FakeEvent:
        return FakeEvent(self)

    def stream(self, stream: FakeStream | None) -> Any:
        return stream if stream is not None else nullcontext()

    def current_stream(self, device: object = None) -> FakeStream:
        return self.current

    def default_stream(self, device: object = None) -> FakeStream:
        return self.default

    def set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    def synchronize(self, device: object = None) -> None:
        self.listener.stopped("synchronize")

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return HALF
