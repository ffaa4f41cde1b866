"""Counts the bytes of the tensors that are made and die under it: what a piece of code holds at most."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator; no public alias
from torch.utils._pytree import tree_leaves  # as above


class TensorLife(TorchDispatchMode):
    """Bytes of the memory that operators' results have, not on the meta device.

    alive   of those made under it that haven't died
    most    the most that ever were
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(storage) for storage in storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in storages(result):
            if id(storage) not in before:
                self.watch(storage)
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage until it dies."""
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.alive += size
        self.most = max(self.most, self.alive)
        weakref.finalize(storage, self.died, key, size)

    def died(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


def storages(values: object) -> Iterator[torch.UntypedStorage]:
    """The memory of every tensor among some values; of a DTensor that of its part, its own being none."""
    for leaf in tree_leaves(values):
        tensor = leaf.to_local() if isinstance(leaf, DTensor) else leaf
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
            yield tensor.untyped_storage()
