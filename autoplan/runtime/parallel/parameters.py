"""What an exported module asks for its parameters: ``parameters("self_attn.q_proj.weight")``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from autoplan.ir.typed_program import StoredParameter
from autoplan.runtime.looked_up import cached_tables, keep_rows, kept_by_rows
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.row_cache import keep_cache


@dataclass
class Made:
    """The parameters and buffers of one rank by the program's names, made when they are first asked for.

    They have no values yet. The same name gives the same object, so that a tied parameter is one.

    elsewhere  makes the memory of tables of whose rows the device has a cache, from shape and dtype; None: the host's
    """

    spec: ProgramSpec
    parameter_device: torch.device
    device: torch.device
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    elsewhere: Callable[..., Tensor] | None = None

    def parameter(self, name: str) -> nn.Parameter:
        if name not in self.parameters:
            stored = self.stored(name)
            dtype = self.spec.parameter_dtype(stored)
            if stored.name in self.cached:
                self.make_cached(stored, dtype)
            else:
                self.make(stored, torch.empty(stored.local_shape, dtype=dtype, device=self.parameter_device))
        return self.parameters[name]

    def side_by_side(self, names: Sequence[str]) -> None:
        """Makes parameters of one dtype that lie one after another in one memory; not those that ZeRO gathers into
        memory of its own, nor where one is made already."""
        given = [self.stored(name) for name in names]
        dtypes = {self.spec.parameter_dtype(stored) for stored in given}
        if len(dtypes) > 1 or any(self.spec.shard_axes(p) or p.name in self.parameters for p in given):
            return
        sizes = [math.prod(stored.local_shape) for stored in given]
        memory = torch.empty(sum(sizes), dtype=dtypes.pop(), device=self.parameter_device)
        for stored, values in zip(given, memory.split(sizes), strict=True):
            self.make(stored, values.view(stored.local_shape))

    def stored(self, name: str) -> StoredParameter:
        return next(p for p in self.spec.lowered.parameters if p.name == name)

    def make(self, stored: StoredParameter, values: Tensor) -> None:
        alone = self.uses[stored.name] == 1 and not self.spec.parallelism.splits_backward
        made = leaf(values, stored.trainable, self.spec.storage_dtype(stored.type), alone)
        if stored.name in self.by_rows and stored.trainable:
            keep_rows(made)
        self.parameters[stored.name] = made

    def make_cached(self, stored: StoredParameter, dtype: torch.dtype) -> None:
        """Tables that lie with the host, or on its disks, and a cache of their rows on the device."""
        meta = self.parameter_device.type == "meta"
        where = self.elsewhere if self.elsewhere is not None and not meta else torch.zeros
        made = where(stored.local_shape, dtype=dtype)
        self.make(stored, made.to(self.parameter_device) if meta else made)
        keep_cache(self.parameters[stored.name], self.device)

    @cached_property
    def cached(self) -> frozenset[str]:
        """Tables that lie elsewhere."""
        return frozenset(cached_tables(self.spec.lowered))

    @cached_property
    def by_rows(self) -> frozenset[str]:
        """Tables of whose gradients only looked-up rows are made."""
        return kept_by_rows(self.spec.lowered)

    @cached_property
    def uses(self) -> Counter[str]:
        """How many operators of the whole program read each parameter."""
        found, lowered = Counter[str](), self.spec.lowered
        for segment in lowered.segments:
            block = lowered.blocks[segment.block]
            reads = Counter(name for statement in block.body for name in statement.reads)
            for own, name in zip((p.name for p in block.parameters), segment.parameters, strict=True):
                found[name] += reads[own]
        return found

    def buffer(self, name: str) -> Tensor:
        if name not in self.buffers:
            kind = next(b.type for b in self.spec.lowered.buffers if b.name == name)
            self.buffers[name] = torch.zeros(kind.shape, dtype=self.spec.activation_dtype(kind), device=self.device)
        return self.buffers[name]


def leaf(values: Tensor, trainable: bool, gradient: torch.dtype, alone: bool = False) -> nn.Parameter:
    """A parameter whose gradients are summed in a dtype of their own.

    alone  one operator reads it: its gradient of a microbatch is added to the sum as it is (``gradient_buckets``). Of
           several autograd casts each use's as it comes, so that they, too, add up in that dtype
    """
    parameter = nn.Parameter(values, requires_grad=trainable)
    if trainable and gradient != values.dtype:
        parameter.grad_dtype = None if alone else gradient
    return parameter


class Parameters:
    """The parameters that a module may ask for.

    names, buffers  the program's name of each; None: the names asked for are the program's own
    number          the segment's place in the chain
    """

    def __init__(
        self, made: Made, names: Mapping[str, str] | None = None, buffers: Mapping[str, str] | None = None,
        number: int = 0,
    ) -> None:  # fmt: skip
        self._made, self._names, self._buffers, self.number = made, names, buffers, number

    def __call__(self, name: str) -> nn.Parameter:
        """This rank's part on the tensor axes, whole on the data axis."""
        return self._made.parameter(name if self._names is None else self._names[name])

    def side_by_side(self, *names: str) -> None:
        """Has these lie one after another in one memory, so that their products are one (``runtime.ops``): before they
        are asked for."""
        self._made.side_by_side(names if self._names is None else [self._names[name] for name in names])

    def buffer(self, name: str) -> Tensor:
        """A buffer, whole on every rank."""
        return self._made.buffer(name if self._buffers is None else self._buffers[name])

    def segment(self, index: int) -> Parameters:
        """Those of segment ``index`` of the chain, under its block's own names."""
        lowered = self._made.spec.lowered
        segment = lowered.segments[index]
        block = lowered.blocks[segment.block]
        names = zip((p.name for p in block.parameters), segment.parameters, strict=True)
        buffers = zip((b.name for b in block.buffers), segment.buffers, strict=True)
        return Parameters(self._made, dict(names), dict(buffers), index)
