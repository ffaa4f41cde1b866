"""What one layer of an exported program keeps from its forward for its backward: rank 0 of any world, rehearsed.

Of each folder a list of (bytes, operator, line of program.py): what is alive when the third layer begins and wasn't
when the second did, and the second's input where it still is; its result, which the third reads, aside.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from autoplan.export.folder import opened
from autoplan.rehearsal.device.accelerator import fake_device
from autoplan.rehearsal.device.call_recorder import Recorder
from autoplan.rehearsal.device.kernels import kernels_of
from autoplan.rehearsal.device.process_groups import fake_world
from autoplan.rehearsal.rank import answered, eager, given
from autoplan.runtime.program import Program

Kept = tuple[tuple[int, str, str], ...]


def saved_bytes(folders: Sequence[Path]) -> list[Kept]:
    """In a process of their own: a fake device is for life."""
    return [rehearsed(folder) for folder in folders]


def rehearsed(folder: Path) -> Kept:
    plan = opened(folder)
    spec = eager(plan.spec())
    recorder = Recorder((folder / "program.py").resolve())
    with ExitStack() as stack:
        recorder.device = stack.enter_context(fake_device(recorder))
        stack.enter_context(fake_world(0, spec.lowered.mesh.devices, recorder))
        stack.enter_context(answered(recorder))
        stack.enter_context(kernels_of("cuda"))
        program = Program(spec, plan.module())
        program.filled = True
        layers = next(m for m in program.stages.modules[0].modules() if isinstance(m, nn.ModuleList))
        before: set[int] = set()
        found: list[tuple[int, str, str]] = []

        def enters(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            gc.collect()
            alive, given_to = recorder.storages.alive, id(args[0].untyped_storage())
            if layer is layers[1]:
                before.update(key for key in alive if key != given_to)
                return
            own = {key: life for key, life in alive.items() if key not in before and key != given_to}
            found[:] = [(life.bytes, life.name, life.line) for life in own.values()]

        for layer in layers[1:3]:
            layer.register_forward_pre_hook(enters)
        run_up_to(layers[2], program, {value.name: given(spec, value) for value in spec.lowered.batch})
        return tuple(found)


class Enough(Exception):
    """The third layer has begun: nothing more is to be seen."""


def run_up_to(layer: nn.Module, program: Program, batch: dict[str, torch.Tensor]) -> None:
    """The step's forward as far as that layer."""

    def enough(module: nn.Module, args: object) -> None:
        raise Enough

    layer.register_forward_pre_hook(enough)
    try:
        program.step(batch)
    except Enough:
        return
    raise AssertionError("the step has no such layer")
