"""How much memory tensors take in a process, by two ways that know nothing of each other.

``Tensors`` follows the life of every storage from the operators that torch dispatches: exact to the byte, blind to what
kernels and collectives allocate inside. ``ResidentPeak`` asks the kernel for the most pages the process has held: it
sees everything that was touched, and what Python and the libraries take beside tensors.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # mallopt(3)
OWN_PAGES_BYTES = 64 * 1024
RECOUNTED = 32


class Tensors(TorchDispatchMode):
    """Bytes of all storages on the CPU that operators have returned since it was entered, while they live.

    fully_shard frees a storage by resizing it, which is no operator: all are asked for their sizes again after each
    operator that isn't ATen's, and every few of ATen's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.sizes: dict[int, int] = {}
        self.now_bytes = self.peak_bytes = self.operators = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it goes on with its local tensors, which come here again
        result = function(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and type(value) is torch.Tensor:
                self.follow(value.untyped_storage())
        self.operators += 1
        if function.namespace != "aten" or self.operators % RECOUNTED == 0:
            self.recount()
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return result

    def follow(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key not in self.storages or self.storages[key]() is not storage:
            self.forget(key, self.storages.get(key))
            self.storages[key] = weakref.ref(storage, lambda _, key=key: self.forget(key, _))
            self.sizes[key] = storage.nbytes()
            self.now_bytes += self.sizes[key]

    def forget(self, key: int, reference: weakref.ref[torch.UntypedStorage] | None) -> None:
        if reference is not None and self.storages.get(key) is reference:
            del self.storages[key]
            self.now_bytes -= self.sizes.pop(key)

    def recount(self) -> None:
        for key, reference in list(self.storages.items()):
            storage = reference()
            if storage is not None and key in self.sizes:
                self.now_bytes += storage.nbytes() - self.sizes[key]
                self.sizes[key] = storage.nbytes()

    @property
    def held_bytes(self) -> int:
        self.recount()
        return self.now_bytes

    def restart(self) -> None:
        """Forgets the peak so far."""
        self.peak_bytes = self.held_bytes


class ResidentPeak:
    """The most resident bytes of this process since ``restart``, over those when it was made.

    Allocations of ``OWN_PAGES_BYTES`` and more get pages of their own, which go back when they are freed: else what the
    heap keeps for later would count.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(MMAP_THRESHOLD, OWN_PAGES_BYTES)
        libc.mallopt(TRIM_THRESHOLD, OWN_PAGES_BYTES)
        gc.collect()
        libc.malloc_trim(0)
        self.before_bytes = status_bytes("VmRSS")

    def restart(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")

    @property
    def peak_bytes(self) -> int:
        return status_bytes("VmHWM") - self.before_bytes


def status_bytes(name: str) -> int:
    """A line of /proc/self/status, which is in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
