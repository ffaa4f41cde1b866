"""One rank of an exported program, run without a device: its real program.py and runtime, at full size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.checkpoint import set_checkpoint_early_stop

from autoplan.export.folder import opened
from autoplan.ir.mesh import MICROBATCH, Axis, Mesh
from autoplan.ir.typed_program import TypedValue
from autoplan.rehearsal.device.accelerator import fake_device
from autoplan.rehearsal.device.call_recorder import Recorder
from autoplan.rehearsal.device.compiled import partition_segments
from autoplan.rehearsal.device.kernels import kernels_of
from autoplan.rehearsal.device.process_groups import fake_world
from autoplan.rehearsal.device.streams import NAME
from autoplan.rehearsal.expected_tokens import tokens_as_priced
from autoplan.rehearsal.records import RankTrace
from autoplan.runtime import host
from autoplan.runtime.agreement.fingerprint import Fingerprint
from autoplan.runtime.engine import LoopEngine
from autoplan.runtime.parallel import compiled as runtime_compiled
from autoplan.runtime.parallel.sharded_parameter import local
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import ProgramSpec

STEPS = 2  # the first makes the optimizer's state, and what engines allocate once; the last is written down


def rehearse_rank(
    folder: str | os.PathLike, rank: int, microbatches: int | None = None, compiled: bool = True
) -> RankTrace:
    """The calls and the memory of one step of a rank.

    microbatches  that are run; None: as many as planned
    compiled      whether segments that the plan compiles keep what a compiled one keeps; False: as eager ones do
    """
    file = Path(folder) / "program.py"
    plan = opened(folder)
    record, spec = plan.record, plan.spec()
    training = replace(spec.training, compression_start=0)  # a step once gradients are compressed, as plans price it
    # the fake device stands for the plan's, processors too
    spec = replace(spec, training=training, on_processors=False)
    module = plan.module()
    if microbatches is not None:
        spec = shortened(spec, microbatches)
    recorder = Recorder(file.resolve())
    with ExitStack() as stack:
        recorder.device = stack.enter_context(fake_device(recorder))
        stack.enter_context(fake_world(rank, spec.lowered.mesh.devices, recorder))
        stack.enter_context(answered(recorder))
        stack.enter_context(tokens_as_priced(record))
        partitioning = partial(partition_segments, recorder=recorder)
        stack.enter_context(patch.object(runtime_compiled, "compile_segments", partitioning))
        stack.enter_context(patch.object(runtime_compiled, "has_compiler", lambda device_type: True))
        stack.enter_context(kernels_of("cuda" if record.cluster.profile()[0].compiles else "cpu"))
        # a compiled segment runs again whole, an eager one up to the last tensor that its backward reads
        stack.enter_context(set_checkpoint_early_stop(not spec.training.compile))
        program = Program(spec if compiled else eager(spec), module)
        program.filled = True  # values are all that a rehearsal hasn't
        watch(program, recorder)
        batch = {value.name: given(spec, value) for value in spec.lowered.batch}
        stages = tuple(s.number for s in program.stages.modules)
        if program.continuous:  # once it is full; the calls are those of a step that is drained
            for _ in range(STEPS + 2 * max(program.continuous.delays)):
                recorder.restart()
                step(program, batch, recorder)
            full = recorder.trace(rank, stages, spec.microbatches)
            program.continuous.settle()
        for _ in range(STEPS):
            recorder.restart()
            step(program, batch, recorder)
            if program.continuous:
                program.continuous.settle()
        trace = recorder.trace(rank, stages, spec.microbatches)
        return replace(trace, peak=full.peak) if program.continuous else trace


def step(program: Program, batch: dict[str, Tensor], recorder: Recorder) -> None:
    """One optimizer step, as train.py has it; what a stale one leaves on its way is waited for, since a trace is of one
    alone."""
    tag(program, recorder)
    program.step(batch)
    tag(program, recorder)
    with recorder.part("update"):
        program.optimizer.step()
        if program.servers:
            program.servers.settle()


def tag(program: Program, recorder: Recorder) -> None:
    """Says which storages are parameters, gradients, buffers and the optimizer's state."""
    storages = recorder.storages
    for held in program.held:
        storages.tag(held.values, "parameters")
        for gradient in held.gradients:
            storages.tag(gradient, "gradients")
        for value in program.optimizer.state.get(held.updated, {}).values():
            if isinstance(value, Tensor):
                storages.tag(local(value), "optimizer state")
    for value in program.stages.buffers.values():
        storages.tag(value, "buffers")


