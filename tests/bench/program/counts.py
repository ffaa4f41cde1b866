"""Operator calls and saved bytes of one step: the emitted one-rank program beside the module run by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator

import autoplan
from tests.bench.program.models import batch
from tests.support.planning import parallelize_alone

CAST = "aten._to_copy.default"


class Calls(TorchDispatchMode):
    """Counts operators by name; casts of tensors in the shape of a parameter are left out."""

    def __init__(self, shapes: Iterable[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.calls = frozenset(shapes), Counter[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(func)
        if name.startswith("profiler."):
            return func(*args, **(kwargs or {}))
        if name != CAST or args[0].shape not in self.shapes:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Counted:
    """One step's operator calls by name, and the bytes of distinct storages that its forward keeps for the backward,
    parameters and batch left out."""

    calls: Mapping[str, int]
    saved_bytes: int


@dataclass
class Saved:
    held: dict[int, int] = field(default_factory=dict)


@contextmanager
def saving(own: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """Tensors that the forward within keeps, one of each storage."""
    known = {t.untyped_storage().data_ptr() for t in own}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            found.setdefault(place, tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found


def counted(step: Callable[[], object], own: Iterable[Tensor]) -> Counted:
    own = list(own)
    step()  # what a first step alone does
    with Calls(t.shape for t in own if t.is_floating_point() and t.ndim) as calls:
        step()
    with saving(own) as found:
        step()
    return Counted(calls.calls, sum(t.untyped_storage().nbytes() for t in found.values()))


def of_module(module: nn.Module, precision: str) -> Counted:
    """The module's own step; under "bf16-mixed" within autocast."""
    module.train()
    given = batch()
    mixed = precision == "bf16-mixed"

    def step() -> None:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
            loss = module(**given).loss
        loss.backward()

    return counted(step, [*module.parameters(), *module.buffers(), *given.values()])


def of_program(module: nn.Module, precision: str, folder: Path) -> Counted:
    """The step of the one-rank program that is planned for the module."""
    given = batch()
    plan = parallelize_alone(
        module, "1x1 cpu", given, training=autoplan.Training(precision=precision),
        parallelism=autoplan.Parallelism(micro_batch=2, recompute="none"),
    )  # fmt: skip
    plan.export(folder)
    with autoplan.load(folder).program() as program:
        program.load_weights(module.state_dict())
        def step() -> None:
            program.optimizer.zero_grad()
            program.step(given)

        stage = program.stages.modules[0]
        return counted(step, [*stage.parameters(), *stage.buffers(), *given.values()])
