"""Operator calls and saved bytes of one step: the emitted one-rank program beside the module run by hand."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see every operator

import autoplan
from tests.bench.program.models import MODELS, batch
from tests.support.planning import parallelize_unproved

PRECISIONS = ("fp32", "bf16-mixed")
CAST = "aten._to_copy.default"
MARKS = "profiler."  # the optimizer's and autograd's marks for a profiler: no operator


class Calls(TorchDispatchMode):
    """Counts operators by name, views among them. Casts of tensors in the shape of a parameter are left out: both
    sides cast weights, each in its own way."""

    def __init__(self, shapes: Iterable[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.calls = frozenset(shapes), Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if not name.startswith(MARKS) and (name != CAST or args[0].shape not in self.shapes):
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Counted:
    """One step: operator calls by name, and the bytes of the storages that its forward keeps for the backward beside
    parameters, buffers and the batch."""

    calls: Mapping[str, int]
    saved_bytes: int

    @property
    def total(self) -> int:
        return sum(self.calls.values())


@dataclass(frozen=True)
class Row:
    """A model in a precision: the module's step beside the program's."""

    model: str
    precision: str
    module: Counted
    program: Counted

    @property
    def calls_ratio(self) -> float:
        return self.program.total / self.module.total

    @property
    def bytes_ratio(self) -> float:
        return self.program.saved_bytes / self.module.saved_bytes


def row(model: str, precision: str) -> Row:
    torch.manual_seed(0)
    module = MODELS[model]()
    with tempfile.TemporaryDirectory() as folder:
        return Row(model, precision, of_module(module, precision), of_program(module, precision, Path(folder) / "out"))


@contextmanager
def saving(own: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """One tensor of each storage that the forward within keeps."""
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

    def step() -> None:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext():
            loss = module(**given).loss
        loss.backward()

    return counted(step, [*module.parameters(), *module.buffers(), *given.values()])


def of_program(module: nn.Module, precision: str, folder: Path) -> Counted:
    """The step of the one-rank program that is planned for the module."""
    given = batch()
    plan = parallelize_unproved(
        module, "1x1 cpu", given, training=autoplan.Training(precision=precision),
        parallelism=autoplan.Parallelism(micro_batch=len(given["input_ids"]), recompute="none"),
    )  # fmt: skip
    plan.export(folder)
    with autoplan.load(folder).program() as program:
        program.load_weights(module.state_dict())

        def step() -> None:
            program.optimizer.zero_grad()
            program.step(given)

        stages = program.stages.modules
        own = [t for stage in stages for t in (*stage.parameters(), *stage.buffers())]
        return counted(step, [*own, *given.values()])