def watch(program: Program, recorder: Recorder) -> None:
    """Has the engine say which part of which microbatch it runs."""
    if isinstance(program.engine, LoopEngine):
        stage = program.engine.stage
        count = [0]

        def forward(*args: Any, **kwargs: Any) -> Any:
            recorder.during = f"forward {count[0] % program.spec.microbatches}"
            result = type(stage).forward(stage, *args, **kwargs)
            recorder.during = f"backward {count[0] % program.spec.microbatches}"
            count[0] += 1
            return result

        stage.forward = forward  # type: ignore[method-assign]
        return
    stages = program.engine.stages
    for number, piped in stages.items():
        of = f" of stage {number}" if len(stages) > 1 else ""
        for name in ("forward", "backward", "backward_inputs", "backward_weights"):
            setattr(piped, name, told(getattr(piped, name), recorder, name.partition("_")[0], of))


def told(function: Callable[..., Any], recorder: Recorder, said: str, of: str) -> Callable[..., Any]:
    def run(number: int, *args: Any, **kwargs: Any) -> Any:
        with recorder.part(f"{said} {number}{of}"):
            return function(number, *args, **kwargs)

    return run


@contextmanager
def answered(recorder: Recorder) -> Iterator[None]:
    """What the host asks the device is answered as where all is well; messages that are posted together are told so.

    A batch has no values, so nothing is hashed.
    """
    post = dist.batch_isend_irecv

    def read(x: Tensor, otherwise: Callable[[], list] | None = None) -> list:
        if x.device.type == NAME:
            recorder.stopped("host.read")
        return otherwise() if otherwise is not None else torch.zeros(x.shape, dtype=x.dtype).tolist()

    def posted(operations: list) -> list:
        with recorder.together():
            return post(operations)

    with ExitStack() as stack:
        stack.enter_context(patch.object(host, "read", read))
        stack.enter_context(patch.object(dist, "batch_isend_irecv", posted))
        stack.enter_context(patch.object(Fingerprint, "of", lambda *_: torch.zeros((), dtype=torch.int64)))
        yield


def eager(spec: ProgramSpec) -> ProgramSpec:
    return replace(spec, training=replace(spec.training, compile=False))


def given(spec: ProgramSpec, value: TypedValue) -> Tensor:
    """A batch's tensor, in the host's memory: it has one element, whatever its shape."""
    return torch.zeros((), dtype=spec.activation_dtype(value.type)).expand(value.type.shape)


def shortened(spec: ProgramSpec, microbatches: int) -> ProgramSpec:
    """The same program for fewer microbatches of the same rows."""
    before, lowered = spec.microbatches, spec.lowered
    if microbatches == before:
        return spec
    axes = tuple(Axis(MICROBATCH, microbatches, 0) if a.virtual else a for a in lowered.mesh.axes)

    def fewer(value: TypedValue) -> TypedValue:
        dims = [n for n, split in enumerate(value.layout.dims) if MICROBATCH in split]
        shape = tuple(n * microbatches // before if at in dims else n for at, n in enumerate(value.type.shape))
        return replace(value, type=replace(value.type, shape=shape))

    shorter = replace(lowered, mesh=Mesh(axes), batch=tuple(fewer(value) for value in lowered.batch))
    return replace(spec, lowered=shorter)
